"""How much memory a rank needs, computed from config files before anything is loaded.

Weights, caches and recurrent states are exact; activations are the few large tensors of the widest pass (logits, their
float32 and integer copies, masks, prefill features, what a gated delta net solves), so the sum is an estimate from
below by the small ones.
"""

from __future__ import annotations

from methods.base import EngineSpec, Method
from methods.locate import resolve
from methods.reference.config import DrafterConfig, TransformerConfig, drafter_config, target_config

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
PREFILL_ROWS = 512  # rows of a prefill pass
ROOTS_AT_ONCE = 16  # of a replay, drafted in one pass


def layer_parameters(config: TransformerConfig) -> int:
    """Parameters of all layers and the final norm, embeddings aside."""
    mixers = config.attention_layers * _attention_parameters(config) + config.delta_layers * _delta_parameters(config)
    sparse = sum(config.sparse)
    mlps = sparse * _sparse_parameters(config) + (config.layers - sparse) * _dense_parameters(config)
    return mixers + mlps + (2 * config.layers + 1) * config.hidden


def _attention_parameters(config: TransformerConfig) -> int:
    queries = config.heads * (2 if config.gated_query else 1)
    rows = (queries + 2 * config.kv_heads) * config.head_dim
    matrices = config.hidden * (rows + config.heads * config.head_dim)
    biases = rows * config.qkv_bias + config.hidden * config.output_bias
    return matrices + biases + 2 * config.head_dim * config.qk_norm


def _delta_parameters(config: TransformerConfig) -> int:
    shape = config.gated_delta
    if shape is None:
        return 0
    values = shape.value_heads * shape.value_dim
    matrices = config.hidden * (shape.channels + 2 * values + 2 * shape.value_heads)
    return matrices + shape.channels * shape.kernel + 2 * shape.value_heads + shape.value_dim


def _dense_parameters(config: TransformerConfig) -> int:
    biases = (2 * config.intermediate + config.hidden) * config.mlp_bias
    return 3 * config.hidden * config.intermediate + biases


def _sparse_parameters(config: TransformerConfig) -> int:
    shape = config.experts
    if shape is None:
        return 0
    experts = 3 * config.hidden * (shape.count * shape.width + shape.shared)
    return experts + config.hidden * (shape.count + (1 if shape.shared else 0))


def target_parameters(config: TransformerConfig) -> int:
    """All parameters of a target; a tied head counts once."""
    return layer_parameters(config) + config.vocabulary * config.hidden * (1 if config.tied else 2)


def drafter_parameters(config: DrafterConfig) -> int:
    """All parameters of a drafter, which has no embedding and no head."""
    hidden = config.transformer.hidden
    return layer_parameters(config.transformer) + (len(config.target_layer_ids) * hidden + 1) * hidden


def cache_bytes(config: TransformerConfig, slots: int, tp: int, size: int) -> int:
    """Keys and values of the attention layers."""
    return 2 * config.attention_layers * config.kv_heads // tp * slots * config.head_dim * size


def state_bytes(config: TransformerConfig, tp: int = 1) -> int:
    """The recurrent state after one text, or, for a scan that keeps one per node, of one node."""
    shape = config.gated_delta
    if shape is None:
        return 0
    return config.delta_layers * shape.value_heads // tp * shape.key_dim * shape.value_dim * 4


def window_bytes(config: TransformerConfig, tp: int, size: int) -> int:
    """The convolutions' last inputs after one text."""
    shape = config.gated_delta
    return config.delta_layers * (shape.kernel - 1) * shape.channels // tp * size if shape else 0


def pending_bytes(config: TransformerConfig, rows: int, tp: int, size: int) -> int:
    """What a pass leaves for the commit in place of a state per row: keys, pseudo-values, decays, inputs."""
    shape = config.gated_delta
    if shape is None:
        return 0
    row = 4 * (shape.key_heads * shape.key_dim + shape.value_heads * shape.value_dim) + 8 * shape.value_heads
    return config.delta_layers * (rows * (row + shape.channels * size) // tp) + window_bytes(config, tp, size)


def solve_bytes(config: TransformerConfig, rows: int, tp: int) -> int:
    """The [rows, rows] matrices one layer holds at once: per value head three in float32 and products of keys."""
    shape = config.gated_delta
    return (3 * shape.value_heads + shape.key_heads) // tp * rows * rows * 4 if shape else 0


def tree_bytes(config: TransformerConfig, budget: int, tp: int, size: int) -> int:
    """The extra bytes of verifying a tree of `budget` nodes in the recurrent layers, to be held against
    (1 + budget) · `state_bytes`."""
    return pending_bytes(config, 1 + budget, tp, size) + solve_bytes(config, 1 + budget, tp)


def rank_bytes(spec: EngineSpec, dtype: str, method: Method) -> int:
    """Bytes one rank needs to answer requests of `spec.max_length` tokens with `method`."""
    size, tp = BYTES[dtype], spec.tp
    target = target_config(resolve(spec.model.target, weights=False))
    total, width, vocabulary = target_parameters(target) * size // tp, 1, target.vocabulary // tp
    slots = spec.max_length
    if method.uses_drafter or spec.replay:
        drafter = drafter_config(resolve(spec.model.drafter, weights=False))
        width, blocks = max(method.width(drafter.block_size), drafter.block_size), ROOTS_AT_ONCE if spec.replay else 1
        slots += width
        total += drafter_parameters(drafter) * size // tp + cache_bytes(drafter.transformer, slots, tp, size)
        total += cache_bytes(drafter.transformer, (blocks - 1) * drafter.block_size, tp, size)
        total += spec.max_length * len(drafter.target_layer_ids) * target.hidden * size  # prefill features
        total += blocks * drafter.block_size * vocabulary * (size + 4 + 8 + 4)  # draft logits, float32, keys, powers
    total += cache_bytes(target, slots, tp, size) + state_bytes(target, tp) + window_bytes(target, tp, size)
    rows = max(width, min(PREFILL_ROWS, spec.max_length))
    total += width * vocabulary * (2 * size + 4 + 8)  # verify logits and what choosing makes of them
    total += rows * slots * (target.heads // target.kv_heads + 2) * size  # masks
    total += tree_bytes(target, rows - 1, tp, size)
    total += 2 * pending_bytes(target, min(PREFILL_ROWS, spec.max_length), tp, size)  # a prefill's commit gathers it
    return total + rows * (4 * target.hidden + 3 * _columns(target) // tp) * size


def _columns(config: TransformerConfig) -> int:
    """Columns of MLPs that work on one row."""
    shape = config.experts
    return max(config.intermediate, shape.chosen * shape.width + shape.shared if shape else 0)
