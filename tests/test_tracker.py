"""Trackers hear what a command does, in a process of their own, and whatever they do to themselves costs no result."""

from __future__ import annotations

import json
import signal
import time

import pytest
from fake_world import FakeWorld

from harness import __main__ as command_line
from harness.targets import build_tracker
from harness.tracker import Listener, NoTracker
from methods.base import Refusal

ARMS = ("autoregressive", "ddtree-16", "ddtree-64")
SWEEP = ("-m", "method=ddtree", "budget=16,64", "tracker=witness")

WITNESS = '''
"""Notes down what it hears, and fails as it is told to."""
import json, os, sys, time
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from harness.tracker import Listener, Tracker


@dataclass(frozen=True)
class Witness(Tracker):
    notes: str
    fault: str = "none"
    at: str = "cell_began"
    patience_s: ClassVar[float] = 1.5

    def listener(self, sweep):
        if self.at == "listener":
            self.fail()
        return Ear(self, sweep)

    def fail(self):
        if self.fault == "raise":
            raise OSError(28, "No space left on device")
        if self.fault == "import":
            import a_package_that_is_not_there
        if self.fault == "hang":
            time.sleep(1000)
        if self.fault == "exit":
            os._exit(3)
        if self.fault == "chatter":
            os.write(1, b"noise" * 200_000)
            sys.stderr.write("noise" * 200_000)


class Ear(Listener):
    def __init__(self, witness, sweep):
        self.witness, self.sweep = witness, sweep

    def note(self, call, *words):
        if self.witness.at in (call, "always"):
            self.witness.fail()
        with open(self.witness.notes, "a") as file:
            file.write(json.dumps([call, *words]) + "\\n")

    def cell_began(self, cell_folder, requests):
        self.note("cell_began", self.sweep, requests, (cell_folder / "cell.json").is_file())
        return "the witness listens"

    def request_ended(self, event):
        self.note("request_ended", event.arm, event.timed, event.tokens)

    def arm_ended(self, cell_folder, arm, status):
        self.note("arm_ended", arm, status)

    def cell_ended(self, cell_folder):
        self.note("cell_ended", (cell_folder / "requests.parquet").is_file())

    def close(self):
        self.note("close")
'''


@pytest.fixture
def watched(world) -> FakeWorld:
    world.write("modules/witness.py", WITNESS)
    settings = f"notes: {world.folder}/notes\nfault: none\nat: cell_began\n"
    world.write("conf/tracker/witness.yaml", f"_target_: witness.Witness\n{settings}")
    return world


def heard(world: FakeWorld) -> list[list]:
    file = world.folder / "notes"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_a_tracker_from_outside_hears_everything_in_order(watched):
    done = watched.started(*SWEEP)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("the witness listens") == 1 and not done.stderr
    calls = heard(watched)
    assert calls[0] == ["cell_began", calls[0][1], 0, True] and len(calls[0][1]) == 12
    timed = watched.timed()
    assert [call[1] for call in calls if call[0] == "request_ended"] == [line["arm"] for line in timed]
    assert all(call[2] and call[3] for call in calls if call[0] == "request_ended")
    assert calls[-5:] == [*(["arm_ended", arm, "complete"] for arm in ARMS), ["cell_ended", True], ["close"]]
    watched.assert_no_process_left()

    done = watched.run(*SWEEP)  # nothing is owed: nothing is told
    assert done.returncode == 0 and heard(watched)[len(calls) :] == [["close"]]


def test_a_failed_arm_is_told_as_one(watched):
    watched.run("method=faulty", "method.fault=raise", "tracker=witness")
    assert ["arm_ended", "faulty-raise", "failed"] in heard(watched)
    assert heard(watched)[-2:] == [["cell_ended", True], ["close"]]


FAULTS = {
    ("import", "listener"): "ModuleNotFoundError: No module named 'a_package_that_is_not_there'",
    ("raise", "always"): "OSError: [Errno 28] No space left on device",
    ("hang", "listener"): "it did not answer within 1.5 s",
    ("hang", "close"): "it did not answer within 1.5 s",
    ("exit", "arm_ended"): "its process ended early",
    ("chatter", "always"): "",
}


