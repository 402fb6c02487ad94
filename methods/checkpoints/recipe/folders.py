"""Writes and reads a pair as Hugging Face folders: the target as Qwen3 or Qwen3.5, the drafter in the z-lab format."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from methods.checkpoints.recipe.model import Drafter, Target
from methods.checkpoints.recipe.parts import BLOCK
from methods.checkpoints.recipe.shapes import Delta, Shape
from methods.checkpoints.recipe.tokenizer import END_IDS, MASK_ID

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")


def _config(shape: Shape, model_type: str = "qwen3") -> dict[str, Any]:
    """What the configs of all formats have in common."""
    return {
        "model_type": model_type,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "dtype": "bfloat16",
        "eos_token_id": END_IDS[0],
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "initializer_range": 0.02,
        "intermediate_size": shape.ffn,
        "layer_types": shape.kinds,
        "max_position_embeddings": shape.max_length,
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
        "pad_token_id": 0,
        "rms_norm_eps": shape.eps,
        "rope_parameters": {"rope_theta": shape.theta, "rope_type": "default"},
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": shape.vocabulary,
    }


def _qwen3(shape: Shape) -> dict[str, Any]:
    """The config of a Qwen3 model, or of a drafter made of its layers."""
    return _config(shape) | {
        "max_window_layers": shape.layers,
        "rope_scaling": None,
        "rope_theta": shape.theta,
        "sliding_window": None,
        "use_sliding_window": False,
    }


def _qwen3_5(shape: Shape, delta: Delta) -> dict[str, Any]:
    """The config of a Qwen3.5 text model."""
    config = _config(shape, "qwen3_5_text")
    pairs = shape.rotary_dim // 2
    # Text has one position; of the three that the family rotates by, each would have its share of the pairs.
    config["rope_parameters"] |= {
        "mrope_interleaved": True,
        "mrope_section": [pairs - 2 * (pairs // 3), pairs // 3, pairs // 3],
        "partial_rotary_factor": shape.rotary_dim / shape.head_dim,
    }
    return config | {
        "attn_output_gate": True,
        "full_attention_interval": delta.interval,
        "linear_conv_kernel_dim": delta.kernel,
        "linear_key_head_dim": delta.key_dim,
        "linear_num_key_heads": delta.key_heads,
        "linear_num_value_heads": delta.value_heads,
        "linear_value_head_dim": delta.value_dim,
        "mamba_ssm_dtype": "float32",
    }


def _shape(config: dict[str, Any]) -> Shape:
    """The sizes that a config written by this module names."""
    delta = None
    if config["model_type"] == "qwen3_5_text":
        delta = Delta(
            key_heads=config["linear_num_key_heads"],
            value_heads=config["linear_num_value_heads"],
            key_dim=config["linear_key_head_dim"],
            value_dim=config["linear_value_head_dim"],
            kernel=config["linear_conv_kernel_dim"],
            interval=config["full_attention_interval"],
        )
    return Shape(
        layers=config["num_hidden_layers"],
        ffn=config["intermediate_size"],
        hidden=config["hidden_size"],
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        head_dim=config["head_dim"],
        vocabulary=config["vocab_size"],
        theta=config["rope_parameters"]["rope_theta"],
        eps=config["rms_norm_eps"],
        max_length=config["max_position_embeddings"],
        delta=delta,
    )


def _write(folder: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    weights = {name: t.detach().to("cpu", torch.bfloat16).contiguous() for name, t in tensors.items()}
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)


def save_target(model: Target, folder: Path, tokenizer: Path | None = None) -> None:
    """Config and bf16 weights of a causal language model with tied embeddings, with the tokenizer's files."""
    if model.shape.delta:
        config = {"architectures": ["Qwen3_5ForCausalLM"], **_qwen3_5(model.shape, model.shape.delta)}
    else:
        config = {"architectures": ["Qwen3ForCausalLM"], **_qwen3(model.shape)}
    _write(
        folder,
        config | {"tie_word_embeddings": True},
        {f"model.{name}": t for name, t in model.state_dict().items()},
    )
    if tokenizer and tokenizer != folder:
        for name in TOKENIZER_FILES:
            shutil.copyfile(tokenizer / name, folder / name)


def save_drafter(model: Drafter, folder: Path, target_layers: int) -> None:
    """Config and bf16 weights of a DFlashDraftModel."""
    config = {
        "architectures": ["DFlashDraftModel"],
        **_qwen3(model.shape),
        "tie_word_embeddings": False,
        "block_size": BLOCK,
        "num_target_layers": target_layers,
        "dflash_config": {"mask_token_id": MASK_ID, "target_layer_ids": list(model.features)},
    }
    _write(folder, config, dict(model.state_dict()))


def _load(model: torch.nn.Module, folder: Path, prefix: str) -> None:
    tensors = load_file(str(folder / "model.safetensors"))
    model.load_state_dict({name.removeprefix(prefix): t.float() for name, t in tensors.items()})


def load_target(folder: Path) -> Target:
    """The target with its stored bf16 values in float32."""
    model = Target(_shape(json.loads((folder / "config.json").read_text())))
    _load(model, folder, "model.")
    return model


def load_drafter(folder: Path) -> Drafter:
    """The drafter with its stored bf16 values in float32."""
    config = json.loads((folder / "config.json").read_text())
    model = Drafter(_shape(config), config["dflash_config"]["target_layer_ids"])
    _load(model, folder, "")
    return model
