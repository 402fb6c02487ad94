"""Trees that take what pays: the choice is the best there is, the text is the target's, and widths are kept."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pytest
import torch
from records_fixture import CELL, make_results
from test_decode import CPU, autoregressive, check_counts, decoder, folders, prompt  # noqa: F401
from test_parallel import requests, spec  # noqa: F401

from analysis import load_rounds
from harness.__main__ import compose
from harness.records import fold
from methods.autoregressive import Autoregressive
from methods.base import Inspect, Refusal, Request, Sampling
from methods.ddtree import DDTree
from methods.engines.reference import ReferenceEngine
from methods.reference import tree
from methods.reference.tree import Candidates

VARIED = {1: 1.3, 4: 1.7, 16: 2.25, 40: 2.65, 64: 2.85}  # about what the planted drafts promise: rounds differ
STEPS = {1: 3.0, 4: 3.2, 16: 3.3, 40: 7.0, 64: 7.1}
FLAT, STEEP = dict.fromkeys(STEPS, 5.0), {budget: 10.0**budget for budget in (1, 4, 16, 64)}


def adaptive(budget: int = 64, costs: object = None, **settings: object) -> DDTree:
    return DDTree(budget, growth="adaptive", costs=costs, **settings)


def drawn(seed: int, budget: int, sharpness: float) -> tree.Tree:
    generator = torch.Generator().manual_seed(seed)
    scores = (torch.rand(7, 50, generator=generator) * sharpness).log_softmax(-1).sort(-1, descending=True).values
    ids = torch.stack([torch.randperm(50, generator=generator) for _ in range(7)])
    return tree.build(Candidates(scores, ids), torch.tensor(3), budget)


def expected_of(draft: tree.Tree, nodes: int) -> float:
    """Path by path: the chance that the target takes each of the first nodes, added up."""
    scores = draft.scores_n[draft.valid_n].double().exp().tolist()
    return sum(scores[1 : 1 + nodes])


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("chain_seed", [False, True])
def test_the_choice_is_the_best_of_all(seed, chain_seed):
    method = adaptive(costs=STEPS, chain_seed=chain_seed)
    draft = drawn(seed, 64, [3, 10, 30, 100][seed % 4])
    costs = torch.tensor(method.width_costs, dtype=torch.float64)
    chosen = method.budgets[int(method.choose(draft, costs))]
    speeds = {budget: (1 + expected_of(draft, budget)) / ms for budget, ms in STEPS.items()}
    assert speeds[chosen] == pytest.approx(max(speeds.values()), rel=1e-12)
    # No beginning of any length is faster, if one of n nodes costs what the next width does.
    for nodes in range(1, 65):
        ms = next(ms for budget, ms in STEPS.items() if budget >= nodes)
        assert (1 + expected_of(draft, nodes)) / ms <= speeds[chosen] * (1 + 1e-12)


def test_missing_nodes_promise_nothing():
    few = Candidates(torch.log_softmax(torch.ones(2, 2), -1), torch.tensor([[1, 2], [3, 4]]))
    draft = tree.build(few, torch.tensor(0), 64)  # six nodes are all there are
    assert tree.expected_accepted(draft, (1, 7, 65)).tolist() == pytest.approx([0, 2, 2])
    method = adaptive(costs={6: 1.0, 64: 1.01})
    assert int(method.choose(draft, torch.tensor(method.width_costs, dtype=torch.float64))) == 0


def test_its_beginnings_are_trees():
    draft = drawn(0, 64, 30)
    for rows in range(1, 66):
        tree.check(tree.Tree(*(column[:rows] for column in draft)))


@pytest.mark.parametrize("how", [Sampling(), Sampling(0.8, 0.9, 50, seed=3)])
@pytest.mark.parametrize("costs", [VARIED, FLAT, STEEP, None], ids=["varied", "flat", "steep", "measured"])
def test_texts_are_the_target_s_and_widths_are_kept(decoder, how, costs):  # noqa: F811
    request = Request("p", prompt(30, 3), 48, sampling=how)
    expected, method = autoregressive(decoder, request), adaptive(costs=costs)
    generation = decoder.generate(method, request)
    assert generation.output_ids == expected.output_ids
    check_counts(generation, request)
    assert len(generation.widths) == len(generation.rounds)
    assert set(generation.widths) <= set(method.widths(8)) and max(generation.widths) <= method.width(8) == 65
    if costs is FLAT:
        assert set(generation.widths) == {65}
        assert generation.rounds == decoder.generate(DDTree(64), request).rounds
    if costs is STEEP:
        assert set(generation.widths) == {2}
        assert generation.rounds == decoder.generate(DDTree(1), request).rounds
    if costs is VARIED:
        assert len(set(generation.widths)) > 1
    if costs is None:
        measured = decoder.costs(method)
        assert method.budgets == (16, 32, 64) and len(measured) == 3 and min(measured) > 0
        assert decoder.costs(method) is measured


def test_rounds_can_be_profiled_and_looked_at(decoder):  # noqa: F811
    request, method = Request("p", prompt(30, 3), 40), adaptive(costs=VARIED)
    expected = autoregressive(decoder, request)
    plain = decoder.generate(method, request)
    wanted = Inspect(oracle_rate=1.0, shadow_linear=True, dump_rounds=True, tolerance=1e-3)
    seen = decoder.generate(method, request, profile=True, inspect=wanted)
    assert (seen.output_ids, seen.rounds, seen.widths) == (expected.output_ids, plain.rounds, plain.widths)
    assert min(vars(seen.stages).values()) > 0
    for width, look in zip(seen.widths, seen.inspected, strict=True):
        assert len(look.tree.tokens) == width and look.oracle.disagreements == 0
    assert len(set(seen.widths)) > 1


def test_fixed_growth_says_no_widths(decoder):  # noqa: F811
    assert decoder.generate(DDTree(16), Request("p", prompt(5), 8)).widths is None
    assert not DDTree(16).adapts and DDTree(16).widths(8) == (17,)


def test_ranks_choose_alike(spec):  # noqa: F811
    """Costs that rank 0 alone would have measured otherwise: all go by the slowest one's."""
    methods = (Autoregressive(), adaptive(40, {2: 1.0, 12: 1.05, 40: 1.3}), adaptive(24))
    texts = {}
    for tp in (1, 2):
        with ReferenceEngine(replace(spec, tp=tp)) as engine:
            engine.open(methods)
            facts = engine.describe()
            assert facts["costs_ddtree-40-adaptive"] == "{2: 1, 12: 1.05, 40: 1.3}"
            assert str(facts["costs_ddtree-24-adaptive"]).startswith("{16: ")
            found = [engine.generate(method, request) for request in requests() for method in methods]
            texts[tp] = [(one.output_ids, one.rounds, one.widths) for one in found[:2]]
            for number, one in enumerate(found):
                assert one.output_ids == found[number - number % 3].output_ids
    assert texts[1] == texts[2]


