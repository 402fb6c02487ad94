"""What a checkpoint's config.json says, read into plain data and refused where this engine cannot do it.

Reads files only: command lines are checked with it before a tensor library is loaded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from methods.base import Refusal
from methods.locate import read_json

FAMILIES = ("qwen3", "qwen2", "llama")


@dataclass(frozen=True)
class Rope:
    """Rotary embedding: base, and for `llama3` scaling its four numbers, for `linear` its factor."""

    theta: float
    kind: str = "default"
    factor: float = 1.0
    low: float = 1.0
    high: float = 4.0
    original: int = 8192

    def frequencies(self, head_dim: int) -> list[float]:
        """Radians per position of each pair of dimensions, [head_dim / 2]."""
        plain = [self.theta ** (-2 * i / head_dim) for i in range(head_dim // 2)]
        if self.kind == "linear":
            return [f / self.factor for f in plain]
        if self.kind == "llama3":
            return [self._llama3(f) for f in plain]
        return plain

    def _llama3(self, frequency: float) -> float:
        """Long wavelengths are stretched, short ones kept, those between blended (Llama 3.1)."""
        turns = self.original * frequency / (2 * math.pi)
        blend = min(max((turns - self.low) / (self.high - self.low), 0.0), 1.0)
        return blend * frequency + (1 - blend) * frequency / self.factor


@dataclass(frozen=True)
class TransformerConfig:
    """The shape shared by targets and drafters."""

    family: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    eps: float
    rope: Rope
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    tied: bool
    window: int
    dtype: str

    def check_ranks(self, tp: int, whose: str) -> None:
        """Refuse a tensor-parallel size that does not divide what the ranks share."""
        shares = (("query heads", self.heads), ("key/value heads", self.kv_heads), ("FFN columns", self.intermediate))
        for what, count in shares:
            if count % tp:
                raise Refusal(f"tp={tp} does not divide the {whose}'s {count} {what}: a divisor of {count} is needed.")
        if tp not in (1, 2, 4, 8, 16):
            raise Refusal(f"tp={tp} is not accepted: 1, 2, 4, 8 or 16 is, since the vocabulary has 16 chunks.")


@dataclass(frozen=True)
class LayerAttention:
    """How a drafter layer looks at its block: causally or both ways, within a window (0: no limit)."""

    causal: bool
    window: int


@dataclass(frozen=True)
class DrafterConfig:
    """A DFlash drafter: its transformer, and what ties it to a target."""

    transformer: TransformerConfig
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    attention: tuple[LayerAttention, ...]


def target_config(folder: Path) -> TransformerConfig:
    """Read a target's config.json; refuse families and layer types this engine does not have, by name."""
    raw = read_json(folder, "config.json")
    family = str(raw.get("model_type"))
    if family not in FAMILIES:
        raise Refusal(f"model family {family!r} ({folder}) is not supported: {', '.join(FAMILIES)} are.")
    kinds = set(raw.get("layer_types") or ["full_attention"])
    if raw.get("use_sliding_window"):
        kinds.add("sliding_attention")
    if other := sorted(kinds - {"full_attention"}):
        raise Refusal(f"layer type {other[0]!r} of the target in {folder} is not supported: full_attention is.")
    return _transformer(raw, folder)


def drafter_config(folder: Path) -> DrafterConfig:
    """Read a DFlash drafter's config.json (z-lab's layout)."""
    raw = read_json(folder, "config.json")
    if "dflash_config" not in raw:
        raise Refusal(f"{folder} is not a DFlash drafter: its config.json has no dflash_config.")
    details = raw["dflash_config"]
    for extra in ("conv_kernel_size", "selector_rank", "causal_head"):
        if details.get(extra, raw.get(extra)):
            raise Refusal(
                f"the drafter in {folder} has {extra}, which is not DFlash: plain DFlash drafters are supported."
            )
    for extra, neutral in (
        ("output_multiplier", 1.0),
        ("input_embedding_scale", 1.0),
        ("final_logit_softcapping", None),
    ):
        if details.get(extra, raw.get(extra, neutral)) != neutral:
            raise Refusal(f"the drafter in {folder} sets {extra}, which is not supported: {neutral} is.")
    shape = _transformer(raw, folder)
    block_size = int(details.get("block_size", raw.get("block_size", 16)))
    mask = details.get("mask_token_id", raw.get("mask_token_id"))
    if mask is None or block_size < 2:
        raise Refusal(f"the drafter in {folder} needs a mask_token_id and a block_size of at least 2.")
    layers = details.get("target_layer_ids", raw.get("target_layer_ids"))
    if layers is None:
        layers = default_layer_ids(int(raw["num_target_layers"]), shape.layers)
    return DrafterConfig(shape, block_size, int(mask), tuple(layers), _layer_attention(raw, details, shape.layers))


