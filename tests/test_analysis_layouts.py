"""Cells side by side: the papers' layout, budget choice, the sweep, categories, sizes, published numbers."""

import csv
import io
import json
import math
import shutil
import subprocess

import pandas as pd
import pytest
from records_fixture import AR, CELL, make_results, sentinel, timed, write_cell
from rich.console import Console

from analysis import load_runs
from analysis.__main__ import main
from analysis.columns import MEASURED, rows_of
from analysis.layouts import _figures
from analysis.published import load_published
from analysis.tables import print_summary, summary_tables, table, tables_of
from methods.base import Refusal

PAPER = """\
**T 0 · tiny · reference · tp 1 · cpu · float32**

| method | smoke speed-up | smoke τ |
| --- | ---: | ---: |
| autoregressive | 1.00 (11.31 ms) | 1.00 |
| dflash | 1.86 [1.54, 2.18] | 2.00 [2.00, 2.00] |
| ddtree-16 | 2.48 [2.05, 2.90] | 3.00 [3.00, 3.00] |
| ddtree-64 | 3.10 [2.56, 3.63] | 4.00 [4.00, 4.00] |
| ddtree-256 | INVALID | – |
| ddtree-1024 | failed | – |
| ddtree, best* | 3.10 [2.56, 3.63] @64 | 4.00 [4.00, 4.00] |

Speed-up: geometric mean of per-prompt TPOT ratios [95 % interval over prompts], over AR in the same cell (with AR's \
TPOT); τ: acceptance length, pooled over uncut rounds [95 % interval over prompts].
Prompts: smoke 6; at most 30 new tokens.
best*: best of the same data, the budget (@) that is fastest by the very figure shown, as in the DDTree paper; that \
flatters, and the interval does not know of the choice.
INVALID: 1 violation (ddtree-256 on smoke, T 0).
failed: out of memory (ddtree-1024 on smoke, T 0).
–: not measured, or hidden.
"""
CATEGORIES = """\
| arm | all speed-up | all τ | code speed-up | code τ | math speed-up | math τ |
| --- | ---: | ---: | ---: | ---: | ---: | ---: |
| autoregressive | 1.00 (11.31 ms) | 1.00 | 1.00 (10.55 ms) | 1.00 | 1.00 (12.06 ms) | 1.00 |
| dflash | 1.86 [1.54, 2.18] | 2.00 [2.00, 2.00] | 1.65 [1.31, 2.06] | 2.00 [2.00, 2.00] | 2.10 [1.75, 2.50] |\
 2.00 [2.00, 2.00] |
"""
LAYOUTS = ("paper", "budgets", "categories")


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    return make_results(tmp_path_factory.mktemp("shared"))


def add_cell(root, cell_id, lines, arms=(AR, "dflash", "ddtree-16", "ddtree-64"), name=None, **settings):
    """A cell of complete arms; `name` is the workload with its part."""
    lines = [line | {"cell_id": cell_id} for line in lines]
    folder = write_cell(root, cell_id, [lines], dict.fromkeys(arms, "complete"), {}, **settings)
    file = folder / "cell.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"workload_name": name}))


def faster(lines, factors):
    for line in lines:
        factor = factors.get(line["arm"], 1.0)
        line.update(tpot_s=line["tpot_s"] / factor, decode_s=line["decode_s"] / factor)
    return lines


def halves(root, **settings):
    """Two halves of a workload: budget 64 is faster on dev, 16 on test."""
    arms = [AR, "dflash", "ddtree-16", "ddtree-64"]
    common = {"workload": "gsm8k", "model": "qwen3_8b", **settings}
    add_cell(root, "aaaa00000001", timed(arms), name="gsm8k:dev:limit=6", split="dev", **common)
    test = faster(timed(arms), {"ddtree-16": 2.0})
    add_cell(root, "aaaa00000002", test, name="gsm8k:test", split="test", **common)
    return root


def rows_by_name(one):
    return {row[one.names - 1]: row[one.names :] for row in one.rows}


def test_the_papers_layout(shared):
    assert table(shared / "cells" / CELL, "markdown", view="paper") == PAPER


def test_categories(shared):
    assert CATEGORIES in table(shared / "cells" / CELL, "markdown", view="categories")


def test_the_budget_is_chosen_on_dev_where_there_is_one(tmp_path):
    (one,) = summary_tables(halves(tmp_path / "results"), view="paper")
    rows = rows_by_name(one)
    assert [column.group for column in one.columns if column.group] == ["gsm8k:test"] * 2
    assert rows["ddtree, dev's best"][0] == f"{rows['ddtree-64'][0]} @64"
    assert "ddtree, best*" not in rows and "best*:" not in one.note and "dev half" in one.note
    assert float(rows["ddtree-16"][0].split()[0]) > float(rows["ddtree-64"][0].split()[0])


