"""The pictures one by one: what is drawn in them, and that the numbers beside it are those of the loaders."""

import math
import warnings
from dataclasses import replace

import matplotlib
import numpy as np
import pandas as pd
import pytest
from records_fixture import AR, CELL, make_results
from sweep_fixture import MIXED_BUDGETS, ONE, drawn, folder, make_sweep

from analysis import load_histogram, load_runs, style
from analysis.load import load_requests
from analysis.plots import pictures, write_plots
from analysis.plots.stages import bandwidth

DRAWN = [AR, "dflash", "ddtree-16", "ddtree-64"]


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
def scaled():
    return folder("scaled")


@pytest.fixture
def sweep():
    return folder("mixed")


@pytest.fixture
def of_one():
    return {found.name: found for found in drawn("one")}


@pytest.fixture
def of_scaled():
    return drawn("scaled")


def picture(results, name, **options):
    """The only picture of a kind, laid out."""
    (found,) = pictures(results, [name], **options)
    found.figure.draw_without_rendering()
    return found


def of_kind(found, name):
    """The tables of the pictures of a kind."""
    return [one.table for one in found if one.name.split("-")[0] == name]


def lines_of(axes, dashes="-"):
    """Curves over more than one place, with a marker."""
    return [
        line for line in axes.lines if line.get_linestyle() == dashes and len(line.get_xdata()) > 1 and marked(line)
    ]


def marked(line):
    return line.get_marker() not in ("None", "")


def legend(figure):
    return [text.get_text() for one in figure.legends for text in one.get_texts()]


def test_budget_has_the_loaders_numbers(shared, tmp_path):
    list(write_plots(shared, tmp_path, ("svg",), ["budget", "acceptance"]))
    runs = load_runs(shared).set_index("arm").loc[DRAWN]
    written = pd.read_csv(tmp_path / "budget.csv").set_index("arm")
    assert written.index.tolist() == DRAWN
    lengths = [f"acceptance_length{end}" for end in ("", "_low", "_high")]
    for name in ("budget", *lengths, "speedup", "speedup_low", "speedup_high", "n_requests", "n_prompts"):
        np.testing.assert_allclose(written[name], runs[name])
    depths = pd.read_csv(tmp_path / "acceptance.csv")
    sums = 1 + depths.groupby("arm")["marginal"].sum()
    np.testing.assert_allclose(sums[DRAWN[1:]], runs["acceptance_length"][DRAWN[1:]])
    assert set(depths["depth"]) == {1, 2, 3} and AR not in sums


def test_one_cell_is_named_by_the_title_alone(shared):
    figure = picture(shared, "budget").figure
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
    figure = picture(sweep, "budget").figure
    left, right = figure.axes
    assert figure.get_suptitle() == "tiny · reference · tp 1 · cpu · float32 · T 0"
    assert legend(figure) == ["chat", "code", "math", "DDTree", "DDTree chain"]
    assert [label.get_text() for label in left.get_xticklabels()] == ["DFlash", *map(str, MIXED_BUDGETS)]
    for axes in (left, right):
        assert [len(lines_of(axes, dashes)) for dashes in ("-", "-.")] == [3, 3]
        assert len({line.get_color() for line in lines_of(axes)}) == 3
    dflash = [line for line in left.lines if line.get_linestyle() == "--" and marked(line)]
    assert [line.get_color() for line in dflash] == [line.get_color() for line in lines_of(left)]
    assert len({float(line.get_xdata()[0]) for line in dflash}) == 3


def test_labels_say_all_that_differs(shared, sweep, tmp_path):
    for name, place in (("a", shared), ("b", sweep)):
        (tmp_path / name).symlink_to(place)

    def cells():
        return [label for found in pictures(tmp_path, ["budget"]) for label in legend(found.figure)]

    assert sorted(cells())[:1] == ["DDTree"] and {"chat", "code", "math", "smoke"} <= set(cells())
    (tmp_path / "c").symlink_to(sweep)
    assert {"chat · b", "chat · c", "code · b", "code · c"} <= set(cells())


def test_without_a_baseline_the_acceptance_is_still_drawn(tmp_path):
    results = make_results(tmp_path)
    file = results / "cells" / CELL / "arms" / f"{AR}.json"
    file.write_text(file.read_text().replace('"complete"', '"failed"'))
    left, right = picture(results, "budget").figure.axes
    assert len(lines_of(left)) == 1 and "no valid AR to compare with" in [text.get_text() for text in right.texts]


