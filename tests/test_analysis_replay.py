"""What follows from a replay: rounds, the curve over budgets with its intervals, drafters held against each other."""

from __future__ import annotations

import json
import math
import random

import numpy as np
import pytest
from records_fixture import AR, record, write_cell

from analysis import load_acceptance, load_curve, load_replay, load_runs
from analysis.__main__ import main
from analysis.records import find_cells
from analysis.replay import PAPER_BUDGETS, Replayed, count_rounds, replay_rounds, replays_of
from analysis.replay_pairs import load_drafter_differences
from analysis.replay_table import load_differences
from harness.records import fold
from methods.ddtree import DDTree
from methods.dflash import DFlash

MADE = {f"code-{n}": "code" for n in (1, 2, 3)} | {f"math-{n}": "math" for n in (1, 2, 3)}
BUDGET = 1024
TOKENS = 40


def made(seed: int, drafter: int = 0) -> dict:
    """A line of replay.jsonl with places drawn at random; a drafter of more skill has them earlier."""
    drawn, places, chain = random.Random(seed), [], []
    for root in range(TOKENS - 1):
        held, place = [], 0
        for _ in range(min(15, TOKENS - 1 - root)):
            place += max(1, int(drawn.paretovariate(0.4 + 0.3 * drafter)))
            if place > BUDGET:
                break
            held.append(place)
        places.append(held)
        chain.append(drawn.randint(0, min(3, len(held))))
    return {"output_ids": list(range(TOKENS)), "budget": BUDGET, "places": places, "chain": chain}


def line(cell_id: str, prompt: str, **changes) -> dict:
    replay = made(list(MADE).index(prompt), changes.pop("skill", 0))
    keys = {"cell_id": cell_id, "sitting": 0, "prompt_id": prompt, "turn": 0, "category": MADE[prompt], "n_input": 3}
    return {**keys, **replay, "finish_reason": "length", "replay_s": 1.0, "started_utc": "2026-11-29", **changes}


def answer(cell_id: str, prompt: str, arm: str = AR, **changes) -> dict:
    rounds = changes.pop("rounds", [[0, 1, ""]] * (TOKENS - 1))
    return record(arm, prompt, 0, cell_id=cell_id, rounds=rounds, output_ids=list(range(TOKENS)), **changes)


def cell(results, cell_id: str, arms: tuple[str, ...] = (AR,), skill: int = 0, torn: bool = False, **settings):
    """A cell whose AR texts were replayed; other arms have the rounds that the replay says."""
    lines, replays = [], [line(cell_id, prompt, skill=skill) for prompt in MADE]
    methods = {method.arm: method for method in (DFlash(), *map(DDTree, (16, 64)))}
    for replay in map(Replayed.of, replays):
        lines.append(answer(cell_id, replay.prompt_id))
        for arm in arms[1:]:
            rounds = [list(one) for one in replay.rounds(methods[arm])]
            lines.append(answer(cell_id, replay.prompt_id, arm, rounds=rounds))
    statuses = dict.fromkeys(arms, "complete")
    folder = write_cell(results, cell_id, [lines], statuses, {}, repeats=1, **settings)
    fold(folder)
    text = "".join(json.dumps(replay) + "\n" for replay in replays) + ('{"cell_id": "to' if torn else "")
    (folder / "sittings/0/replay.jsonl").write_text(text)
    return folder


@pytest.fixture
def results(tmp_path):
    cell(tmp_path / "results", "a" * 12, torn=True)
    return tmp_path / "results"


def brute(places, budget, finish):
    """The definition: from root to root, the deepest place within the budget."""
    root, done = 0, []
    while root < len(places):
        accepted = max((d for d, place in enumerate(places[root], start=1) if place <= budget), default=0)
        left = len(places) - root
        done.append((accepted, accepted + 1, "") if accepted < left else (left, left, finish))
        root += done[-1][1]
    return done


