"""Small random checkpoints for tests, made by transformers; a drafter in z-lab's layout beside them."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

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
FAMILIES = {
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 16, "tie_word_embeddings": True}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {"tie_word_embeddings": False}),
    "llama": (LlamaConfig, LlamaForCausalLM, {"tie_word_embeddings": False, "rope_parameters": LLAMA3_ROPE}),
}


def hf_model(family: str, seed: int = 0, **changes):
    """A random transformers model whose greedy texts vary."""
    config_class, model_class, extra = FAMILIES[family]
    torch.manual_seed(seed)
    model = model_class(config_class(**{**SHAPE, **extra, **changes})).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                parameter.add_(torch.randn_like(parameter) * 0.1)
            else:
                parameter.mul_(3.0 if "embed" in name or "lm_head" in name else 10.0)
    return model


def save_target(folder: Path, family: str = "qwen3", seed: int = 0, shards: str = "50GB", **changes) -> Path:
    model = hf_model(family, seed, **changes)
    model.save_pretrained(folder, max_shard_size=shards)
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