def test_stages_stack_up_and_the_floor_is_the_weights_over_the_bandwidth(one, of_one):
    found = of_one["stages"]
    runs = load_runs(one).set_index("arm")
    (axes,) = found.figure.axes[:1]
    drawn = found.table.set_index("arm")
    for name in ("draft_s", "build_s", "verify_s", "commit_s", "step_s"):
        np.testing.assert_allclose(drawn[name], runs.loc[drawn.index, name])
    bars = {}
    for bar in axes.patches:
        bars[bar.get_x()] = bars.get(bar.get_x(), 0) + bar.get_height() / 1e3
    whole = drawn[["draft_s", "build_s", "verify_s", "commit_s"]].sum(axis=1)
    np.testing.assert_allclose(sorted(bars.values()), sorted(whole))
    floor = 17.5e9 / (2 * 3.2e9 * 6144 / 8)
    np.testing.assert_allclose(drawn["floor_s"], floor)
    assert 1e3 * floor in [pytest.approx(line.get_ydata()[0]) for line in axes.lines]
    assert "floor: weights read once" in legend(found.figure) and "The floor, 3.6 ms," in found.caption


def test_tensor_parallel_ranks_have_a_floor_of_their_own(of_scaled):
    floors = pd.concat(of_kind(of_scaled, "stages")).groupby("tp")["floor_s"].max()
    np.testing.assert_allclose(floors * floors.index, 17.5e9 / (2 * 3.2e9 * 6144 / 8))


def test_without_a_bandwidth_there_is_no_floor_and_the_caption_says_so(tmp_path):
    results = make_sweep(tmp_path / "results", replace(ONE, budgets=(16,), floor=False))
    found = picture(results, "stages")
    assert found.table["floor_s"].isna().all()
    assert not any("floor" in label for label in legend(found.figure))
    assert "No floor is drawn" in found.caption
    assert math.isnan(bandwidth({"memory_clock_max_hz": 1e9})) and math.isnan(bandwidth({}))


def test_the_histogram_has_a_row_an_arm(one, of_one):
    found = of_one["histogram"]
    expected = load_histogram(one).set_index(["arm", "accepted"])["share"]
    drawn = found.table.set_index(["arm", "accepted"])["share"]
    np.testing.assert_allclose(drawn, expected[drawn.index])
    (axes,) = found.figure.axes
    rows = [label.get_text() for label in axes.get_yticklabels()]
    assert rows == ["DFlash", *(f"DDTree {budget}" for budget in (16, 32, 64, 128, 256, 512))]
    lengths = load_runs(one).set_index("arm")["acceptance_length"]
    assert f"τ {lengths['dflash']:.2f}" in [text.get_text() for text in axes.texts]


def test_acceptance_has_both_rates_side_by_side_for_one_cell(of_one):
    found = of_one["acceptance"]
    marginal, conditional = found.figure.axes
    assert marginal.get_ylabel() == "P(≥ d)" and conditional.get_ylabel() == "P(≥ d | ≥ d − 1)"
    rows = found.table[found.table["arm"] == "ddtree-16"]
    (line,) = (line for line in conditional.lines if line.get_label() == "DDTree 16")
    reached = rows["rounds"].shift() >= 20
    shown = rows[reached | (rows["depth"] == 1)]
    np.testing.assert_allclose(line.get_ydata(), shown["conditional"])


def test_a_panel_per_cell_and_a_line_per_arm(sweep):
    figure = picture(sweep, "acceptance").figure
    assert [axes.get_title() for axes in figure.axes[:3]] == ["chat", "code", "math"]
    assert {len(axes.lines) for axes in figure.axes} == {1 + 2 * len(MIXED_BUDGETS)}
    assert "DDTree chain 128" in legend(figure) and legend(figure)[0] == "DFlash"
    chat = {line.get_label(): line for line in figure.axes[0].lines}
    rates = chat["DDTree 16"].get_ydata()  # depths 0 to 5, each as often; the cut round does not count
    np.testing.assert_allclose(rates, [5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6, 0, 0, 0])
    dark = [sum(matplotlib.colors.to_rgb(chat[f"DDTree {budget}"].get_color())) for budget in MIXED_BUDGETS]
    assert dark == sorted(dark, reverse=True)


def test_efficiency_is_the_time_at_the_smallest_size_over_the_time_here(scaled, of_scaled):
    table, runs = pd.concat(of_kind(of_scaled, "tp")), load_runs(scaled).set_index(["cell_id", "arm"])
    requests = load_requests(scaled)
    timed = requests[requests["phase"] == "timed"]
    same = table[(table["temperature"] == 0) & (table["workload"] == "gsm8k")]
    same = same[same["arm"] == "ddtree-16"].set_index("tp")
    assert same.index.tolist() == [1, 2, 4]
    logs = {
        tp: np.log(timed[(timed["cell_id"] == row["cell_id"]) & (timed["arm"] == "ddtree-16")]["tpot_s"]).mean()
        for tp, row in same.iterrows()
    }
    for tp, row in same.iterrows():
        assert row["efficiency"] == pytest.approx(math.exp(logs[1] - logs[tp]) / tp)
        assert row["tpot_s"] == pytest.approx(runs["tpot_s"][row["cell_id"], "ddtree-16"])
        assert tp == 1 or row["efficiency_low"] <= row["efficiency"] <= row["efficiency_high"]


