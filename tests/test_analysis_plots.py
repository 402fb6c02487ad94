"""The pictures: what is drawn, how it is called, and that the numbers beside it are those of the loaders."""

import json
import math

import matplotlib
import numpy as np
import pandas as pd
import pytest
import records_fixture
from records_fixture import AR, ARMS, CELL, PROMPTS, FixtureArm, make_results, record, write_cell

from analysis import load_runs
from analysis.__main__ import main
from analysis.plots import acceptance_by_depth, budget_curves, write_plots
from methods.base import Refusal

BUDGETS = (16, 32, 64, 128)
WORKLOADS = ("math", "chat", "code")
DRAWN = [AR, "dflash", "ddtree-16", "ddtree-64"]


@pytest.fixture(scope="module", autouse=True)
def no_window():
    from matplotlib import pyplot

    matplotlib.use("Agg")
    yield
    pyplot.close("all")


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    return make_results(tmp_path_factory.mktemp("shared"))


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """Three workloads, four budgets of two kinds of tree; rounds of mixed depth that go deeper with the budget."""
    arms = {AR: ARMS[AR], "dflash": ARMS["dflash"]}
    for budget in BUDGETS:
        arms[f"ddtree-{budget}"] = FixtureArm("ddtree", budget, 1 + math.log2(budget) / 3, 2)
        arms[f"ddtree-{budget}-chain"] = FixtureArm("ddtree", budget, 1 + math.log2(budget) / 4, 2)
    results = tmp_path_factory.mktemp("sweep") / "results"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records_fixture, "ARMS", arms)
        for number, workload in enumerate(WORKLOADS):
            lines = [
                record(arm, prompt, 0, cell_id=f"c{number}", rounds=mixed(spec, number))
                for prompt in PROMPTS
                for arm, spec in arms.items()
            ]
            write_cell(results, f"c{number}", [lines], dict.fromkeys(arms, "complete"), {}, workload=workload)
    return results


def mixed(arm, number):
    deepest = 0 if arm.method == "autoregressive" else 3 if arm.budget is None else int(math.log2(arm.budget)) + number
    return [[d, d + 1, ""] for d in range(deepest + 1)] + [[15, 15, "length"]]


def lines_of(axes, style="-"):
    """Curves over more than one place, with a marker."""
    return [line for line in axes.lines if line.get_linestyle() == style and len(line.get_xdata()) > 1 and marked(line)]


def marked(line):
    return line.get_marker() not in ("None", "")


def legend(figure):
    return [text.get_text() for one in figure.legends for text in one.get_texts()]


def change(results, cell, arm, **changes):
    file = results / "cells" / cell / "arms" / f"{arm}.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_files_appear_with_the_loaders_numbers_beside_them(shared, tmp_path):
    files = write_plots(shared, tmp_path / "new" / "out", ("png", "svg", "pdf"))
    assert sorted(file.name for file in (tmp_path / "new" / "out").iterdir()) == sorted(file.name for file in files)
    endings = ("png", "svg", "pdf", "csv")
    assert [file.name for file in files] == [f"{name}.{e}" for name in ("budget", "acceptance") for e in endings]
    runs = load_runs(shared).set_index("arm").loc[DRAWN]
    written = pd.read_csv(tmp_path / "new" / "out" / "budget.csv").set_index("arm")
    assert written.index.tolist() == DRAWN
    for name in ("budget", "acceptance_length", "speedup", "speedup_low", "speedup_high", "n_requests", "n_prompts"):
        np.testing.assert_allclose(written[name], runs[name])
    depths = pd.read_csv(tmp_path / "new" / "out" / "acceptance.csv")
    lengths = 1 + depths.groupby("arm")["marginal"].sum()
    np.testing.assert_allclose(lengths[DRAWN[1:]], runs["acceptance_length"][DRAWN[1:]])
    assert set(depths["depth"]) == {1, 2, 3} and AR not in lengths


def test_the_same_data_make_the_same_files(shared, tmp_path):
    for out in ("a", "b"):
        write_plots(shared, tmp_path / out, ("svg",))
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()


def test_one_cell_is_named_by_the_title_alone(shared):
    figure = budget_curves(shared)
    left, right = figure.axes
    assert figure.get_suptitle() == "tiny · reference · tp 1 · cpu · float32 · T 0 · smoke"
    assert legend(figure) == []
    assert [label.get_text() for label in left.get_xticklabels()] == ["DFlash", "16", "64"]
    assert left.get_xscale() == "log" and left.get_xlabel() == "DDTree node budget"
    (curve,) = lines_of(right)
    assert list(curve.get_xdata()) == [16, 64]
    assert list(curve.get_ydata()) == load_runs(shared)["speedup"].tolist()[2:4]
    (band,) = right.collections[-1:]
    assert band.get_datalim(right.transData).y1 == pytest.approx(load_runs(shared)["speedup_high"][3])
    across = [line.get_ydata()[0] for line in left.lines if not marked(line)]
    assert across == [2, 1]  # DFlash's height and AR's


