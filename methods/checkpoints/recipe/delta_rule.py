"""The gated delta rule over whole texts in chunks, with its gradient, and over one token.

Per value head the state S [K, V] goes from token to token as S ← e^a S, u = β (v − Sᵀk), S ← S + k uᵀ, o = Sᵀq, with
log decay a ≤ 0 and strength β (Yang et al. 2024, "Gated Delta Networks"). Within a chunk all u follow from one unit
lower triangular system (the WY form); across chunks the state is an affine map, and maps are composed in log₂ N steps.
Shapes: B rows, S positions, N chunks, C positions of a chunk, H value heads, K and V head sizes.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 32
"""Positions of a chunk: divides every width of a batch."""


def unit_inverse(below: Tensor) -> Tensor:
    """(I + A)⁻¹, A being the strictly lower triangle of `below` [..., C, C], C a power of two.

    The inverted diagonal blocks are doubled in size until one is left. (A sum of powers of A would be as short, but
    where keys repeat the powers grow beyond what float32 holds.)
    """
    size = below.shape[-1]
    place = torch.arange(size, device=below.device)
    matrices = below.flatten(0, -3)
    inverse = torch.eye(size, device=below.device, dtype=below.dtype)
    block = 1
    while block < size:
        row, column = place[:, None] // block, place // block
        corner = matrices * ((row % 2 == 1) & (column == row - 1))
        inverse = torch.baddbmm(inverse, inverse @ corner, inverse, alpha=-1) if block > 1 else inverse - corner
        block *= 2
    return inverse.expand_as(matrices).view_as(below)


def across(maps: Tensor, news: Tensor) -> Tensor:
    """States behind every chunk [N, ..., K, V] of S ← maps · S + news from S = 0, in log₂ N steps."""
    count, span = len(maps), 1
    while span < count:
        later, width = maps[span:], count - span
        news = torch.cat([news[:span], news[span:] + later @ news[:width]])
        if 2 * span < count:
            maps = torch.cat([maps[:span], later @ maps[:width]])
        span *= 2
    return news


class Chunks(torch.autograd.Function):
    """The rule over chunks: q, k [N, B, key heads, 1, C, K], v [..., value heads of a key head, C, V], a, β [..., C].

    Gives the outputs [..., C, V] and the states behind every chunk [..., K, V], which take no gradient. The gradient
    is written out because a trace of the forward pass would keep and walk three times as much.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, a: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
        gone = a.cumsum(-1)
        grown, lapsed, kept = gone.exp(), (gone[..., -1:] - gone).exp(), gone[..., -1, None, None].exp()
        size = q.shape[-2]
        # Masked before the exponential, or the upper half would overflow.
        future = torch.full((size, size), -torch.inf, device=q.device, dtype=q.dtype).triu(1)
        fading = (gone[..., :, None] - gone[..., None, :]).add_(future).exp_()
        system = (k @ k.mT) * fading * beta[..., None]
        weights = (q @ k.mT) * fading
        inverse = unit_inverse(system)
        written = inverse @ (v * beta[..., None])
        read = inverse @ (k * (beta * grown)[..., None])
        lasting = k * lapsed[..., None]
        maps = kept * torch.eye(k.shape[-1], device=q.device, dtype=q.dtype) - lasting.mT @ read
        states = across(maps, lasting.mT @ written)
        before = torch.cat([torch.zeros_like(states[:1]), states[:-1]])
        u = written - read @ before
        asked = q * grown[..., None]
        out = (asked @ before).add_(weights @ u)
        ctx.save_for_backward(
            *(q, k, v, beta, grown, lapsed, kept, fading, system, weights),
            *(inverse, written, read, lasting, maps, before, u, asked),
        )
        ctx.mark_non_differentiable(states)
        return out, states

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        (q, k, v, beta, grown, lapsed, kept, fading, system, weights) = ctx.saved_tensors[:10]
        (inverse, written, read, lasting, maps, before, u, asked) = ctx.saved_tensors[10:]
        d_out = gradients[0].contiguous()
        # Of the states: the same scan from the last chunk to the first.
        d_u = weights.mT @ d_out
        d_states = across(maps.mT.flip(0), (asked.mT @ d_out).sub_(read.mT @ d_u).flip(0)).flip(0)
        after = torch.cat([d_states[1:], torch.zeros_like(d_states[:1])])
        d_u = d_u.add_(lasting @ after)
        # Of the system's right sides, of the system and of the weights.
        d_values = inverse.mT @ d_u
        d_keys = inverse.mT @ (d_u @ before.mT).neg_()
        d_system = (d_values @ written.mT).add_(d_keys @ read.mT).neg_().tril_(-1)
        d_weights = d_out @ u.mT
        d_asked, d_lasting = d_out @ before.mT, u @ after.mT
        # Of the decay: every factor is an exponential of differences of `gone`.
        pull = (d_system * system).add_(d_weights * weights)
        at_keys = (d_keys * k).sum(-1) * grown
        at_end = (d_lasting * lasting).sum(-1)
        d_gone = pull.sum(-1) - pull.sum(-2) + (d_asked * asked).sum(-1) + beta * at_keys - at_end
        d_gone[..., -1] += at_end.sum(-1) + (after * before).sum((-2, -1)) * kept[..., 0, 0]
        d_system, d_weights = d_system.mul_(fading), d_weights.mul_(fading).sum(3, keepdim=True)
        d_beta = (d_system * (k @ k.mT)).sum(-1) + (d_values * v).sum(-1) + at_keys
        d_gram = d_system.mul_(beta[..., None]).sum(3, keepdim=True)
        d_q = (d_asked * grown[..., None]).sum(3, keepdim=True) + d_weights @ k
        d_k = (d_keys * (beta * grown)[..., None]).add_(d_lasting * lapsed[..., None]).sum(3, keepdim=True)
        d_k = d_k + d_weights.mT @ q + (d_gram + d_gram.mT) @ k
        return d_q, d_k, d_values * beta[..., None], d_gone.flip(-1).cumsum(-1).flip(-1), d_beta


