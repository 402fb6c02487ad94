"""Memory computed from config files, against models, published sizes and what a pass leaves behind."""

from __future__ import annotations

import pytest
import torch
from test_gated_delta import ancestry, scattered
from test_target import open_target
from tiny_models import FAMILIES, hf_model, save_target

from methods.locate import resolve
from methods.reference.config import check_pair, drafter_config, target_config
from methods.reference.memory import (
    cache_bytes,
    drafter_parameters,
    pending_bytes,
    state_bytes,
    target_parameters,
    tree_bytes,
    window_bytes,
)

VARIANTS = [(family, {}) for family in FAMILIES] + [
    ("llama", {"attention_bias": True, "mlp_bias": True}),
    ("qwen3_moe", {"decoder_sparse_step": 2}),
    ("qwen3_next", {"mlp_only_layers": [0], "tie_word_embeddings": True}),
]


@pytest.mark.parametrize(("family", "changes"), VARIANTS)
def test_parameters_are_counted_exactly(family, changes, tmp_path):
    expected = sum(parameter.numel() for parameter in hf_model(family, **changes).parameters())
    assert target_parameters(target_config(save_target(tmp_path, family, **changes))) == expected


@pytest.mark.parametrize(
    ("name", "billions"),
    [("qwen3_8b", 8.19), ("qwen36_27b", 26.9), ("qwen36_35b_a3b", 34.7), ("qwen3_coder_30b_a3b", 30.5)],
)
def test_shapes_have_the_published_sizes(name, billions):
    config = target_config(resolve(f"shape:{name}/target"))
    assert target_parameters(config) / 1e9 == pytest.approx(billions, rel=5e-3)
    config.check_ranks(2, "target")


@pytest.mark.parametrize("name", ["qwen3_8b", "qwen36_27b"])
def test_shapes_of_pairs_fit_together(name):
    drafter = drafter_config(resolve(f"shape:{name}/drafter"))
    check_pair(target_config(resolve(f"shape:{name}/target")), drafter)
    assert 0.9e9 < drafter_parameters(drafter) < 2.0e9


def test_one_state_per_node_would_not_fit_where_a_tree_does():
    config = target_config(resolve("shape:qwen36_27b/target"))
    assert state_bytes(config) == 144 * 2**20 and state_bytes(config, 4) == 36 * 2**20
    assert 1024 * state_bytes(config) > 150e9
    for budget in (16, 64, 256, 1024):
        assert tree_bytes(config, budget, 1, 2) < budget * state_bytes(config) / 30
        assert tree_bytes(config, budget, 4, 2) <= tree_bytes(config, budget, 1, 2) / 3.9
    assert state_bytes(target_config(resolve("shape:qwen3_8b/target"))) == 0


@torch.inference_mode()
def test_states_slots_and_what_a_pass_leaves_are_counted_exactly(tmp_path):
    target = open_target(save_target(tmp_path, "qwen3_5_text"), slots=128)
    config, parents = target.config, scattered(20)
    assert target.cache.data.nbytes == cache_bytes(config, 128, 1, 4)
    states, windows = target.snapshot()
    assert states.nbytes == state_bytes(config) and windows.nbytes == window_bytes(config, 1, 4)
    at = torch.tensor(0)
    target.forward(torch.zeros(20, dtype=torch.int64), target.view(at, at + torch.arange(20), ancestry(parents), 64))
    left = [layer.pending for layer in target._recurrence.layers]
    storages = {part.untyped_storage().data_ptr(): part.untyped_storage().nbytes() for rows in left for part in rows}
    assert sum(storages.values()) == pending_bytes(config, 20, 1, 4)
