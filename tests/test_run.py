"""Running: nothing is lost, nothing is run twice, nothing is left behind, whatever is killed."""

from __future__ import annotations

import re
import signal
from collections import Counter

import pyarrow.parquet as pq
from fake_world import WORDS, FakeWorld

from analysis import load_rounds, load_runs
from harness.records import KEYS, read_json, read_lines, sitting_lines

SWEEP = ("-m", "method=dflash,ddtree", "budget=16,64")
ARMS = ("autoregressive", "dflash", "ddtree-16", "ddtree-64")


def answers(world: FakeWorld) -> dict[tuple[str, str, int], tuple[int, ...]]:
    """What each arm answered; beside AR's answer in the same sitting an arm answers a prompt once in all."""
    lines = world.timed()
    keys = Counter((line["sitting"], line["arm"], line["prompt_id"], line["repeat"]) for line in lines)
    assert max(keys.values()) == 1
    paired = {(s, p, r) for (s, a, p, r) in keys if a == "autoregressive"}
    owed = Counter((a, p, r) for (s, a, p, r) in keys if a != "autoregressive" and (s, p, r) in paired)
    assert not owed or max(owed.values()) == 1
    return {(line["arm"], line["prompt_id"], line["repeat"]): tuple(line["output_ids"]) for line in lines}


def test_a_sweep_is_one_cell_and_repeating_it_runs_nothing(world):
    done = world.started(*SWEEP)
    assert done.returncode == 0, done.stderr
    assert all(arm in done.stdout for arm in ARMS) and f"Results: {world.results}" in done.stdout
    assert set(answers(world)) == {(arm, word, repeat) for arm in ARMS for word in WORDS for repeat in (0, 1)}
    assert read_json(world.cell / "status.json") == {
        "status": "complete",
        "arms": dict.fromkeys(sorted(ARMS), "complete"),
    }
    assert list((world.results / "hydra").glob("*/multirun.yaml")) and not (world.folder / "multirun").exists()
    environment = read_json(world.cell / "sittings/0/environment.json")
    assert environment["gap_tolerance"] == 1e-3 and environment["engine"] == {"dtype": "float32"}
    rows = pq.read_table(world.cell / "requests.parquet").to_pylist()
    assert {row["exact_match"] for row in rows if row["phase"] == "timed"} == {True}
    assert {row["arm"] for row in rows if row["phase"] == "warmup"} == set(ARMS)

    lines = sitting_lines(world.cell)
    watched = [line for line in lines if line["phase"] == "sentinel"]
    assert [(line["arm"], line["prompt_id"], line["repeat"]) for line in watched] == [
        ("autoregressive", word, place) for place in range(3) for word in WORDS[:3]
    ]
    timed = [line["order_index"] for line in lines if line["phase"] == "timed"]
    assert [sum(index < watched[3 * place]["order_index"] for index in timed) for place in range(3)] == [0, 20, 40]
    profiled = [line for line in lines if line["phase"] == "profile"]
    assert {line["order_index"] for line in profiled} == set(range(len(lines) - 12, len(lines)))
    assert {(line["arm"], line["prompt_id"]) for line in profiled} == {
        (arm, word) for arm in ARMS for word in WORDS[:3]
    }
    assert all(line["stages"] and line["exact_match"] is not False for line in profiled)
    assert all(line["stages"] is None for line in (*watched, *world.timed()))
    warmed = [line for line in lines if line["phase"] == "warmup"]
    asked = {(line["n_input"], line["n_output"]) for line in warmed if line["arm"] == "ddtree-16"}
    assert (max(line["n_input"] for line in world.timed()), 20) in asked
    assert {line["arm"] for line in warmed if line["stages"]} == set(ARMS)

    before = {path: path.stat().st_mtime_ns for path in world.cell.rglob("*.parquet")}
    again = world.started(*SWEEP)
    assert again.returncode == 0 and "4 of 4 arms had ended before" in again.stdout
    assert f"skipped: {', '.join(ARMS)} in cell {world.cell.name}" in again.stdout
    assert {path: path.stat().st_mtime_ns for path in world.cell.rglob("*.parquet")} == before
    assert [path.name for path in (world.cell / "sittings").iterdir()] == ["0"]

    added = world.run("method=faulty")
    assert added.returncode == 0 and "1 of 2 arms had ended before" in added.stdout
    second = [line for line in world.timed() if line["sitting"] == 1]
    assert {line["arm"] for line in second} == {"faulty-none", "autoregressive"}
    assert len(second) == 2 * 2 * len(WORDS)

    world.write_prompts(WORDS[:3])
    refused = world.run("method=faulty")
    assert refused.returncode == 2 and "another prompts" in refused.stderr and refused.stderr.count("\n") == 1
    fresh = world.run("method=faulty", "overwrite=true")
    assert fresh.returncode == 0 and len(world.timed()) == 2 * 2 * 3