def chunked(
    queries: Tensor, keys: Tensor, values: Tensor, decay: Tensor, strength: Tensor, chunk: int = CHUNK
) -> tuple[Tensor, Tensor]:
    """All positions at once, from an empty state.

    Args:
        queries: [B, S, key heads, K], scaled, of unit length before that.
        keys: [B, S, key heads, K], of unit length; a key head serves H / key heads consecutive value heads.
        values: [B, S, H, V].
        decay: log decay a [B, S, H].
        strength: β [B, S, H]. Where a and β are 0 the state stays as it is.
        chunk: positions of a chunk, a power of two.

    Returns:
        Outputs [B, S, H, V], and the state behind the last position [B, H, K, V].
    """
    length, groups = values.shape[1], keys.shape[2]

    def split(x: Tensor) -> Tensor:
        """[B, S, heads, ...] → [N, B, key heads, heads of one key head, C, ...]."""
        x = F.pad(x, (0, 0) * (x.ndim - 2) + (0, -length % chunk))
        x = x.unflatten(1, (-1, chunk)).movedim(1, 0).transpose(2, 3).contiguous()
        parts: Tensor = x.unflatten(2, (groups, -1))
        return parts

    parts = (split(x) for x in (queries, keys, values, decay, strength))
    out, states = Chunks.apply(*parts)  # type: ignore[no-untyped-call]
    out = out.flatten(2, 3).transpose(2, 3).transpose(0, 1).flatten(1, 2)[:, :length]
    return out, states[-1].flatten(1, 2)


def advance(state: Tensor, q: Tensor, k: Tensor, v: Tensor, decay: Tensor, strength: Tensor) -> Tensor:
    """One token: the output [B, H, V] of q, k [B, H, K], v [B, H, V], decay and strength [B, H]; `state` in place."""
    kept = decay.exp()[..., None]
    seen = torch.stack([k, q], 2) @ state
    u = strength[..., None] * (v - kept * seen[:, :, 0])
    state.mul_(kept[..., None]).addcmul_(k[..., None], u[..., None, :])
    return kept * seen[:, :, 1] + (q * k).sum(-1, keepdim=True) * u
