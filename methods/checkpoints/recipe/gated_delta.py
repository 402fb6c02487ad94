"""The gated delta net layer of a hybrid target, for training over whole rows and for decoding token by token.

The rule itself is in `delta_rule.py` and runs in float32.
Shapes: B rows, S positions, H value heads, K and V head sizes.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from methods.checkpoints.recipe.delta_rule import advance, chunked
from methods.checkpoints.recipe.parts import Linear, Norm
from methods.checkpoints.recipe.shapes import Delta, Shape


class Convolution(nn.Module):
    """A causal convolution of each channel for itself, its weight in the published form [channels, 1, kernel]."""

    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(channels, 1, kernel) * kernel**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        """SiLU of the convolved x [B, kernel − 1 + S, channels], which begins with the window before: [B, S, ...]."""
        taps = self.weight.to(x.dtype)[:, 0].unbind(-1)
        length = x.shape[1] - len(taps) + 1
        out = x[:, :length] * taps[0]
        for i, tap in enumerate(taps[1:], 1):
            out = torch.addcmul(out, x[:, i : i + length], tap)
        return F.silu(out)


class GatedDelta(nn.Module):
    """The layer's mixer: projections, convolution, delta rule, gated norm."""

    def __init__(self, shape: Shape, delta: Delta) -> None:
        super().__init__()
        self.delta = delta
        width = 2 * delta.keys + delta.values
        self.in_proj_qkv = Linear(shape.hidden, width)
        self.in_proj_z = Linear(shape.hidden, delta.values)
        self.in_proj_b = Linear(shape.hidden, delta.value_heads)
        self.in_proj_a = Linear(shape.hidden, delta.value_heads)
        self.conv1d = Convolution(width, delta.kernel)
        self.A_log = nn.Parameter(torch.empty(delta.value_heads).uniform_(1, 16).log())
        # Time steps from 0.001 to 0.1, as Mamba-2 starts: some heads remember long, others briefly.
        step = torch.empty(delta.value_heads).uniform_(math.log(0.001), math.log(0.1)).exp()
        self.dt_bias = nn.Parameter(step + torch.log(-torch.expm1(-step)))
        self.norm = Norm(delta.value_dim, shape.eps)
        self.out_proj = Linear(delta.values, shape.hidden, scale=shape.outlet)

    def gates(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Log decay and strength [B, S, H] of x [B, S, hidden]."""
        decay = -self.A_log.float().exp() * F.softplus(self.in_proj_a(x).float() + self.dt_bias)
        return decay, self.in_proj_b(x).float().sigmoid()

    def heads(self, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Scaled queries and keys [B, S, key heads, K] and values [B, S, H, V] of the convolved [B, S, channels]."""
        d, size = self.delta, self.delta.key_dim
        both, values = mixed.float().split([2 * d.keys, d.values], -1)
        # x / √(Σx² + 1e-6) is the root-mean-square norm over √size.
        unit = F.rms_norm(both.unflatten(-1, (-1, size)), (size,), eps=1e-6 / size)
        queries, keys = unit.split([d.key_heads, d.key_heads], 2)
        return queries / size, keys * size**-0.5, values.unflatten(-1, (-1, d.value_dim))

    def finish(self, out: Tensor, x: Tensor) -> Tensor:
        """The gated norm and the last projection over the delta rule's output [B, S, H, V] for x [B, S, hidden]."""
        gate = F.silu(self.in_proj_z(x))
        mixed: Tensor = self.out_proj(self.norm(out.to(x.dtype)).flatten(2) * gate)
        return mixed

    def whole(self, x: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Rows x [B, S, hidden] from their start.

        Returns:
            The mixed rows [B, S, hidden], and of each the state [B, H, K, V] and the convolution's window
            [B, kernel − 1, channels] behind its first `lengths` [B] positions (else behind all).
        """
        before = self.delta.kernel - 1
        inputs = F.pad(self.in_proj_qkv(x), (0, 0, before, 0))
        decay, strength = self.gates(x)
        window = inputs[:, -before:]
        if lengths is not None:
            inside = (torch.arange(x.shape[1], device=x.device) < lengths[:, None])[..., None]
            decay, strength = decay * inside, strength * inside
            places = lengths[:, None, None] + torch.arange(before, device=x.device)[:, None]
            window = inputs.gather(1, places.expand(-1, -1, inputs.shape[-1]))
        out, state = chunked(*self.heads(self.conv1d(inputs)), decay, strength)
        return self.finish(out, x), state, window

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Mixes x [B, S, hidden]; positions (the rotary tables) play no part."""
        return self.whole(x)[0]

    def step(self, x: Tensor, state: Tensor, window: Tensor) -> Tensor:
        """One more position x [B, 1, hidden] of every row; `state` and `window` are advanced in place."""
        inputs = torch.cat([window, self.in_proj_qkv(x)], 1)
        window.copy_(inputs[:, 1:])
        q, k, v = (part[:, 0] for part in self.heads(self.conv1d(inputs)))
        groups = v.shape[1] // k.shape[1]
        q, k = q.repeat_interleave(groups, 1), k.repeat_interleave(groups, 1)
        decay, strength = (part[:, 0] for part in self.gates(x))
        return self.finish(advance(state, q, k, v, decay, strength)[:, None], x)
