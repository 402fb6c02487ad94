"""The summary: every format from the same rows, and what is kept out of it."""

import csv
import io
import json
import re

import numpy as np
import pytest
import records_fixture
from records_fixture import AR, CELL, PROMPTS, make_results, profile, sentinel, timed, write_cell
from rich.console import Console

from analysis import load_acceptance, load_runs
from analysis.__main__ import main
from analysis.printing import as_text
from analysis.tables import print_summary, summary_tables, table, tables_of

HEADING = f"tiny · smoke · reference · tp 1 · cpu · float32 · T 0 · cell {CELL}"
GOLDEN = f"""\
**{HEADING}**

| arm | requests | output tokens | tokens/s | TTFT (ms) | TPOT (ms) | acceptance length | speed-up over AR \
| same text only | lossless |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |
| autoregressive | 12 | 360 | 79.4 | 50.00 | 11.31 | 1.00 | 1.00 | – | yes |
| dflash | 12 | 360 | 132.5 | 50.00 | 6.08 | 2.00 [2.00, 2.00] | 1.86 [1.54, 2.18] | – | yes |
| ddtree-16 | 12 | 360 | 164.6 | 50.00 | 4.56 | 3.00 [3.00, 3.00] | 2.48 [2.05, 2.90] | 2.45 | yes, 2 near ties |
| ddtree-64 | 12 | 360 | 96.3 | 100.0 | 7.30 | 4.00 [4.00, 4.00] | 3.10 [2.56, 3.63] | – | yes |
| ddtree-256 | 12 | 360 | – | – | – | – | – | – | INVALID: 1 violation |
| ddtree-1024 | 1 | 30 | – | – | – | – | – | – | failed: out of memory |

6 prompts, 2 repeats; acceptance length: pooled over uncut rounds; speed-up: geometric mean of per-prompt TPOT ratios \
[95 % interval over prompts]; near tie: within 0.001 logits of the target's choice; arms were timed in different \
sittings: compare their speed-ups, not their times.
–: of an invalid or failed arm no figure is shown; none was answered otherwise (same text only).
Same text only: the speed-up without the requests answered otherwise than by AR (ddtree-16 2 of 12).
Unexplained overhead, by which an arm is slower than its stages make it: ddtree-64 9 %.
"""
STAGES = """\
| arm | draft (ms) | build (ms) | verify (ms) | commit (ms) | all four (ms) | tokens per round | speed-up by stages \
| speed-up measured | residual | lossless |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |
| autoregressive | 0.00 | 0.00 | 9.45 | 1.05 | 10.50 | 1.00 | 0.99 | 1.00 | -1.0 % | yes |
| dflash | 2.47 | 1.23 | 7.40 | 1.23 | 12.34 | 1.93 | 1.63 | 1.65 | -1.0 % | yes |
| ddtree-16 | 2.78 | 1.39 | 8.33 | 1.39 | 13.88 | 2.90 | 2.17 | 2.19 | -1.0 % | yes, 2 near ties |
| ddtree-64 | 5.05 | 2.52 | 15.14 | 2.52 | 25.23 | 3.62 | 2.99 | 2.74 | +8.9 % | yes |
| ddtree-256 | – | – | – | – | – | – | – | – | – | INVALID: 1 violation |
"""
VIEWS = ("stages", "latency", "acceptance")


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    return make_results(tmp_path_factory.mktemp("shared"))


@pytest.fixture(scope="module")
def cell(shared):
    return shared / "cells" / CELL


def printed(path, width, **options):
    text = io.StringIO()
    print_summary(path, Console(file=text, width=width, highlight=False), **options)
    return text.getvalue()


def test_the_table_in_markdown(cell):
    assert table(cell, "markdown") == GOLDEN


def test_the_table_in_the_terminal(cell):
    lines = printed(cell, 120).splitlines()
    assert lines[0] == HEADING
    row = next(line for line in lines if line.startswith("ddtree-16"))
    assert (
        " ".join(row.split())
        == "ddtree-16 12 360 164.6 50.00 4.56 3.00 [3.00, 3.00] 2.48 [2.05, 2.90] 2.45 yes, 2 near ties"
    )
    assert [line.split()[0] for line in lines if line.startswith((AR, "d"))][:3] == [AR, "dflash", "ddtree-16"]


@pytest.mark.parametrize(("by", "view"), [(None, None), ("category", None), *((None, view) for view in VIEWS)])
def test_a_narrow_terminal_loses_nothing(shared, by, view, monkeypatch):
    tables = summary_tables(shared, by, view)
    monkeypatch.setattr("analysis.tables.summary_tables", lambda *_: tables)
    for width in (60, 80, 120, 200):
        text = printed(shared, width, by=by, view=view)
        assert max(map(len, text.splitlines())) <= width
        for one in tables:
            for row in one.rows:
                assert all(word in text for cell in row for word in cell.split())
                assert all(cell in text for cell in row[:-1])


