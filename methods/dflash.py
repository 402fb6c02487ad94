"""DFlash: one linear draft block a round, the drafter's best token at each position (arXiv 2602.06036)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from methods.base import Method

if TYPE_CHECKING:
    from torch import Tensor

    from methods.reference.tree import Candidates, Tree


@dataclass(frozen=True)
class DFlash(Method):
    """The block as it comes: a chain of block_size − 1 nodes."""

    name: ClassVar[str] = "dflash"

    def width(self, block_size: int) -> int:
        return block_size

    def candidates(self, block_size: int) -> int:
        return 1

    def build(self, candidates: Candidates | None, root: Tensor) -> Tree:
        from methods.reference.tree import chain

        assert candidates is not None
        return chain(candidates.ids_lk[:, 0], candidates.log_probs_lk[:, 0], root)
