"""What each kind of layer remembers of the text while answers are decoded in batches of right-padded prompts.

A cache serves one layer's mixer: `prefill` mixes whole prompts and remembers them up to each row's own length, `step`
mixes one more position a row, and `keep` goes on with some of the rows. Padding leaves no trace: behind attention's
places it is masked until it is overwritten, and the gated delta net's state stays as it is over it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from methods.checkpoints.recipe.gated_delta import GatedDelta
from methods.checkpoints.recipe.model import Attention
from methods.checkpoints.recipe.parts import rotate


class AttentionCache:
    """Keys and values [B, KV, width, D] of an attention layer."""

    def __init__(self, mixer: Attention, room: int) -> None:
        self.mixer, self.room = mixer, room

    def prefill(self, x: Tensor, cos: Tensor, sin: Tensor, lengths: Tensor) -> Tensor:
        """Mixes x [B, S, hidden] at positions 0 to S − 1, and keeps room for more."""
        k, v = self.mixer.keys_values(x)
        shape = (*k.shape[:2], k.shape[2] + self.room, k.shape[3])
        self.keys, self.values = k.new_zeros(shape), v.new_zeros(shape)
        self.keys[:, :, : k.shape[2]], self.values[:, :, : v.shape[2]] = rotate(k, cos, sin), v
        mixed: Tensor = self.mixer(x, cos, sin)
        return mixed

    def step(self, x: Tensor, cos: Tensor, sin: Tensor, places: Tensor, width: int) -> Tensor:
        """Mixes x [B, 1, hidden] at `places` [B] with what stands before; `width` bounds the places in use."""
        q, gate = self.mixer.queries(x)
        k, v = self.mixer.keys_values(x)
        rows = torch.arange(len(x), device=x.device)
        self.keys[rows, :, places] = rotate(k, cos, sin)[:, :, 0]
        self.values[rows, :, places] = v[:, :, 0]
        grouped = rotate(q, cos, sin).unflatten(1, (k.shape[1], -1))[:, :, :, 0]
        scores = (grouped @ self.keys[:, :, :width].mT).float() * q.shape[-1] ** -0.5
        later = torch.arange(width, device=x.device) > places[:, None]
        weights = scores.masked_fill(later[:, None, None], -torch.inf).softmax(-1).to(v.dtype)
        return self.mixer.finish((weights @ self.values[:, :, :width]).flatten(1, 2)[:, :, None], gate)

    def keep(self, rows: Tensor) -> None:
        self.keys, self.values = self.keys[rows], self.values[rows]


class DeltaCache:
    """State [B, H, K, V] in float32 and convolution window of a gated delta net layer."""

    def __init__(self, mixer: GatedDelta) -> None:
        self.mixer = mixer

    def prefill(self, x: Tensor, cos: Tensor, sin: Tensor, lengths: Tensor) -> Tensor:
        """Mixes x [B, S, hidden] and keeps the state behind each row's `lengths` [B]."""
        mixed, self.state, self.window = self.mixer.whole(x, lengths)
        return mixed

    def step(self, x: Tensor, cos: Tensor, sin: Tensor, places: Tensor, width: int) -> Tensor:
        """Mixes x [B, 1, hidden], which follows on what went before wherever that stood."""
        return self.mixer.step(x, self.state, self.window)

    def keep(self, rows: Tensor) -> None:
        self.state, self.window = self.state[rows], self.window[rows]


def cache(mixer: Attention | GatedDelta, room: int) -> AttentionCache | DeltaCache:
    """An empty cache for a layer's mixer, with room for that many positions behind the prompts."""
    return DeltaCache(mixer) if isinstance(mixer, GatedDelta) else AttentionCache(mixer, room)