def test_invalid_and_failed_arms_keep_their_figures_out_of_every_format(cell):
    rows = {row["arm"]: row for row in csv.DictReader(io.StringIO(table(cell, "csv")))}
    for arm in ("ddtree-256", "ddtree-1024"):
        kept = {name for name, value in rows[arm].items() if value}
        assert not kept & {"speedup", "speedup_e2e", "tpot_s", "tokens_per_s", "acceptance_length", "tpot_p99_s"}
        assert {"status", "reason", "n_requests", "true_violations", "max_gap"} <= kept
    assert float(rows["ddtree-64"]["speedup"]) == pytest.approx(3.09549, rel=1e-5)
    assert "9.0" not in table(cell, "markdown") and "9.0" not in table(cell, "latex")


def test_stages(cell):
    assert STAGES in table(cell, "markdown", view="stages")


def test_latency_and_acceptance(cell):
    rows = table(cell, "markdown", view="latency").splitlines()
    dflash = "| 50.00 | 6.08 | 6.03 | 6.70 | 6.73 | 11.76 | 11.67 | 12.95 | 226.4 | 164.4 | 132.5 | – | 0.500 | yes |"
    assert f"| dflash {dflash}" in rows
    rows = table(cell, "markdown", view="acceptance").splitlines()
    assert (
        "| ddtree-16 | 108 | 3.00 [3.00, 3.00] | 3.00 | 2.90 | 2.73 | 1.00 | 1.00 | 0.00 | yes, 2 near ties |" in rows
    )


@pytest.mark.parametrize(("by", "view"), [(None, "stages"), ("category", "latency"), ("category", "acceptance")])
def test_a_view_in_csv_has_the_loaders_numbers(shared, view, by):
    rows = list(csv.DictReader(io.StringIO(table(shared, "csv", by, view))))
    runs = load_runs(shared, by=by, unfinished=True)
    keys = [name for name in ("cell_id", "arm", by) if name]
    assert {tuple(row[key] for key in keys) for row in rows} == set(runs[keys].itertuples(index=False, name=None))
    if view == "acceptance":
        assert sum(bool(row["depth"]) for row in rows) == len(load_acceptance(shared, by=by))
    else:
        assert len(rows) == len(runs)
    assert ("category" in rows[0]) == (by == "category")
    for row in rows:
        if row["arm"] in ("ddtree-256", "ddtree-1024"):
            assert not any(row.get(name) for name in ("tokens_per_round", "marginal", "draft_s", "tpot_s", "rounds"))


def test_the_views_on_the_command_line(cell, capsys):
    for view, word in zip(VIEWS, ("residual", "J per token", "depth 3"), strict=True):
        assert main(["table", str(cell), f"--{view}", "--format", "latex"]) == 0
        assert word in capsys.readouterr().out.replace(r"\\", " ")
    with pytest.raises(SystemExit):
        main(["table", str(cell), "--stages", "--latency"])
    assert "not allowed with" in capsys.readouterr().err


def test_plain_cells_have_no_further_column(shared):
    assert [len(one.columns) for one in summary_tables(shared)] == [10, 9]


def notes_of(root, lines, **settings):
    arms = dict.fromkeys(dict.fromkeys(line["arm"] for line in lines), "complete")
    write_cell(root / "results", CELL, [lines], arms, {}, **settings)
    (one,) = summary_tables(root / "results")
    return one.note.splitlines()[1:], {row[0]: row for row in one.rows}


def test_a_drifted_sitting_is_named(tmp_path):
    notes, rows = notes_of(tmp_path, timed([AR, "dflash"]) + sentinel(0, (1, 1.02, 1.08)))
    assert notes == [
        "Drifted: AR's TPOT moved by +8.0 % from the start of sitting 0 to its end (autoregressive, dflash)."
    ]
    assert rows["dflash"][-1] == "yes; drifted"


def test_a_sentinel_that_swings_is_named(tmp_path):
    lines = sentinel(0, (1, 1, 1))
    for line, move in zip(lines[-3:], (1.5, 1.0, 0.8), strict=True):
        line["tpot_s"] *= move
    notes, rows = notes_of(tmp_path, timed([AR, "dflash"]) + lines)
    assert notes == [
        "Drift not told from noise: AR's TPOT moved by +6.3 % from the start of sitting 0 to its end "
        "(autoregressive, dflash)."
    ]
    assert rows["dflash"][-1] == "yes"


def test_acceptance_at_chance_is_called_out(tmp_path):
    notes, _ = notes_of(tmp_path, timed([AR, "ddtree-16"]) + timed(["dflash"], rounds=[[0, 1, ""]] * 29))
    assert notes == ["Acceptance at chance level (dflash): the drafter is not fed, or is not this target's."]


def twin(factors):
    lines = timed([AR])
    for line in lines:
        line["arm"] = "autoregressive-twin"
        line["tpot_s"] *= factors[line["prompt_id"]]
    return lines


