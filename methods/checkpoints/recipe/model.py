"""The two transformers of a pair, written for training: the target, Qwen3 or Qwen3.5, and the DFlash drafter.

Parameter names are those of the published formats, so a state dict is a checkpoint. Shapes: B rows, S positions,
A anchors, T block slots, H heads, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from methods.checkpoints.recipe.gated_delta import GatedDelta
from methods.checkpoints.recipe.parts import Linear, norm, rotate
from methods.checkpoints.recipe.shapes import Shape


class Attention(nn.Module):
    """Grouped-query attention with normed queries and keys, in a hybrid gated at its output."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        wide, narrow = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.q_proj = Linear(shape.hidden, 2 * wide if shape.delta else wide)
        self.k_proj = Linear(shape.hidden, narrow)
        self.v_proj = Linear(shape.hidden, narrow)
        self.o_proj = Linear(wide, shape.hidden, scale=shape.outlet)
        self.q_norm = norm(shape.head_dim, shape)
        self.k_norm = norm(shape.head_dim, shape)

    def queries(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Normed queries [B, H, S, D], not yet rotated, and the output's gate [B, S, H·D] where there is one."""
        both = self.q_proj(x).unflatten(-1, (self.shape.heads, -1))
        queries = self.q_norm(both[..., : self.shape.head_dim]).transpose(1, 2)
        return queries, both[..., self.shape.head_dim :].flatten(2).sigmoid() if self.shape.delta else None

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Normed keys, not yet rotated, and values, each [B, KV, S, D]."""
        keys = self.k_norm(self.k_proj(x).unflatten(-1, (-1, self.shape.head_dim))).transpose(1, 2)
        return keys, self.v_proj(x).unflatten(-1, (-1, self.shape.head_dim)).transpose(1, 2)

    def finish(self, attended: Tensor, gate: Tensor | None) -> Tensor:
        """The last projection, behind the gate, of attention's output [B, H, S, D]."""
        joined = attended.transpose(1, 2).flatten(2)
        mixed: Tensor = self.o_proj(joined if gate is None else joined * gate)
        return mixed

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Causal self-attention over x [B, S, hidden]."""
        q, gate = self.queries(x)
        k, v = self.keys_values(x)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        return self.finish(F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True), gate)


class MLP(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = Linear(shape.hidden, shape.ffn)
        self.up_proj = Linear(shape.hidden, shape.ffn)
        self.down_proj = Linear(shape.ffn, shape.hidden, scale=shape.outlet)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    """A decoder layer: a mixer over the positions, then an MLP."""

    def __init__(self, shape: Shape, kind: str = "full_attention") -> None:
        super().__init__()
        if kind == "linear_attention" and shape.delta:
            self.linear_attn = GatedDelta(shape, shape.delta)
        else:
            self.self_attn = Attention(shape)
        self.mlp = MLP(shape)
        self.input_layernorm = norm(shape.hidden, shape)
        self.post_attention_layernorm = norm(shape.hidden, shape)

    @property
    def mixer(self) -> Attention | GatedDelta:
        return self.linear_attn if hasattr(self, "linear_attn") else self.self_attn

    def finish(self, x: Tensor, mixed: Tensor) -> Tensor:
        """The rest of the layer behind the mixer's output [B, S, hidden]."""
        x = x + mixed
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Causal over x [B, S, hidden]."""
        return self.finish(x, self.mixer(self.input_layernorm(x), cos, sin))


class DraftLayer(Layer):
    """A layer whose blocks see the context before them and themselves."""

    def forward(self, x: Tensor, context: Tensor, mask: Tensor, places: tuple[Tensor, ...]) -> Tensor:  # type: ignore[override]
        """Blocks x [B, A·T, hidden] attend to context [B, S, hidden] and themselves where mask allows."""
        cos, sin, context_cos, context_sin = places
        normed = self.input_layernorm(x)
        q, gate = self.self_attn.queries(normed)
        k, v = self.self_attn.keys_values(normed)
        ck, cv = self.self_attn.keys_values(context)
        k = torch.cat([rotate(ck, context_cos, context_sin), rotate(k, cos, sin)], 2)
        v = torch.cat([cv, v], 2)
        groups = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        attended = F.scaled_dot_product_attention(rotate(q, cos, sin), k, v, attn_mask=mask)
        return self.finish(x, self.self_attn.finish(attended, gate))


class Target(nn.Module):
    """The target; the output head is the embedding's transpose."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.hidden)
        nn.init.normal_(self.embed_tokens.weight, std=0.02)
        self.layers = nn.ModuleList(Layer(shape, kind) for kind in shape.kinds)
        self.norm = norm(shape.hidden, shape)

    @property
    def stack(self) -> list[Layer]:
        """The layers in order."""
        return [layer for layer in self.layers if isinstance(layer, Layer)]

    def embed(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        return F.embedding(ids, self.embed_tokens.weight).to(dtype)

    def forward(self, ids: Tensor, tables: tuple[Tensor, Tensor], dtype: torch.dtype) -> tuple[Tensor, list[Tensor]]:
        """Final hidden states [B, S, hidden] and every layer's output, each [B, S, hidden]."""
        x = self.embed(ids, dtype)
        cos, sin = (t[: ids.shape[1]] for t in tables)
        outputs = []
        for layer in self.layers:
            x = layer(x, cos, sin)
            outputs.append(x)
        return self.norm(x), outputs

    def logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.embed_tokens.weight.to(hidden.dtype)).float()


class Drafter(nn.Module):
    """The DFlash drafter: embeddings and head are the target's."""

    def __init__(self, shape: Shape, features: Sequence[int]) -> None:
        super().__init__()
        self.shape, self.features = shape, tuple(features)
        self.fc = Linear(len(features) * shape.hidden, shape.hidden)
        self.hidden_norm = norm(shape.hidden, shape)
        self.layers = nn.ModuleList(DraftLayer(shape) for _ in range(shape.layers))
        self.norm = norm(shape.hidden, shape)

    def forward(
        self, outputs: Sequence[Tensor], blocks: Tensor, anchors: Tensor, tables: tuple[Tensor, Tensor]
    ) -> Tensor:
        """Hidden states of every block slot.

        Args:
            outputs: the output of each of the target's layers at all positions, each [B, S, hidden].
            blocks: embedded block inputs [B, A, T, hidden]: the root, then masks.
            anchors: the root's position of every block [B, A]; its context is all positions before.
            tables: the drafter's rotary tables.

        Returns:
            [B, A, T, hidden]; slot t speaks of position anchor + t.
        """
        b, a, t, _ = blocks.shape
        s = outputs[0].shape[1]
        context = self.hidden_norm(self.fc(torch.cat([outputs[i] for i in self.features], -1)))
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
