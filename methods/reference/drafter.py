"""The DFlash drafter: a block-diffusion model that fills a block of masked positions in one pass.

Its context is not text but what the target computed about it: features (outputs of some target layers) of every
committed position, projected once by `fc` and `hidden_norm` and kept as keys and values in each layer. The block is
the root followed by masks, embedded with the target's embedding; slot i predicts the token at its own position with
the target's head. The block's own keys and values are overwritten afterwards, so a draft depends on the text alone,
not on how it was cut into rounds. (arXiv 2602.06036; checkpoints as published by z-lab.)

Here a row's slot is its position.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from methods.reference.attention import Attention, Cache, Rotary, View, additive, visible
from methods.reference.config import DrafterConfig, LayerAttention
from methods.reference.loading import Weights
from methods.reference.norm import Norm
from methods.reference.target import Layer, fast_stack


class Drafter:
    """A drafter on one rank, with a cache of `slots` positions."""

    def __init__(self, config: DrafterConfig, weights: Weights, slots: int) -> None:
        shape = config.transformer
        self.config, self.group, self.device, self.dtype = config, weights.group, weights.device, weights.dtype
        features = len(config.target_layer_ids) * shape.hidden
        self._feature_share = weights.group.share(features)
        self._fc = weights.tensor("fc.weight", (shape.hidden, features), split=1)
        self._context_norm = Norm(shape, weights, "hidden_norm.weight", shape.hidden)
        self._mixers = [Attention(shape, weights, f"layers.{i}.self_attn") for i in range(shape.layers)]
        self._layers = [Layer(shape, weights, f"layers.{i}", mixer) for i, mixer in enumerate(self._mixers)]
        self._norm = Norm(shape, weights, "norm.weight", shape.hidden)
        self.cache = Cache(shape, slots, weights.group, weights.device, weights.dtype)
        self._memories = list(self.cache.data)
        self._rotary = Rotary(shape.rope, shape.rotary_dim, slots, weights.device, weights.dtype)
        self._stack = fast_stack(shape, self._layers, self._norm, self._rotary, weights, config.attention)

    def extend(self, features_cf: Tensor, start: Tensor) -> None:
        """Add context: the target's features [c, f] of positions start … start + c − 1 (0-dim int64).

        Rows beyond those committed may be passed as well: they are overwritten before anything sees them.
        """
        slots = start + torch.arange(len(features_cf), device=self.device)
        share_cf = features_cf[:, self._feature_share]
        if self._stack is not None:
            projected = self.group.sum(self._stack.product(share_cf, self._fc))
            self._stack.store(self._context_norm(projected), self._stack.place(start, slots), self._memories)
            return
        context = self._context_norm(self.group.sum(F.linear(share_cf, self._fc)))
        view = View(start, slots, None, self._rotary.at(slots), slots, slots)
        for index, mixer in enumerate(self._mixers):
            mixer.store(context, view, self.cache.data[index])

    def block(self, embedded_bh: Tensor, start: Tensor, seen: int) -> Tensor:
        """Final-normed hidden states [b, hidden] of a block at positions start … start + b − 1.

        Args:
            embedded_bh: the embeddings of root and masks.
            seen: how many slots any row may look at; at least start + b.
        """
        x_bh, slots = embedded_bh, start + torch.arange(len(embedded_bh), device=self.device)
        if self._stack is not None:
            return self._stack(x_bh, self._stack.place(start, slots), self._memories)[0]
        rotary = self._rotary.at(slots)
        masks: dict[LayerAttention, Tensor] = {}
        for index, (layer, attention) in enumerate(zip(self._layers, self.config.attention, strict=True)):
            if attention not in masks:
                masks[attention] = self._mask(attention, start, slots, seen)
            x_bh = layer(x_bh, View(start, slots, None, rotary, slots, masks[attention]), self.cache.data[index])
        return self._norm(x_bh)

    def blocks(self, embedded_nh: Tensor, roots_r: Tensor, scratch: int) -> Tensor:
        """`block` for many roots of one text in one pass, each seeing the context before its own root alone.

        Args:
            embedded_nh: the blocks' rows, one block after the other.
            roots_r: the roots' positions.
            scratch: the slot, beyond the context, from which on the blocks' own keys and values are written.
        """
        n, block = len(embedded_nh), len(embedded_nh) // len(roots_r)
        rows = torch.arange(n, device=self.device)
        places_n = roots_r.repeat_interleave(block) + rows % block
        x_nh, slots, rotary = embedded_nh, scratch + rows, self._rotary.at(places_n)
        start = slots[0]
        masks: dict[LayerAttention, Tensor] = {}
        for index, (layer, attention) in enumerate(zip(self._layers, self.config.attention, strict=True)):
            if attention not in masks:
                masks[attention] = self._masks(attention, places_n, block, scratch)
            view = View(start, places_n, None, rotary, slots, masks[attention])
            x_nh = layer(x_nh, view, self.cache.data[index])
        return self._norm(x_nh)

    def _masks(self, attention: LayerAttention, places_n: Tensor, block: int, scratch: int) -> Tensor:
        """What rows of several blocks see, at these places of the text: [n, scratch + n]."""
        context, rows = torch.arange(scratch, device=self.device), torch.arange(len(places_n), device=self.device)
        of_block = rows // block
        own_nn = of_block[:, None] == of_block
        if attention.causal:
            own_nn = own_nn.tril()
        before_ns = context < (places_n - rows % block)[:, None]
        visible_ns = torch.cat([before_ns, own_nn], dim=1)
        if attention.window:
            distance = places_n[:, None] - torch.cat([context, places_n])
            visible_ns = visible_ns & (distance.abs() < attention.window)
        return additive(visible_ns, self.dtype)

    def _mask(self, attention: LayerAttention, start: Tensor, slots_b: Tensor, seen: int) -> Tensor:
        whole = torch.ones(len(slots_b), len(slots_b), dtype=torch.bool, device=self.device)
        visible_bs = visible(start, whole.tril() if attention.causal else whole, seen)
        if attention.window:
            distance = slots_b[:, None] - torch.arange(seen, device=self.device)
            visible_bs = visible_bs & (distance.abs() < attention.window)
        return additive(visible_bs, self.dtype)