def test_names_and_budgets():
    assert adaptive(256).arm == "ddtree-256-adaptive" and adaptive(8, chain_seed=True).arm == "ddtree-8-chain-adaptive"
    assert adaptive(100).budgets == (16, 32, 64, 100) and adaptive(64).budgets == (16, 32, 64)
    assert adaptive(8).budgets == (8,) and adaptive(1024).budgets[-2:] == (512, 1024)
    pairs = adaptive(64, STEPS)
    assert pairs == adaptive(64, json.loads(json.dumps(pairs.costs))) and hash(pairs) == hash(adaptive(64, STEPS))
    assert pairs.width_costs == tuple(STEPS.values())


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"growth": "slow"}, "method.growth=slow"),
        ({"costs": {64: 1.0}}, "growth=fixed"),
        *itertools.product(
            [
                {"growth": "adaptive", "costs": costs}
                for costs in (
                    {},
                    {16: 1.0},
                    {64: 0.0},
                    {128: 1.0},
                    {0: 1.0, 64: 1.0},
                    {64: "slow"},
                    3,
                    {64: float("inf")},
                )
            ],
            ["64 is the largest"],
        ),
    ],
)
def test_what_is_refused(settings, sentence):
    with pytest.raises(Refusal, match=sentence):
        DDTree(64, **settings)


def test_the_command_line_gives_costs_and_says_which_engine_cannot():
    (job,) = compose(["method=ddtree_adaptive", "budget=256", "method.costs={16: 3, 256: 4.5}", "device=cpu"])
    assert job.method == adaptive(256, {16: 3.0, 256: 4.5})
    with pytest.raises(Refusal, match=r"ddtree-64-adaptive is not accepted: engine=vllm"):
        compose(["method=ddtree_adaptive", "engine=vllm", "device=cpu"])


@pytest.mark.parametrize("folded", [True, False])
def test_widths_reach_the_rounds(tmp_path, folded):
    cell = make_results(tmp_path) / "cells" / CELL
    file = cell / "sittings" / "0" / "requests.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:  # others are as they were written before there were widths
        if line["arm"] == "ddtree-16":
            line["widths"] = [17, 9] * (len(line["rounds"]) // 2) + [17] * (len(line["rounds"]) % 2)
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    fold(cell) if folded else (cell / "rounds.parquet").unlink()
    rounds = load_rounds(tmp_path)
    mine = rounds["arm"] == "ddtree-16"
    assert rounds.loc[mine & (rounds["round"] % 2 == 1), "width"].eq(9).all() and mine.any()
    assert rounds.loc[mine & (rounds["round"] % 2 == 0), "width"].eq(17).all()
    assert rounds.loc[~mine, "width"].isna().all()