def test_pareto_has_a_point_per_cell_and_arm_and_a_frontier_nothing_beats(scaled, of_scaled):
    temperatures = load_runs(scaled)["temperature"]
    for found in (found for found in of_scaled if found.name.startswith("pareto")):
        assert len(found.table) == (temperatures == found.table["temperature"].iloc[0]).sum()
        assert [axes.get_title() for axes in found.figure.axes] == ["gsm8k", "math500"]
        for _, points in found.table.groupby("workload"):
            xs, ys = points["tokens_per_s_per_user"], points["tokens_per_s_per_gpu"]
            beaten = [((xs > x) & (ys > y)).any() for x, y in zip(xs, ys, strict=True)]
            assert (points["on_frontier"] == ~np.array(beaten)).all() and points["on_frontier"].any()


def test_pairs_are_the_prompts_of_the_speedup(one, of_one):
    found = of_one["pairs"]
    assert len(found.figure.axes) == 7 and found.figure.axes[0].get_title().startswith("DFlash: ")
    means = np.exp(np.log(found.table["speedup"]).groupby(found.table["arm"]).mean())
    runs = load_runs(one).set_index("arm")
    np.testing.assert_allclose(means, runs.loc[means.index, "speedup"])
    assert legend(found.figure) == ["chat", "code", "math", "tool calls", "long context"]
    assert "1×" in [text.get_text() for text in found.figure.axes[0].texts]


def test_pairs_of_several_cells_show_the_fastest_arm_of_each(of_scaled):
    for found in (found for found in of_scaled if found.name.startswith("pairs")):
        best = found.table.loc[found.table.groupby("cell_id", sort=False)["arm_speedup"].idxmax()]
        titles = [axes.get_title().split("\n")[-1] for axes in found.figure.axes]
        expected = zip(best["kind"], best["budget"], best["arm_speedup"], strict=True)
        assert titles == [f"{style.arm_name(kind, budget)}: {speedup:.2f}×" for kind, budget, speedup in expected]


def test_categories_are_those_of_the_loader_and_the_whole(one, of_one, sweep):
    table = of_one["categories"].table.set_index(["arm", "category"])
    runs = load_runs(one, by="category").set_index(["arm", "category"])
    split = table[table.index.get_level_values("category") != "all"]
    np.testing.assert_allclose(split["speedup"], runs.loc[split.index, "speedup"])
    whole = table.xs("all", level="category")["speedup"]
    np.testing.assert_allclose(whole, load_runs(one).set_index("arm").loc[whole.index, "speedup"])
    axes = of_one["categories"].figure.axes[0]
    names = [label.get_text() for label in axes.get_xticklabels()]
    assert names == ["chat", "code", "math", "tool calls", "long context", "all"]
    assert len(picture(sweep, "categories").figure.axes) == 3 + 1  # two categories each: a map a cell, and the scale


def test_cells_of_one_category_share_a_map(of_scaled):
    for found in (found for found in of_scaled if found.name.startswith("categories")):
        assert len(found.figure.axes) == 2 and found.figure.axes[0].images[0].get_array().shape == (3, 6)


def test_predicted_is_the_identity(one, of_one):
    table = of_one["predicted"].table.set_index("arm")
    runs = load_runs(one).set_index("arm").loc[table.index]
    for mine, theirs in (("predicted", "identity_predicted"), ("measured", "identity_measured")):
        np.testing.assert_allclose(table[mine], runs[theirs])
    np.testing.assert_allclose(table["residual"], table["predicted"] / table["measured"] - 1)
    assert set(table["prediction"]) == {"stages"}


def test_published_numbers_are_grey_and_not_ours(scaled):
    one = next(pictures(scaled, ["budget"], published=True))
    assert one.name == "budget-T0-gsm8k"
    others = one.table[one.table["status"] == "published"]
    assert set(others["model"]) == {"qwen3_8b"} and others["source"].str.len().gt(0).all()
    assert others["suite"].nunique() == 1 and others["suite"].iloc[0] == one.table["suite"].iloc[0]
    assert "other people's machines:" in legend(one.figure) and "Grey: other people's machines" in one.caption
    greys = [line for line in one.figure.axes[1].lines if line.get_color() == style.GREY and marked(line)]
    assert greys and all(line.get_markerfacecolor() == "white" for line in greys)
    assert "tp 1" in " ".join(legend(one.figure)) and "1.0" not in one.figure.get_suptitle()


def test_where_nothing_is_published_the_caption_says_so(shared):
    found = picture(shared, "budget", published=True)
    assert found.caption.endswith("Nothing is published for this model, workload and temperature.")
    assert set(found.table["status"]) == {"complete"}
