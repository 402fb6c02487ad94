"""Small random checkpoints for tests, made by transformers; a drafter in z-lab's layout beside them."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3_5Config,
    Qwen3_5ForCausalLM,
    Qwen3_5ForConditionalGeneration,
    Qwen3_5MoeConfig,
    Qwen3_5MoeForCausalLM,
    Qwen3_5MoeForConditionalGeneration,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

SHAPE = {
    "vocab_size": 203,  # no multiple of 16: padding is always in play
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 512,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
DELTA = {
    "head_dim": 16,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32}
SHARED = {**EXPERTS, "shared_expert_intermediate_size": 32}
DENSE_FAMILIES = {
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 16, "tie_word_embeddings": True}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {"tie_word_embeddings": False}),
    "llama": (LlamaConfig, LlamaForCausalLM, {"tie_word_embeddings": False, "rope_parameters": LLAMA3_ROPE}),
}
HYBRID_FAMILIES = {
    "qwen3_5_text": (Qwen3_5TextConfig, Qwen3_5ForCausalLM, {**DELTA, "tie_word_embeddings": True}),
    "qwen3_5_moe_text": (Qwen3_5MoeTextConfig, Qwen3_5MoeForCausalLM, {**DELTA, **SHARED}),
    "qwen3_next": (Qwen3NextConfig, Qwen3NextForCausalLM, {**DELTA, **SHARED}),
}
FAMILIES = {
    **DENSE_FAMILIES,
    "qwen3_moe": (Qwen3MoeConfig, Qwen3MoeForCausalLM, {"head_dim": 16, **EXPERTS}),
    **HYBRID_FAMILIES,
}


WRAPPERS = {
    "qwen3_5_text": (Qwen3_5Config, Qwen3_5ForConditionalGeneration),
    "qwen3_5_moe_text": (Qwen3_5MoeConfig, Qwen3_5MoeForConditionalGeneration),
}
VISION = {
    "depth": 1,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_heads": 2,
    "out_hidden_size": SHAPE["hidden_size"],
    "num_position_embeddings": 16,
}


def hf_model(family: str, seed: int = 0, **changes):
    """A random transformers model whose greedy texts vary."""
    config_class, model_class, extra = FAMILIES[family]
    torch.manual_seed(seed)
    model = model_class(config_class(**{**SHAPE, **extra, **changes})).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "A_log" in name:
                parameter.uniform_(-5.0, 1.0)
            elif "norm" in name or name.endswith("bias"):
                parameter.add_(torch.randn_like(parameter) * 0.1)
            elif "conv1d" not in name:
                parameter.mul_(3.0 if "embed" in name or "lm_head" in name else 10.0)
    return model


def save_target(folder: Path, family: str = "qwen3", seed: int = 0, shards: str = "50GB", **changes) -> Path:
    model = hf_model(family, seed, **changes)
    model.save_pretrained(folder, max_shard_size=shards)
    return folder


def save_wrapped(folder: Path, family: str) -> Path:
    """A vision-language checkpoint around the family's text model."""
    config_class, model_class = WRAPPERS[family]
    text = hf_model(family)
    tied = text.config.tie_word_embeddings
    wrapper = model_class(
        config_class(text_config=text.config.to_dict(), vision_config=VISION, tie_word_embeddings=tied)
    )
    wrapper.model.language_model.load_state_dict(text.model.state_dict())
    wrapper.lm_head.load_state_dict(text.lm_head.state_dict())
    wrapper.save_pretrained(folder)
    return folder


def save_fused(folder: Path, family: str) -> Path:
    """A checkpoint with one tensor for all experts of a layer."""
    model = hf_model(family)
    model.config.save_pretrained(folder)
    save_file(model.state_dict(), folder / "model.safetensors")
    return folder


def drafter_raw_config(layer_types: list[str], window: int | None = None, **changes) -> dict:
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        **SHAPE,
        "head_dim": 16,
        "num_hidden_layers": len(layer_types),
        "layer_types": layer_types,
        "sliding_window": window,
        "use_sliding_window": window is not None,
        "num_target_layers": SHAPE["num_hidden_layers"],
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "block_size": 8,
        "dflash_config": {"mask_token_id": 202, "target_layer_ids": [0, 2]},
        **changes,
    }


def drafter_tensors(config: dict, seed: int = 1) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    hidden, wide, d = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    heads, kv = config["num_attention_heads"] * d, config["num_key_value_heads"] * d

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator) * 1.5 * columns**-0.5

    def norm(size: int) -> torch.Tensor:
        return 1 + 0.1 * torch.randn(size, generator=generator)

    features = len(config["dflash_config"]["target_layer_ids"]) * hidden
    tensors = {"fc.weight": matrix(hidden, features), "hidden_norm.weight": norm(hidden), "norm.weight": norm(hidden)}
    for i in range(config["num_hidden_layers"]):
        layer = {
            "input_layernorm": norm(hidden),
            "post_attention_layernorm": norm(hidden),
            "self_attn.q_proj": matrix(heads, hidden),
            "self_attn.k_proj": matrix(kv, hidden),
            "self_attn.v_proj": matrix(kv, hidden),
            "self_attn.o_proj": matrix(hidden, heads),
            "self_attn.q_norm": norm(d),
            "self_attn.k_norm": norm(d),
            "mlp.gate_proj": matrix(wide, hidden),
            "mlp.up_proj": matrix(wide, hidden),
            "mlp.down_proj": matrix(hidden, wide),
        }
        tensors |= {f"layers.{i}.{name}.weight": tensor for name, tensor in layer.items()}
    return tensors


def save_drafter(folder: Path, layer_types: list[str] | None = None, window: int | None = None, **changes) -> Path:
    config = drafter_raw_config(layer_types or ["full_attention"] * 2, window, **changes)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(drafter_tensors(config), folder / "model.safetensors")
    return folder


DRAFTER_KINDS: dict[str, dict] = {
    "full": {"layer_types": ["full_attention"] * 2},
    "mixed": {"layer_types": ["sliding_attention", "sliding_attention", "full_attention"], "window": 9},
    "mixed_both_ways": {"layer_types": ["sliding_attention", "full_attention"], "window": 5, "is_causal": False},
}
