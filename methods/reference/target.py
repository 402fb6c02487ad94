"""The target: a decoder-only transformer that reads n rows at the end of its cache in one pass.

One function serves prefill (rows are a chain), autoregressive decoding (one row) and verification (rows are a
tree): they differ only in which rows see which. No value is read on the host, and shapes depend on n and on the
number of slots seen alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from methods.reference import kernels, tree
from methods.reference.attention import Ancestry, Attention, Cache, Place, Rotary, View, additive, visible
from methods.reference.config import ATTENTION, LayerAttention, TransformerConfig
from methods.reference.gated_delta import GatedDeltaNet, Lineage, Recurrence
from methods.reference.loading import Weights
from methods.reference.mlp import GatedMLP, SparseMLP
from methods.reference.norm import Norm
from methods.reference.parallel import Vocabulary

if TYPE_CHECKING:
    from methods.reference.kernels.stack import Stack

Mixer = Callable[[Tensor, Any, Any], Tensor]


class Layer:
    """Pre-norm residual block: a mixer, then an MLP. Both return parts that are summed over ranks."""

    def __init__(
        self, config: TransformerConfig, weights: Weights, prefix: str, mixer: Mixer, *, sparse: bool = False
    ) -> None:
        self._group, self.mixer = weights.group, mixer
        self.mixer_norm = Norm(config, weights, f"{prefix}.input_layernorm.weight", config.hidden)
        self.mlp_norm = Norm(config, weights, f"{prefix}.post_attention_layernorm.weight", config.hidden)
        self.mlp: GatedMLP | SparseMLP
        if sparse and config.experts:
            self.mlp = SparseMLP(config, config.experts, weights, f"{prefix}.mlp")
        else:
            self.mlp = GatedMLP(config, weights, f"{prefix}.mlp", config.intermediate)

    def __call__(self, x_nh: Tensor, view: Place, memory: Any) -> Tensor:
        """`memory` is what the mixer reads of the text before: keys and values, or a recurrent state."""
        x_nh = x_nh + self._group.sum(self.mixer(self.mixer_norm(x_nh), view, memory))
        return x_nh + self._group.sum(self.mlp(self.mlp_norm(x_nh)))


class Target:
    """A target on one rank: embedding, layers, head and cache."""

    def __init__(self, config: TransformerConfig, weights: Weights, slots: int) -> None:
        self.config, self.group, self.device, self.dtype = config, weights.group, weights.device, weights.dtype
        self.vocabulary = Vocabulary(config.vocabulary, weights.group)
        shape, rows = (config.vocabulary, config.hidden), self.vocabulary.rows
        prefix = weights.text_prefix
        self._embedding = weights.rows(f"{prefix}embed_tokens.weight", shape, rows)
        self._layers = [_layer(config, weights, f"{prefix}layers.{i}", i) for i in range(config.layers)]
        self._norm = Norm(config, weights, f"{prefix}norm.weight", config.hidden)
        self._head = self._embedding if config.tied else weights.rows("lm_head.weight", shape, rows)
        self.cache = Cache(config, slots, weights.group, weights.device, weights.dtype)
        self._recurrence = None
        if config.gated_delta:
            self._recurrence = Recurrence(config, config.gated_delta, weights.group, weights.device, weights.dtype)
        caches, states = iter(self.cache.data), iter(self._recurrence.layers if self._recurrence else ())
        self._memories: list[Any] = [next(caches if kind == ATTENTION else states) for kind in config.kinds]
        self._rotary = Rotary(config.rope, config.rotary_dim, slots, weights.device, weights.dtype)
        self._stack = fast_stack(config, self._layers, self._norm, self._rotary, weights)
        padding = self.vocabulary.ids(weights.device) >= config.vocabulary
        self._padding = padding if config.vocabulary < rows.stop else None

    def embed(self, tokens_n: Tensor) -> Tensor:
        """Token embeddings [n, hidden], whole on every rank."""
        first = self.vocabulary.rows.start
        local = tokens_n - first
        here = (local >= 0) & (local < len(self._embedding))
        found = F.embedding(torch.where(here, local, 0), self._embedding)
        return self.group.sum(found * here[:, None]) if self.group.size > 1 else found

    def descent(self, parents_n: Tensor, depth_limit: int) -> Ancestry:
        """A tree's ancestry, in the form that this target's layers read."""
        if self._stack is None:
            return Ancestry(parents_n, tree.visibility(parents_n, depth_limit))
        ancestors, ups_ns = self._stack.ancestors(parents_n, depth_limit), self._stack.ups(parents_n, depth_limit)
        needed = self._recurrence and ups_ns is None and len(parents_n) > 1
        visible_nn = tree.visibility(parents_n, depth_limit) if needed else None
        return Ancestry(parents_n, visible_nn, ancestors, ups_ns=ups_ns)

    def view(self, start: Tensor, positions_n: Tensor, ancestry: Ancestry, seen: int) -> Place:
        """Rows at slots start … start + n − 1 and these positions in the text. `start` is a 0-dim int64."""
        delta = self.config.gated_delta
        fast = self._stack is not None and (ancestry.ups_ns is not None or len(positions_n) == 1)
        lineage = Lineage.of(ancestry, delta.kernel) if delta and not fast else None
        if self._stack is not None:
            return self._stack.place(start, positions_n, ancestry, lineage)
        assert ancestry.visible_nn is not None
        slots_n = start + torch.arange(len(positions_n), device=self.device)
        mask_ns = additive(visible(start, ancestry.visible_nn, seen), self.dtype)
        return View(start, positions_n, lineage, self._rotary.at(positions_n), slots_n, mask_ns)

    def commit(self, start: Tensor, path_d: Tensor, accepted: Tensor) -> None:
        """Make a path of the last pass's rows text, from slot `start` (0-dim int64) on.

        Args:
            path_d: the rows, the first at depth 0; entries beyond `accepted` (0-dim int64) do not count.
        """
        self.cache.move(start + path_d, start + torch.arange(len(path_d), device=self.device))
        if self._recurrence:
            self._recurrence.commit(path_d, accepted)

    def reset(self) -> None:
        """Forget all text. Slots need no cleaning: a pass sees those before its start alone."""
        if self._recurrence:
            self._recurrence.reset()

    def snapshot(self) -> list[Tensor]:
        """Copies of what the text so far has become, slots aside; `restore` brings them back."""
        return self._recurrence.snapshot() if self._recurrence else []

    def restore(self, states: list[Tensor]) -> None:
        """Go back to the text of a `snapshot`. Slots from there on may be overwritten."""
        if self._recurrence:
            self._recurrence.restore(states)

    def forward(self, tokens_n: Tensor, view: Place, features: Sequence[int] = ()) -> tuple[Tensor, Tensor | None]:
        """Run the layers over n rows, writing their keys and values at the view's slots; recurrent states wait for
        `commit`.

        Args:
            features: the layers whose outputs the drafter reads, concatenated.

        Returns:
            The final-normed hidden states [n, hidden], and the features [n, len(features) · hidden] or None.
        """
        x_nh = self.embed(tokens_n)
        kept: dict[int, Tensor] = {}
        if self._stack is not None:
            normed_nh, kept = self._stack(x_nh, view, self._memories, features)
        else:
            for index, layer in enumerate(self._layers):
                x_nh = layer(x_nh, view, self._memories[index])
                if index in features:
                    kept[index] = x_nh
            normed_nh = self._norm(x_nh)
        return normed_nh, torch.cat([kept[index] for index in features], dim=-1) if features else None

    def logits(self, hidden_nh: Tensor) -> Tensor:
        """This rank's logits, [n, padded vocabulary / tp], in the model's dtype; padding is −inf."""
        logits = F.linear(hidden_nh, self._head) if self._stack is None else self._stack.product(hidden_nh, self._head)
        return logits if self._padding is None else logits.masked_fill_(self._padding, -torch.inf)


def fast_stack(
    config: TransformerConfig,
    stack: Sequence[Layer],
    norm: Norm,
    rotary: Rotary,
    weights: Weights,
    sights: Sequence[LayerAttention] = (),
) -> Stack | None:
    """The layers through the kernels, where these run and cover the model: no biases, heads of a power of two."""
    covered = not (config.qkv_bias or config.output_bias or config.mlp_bias)
    covered &= config.head_dim >= 16 and config.head_dim & (config.head_dim - 1) == 0
    if not (kernels.usable(weights.device) and covered):
        return None
    from methods.reference.kernels.stack import Stack

    return Stack(stack, norm, rotary, weights.group, sights)


def _layer(config: TransformerConfig, weights: Weights, prefix: str, index: int) -> Layer:
    mixer: Mixer
    if config.kinds[index] == ATTENTION or config.gated_delta is None:
        mixer = Attention(config, weights, f"{prefix}.self_attn")
    else:
        mixer = GatedDeltaNet(config, config.gated_delta, weights, f"{prefix}.linear_attn")
    return Layer(config, weights, prefix, mixer, sparse=config.sparse[index])
