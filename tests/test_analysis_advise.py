"""Advice on made results whose costs and rounds are known: what is chosen, what is predicted, what is refused."""

from __future__ import annotations

import io
import itertools
import json
import math
import random
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import records_fixture
from records_fixture import AR, FixtureArm, record, write_cell
from test_analysis_plots import visible

from analysis.__main__ import main
from analysis.advise import advise, rows
from analysis.advise_costs import log_speeds
from analysis.advise_frame import load_advice
from analysis.advise_table import advice, sentences
from analysis.plots import pictures
from analysis.records import find_cells
from analysis.replay import Replayed, replay_rounds
from analysis.report import report
from analysis.style import PAGE, SMALL
from harness.records import fold
from methods.base import Refusal
from methods.ddtree import DDTree
from methods.dflash import DFlash
from workloads.splits import dev_half

TOKENS, LARGEST, STEP_S = 60, 128, 0.010
BUDGETS = (4, 8, 16, 32, 64, 128)
DEV = {f"{kind}-d{n}": kind for kind in ("code", "math") for n in range(4)}
TEST = {f"{kind}-t{n}": kind for kind in ("code", "math") for n in range(6)}


def stairs(rows: int) -> float:
    """What a round costs over one of AR's: a step up every 16 rows."""
    return 2.0 + 0.35 * math.ceil(rows / 16)


