"""Hybrid and sparse targets in the whole engine: every method writes the target's own text, on any number of ranks."""

from __future__ import annotations

import pytest
import torch
from test_decode import CPU, PlantedDecoder, autoregressive, check_counts, prompt
from test_parallel import check_ranks, opened, outputs
from test_target import read
from tiny_models import save_drafter, save_target

from methods.base import EngineSpec, ModelSpec, Request, Sampling
from methods.ddtree import DDTree
from methods.dflash import DFlash
from methods.reference.config import drafter_config, target_config
from methods.reference.drafter import Drafter
from methods.reference.loading import Weights
from methods.reference.parallel import Group
from methods.reference.target import Target

METHODS = [DFlash(), DDTree(3), DDTree(16), DDTree(64)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A pair whose target has everything at once: gated delta nets, gated attention, routed and shared experts."""
    folder = tmp_path_factory.mktemp("pair")
    return save_target(folder / "target", "qwen3_5_moe_text"), save_drafter(folder / "drafter")


@pytest.mark.parametrize("family", ["qwen3_5_text", "qwen3_5_moe_text", "qwen3_next", "qwen3_moe"])
@torch.inference_mode()
def test_every_method_writes_the_targets_own_text(family, tmp_path):
    target_folder, drafter_folder = save_target(tmp_path / "target", family), save_drafter(tmp_path / "drafter")
    target = Target(target_config(target_folder), Weights(target_folder, Group(), CPU, torch.float32), 512)
    drafter = Drafter(drafter_config(drafter_folder), Weights(drafter_folder, Group(), CPU, torch.float32), 512)
    decoder, accepted = PlantedDecoder(target, drafter), 0
    for seed, sampling in enumerate((Sampling(), Sampling(1.0))):
        request = Request(f"r{seed}", prompt(9 + 20 * seed, seed), 32, sampling=sampling)
        expected = autoregressive(decoder, request)
        for method in METHODS:
            generation = decoder.generate(method, request)
            assert generation.output_ids == expected.output_ids, method
            check_counts(generation, request)
            accepted += sum(r.accepted for r in generation.rounds)
        assert decoder.score(request, expected.output_ids, 1e-3).true_violations(1e-3) == 0
    assert accepted > 80


def test_ranks_agree_with_one_and_hold_their_share(folders):
    target, drafter = folders
    spec = EngineSpec(ModelSpec("random", str(target), str(drafter)), max_length=128)
    check_ranks(spec)


def test_random_weights_need_only_the_shape(folders):
    target, drafter = folders
    spec = EngineSpec(ModelSpec("random", str(target), str(drafter), weights="random"), max_length=128)
    with opened(spec, 2) as engine:
        assert all(len(ids) in (1, 7) for ids, _ in outputs(engine))


@torch.inference_mode()
@pytest.mark.parametrize("family", ["qwen3_5_moe_text", "qwen3_next"])
def test_made_up_weights_make_a_sane_model(family, tmp_path):
    """Finite logits that differ, decays that neither forget at once nor never, and routers that ranks share."""
    config = target_config(save_target(tmp_path, family))
    weights = Weights(tmp_path, Group(), CPU, torch.bfloat16, seed=0)
    target = Target(config, weights, 128)
    logits = read(target, list(range(60)))
    assert logits.isfinite().all() and logits.float().std(dim=0).mean() > 0.1
    for layer in target._recurrence.layers:
        steps = layer.pending.decay_hrn.diff(dim=-1)
        assert steps.min() > -0.5 and steps.max() < -1e-4
    ranks = [Weights(tmp_path, Group(rank, 2), CPU, torch.float32, seed=0) for rank in range(2)]
    routers = [own.tensor("router", (8, 64)) for own in ranks]
    assert torch.equal(*routers)
    shares = [own.tensor("matrix", (8, 64), split=0) for own in ranks]
    assert not torch.equal(*shares)
