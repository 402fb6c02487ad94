"""Two cells side by side: what is paired, the ratios, what changed, what is refused."""

import csv
import io
import json
import shutil

import pytest
from records_fixture import AR, CELL, PROMPTS, make_results, sentinel, timed, write_cell
from rich.console import Console

from analysis.__main__ import main
from analysis.changed import changed
from analysis.compare import compare, compare_tables, print_comparison
from analysis.pairing import acceptance_difference, counted, matched, ratio
from analysis.records import find_cells
from methods.base import Refusal

ARMS = [AR, "dflash", "ddtree-16"]
GOLDEN = """\
| arm | prompts | TPOT (ms) A | TPOT (ms) B | TPOT (ms) B / A | speed-up A | speed-up B | speed-up B / A | τ A | τ B \
| τ B − A | other outputs | state |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |
| autoregressive | 6 | 11.31 | 5.65 | 0.500 [0.500, 0.500] | 1.00 | 1.00 | – | 1.00 | 1.00 | 0.00 [0.00, 0.00] \
| 0 of 12 | complete |
| dflash | 6 | 6.08 | 3.80 | 0.625 [0.625, 0.625] | 1.86 | 1.49 | 0.800 [0.800, 0.800] | 2.00 | 2.00 \
| 0.00 [0.00, 0.00] | 0 of 12 | complete |
| ddtree-16 | 6 | 4.56 | 2.28 | 0.500 [0.500, 0.500] | 2.48 | 2.48 | 1.000 [1.000, 1.000] | 3.00 | 3.00 \
| 0.00 [0.00, 0.00] | 2 of 12 | complete |
"""


def cell(root, lines, cell_id=CELL, arms=ARMS, **settings):
    lines = [line | {"cell_id": cell_id} for line in lines]
    return write_cell(root, cell_id, [lines], dict.fromkeys(arms, "complete"), {}, **settings)


def scaled(lines, factors, default=1.0):
    for line in lines:
        factor = factors.get(line["arm"], default)
        line.update(tpot_s=line["tpot_s"] * factor, decode_s=line["decode_s"] * factor)
    return lines


def environment(folder, **facts):
    file = folder / "sittings/0/environment.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | facts))


@pytest.fixture
def pair(tmp_path):
    """B is twice as fast, its DFlash less so, and answers one prompt of ddtree-16 otherwise."""
    cell(tmp_path / "a", timed(ARMS))
    lines = scaled(timed(ARMS), {"dflash": 0.625}, 0.5)
    for line in lines:
        if line["arm"] == "ddtree-16" and line["prompt_id"] == "code-2":
            line["output_ids"] = [*line["output_ids"][:-1], 1]
    cell(tmp_path / "b", lines, "b1b2c3d4e5f6", dtype="bfloat16")
    return tmp_path / "a", tmp_path / "b"


def test_the_table(pair):
    text = compare(*pair, format="markdown")
    assert GOLDEN in text and text.startswith(
        "**tiny · smoke · reference · tp 1 · cpu · T 0 · B b/b1b2c3d4e5f6 over A a/"
    )
    assert "| dtype | auto | bfloat16 |" in text


def test_two_cells_of_one_folder_and_a_cell_with_itself(pair):
    a, b = pair
    apart = compare(a, b, format="csv")
    shutil.copytree(b / "cells/b1b2c3d4e5f6", a / "cells/b1b2c3d4e5f6")
    ratios = (
        [row["tpot_ratio"] for row in csv.DictReader(io.StringIO(text))] for text in (apart, compare(a, format="csv"))
    )
    assert next(ratios) == next(ratios)
    (same, changes) = compare_tables(a / "cells" / CELL, a / "cells" / CELL)
    assert all(row[4] == "1.000 [1.000, 1.000]" for row in same.rows) and changes.rows == ()


def test_only_the_same_prompts_are_paired(tmp_path):
    cell(tmp_path / "a", timed(ARMS))
    lines = timed(ARMS)
    for line in lines:
        if line["prompt_id"] in ("code-1", "math-3"):
            line["prompt_ids"] = [9, 9]
    cell(tmp_path / "b", [line for line in lines if line["prompt_id"] != "code-2"])
    (one, _) = compare_tables(tmp_path / "a", tmp_path / "b")
    assert [row[1] for row in one.rows] == ["3"] * 3
    assert "3 prompts are in both, of 6 in A and 5 in B." in one.note


def test_intervals_are_over_prompts_and_turns_stay_together(tmp_path):
    lines = timed(ARMS)
    for line in lines:
        line["tpot_s"] *= 1 + 0.1 * list(PROMPTS).index(line["prompt_id"])
    cell(tmp_path / "a", timed(ARMS))
    cell(tmp_path / "b", lines)
    first, second = (counted(found) for side in "ab" for found in find_cells(tmp_path / side))
    both = matched(first, second)
    once = ratio(both[both["arm"] == "dflash"])
    turns = ratio(
        matched(*(side.loc[side.index.repeat(2)].assign(turn=[0, 1] * len(side)) for side in (first, second)))
    )
    assert once.n == turns.n == 6 and once.low < once.point < once.high
    assert turns.point == pytest.approx(once.point) and turns.low == pytest.approx(once.low)


