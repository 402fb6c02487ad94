"""DDTree: the best-first draft tree over a block-diffusion drafter's marginals (arXiv 2604.12989)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from methods.base import Method, Refusal

if TYPE_CHECKING:
    from torch import Tensor

    from methods.reference.tree import Candidates, Tree


@dataclass(frozen=True)
class DDTree(Method):
    """The `budget` most probable prefixes of the drafter's block, verified in one pass of width 1 + budget.

    `chain_seed` takes the top-1 chain first and spends what is left best-first, for small budgets or a drafter
    whose distribution is nearly flat.
    """

    budget: int = 64
    chain_seed: bool = False
    name: ClassVar[str] = "ddtree"

    def __post_init__(self) -> None:
        if self.budget < 1:
            raise Refusal(f"budget={self.budget} is not accepted: an integer of at least 1 is (16 to 1024 are usual).")

    @property
    def arm(self) -> str:
        return f"{self.name}-{self.budget}" + ("-chain" if self.chain_seed else "")

    @property
    def node_budget(self) -> int:
        return self.budget

    def width(self, block_size: int) -> int:
        return 1 + self.budget

    def build(self, candidates: Candidates | None, root: Tensor) -> Tree:
        from methods.reference.tree import build

        assert candidates is not None
        return build(candidates, root, self.budget, chain_seed=self.chain_seed)
