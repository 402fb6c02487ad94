"""Conversations: AR's answers are written once and are part of what every arm, tp and later command asks."""

from __future__ import annotations

import json
import os
import signal
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_world import FakeWorld
from test_cells import CELL

from analysis import load_requests, load_runs
from harness.histories import key
from harness.questions import turns
from harness.records import read_json, sitting_lines
from harness.results import Turn

WORDS = ("red", "green", "blue")
QUICK = "repeats=1"
LATER = ("And louder?", "Once more.")
TURNS = 1 + len(LATER)
WANTED = {(word, turn) for word in WORDS for turn in range(TURNS)}


@pytest.fixture
def talk(world: FakeWorld) -> FakeWorld:
    """Every prompt is a conversation of three turns, whose first one has a right answer."""
    lines = [{"id": word, "turns": [f"Say {word}.", *LATER], "answer": "7"} for word in WORDS]
    world.write("prompts.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    return world


def cells(world: FakeWorld) -> list[Path]:
    return sorted((world.results / "cells").iterdir())


def timed(world: FakeWorld) -> list[dict[str, Any]]:
    return [line for cell in cells(world) for line in sitting_lines(cell) if line["phase"] == "timed"]


def asked(world: FakeWorld) -> dict[tuple[str, int], set[tuple[int, ...]]]:
    """The different prompt ids that were put to any arm of any cell, by prompt and turn."""
    found = defaultdict(set)
    for line in timed(world):
        found[line["prompt_id"], line["turn"]].add(tuple(line["prompt_ids"]))
    return found


def stored(world: FakeWorld) -> list[dict[str, Any]]:
    (file,) = (world.results / "histories").glob("*.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_every_arm_and_tp_asks_the_same(talk):
    done = talk.run("-m", QUICK, "method=dflash,ddtree", "budget=16", "tp=1,2")
    assert done.returncode == 0, done.stderr
    assert len(cells(talk)) == 2 and set(asked(talk)) == WANTED
    assert all(len(ids) == 1 for ids in asked(talk).values())
    assert len(timed(talk)) == 2 * 3 * len(WANTED)  # cells and arms

    histories = stored(talk)
    assert len(histories) == len(WORDS) * len(LATER)  # the last answers are nobody's history
    assert {line["written_by"]["tp"] for line in histories} == {1}
    second = next(line for line in timed(talk) if line["prompt_id"] == "red" and line["turn"] == 1)
    answer = next(line["text"] for line in histories if line["prompt_id"] == "red" and line["turn"] == 0)
    assert second["prompt_text"] == f"user: Say red.\n\nassistant: {answer}\n\nuser: And louder?"
    assert "".join(map(chr, second["prompt_ids"])) == f"Say red.{answer}And louder?"
    facts = [read_json(cell / "sittings/0/environment.json") for cell in cells(talk)]
    assert facts[0]["histories"] == facts[1]["histories"] and facts[0]["histories"]["file"].endswith(".jsonl")
    assert facts[0]["rendered_prompts_sha256"] == facts[1]["rendered_prompts_sha256"]

    runs = load_runs(talk.results)
    assert set(runs["n_requests"]) == {len(WANTED)} and set(runs["n_prompts"]) == {len(WORDS)}
    assert set(runs["n_scored"]) == {len(WORDS)} and not load_requests(talk.results)["exact_match"].eq(False).any()
    assert {line["correct"] is None for line in timed(talk) if line["turn"]} == {True}


def test_a_later_command_asks_the_same_whatever_the_target_would_say_now(talk):
    assert talk.run(QUICK, "method=dflash").returncode == 0
    before = asked(talk)
    added = talk.run("-m", QUICK, "method=faulty", "tp=1,2", "workload.limit=2,null", FAKE_SALT="another machine")
    assert added.returncode == 0, added.stderr
    assert len(cells(talk)) == 4 and asked(talk) == before and len(stored(talk)) == len(WORDS) * len(LATER)
    other = talk.run(QUICK, "method=faulty", "seed=1", FAKE_SALT="another machine")
    assert other.returncode == 0 and len(list((talk.results / "histories").iterdir())) == 2


def test_histories_that_changed_under_a_cell_are_refused(talk):
    assert talk.run(QUICK, "method=dflash").returncode == 0
    (file,) = (talk.results / "histories").iterdir()
    file.unlink()
    added = talk.run(QUICK, "method=faulty", FAKE_SALT="another machine")
    assert added.returncode == 1 and "the prompts, rendered, are not those of sitting 0" in added.stderr
    assert talk.run(QUICK, "method=faulty", "overwrite=true", FAKE_SALT="another machine").returncode == 0


def test_a_kill_while_histories_are_written_loses_the_one_in_flight(talk):
    parent = talk.start(QUICK, "method=dflash", FAKE_REQUEST_S="0.1")
    talk.wait_for("histories/*.jsonl")
    (child,) = talk.processes("harness.cell")
    os.kill(child, signal.SIGKILL)
    parent.communicate(timeout=20)
    talk.assert_no_process_left()
    (file,) = (talk.results / "histories").iterdir()
    kept = file.read_bytes()
    assert 0 < kept.count(b"\n") < len(WORDS) * len(LATER) and not timed(talk)
    file.write_bytes(kept + b'{"prompt_id": "gr')  # as a kill within a write would leave it
    done = talk.run(QUICK, "method=dflash", "retry_failed=true")
    assert done.returncode == 0, done.stderr
    assert file.read_bytes().startswith(kept)
    assert (
        len({(line["prompt_id"], line["turn"]) for line in stored(talk)})
        == len(stored(talk))
        == len(WORDS) * len(LATER)
    )
    whole = replace(talk, out="whole")
    assert whole.run(QUICK, "method=dflash").returncode == 0 and asked(talk) == asked(whole)


def test_an_interrupted_sweep_goes_on_turn_by_turn(talk):
    parent = talk.start(QUICK, "method=dflash", FAKE_REQUEST_S="0.03")
    talk.wait_for("cells/*/sittings/0/requests.jsonl")
    parent.send_signal(signal.SIGINT)
    parent.communicate(timeout=20)
    assert talk.run(QUICK, "method=dflash").returncode == 0
    done = [(line["arm"], line["prompt_id"], line["turn"]) for line in timed(talk)]
    assert set(done) == {(arm, *turn) for arm in ("autoregressive", "dflash") for turn in WANTED}
    assert len([one for one in done if one[0] == "dflash"]) == len(WANTED)


PRINTS = {"target": "t", "drafter": "d", "prompts": "p"}


@pytest.mark.parametrize(
    "change",
    [
        *({"tp": 4}, {"dtype": "bfloat16"}, {"engine_target": "other.Engine"}, {"device": "cuda"}, {"repeats": 3}),
        *({"drafter": "another"}, {"split": "dev"}, {"limit": 3}, {"model": "my name"}, {"oracle_rate": 0.1}),
    ],
)
def test_what_shares_histories(change):
    assert key(replace(CELL, **change), PRINTS) == key(CELL, PRINTS)
    assert key(CELL, {**PRINTS, "drafter": "e", "prompts": "q"}) == key(CELL, PRINTS)


@pytest.mark.parametrize(
    "change",
    [
        *({"temperature": 1.0}, {"top_p": 0.9}, {"seed": 1}, {"max_new_tokens": 9}, {"workload": "chat"}),
        *({"system": "Be brief."}, {"enable_thinking": True}, {"context": 4096}, {"weights": "random"}),
    ],
)
def test_what_does_not(change):
    assert key(replace(CELL, **change), PRINTS) != key(CELL, PRINTS)
    assert key(CELL, {**PRINTS, "target": "u"}) != key(CELL, PRINTS)


def test_turns_of_a_workload_without_conversations():
    assert turns(CELL)[0] == Turn("chat-001", 0) and {turn for _, turn in turns(CELL)} == {0}
