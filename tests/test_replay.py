"""A replay of one text against separate runs: the same rounds, one by one, for every budget."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_decode import BLOCK, PlantedCycle, PlantedDecoder, autoregressive, folders, prompt  # noqa: F401
from tiny_models import DRAFTER_KINDS, save_drafter, save_target
from transformers import AutoTokenizer

import workloads
from analysis.replay import replay_rounds, rounds_from
from methods.autoregressive import Autoregressive
from methods.base import Engine, EngineSpec, Generation, Method, ModelSpec, Refusal, Replay, Request, Sampling
from methods.ddtree import DDTree
from methods.dflash import DFlash
from methods.engines.reference import ReferenceEngine
from methods.locate import resolve, stop_ids
from methods.reference import tree
from methods.reference.config import drafter_config, target_config
from methods.reference.drafter import Drafter
from methods.reference.loading import Weights
from methods.reference.memory import ROOTS_AT_ONCE
from methods.reference.parallel import Group
from methods.reference.replay import NO_TOKEN, Replayer, follow
from methods.reference.target import Target

CPU = torch.device("cpu")
METHODS: list[Method] = [DFlash(), *map(DDTree, (1, 3, 16, 64, 100))]


def rounds_of(replay: Replay, method: Method, finish_reason):
    budget = method.node_budget
    if budget is None:
        return tuple(rounds_from(replay.chain, finish_reason))
    return tuple(replay_rounds(replay.places, budget, finish_reason))


def check(replay: Replay, plain: Generation, block: int) -> None:
    """What holds for every replay of a text."""
    roots = len(plain.output_ids) - 1
    assert len(replay.places) == len(replay.chain) == roots
    for root, (places, chain) in enumerate(zip(replay.places, replay.chain, strict=True)):
        assert max(len(places), chain) <= min(block - 1, roots - root)
        assert list(places) == sorted(set(places)) and all(1 <= place <= replay.budget for place in places)
        assert all(place >= depth for depth, place in enumerate(places, start=1))  # its ancestors come first
    last = None
    for budget in range(1, replay.budget + 1):
        rounds = replay_rounds(replay.places, budget, plain.finish_reason)
        assert 1 + sum(one.emitted for one in rounds) == len(plain.output_ids)
        accepted = [sum(place <= budget for place in places) for places in replay.places]
        assert last is None or all(a >= b for a, b in zip(accepted, last, strict=True))
        last = accepted


class PlantedReplayer(Replayer):
    """Drafts as `PlantedCycle` does, at any root."""

    def propose(self, roots_r):
        super().propose(roots_r)
        return [self._planted(int(root) - self._first + 1) for root in roots_r]

    def _planted(self, first: int) -> tree.Candidates:
        generator = torch.Generator().manual_seed(first)
        vocabulary = self._target.config.vocabulary
        scores = torch.rand(self._depth_limit, vocabulary, generator=generator)
        for position, token in enumerate(PlantedCycle.text[first : first + self._depth_limit]):
            if torch.rand((), generator=generator) < 0.9:
                scores[position, token] = 0.97 + 0.05 * torch.rand((), generator=generator)
        top = torch.log_softmax(scores * 60, dim=-1).topk(min(self._budget, vocabulary), dim=-1)
        return tree.Candidates(top.values, top.indices)


class ReplayedDecoder(PlantedDecoder):
    replayer_type = PlantedReplayer


@pytest.fixture(scope="module")
def decoder(folders):  # noqa: F811
    target_folder, drafter_folder = folders
    target = Target(target_config(target_folder), Weights(target_folder, Group(), CPU, torch.float32), 512)
    drafter = Drafter(drafter_config(drafter_folder), Weights(drafter_folder, Group(), CPU, torch.float32), 512)
    with torch.inference_mode():
        return ReplayedDecoder(target, drafter)


@pytest.mark.parametrize("length", [1, 30, 100])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.8, 0.9, 50, seed=3)])
def test_rounds_are_those_of_separate_runs(decoder, length, sampling):
    request = Request(f"p{length}", prompt(length, length), 60, sampling=sampling)
    plain = autoregressive(decoder, request)
    replay = decoder.replay(request, plain.output_ids, 200)
    check(replay, plain, BLOCK)
    for method in (*METHODS, DDTree(200)):
        assert rounds_of(replay, method, plain.finish_reason) == decoder.generate(method, request).rounds, method.arm
    assert len(rounds_of(replay, DDTree(64), plain.finish_reason)) < 25  # the planted text is really accepted


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 8, 9, 10, 17])
def test_a_length_limit_cuts_where_a_run_is_cut(decoder, limit):
    request = Request("limit", prompt(20, 5), limit)
    plain = autoregressive(decoder, request)
    replay = decoder.replay(request, plain.output_ids, 64)
    check(replay, plain, BLOCK)
    for method in METHODS[:-1]:
        assert rounds_of(replay, method, plain.finish_reason) == decoder.generate(method, request).rounds


def test_a_stop_cuts_where_a_run_is_cut(decoder):
    whole = autoregressive(decoder, Request("stop", prompt(20, 5), 40, sampling=Sampling(1.0)))
    cuts = set()
    for place in range(0, 24, 2):
        request = Request("stop", prompt(20, 5), 40, (whole.output_ids[place], 9_999), sampling=Sampling(1.0))
        plain = autoregressive(decoder, request)
        decoder.text = whole.output_ids  # a draft may go on behind the stop
        replay = decoder.replay(request, plain.output_ids, 64)
        for method in METHODS[:-1]:
            rounds = decoder.generate(method, request).rounds
            assert rounds_of(replay, method, plain.finish_reason) == rounds, (place, method.arm)
            cuts.update(one.cut for one in rounds)
    assert cuts == {"", "stop"}


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_text_is_found_in_trees_as_a_walk_finds_it(data):
    depth, vocabulary, budget = 4, 6, data.draw(st.integers(1, 40))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 10_000)))
    root, trees, texts = torch.tensor(0), [], []
    for _ in range(3):
        top = torch.log_softmax(2 * torch.randn(depth, vocabulary, generator=generator), -1).topk(min(budget, 6))
        trees.append(tree.build(tree.Candidates(top.values, top.indices), root, budget))
        ended = data.draw(st.integers(0, depth))
        tokens = [int(top.indices[d, data.draw(st.integers(0, min(budget, 3) - 1))]) for d in range(ended)]
        texts.append([*tokens, *[NO_TOKEN] * (depth - ended)])
    found = follow(trees, torch.tensor(texts)).tolist()
    for one, text, places in zip(trees, texts, found, strict=True):
        choices_n = torch.tensor([*text, NO_TOKEN])[one.depths_n]
        walk = tree.walk(one, tree.visibility(one.parents_n, depth), choices_n, depth)
        expected = walk.path_d[1 : int(walk.accepted) + 1].tolist()
        assert places == [*expected, *[0] * (depth - len(expected))]


@pytest.mark.parametrize("kind", DRAFTER_KINDS)
@torch.inference_mode()
def test_many_blocks_in_a_pass_are_those_of_single_ones(kind, tmp_path):
    folder = save_drafter(tmp_path, **DRAFTER_KINDS[kind])
    drafter = Drafter(drafter_config(folder), Weights(folder, Group(), CPU, torch.float32), 128)
    roots, blocks = torch.tensor([1, 2, 11, 30, 40]), torch.randn(5, 8, 64)
    drafter.extend(torch.randn(40, 128), torch.tensor(0))
    together = drafter.blocks(blocks.flatten(0, 1), roots, 41).unflatten(0, (5, 8))
    for root, block, hidden in reversed(list(zip(roots, blocks, together, strict=True))):
        torch.testing.assert_close(drafter.block(block, root, 64), hidden, atol=1e-5, rtol=1e-5)


def asked(name: str, sampling: Sampling, count: int, tokens: int) -> tuple[ModelSpec, list[Request]]:
    model = ModelSpec(name, f"builtin:{name}/target", f"builtin:{name}/drafter")
    tokenizer, stops = AutoTokenizer.from_pretrained(resolve(model.target)), stop_ids(resolve(model.target))
    prompts = workloads.load("smoke").prompts[:count]
    return model, [Request(p.id, workloads.render(tokenizer, p), tokens, stops, sampling=sampling) for p in prompts]


def compare(engine: Engine, methods: list[Method], requests: list[Request]) -> None:
    for request in requests:
        plain = engine.generate(Autoregressive(), request)
        replay = engine.replay(request, plain.output_ids, 1024)
        for method in methods:
            generation = engine.generate(method, request)
            assert generation.output_ids == plain.output_ids
            assert rounds_of(replay, method, plain.finish_reason) == generation.rounds, (method.arm, request.prompt_id)


@pytest.mark.parametrize(("name", "temperature"), [("tiny", 1.0), ("tiny_hybrid", 0.0)])
def test_the_built_in_pairs_replay_round_for_round(name, temperature):
    model, requests = asked(name, Sampling(temperature), 2, 40)
    longest = max(len(request.prompt_ids) for request in requests) + 40
    with ReferenceEngine(EngineSpec(model, max_length=longest, replay=1024)) as engine:
        engine.open([Autoregressive(), *METHODS, DDTree(1024)])
        compare(engine, METHODS, requests)
        compare(engine, [DDTree(1024)], [replace(requests[0], max_new_tokens=12)])


def test_ranks_replay_as_one_does_and_autoregression_is_enough_to_open(tmp_path):
    pair = ModelSpec("random", str(save_target(tmp_path / "target")), str(save_drafter(tmp_path / "drafter")))
    request, found = Request("greedy", tuple(range(3, 40)), 2 * ROOTS_AT_ONCE + 5), []
    for tp in (1, 2):
        spec = EngineSpec(pair, tp=tp, max_length=128, replay=64)
        ReferenceEngine.check(spec, [Autoregressive()])
        with ReferenceEngine(spec) as engine:
            engine.open([Autoregressive()])
            output = engine.generate(Autoregressive(), request).output_ids
            found.append(replace(engine.replay(request, output, 64), seconds=0.0))
    assert found[0] == found[1] and len(found[0].chain) == 2 * ROOTS_AT_ONCE + 4


def test_a_replay_needs_memory_for_the_drafter(tmp_path):
    pair = ModelSpec("random", str(save_target(tmp_path / "target")), str(save_drafter(tmp_path / "drafter")))
    plain, replayed = (EngineSpec(pair, max_length=128, replay=budget) for budget in (0, 64))
    method = Autoregressive()
    assert ReferenceEngine.memory_bytes(plain, method) < ReferenceEngine.memory_bytes(replayed, method)
    assert ReferenceEngine.memory_bytes(replayed, method) < ReferenceEngine.memory_bytes(replayed, DDTree(1024))


def test_other_engines_refuse():
    class Plain(ReferenceEngine):
        replay = Engine.replay

    with pytest.raises(Refusal, match="replay=16 is not accepted: engine=reference cannot replay a text"):
        Plain(EngineSpec(ModelSpec("m", "t", "d"))).replay(Request("p", (1,), 2), (1, 2), 16)
