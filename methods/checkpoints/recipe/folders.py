"""Writes and reads the pair as Hugging Face folders: the target as Qwen3, the drafter in the z-lab format."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from methods.checkpoints.recipe.model import BLOCK, DRAFTER, FEATURES, TARGET, Drafter, Shape, Target
from methods.checkpoints.recipe.tokenizer import END_IDS, MASK_ID


def _config(shape: Shape) -> dict[str, Any]:
    return {
        "model_type": "qwen3",
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
        "layer_types": ["full_attention"] * shape.layers,
        "max_position_embeddings": shape.max_length,
        "max_window_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
        "pad_token_id": 0,
        "rms_norm_eps": shape.eps,
        "rope_parameters": {"rope_theta": shape.theta, "rope_type": "default"},
        "rope_scaling": None,
        "rope_theta": shape.theta,
        "sliding_window": None,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": shape.vocabulary,
    }


def _write(folder: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    weights = {name: t.detach().to("cpu", torch.bfloat16).contiguous() for name, t in tensors.items()}
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)


def save_target(model: Target, folder: Path) -> None:
    """Config and bf16 weights of a Qwen3ForCausalLM with tied embeddings."""
    config = {"architectures": ["Qwen3ForCausalLM"], **_config(model.shape), "tie_word_embeddings": True}
    _write(folder, config, {f"model.{name}": t for name, t in model.state_dict().items()})


def save_drafter(model: Drafter, folder: Path, target_layers: int = TARGET.layers) -> None:
    """Config and bf16 weights of a DFlashDraftModel."""
    config = {
        "architectures": ["DFlashDraftModel"],
        **_config(model.shape),
        "tie_word_embeddings": False,
        "block_size": BLOCK,
        "num_target_layers": target_layers,
        "dflash_config": {"mask_token_id": MASK_ID, "target_layer_ids": list(FEATURES)},
    }
    _write(folder, config, dict(model.state_dict()))


def _load(model: torch.nn.Module, folder: Path, prefix: str) -> None:
    tensors = load_file(str(folder / "model.safetensors"))
    model.load_state_dict({name.removeprefix(prefix): t.float() for name, t in tensors.items()})


def load_target(folder: Path) -> Target:
    """The target with its stored bf16 values in float32."""
    config = json.loads((folder / "config.json").read_text())
    model = Target(replace(TARGET, layers=config["num_hidden_layers"], ffn=config["intermediate_size"]))
    _load(model, folder, "model.")
    return model


def load_drafter(folder: Path) -> Drafter:
    """The drafter with its stored bf16 values in float32."""
    config = json.loads((folder / "config.json").read_text())
    model = Drafter(replace(DRAFTER, layers=config["num_hidden_layers"], ffn=config["intermediate_size"]))
    _load(model, folder, "")
    return model
