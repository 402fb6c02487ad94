"""What wandb is told, read back from the files of a real offline run; and what happens when it cannot be reached."""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import records_fixture
from fake_world import WORDS, FakeWorld

from analysis import load_requests, load_runs
from harness import dashboard, tracker_wandb
from harness.records import read_json
from harness.sitting import Event
from harness.tracker_wandb import WandbTracker, answered, curves, has_key, run_id

SWEEP = ("-m", "method=dflash,ddtree", "budget=16,64", "tracker=wandb", "tracker.tags=[try]")
ARMS = ("autoregressive", "dflash", "ddtree-16", "ddtree-64")
BLOCK = 32768


def records_in(file: Path) -> Iterator[Any]:
    """The records of a `.wandb` file: protocol buffers in the frames of a LevelDB log."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, parts = file.read_bytes(), 7, b""
    assert data[:4] == b":W&B"
    while at + 7 <= len(data):
        if BLOCK - at % BLOCK < 7:
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        body, at = data[at + 7 : at + 7 + length], at + 7 + length
        parts = body if kind in (1, 2) else parts + body
        if kind in (1, 4):  # whole, or its last part
            record = Record()
            record.ParseFromString(parts)
            yield record


class Kept:
    """What one offline run's files say."""

    def __init__(self, file: Path) -> None:
        self.folder, self.history, self.summary, self.config = file.parent, [], {}, {}
        self.artifacts, self.metrics, self.ended = {}, {}, False
        for record in records_in(file):
            kind = record.WhichOneof("record_type")
            content = getattr(record, kind)
            if kind == "run":
                self.run = content
                self.config |= _values(content.config.update)
            elif kind == "config":
                self.config |= _values(content.update)
            elif kind == "summary":
                self.summary |= _values(content.update)
            elif kind == "history":
                self.history.append(_values(content.item))
            elif kind == "metric":
                self.metrics[content.glob_name or content.name] = content.step_metric
            elif kind == "artifact":
                self.artifacts[content.type, content.name] = [entry.path for entry in content.manifest.contents]
            elif kind == "exit":
                self.ended = True

    def table(self, name: str) -> list[dict[str, Any]]:
        (file,) = self.folder.glob(f"files/media/table/{name}_*.json")
        content = read_json(file)
        return [dict(zip(content["columns"], row, strict=True)) for row in content["data"]]


def _values(items: Any) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def kept(world: FakeWorld) -> list[Kept]:
    return [Kept(file) for file in sorted(world.results.glob("wandb/offline-run-*/run-*.wandb"))]


@pytest.fixture
def alone(world, monkeypatch) -> FakeWorld:
    """A world in which nobody is logged in, on a machine that has wandb."""
    pytest.importorskip("wandb")
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    for name in ("HOME", "XDG_CACHE_HOME", "NETRC"):
        monkeypatch.setenv(name, str(world.folder / "home"))
    return world