def test_an_interrupt_ends_cleanly_and_continues(world):
    parent = world.start(*SWEEP, FAKE_REQUEST_S="0.05")
    world.wait_for("cells/*/sittings/0/requests.jsonl")
    second = world.run(*SWEEP)
    assert second.returncode == 2 and "is in use by process" in second.stderr and second.stderr.count("\n") == 1
    parent.send_signal(signal.SIGINT)
    out, err = parent.communicate(timeout=20)
    assert parent.returncode == 130 and "repeat the command to continue" in out and "Traceback" not in err
    world.assert_no_process_left()
    assert read_json(world.cell / "status.json")["status"] == "partial"
    done = world.run(*SWEEP)
    assert done.returncode == 0 and read_json(world.cell / "status.json")["status"] == "complete"
    assert len(answers(world)) == len(ARMS) * len(WORDS) * 2


def test_a_sitting_killed_before_its_profile_pass_owes_only_that(world):
    assert world.run("method=dflash").returncode == 0
    records = world.cell / "sittings/0/requests.jsonl"
    lines = [line for line in records.read_bytes().splitlines(keepends=True) if b'"phase":"profile"' not in line]
    profiled = len(records.read_bytes().splitlines()) - len(lines)
    records.write_bytes(b"".join(lines))
    (world.cell / "status.json").unlink()
    done = world.run("method=dflash")
    assert done.returncode == 0 and "2 of 2 arms had ended before" in done.stdout
    again = [line for line in sitting_lines(world.cell) if line["sitting"] == 1 and line["phase"] != "warmup"]
    assert {line["phase"] for line in again} == {"profile"} and len(again) == profiled == 2 * 3
    assert pq.read_table(world.cell / "requests.parquet").num_rows == len(sitting_lines(world.cell))


def test_an_arm_that_does_not_fit_or_cannot_be_profiled_leaves_the_others(world):
    words = ("-m", "method=faulty", "method.fault=huge,profile,none")
    done = world.run(*words)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    huge = world.arm("faulty-huge")
    assert huge["status"] == "failed" and huge["log_tail"] is None
    assert huge["reason"].startswith("needs 1.07e+09 GiB a rank, ") and huge["reason"].endswith(" GiB are free")
    lines = sitting_lines(world.cell)
    assert not [line for line in lines if line["arm"] == "faulty-huge"]
    assert all(world.arm(name)["status"] == "complete" for name in ("autoregressive", "faulty-none", "faulty-profile"))
    assert f"no stage times: faulty-profile in cell {world.cell.name}: RuntimeError" in done.stderr
    profiled = {(line["arm"], line["prompt_id"]) for line in lines if line["phase"] == "profile"}
    assert profiled == {(arm, word) for arm in ("autoregressive", "faulty-none") for word in WORDS[:3]}


def test_a_dry_run_estimates_from_earlier_records(world):
    assert "estimated time unknown" in world.run("method=dflash", "dry_run=true").stdout
    assert world.run("method=dflash", FAKE_REQUEST_S="0.01").returncode == 0
    assert "estimated time about 0 s" in world.run("method=dflash", "dry_run=true").stdout
    other = world.run("method=dflash", "seed=1", "repeats=200", "dry_run=true").stdout
    seconds = int(re.search(r"estimated time about (\d+) s", other)[1])
    assert 2 * 200 * len(WORDS) * 0.01 <= seconds < 59  # 2000 requests
    assert "estimated time unknown" in world.run("method=faulty", "dry_run=true").stdout


def test_faulty_arms_leave_a_reason_and_the_others_finish(world):
    words = ("-m", "method=faulty", "method.fault=raise,kill,lie,hang,none", "timeout_s=2.5")
    done = world.run(*words)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    expected = {
        "faulty-raise": ("failed", "RuntimeError: the draft went wrong"),
        "faulty-kill": (
            "failed",
            "the cell's process was killed by SIGKILL, which the system sends when memory runs out",
        ),
        "faulty-hang": ("failed", "no end within timeout_s=2.5"),
        "faulty-lie": ("invalid", "13 positions were not the target's choice"),
        "faulty-none": ("complete", None),
        "autoregressive": ("complete", None),
    }
    assert {name: (world.arm(name)["status"], world.arm(name)["reason"]) for name in expected} == expected
    assert "Traceback" in world.arm("faulty-raise")["log_tail"]
    assert set(read_json(world.cell / "failure.json")["arms"]) == {"faulty-raise", "faulty-kill", "faulty-hang"}
    assert all(name in done.stderr for name in ("faulty-raise", "faulty-kill", "faulty-hang", "faulty-lie"))
    world.assert_no_process_left()
    again = world.run(*words)
    assert again.returncode == 1 and "6 of 6 arms had ended before" in again.stdout


