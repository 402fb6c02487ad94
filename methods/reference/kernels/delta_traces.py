"""What a pass leaves of its rows for the commit: `delta.py` and `delta_step.py` write it, `delta_commit.py` reads it.
All layers share one tensor of each kind, so that one launch commits all of them.

Shape letters as in `delta.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Traces(NamedTuple):
    """What the rows of a pass would do to all layers' states and windows, should they become text."""

    key_lnhd: Tensor  # before their norm
    scale_lnh: Tensor  # the norm
    wanted_lnve: Tensor  # w
    sum_lnv: Tensor  # g, float64
    rate_lnv: Tensor  # β
    input_lnc: Tensor  # to the convolution

    @staticmethod
    def empty(layers: int, n: int, state_hdre: Tensor, window_kc: Tensor) -> Traces:
        """Of n rows, for layers whose states and windows are like these."""
        (h, d, r, e), channels, device = state_hdre.shape, window_kc.shape[1], state_hdre.device

        def whole(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.empty(layers, n, *shape, dtype=dtype, device=device)

        sums, inputs = whole(h * r, dtype=torch.float64), whole(channels, dtype=window_kc.dtype)
        return Traces(whole(h, d), whole(h), whole(h * r, e), sums, whole(h * r), inputs)

    def of(self, layer: int) -> Traces:
        """One layer's, without the l dimension."""
        return Traces(*(part[layer] for part in self))