def test_the_difference_of_acceptance_lengths(tmp_path):
    cell(tmp_path / "a", timed(ARMS))
    lines = timed(ARMS)
    for line in lines:
        if line["arm"] == "dflash" and line["category"] == "code":
            line["rounds"] = [[0, 1, ""]] * 29
    cell(tmp_path / "b", lines)
    first, second = (counted(found) for side in "ab" for found in find_cells(tmp_path / side))
    both = matched(first, second)
    found = acceptance_difference(both[both["arm"] == "dflash"])
    of_b = 1 + 84 / (84 + 3 * 2 * 29)  # math: 14 uncut rounds of one token, 6 requests; code: 29 of none
    assert found.point == pytest.approx(of_b - 2) and found.low < found.point < found.high < 0


def test_arms_that_are_not_sound_are_marked_and_keep_their_figures(tmp_path):
    root = make_results(tmp_path) / "cells"
    drifting = cell(tmp_path / "b", timed([AR, "dflash", "ddtree-256"]) + sentinel(0, (1, 1, 1.2)), arms=ARMS)
    shutil.copy(root / CELL / "arms/ddtree-256.json", drifting / "arms/ddtree-256.json")
    (one, _) = compare_tables(root / CELL, drifting)
    rows = {row[0]: row[1:] for row in one.rows}
    assert rows["dflash"][-1] == "drifted in B" and rows["dflash"][3].startswith("1.000")
    assert rows["ddtree-256"][-1] == "INVALID in A and B" and set(rows["ddtree-256"][1:-1]) == {"–"}
    assert "Only in A: ddtree-64, ddtree-1024." in one.note
    numbers = {row["arm"]: row for row in csv.DictReader(io.StringIO(compare(root / CELL, drifting, "csv")))}
    assert not numbers["ddtree-256"]["tpot_ratio"] and numbers["dflash"]["tpot_ratio"]


def test_folders_are_paired_cell_by_cell(tmp_path):
    places = [(w, t) for w in ("chat", "code") for t in (0.0, 1.0)]
    for side, tp in (("a", 1), ("b", 2)):
        for number, (workload, temperature) in enumerate(places):
            settings = {"workload": workload, "temperature": temperature, "tp": tp}
            cell(tmp_path / side, timed(ARMS), f"{side * 4}{number:08x}", **settings)
    cell(tmp_path / "b", timed(ARMS), "ffff00000000", tp=4, temperature=0.5)
    tables = compare_tables(tmp_path / "a", tmp_path / "b")
    assert len(tables) == 5 and ("tp", "1", "2") in tables[-1].rows
    for number, one in enumerate(tables[:4]):
        assert f"bbbb{number:08x} over A a/aaaa{number:08x}" in one.heading
    assert "Cells only in B, or differing in more: ffff00000000." in tables[3].note


def test_what_changed(pair):
    a, b = (find_cells(side)[0] for side in pair)
    environment(a.folder, git={"commit": "1" * 40, "dirty": False}, packages={"torch": "2.13"}, cpu="one", gpus=[])
    gpu = {"name": "H200", "memory_bytes": 150, "uuid": "GPU-1"}
    environment(
        b.folder, git={"commit": "2" * 40, "dirty": False}, packages={"torch": "2.14"}, cpu="one", gpus=[gpu] * 2
    )
    found = changed(a, b)
    assert {name: values for name, *values in found.differing} == {
        "dtype": ["auto", "bfloat16"],
        "GPUs": ["none", "2 × H200"],
        "git commit": ["1" * 12, "2" * 12],
        "packages torch": ["2.13", "2.14"],
    }
    assert found.one_sided == ("GPU memory_bytes",)


def test_what_does_not_pair_is_refused(pair, tmp_path, capsys):
    lines = [line | {"prompt_ids": [1]} for line in timed(ARMS)]
    cell(tmp_path / "other", lines)
    with pytest.raises(Refusal, match="no arm was asked the same prompt"):
        compare(pair[0], tmp_path / "other")
    assert main(["compare", str(pair[0]), str(tmp_path / "other")]) == 2
    assert main(["compare", str(pair[0])]) == 2
    assert capsys.readouterr().err.count("\n") == 2


def test_every_form_and_every_width(pair, capsys):
    for form in ("markdown", "csv", "latex"):
        assert main(["compare", *map(str, pair), "--format", form]) == 0
        assert "ddtree-16" in capsys.readouterr().out
    tables = compare_tables(*pair)
    for width in (80, 120, 200):
        text = io.StringIO()
        print_comparison(*pair, Console(file=text, width=width, highlight=False))
        assert max(map(len, text.getvalue().splitlines())) <= width
        assert all(cell in text.getvalue() for one in tables for row in one.rows for cell in row)


def test_simulated_acceptance_is_never_held_against_measured(tmp_path):
    cell(tmp_path / "a", timed(ARMS))
    cell(tmp_path / "b", timed(ARMS), "b1b2c3d4e5f6", simulate_acceptance=3.5)
    with pytest.raises(Refusal, match="cannot be compared"):
        compare(tmp_path / "a", tmp_path / "b")


def test_unlike_verification_is_told(tmp_path):
    cell(tmp_path / "a", timed(ARMS))
    folder = cell(tmp_path / "b", timed(ARMS), "b1b2c3d4e5f6", temperature=1.0)
    for file in (folder / "arms").glob("d*.json"):
        file.write_text(json.dumps(json.loads(file.read_text()) | {"verify": "rejection"}))
    assert "unlike ways (exact and rejection)" in compare(tmp_path / "a", tmp_path / "b", "markdown")
