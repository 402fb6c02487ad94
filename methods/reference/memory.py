"""How much memory a rank needs, computed from config files before anything is loaded.

Weights and caches are exact; activations are the few large tensors of the widest pass (logits, their float32 and
integer copies, masks, prefill features), so the sum is an estimate from below by the small ones.
"""

from __future__ import annotations

from methods.base import EngineSpec, Method
from methods.locate import resolve
from methods.reference.config import DrafterConfig, TransformerConfig, drafter_config, target_config

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
PREFILL_ROWS = 512  # rows of a prefill pass


def layer_parameters(config: TransformerConfig) -> int:
    """Parameters of all layers and the final norm, embeddings aside."""
    attention = 2 * config.hidden * (config.heads + config.kv_heads) * config.head_dim
    biases = (
        config.heads + 2 * config.kv_heads
    ) * config.head_dim * config.qkv_bias + config.hidden * config.output_bias
    biases += (2 * config.intermediate + config.hidden) * config.mlp_bias
    norms = 2 * config.hidden + 2 * config.head_dim * config.qk_norm
    mlp = 3 * config.hidden * config.intermediate
    return config.layers * (attention + mlp + norms + biases) + config.hidden


def target_parameters(config: TransformerConfig) -> int:
    """All parameters of a target; a tied head counts once."""
    return layer_parameters(config) + config.vocabulary * config.hidden * (1 if config.tied else 2)


def drafter_parameters(config: DrafterConfig) -> int:
    """All parameters of a drafter, which has no embedding and no head."""
    hidden = config.transformer.hidden
    return layer_parameters(config.transformer) + (len(config.target_layer_ids) * hidden + 1) * hidden


def cache_bytes(config: TransformerConfig, slots: int, tp: int, size: int) -> int:
    return 2 * config.layers * config.kv_heads // tp * slots * config.head_dim * size


def rank_bytes(spec: EngineSpec, dtype: str, method: Method) -> int:
    """Bytes one rank needs to answer requests of `spec.max_length` tokens with `method`."""
    size, tp = BYTES[dtype], spec.tp
    target = target_config(resolve(spec.model.target, weights=False))
    total, width, vocabulary = target_parameters(target) * size // tp, 1, target.vocabulary // tp
    slots = spec.max_length
    if method.uses_drafter:
        drafter = drafter_config(resolve(spec.model.drafter, weights=False))
        width = max(method.width(drafter.block_size), drafter.block_size)
        slots += width
        total += drafter_parameters(drafter) * size // tp + cache_bytes(drafter.transformer, slots, tp, size)
        total += spec.max_length * len(drafter.target_layer_ids) * target.hidden * size  # prefill features
        total += drafter.block_size * vocabulary * (size + 4 + 8 + 4)  # draft logits, float32, keys, powers
    total += cache_bytes(target, slots, tp, size)
    rows = max(width, min(PREFILL_ROWS, spec.max_length))
    total += width * vocabulary * (2 * size + 4 + 8)  # verify logits and what choosing makes of them
    total += rows * slots * (target.heads // target.kv_heads + 2) * size  # masks
    return total + rows * (4 * target.hidden + 3 * target.intermediate // tp) * size
