"""Root-mean-square norms, plain (scale w) and offset (scale 1 + w)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from methods.reference.config import TransformerConfig
from methods.reference.loading import Weights


class Norm:
    """RMSNorm over the last dimension. The offset kind scales in float32: 1 + w has no bits for a small w in bf16."""

    def __init__(self, config: TransformerConfig, weights: Weights, name: str, size: int) -> None:
        self._shape, self._eps = (size,), config.eps
        if config.offset_norms:
            self._weight = 1 + weights.tensor(name, self._shape, dtype=torch.float32, neutral=0.0)
        else:
            self._weight = weights.tensor(name, self._shape)

    @property
    def scale(self) -> tuple[Tensor, float]:
        """The factors [size], and ε."""
        return self._weight, self._eps

    def __call__(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.to(self._weight.dtype), self._shape, self._weight, self._eps).to(x.dtype)