def test_a_cell_that_cannot_open_does_not_stop_the_next(world):
    done = world.run("-m", "seed=0,1", "method=dflash", FAKE_OPEN_FAILS="1")
    assert done.returncode == 1 and done.stderr.count("MemoryError: no room for the weights") == 4
    done = world.run("-m", "seed=0,1", "method=dflash", "retry_failed=true")
    assert done.returncode == 0, done.stderr
    cells = list((world.results / "cells").iterdir())
    assert len(cells) == 2
    assert all(read_json(cell / "status.json")["status"] == "complete" for cell in cells)
    assert not any((cell / "failure.json").exists() for cell in cells)


def test_a_dry_run_leaves_nothing(world):
    done = world.run(*SWEEP, "dry_run=true", "tp=1,2")
    assert done.returncode == 0 and "2 cells" in done.stdout and "ddtree-64" in done.stdout
    assert not world.results.exists()
    world.write("out", "a file where the folder should be")
    done = world.run("method=dflash")
    assert done.returncode == 2 and "cannot be written" in done.stderr and done.stderr.count("\n") == 1


def test_rounds_are_looked_at_in_a_pass_of_their_own(world):
    asked = ("method=dflash", "oracle_rate=1", "shadow_linear=true", "dump_rounds=true")
    done = world.run(*asked)
    assert done.returncode == 0, done.stderr
    lines = sitting_lines(world.cell)
    looked = [line for line in lines if line["phase"] == "profile"]
    assert {(line["arm"], line["prompt_id"]) for line in looked} == {
        (arm, word) for arm in ("autoregressive", "dflash") for word in WORDS
    }
    assert all(line["oracle_rounds"] == len(line["rounds"]) == len(line["shadow"]) for line in looked)
    assert all(line["oracle_rounds"] == 0 and line["shadow"] is None for line in lines if line["phase"] != "profile")
    dumped = read_lines(world.cell / "sittings/0/rounds.jsonl")
    assert len(dumped) == sum(len(line["rounds"]) for line in looked)
    assert dumped[0] == {
        **{key: looked[0][key] for key in KEYS},
        **{"round": 0, "root_at": 3, "tokens": [1, 2], "parents": [0, 0], "depths": [0, 1], "log_probs": [0.0, -0.5]},
        **{"path": [0], "bonus": 9, "accepted": looked[0]["rounds"][0][0], "oracle_gap": 0.0, "shadow_accepted": 1},
    }
    run = load_runs(world.results).set_index("arm").loc["dflash"]
    assert run["oracle_rounds"] == sum(line["oracle_rounds"] for line in looked if line["arm"] == "dflash")
    assert (run["oracle_max_gap"], run["oracle_disagreements"], run["status"]) == (0.0, 0.0, "complete")
    assert run["shadow_acceptance_length"] == 2.0
    rounds = load_rounds(world.results)
    assert (rounds.loc[rounds["phase"] == "profile", "shadow_accepted"] == 1).all()
    assert rounds.loc[rounds["phase"] == "timed", "shadow_accepted"].isna().all()
    assert "had ended before" in world.run(*asked).stdout


def test_a_fault_on_a_rejected_branch_makes_the_arm_invalid(world):
    unseen = world.run("method=faulty", "method.fault=branch")
    assert unseen.returncode == 0 and "invalid" not in unseen.stdout
    seen = world.run("method=faulty", "method.fault=branch", "oracle_rate=1", "overwrite=true")
    assert "invalid: faulty-branch" in seen.stderr
    runs = load_runs(world.results)
    inspected = runs[(runs["arm"] == "faulty-branch") & (runs["oracle_rounds"] > 0)]
    assert inspected["status"].tolist() == ["invalid"] and inspected["oracle_max_gap"].tolist() == [2.0]


def test_an_engine_that_cannot_look_into_rounds_says_so(world):
    world.write("conf/engine/blind.yaml", "_target_: fake_engine.BlindEngine\n")
    refused = world.run("engine=blind", "oracle_rate=0.5")
    assert refused.returncode == 2 and "oracle_rate=0.5 is not accepted: engine=blind cannot" in refused.stderr


def test_a_context_beyond_the_window_is_refused_before_anything_runs(world):
    done = world.run("engine=reference", "model=tiny", "workload.context=8192")
    assert done.returncode == 2 and not world.results.exists() and done.stderr.count("\n") == 1
    assert "workload.context=8192 is not accepted: prompt and output of 8212 tokens do not fit tiny's" in done.stderr


def test_a_part_goes_by_its_own_name(world):
    done = world.run("method=dflash", "workload.split=test", "workload.limit=2", "workload.system=Be brief.")
    assert done.returncode == 0, done.stderr
    assert "file:test:limit=2:system" in done.stdout and len(world.timed()) == 2 * 2 * 2
    assert read_json(world.cell / "cell.json")["workload_name"] == "file:test:limit=2:system"
    assert {line["prompt_text"].partition("\n")[0] for line in world.timed()} == {"system: Be brief."}