def test_a_dev_half_asked_otherwise_chooses_nothing(tmp_path):
    halves(tmp_path / "results")
    file = tmp_path / "results/cells/aaaa00000001/cell.json"
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content | {"settings": content["settings"] | {"temperature": 1.0}}))
    (one,) = summary_tables(tmp_path / "results", view="paper")
    assert any(row[1] == "ddtree, best*" and row[-2].endswith("@16") for row in one.rows)
    assert not any("dev's best" in cell for row in one.rows for cell in row)


def test_models_and_temperatures_go_down_and_workloads_across(tmp_path):
    arms = [AR, "dflash", "ddtree-16"]
    places = [(m, t, w) for m in ("qwen3_4b", "qwen3_8b") for t in (0.0, 1.0) for w in ("math500", "gsm8k")]
    for number, (model, temperature, workload) in enumerate(places[:-1]):
        settings = {"model": model, "temperature": temperature, "workload": workload}
        add_cell(tmp_path / "results", f"{number:012x}", timed(arms), arms, **settings)
    (one,) = summary_tables(tmp_path / "results", view="paper")
    assert [column.whole for column in one.columns] == [
        *("T", "model", "method", "gsm8k speed-up", "gsm8k τ", "math500 speed-up", "math500 τ")
    ]
    assert [row[:3] for row in one.rows][::3] == [
        *(("T 0", "qwen3_4b", AR), ("", "qwen3_8b", AR), ("T 1", "qwen3_4b", AR), ("", "qwen3_8b", AR))
    ]
    assert one.rows[-1][3:] == ("–", "–", "2.48 [2.05, 2.90]", "3.00 [3.00, 3.00]")
    assert len(summary_tables(tmp_path / "results", view="budgets")) == 4


def test_cells_that_would_stand_in_one_place_are_named(tmp_path):
    for seed, cell_id in enumerate(("abcdef000000", "fedcba000000")):
        add_cell(tmp_path / "results", cell_id, timed([AR, "dflash"]), [AR, "dflash"], seed=seed)
    (one,) = summary_tables(tmp_path / "results", view="paper")
    assert [row[0] for row in one.rows] == [
        f"{arm} ({cell})" for arm in (AR, "dflash") for cell in ("abcdef", "fedcba")
    ]
    assert "more than one has these settings" in one.note


def test_drifted_arms_are_marked_and_unfinished_ones(shared, tmp_path):
    arms = [AR, "dflash"]
    add_cell(tmp_path / "results", CELL, timed(arms) + sentinel(0, (1, 1.02, 1.08)), arms)
    (one,) = summary_tables(tmp_path / "results", view="paper")
    assert rows_by_name(one)["dflash"][0] == "1.86 [1.54, 2.18]†" and "†: the machine moved" in one.note
    unfinished = summary_tables(shared, view="paper")[1]
    assert rows_by_name(unfinished)["ddtree-64"][0].endswith("‡") and "‡: not finished" in unfinished.note


def test_a_single_workload_is_swept_by_category(shared):
    one = summary_tables(shared / "cells" / CELL, view="budgets")[0]
    assert [column.group for column in one.columns if column.title == "τ"] == ["smoke", "code", "math"]
    assert rows_by_name(one)["ddtree-16"][6:8] == ("4.31", "2.80 [2.34, 3.34]")


def test_replayed_rows_are_named_as_such(shared):
    runs = load_runs(shared / "cells" / CELL)
    replayed = runs[runs["arm"] == "ddtree-64"].assign(source="replay", speedup=math.nan, speedup_low=math.nan)
    frame = pd.concat([runs.assign(source=MEASURED), replayed], ignore_index=True)
    (one,) = tables_of(frame)
    assert [row[0] for row in one.rows][-1] == "ddtree-64 (replay)" and one.rows[-1][7] == "–"
    assert _figures(rows_of(replayed)[0]) == ("–", "4.00 [4.00, 4.00]")


def test_csv_has_the_numbers_and_none_of_hidden_arms(shared):
    for layout in LAYOUTS:
        rows = list(csv.DictReader(io.StringIO(table(shared, "csv", view=layout))))
        assert {"row", "column", "speedup_low", "acceptance_length_high", "n_prompts", "status"} <= set(rows[0])
        for row in rows:
            assert not row["speedup"] or row["status"] in ("complete", "pending")
        assert any(row["status"] == "invalid" for row in rows)
    best = [row for row in csv.DictReader(io.StringIO(table(shared, "csv", view="paper"))) if row["chosen"]]
    assert [(row["row"], row["budget"]) for row in best] == [("ddtree, best*", "64.0")]


def sizes(root):
    arms = [AR, "ddtree-16", "ddtree-64"]
    for tp, factor in ((1, 1.0), (2, 1.6), (4, 2.0)):
        lines = faster(timed(arms), dict.fromkeys(arms, factor) | {"ddtree-64": factor / 2})
        add_cell(root, f"{tp:012x}", lines, arms, tp=tp)
    return root