@pytest.mark.parametrize(("fault", "at"), FAULTS)
def test_a_tracker_that_fails_costs_one_sentence_and_no_result(watched, fault, at):
    done = watched.run(*SWEEP, f"tracker.fault={fault}", f"tracker.at={at}")
    assert done.returncode == 0, done.stderr
    assert all(watched.arm(arm)["status"] == "complete" for arm in ARMS)
    assert (watched.cell / "requests.parquet").is_file()
    if FAULTS[fault, at]:
        assert done.stderr.count("\n") == 1 and done.stderr.endswith(".\n")
        assert done.stderr.startswith("The tracker failed, which costs the results nothing: ")
        assert FAULTS[fault, at] in done.stderr
    else:
        assert not done.stderr
    watched.assert_no_process_left()


def test_one_failure_does_not_end_the_telling(watched):
    watched.run(*SWEEP, "tracker.fault=raise", "tracker.at=request_ended")
    assert [call[0] for call in heard(watched)] == ["cell_began", *["arm_ended"] * 3, "cell_ended", "close"]


def test_an_interrupt_lets_the_tracker_finish(watched):
    process = watched.start("method=faulty", "method.fault=hang", "tracker=witness")
    watched.wait_for("cells/*/sittings/0/requests.jsonl")
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130
    assert heard(watched)[-2:] == [["cell_ended", True], ["close"]]
    watched.assert_no_process_left()


def test_a_killed_command_lets_the_tracker_close(watched):
    process = watched.start("method=faulty", "method.fault=hang", "tracker=witness")
    watched.wait_for("cells/*/sittings/0/requests.jsonl")
    process.kill()
    process.communicate(timeout=30)
    watched.assert_no_process_left()
    assert heard(watched)[-1] == ["close"]


@pytest.mark.parametrize(
    ("words", "said"),
    {
        "tracker=witness tracker.fault=[a]": "tracker.fault=['a'] is not accepted: a text is.",
        "tracker=witness tracker.nots=x": "tracker.nots",
        "tracker=wandb tracker.mode=fast": "tracker.mode=fast is not accepted: auto, online, offline or disabled is.",
        "tracker=wandb tracker.project=''": "tracker.project is not accepted: it is empty; a project's name is.",
        "tracker=wandb tracker.mode=online": "tracker.mode=online needs",
    }.items(),
)
def test_wrong_settings_are_refused_in_a_sentence(watched, words, said):
    home = {"HOME": str(watched.folder), "NETRC": str(watched.folder / "none"), "WANDB_API_KEY": ""}
    done = watched.run(*words.split(), **home)
    if "mode=online" in words and "needs the package" in done.stderr:
        return
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and said in done.stderr
    assert not watched.results.exists()


def test_a_missing_package_is_refused_before_anything_starts(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name, package=None: None)
    words = ["device=cpu", f"results_dir={tmp_path / 'out'}", "tracker=wandb"]
    assert command_line.main(words) == 2
    said = capsys.readouterr().err
    assert said == "tracker=wandb needs the package wandb: `pip install wandb` gets it.\n"
    assert not (tmp_path / "out").exists()


def test_nobody_is_told_without_a_process():
    assert build_tracker({"_target_": "harness.tracker.NoTracker"}) == NoTracker()
    assert type(NoTracker().open("sweep")) is Listener
    with pytest.raises(Refusal, match="tracker has no _target_"):
        build_tracker({})


def test_the_jobs_of_a_cluster_tell_of_one_sweep(watched):
    pytest.importorskip("submitit")
    local = ("cluster=slurm", "cluster.executor=local", "cluster.parameters.cpus_per_task=1", "repeats=1")
    done = watched.run("-m", "seed=0,1", "method=dflash", "tracker=witness", *local)
    assert done.returncode == 0, done.stderr
    calls = heard(watched)
    (sweep,) = {call[1] for call in calls if call[0] == "cell_began"}
    assert len(sweep) == 12 and [call[0] for call in calls].count("cell_ended") == 2
    assert sum(call[0] == "request_ended" for call in calls) == 2 * 2 * 5
