"""Tensor parallelism with real processes: same tokens, fair shares, no hanging, nothing left behind."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_models import save_drafter, save_target

from methods.autoregressive import Autoregressive
from methods.base import EngineSpec, ModelSpec, Refusal, Request, Sampling
from methods.ddtree import DDTree
from methods.dflash import DFlash
from methods.engines.reference import ReferenceEngine
from methods.reference.config import drafter_config, target_config
from methods.reference.memory import drafter_parameters, target_parameters

METHODS = (Autoregressive(), DFlash(), DDTree(16))


@pytest.fixture(scope="module")
def spec(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    target, drafter = save_target(folder / "target"), save_drafter(folder / "drafter")
    return EngineSpec(ModelSpec("random", str(target), str(drafter)), max_length=128)


def opened(spec: EngineSpec, tp: int) -> ReferenceEngine:
    spec = replace(spec, tp=tp)
    ReferenceEngine.check(spec, METHODS)
    engine = ReferenceEngine(spec)
    engine.open(METHODS)
    return engine


def requests() -> list[Request]:
    plain = Request("greedy", tuple(range(3, 40)), 7)
    return [
        plain,
        replace(plain, prompt_id="warm", sampling=Sampling(1.0, 0.9, 100)),
        replace(plain, prompt_ids=(9,), max_new_tokens=1),
    ]


def outputs(engine: ReferenceEngine) -> list[tuple]:
    found = []
    for request in requests():
        for method in METHODS:
            generation = engine.generate(method, request)
            found.append((generation.output_ids, generation.rounds))
            assert engine.score(request, generation.output_ids, 1e-3).true_violations(1e-3) == 0
    return found


def weights_bytes(engine: ReferenceEngine) -> list[int]:
    return [int(v) for k, v in engine.describe().items() if k.startswith("weights_bytes_rank")]


def check_ranks(spec: EngineSpec) -> None:
    """Ranks write what one writes, none holds more than its share, and they say by what they meet."""
    with opened(spec, 1) as engine:
        assert "collectives" not in engine.describe()
        expected, (whole,) = outputs(engine), weights_bytes(engine)
    for tp in (2, 4):
        with opened(spec, tp) as engine:
            assert outputs(engine) == expected
            assert engine.describe()["collectives"] in ("shared memory", "gloo")
            shares = weights_bytes(engine)
            assert len(shares) == tp and max(shares) <= whole * (1 / tp + 0.10)
        assert not multiprocessing.active_children()


def test_ranks_agree_with_one_and_hold_their_share(spec):
    check_ranks(spec)


def test_a_dead_rank_takes_the_engine_down_with_a_reason(spec):
    engine = opened(spec, 2)
    (worker,) = multiprocessing.active_children()
    os.kill(worker.pid, signal.SIGKILL)
    begin = time.monotonic()
    with pytest.raises(RuntimeError, match="rank 1 ended with status -9"):
        engine.generate(Autoregressive(), requests()[0])
    engine.close()
    assert time.monotonic() - begin < 20
    assert not multiprocessing.active_children()


def test_an_error_on_rank_0_alone_ends_in_time(spec, monkeypatch):
    """The other rank is left waiting in a collective that rank 0 will not join."""
    engine = opened(spec, 2)

    def fail(*args, **kwargs):
        raise ArithmeticError("only here")

    monkeypatch.setattr(engine._ranks._rank._decoder, "generate", fail)
    begin = time.monotonic()
    with pytest.raises(ArithmeticError, match="only here"):
        engine.generate(Autoregressive(), requests()[0])
    engine.close()
    assert time.monotonic() - begin < 20
    assert not multiprocessing.active_children()


def test_a_rank_that_cannot_start_says_why(spec, tmp_path):
    drafter = save_drafter(tmp_path)
    raw = json.loads((drafter / "config.json").read_text())
    (drafter / "config.json").write_text(json.dumps({**raw, "num_hidden_layers": 3, "layer_types": None}))
    broken = replace(spec.model, drafter=str(drafter))
    with pytest.raises((RuntimeError, Refusal), match=r"no tensor 'layers\.2"):
        opened(replace(spec, model=broken), 2)
    assert not multiprocessing.active_children()


def test_what_the_engine_cannot_do_is_refused_before_loading(spec):
    for changed, sentence in (
        (replace(spec, tp=3), "tp=3"),
        (replace(spec, dtype="int8"), "dtype=int8"),
        (replace(spec, max_length=600), "window of 512"),
        (replace(spec, model=replace(spec.model, target="/nowhere/at/all")), "no config.json"),
    ):
        with pytest.raises(Refusal, match=sentence):
            ReferenceEngine.check(changed, METHODS)


def test_more_ranks_than_gpus_are_refused(spec, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    with pytest.raises(Refusal, match="tp=2 needs 2 GPUs, one a rank; here are 1"):
        opened(replace(spec, device="cuda"), 2)


def test_memory_is_known_before_loading(spec):
    with opened(spec, 1) as engine:
        whole = weights_bytes(engine)[0]
    target, drafter = (config(Path(path)) for config, path in (
        (target_config, spec.model.target), (drafter_config, spec.model.drafter)))  # fmt: skip
    padding = (208 - target.vocabulary) * target.hidden
    assert whole == 4 * (target_parameters(target) + padding + drafter_parameters(drafter))
    small, large = (ReferenceEngine.memory_bytes(spec, DDTree(b)) for b in (16, 1024))
    assert (
        whole < ReferenceEngine.memory_bytes(spec, Autoregressive()) + 4 * drafter_parameters(drafter) < small < large
    )
    assert ReferenceEngine.memory_bytes(replace(spec, tp=2), DDTree(16)) < small


def test_random_weights_need_only_the_shape(spec):
    for tp in (1, 2):
        with opened(replace(spec, model=replace(spec.model, weights="random")), tp) as engine:
            assert len(engine.generate(DDTree(16), requests()[0]).output_ids) == 7
