"""A transformer's layers through the kernels: the plain path's functions in as few launches as they need.

One row goes through `gemv`, with norms, activation and residuals inside the products; several go through `narrow` or
cuBLAS with one launch between two products. What the kernels do not cover (experts, recurrent mixers over long texts)
is called as the plain path calls it. Over several ranks a block's part is summed and added in one launch, with the next
norm where there are several rows.

Shape letters: n rows, h hidden size, d head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch.nn.functional as F
from torch import Tensor

from methods.reference.attention import Ancestry, Attention, Place, Rotary
from methods.reference.config import LayerAttention
from methods.reference.gated_delta import GatedDeltaNet, Lineage, Memory
from methods.reference.kernels import attention, delta, layers, products
from methods.reference.kernels.delta_traces import Traces
from methods.reference.mlp import GatedMLP
from methods.reference.norm import Norm
from methods.reference.parallel import Group

if TYPE_CHECKING:
    from methods.reference.target import Layer


@dataclass(frozen=True)
class Spot(Place):
    """A place as the kernels read it; `ancestors` is None where the rows are a chain or a block.

    Recurrent layers read `ups_ns` instead, and leave `traces`; where there is a lineage they run on the plain path.
    """

    ancestors: attention.Ancestors | None
    ups_ns: Tensor | None = None
    traces: Traces | None = None


class Stack:
    """Layers and their final norm, with what the kernels need of them."""

    def __init__(
        self, stack: Sequence[Layer], norm: Norm, rotary: Rotary, group: Group, sights: Sequence[LayerAttention] = ()
    ) -> None:
        """`sights`: how each layer looks at rows that form no tree; causally where none are given."""
        self._layers, self._norm, self._rotary, self._group = stack, norm, rotary, group
        self._sights = sights or [LayerAttention(causal=True, window=0)] * len(stack)
        recurrent = [index for index, layer in enumerate(stack) if isinstance(layer.mixer, GatedDeltaNet)]
        self._recurrent = {index: order for order, index in enumerate(recurrent)}

    def ancestors(self, parents_n: Tensor, depth_limit: int) -> attention.Ancestors:
        """A tree's ancestors as the attention kernel reads them."""
        mixer = next(layer.mixer for layer in self._layers if isinstance(layer.mixer, Attention))
        d = mixer.out.shape[1] // mixer.heads
        group = 2 * mixer.heads * d // len(mixer.key_value)
        family = attention.family_for(len(parents_n), group, d, mixer.qkv.dtype, parents_n.device)
        return attention.descend(parents_n, depth_limit, family)

    def ups(self, parents_n: Tensor, depth_limit: int) -> Tensor | None:
        """A tree's ancestors as the recurrent layers' kernels read them; None for one row, which needs none, and where
        the tree may be too deep."""
        if not self._recurrent or len(parents_n) == 1 or depth_limit > delta.DEEPEST:
            return None
        mixer = self._layers[next(iter(self._recurrent))].mixer
        assert isinstance(mixer, GatedDeltaNet)
        return delta.ascend(parents_n, depth_limit, len(mixer.constants.taps_kc))

    def place(
        self, start: Tensor, positions_n: Tensor, ancestry: Ancestry | None = None, lineage: Lineage | None = None
    ) -> Spot:
        """Rows at slots from `start` on; a tree where there is an ancestry that is no chain."""
        ancestors = ancestry.ancestors if ancestry else None
        if ancestry and ancestors is None and not ancestry.chain:
            ancestors = self.ancestors(ancestry.parents_n, len(positions_n))
        return Spot(start, positions_n, lineage, ancestors, ancestry.ups_ns if ancestry else None)

    def __call__(
        self, x_nh: Tensor, place: Place, memories: Sequence[Any], features: Sequence[int] = ()
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Run n rows at a place through all layers.

        Args:
            memories: what each layer's mixer reads of the text before.
            features: the layers whose outputs are asked for.

        Returns:
            The final-normed rows [n, h], and the outputs asked for.
        """
        assert isinstance(place, Spot)
        if self._recurrent and place.lineage is None:
            memory = memories[next(iter(self._recurrent))]
            traces = Traces.empty(len(self._recurrent), len(x_nh), memory.state_hdre, memory.window_kc)
            place = replace(place, traces=traces)
        run = self._one if len(x_nh) == 1 else self._several
        return run(x_nh, place, memories, features)

    def store(self, x_nh: Tensor, place: Spot, memories: Sequence[Tensor]) -> None:
        """Write every layer's keys and values of rows that ask nothing themselves (a drafter's context)."""
        for layer, cache_kv in zip(self._layers, memories, strict=True):
            mixer = layer.mixer
            assert isinstance(mixer, Attention)
            self._stored(mixer, self.product(x_nh, mixer.key_value), place, cache_kv, heads=0)

    def _one(
        self, x_1h: Tensor, place: Spot, memories: Sequence[Any], features: Sequence[int]
    ) -> tuple[Tensor, dict[int, Tensor]]:
        kept = {}
        for index, layer in enumerate(self._layers):
            if isinstance(layer.mixer, Attention):
                qkv = products.gemv(x_1h, layer.mixer.qkv, norm=layer.mixer_norm.scale)
                attended = self._attended(layer.mixer, qkv, place, index, memories[index])
                x_1h = self._grown(x_1h, attended, layer.mixer.out)
            elif isinstance(layer.mixer, GatedDeltaNet) and place.traces:
                projected = products.gemv(x_1h, layer.mixer.projection, norm=layer.mixer_norm.scale)
                mixed = self._recurred(layer.mixer, projected, place, index, memories[index])
                x_1h = self._grown(x_1h, mixed, layer.mixer.out)
            else:
                mixed = layer.mixer(self._normed(x_1h, layer.mixer_norm), place, memories[index])
                x_1h = self._group.add(x_1h, mixed)
            if isinstance(layer.mlp, GatedMLP):
                active = products.gemv(x_1h, layer.mlp.gate_up, norm=layer.mlp_norm.scale, silu=True)
                x_1h = self._grown(x_1h, active, layer.mlp.down)
            else:
                x_1h = self._group.add(x_1h, layer.mlp(self._normed(x_1h, layer.mlp_norm)))
            if index in features:
                kept[index] = x_1h
        return self._normed(x_1h, self._norm), kept

    def _several(
        self, x_nh: Tensor, place: Spot, memories: Sequence[Any], features: Sequence[int]
    ) -> tuple[Tensor, dict[int, Tensor]]:
        kept: dict[int, Tensor] = {}
        added: Tensor | None = None
        for index, layer in enumerate(self._layers):
            x_nh, normed_nh = self._group.add_norm(x_nh, added, *layer.mixer_norm.scale)
            if index - 1 in features:
                kept[index - 1] = x_nh
            if isinstance(layer.mixer, Attention):
                qkv = self.product(normed_nh, layer.mixer.qkv)
                attended = self._attended(layer.mixer, qkv, place, index, memories[index])
                added = self._part(attended, layer.mixer.out)
            elif isinstance(layer.mixer, GatedDeltaNet) and place.traces:
                projected = self.product(normed_nh, layer.mixer.projection)
                mixed = self._recurred(layer.mixer, projected, place, index, memories[index])
                added = self._part(mixed, layer.mixer.out)
            else:
                added = layer.mixer(normed_nh, place, memories[index])
            x_nh, normed_nh = self._group.add_norm(x_nh, added, *layer.mlp_norm.scale)
            if isinstance(layer.mlp, GatedMLP):
                added = self._part(activated(normed_nh, layer.mlp.gate_up), layer.mlp.down)
            else:
                added = layer.mlp(normed_nh)
        x_nh, normed_nh = self._group.add_norm(x_nh, added, *self._norm.scale)
        if len(self._layers) - 1 in features:
            kept[len(self._layers) - 1] = x_nh
        return normed_nh, kept

    def _recurred(self, mixer: GatedDeltaNet, projected_n: Tensor, place: Spot, index: int, memory: Memory) -> Tensor:
        assert place.traces is not None
        memory.pending = place.traces
        traces = place.traces.of(self._recurrent[index])
        return delta.mix(projected_n, mixer.constants, memory.state_hdre, memory.window_kc, place.ups_ns, traces)

    def _attended(self, mixer: Attention, qkv_n: Tensor, place: Spot, index: int, cache_kv: Tensor) -> Tensor:
        sight = self._sights[index]
        query_nhd = self._stored(mixer, qkv_n, place, cache_kv, heads=mixer.heads)
        attended_nq = attention.attention(
            query_nhd, cache_kv, place.start, place.ancestors, causal=sight.causal, window=sight.window
        )
        return layers.gate_heads(attended_nq, qkv_n, query_nhd.shape[2]) if mixer.gated else attended_nq

    def _stored(self, mixer: Attention, qkv_n: Tensor, place: Place, cache_kv: Tensor, *, heads: int) -> Tensor:
        norms, eps = mixer.head_norms
        return layers.rotate_and_store(
            qkv_n,
            place.positions_n,
            self._rotary.tables,
            norms,
            place.start,
            cache_kv,
            heads=heads,
            eps=eps,
            gated=mixer.gated and heads > 0,
        )

    @staticmethod
    def product(x_nk: Tensor, weight_ok: Tensor) -> Tensor:
        """x times a weight's transpose, [n, o]."""
        if len(x_nk) == 1:
            return products.gemv(x_nk, weight_ok)
        if products.narrow_pays(len(x_nk), split=False):
            return products.narrow(x_nk, weight_ok)
        return F.linear(x_nk, weight_ok)

    def _part(self, x_nk: Tensor, weight_hk: Tensor) -> Tensor:
        """What a block adds on this rank, possibly in parts, for the next norm to add."""
        splits = self._group.takes_parts(len(x_nk), len(weight_hk), x_nk.dtype)
        if splits and products.narrow_pays(len(x_nk), split=True):
            return products.narrow(x_nk, weight_hk, split=True)
        return self.product(x_nk, weight_hk)

    def _grown(self, x_1h: Tensor, y_1k: Tensor, weight_hk: Tensor) -> Tensor:
        """x and what a block adds on all ranks."""
        if self._group.size == 1:
            return products.gemv(y_1k, weight_hk, residual=x_1h)
        return self._group.add(x_1h, products.gemv(y_1k, weight_hk))

    def _normed(self, x_nh: Tensor, norm: Norm) -> Tensor:
        return layers.add_norm(x_nh, None, *norm.scale)[1]


def activated(x_nh: Tensor, gate_up: Tensor) -> Tensor:
    """silu(gate) · up, [n, w]."""
    if len(x_nh) == 1:
        return products.gemv(x_nh, gate_up, silu=True)
    if products.narrow_pays(len(x_nh), split=False):
        return products.narrow(x_nh, gate_up, silu=True)
    return layers.silu_mul(F.linear(x_nh, gate_up))