def places_of(prompt: str) -> list[list[int]]:
    drawn, found = random.Random(prompt), []
    for root in range(TOKENS - 1):
        held, place = [], 0
        for _ in range(min(15, TOKENS - 1 - root)):
            place += max(1, int(drawn.paretovariate(0.5)))
            if place > LARGEST:
                break
            held.append(place)
        found.append(held)
    return found


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Makes cells in one results folder, which it returns. A prompt's rounds all take as much longer as its name says,
    AR's too; `noise` is the spread of a request's time beyond that, as a part of it."""
    arms = {AR: FixtureArm("autoregressive", None, 1.0, 0), "dflash": FixtureArm("dflash", None, 1.0, 1)}
    arms |= {f"ddtree-{budget}": FixtureArm("ddtree", budget, 1.0, 2) for budget in range(1, 2 * LARGEST + 1)}
    arms["ddtree-23-chain"] = FixtureArm("ddtree", 23, 1.0, 2)
    monkeypatch.setattr(records_fixture, "ARMS", arms)
    monkeypatch.setattr(records_fixture, "PROMPTS", DEV | TEST)

    def cell(
        cell_id: str,
        prompts: dict[str, str],
        budgets: Iterable[int] = BUDGETS,
        cost: Callable[[int], float] = stairs,
        *,
        chain: float | None = 2.2,
        seeded: bool = False,
        replay: bool = True,
        places: Callable[[str], list[list[int]]] = places_of,
        noise: float = 0.0,
        statuses: dict[str, str] | None = None,
        **settings: object,
    ) -> Path:
        results, lines, replays = tmp_path / "results", [], []
        methods = [*([DFlash()] if chain else []), *map(DDTree, budgets)]
        methods += [DDTree(23, chain_seed=True)] if seeded else []
        costs = {"dflash": chain or 0.0, **{f"ddtree-{b}": cost(1 + b) for b in budgets}}
        costs |= {"ddtree-23-chain": 2.5} if seeded else {}
        for prompt in prompts:
            chance, slow = random.Random(f"{cell_id}{prompt}"), 1 + random.Random(prompt).random()
            line = {
                **{"cell_id": cell_id, "sitting": 0, "prompt_id": prompt, "turn": 0, "category": prompts[prompt]},
                **{"n_input": 3, "output_ids": list(range(TOKENS)), "finish_reason": "length", "budget": LARGEST},
                **{"places": places(prompt), "chain": [min(1, len(held)) for held in places(prompt)]},
                **{"replay_s": 1.0, "started_utc": "2026-11-29"},
            }
            replays.append(line)
            plain = [(0, 1, "")] * (TOKENS - 1)
            done = {AR: plain, **{m.arm: Replayed.of(line | {"budget": 999}).rounds(m) for m in methods}}
            for arm, rounds in done.items():
                decode = len(rounds) * STEP_S * slow * costs.get(arm, 1.0) * math.exp(noise * chance.gauss(0, 1))
                times = {"decode_s": decode, "tpot_s": decode / (TOKENS - 1), "ttft_s": 0.05, "e2e_s": decode + 0.05}
                ids, kept = list(range(TOKENS)), [list(one) for one in rounds]
                lines.append(record(arm, prompt, 0, cell_id=cell_id, rounds=kept, output_ids=ids, **times))
        stand = {arm: "complete" for arm in (AR, *costs) if arm != "dflash" or chain} | (statuses or {})
        folder = write_cell(results, cell_id, [lines], stand, {}, repeats=1, **settings)
        fold(folder)
        if replay:
            (folder / "sittings/0/replay.jsonl").write_text("".join(json.dumps(one) + "\n" for one in replays))
        return results

    return cell


@pytest.fixture
def halves(make):
    make("d" * 12, DEV, split="dev")
    return make("e" * 12, TEST, split="test")


def one(results: Path, arms=None):
    (found,) = advise(find_cells(results), arms)
    return found


def brute(prompts: Iterable[str], budget: int, cost: float) -> float:
    """The definition: the mean logarithm of tokens per round over the cost of a round."""
    logs = [math.log((TOKENS - 1) / len(replay_rounds(places_of(prompt), budget)) / cost) for prompt in prompts]
    return math.exp(sum(logs) / len(logs))


def test_the_best_budget_is_the_one_that_brute_force_finds(halves):
    found = one(halves)
    speeds = {budget: brute(DEV, budget, stairs(1 + budget)) for budget in BUDGETS}
    assert found.choice.best == max(speeds, key=lambda budget: speeds[budget])
    assert found.choice.budget in found.choice.tied
    for budget in BUDGETS:
        assert found.speed_b[budget - 1] == pytest.approx(speeds[budget])


def test_every_budget_is_predicted_and_what_was_timed_agrees(halves):
    table = load_advice(halves).set_index("arm")
    assert (
        len(table) == LARGEST + 2 and table["n_prompts"].eq(len(TEST)).all() and table["split"].eq("dev and test").all()
    )
    costs = {budget: stairs(1 + budget) for budget in BUDGETS}
    for budget in (4, 5, 16, 23, 50, 100, 128):
        cost = np.interp(budget, list(costs), list(costs.values()))
        row = table.loc[f"ddtree-{budget}"]
        assert row["speedup"] == pytest.approx(brute(TEST, budget, cost))
        assert row["cost"] == pytest.approx(cost) and row["width"] == 1 + budget
        assert row["cost_from"] == ("measured" if budget in BUDGETS else "interpolated")
        assert row["speedup_low"] <= row["speedup"] <= row["speedup_high"]
        if budget in BUDGETS:
            assert row["measured_speedup"] == pytest.approx(row["speedup"])
            assert row["difference"] == pytest.approx(0, abs=1e-9)
            assert row["measured_tokens_per_s"] == pytest.approx(row["tokens_per_s"])
            assert row["measured_tpot_s"] == pytest.approx(row["tpot_s"])
    assert table.loc["dflash", "cost"] == pytest.approx(2.2) and table.loc["dflash", "difference"] == pytest.approx(0)
    assert (table.loc[AR, "speedup"], table.loc[AR, "cost"], table.loc[AR, "width"]) == (1, 1, 1)


def test_widths_that_were_not_timed_are_not_extrapolated(make):
    make("d" * 12, DEV, (8, 32), split="dev")
    results = make("e" * 12, TEST, (8, 32), split="test")
    table = load_advice(results).set_index("budget")
    assert table.loc[[1, 7, 33, 128], ["cost", "round_s", "speedup", "tokens_per_s"]].isna().all(axis=None)
    assert table.loc[[1, 33], "cost_from"].eq("unknown").all() and table.loc[[1, 33], "tokens_per_round"].gt(1).all()
    text = " ".join(advice(results).split())
    assert "nothing is extrapolated" in text and "~" in text and "ddtree-4" in text


def test_the_halves_of_a_whole_workload_are_those_of_the_splits(make):
    results = make("a" * 12, DEV | TEST)
    found = one(results)
    asked = [type("Asked", (), {"id": name, "category": kind})() for name, kind in (DEV | TEST).items()]
    assert found.subject.halves.dev == dev_half(asked) and found.subject.halves.apart
    assert found.costs.prompts == found.subject.halves.dev and not found.own_costs


def test_equal_budgets_are_tied_and_the_smallest_is_taken(make):
    def few(prompt: str) -> list[list[int]]:
        return [[place for place in held if place <= 8] for held in places_of(prompt)]  # no more to gain from 8 on

    def flat(rows: int) -> float:
        return 2.0

    make("d" * 12, DEV, cost=flat, chain=None, places=few, split="dev")
    found = one(make("e" * 12, TEST, cost=flat, chain=None, places=few, split="test"))
    assert found.choice.tied == (8, 16, 32, 64, 128) and found.choice.budget == 8
    said = " ".join(sentences(found))
    assert "Take budget 8 (method=ddtree budget=8): 8, 16, 32, 64 and 128 cannot be told apart" in said
    assert "dev half (8 prompts)" in said and "test half (12 prompts)" in said


def test_what_noise_hides_is_tied_but_never_taken_from_far_behind(make):
    def cost(rows: int) -> float:
        return {5: 2.0, 9: 2.4, 17: 2.5, 33: 3.2, 65: 4.0, 129: 6.0}[rows]

    few = dict(list(DEV.items())[:3])
    make("d" * 12, few, cost=cost, noise=0.5, split="dev")
    found = one(make("e" * 12, TEST, cost=cost, noise=0.02, split="test"))
    choice = found.choice
    assert len(choice.tied) > 2 and choice.behind and choice.budget not in choice.behind
    assert all(share < 0.97 for share in choice.behind.values())
    assert "too far behind to be taken" in " ".join(sentences(found))
    table = pd.DataFrame(rows(found)).set_index("arm")
    assert table.loc[found.choice.take, "verdict"] == "take" and "tied" in set(table["verdict"])


def test_test_prompts_have_no_part_in_the_choice(make):
    first = one(make("d" * 12, DEV, split="dev"))
    later = one(make("e" * 12, TEST, cost=lambda rows: 50.0 / rows, split="test"))
    assert later.choice == first.choice and later.costs.prompts == set(DEV)
    assert load_advice(find_folder(later)).set_index("arm").loc["ddtree-4", "difference"] > 1


def test_one_prompt_tells_nothing_apart_and_flatters(make):
    found = one(make("a" * 12, dict(list(DEV.items())[:1])))
    assert not found.choice.told and found.choice.tied == (found.choice.best,) and not found.subject.halves.apart
    assert found.choice.best == max(BUDGETS, key=lambda budget: brute(["code-d0"], budget, stairs(1 + budget)))
    said = " ".join(sentences(found))
    assert "too few to tell others apart" in said and "which flatters" in said and "all prompts (1 prompt)" in said
    assert "dev" not in advice(find_folder(found))


def find_folder(found) -> Path:
    return found.subject.timed[0].folder.parents[1]


def test_a_chain_that_is_faster_is_taken(make):
    make("d" * 12, DEV, chain=0.5, split="dev")
    found = one(make("e" * 12, TEST, chain=0.5, split="test"))
    assert found.choice.take == "dflash"
    assert sentences(found)[0].startswith("Take DFlash (method=dflash): on the dev half")


def test_no_draft_is_taken_where_none_pays(make):
    def dear(rows: int) -> float:
        return 40.0 + rows

    make("d" * 12, DEV, cost=dear, chain=40.0, split="dev")
    found = one(make("e" * 12, TEST, cost=dear, chain=40.0, split="test"))
    assert found.choice.take == AR and sentences(found)[0].startswith("Take no draft")


def test_what_is_worth_measuring_is_named(make):
    make("d" * 12, DEV, (4, 8, 64), cost=lambda rows: 2 + 0.002 * rows, split="dev")
    found = one(make("e" * 12, TEST, (4, 8), cost=lambda rows: 2 + 0.002 * rows, split="test"))
    assert found.choice.best == 64 and found.worth_measuring is None and found.may_be_faster == (128,)
    assert "128 was not timed and may be faster" in " ".join(sentences(found))
    few = one(find_folder(found), arms=["ddtree-4", "ddtree-8"])
    assert few.costs.budgets == (4, 8) and few.may_be_faster == (16, 32, 64, 128)
    steep = make("f" * 12, DEV, (4, 64), cost=lambda rows: 1.5 + 0.1 * rows, seed=3)
    (other,) = advise([cell for cell in find_cells(steep) if cell.cell_id == "f" * 12])
    budget, ratio = other.worth_measuring
    assert 4 < budget < 64 and ratio > 1.01 and not other.may_be_faster
    said = " ".join(sentences(other))
    assert f"budget={budget} measures it" in said and "No larger budget than those timed can be faster" in said


def test_how_far_a_straight_line_misses_is_said(halves):
    misses = one(halves).costs.misses
    expected = np.interp(16, [8, 32], [stairs(9), stairs(33)]) / stairs(17) - 1
    assert misses[16] == pytest.approx(expected) and set(misses) == set(BUDGETS[1:-1])
    assert "left out in turn" in advice(halves)


def test_an_invalid_arm_has_no_part(make):
    make("d" * 12, DEV, split="dev", statuses={"ddtree-16": "invalid", "ddtree-32": "failed"})
    found = one(make("e" * 12, TEST, split="test"))
    assert found.costs.budgets == (4, 8, 64, 128)
    table = pd.DataFrame(rows(found)).set_index("arm")
    assert table.loc["ddtree-16", "cost_from"] == "interpolated" and table.loc["ddtree-16", "n_measured"] == len(TEST)


def test_the_replay_may_be_of_another_machine_but_not_of_another_text(make):
    make("d" * 12, DEV | TEST, (), chain=None, tp=2)
    results = make("e" * 12, DEV | TEST, replay=False, concurrency=4)
    found = one(results)
    assert found.subject.others == ("tp 2", "concurrency 1") and found.subject.row.concurrency == 4
    assert "The replay is from tp 2, concurrency 1" in advice(results) and "concurrency 4" in advice(results)


def test_an_arm_that_no_replay_tells_stands_beside_as_measured(make):
    make("d" * 12, DEV, seeded=True, split="dev")
    results = make("e" * 12, TEST, seeded=True, split="test")
    row = load_advice(results).set_index("arm").loc["ddtree-23-chain"]
    assert row["measured_speedup"] > 1 and row["cost"] == pytest.approx(2.5)
    assert np.isnan(row["speedup"]) and np.isnan(row["difference"]) and row["verdict"] == ""
    assert one(results).costs.budgets == BUDGETS and "ddtree-23-chain" in advice(results)
    (found,) = pictures(results, only=["advice"])
    assert "DDTree chain" in [text.get_text() for text in found.figure.legends[0].get_texts()]


def test_few_timed_prompts_are_enough_for_costs_but_say_less(make):
    make("b" * 12, DEV | TEST, (), chain=None)
    results = make("e" * 12, DEV, chain=None, replay=False, noise=0.1, limit=8)
    found = one(results)
    assert {*found.dev.prompts, *found.test.prompts} == {*DEV, *TEST}
    assert 1 < len(found.costs.prompts) < len(found.dev.prompts) and found.costs.prompts < set(DEV)
    logs = log_speeds(found.dev, found.costs, "ddtree-16", 16)
    assert np.exp(logs.mean()) == pytest.approx(found.speed_b[15])
    parts, timed = found.costs.parts("ddtree-16", found.dev.prompts), found.costs.logs.loc["ddtree-16"].to_numpy()
    assert parts.mean() == pytest.approx(timed.mean())
    assert parts.std() / len(parts) ** 0.5 == pytest.approx(timed.std() / len(timed) ** 0.5)  # the same standard error
    table = load_advice(results).set_index("arm")
    assert table.loc["ddtree-16", ["round_s", "speedup"]].gt(0).all()


def test_texts_that_are_not_the_targets_are_not_replayed(make):
    results = make("d" * 12, DEV, statuses={AR: "invalid"})
    with pytest.raises(Refusal, match="no advice without a replay"):
        load_advice(results)


def test_without_a_replay_there_is_no_advice(make, capsys):
    results = make("d" * 12, DEV, replay=False)
    with pytest.raises(Refusal, match="no advice without a replay: replay=1024"):
        load_advice(results)
    assert main(["advise", str(results)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert "Which budget to take" not in report(results)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"model": "other", "target": "elsewhere"}, "it has model=tiny, the timed trees model=other"),
        (
            {"drafter": "elsewhere"},
            "it has model.drafter=builtin:tiny/drafter, the timed trees model.drafter=elsewhere",
        ),
        ({"temperature": 1.0}, "temperature=0.0, the timed trees temperature=1.0"),
        ({"workload": "chat"}, "workload=smoke, the timed trees workload=chat"),
    ],
)
def test_a_replay_of_another_text_is_refused(make, settings, said):
    make("d" * 12, DEV, (), chain=None)
    results = make("e" * 12, DEV, replay=False, **settings)
    with pytest.raises(Refusal, match=said):
        load_advice(results)


def test_trees_that_were_not_timed_or_not_replayed_are_refused(make):
    results = make("d" * 12, DEV, ())
    with pytest.raises(Refusal, match="no advice without timed trees"):
        load_advice(results)
    make("e" * 12, DEV, (2 * LARGEST,), seed=1)
    (cell,) = [cell for cell in find_cells(results) if cell.cell_id == "e" * 12]
    with pytest.raises(Refusal, match="no budget up to that has sound times"):
        advise([cell])


def test_concurrencies_and_sizes_have_advice_of_their_own(make):
    make("d" * 12, DEV | TEST)
    results = make("e" * 12, DEV | TEST, cost=lambda rows: rows / 2, concurrency=8)
    first, second = advise(find_cells(results))
    assert first.subject.row.concurrency == 1 and second.subject.row.concurrency == 8
    assert second.choice.best < first.choice.best
    assert load_advice(results).groupby("concurrency").size().to_dict() == {1: LARGEST + 2, 8: LARGEST + 2}


def test_the_command_prints_it_in_every_form(halves, capsys):
    for form in ("terminal", "markdown", "latex", "csv"):
        assert main(["advise", str(halves), "--format", form]) == 0
        said = capsys.readouterr().out
        if form == "csv":
            table = pd.read_csv(io.StringIO(said))
            assert len(table) == LARGEST + 2 and {"tokens_per_s", "tpot_s", "speedup", "measured_speedup"} <= set(table)
        else:
            assert "Take budget" in said and "autoregressive" in said and "dflash" in said and "ddtree-23" not in said
    assert max(map(len, advice(halves).splitlines())) <= 120


def test_the_picture_is_for_print(make, halves):
    """At two columns' width, no letter below 7 points, nothing beyond the edge, no label on another."""
    make("b" * 12, DEV | TEST, (16, 32, 64), cost=lambda rows: 2 + rows / 20, noise=0.1, concurrency=8)
    (found,) = pictures(halves, only=["advice"])
    figure = found.figure
    figure.draw_without_rendering()
    assert figure.get_figwidth() == PAGE and figure.get_figheight() <= 9.5
    texts = visible(figure)
    assert min(text.get_fontsize() for text in texts) >= SMALL
    edge = figure.bbox.padded(1)
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts if text.get_rotation() % 90 == 0]
    assert all(edge.x0 <= b.x0 and edge.y0 <= b.y0 and b.x1 <= edge.x1 and b.y1 <= edge.y1 for _, b in boxes)
    for (said, box), (other, its) in itertools.combinations(boxes, 2):
        assert not box.padded(-1).overlaps(its.padded(-1)), (said, other)
    assert found.table["concurrency"].nunique() == 2
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert {"concurrency 1", "concurrency 8", "budget to take"} <= set(labels)


def test_the_picture_and_the_report_have_it(halves):
    (found,) = pictures(halves, only=["advice"])
    assert len(found.table) == LARGEST + 2 and found.caption.startswith("Speed-up over AR for every budget")
    left, right = found.figure.axes
    assert left.get_ylabel() == "speed-up over AR" and right.get_yscale() == "log"
    labels = [text.get_text() for text in found.figure.legends[0].get_texts()]
    assert labels == ["predicted", "timed", "DFlash", "budget to take"]
    page = report(halves)
    assert "Which budget to take" in page and 'href="#advice"' in page and "Take budget" in page
