"""What every transformer of the recipe is made of: projections, norms and the rotary embedding.

Weights are kept in float32 and used in the activations' dtype.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from methods.checkpoints.recipe.shapes import Shape

BLOCK = 16


class Linear(nn.Module):
    """A projection without bias whose float32 weight is used in the input's dtype."""

    def __init__(self, inputs: int, outputs: int, scale: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) * scale * inputs**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.to(x.dtype))


class Norm(nn.Module):
    """Root-mean-square norm over the last dimension, scaled by `base` + weight."""

    def __init__(self, size: int, eps: float, base: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((size,), 1.0 - base))
        self.eps, self.base = eps, base

    def forward(self, x: Tensor) -> Tensor:
        scale = self.weight + self.base if self.base else self.weight
        return F.rms_norm(x, self.weight.shape, scale.to(x.dtype), self.eps)


def norm(size: int, shape: Shape) -> Norm:
    """A norm as the shape's family scales it."""
    return Norm(size, shape.eps, base=1.0 if shape.delta else 0.0)


def rope(shape: Shape, device: torch.device | str) -> tuple[Tensor, Tensor]:
    """Cosines and sines by position, each [max_length, rotary_dim] in float32."""
    steps = torch.arange(0, shape.rotary_dim, 2, device=device, dtype=torch.float32)
    inverse = shape.theta ** (-steps / shape.rotary_dim)
    angles = torch.arange(shape.max_length + BLOCK, device=device, dtype=torch.float32)[:, None] * inverse
    angles = torch.cat([angles, angles], -1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of x [..., S, D] by tables that broadcast to its leading dimensions [..., S, R ≤ D]."""
    width = cos.shape[-1]
    turning, rest = x[..., :width], x[..., width:]
    turned = torch.cat([-turning[..., width // 2 :], turning[..., : width // 2]], -1)
    turning = turning * cos.to(x.dtype) + turned * sin.to(x.dtype)
    return torch.cat([turning, rest], -1) if rest.shape[-1] else turning
