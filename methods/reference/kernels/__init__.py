"""Triton kernels for what a round does on a GPU. The modules here are imported where they are used: Triton comes with
torch's CUDA builds only.
"""

from __future__ import annotations

import os

import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
on = True
"""Whether the engine uses them where it can; tests turn it off to compare with the plain path."""


def usable(device: torch.device) -> bool:
    """Whether work on this device goes through the kernels: on a GPU, or anywhere in Triton's interpreter."""
    return on and (device.type == "cuda" or INTERPRETED)
