"""What a checkpoint's config.json says, read into plain data and refused where this engine cannot do it.

Reads files only: command lines are checked with it before a tensor library is loaded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from methods.base import Refusal
from methods.locate import read_json

ATTENTION, GATED_DELTA = "full_attention", "linear_attention"  # layer types, as configs name them


@dataclass(frozen=True)
class Family:
    """What a model type implies that its config.json does not say.

    `offset_norms`: a norm scales by 1 + its weight. `gated_query`: q_proj makes a query and an output gate per head.
    `rotary_share`: the share of a head's dimensions that is rotated unless the config says otherwise; None: all,
    always. `hybrid`: gated delta net layers may stand between attention layers. `packed`: their projections are packed
    into in_proj_qkvz and in_proj_ba. `chosen_sum_to_one`: the chosen experts' weights are normalised unless the
    config says otherwise.
    """

    qkv_bias: bool = False
    qk_norm: bool = True
    offset_norms: bool = False
    gated_query: bool = False
    rotary_share: float | None = None
    hybrid: bool = False
    packed: bool = False
    chosen_sum_to_one: bool = True


QWEN3_5 = Family(offset_norms=True, gated_query=True, rotary_share=0.25, hybrid=True)
FAMILIES = {
    "llama": Family(qk_norm=False),
    "qwen2": Family(qkv_bias=True, qk_norm=False),
    "qwen3": Family(),
    "qwen3_moe": Family(chosen_sum_to_one=False),
    "qwen3_next": replace(QWEN3_5, packed=True),
    "qwen3_5_text": QWEN3_5,
    "qwen3_5_moe_text": QWEN3_5,
}
WRAPPERS = {"qwen3_5": "qwen3_5_text", "qwen3_5_moe": "qwen3_5_moe_text"}  # vision-language: the text model inside


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
class GatedDelta:
    """The shape of gated delta net layers. Each key head serves `value_heads / key_heads` value heads in a row."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int
    packed: bool

    @property
    def channels(self) -> int:
        """What the causal convolution runs over: queries, keys and values."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim


@dataclass(frozen=True)
class Experts:
    """The shape of sparse MLPs: of `count` experts `chosen` work on a row; `shared` (0: none) is the width of the one
    that always does."""

    count: int
    chosen: int
    width: int
    shared: int
    sum_to_one: bool


@dataclass(frozen=True)
class TransformerConfig:
    """The shape shared by targets and drafters.

    `kinds` has each layer's type, `sparse` whether its MLP has experts.
    """

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
    offset_norms: bool
    gated_query: bool
    rotary_dim: int
    kinds: tuple[str, ...]
    sparse: tuple[bool, ...]
    gated_delta: GatedDelta | None
    experts: Experts | None

    @property
    def attention_layers(self) -> int:
        return self.kinds.count(ATTENTION)

    @property
    def delta_layers(self) -> int:
        return self.kinds.count(GATED_DELTA)

    def check_ranks(self, tp: int, whose: str) -> None:
        """Refuse a tensor-parallel size that does not divide what the ranks share."""
        shares = [("query heads", self.heads), ("key/value heads", self.kv_heads), ("FFN columns", self.intermediate)]
        if self.gated_delta:
            shares.append(("gated delta key heads", self.gated_delta.key_heads))
            shares.append(("gated delta value heads", self.gated_delta.value_heads))
        if self.experts:
            shares.append(("columns of an expert", self.experts.width))
            shares.append(("columns of the shared expert", self.experts.shared))
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
    """Read a target's config.json; refuse families and layer types this engine does not have, by name.

    A vision-language wrapper's config holds the text model's as `text_config`.
    """
    raw = read_json(folder, "config.json")
    family = str(raw.get("model_type"))
    if family in WRAPPERS:
        names = ("tie_word_embeddings", "dtype", "torch_dtype")
        outer: dict[str, Any] = {name: raw[name] for name in names if name in raw}
        raw, family = {**raw.get("text_config", {}), **outer}, WRAPPERS[family]
    if family not in FAMILIES:
        raise Refusal(f"model family {family!r} ({folder}) is not supported: {', '.join([*FAMILIES, *WRAPPERS])} are.")
    kinds = set(raw.get("layer_types") or [ATTENTION])
    if raw.get("use_sliding_window"):
        kinds.add("sliding_attention")
    known = [ATTENTION, GATED_DELTA] if FAMILIES[family].hybrid else [ATTENTION]
    if other := sorted(kinds - set(known)):
        which = f"{' and '.join(known)} {'are' if len(known) > 1 else 'is'}"
        raise Refusal(f"layer type {other[0]!r} of the target in {folder} is not supported: {which}.")
    return _transformer({**raw, "model_type": family}, folder)


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
    if (family := str(raw.get("model_type"))) not in FAMILIES:
        raise Refusal(
            f"model family {family!r} of the drafter in {folder} is not supported: {', '.join(FAMILIES)} are."
        )
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
    needed = ["num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size"]
    experts = _experts(raw, folder)
    layers, family = int(raw.get("num_hidden_layers") or 0), FAMILIES[str(raw["model_type"])]
    sparse = _sparse(raw, layers) if experts else (False,) * layers
    if not all(sparse):
        needed.append("intermediate_size")
    _need(raw, folder, *needed)
    if raw.get("hidden_act", "silu") != "silu":
        raise Refusal(f"activation {raw['hidden_act']!r} ({folder}) is not supported: silu is.")
    heads = int(raw["num_attention_heads"])
    bias = bool(raw.get("attention_bias", False))
    head_dim = int(raw.get("head_dim") or raw["hidden_size"] // heads)
    kinds = _kinds(raw, layers) if family.hybrid else (ATTENTION,) * layers
    return TransformerConfig(
        family=str(raw["model_type"]),
        layers=layers,
        hidden=int(raw["hidden_size"]),
        intermediate=0 if sparse and all(sparse) else int(raw["intermediate_size"]),
        heads=heads,
        kv_heads=int(raw.get("num_key_value_heads") or heads),
        head_dim=head_dim,
        vocabulary=int(raw["vocab_size"]),
        eps=float(raw.get("rms_norm_eps", 1e-6)),
        rope=_rope(raw, folder),
        qkv_bias=bias or family.qkv_bias,
        output_bias=bias,
        mlp_bias=bool(raw.get("mlp_bias", False)),
        qk_norm=family.qk_norm,
        tied=bool(raw.get("tie_word_embeddings", False)),
        window=int(raw.get("max_position_embeddings", 2048)),
        dtype=str(raw.get("dtype") or raw.get("torch_dtype") or "bfloat16"),
        offset_norms=family.offset_norms,
        gated_query=family.gated_query,
        rotary_dim=int(head_dim * _rotary_share(raw, folder, family)),
        kinds=kinds,
        sparse=sparse,
        gated_delta=_gated_delta(raw, folder, family) if GATED_DELTA in kinds else None,
        experts=experts,
    )


def _need(raw: dict[str, Any], folder: Path, *names: str) -> None:
    if missing := [name for name in names if raw.get(name) is None]:
        raise Refusal(f"{folder / 'config.json'} does not say {missing[0]}.")


def _kinds(raw: dict[str, Any], layers: int) -> tuple[str, ...]:
    """The types of a hybrid's layers: listed, or every `full_attention_interval`-th is attention."""
    interval = int(raw.get("full_attention_interval") or 4)
    regular = [GATED_DELTA if (i + 1) % interval else ATTENTION for i in range(layers)]
    return tuple(raw.get("layer_types") or regular)


