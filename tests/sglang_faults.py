"""Faults of DDTREE's worker that tests ask for, as a plugin of SGLang beside it; `SGLANG_FAULT` names one.

`mask`: a row of a tree sees the text and itself, but not its ancestors. `swapped`: the drafter's two best tokens of
each position stand in each other's place with the same log-prob, so that its first choice is mostly wrong and a text
runs by the second.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent


def path(folder: Path) -> str:
    """What a server's PYTHONPATH has to hold; the plugin's metadata are written below `folder`."""
    place = folder / "sglang-faults" / "sglang_faults-0.1.dist-info"
    place.mkdir(parents=True, exist_ok=True)
    (place / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang-faults\nVersion: 0.1\n")
    (place / "entry_points.txt").write_text("[sglang.srt.plugins]\nsglang_faults = sglang_faults:register\n")
    return os.pathsep.join([str(place.parent.absolute()), str(TESTS)])


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
