"""What only two GPUs can show: whole rounds over ranks write what one GPU writes, tree by tree.

Each engine runs in a process of its own: a fresh one, as a cell of a sweep has it.
"""

from __future__ import annotations

import multiprocessing
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import Connection

import pytest
import torch
from test_lossless import TYPES, requests
from transformers import AutoTokenizer

from benchmarks.meeting import meetings
from methods.autoregressive import Autoregressive
from methods.base import EngineSpec, Generation, ModelSpec, Request, Sampling
from methods.ddtree import DDTree
from methods.dflash import DFlash
from methods.engines.reference import ReferenceEngine
from methods.locate import resolve
from methods.reference import kernels

GPUS = torch.cuda.device_count()
if GPUS < 2:
    pytest.skip("needs two GPUs", allow_module_level=True)

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]
METHODS = (Autoregressive(), DFlash(), DDTree(16), DDTree(64), DDTree(256))
SIZES = tuple(size for size in (2, 4) if size <= GPUS)
WARM = Sampling(1.0, 0.95, 50, seed=5)
PATIENCE_S = 150


@dataclass(frozen=True)
class Found:
    """What an engine wrote: by request, then method."""

    facts: dict[str, str | int | float]
    generations: list[list[Generation]]
    violations: int


def work(spec: EngineSpec, asked: Sequence[Request], pipe: Connection) -> None:
    with ReferenceEngine(spec) as engine:
        engine.open(METHODS)
        found = [[engine.generate(method, request) for method in METHODS] for request in asked]
        tolerance = engine.gap_tolerance(asked[:2])
        scores = [
            engine.score(request, row[0].output_ids, tolerance) for request, row in zip(asked, found, strict=True)
        ]
        pipe.send(Found(engine.describe(), found, sum(score.true_violations(tolerance) for score in scores)))


@cache
def answers(pair: str, dtype: str, tp: int, per_type: int, tokens: int) -> Found:
    model = ModelSpec(pair, f"builtin:{pair}/target", f"builtin:{pair}/drafter")
    tokenizer = AutoTokenizer.from_pretrained(resolve(model.target))
    asked = [
        request
        for how in (Sampling(), WARM)
        for name in TYPES
        for request in requests(tokenizer, name, per_type, tokens, how)
    ]
    length = max(len(r.prompt_ids) + r.max_new_tokens for r in asked)
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    spec = EngineSpec(model, tp=tp, device="cuda", dtype=dtype, max_length=length)
    process = context.Process(target=work, args=(spec, asked, theirs))  # not daemonic: it has children
    process.start()
    theirs.close()
    try:
        assert ours.poll(PATIENCE_S), f"{pair} at tp={tp} hangs"
        found: Found = ours.recv()
    finally:
        process.join(20)
        process.kill()
    return found


@pytest.mark.parametrize("pair", ["tiny", "tiny_hybrid"])
@pytest.mark.parametrize("tp", SIZES)
def test_texts_and_rounds_in_float32_are_one_gpus(pair, tp):
    alone, split = (answers(pair, "float32", size, 2, 48) for size in (1, tp))
    assert split.facts["collectives"] == ("peer memory" if kernels.on else "nccl")
    assert alone.violations == split.violations == 0
    for one, other in zip(alone.generations, split.generations, strict=True):
        for method, a, b in zip(METHODS, one, other, strict=True):
            assert b.output_ids == one[0].output_ids == a.output_ids, method.arm
            assert b.rounds == a.rounds, method.arm


@pytest.mark.parametrize("pair", ["tiny", "tiny_hybrid"])
@pytest.mark.parametrize("tp", SIZES)
def test_acceptance_in_bfloat16_is_within_a_hundredth(pair, tp):
    """Of the rounds that start at the same place of the same text: bfloat16 has ties, and texts part at them."""
    alone, split = (answers(pair, "bfloat16", size, 3, 64) for size in (1, tp))
    assert split.violations == 0
    for index, method in enumerate(METHODS[1:], start=1):
        pairs = zip(alone.generations, split.generations, strict=True)
        met = [both[:2] for one, other in pairs for both in meetings(one[index], other[index])]
        whole = sum(len(row[index].rounds) for row in alone.generations)
        print(f"{pair} {method.arm}: {len(met)} of {whole} rounds, {sum(a == b for a, b in met)} alike")
        assert len(met) >= whole / 2, (method.arm, len(met), whole)
        one, other = (1 + statistics.fmean(accepted) for accepted in zip(*met, strict=True))
        assert abs(other / one - 1) <= 0.01, (method.arm, one, other)
