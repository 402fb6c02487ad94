"""Attention over a prefix and a tree, and the cache it reads.

A row's place in the cache (its slot) and its position in the text differ inside a tree: slots follow the verify
order, positions follow the depth. Keys are stored after the rotary embedding at their position, so the accepted
path only has to move its rows together.

Shape letters: n rows of this pass, s slots seen, h heads on this rank, g query heads per key/value head, d head size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from methods.reference.config import Rope, TransformerConfig
from methods.reference.loading import Weights
from methods.reference.norm import Norm
from methods.reference.parallel import Group

if TYPE_CHECKING:
    from methods.reference.gated_delta import Lineage
    from methods.reference.kernels.attention import Ancestors


class Cache:
    """Keys and values of every attention layer in one tensor, [layers, 2, h, slots, d]."""

    def __init__(
        self, config: TransformerConfig, slots: int, group: Group, device: torch.device, dtype: torch.dtype
    ) -> None:
        shape = (config.attention_layers, 2, config.kv_heads // group.size, slots, config.head_dim)
        self.data = torch.zeros(shape, device=device, dtype=dtype)

    @property
    def slots(self) -> int:
        return self.data.shape[3]

    def move(self, source_p: Tensor, target_p: Tensor) -> None:
        """Copy slots `source_p` to `target_p` (int64 [p]) in every layer; the sources are read first."""
        self.data.index_copy_(3, target_p, self.data.index_select(3, source_p))


class Rotary:
    """Tables of the rotary embedding of `size` dimensions for every position up to `length`."""

    def __init__(self, rope: Rope, size: int, length: int, device: torch.device, dtype: torch.dtype) -> None:
        frequencies = torch.tensor(rope.frequencies(size), dtype=torch.float64)
        angles = torch.arange(length, dtype=torch.float32)[:, None] * frequencies.float()
        angles = torch.cat([angles, angles], dim=-1)
        cos, sin = (table.to(device, dtype) for table in (angles.cos(), angles.sin()))
        self.tables = cos, sin

    def at(self, positions_n: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin of each position, [n, 1, d]: one row for all heads."""
        cos, sin = self.tables
        return cos[positions_n, None], sin[positions_n, None]