def _gated_delta(raw: dict[str, Any], folder: Path, family: Family) -> GatedDelta:
    parts = ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim", "conv_kernel_dim")
    _need(raw, folder, *(f"linear_{part}" for part in parts))
    key_heads, value_heads, key_dim, value_dim, kernel = (int(raw[f"linear_{part}"]) for part in parts)
    shape = GatedDelta(key_heads, value_heads, key_dim, value_dim, kernel, family.packed)
    if shape.value_heads % shape.key_heads:
        raise Refusal(
            f"{shape.value_heads} gated delta value heads ({folder}) are no multiple of {shape.key_heads} key heads."
        )
    return shape


def _experts(raw: dict[str, Any], folder: Path) -> Experts | None:
    count = int(raw.get("num_experts") or raw.get("num_local_experts") or 0)
    if not count:
        return None
    _need(raw, folder, "num_experts_per_tok", "moe_intermediate_size")
    return Experts(
        count=count,
        chosen=int(raw["num_experts_per_tok"]),
        width=int(raw["moe_intermediate_size"]),
        shared=int(raw.get("shared_expert_intermediate_size") or 0),
        sum_to_one=bool(raw.get("norm_topk_prob", FAMILIES[str(raw["model_type"])].chosen_sum_to_one)),
    )


def _sparse(raw: dict[str, Any], layers: int) -> tuple[bool, ...]:
    """Which layers have experts: every `decoder_sparse_step`-th that `mlp_only_layers` does not name."""
    step, dense = int(raw.get("decoder_sparse_step") or 1), set(raw.get("mlp_only_layers") or ())
    return tuple(i not in dense and (i + 1) % step == 0 for i in range(layers))


def _rotary_share(raw: dict[str, Any], folder: Path, family: Family) -> float:
    """The share of a head's dimensions that is rotated."""
    said = (raw.get("rope_parameters") or {}).get("partial_rotary_factor", raw.get("partial_rotary_factor"))
    share = float(said if said is not None else family.rotary_share or 1.0)
    if share != 1.0 and family.rotary_share is None:
        raise Refusal(f"partial rotary embedding ({folder}) is not supported for this family.")
    return share


def _rope(raw: dict[str, Any], folder: Path) -> Rope:
    """Both layouts: `rope_parameters` (transformers 5) and `rope_theta` with `rope_scaling`."""
    said = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    theta = float(said.get("rope_theta", raw.get("rope_theta", 10000.0)))
    kind = str(said.get("rope_type", said.get("type", "default"))).replace("mrope", "default")  # the same for text
    if kind not in ("default", "linear", "llama3"):
        raise Refusal(f"rope type {kind!r} ({folder}) is not supported: default, linear and llama3 are.")
    return Rope(
        theta=theta,
        kind=kind,
        factor=float(said.get("factor", 1.0)),
        low=float(said.get("low_freq_factor", 1.0)),
        high=float(said.get("high_freq_factor", 4.0)),
        original=int(said.get("original_max_position_embeddings", 8192)),
    )