def test_scaling(tmp_path):
    (one,) = summary_tables(sizes(tmp_path / "results"), view="scaling")
    rows = [(*row[:2], *row[3:6]) for row in one.rows]
    assert rows[:3] == [
        (AR, "1", "–", "–", "1.00"),
        ("", "2", "1.60 [1.60, 1.60]", "0.80 [0.80, 0.80]", "1.00"),
        ("", "4", "2.00 [2.00, 2.00]", "0.50 [0.50, 0.50]", "1.00"),
    ]
    assert [row[:2] for row in one.rows][3:5] == [("ddtree-16", "1"), ("", "2")]
    assert "6 prompts, 6 of them the same as at tp 1" in one.note
    numbers = list(csv.DictReader(io.StringIO(table(tmp_path / "results", "csv", view="scaling"))))
    assert float(numbers[2]["efficiency"]) == pytest.approx(0.5) and numbers[0]["tpot_ratio"] == ""


def test_other_prompts_are_not_scaled(tmp_path):
    results = sizes(tmp_path / "results")
    file = results / "cells/000000000002/sittings/0/requests.jsonl"
    file.write_text(file.read_text().replace('"prompt_ids": [5', '"prompt_ids": [4'))
    (one,) = summary_tables(results, view="scaling")
    assert one.rows[1][3:5] == ("–", "–") and one.rows[2][3] == "2.00 [2.00, 2.00]"


def test_published_numbers_stand_beside_and_are_marked(tmp_path):
    halves(tmp_path / "results")
    (one,) = summary_tables(tmp_path / "results", view="paper", published=True)
    published = [row for row in one.rows if row[0].startswith("published: ")]
    assert ("published: ddtree-256, H100 [2]", "7.04", "7.77") in published
    assert "other people's machines" in one.note and "JetSpec" in one.note and "arXiv 2604.12989" in one.note
    numbers = list(csv.DictReader(io.StringIO(table(tmp_path / "results", "csv", view="paper", published=True))))
    assert {row["status"] for row in numbers if row["source"]} == {"published"}
    add_cell(tmp_path / "other", CELL, timed([AR, "dflash"]), [AR, "dflash"])
    assert "Nothing is published" in table(tmp_path / "other", "markdown", view="budgets", published=True)


def test_what_is_published_is_well_formed():
    found = load_published()
    assert list(found) == [
        *("model", "dataset", "temperature", "method", "budget", "speedup", "acceptance_length"),
        *("machine", "source", "note"),
    ]
    assert not found.duplicated(["model", "dataset", "temperature", "method", "budget", "source"]).any()
    assert found[["speedup", "acceptance_length"]].notna().any(axis=1).all()
    assert found["speedup"].dropna().between(0.5, 12).all() and found["acceptance_length"].dropna().between(1, 16).all()
    assert set(found["method"]) == {"dflash", "ddtree", "jetspec"} and set(found["temperature"]) == {0, 1}


def test_what_cannot_be_laid_out_is_refused(shared, tmp_path, capsys):
    assert main(["table", str(shared / "cells" / CELL), "--scaling"]) == 2
    add_cell(tmp_path / "alone", CELL, timed([AR]), [AR])
    assert main(["table", str(tmp_path / "alone"), "--paper"]) == 2
    assert main(["table", str(shared), "--paper", "--by", "category"]) == 2
    assert main(["table", str(shared), "--published"]) == 2
    assert capsys.readouterr().err.count("\n") == 4
    with pytest.raises(Refusal, match="tp=1,2,4"):
        summary_tables(shared / "cells" / CELL, view="scaling")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_narrow_terminal_loses_nothing(shared, tmp_path, layout):
    results = halves(tmp_path / "results") if layout == "paper" else shared
    tables = summary_tables(results, view=layout)
    for width in (80, 120, 200):
        text = io.StringIO()
        print_summary(results, Console(file=text, width=width, highlight=False), view=layout)
        assert max(map(len, text.getvalue().splitlines())) <= width
        assert all(cell in text.getvalue() for one in tables for row in one.rows for cell in row)


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs LaTeX")
def test_latex_compiles(shared, tmp_path):
    body = "".join(table(shared, "latex", view=view) for view in (None, "latency", *LAYOUTS))
    document = rf"\documentclass{{article}}\usepackage{{booktabs}}\begin{{document}}{body}\end{{document}}"
    (tmp_path / "all.tex").write_text(document)
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-draftmode", "all.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-2000:]


def test_latex_closes_what_it_opens(shared):
    for layout in LAYOUTS:
        text = table(shared, "latex", view=layout)
        assert text.count(r"\begin{") == text.count(r"\end{") and text.count("{") == text.count("}")
        assert r"\multicolumn{" in text and r"\cmidrule(lr)" in text
