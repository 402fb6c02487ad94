"""Kill -9 at random moments and repeat the command until it is done: the tables are those of a run left alone."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from fake_world import FakeWorld
from test_cells import CELL

from analysis import load_requests, load_rounds
from analysis.stats import one_each
from harness.cells import gather
from harness.records import read_json, sitting_lines
from harness.results import CellFolder, Turn
from methods.dflash import DFlash

REQUEST_S = 0.02  # of the fake engine, so that a sitting lasts about as long as kills are spread
SWEEP = ("-m", "method=dflash,ddtree", "budget=16,64", "seed=0,1", "retry_failed=true")
KEYS = ["cell_id", "arm", "prompt_id", "turn", "repeat"]
CONTENT = [
    "category",
    "prompt_ids",
    "output_ids",
    "text",
    "finish_reason",
    "exact_match",
    "true_violations",
    "n_rounds",
]


def tables(results: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """What a reader makes of the timed requests: one row each with ids, outputs and rounds, times left out."""
    requests = load_requests(results)
    requests = one_each(requests[requests["phase"] == "timed"])
    rounds = load_rounds(results)
    rounds = rounds.merge(requests[["sitting", *KEYS]], on=["sitting", *KEYS])
    rounds = rounds[rounds["phase"] == "timed"][[*KEYS, "round", "accepted", "emitted", "cut"]]
    requests = requests[[*KEYS, *CONTENT]]
    return tuple(
        frame.sort_values(list(frame.columns[:6] if "round" in frame else KEYS)).reset_index(drop=True)
        for frame in (requests, rounds)
    )


def assert_nothing_repeated(results: Path) -> None:
    """Beside AR's answer in the same sitting, an arm answered each prompt once; so for the profiled requests."""
    for cell in (results / "cells").iterdir():
        lines = pd.DataFrame(sitting_lines(cell))
        identity = ["sitting", "phase", "arm", "prompt_id", "turn", "repeat"]
        assert not lines.duplicated(identity).any()
        timed, profiled = (lines[lines["phase"] == phase] for phase in ("timed", "profile"))
        ar = timed[timed["arm"] == "autoregressive"][["sitting", "prompt_id", "repeat"]]
        paired = timed[timed["arm"] != "autoregressive"].merge(ar, on=["sitting", "prompt_id", "repeat"])
        for frame in (paired, profiled[profiled["arm"] != "autoregressive"]):
            assert not frame.duplicated(["arm", "prompt_id", "repeat"]).any()
        status = read_json(cell / "status.json")
        assert status["status"] == "complete" and not (cell / "failure.json").exists()
        assert profiled.groupby("arm")["prompt_id"].nunique().to_dict() == dict.fromkeys(status["arms"], 3)


def records(world: FakeWorld) -> set[Path]:
    return {path for path in world.results.glob("cells/*/sittings/*/requests.jsonl") if path.stat().st_size}


def amid_requests(world: FakeWorld) -> bool:
    """Whether a cell has answers to timed requests, but not all of them."""
    cells = [cell for cell in world.results.glob("cells/*") if not (cell / "status.json").exists()]
    return any(line["phase"] == "timed" for cell in cells for line in sitting_lines(cell))


def kill_until_done(
    world: FakeWorld, words: tuple[str, ...], dice: random.Random, span_s: float, kills: int
) -> tuple[int, int]:
    """Run the command again and again, killing the parent or its cell each time, until `kills` are spent or it ends
    by itself; then once more in peace. A kill falls within `span_s` of a sitting's first record, one in four of the
    start. Returns how many kills there were, and how many of them amid a cell's timed requests."""
    amid = 0
    for done in range(kills):
        before, parent = records(world), world.start(*words, FAKE_REQUEST_S=str(REQUEST_S))
        from_start = dice.random() < 0.25
        while not from_start and parent.poll() is None and records(world) == before:
            time.sleep(0.005)
        try:
            parent.wait(dice.uniform(0, span_s))
        except subprocess.TimeoutExpired:
            cells = list(world.processes("harness.cell"))
            victim = dice.choice([parent.pid, *cells[:1]])
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
            if victim != parent.pid:  # the rest runs on; end that too
                time.sleep(dice.uniform(0, 0.2))
                parent.kill()
        _, err = parent.communicate()
        assert "Traceback" not in err, err
        if parent.returncode == 0:
            return done, amid
        world.assert_no_process_left()
        amid += amid_requests(world)
    last = world.run(*words)
    assert last.returncode == 0, last.stderr
    return kills, amid


def assert_survives(whole: FakeWorld, words: tuple[str, ...], seed: int, span_s: float, kills: int) -> None:
    """`kills` kills over as many runs as it takes, each compared with one left alone; a fifth of them and more come
    amid timed requests."""
    assert whole.run(*words).returncode == 0
    expected, dice, number, left, amid = tables(whole.results), random.Random(seed), 0, kills, 0
    while left:
        world = replace(whole, out=f"killed-{number}")
        spent, among = kill_until_done(world, words, dice, span_s, left)
        left, amid = left - spent, amid + among
        for mine, theirs in zip(tables(world.results), expected, strict=True):
            pd.testing.assert_frame_equal(mine, theirs)
        assert_nothing_repeated(world.results)
        world.assert_no_process_left()
        number += 1
    assert 5 * amid >= kills, f"{amid} of {kills} kills came amid timed requests"


def test_five_kills_lose_and_repeat_nothing(world):
    assert_survives(world, SWEEP, seed=4, span_s=1.0, kills=5)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_three_hundred_kills_lose_and_repeat_nothing(world):
    assert_survives(world, SWEEP, seed=300, span_s=1.0, kills=300)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ten_kills_of_the_built_in_pair_lose_and_repeat_nothing(world):
    (world.folder / "modules/transformers.py").unlink()  # the real tokenizer
    real = ("engine=reference", "model=tiny", "max_new_tokens=12", "repeats=1", "tp=2", "timeout_s=120")
    words = ("-m", "method=dflash,ddtree", "budget=16", "retry_failed=true", *real)
    assert_survives(world, words, seed=10, span_s=10, kills=10)


def test_a_kill_while_overwriting_leaves_no_half_of_a_cell(tmp_path, monkeypatch):
    (cell,) = gather([(CELL, DFlash())])
    folder = CellFolder(tmp_path, cell, {}, (Turn("p"),))
    folder.prepare(retry_failed=False, overwrite=False)
    record = folder.path / "sittings/0/requests.jsonl"
    record.parent.mkdir()
    record.write_text("")

    def killed(path: Path, **options: Any) -> None:
        if path.exists():
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            folder.prepare(retry_failed=False, overwrite=True)
    assert not folder.path.exists()
    folder.prepare(retry_failed=False, overwrite=False)
    assert not record.exists() and not (tmp_path / "discarded").exists()
    assert [arm.name for arm in folder.pending] == ["autoregressive", "dflash"]
