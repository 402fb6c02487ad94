"""The two transformers of the pair, written for training: the Qwen3-shaped target and the DFlash drafter.

Weights are kept in float32 and used in the activations' dtype; parameter names are those of the published formats,
so a state dict is a checkpoint. Shapes: B rows, S positions, A anchors, T block slots, H heads, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BLOCK = 16


@dataclass(frozen=True)
class Shape:
    """Sizes of a transformer of the Qwen3 family."""

    layers: int
    ffn: int
    hidden: int = 256
    heads: int = 8
    kv_heads: int = 4
    head_dim: int = 64
    vocabulary: int = 4096
    theta: float = 20000.0
    eps: float = 1e-6
    max_length: int = 4096


TARGET = Shape(layers=5, ffn=512)
DRAFTER = Shape(layers=3, ffn=256)
FEATURES = (1, 2, 3)
"""Ids of the target's layers whose outputs the drafter reads."""


class Linear(nn.Module):
    """A projection without bias whose float32 weight is used in the input's dtype."""

    def __init__(self, inputs: int, outputs: int, scale: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) * scale * inputs**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.to(x.dtype))


class Norm(nn.Module):
    """Root-mean-square norm over the last dimension."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)


def rope(shape: Shape, device: torch.device | str) -> tuple[Tensor, Tensor]:
    """Cosines and sines by position, each [max_length, D] in float32."""
    inverse = shape.theta ** (-torch.arange(0, shape.head_dim, 2, device=device, dtype=torch.float32) / shape.head_dim)
    angles = torch.arange(shape.max_length + BLOCK, device=device, dtype=torch.float32)[:, None] * inverse
    angles = torch.cat([angles, angles], -1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of x [..., S, D] by tables that broadcast to it."""
    half = x.shape[-1] // 2
    turned = torch.cat([-x[..., half:], x[..., :half]], -1)
    return x * cos.to(x.dtype) + turned * sin.to(x.dtype)


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        wide, narrow = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.q_proj = Linear(shape.hidden, wide)
        self.k_proj = Linear(shape.hidden, narrow)
        self.v_proj = Linear(shape.hidden, narrow)
        self.o_proj = Linear(wide, shape.hidden, scale=(2 * shape.layers) ** -0.5)
        self.q_norm = Norm(shape.head_dim, shape.eps)
        self.k_norm = Norm(shape.head_dim, shape.eps)

    def queries(self, x: Tensor) -> Tensor:
        """Normed queries [B, H, S, D], not yet rotated."""
        queries: Tensor = self.q_norm(self.q_proj(x).unflatten(-1, (-1, self.shape.head_dim))).transpose(1, 2)
        return queries

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Normed keys, not yet rotated, and values, each [B, KV, S, D]."""
        keys = self.k_norm(self.k_proj(x).unflatten(-1, (-1, self.shape.head_dim))).transpose(1, 2)
        return keys, self.v_proj(x).unflatten(-1, (-1, self.shape.head_dim)).transpose(1, 2)


class MLP(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = Linear(shape.hidden, shape.ffn)
        self.up_proj = Linear(shape.hidden, shape.ffn)
        self.down_proj = Linear(shape.ffn, shape.hidden, scale=(2 * shape.layers) ** -0.5)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    """A decoder layer; the target's is causal, the drafter's sees the context and its own block."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.self_attn = Attention(shape)
        self.mlp = MLP(shape)
        self.input_layernorm = Norm(shape.hidden, shape.eps)
        self.post_attention_layernorm = Norm(shape.hidden, shape.eps)

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """The rest of the layer behind attention's output [B, H, S, D]."""
        x = x + self.self_attn.o_proj(attended.transpose(1, 2).flatten(2))
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Causal self-attention over x [B, S, hidden]."""
        normed = self.input_layernorm(x)
        q = rotate(self.self_attn.queries(normed), cos, sin)
        k, v = self.self_attn.keys_values(normed)
        attended = F.scaled_dot_product_attention(q, rotate(k, cos, sin), v, is_causal=True, enable_gqa=True)
        return self.finish(x, attended)


class DraftLayer(Layer):
    def forward(self, x: Tensor, context: Tensor, mask: Tensor, places: tuple[Tensor, ...]) -> Tensor:  # type: ignore[override]
        """Blocks x [B, A·T, hidden] attend to context [B, S, hidden] and themselves where mask allows."""
        cos, sin, context_cos, context_sin = places
        normed = self.input_layernorm(x)
        q = rotate(self.self_attn.queries(normed), cos, sin)
        k, v = self.self_attn.keys_values(normed)
        ck, cv = self.self_attn.keys_values(context)
        k = torch.cat([rotate(ck, context_cos, context_sin), rotate(k, cos, sin)], 2)
        v = torch.cat([cv, v], 2)
        groups = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        return self.finish(x, F.scaled_dot_product_attention(q, k, v, attn_mask=mask))


class Target(nn.Module):
    """The target; the output head is the embedding's transpose."""

    def __init__(self, shape: Shape = TARGET) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.hidden)
        nn.init.normal_(self.embed_tokens.weight, std=0.02)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = Norm(shape.hidden, shape.eps)

    @property
    def stack(self) -> list[Layer]:
        """The layers in order."""
        return [layer for layer in self.layers if isinstance(layer, Layer)]

    def embed(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        return F.embedding(ids, self.embed_tokens.weight).to(dtype)

    def forward(self, ids: Tensor, tables: tuple[Tensor, Tensor], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Final hidden states [B, S, hidden] and the drafter's features [B, S, len(FEATURES)·hidden]."""
        x = self.embed(ids, dtype)
        cos, sin = (t[: ids.shape[1]] for t in tables)
        features = []
        for i, layer in enumerate(self.layers):
            x = layer(x, cos, sin)
            if i in FEATURES:
                features.append(x)
        return self.norm(x), torch.cat(features, -1)

    def logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.embed_tokens.weight.to(hidden.dtype)).float()


class Drafter(nn.Module):
    """The DFlash drafter: embeddings and head are the target's."""

    def __init__(self, shape: Shape = DRAFTER) -> None:
        super().__init__()
        self.shape = shape
        self.fc = Linear(len(FEATURES) * shape.hidden, shape.hidden)
        self.hidden_norm = Norm(shape.hidden, shape.eps)
        self.layers = nn.ModuleList(DraftLayer(shape) for _ in range(shape.layers))
        self.norm = Norm(shape.hidden, shape.eps)

    def forward(self, features: Tensor, blocks: Tensor, anchors: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
        """Hidden states of every block slot.

        Args:
            features: the target's features [B, S, n·hidden] of all positions.
            blocks: embedded block inputs [B, A, T, hidden]: the root, then masks.
            anchors: the root's position of every block [B, A]; its context is all positions before.

        Returns:
            [B, A, T, hidden]; slot t speaks of position anchor + t.
        """
        b, a, t, _ = blocks.shape
        s = features.shape[1]
        context = self.hidden_norm(self.fc(features))
        places = (anchors[:, :, None] + torch.arange(t, device=anchors.device)).flatten(1)
        cos, sin = (table[places][:, None] for table in tables)
        ccos, csin = (table[:s] for table in tables)
        before = torch.arange(s, device=anchors.device) < anchors[:, :, None]
        own = torch.eye(a, dtype=torch.bool, device=anchors.device)
        mask = torch.cat(
            [before.repeat_interleave(t, 1), own.repeat_interleave(t, 0).repeat_interleave(t, 1).expand(b, -1, -1)], 2
        )
        x = blocks.flatten(1, 2)
        for layer in self.layers:
            x = layer(x, context, mask[:, None], (cos, sin, ccos, csin))
        hidden: Tensor = self.norm(x).unflatten(1, (a, t))
        return hidden
