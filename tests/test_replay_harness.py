"""Replays on disk: one a prompt and turn, never lost, never made twice; and what the tables make of them."""

from __future__ import annotations

import pytest
from fake_engine import BLOCK
from fake_world import WORDS, FakeWorld

from analysis import load_acceptance, load_histogram, load_requests, load_rounds, load_runs
from analysis.replay_table import load_differences
from harness.records import read_json, sitting_lines
from harness.results import REPLAYS

REPLAY = ("method=autoregressive", "replay=64")


def replays(world: FakeWorld) -> list[dict]:
    return sitting_lines(world.cell, REPLAYS)


def test_a_replay_is_made_once_for_every_prompt(world):
    done = world.run(*REPLAY)
    assert done.returncode == 0, done.stderr
    lines = replays(world)
    assert [line["prompt_id"] for line in lines] == list(WORDS)
    answers = {line["prompt_id"]: line for line in world.timed() if line["repeat"] == 0}
    for line in lines:
        answer = answers[line["prompt_id"]]
        assert line["output_ids"] == answer["output_ids"] and line["finish_reason"] == answer["finish_reason"]
        assert (line["turn"], line["budget"], line["n_input"]) == (0, 64, len(answer["prompt_ids"]))
        assert len(line["places"]) == len(line["chain"]) == len(answer["output_ids"]) - 1
    assert {line["arm"] for line in world.timed()} == {"autoregressive"}
    again = world.run(*REPLAY)
    assert again.returncode == 0 and replays(world) == lines
    assert len(list((world.cell / "sittings").iterdir())) == 1


def test_a_replay_that_fails_keeps_what_is_done_and_is_taken_up_again(world):
    failed = world.run(*REPLAY, FAKE_REPLAY_FAILS=WORDS[2])
    assert failed.returncode == 1
    assert "no budget curve: replay" in failed.stderr and "the replay went wrong" in failed.stderr
    assert world.arm("autoregressive")["status"] == "complete"
    assert [line["prompt_id"] for line in replays(world)] == list(WORDS[:2])
    before = world.timed()
    done = world.run(*REPLAY)
    assert done.returncode == 0, done.stderr
    assert [line["prompt_id"] for line in replays(world)] == list(WORDS) and world.timed() == before
    second = read_json(world.cell / "sittings/1/sitting.json")
    assert [turn[0] for turn in second["replay"]] == list(WORDS[2:]) and not second["steps"]


def test_a_killed_command_loses_the_replay_in_flight_alone(world):
    process = world.start(*REPLAY, FAKE_REPLAY_S="0.15")
    world.wait_for(f"cells/*/sittings/0/{REPLAYS}")
    process.kill()
    process.wait()
    world.assert_no_process_left()
    kept = replays(world)
    assert 0 < len(kept) < len(WORDS)
    assert world.run(*REPLAY).returncode == 0
    assert replays(world)[: len(kept)] == kept and [line["prompt_id"] for line in replays(world)] == list(WORDS)


def test_replayed_arms_stand_beside_measured_ones(world):
    assert world.run("method=ddtree", "budget=16", "replay=300").returncode == 0
    runs = load_runs(world.results).set_index("arm")
    assert list(runs.index) == ["autoregressive", "dflash", *(f"ddtree-{b}" for b in (16, 32, 64, 128, 256))]
    assert set(runs.index[runs["source"] == "measured"]) == {"autoregressive", "ddtree-16"}
    replayed = runs[runs["source"] == "replayed"]
    assert replayed["status"].eq("complete").all() and replayed["n_requests"].eq(len(WORDS)).all()
    assert replayed[["tpot_s", "speedup", "e2e_s", "tokens_per_s", "draft_s"]].isna().all(axis=None)
    assert runs.loc["ddtree-32", "acceptance_length"] == BLOCK and runs.loc["dflash", "acceptance_length"] == 4
    assert set(load_requests(world.results)["arm"]) == set(load_rounds(world.results)["arm"])
    assert set(load_requests(world.results)["arm"]) == {"autoregressive", "ddtree-16"}
    by_category = load_runs(world.results, by="category")
    assert by_category["source"].eq("replayed").sum() == len(replayed)
    for load in (load_acceptance, load_histogram):
        assert set(load(world.results)["arm"]) == set(runs.index)


def test_measured_rounds_in_other_cells_are_compared(world):
    assert world.run(*REPLAY).returncode == 0
    assert world.run("-m", "method=dflash,ddtree", "budget=3,16").returncode == 0
    found = load_differences(world.results).set_index("arm")
    assert set(found.index) == {"dflash", "ddtree-3", "ddtree-16"}
    assert found["n_differing"].eq(0).all() and found["n_requests"].eq(2 * len(WORDS)).all()
    assert (found["acceptance_length"] == found["acceptance_length_replayed"]).all()
    assert world.run("-m", "method=dflash", "seed=7").returncode == 0  # another text: nothing to compare
    assert len(load_differences(world.results)) == 3


def test_an_arm_that_fails_does_not_keep_ar_from_being_replayed(world):
    done = world.run("method=faulty", "method.fault=raise", "replay=8")
    assert done.returncode == 1 and "budget curve" not in done.stderr
    assert [line["prompt_id"] for line in replays(world)] == list(WORDS)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("engine=blind", "replay=64"), "replay=64 is not accepted: engine=blind cannot replay a text"),
        (("replay=-1",), "replay=-1 is not accepted: an integer of at least 0 is"),
        (("replay=true",), "replay=true is not accepted: an integer is"),
    ],
)
def test_what_cannot_be_replayed_is_refused(world, words, reason):
    world.write("conf/engine/blind.yaml", "_target_: fake_engine.BlindEngine\n")
    refused = world.run(*words)
    assert refused.returncode == 2 and reason in refused.stderr and refused.stderr.count("\n") == 1
    assert not world.results.exists()


def test_the_experiment_asks_for_ar_alone_and_every_budget(world):
    done = world.run("experiment=replay", "dry_run=true")
    assert done.returncode == 0 and "autoregressive" in done.stdout and "ddtree" not in done.stdout