def rotate(x_nhd: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate as many dimensions as the tables have; the rest of a head carries no position."""
    cos, sin = rotary
    turned, still = x_nhd.split([cos.shape[-1], x_nhd.shape[-1] - cos.shape[-1]], dim=-1)
    left, right = turned.chunk(2, dim=-1)
    turned = turned * cos + torch.cat([-right, left], dim=-1) * sin
    return torch.cat([turned, still], dim=-1) if still.shape[-1] else turned


class Ancestry(NamedTuple):
    """How the rows of one pass descend from each other: row 0 is its own parent, a row sees itself and its ancestors
    (bool [n, n], row by query). The kernels read the same as `ancestors` (`kernels.attention.descend`) and as `ups_ns`
    (`kernels.delta.ascend`), or know it of a chain."""

    parents_n: Tensor
    visible_nn: Tensor | None
    ancestors: Ancestors | None = None
    chain: bool = False
    ups_ns: Tensor | None = None


@dataclass(frozen=True)
class Place:
    """Where the rows of one pass are: in slots from `start` (0-dim int64) on, at positions of the text, and, for gated
    delta net layers, in which lineage."""

    start: Tensor
    positions_n: Tensor
    lineage: Lineage | None


@dataclass(frozen=True)
class View(Place):
    """What the rows see, as the plain path reads it: the angles of their positions, their slots, and an additive mask
    over the slots."""

    rotary: tuple[Tensor, Tensor]
    slots_n: Tensor
    mask_ns: Tensor


def visible(start: Tensor, visible_nn: Tensor, seen: int) -> Tensor:
    """Every slot before `start` (0-dim int64) and, from there on, what `visible_nn` says. bool [n, seen]."""
    slots = torch.arange(seen, device=visible_nn.device)
    prefix_ns = (slots < start).expand(len(visible_nn), seen).clone()
    return prefix_ns.index_copy_(1, start + slots[: visible_nn.shape[1]], visible_nn)


def additive(visible_ns: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where visible, −inf elsewhere."""
    return torch.zeros(visible_ns.shape, dtype=dtype, device=visible_ns.device).masked_fill_(~visible_ns, -torch.inf)


class Attention:
    """Grouped-query attention; this rank's heads. The output is a part to be summed over ranks.

    Where the query is gated, q_proj makes two rows of heads: per head the query, then the gate of its output.
    """

    def __init__(self, config: TransformerConfig, weights: Weights, prefix: str) -> None:
        d, hidden = config.head_dim, config.hidden
        queries = 2 * config.heads if config.gated_query else config.heads
        rows = {"q": queries * d, "k": config.kv_heads * d, "v": config.kv_heads * d}
        parts = [weights.tensor(f"{prefix}.{name}_proj.weight", (size, hidden), split=0) for name, size in rows.items()]
        self._queries, self.gated = len(parts[0]) // d, config.gated_query
        self.heads = self._queries // 2 if self.gated else self._queries
        self.qkv = torch.cat(parts)
        self._qkv_bias = None
        if config.qkv_bias:
            biases = [weights.tensor(f"{prefix}.{name}_proj.bias", (size,), split=0) for name, size in rows.items()]
            self._qkv_bias = torch.cat(biases)
        self.out = weights.tensor(f"{prefix}.o_proj.weight", (hidden, config.heads * d), split=1)
        self._out_bias = weights.tensor(f"{prefix}.o_proj.bias", (hidden,)) if config.output_bias else None
        self._first_rank = weights.group.rank == 0
        self._norms: tuple[Norm, ...] = ()
        if config.qk_norm:
            self._norms = tuple(Norm(config, weights, f"{prefix}.{name}_norm.weight", d) for name in "qk")
        self._d, self._kv_heads = d, config.kv_heads // weights.group.size

    @property
    def key_value(self) -> Tensor:
        """The weight's rows that make keys and values."""
        return self.qkv[self._queries * self._d :]

    @property
    def head_norms(self) -> tuple[tuple[Tensor, Tensor] | None, float]:
        """The factors of the queries' and the keys' norm, if there are such norms, and their ε."""
        if not self._norms:
            return None, 0.0
        (query, eps), (key, _) = (norm.scale for norm in self._norms)
        return (query, key), eps

    def store(self, x_nh: Tensor, view: View, cache_kv: Tensor) -> None:
        """Write keys and values of rows that ask nothing themselves (a drafter's context)."""
        bias = None if self._qkv_bias is None else self._qkv_bias[self._queries * self._d :]
        key, value = F.linear(x_nh, self.key_value, bias).unflatten(-1, (-1, self._d)).chunk(2, dim=1)
        self._write(key, value, view, cache_kv)

    def __call__(self, x_nh: Tensor, view: View, cache_kv: Tensor) -> Tensor:
        """Attend over the cache, the rows themselves included. [n, hidden] → [n, hidden], this rank's part."""
        n = len(x_nh)
        mixed = F.linear(x_nh, self.qkv, self._qkv_bias).unflatten(-1, (-1, self._d))
        query, key, value = mixed.split([self._queries, self._kv_heads, self._kv_heads], dim=1)
        self._write(key, value, view, cache_kv)
        if self.gated:
            query, gate = query.unflatten(1, (-1, 2)).unbind(2)
        if self._norms:
            query = self._norms[0](query)
        query = rotate(query, view.rotary).unflatten(1, (self._kv_heads, -1))
        groups, seen = query.shape[2], view.mask_ns.shape[1]
        folded = query.permute(1, 2, 0, 3).reshape(1, self._kv_heads, groups * n, self._d)
        mask = view.mask_ns.expand(groups, n, seen).reshape(groups * n, seen)
        keys, values = cache_kv[0, None, :, :seen], cache_kv[1, None, :, :seen]
        attended = F.scaled_dot_product_attention(folded, keys, values, attn_mask=mask)
        joined = attended.view(self._kv_heads, groups, n, self._d).permute(2, 0, 1, 3).reshape(n, -1)
        if self.gated:
            joined = joined * torch.sigmoid(gate).flatten(1)
        return F.linear(joined, self.out, self._out_bias if self._first_rank else None)

    def _write(self, key_nhd: Tensor, value_nhd: Tensor, view: View, cache_kv: Tensor) -> None:
        if self._norms:
            key_nhd = self._norms[1](key_nhd)
        key_nhd = rotate(key_nhd, view.rotary)
        cache_kv.index_copy_(2, view.slots_n, torch.stack([key_nhd, value_nhd]).transpose(1, 2))