def test_the_null_test_says_what_the_machine_can_resolve(tmp_path, monkeypatch):
    monkeypatch.setitem(records_fixture.ARMS, "autoregressive-twin", records_fixture.ARMS[AR])
    factors = dict(zip(PROMPTS, (0.99, 1.01, 1.02, 0.98, 1.0, 1.003), strict=True))
    notes, rows = notes_of(tmp_path, timed([AR]) + twin(factors))
    point, low, high = load_runs(tmp_path / "results")[["speedup", "speedup_low", "speedup_high"]].iloc[1]
    assert notes == [
        f"Null test: autoregressive-twin over AR {point:.4f} [{low:.4f}, {high:.4f}]; smallest effect this machine can "
        f"resolve here: ± {50 * (high - low) / point:.2g} %."
    ]
    assert low < 1 < high and list(rows) == [AR, "autoregressive-twin"]
    assert rows["autoregressive-twin"][7].startswith("1.00 [0.9")
    biased = {prompt: factor * 0.9 for prompt, factor in factors.items()}
    notes, _ = notes_of(tmp_path / "biased", timed([AR]) + twin(biased))
    assert notes[0].endswith("1 is outside: something favours one of two equal arms.")


def test_stages_that_took_longer_than_rounds_are_named(tmp_path):
    lines = timed([AR, "dflash"]) + profile([AR]) + profile(["dflash"], whole=1.3)
    notes, _ = notes_of(tmp_path, lines)
    assert notes == ["Stages took longer, timed one by one, than whole rounds did: dflash 29 %."]


def test_latex_is_escaped(cell):
    text = table(cell, "latex")
    assert text.startswith("\\begin{table}\n") and text.endswith("\\end{table}\n")
    assert r"[95 \% interval" in text and r"tiny $\cdot$ smoke" in text
    parts = [part.split(r"\end{tabular}")[0] for part in text.split(r"\begin{tabular}")[1:]]
    for part in parts:
        spec, body = (
            re.sub(r"p\{[^}]*\}", "l", part.split("\n", 1)[0]),
            part.split(r"\midrule")[1].split(r"\bottomrule")[0].strip().splitlines(),
        )
        assert len(body) == 6 and all(row.count("&") == len(spec) - 3 and row.endswith(r" \\") for row in body)
    assert parts and r"INVALID: 1 violation" in parts[-1]


def test_by_category(cell):
    text = table(cell, "markdown", by="category")
    row = "| math | ddtree-16 | 6 | 180 | 171.3 | 50.00 | 4.31 | 3.00 [3.00, 3.00] | 2.80 [2.34, 3.34] | 2.90 | yes"
    assert row in text
    assert "| code | ddtree-16 | 6 |" in text and "6 prompts, 2 repeats" in text


def test_a_running_cell_says_so(shared):
    running = summary_tables(shared)[1]
    assert [row[-1] for row in running.rows] == ["yes; unfinished"] * 2
    by_category = summary_tables(shared, by="category")[1]
    assert by_category.rows[-1][-1] == "unfinished"


def test_words_for_every_state(tmp_path):
    results = make_results(tmp_path)
    for arm, changes in {
        "dflash": {"status": "drifted"},
        "ddtree-256": {"status": "complete"},
        "ddtree-1024": {"reason": None},
    }.items():
        file = results / "cells" / CELL / "arms" / f"{arm}.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    rows = {row[0]: row for row in summary_tables(results)[0].rows}
    assert rows["dflash"][-1] == "yes; drifted" and rows["dflash"][5] == "6.08"
    assert rows["ddtree-256"][-1] == "INVALID: 1 violation"
    assert rows["ddtree-1024"][-1] == "failed"


def test_folders_read_together_are_named(tmp_path):
    make_results(tmp_path / "a")
    make_results(tmp_path / "b")
    headings = [one.heading for one in summary_tables(tmp_path)]
    assert len(headings) == 4 and headings[0].startswith("a/results · tiny") and headings[2].startswith("b/results")


ORDERS = {"tp": (1, 2, 4), "temperature": (0.0, 0.5, 1.0), "concurrency": (1, 2, 10)}


@pytest.mark.parametrize("name", ORDERS)
def test_cells_stand_in_the_order_of_what_differs(name, tmp_path):
    for cell_id, value in zip("cba", ORDERS[name], strict=True):  # the hashes of settings have no order
        lines = [line | {"cell_id": cell_id} for line in timed([AR])]
        write_cell(tmp_path, cell_id, [lines], {AR: "complete"}, {}, **{name: value})
    assert [one.heading[-1] for one in summary_tables(tmp_path)] == ["c", "b", "a"]


def test_the_command_line(shared, cell, tmp_path, capsys):
    assert main(["table", str(cell), "--format", "markdown"]) == 0
    assert capsys.readouterr().out == GOLDEN
    assert main(["table", str(shared)]) == 0
    assert HEADING in capsys.readouterr().out
    assert main(["table", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_what_a_load_says_against_itself_is_told(tmp_path):
    runs = load_runs(make_results(tmp_path))
    runs = runs.assign(saturated=runs["arm"] == "dflash", preemptions=np.where(runs["arm"] == "dflash", 3.0, np.nan))
    said = as_text(tables_of(runs[runs["cell_id"] == CELL]), "markdown")
    assert "Saturated (dflash): the queue kept growing" in said
    assert "The server of dflash put 3 requests off for lack of memory" in said
