"""What only a CUDA device can show: the same trees, choices and texts as on the CPU, and counts that trail no round."""

from __future__ import annotations

import pytest
import torch
from test_lossless import MODEL, TYPES, check_all, requests, tokenizer  # noqa: F401
from test_sampling import sharded

from methods.autoregressive import Autoregressive
from methods.base import EngineSpec, Request, Sampling
from methods.ddtree import DDTree
from methods.dflash import DFlash
from methods.engines.reference import ReferenceEngine
from methods.reference import sampling, tree

pytestmark = pytest.mark.gpu
METHODS = [DFlash(), DDTree(16), DDTree(64), DDTree(1024), DDTree(16, chain_seed=True)]
METHODS += [DDTree(256, growth="adaptive"), DDTree(64, growth="adaptive", costs={4: 1.0, 16: 1.05, 64: 1.2})]


def opened(device: str, dtype: str, length: int) -> ReferenceEngine:
    engine = ReferenceEngine(EngineSpec(MODEL, device=device, dtype=dtype, max_length=length))
    engine.open([Autoregressive(), *METHODS])
    return engine


@pytest.mark.parametrize("budget", [16, 64, 1024])
@pytest.mark.parametrize("step", [0.0, 0.5])
def test_trees_on_the_device_equal_the_heaps(budget, step):
    log_probs = torch.log_softmax(torch.randn(15, 4096, generator=torch.Generator().manual_seed(budget)) * 4, -1)
    if step:
        log_probs = (log_probs / step).round() * step
    ordered = log_probs.sort(dim=-1, descending=True, stable=True)
    candidates = tree.Candidates(ordered.values[:, :budget].cuda(), ordered.indices[:, :budget].cuda())
    for chain_seed in (False, True):
        ours = tree.build_by_depth(candidates, torch.tensor(3, device="cuda"), budget, chain_seed=chain_seed)
        heap = tree.build_by_heap(candidates, torch.tensor(3), budget, chain_seed=chain_seed)
        assert all(torch.equal(a.cpu(), b) for a, b in zip(ours, heap, strict=True))


@pytest.mark.parametrize("settings_", [Sampling(), Sampling(1.0), Sampling(0.7, 0.9, 50)])
def test_choices_on_the_device_equal_the_cpus(settings_):
    logits = torch.randn(70, 4096, generator=torch.Generator().manual_seed(3)) * 3
    depths, request = torch.arange(70) % 16, Request("p", (1,), 99, sampling=settings_)

    def choose(part, vocabulary):
        first = torch.tensor(5, device=part.device)
        noise = sampling.noise_key(request)
        return sampling.choose(part, first, depths.to(part.device), settings_, noise, 15, vocabulary)

    assert torch.equal(sharded(logits, 1, choose), sharded(logits.cuda(), 1, choose).cpu())


@pytest.mark.parametrize("settings_", [Sampling(), Sampling(1.0, seed=5)])
def test_texts_on_the_device_are_the_targets_own(tokenizer, settings_):  # noqa: F811
    asked = [r for name in TYPES for r in requests(tokenizer, name, 2, 48, settings_)]
    length = max(len(r.prompt_ids) + r.max_new_tokens for r in asked)
    with opened("cuda", "float32", length) as engine:
        assert check_all(engine, METHODS, asked) > 0


def test_rounds_on_the_device_are_the_cpus(tokenizer):  # noqa: F811
    asked = [r for name in ("code", "math") for r in requests(tokenizer, name, 2, 48, Sampling())]
    length = max(len(r.prompt_ids) + r.max_new_tokens for r in asked)
    with opened("cuda", "float32", length) as gpu, opened("cpu", "float32", length) as cpu:
        for request in asked:
            for method in METHODS[:3]:
                one, other = (engine.generate(method, request) for engine in (gpu, cpu))
                assert one.output_ids == other.output_ids and one.rounds == other.rounds
                assert one.peak_mem_bytes and one.decode_s > 0


def test_bfloat16_stays_within_its_stated_gap(tokenizer):  # noqa: F811
    asked = [r for name in TYPES for r in requests(tokenizer, name, 2, 48, Sampling())]
    length = max(len(r.prompt_ids) + r.max_new_tokens for r in asked)
    with opened("cuda", "bfloat16", length) as engine:
        tolerance = engine.gap_tolerance(asked[:3])
        assert 0 < tolerance <= 0.5
        for request in asked:
            for method in (Autoregressive(), *METHODS):
                output = engine.generate(method, request).output_ids
                assert engine.score(request, output, tolerance).true_violations(tolerance) == 0