def _layer_attention(raw: dict[str, Any], details: dict[str, Any], layers: int) -> tuple[LayerAttention, ...]:
    """Sliding layers are causal inside the block unless the config says otherwise; full layers look both ways."""
    kinds = raw.get("layer_types") or ["full_attention"] * layers
    said = raw.get("is_causal", details.get("causal"))
    found = []
    for kind in kinds:
        if kind not in ("full_attention", "sliding_attention"):
            raise Refusal(
                f"layer type {kind!r} of a drafter is not supported: full_attention and sliding_attention are."
            )
        sliding = kind == "sliding_attention"
        found.append(
            LayerAttention(sliding if said is None else bool(said), int(raw["sliding_window"]) if sliding else 0)
        )
    return tuple(found)


def default_layer_ids(target_layers: int, drafter_layers: int) -> tuple[int, ...]:
    """The target layers whose outputs feed the drafter: evenly from 1 to the last but two (DFlash)."""
    if drafter_layers == 1:
        return (target_layers // 2,)
    span = target_layers - 4
    return tuple(round(1 + i * span / (drafter_layers - 1)) for i in range(drafter_layers))


def check_pair(target: TransformerConfig, drafter: DrafterConfig) -> None:
    """Refuse a drafter that was not made for a target of this shape."""
    shape = drafter.transformer
    if shape.hidden != target.hidden:
        raise Refusal(
            f"the drafter's hidden size {shape.hidden} is not the target's {target.hidden}: it is another target's."
        )
    if bad := [i for i in drafter.target_layer_ids if not 0 <= i < target.layers]:
        raise Refusal(f"the drafter reads target layer {bad[0]}, but the target has layers 0 to {target.layers - 1}.")
    if shape.vocabulary != target.vocabulary:
        raise Refusal(f"the drafter's vocabulary {shape.vocabulary} is not the target's {target.vocabulary}.")
    if not 0 <= drafter.mask_token_id < target.vocabulary:
        raise Refusal(
            f"the drafter's mask token {drafter.mask_token_id} lies outside the vocabulary of {target.vocabulary}."
        )


def _transformer(raw: dict[str, Any], folder: Path) -> TransformerConfig:
    needed = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")
    if missing := [name for name in needed if raw.get(name) is None]:
        raise Refusal(f"{folder / 'config.json'} does not say {missing[0]}.")
    if raw.get("hidden_act", "silu") != "silu":
        raise Refusal(f"activation {raw['hidden_act']!r} ({folder}) is not supported: silu is.")
    family, heads = str(raw["model_type"]), int(raw["num_attention_heads"])
    bias = bool(raw.get("attention_bias", False))
    return TransformerConfig(
        family=family,
        layers=int(raw["num_hidden_layers"]),
        hidden=int(raw["hidden_size"]),
        intermediate=int(raw["intermediate_size"]),
        heads=heads,
        kv_heads=int(raw.get("num_key_value_heads") or heads),
        head_dim=int(raw.get("head_dim") or raw["hidden_size"] // heads),
        vocabulary=int(raw["vocab_size"]),
        eps=float(raw.get("rms_norm_eps", 1e-6)),
        rope=_rope(raw, folder),
        qkv_bias=bias or family == "qwen2",
        output_bias=bias,
        mlp_bias=bool(raw.get("mlp_bias", False)),
        qk_norm=family == "qwen3",
        tied=bool(raw.get("tie_word_embeddings", False)),
        window=int(raw.get("max_position_embeddings", 2048)),
        dtype=str(raw.get("dtype") or raw.get("torch_dtype") or "bfloat16"),
    )


def _rope(raw: dict[str, Any], folder: Path) -> Rope:
    """Both layouts: `rope_parameters` (transformers 5) and `rope_theta` with `rope_scaling`."""
    said = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    theta = float(said.get("rope_theta", raw.get("rope_theta", 10000.0)))
    kind = str(said.get("rope_type", said.get("type", "default")))
    if kind not in ("default", "linear", "llama3"):
        raise Refusal(f"rope type {kind!r} ({folder}) is not supported: default, linear and llama3 are.")
    if said.get("partial_rotary_factor", raw.get("partial_rotary_factor", 1.0)) != 1.0:
        raise Refusal(f"partial rotary embedding ({folder}) is not supported for this family.")
    return Rope(
        theta=theta,
        kind=kind,
        factor=float(said.get("factor", 1.0)),
        low=float(said.get("low_freq_factor", 1.0)),
        high=float(said.get("high_freq_factor", 4.0)),
        original=int(said.get("original_max_position_embeddings", 8192)),
    )
