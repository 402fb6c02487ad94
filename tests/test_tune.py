"""`experiment=tune` from the command line to the YAML that is run with, and again; once on the built-in pair."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from fake_world import REPOSITORY, FakeWorld
from omegaconf import OmegaConf

from analysis.advise_frame import load_advice
from harness.__main__ import main
from harness.records import read_json

PATHS = (str(REPOSITORY / "tests"), str(REPOSITORY))
COST = {"FAKE_ROW_S": "0.0001"}  # of 2 ms a round without a row
WORDS = ("experiment=tune", "budget=4,8,32", "replay=64", "repeats=1")


def asked(world: FakeWorld) -> dict[str, set[str]]:
    """The arms of each half that were asked for."""
    found = {}
    for cell in (world.results / "cells").iterdir():
        split = read_json(cell / "cell.json")["settings"]["split"]
        found[split] = {file.stem for file in (cell / "arms").glob("*.json")}
    return found


@pytest.fixture(scope="module")
def tuned_world(tmp_path_factory):
    """A world in which the command has run, and what it said."""
    world = FakeWorld.make(tmp_path_factory.mktemp("tune") / "world")
    return world, world.started(*WORDS, **COST)


def test_it_measures_chooses_checks_and_writes_what_to_run(tuned_world):
    world, done = tuned_world
    assert done.returncode == 0, done.stderr
    halves = asked(world)
    # A round accepts half of its budget: 12 nodes take the 19 tokens in three rounds, as do all larger ones.
    assert halves["dev"] == {"autoregressive", "dflash", "ddtree-4", "ddtree-8", "ddtree-32", "ddtree-12"}
    assert halves["test"] == {"autoregressive", "dflash", "ddtree-8", "ddtree-12", "ddtree-32"}
    table = load_advice(world.results).set_index("arm")
    assert table.index[table["verdict"] == "take"].tolist() == ["ddtree-12"]
    assert table.loc["ddtree-12", "measured_speedup"] == pytest.approx(table.loc["ddtree-12", "speedup"], rel=0.02)
    assert "Take budget 12 (method=ddtree budget=12)" in done.stdout and "test half" in done.stdout
    assert f"--config-dir {world.results} --config-name tuned" in done.stdout
    tuned = (world.results / "tuned.yaml").read_text()
    assert tuned.startswith("# What tune=true chose. Take budget 12")
    assert OmegaConf.create(tuned)["budget"] == 12


def test_it_is_done_once_and_continues_where_it_stopped(tuned_world):
    world, _ = tuned_world
    tuned, halves = (world.results / "tuned.yaml").read_text(), asked(world)
    sittings = sorted(world.results.glob("cells/*/sittings/*"))
    (world.results / "tuned.yaml").unlink()
    again = world.run(*WORDS, **COST)
    assert again.returncode == 0, again.stderr
    assert (world.results / "tuned.yaml").read_text() == tuned and asked(world) == halves
    assert sorted(world.results.glob("cells/*/sittings/*")) == sittings


def test_what_was_written_runs(tuned_world):
    world, _ = tuned_world
    conf, prompts = f"--config-dir={world.folder / 'conf'}", f"workload.path={world.folder / 'prompts.jsonl'}"
    (world.folder / "conf/tuned.yaml").write_text((world.results / "tuned.yaml").read_text())
    plain = FakeWorld(world.folder, out="tuned")
    words = ["--config-name=tuned", "max_new_tokens=20", f"results_dir={plain.results}"]
    assert OmegaConf.load(world.results / "tuned.yaml")["workload"]["path"] in prompts
    process = subprocess.run(
        [sys.executable, "-m", "harness", conf, *words],
        cwd=world.folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(world.folder / "modules"), *PATHS])},
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    assert plain.arm("ddtree-12")["settings"]["budget"] == 12
    settings = read_json(plain.cell / "cell.json")["settings"]
    assert (settings["split"], settings["engine"], settings["workload"]) == ("all", "fake", "file")


def test_several_cells_have_a_file_each_and_no_tree_where_none_pays(world):
    done = world.run(*WORDS, "budget=4,8", "temperature=0,0.5", FAKE_ROW_S="1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Take no draft") == 2
    files = sorted(file.name for file in world.results.glob("tuned*.yaml"))
    assert len(files) == 2 and all(name.startswith("tuned-") for name in files)
    assert {OmegaConf.load(world.results / name)["temperature"] for name in files} == {0, 0.5}
    assert all("override method: autoregressive" in (world.results / name).read_text() for name in files)


def test_a_dry_run_says_what_comes(tmp_path, capsys):
    assert main(["experiment=tune", "dry_run=true", "device=cpu", f"results_dir={tmp_path / 'results'}"]) == 0
    said = capsys.readouterr().out
    assert "ddtree-256" in said and "smoke:dev" in said and "on the test half" in said
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("workload.split=all", "workload.split=all is not accepted with tune=true: dev is"),
        ("replay=0", "replay=0 is not accepted with tune=true"),
        ("method=dflash", "tune=true is not accepted without a budget to time"),
        ("tune=2", "tune=2 is not accepted: true or false is"),
    ],
)
def test_what_cannot_be_tuned_is_refused(tmp_path, capsys, words, reason):
    settings = ["budget=4", "device=cpu", f"results_dir={tmp_path / 'results'}"]
    assert main(["experiment=tune", words, *settings]) == 2
    said = capsys.readouterr().err
    assert reason in said and said.count("\n") == 1
    assert not (tmp_path / "results").exists()


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_the_built_in_pair_is_tuned_from_end_to_end(tmp_path):
    results, words = tmp_path / "results", [sys.executable, "-m", "harness"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}

    def run(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*words, *more], cwd=tmp_path, env=environment, capture_output=True, text=True)

    done = run("experiment=tune", "max_new_tokens=32", f"results_dir={results}", "device=cpu")
    assert done.returncode == 0, done.stderr
    table = load_advice(results).set_index("arm")
    (taken,) = table.index[table["verdict"] == "take"]
    assert len(table) == 1026 and f"method={taken.split('-')[0]}" in done.stdout
    assert table["n_measured"].gt(0).sum() >= 4 and table["difference"].abs().max() < 1
    tuned = run("--config-dir", str(results), "--config-name=tuned", "max_new_tokens=16", f"results_dir={tmp_path}/t")
    assert tuned.returncode == 0, tuned.stderr
    assert taken in tuned.stdout
