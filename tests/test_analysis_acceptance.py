"""Acceptance by depth and as a histogram, over the rounds that count."""

import json

import pytest
from records_fixture import AR, CELL, OTHER, make_results, record, timed, write_cell

from analysis import load_acceptance, load_histogram, load_runs
from methods.base import Refusal


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    return make_results(tmp_path_factory.mktemp("shared"))


def test_rates_add_up_to_the_acceptance_length_of_the_runs(shared):
    rates = load_acceptance(shared)
    assert rates.columns.tolist() == ["cell_id", "arm", "depth", "rounds", "marginal", "conditional", "results"]
    lengths = 1 + rates.groupby(["cell_id", "arm"])["marginal"].sum()
    runs = load_runs(shared, unfinished=True).set_index(["cell_id", "arm"])["acceptance_length"]
    assert lengths.to_dict() == pytest.approx(runs.to_dict())
    assert (rates.groupby(["cell_id", "arm"])["depth"].agg(list).map(tuple) == (1, 2, 3)).all()
    arms = [AR, "dflash", "ddtree-16", "ddtree-64", "ddtree-256", "ddtree-1024"]
    assert rates.loc[rates["cell_id"] == CELL, "arm"].drop_duplicates().tolist() == arms
    shares = load_histogram(shared)
    assert shares.columns.tolist() == ["cell_id", "arm", "accepted", "rounds", "share", "results"]
    assert shares.groupby(["cell_id", "arm"])["share"].sum().tolist() == pytest.approx([1] * 8)
    assert set(shares["cell_id"]) == {CELL, OTHER}


def test_only_counted_uncut_timed_rounds(tmp_path):
    """A second sitting asked AR and one prompt again; warm-up and cut rounds do not count either."""
    rounds = [[3, 4, ""], [0, 1, ""], [2, 2, "length"]]
    lines = [record(AR, "code-1", 0), record("ddtree-16", "code-1", 0, rounds=rounds)]
    lines += [record("ddtree-16", "code-2", 0, phase="warmup")]
    again = [record(AR, "code-1", 0, 1), record("ddtree-16", "code-1", 0, 1, rounds=[[9, 10, ""]])]
    write_cell(tmp_path, CELL, [lines, again], dict.fromkeys([AR, "ddtree-16"], "complete"), {})
    arm = load_acceptance(tmp_path).set_index("arm").loc["ddtree-16"]
    assert arm["rounds"].tolist() == [1, 1, 1] and arm["marginal"].tolist() == [0.5] * 3
    assert arm["conditional"].tolist() == [0.5, 1, 1]
    histogram = load_histogram(tmp_path).set_index("arm").loc["ddtree-16"]
    assert histogram["rounds"].tolist() == [1, 0, 0, 1]


def test_by_category(shared):
    rates = load_acceptance(shared, by="category")
    assert rates.columns.tolist()[:3] == ["cell_id", "arm", "category"]
    chosen = rates[(rates["cell_id"] == CELL) & (rates["arm"] == "ddtree-16") & (rates["category"] == "math")]
    assert chosen["marginal"].tolist() == [1, 1, 0]
    assert load_histogram(shared, by="category")["category"].notna().all()


def test_nothing_yet_has_all_columns(tmp_path):
    write_cell(tmp_path, CELL, [], {AR: "pending"}, {})
    assert load_acceptance(tmp_path).columns.tolist()[-1] == "results" and load_acceptance(tmp_path).empty
    assert load_histogram(tmp_path, by="category").columns.tolist()[2] == "category"


def test_damage_is_named(tmp_path):
    cell = write_cell(tmp_path, CELL, [timed([AR])], {AR: "complete"}, {})
    file = cell / "sittings" / "0" / "requests.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    lines[3]["n_output"] = 5
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(Refusal, match=f"timed request of {AR} for math-1"):
        load_acceptance(tmp_path)