def test_a_sweep_has_a_line_per_cell_and_kind_of_tree(sweep):
    figure = budget_curves(sweep)
    left, right = figure.axes
    assert figure.get_suptitle() == "tiny · reference · tp 1 · cpu · float32 · T 0"
    assert legend(figure) == ["chat", "code", "math", "DDTree", "DDTree chain"]
    assert [label.get_text() for label in left.get_xticklabels()] == ["DFlash", *map(str, BUDGETS)]
    for axes in (left, right):
        assert [len(lines_of(axes, style)) for style in ("-", "-.")] == [3, 3]
        assert len({line.get_color() for line in lines_of(axes)}) == 3
    dflash = [line for line in left.lines if line.get_linestyle() == "--" and marked(line)]
    assert [line.get_color() for line in dflash] == [line.get_color() for line in lines_of(left)]
    assert len({float(line.get_xdata()[0]) for line in dflash}) == 3


def test_a_panel_per_cell_and_a_line_per_arm(sweep):
    figure = acceptance_by_depth(sweep)
    assert [axes.get_title() for axes in figure.axes] == ["chat", "code", "math"]
    assert {len(axes.lines) for axes in figure.axes} == {1 + 2 * len(BUDGETS)}
    assert legend(figure)[0] == "DDTree chain 128" and legend(figure)[-1] == "DFlash"
    chat = {line.get_label(): line for line in figure.axes[0].lines}
    rates = chat["DDTree 16"].get_ydata()  # depths 0 to 5, each as often; the cut round does not count
    np.testing.assert_allclose(rates, [5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6, 0, 0, 0])
    dark = [sum(matplotlib.colors.to_rgb(chat[f"DDTree {budget}"].get_color())) for budget in BUDGETS]
    assert dark == sorted(dark, reverse=True)


def test_labels_say_all_that_differs(shared, sweep, tmp_path):
    for name, place in (("a", shared), ("b", sweep)):
        (tmp_path / name).symlink_to(place)
    assert legend(budget_curves(tmp_path))[:4] == ["chat", "code", "math", "smoke"]
    (tmp_path / "c").symlink_to(sweep)
    assert legend(budget_curves(tmp_path))[:4] == ["chat · b", "chat · c", "code · b", "code · c"]


def test_letters_can_be_read_in_print(sweep):
    for figure in (budget_curves(sweep), acceptance_by_depth(sweep)):
        figure.draw_without_rendering()
        assert figure.get_figwidth() <= 7
        texts = [text for text in figure.findobj(matplotlib.text.Text) if text.get_text()]
        assert min(text.get_fontsize() for text in texts) >= 8


def test_without_a_baseline_the_acceptance_is_still_drawn(tmp_path):
    results = make_results(tmp_path)
    change(results, CELL, AR, status="failed")
    left, right = budget_curves(results).axes
    assert len(lines_of(left)) == 1 and "no valid AR to compare with" in [text.get_text() for text in right.texts]


def test_a_drifted_arm_is_marked(tmp_path):
    results = make_results(tmp_path)
    change(results, CELL, "ddtree-64", status="drifted")
    assert legend(budget_curves(results)) == ["drifted"]


def test_nothing_to_draw_is_a_sentence(tmp_path, capsys):
    results = make_results(tmp_path)
    for arm in ("dflash", "ddtree-16", "ddtree-64"):
        change(results, CELL, arm, status="failed")
    for picture in (budget_curves, acceptance_by_depth):
        with pytest.raises(Refusal, match="has nothing to draw: no arm beside autoregressive is finished and valid"):
            picture(results)
    assert main(["plots", str(results)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(str(results)) and said.count("\n") == 1
    assert not (results / "plots").exists()


def test_the_command_line(tmp_path, capsys):
    results = make_results(tmp_path)
    assert main(["plots", str(results)]) == 0
    names = ["budget.png", "budget.svg", "budget.csv", "acceptance.png", "acceptance.svg", "acceptance.csv"]
    assert capsys.readouterr().out.split() == [str(results / "plots" / name) for name in names]
    assert main(["plots", str(results), "--out", str(tmp_path / "x"), "--format", "pdf"]) == 0
    assert (tmp_path / "x" / "budget.pdf").read_bytes().startswith(b"%PDF")
    (tmp_path / "file").write_text("")
    assert main(["plots", str(results), "--out", str(tmp_path / "file")]) == 2
    assert "--out" in capsys.readouterr().err