@pytest.mark.parametrize("finish", ["length", "stop"])
def test_rounds_follow_from_places(finish):
    for seed in range(20):
        places = made(seed)["places"]
        for budget in (1, 2, 3, 16, 100, 1024):
            rounds = replay_rounds(places, budget, finish)
            assert rounds == brute(places, budget, finish)
            assert 1 + sum(one.emitted for one in rounds) == TOKENS


def test_a_text_that_its_draft_holds_to_the_end_is_cut():
    whole = [(1, 2, 3), (1, 2), (1,)]
    assert replay_rounds(whole, 3, "stop") == [(3, 3, "stop")]
    assert replay_rounds(whole, 2, "stop") == [(2, 3, "")]  # the bonus ends the text
    assert replay_rounds(whole, 1, "length") == [(1, 2, ""), (1, 1, "length")]
    assert replay_rounds([], 16) == []


def test_all_budgets_walk_at_once_as_one_by_one():
    for seed in range(5):
        replayed = Replayed.of(line("c", "code-1", **made(seed)))
        accepted, uncut, rounds = count_rounds(replayed, BUDGET)
        for budget in (1, 2, 5, 64, 777, 1024):
            done = replay_rounds(replayed.places, budget)
            kept = [one.accepted for one in done if not one.cut]
            found = accepted[budget - 1], uncut[budget - 1], rounds[budget - 1]
            assert found == (sum(kept), len(kept), len(done))


def test_roots_are_rows(results):
    roots = load_replay(results)
    assert len(roots) == len(MADE) * (TOKENS - 1)
    first = roots.iloc[1]
    assert (first["root"], first["position"], first["token"], first["left"]) == (1, 4, 1, TOKENS - 2)
    assert first["places"] == made(0)["places"][1] and first["chain"] == made(0)["chain"][1]


def test_the_curve_holds_the_rows_of_runs(results):
    curve = load_curve(results).set_index("budget")
    assert list(curve.index) == list(range(1, BUDGET + 1)) and curve["n_prompts"].eq(len(MADE)).all()
    runs = load_runs(results).set_index("budget")
    assert (curve["acceptance_length_low"] <= curve["acceptance_length"]).all()
    assert (curve["acceptance_length"] <= curve["acceptance_length_high"]).all()
    for name in ("acceptance_length", "acceptance_length_low", "acceptance_length_high", "tokens_per_round"):
        np.testing.assert_allclose(
            curve.loc[list(PAPER_BUDGETS), name], runs.loc[list(PAPER_BUDGETS), name], rtol=1e-12
        )
    by_category = load_curve(results, by="category")
    assert by_category["category"].value_counts().to_dict() == {"code": BUDGET, "math": BUDGET}
    assert by_category["n_prompts"].eq(3).all()


def test_depths_and_figures_of_replayed_arms_agree(results):
    runs = load_runs(results).set_index("arm")
    rates = load_acceptance(results).groupby("arm")["marginal"].sum()
    for arm in ("dflash", "ddtree-64", "ddtree-1024"):
        assert 1 + rates[arm] == pytest.approx(runs.loc[arm, "acceptance_length"])
    assert (runs["source"] == "replayed").sum() == 1 + len(PAPER_BUDGETS)
    assert runs.loc["ddtree-64", "n_output"] == len(MADE) * TOKENS


def test_an_invalid_text_makes_invalid_rows(tmp_path):
    folder = cell(tmp_path / "results", "b" * 12)
    stored = json.loads((folder / f"arms/{AR}.json").read_text())
    (folder / f"arms/{AR}.json").write_text(json.dumps({**stored, "status": "invalid"}))
    assert load_runs(tmp_path / "results")["status"].eq("invalid").all()


