"""The pictures: which there are, how they are called and written, and what all of them keep to."""

import itertools
import json
import subprocess
import sys
import warnings
from dataclasses import replace

import matplotlib
import pandas as pd
import pytest
from records_fixture import CELL, make_results, profile, record, write_cell
from sweep_fixture import ONE, Sweep, drawn, folder, make_sweep

from analysis import style
from analysis.__main__ import PICTURES, main
from analysis.plot_data import SETTINGS, shares
from analysis.plots import PLOTS, pictures, write_plots
from analysis.style import PAGE, SMALL, columns_of
from methods.base import Refusal

TWO_CELLS, REPLAYED = {"tp", "pareto"}, {"advice"}


@pytest.fixture(autouse=True)
def no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.fixture
def shared():
    return folder("fixture")


@pytest.fixture
def one():
    return folder("one")


@pytest.fixture
def sweep():
    return folder("mixed")


@pytest.fixture
def of_one():
    return {found.name: found for found in drawn("one")}


@pytest.fixture
def of_scaled():
    return drawn("scaled")


def legend(figure):
    return [text.get_text() for one in figure.legends for text in one.get_texts()]


def change(results, cell, arm, **changes):
    file = results / "cells" / cell / "arms" / f"{arm}.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def visible(figure):
    """The texts that are seen: tick labels only of ticks within the axis."""
    unseen = set()
    for axes in figure.findobj(lambda artist: hasattr(artist, "xaxis")):
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            slack = 1e-6 * (high - low)
            for tick in [*axis.get_major_ticks(), *axis.get_minor_ticks()]:
                out = not low - slack <= tick.get_loc() <= high + slack
                for label in (tick.label1, tick.label2):
                    unseen |= {label} if out or not label.get_visible() or not axes.axison else set()
    return [text for text in figure.findobj(matplotlib.text.Text) if text.get_text().strip() and text not in unseen]


def test_every_plot_of_one_cell_is_drawn_with_its_data_beside_it(one, tmp_path):
    written = list(write_plots(one, tmp_path / "new" / "out", ("svg",)))
    assert [plot.name for plot in PLOTS] == list(PICTURES)
    drawn = [name for name in PICTURES if name not in TWO_CELLS | REPLAYED]
    endings = ("svg", "csv")
    files = [file.name for one in written for file in one.files]
    assert files == [f"{name}.{ending}" for name in drawn for ending in endings]
    assert sorted(file.name for file in (tmp_path / "new" / "out").iterdir()) == sorted(files)
    assert {one.said.split(" is not drawn: ")[0] for one in written if not one.files} == TWO_CELLS | REPLAYED
    for file in (file for one in written for file in one.files):
        if file.suffix == ".csv":
            table = pd.read_csv(file, dtype={"cell_id": "str"})
            assert len(table) and "ddtree-1024" not in set(table["arm"])
            assert {"cell_id", "model", "temperature", "arm", "budget", "status"} <= set(table)


def test_sizes_letters_and_places_are_for_print(of_one, of_scaled, sweep):
    """At one or two columns' width, no letter below 7 points, nothing beyond the edge, no label on another."""
    for found in [*of_one.values(), *of_scaled[::2], *drawn("mixed")]:
        figure = found.figure
        figure.draw_without_rendering()
        assert figure.get_figwidth() in (style.COLUMN, style.PAGE), found.name
        assert figure.get_figheight() <= 9.5, found.name
        texts = visible(figure)
        assert min(text.get_fontsize() for text in texts) >= SMALL, found.name
        edge = figure.bbox.padded(1)
        boxes = [(text.get_text(), text.get_window_extent()) for text in texts if text.get_rotation() % 90 == 0]
        for said, box in boxes:
            inside = edge.x0 <= box.x0 and edge.y0 <= box.y0 and box.x1 <= edge.x1 and box.y1 <= edge.y1
            assert inside, (found.name, said)
        for (said, box), (other, its) in itertools.combinations(boxes, 2):
            assert not box.padded(-1).overlaps(its.padded(-1)), (found.name, said, other)
        assert found.caption.endswith(".") and "\n" not in found.caption


def test_the_same_data_make_the_same_files(shared, tmp_path):
    for out in ("a", "b"):
        list(write_plots(shared, tmp_path / out, ("svg", "pdf"), ["budget"]))
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()


def test_a_drifted_arm_is_marked_in_every_picture(tmp_path):
    results = make_sweep(tmp_path / "results", replace(ONE, budgets=(16, 64)), {"ddtree-64": "drifted"})
    for found in pictures(results):
        assert "drifted" in found.caption or "drifted" in legend(found.figure), found.name
        assert set(found.table.loc[found.table["status"] == "drifted", "arm"]) == {"ddtree-64"}


def test_temperatures_have_pictures_of_their_own(of_scaled):
    drawn = {found.name: found.table for found in of_scaled}
    named = set(PICTURES) - REPLAYED
    assert {name.split("-")[0] for name in drawn} == named
    assert set(drawn) == {f"{name}-T{temperature}" for name in named for temperature in (0, 1)}
    for name, table in drawn.items():
        assert set(table["temperature"]) == {int(name[-1])} and table["cell_id"].nunique() == 6


