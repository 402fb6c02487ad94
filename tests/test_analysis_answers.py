"""Right answers, parts of workloads and turns of conversations, in frames and tables; lines from before these were."""

import json
import math
from pathlib import Path

import pytest
from records_fixture import AR, CELL, timed, write_cell

from analysis import load_runs
from analysis.tables import summary_tables, table


def make(root: Path, lines: list[dict]) -> Path:
    """A results folder of one cell with AR and DFlash."""
    write_cell(root / "results", CELL, [lines], dict.fromkeys([AR, "dflash"], "complete"), {})
    return root / "results"


def test_accuracy_and_the_part_that_was_asked(tmp_path):
    lines = timed([AR, "dflash"])
    for line in lines:
        if line["category"] == "math":
            line["correct"] = line["prompt_id"] != "math-1"
    results = make(tmp_path, lines)
    runs = load_runs(results)
    assert set(runs["n_scored"]) == {3} and runs["accuracy"].tolist() == pytest.approx([2 / 3] * 2)
    assert runs[["workload", "suite", "split"]].iloc[0].tolist() == ["smoke", "smoke", "all"]
    assert runs["context"].isna().all() and set(runs["n_turns"]) == {6}
    by_category = load_runs(results, by="category").set_index(["arm", "category"])
    assert by_category.loc[(AR, "code"), "n_scored"] == 0 and math.isnan(by_category.loc[(AR, "code"), "accuracy"])

    file = results / "cells" / CELL / "cell.json"
    content = json.loads(file.read_text())
    content["settings"] |= {"split": "dev", "context": 4096}
    file.write_text(json.dumps(content | {"workload_name": "smoke:dev:context=4096"}))
    (row, _) = load_runs(results)[["workload", "suite", "split", "context"]].to_numpy().tolist()
    assert row == ["smoke:dev:context=4096", "smoke", "dev", 4096]


def test_right_answers_stand_beside_speed(tmp_path):
    lines = timed([AR, "dflash"])
    for line in lines:
        if line["category"] == "math":
            line["correct"] = line["prompt_id"] != "math-1"
    results = make(tmp_path, lines)
    (plain,) = summary_tables(results)
    assert plain.note.endswith("\nRight answers: 66.7 % of 3 prompts in every arm.")
    (accuracy,) = summary_tables(results, view="accuracy")
    assert [column.title for column in accuracy.columns][1:3] == ["scored prompts", "accuracy"]
    assert [row[1:3] for row in accuracy.rows] == [("3", "66.7 %")] * 2
    assert "\nRight answers: math 66.7 % of 3 prompts in every arm." in summary_tables(results, by="category")[0].note
    assert ",0.6666666666666666," in table(results, "csv", view="accuracy")


def test_right_answers_that_differ_between_arms_are_named(tmp_path):
    lines = timed([AR, "dflash"])
    for line in lines:
        line["correct"] = line["category"] != "math" or line["arm"] == AR
    (by_category,) = summary_tables(make(tmp_path, lines), by="category")
    assert f"{AR} (math) 100.0 % of 3 prompts, dflash (math) 0.0 % of 3 prompts" in by_category.note
    assert "code 100.0 % of 3 prompts in every arm" in by_category.note


def test_the_turns_of_conversations_are_no_repeats(tmp_path):
    lines = [one | {"turn": turn} for turn in (0, 1) for one in timed([AR, "dflash"])]
    assert summary_tables(make(tmp_path, lines))[0].note.startswith("6 prompts of 12 turns, 2 repeats;")
