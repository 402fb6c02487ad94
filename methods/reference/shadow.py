"""The linear shadow: what the drafter's first choices alone would have had accepted in each round.

Every method's text is the target's own, so the whole output itself says how far a round's first choices go with it.
"""

from __future__ import annotations

from collections.abc import Sequence

from methods.base import Inspected


def shadowed(
    rounds: Sequence[Inspected], chains: Sequence[Sequence[int]], output: Sequence[int]
) -> tuple[Inspected, ...]:
    """The rounds of an output with their shadows. `chains`: the drafter's first choices, by round."""
    found, place = [], 1  # the output position after the root
    for seen, chain in zip(rounds, chains, strict=True):
        found.append(seen._replace(shadow_accepted=_agreement(chain, output[place:])))
        place += seen.accepted + 1
    return tuple(found)


def _agreement(chain: Sequence[int], text: Sequence[int]) -> int:
    """How many tokens of a chain the text begins with."""
    return next(
        (i for i, (mine, theirs) in enumerate(zip(chain, text, strict=False)) if mine != theirs),
        min(len(chain), len(text)),
    )