def test_an_offline_run_holds_the_cell_and_is_continued(alone):
    world = alone
    done = world.started(*SWEEP, "seed=1")
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert "wandb: offline; `wandb sync " in done.stdout
    (first,) = kept(world)
    assert first.ended and first.run.project == "draft-tree-harness" and first.run.job_type == "cell"
    assert first.run.run_id == run_id(world.cell) and first.run.run_id.startswith(world.cell.name)
    assert len(first.run.run_group) == 12 and first.run.run_group != world.cell.name
    assert set(first.run.tags) == {"try", "fake", "file", "tp1"}
    assert first.config["seed"] == 1 and first.config["arms"]["ddtree-64"]["budget"] == 64
    assert first.config["environment"]["engine"] == {"dtype": "float32"}
    assert first.metrics["live/*"] == "live/request" and first.metrics["by_budget/*"] == "budget"

    runs = load_runs(world.results).set_index("arm")
    for arm in ARMS:
        assert first.summary[f"{arm}/status"] == runs.loc[arm, "status"]
        assert first.summary[f"{arm}/speedup"] == pytest.approx(runs.loc[arm, "speedup"])
        assert first.summary[f"{arm}/acceptance_length"] == pytest.approx(runs.loc[arm, "acceptance_length"])
    points = [line for line in first.history if "budget" in line]
    assert [line["budget"] for line in points] == [16, 64]
    assert [line["by_budget/ddtree/tokens_per_s"] for line in points] == pytest.approx(
        [runs.loc[f"ddtree-{budget}", "tokens_per_s"] for budget in (16, 64)]
    )
    live = [line for line in first.history if "live/request" in line]
    assert live[-1]["live/request"] == len(ARMS) * len(WORDS) * 2
    assert {f"live/{arm}/{name}" for arm in ARMS for name in ("tokens_per_s", "acceptance_length")} <= set(live[-1])

    assert [row["arm"] for row in first.table("arms")] == list(runs.index)
    rows = first.table("requests")
    assert len(rows) == len(world.timed()) and {row["prompt_id"] for row in rows} == set(WORDS)
    assert all(row["speedup"] > 0 and row["category"] == "colour" for row in rows)
    files = first.artifacts["results", f"cell-{world.cell.name}"]
    assert {"cell.json", "status.json", "requests.parquet", "rounds.parquet", "arms/ddtree-16.json"} <= set(files)

    done = world.started("-m", "method=ddtree", "budget=128", "seed=1", "tracker=wandb")
    assert done.returncode == 0 and not done.stderr, done.stderr
    first, second = kept(world)
    assert second.ended and second.run.run_id == first.run.run_id
    assert [line["budget"] for line in second.history if "budget" in line] == [16, 64, 128]
    again = [line["live/request"] for line in second.history if "live/request" in line]
    assert again[0] > live[-1]["live/request"] and again[-1] == len(world.timed())
    world.assert_no_process_left()


def test_an_interrupted_cell_ends_its_run(alone):
    world = alone
    process = world.start("method=faulty", "method.fault=hang", "tracker=wandb")
    world.wait_for("cells/*/sittings/0/requests.jsonl")
    world.wait_for("wandb/offline-run-*/run-*.wandb")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    (run,) = kept(world)
    assert process.returncode == 130 and run.ended
    assert not [line for line in run.history if "budget" in line]  # no curve before its arms are done
    world.assert_no_process_left()


class FakeWandb:
    """Enough of wandb to see what is called; `broken` names calls that fail."""

    def __init__(self, *broken: str) -> None:
        self.broken, self.calls, self.summary, self.modes = broken, [], {}, []
        self.errors = SimpleNamespace(Error=ConnectionError)
        self.config = SimpleNamespace(update=self._call("config"))
        for name in ("log", "log_artifact", "define_metric", "finish", "teardown"):
            setattr(self, name, self._call(name))
        self.Settings = lambda **settings: settings
        self.Table = lambda columns, rows: (columns, rows)
        self.Artifact = lambda *words, **more: SimpleNamespace(add_file=lambda *words, **more: None)
        self.settings, self.url = SimpleNamespace(sync_dir="/runs/offline-run-1"), "https://wandb.example/run"

    def _call(self, name: str) -> Any:
        def called(*words: Any, **more: Any) -> None:
            self.calls.append((name, *words))
            if name in self.broken:
                raise OSError(28, "No space left on device")

        return called

    def init(self, **settings: Any) -> FakeWandb:
        self.modes.append((settings["mode"], settings["resume"]))
        if settings["mode"] in self.broken:
            raise ConnectionError("no route\nto host")
        return self


@pytest.fixture
def cell(tmp_path) -> Path:
    return records_fixture.make_results(tmp_path) / "cells" / records_fixture.CELL


def listener(monkeypatch, wandb: FakeWandb, **settings: Any) -> tracker_wandb.WandbListener:
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    found = WandbTracker(**settings).listener("sweep")
    assert isinstance(found, tracker_wandb.WandbListener)
    return found


def test_a_run_is_finished_whatever_fails(monkeypatch, cell):
    for broken in ("log", "log_artifact", "config"):
        wandb = FakeWandb(broken)
        told = listener(monkeypatch, wandb, mode="offline")
        told.cell_began(cell, 0)
        with pytest.raises(OSError, match="No space left"):
            told.cell_ended(cell)
        assert wandb.calls[-1] == ("finish",)
        assert told.close() is not None and wandb.calls.count(("finish",)) == 1


