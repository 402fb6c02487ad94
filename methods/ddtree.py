"""DDTree: the best-first draft tree over a block-diffusion drafter's marginals (arXiv 2604.12989).

Adaptive growth (after CaDDTree, arXiv 2606.01813) takes of each round's tree what pays for itself. The path
probabilities in the tree's own order add up to the accepted depth to expect, so that every beginning of the tree has
its expected tokens; divided by what a round of its width costs they are a speed. CaDDTree stops where that speed first
falls, which is best if costs are convex. Measured ones are steps: within a step more nodes are free, and behind a bad
step may lie a good one. So the few widths at which rounds run are compared with each other, each as full as it gets.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from methods.base import Method, Refusal

if TYPE_CHECKING:
    from torch import Tensor

    from methods.reference.tree import Candidates, Tree

GROWTHS = ("fixed", "adaptive")
SMALLEST = 16  # the smallest of the budgets that adaptive growth chooses from; the next is twice the one before


@dataclass(frozen=True)
class DDTree(Method):
    """The `budget` most probable prefixes of the drafter's block, verified in one pass of width 1 + budget.

    `chain_seed` takes the top-1 chain first and spends what is left best-first, for small budgets or a drafter
    whose distribution is nearly flat. `growth=adaptive` makes `budget` the most that a round may verify: each takes the
    first 16, 32, 64, … or all nodes of its tree, whichever promises the most tokens a second. `costs` are the
    milliseconds of a round by budget, which also says which budgets there are; without them the engine measures.
    """

    budget: int = 64
    chain_seed: bool = False
    growth: str = "fixed"
    costs: Any = None  # a mapping, kept as pairs in the order of budgets
    name: ClassVar[str] = "ddtree"

    def __post_init__(self) -> None:
        if self.budget < 1:
            raise Refusal(f"budget={self.budget} is not accepted: an integer of at least 1 is (16 to 1024 are usual).")
        if self.growth not in GROWTHS:
            raise Refusal(f"method.growth={self.growth} is not accepted: {' or '.join(GROWTHS)} is.")
        if self.costs is not None:
            object.__setattr__(self, "costs", self._pairs(self.costs))

    def _pairs(self, costs: Any) -> tuple[tuple[int, float], ...]:
        """Costs as they are kept: a mapping's pairs, ascending by budget."""
        if not self.adapts:
            raise Refusal(
                f"method.costs={costs} is not accepted with growth={self.growth}: growth=adaptive reads them."
            )
        try:
            pairs = [(budget, float(ms)) for budget, ms in (costs.items() if isinstance(costs, Mapping) else costs)]
        except (TypeError, ValueError):
            pairs = []
        sound = all(isinstance(budget, int) and 0 < ms < math.inf for budget, ms in pairs)
        if not sound or not pairs or min(pairs)[0] < 1 or max(pairs)[0] != self.budget:
            raise Refusal(
                f"method.costs={costs} is not accepted: milliseconds above 0 by budget, of which {self.budget} is the "
                f"largest, are, such as {{{SMALLEST}: 6.1, {self.budget}: 9.8}}."
            )
        return tuple(sorted(dict(pairs).items()))

    @property
    def arm(self) -> str:
        chain, adaptive = "-chain" if self.chain_seed else "", "-adaptive" if self.adapts else ""
        return f"{self.name}-{self.budget}{chain}{adaptive}"

    @property
    def node_budget(self) -> int:
        return self.budget

    def width(self, block_size: int) -> int:
        return 1 + self.budget

    @property
    def adapts(self) -> bool:
        return self.growth == "adaptive"

    def widths(self, block_size: int) -> tuple[int, ...]:
        return tuple(1 + budget for budget in self.budgets)

    @property
    def budgets(self) -> Sequence[int]:
        """Those that a round may take, ascending."""
        if not self.adapts:
            return (self.budget,)
        if self.costs:
            return tuple(budget for budget, _ in self.costs)
        doubled = [SMALLEST << step for step in range(self.budget.bit_length())]
        return (*(budget for budget in doubled if budget < self.budget), self.budget)

    @property
    def width_costs(self) -> tuple[float, ...] | None:
        return tuple(ms for _, ms in self.costs) if self.costs else None

    def choose(self, draft: Tree, costs_w: Tensor) -> Tensor:
        """The width of the most expected tokens a millisecond; of equals the narrowest."""
        import torch

        from methods.reference.tree import expected_accepted

        speeds_w = (1 + expected_accepted(draft, self.widths(0))) / costs_w
        places_w = torch.arange(len(speeds_w), device=speeds_w.device)
        return torch.where(speeds_w == speeds_w.amax(), places_w, len(speeds_w)).amin()

    def build(self, candidates: Candidates | None, root: Tensor) -> Tree:
        from methods.reference.tree import build

        assert candidates is not None
        return build(candidates, root, self.budget, chain_seed=self.chain_seed)
