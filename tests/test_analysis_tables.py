"""The summary: every format from the same rows, and what is kept out of it."""

import csv
import io
import json

import pytest
from records_fixture import AR, CELL, make_results
from rich.console import Console

from analysis.__main__ import main
from analysis.tables import print_summary, summary_tables, table

HEADING = f"tiny · smoke · reference · tp 1 · cpu · float32 · T 0 · cell {CELL}"
GOLDEN = f"""\
**{HEADING}**

| arm | requests | output tokens | tokens/s | TTFT (ms) | TPOT (ms) | acceptance length | tokens per round \
| speed-up over AR | lossless |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |
| autoregressive | 12 | 360 | 79.4 | 50.00 | 11.31 | 1.00 | 1.00 | 1.00 | yes |
| dflash | 12 | 360 | 132.5 | 50.00 | 6.08 | 2.00 | 1.93 | 1.86 [1.54, 2.18] | yes |
| ddtree-16 | 12 | 360 | 164.6 | 50.00 | 4.56 | 3.00 | 2.90 | 2.48 [2.05, 2.90] | yes, 2 near ties |
| ddtree-64 | 12 | 360 | 96.3 | 100.0 | 7.30 | 4.00 | 3.62 | 3.10 [2.56, 3.63] | yes |
| ddtree-256 | 12 | 360 | – | – | – | – | – | – | INVALID: 1 violation |
| ddtree-1024 | 1 | 30 | – | – | – | – | – | – | failed: out of memory |

6 prompts, 2 repeats; speed-up: geometric mean of per-prompt TPOT ratios [95 % bootstrap interval over prompts]; \
near tie: within 0.001 logits of the target's choice; arms were timed in different sittings: compare their speed-ups, \
not their times.
"""


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
    assert " ".join(row.split()) == "ddtree-16 12 360 164.6 50.00 4.56 3.00 2.90 2.48 [2.05, 2.90] yes, 2 near ties"
    assert [line.split()[0] for line in lines if line.startswith((AR, "d"))][:3] == [AR, "dflash", "ddtree-16"]


@pytest.mark.parametrize("width", [60, 80, 100])
@pytest.mark.parametrize("by", [None, "category"])
def test_a_narrow_terminal_loses_nothing(shared, width, by):
    text = printed(shared, width, by=by)
    assert max(map(len, text.splitlines())) <= width
    for one in summary_tables(shared, by):
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


def test_latex_is_escaped(cell):
    text = table(cell, "latex")
    assert text.startswith("\\begin{table}\n") and text.endswith("\\end{table}\n")
    assert r"[95 \% bootstrap interval" in text and r"tiny $\cdot$ smoke" in text
    body = text.split(r"\midrule")[1].split(r"\bottomrule")[0].strip().splitlines()
    assert len(body) == 6 and all(row.count("&") == 9 and row.endswith(r" \\") for row in body)


def test_by_category(cell):
    text = table(cell, "markdown", by="category")
    row = "| math | ddtree-16 | 6 | 180 | 171.3 | 50.00 | 4.31 | 3.00 | 2.90 | 2.80 [2.34, 3.34] | yes, 2 near ties |"
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


def test_the_command_line(shared, cell, tmp_path, capsys):
    assert main(["table", str(cell), "--format", "markdown"]) == 0
    assert capsys.readouterr().out == GOLDEN
    assert main(["table", str(shared)]) == 0
    assert HEADING in capsys.readouterr().out
    assert main(["table", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