def test_a_cell_that_cannot_be_sent_is_kept_offline(monkeypatch, cell):
    wandb = FakeWandb("online")
    told = listener(monkeypatch, wandb, mode="online")
    assert told.cell_began(cell, 0) == "wandb cannot be reached (no route to host): what follows is kept offline."
    assert wandb.calls[0] == ("teardown",)
    assert wandb.modes == [("online", "allow"), ("offline", None)]
    told.cell_ended(cell)
    assert told.cell_began(cell, 0) is None and wandb.modes[2:] == [("offline", None)]  # not waited for again
    assert told.close() == "wandb: offline; `wandb sync /runs/offline-run-1 /runs/offline-run-1` sends it."


def test_a_run_that_never_began_is_told_nothing(monkeypatch, cell):
    wandb = FakeWandb("online", "offline")
    told = listener(monkeypatch, wandb, mode="offline")
    with pytest.raises(ConnectionError):
        told.cell_began(cell, 0)
    told.request_ended(Event("done", "dflash", timed=True, tokens=3, decode_s=0.1, rounds=1, accepted=1))
    told.arm_ended(cell, "dflash", "complete")
    told.cell_ended(cell)
    assert told.close() is None and not wandb.calls


def test_a_run_online_says_where_it_is(monkeypatch, cell):
    told = listener(monkeypatch, FakeWandb(), mode="online")
    assert told.cell_began(cell, 0) == "wandb: https://wandb.example/run"
    assert told.close() is None


def test_the_id_belongs_to_the_cell_in_its_folder(cell, tmp_path):
    elsewhere = tmp_path / "elsewhere" / cell.name
    shutil.copytree(cell, elsewhere)
    assert run_id(cell) == run_id(cell) != run_id(elsewhere)


def test_invalid_arms_have_no_curve_and_level_arms_are_in_every_point(cell):
    points = list(curves(load_runs(cell)))
    assert [point["budget"] for point in points] == [16, 64]  # 256 is invalid, 1024 failed
    assert len({point["by_budget/dflash/speedup"] for point in points}) == 1
    rows = answered(load_requests(cell))
    assert set(rows["arm"]) >= {"autoregressive", "ddtree-16", "ddtree-64"} and rows["speedup"].notna().any()


def test_a_key_is_found_where_wandb_looks(monkeypatch, tmp_path):
    for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert not has_key()
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password x\n")
    assert has_key()
    monkeypatch.setenv("WANDB_BASE_URL", "https://own.example:8080")
    assert not has_key()
    monkeypatch.setenv("WANDB_API_KEY", "x")
    assert has_key()


def test_the_dashboard_is_built_without_a_network(capsys):
    with warnings.catch_warnings(action="ignore"):  # it is written for another pydantic
        pytest.importorskip("wandb_workspaces.reports.v2")
    assert dashboard.main(["--entity", "me", "--project", "p", "--spec"]) == 0
    spec = json.loads(capsys.readouterr().out)
    assert (spec["entity"], spec["project"], spec["displayName"]) == ("me", "p", dashboard.NAME)
    sections = spec["spec"]["section"]["panelBankConfig"]["sections"]
    assert [section["name"] for section in sections][:2] == ["Speed-up over autoregressive decoding", "Acceptance"]
    (speedup, *_) = sections[0]["panels"]
    assert speedup["config"]["xAxis"] == "budget" and "by_budget/ddtree/speedup" in speedup["config"]["metrics"]
    asked = json.dumps(spec)
    assert all(f"by_budget/ddtree/{figure}" in asked for figure in ("acceptance_length", "verify_s", "step_s"))


def test_a_dashboard_without_its_package_is_refused(monkeypatch, capsys):
    def missing(name: str) -> None:
        raise ModuleNotFoundError("no module", name="wandb_workspaces")

    monkeypatch.setattr("importlib.import_module", missing)
    assert dashboard.main(["--entity", "me"]) == 2
    said = "the dashboard needs the package wandb-workspaces: `pip install wandb-workspaces` gets it.\n"
    assert capsys.readouterr().err == said
