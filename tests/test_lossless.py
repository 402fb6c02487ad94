"""The built-in pair: every method's text is autoregressive decoding's, at every temperature, budget and tp."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from transformers import AutoTokenizer

import workloads
from methods.autoregressive import Autoregressive
from methods.base import Engine, EngineSpec, Method, ModelSpec, Request, Sampling
from methods.ddtree import DDTree
from methods.dflash import DFlash
from methods.engines.reference import ReferenceEngine
from methods.locate import resolve, stop_ids

TIE = 1e-4  # logits: below this gap float32 rounding may choose either token
TYPES = ("chat", "code", "math", "tool_calls", "long_context")
BUDGETS = (16, 32, 64, 128, 256, 512, 1024)
WARM = Sampling(1.0, seed=5)
MODEL = ModelSpec("tiny", "builtin:tiny/target", "builtin:tiny/drafter")


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(resolve(MODEL.target))


def requests(tokenizer, name: str, count: int | None, tokens: int, sampling: Sampling) -> list[Request]:
    stops = stop_ids(resolve(MODEL.target))
    prompts = workloads.load(name).prompts[:count]
    return [Request(p.id, workloads.render(tokenizer, p), tokens, stops, sampling=sampling) for p in prompts]


def opened(methods: Sequence[Method], asked: Sequence[Request], tp: int = 1) -> ReferenceEngine:
    length = max(len(r.prompt_ids) + r.max_new_tokens for r in asked)
    spec = EngineSpec(MODEL, tp=tp, max_length=length)
    ReferenceEngine.check(spec, methods)
    engine = ReferenceEngine(spec)
    engine.open(methods)
    return engine


def differs(engine: Engine, request: Request, output: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    """Whether two outputs part at a place where the target has a clear choice."""
    if output == expected:
        return False
    place = next((i for i, (a, b) in enumerate(zip(output, expected, strict=False)) if a != b), None)
    if place is None:
        return True
    return engine.score(request, output[: place + 1]).gaps[place] >= TIE


def check_all(engine: Engine, methods: Sequence[Method], asked: Sequence[Request]) -> int:
    """Compare every method with AR on every request; the number of rounds of drafted methods."""
    rounds = 0
    for request in asked:
        expected = engine.generate(Autoregressive(), request).output_ids
        for method in methods:
            generation = engine.generate(method, request)
            assert not differs(engine, request, generation.output_ids, expected), (method.arm, request.prompt_id)
            rounds += len(generation.rounds)
    return rounds


@pytest.mark.parametrize("sampling", [Sampling(), WARM])
def test_a_sample_of_every_type_and_budget(tokenizer, sampling):
    methods = [DFlash(), DDTree(16), DDTree(64), DDTree(1024)]
    asked = [r for name in TYPES for r in requests(tokenizer, name, 1, 24, sampling)]
    with opened(methods, asked) as engine:
        assert check_all(engine, methods[:3], asked) > 0
        assert check_all(engine, methods[3:], asked[:1]) > 0


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("sampling", [Sampling(), WARM])
def test_every_prompt_of_every_type(tokenizer, name, sampling):
    methods = [DFlash(), DDTree(16), DDTree(64), DDTree(1024)]
    asked = requests(tokenizer, name, None, 64, sampling)
    with opened(methods, asked) as engine:
        assert check_all(engine, methods, asked) > 0


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize("sampling", [Sampling(), WARM, Sampling(0.7, 0.9, 50)])
def test_every_budget_at_every_tp(tokenizer, tp, sampling):
    methods = [DFlash(), *(DDTree(b) for b in BUDGETS), DDTree(16, chain_seed=True)]
    asked = [r for name in TYPES for r in requests(tokenizer, name, 1, 16, sampling)]
    with opened(methods, asked, tp) as engine:
        assert check_all(engine, methods, asked) > 0