def test_too_many_cells_are_cut_by_what_the_plot_does_not_compare():
    cells = itertools.product(("a", "b"), (0.0, 1.0), (1, 2, 4), (1, 8), ("x", "y"))
    names = ("model", "temperature", "tp", "concurrency", "workload")
    rows = [dict(zip(names, cell, strict=True)) | {"cell_id": str(n)} for n, cell in enumerate(cells)]
    table = pd.DataFrame([dict.fromkeys(SETTINGS, "same") | {"results": "r", "arm": "dflash"} | row for row in rows])

    def cut(most, compared=()):
        return {name: len(part) for name, part in shares(table, most, compared)}

    models = [f"{model}-T{temperature}" for model in "ab" for temperature in (0, 1)]
    assert cut(12) == dict.fromkeys(models, 12)
    assert cut(6) == {f"{model}-concurrency{c}": 6 for model in models for c in (1, 8)}
    assert cut(6, ("concurrency",)) == {f"{model}-tp{tp}": 4 for model in models for tp in (1, 2, 4)}
    assert cut(11, ("concurrency", "tp")) == {f"{model}-part{part}": 6 for model in models for part in (1, 2)}
    assert sum(cut(1).values()) == len(table)


def test_many_alike_cells_are_cut_by_number(tmp_path):
    suites = tuple(f"suite_{letter}" for letter in "abcdefgh")
    results = make_sweep(tmp_path / "results", Sweep({"tiny": 1.0}, workloads=suites, budgets=(16,), prompts=2))
    found = {one.name: one.table["cell_id"].nunique() for one in pictures(results, ["budget", "categories"])}
    assert found == {"budget-part1": 4, "budget-part2": 4, "categories": 1 * 8}


# The command line, and the folders that have nothing


def test_nothing_to_draw_is_a_sentence(tmp_path, capsys):
    results = make_results(tmp_path)
    for arm in ("dflash", "ddtree-16", "ddtree-64"):
        change(results, CELL, arm, status="failed")
    with pytest.raises(Refusal, match="has nothing to draw: no arm beside autoregressive is finished and valid"):
        list(pictures(results))
    assert main(["plots", str(results)]) == 2
    said = capsys.readouterr()
    assert said.err.startswith(str(results)) and said.err.count("\n") == 1 and said.out == ""
    assert not (results / "plots").exists()


def test_a_plot_without_data_is_a_sentence(shared, capsys, tmp_path):
    assert main(["plots", str(shared), "--out", str(tmp_path / "x"), "--only", "tp"]) == 2
    assert "has nothing to draw (tp: no two cells differ in tp alone)" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_the_command_line(tmp_path, capsys):
    results = make_results(tmp_path)
    assert main(["plots", str(results), "--only", "budget", "acceptance"]) == 0
    said = capsys.readouterr().out.splitlines()
    names = ["budget.png", "budget.svg", "budget.csv", "acceptance.png", "acceptance.svg", "acceptance.csv"]
    assert [line for line in said if not line.startswith("  ")] == [str(results / "plots" / name) for name in names]
    assert len(said) == len(names) + 2
    out = ["--out", str(tmp_path / "x"), "--format", "pdf,svg"]
    assert main(["plots", str(results), *out, "--only", "budget"]) == 0
    assert (tmp_path / "x" / "budget.pdf").read_bytes().startswith(b"%PDF")
    assert sorted(file.name for file in (tmp_path / "x").iterdir()) == ["budget.csv", "budget.pdf", "budget.svg"]
    (tmp_path / "file").write_text("")
    assert main(["plots", str(results), "--out", str(tmp_path / "file")]) == 2
    assert "--out" in capsys.readouterr().err
    assert main(["plots", str(results), "--only", "bars"]) == 2
    assert f"--only bars is not accepted: {', '.join(PICTURES)} are." in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["plots", str(results), "--format", "gif"])
    assert "png, svg and pdf are" in capsys.readouterr().err


def test_help_does_not_draw():
    asked = "import sys, analysis.__main__ as m\ntry: m.main(['plots', '--help'])\nexcept SystemExit: pass\n"
    ran = subprocess.run(
        [sys.executable, "-c", asked + "print('matplotlib' in sys.modules)"], capture_output=True, text=True
    )
    assert ran.stdout.splitlines()[-1] == "False"


# The look


@pytest.mark.parametrize(
    ("labels", "shape"), [([], (1, 0)), (["a"], (1, 1)), (["a" * 30] * 8, (2, 4)), (["ab"] * 6, (6, 1))]
)
def test_legends_are_as_flat_as_they_fit(labels, shape):
    assert columns_of(labels, PAGE) == shape


@pytest.mark.parametrize(
    ("panels", "grid"), [(1, (1, 1)), (3, (1, 3)), (4, (2, 2)), (5, (2, 3)), (7, (3, 3)), (9, (3, 3))]
)
def test_panels_leave_few_places_empty(panels, grid):
    assert style.grid_of(panels) == grid


def test_every_cell_has_its_own_look():
    looks = [tuple(style.cell_look(number).values()) for number in range(21)]
    assert len(set(looks)) == 21


@pytest.mark.parametrize("prompts", [1, 2])
def test_a_folder_of_a_handful_of_rounds_has_its_pictures(tmp_path, prompts):
    """What a first, short try leaves: too few rounds for some rates and intervals, and no reason to stop."""
    arms, few = ["autoregressive", "dflash", "ddtree-16"], ["code-1", "math-1"][:prompts]
    lines = [record(arm, prompt, 0) for prompt in few for arm in arms] + profile(arms)
    write_cell(tmp_path / "results", CELL, [lines], dict.fromkeys(arms, "complete"), {})
    found = list(pictures(tmp_path / "results"))
    assert {"acceptance", "histogram"} <= {one.name.split("-")[0] for one in found}
    for one in found:
        one.figure.draw_without_rendering()
