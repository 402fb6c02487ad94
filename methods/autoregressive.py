"""Autoregressive decoding: the target alone, one token a round. The arm every other is compared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from methods.base import Method

if TYPE_CHECKING:
    from torch import Tensor

    from methods.reference.tree import Candidates, Tree


@dataclass(frozen=True)
class Autoregressive(Method):
    """No draft: every round verifies the root alone and emits the target's next token.

    `twin` is the same method under another name: an arm that differs from AR in nothing, for the null test.
    """

    twin: bool = False
    name: ClassVar[str] = "autoregressive"
    uses_drafter: ClassVar[bool] = False

    @property
    def arm(self) -> str:
        return f"{self.name}-twin" if self.twin else self.name

    def width(self, block_size: int) -> int:
        return 1

    def build(self, candidates: Candidates | None, root: Tensor) -> Tree:
        from methods.reference.tree import root_only

        return root_only(root)
