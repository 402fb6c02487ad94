"""Faults of DDTREE's worker that tests ask for, as a plugin of SGLang beside it; `SGLANG_FAULT` names one.

`mask`: a row of a tree sees the text and itself, but not its ancestors. `swapped`: the drafter's two best tokens of
each position stand in each other's place with the same log-prob, so that its first choice is mostly wrong and a text
runs by the second.
"""

from __future__ import annotations

import os
import sys
from typing import Any


def register() -> None:
    import torch

    from methods.engines.sglang_ddtree import trees

    whole_visibility, whole_candidates = trees.visibility, trees.candidates

    def visibility(*given: Any) -> Any:
        found = whole_visibility(*given)
        return found & torch.eye(found.shape[-1], dtype=torch.bool, device=found.device)

    def candidates(*given: Any) -> Any:
        found = whole_candidates(*given)
        ids, log_probs = found.ids_lk, found.log_probs_lk
        return type(found)(
            log_probs_lk=torch.cat([log_probs[..., :1], log_probs[..., :1], log_probs[..., 2:]], dim=-1),
            ids_lk=torch.cat([ids[..., :2].flip(-1), ids[..., 2:]], dim=-1),
        )

    faults = {"mask": ("visibility", visibility), "swapped": ("candidates", candidates)}
    name, fault = faults[os.environ["SGLANG_FAULT"]]
    for module in [each for at, each in sys.modules.items() if at.startswith(trees.__package__)]:
        if hasattr(module, name):
            setattr(module, name, fault)