def test_differing_rounds_are_counted_where_they_start(tmp_path):
    folder = cell(tmp_path / "results", "c" * 12, (AR, "dflash", "ddtree-64"))
    found = load_differences(tmp_path / "results").set_index("arm")
    assert (
        found["n_differing"].eq(0).all() and (found["acceptance_length_replayed"] == found["acceptance_length"]).all()
    )
    file = folder / "sittings/0/requests.jsonl"
    lines = [json.loads(one) for one in file.read_text().splitlines()]
    changed = next(one for one in lines if one["arm"] == "ddtree-64" and one["rounds"][0][0])
    replayed = next(one for one in replays_of(find_cells(folder)[0]) if one.prompt_id == changed["prompt_id"])
    rest = [list(one) for one in replay_rounds(replayed.places[1:], 64)]
    changed["rounds"] = [[0, 1, ""], *rest]  # a near tie fell otherwise: the first round accepted nothing
    other = next(one for one in lines if one["arm"] == "dflash")
    other["output_ids"] = [9] * TOKENS
    file.write_text("".join(json.dumps(one) + "\n" for one in lines))
    fold(folder)
    found = load_differences(tmp_path / "results").set_index("arm")
    assert found["n_differing"].to_dict() == {"dflash": 0, "ddtree-64": 1}
    assert found["n_other_text"].to_dict() == {"dflash": 1, "ddtree-64": 0}
    assert found.loc["ddtree-64", "acceptance_length"] != found.loc["ddtree-64", "acceptance_length_replayed"]


def test_drafters_are_paired_on_the_same_texts(tmp_path):
    results = tmp_path / "results"
    cell(results, "d" * 12, drafter="plain")
    cell(results, "e" * 12, drafter="skilled", skill=3)
    cell(results, "f" * 12, drafter="skilled", skill=3, temperature=1.0)  # another text
    paired = load_drafter_differences(results).set_index("budget")
    assert set(paired["other_cell_id"]) == {"e" * 12} and len(paired) == BUDGET
    curves = load_curve(results).set_index(["cell_id", "budget"])["acceptance_length"]
    at = paired.loc[64]
    assert at["difference"] == pytest.approx(curves["e" * 12, 64] - curves["d" * 12, 64])
    assert 0 < at["difference_low"] < at["difference"] < at["difference_high"]


def test_the_command_prints_what_there_is(tmp_path, capsys):
    results = tmp_path / "results"
    cell(results, "d" * 12, (AR, "ddtree-16"), drafter="plain")
    cell(results, "e" * 12, drafter="skilled", skill=3)
    assert main(["replay", str(results)]) == 0
    said = capsys.readouterr().out
    assert "ddtree-1024" in said and "0 of " in said and "skilled less plain, paired" in said
    assert main(["replay", str(results), "--by", "category"]) == 0
    assert " · math · " in capsys.readouterr().out
    assert main(["table", str(results)]) == 0
    assert "replayed" in capsys.readouterr().out


def test_nothing_replayed_is_said(tmp_path, capsys):
    write_cell(tmp_path / "results", "a" * 12, [[answer("a" * 12, "code-1")]], {AR: "complete"}, {})
    assert load_curve(tmp_path / "results").empty and load_replay(tmp_path / "results").empty
    assert load_drafter_differences(tmp_path / "results").empty and load_differences(tmp_path / "results").empty
    assert main(["replay", str(tmp_path / "results")]) == 2
    assert "holds no replay" in capsys.readouterr().err


def test_a_text_of_one_token_has_no_rounds(tmp_path):
    results = tmp_path / "results"
    one = line("a" * 12, "code-1", output_ids=[5], places=[], chain=[])
    said = answer("a" * 12, "code-1", rounds=[])
    folder = write_cell(results, "a" * 12, [[said | {"output_ids": [5], "tpot_s": None}]], {AR: "complete"}, {})
    (folder / "sittings/0/replay.jsonl").write_text(json.dumps(one) + "\n")
    assert load_replay(results).empty
    assert math.isnan(load_curve(results)["acceptance_length"].iloc[0])
    assert load_runs(results).set_index("arm")["acceptance_length"].isna().all()
