"""Cells and arms: stable ids, one cell for jobs that differ in the method only, a command's hash."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
from fake_engine import Faulty

from harness.cells import Arm, CellSettings, command_hash, gather
from harness.results import Turn, in_blocks, plan
from methods.autoregressive import Autoregressive
from methods.base import Refusal
from methods.ddtree import DDTree
from methods.dflash import DFlash

CELL = CellSettings(
    engine_target="methods.engines.reference.ReferenceEngine",
    target="builtin:tiny/target",
    drafter="builtin:tiny/drafter",
    weights="checkpoint",
    workload="smoke",
    workload_path=None,
    tp=2,
    concurrency=1,
    temperature=0.0,
    top_p=1.0,
    top_k=0,
    max_new_tokens=64,
    seed=0,
    repeats=1,
    device="cpu",
    dtype="auto",
    engine="reference",
    model="tiny",
)


def test_golden_ids():
    """Ids name folders that outlive a version: a change here is a change of schema."""
    assert CELL.cell_id == "da5b422edd78"
    assert replace(CELL, temperature=1.0, tp=4, workload="math").cell_id == "aca348e35b53"
    assert replace(CELL, workload="file", workload_path="p.jsonl", seed=7).cell_id == "e50b4f5b60db"
    assert command_hash(gather([(CELL, DDTree(64))])) == "6603d21ac31d"
    assert command_hash(gather([(CELL, DDTree(64, chain_seed=True))])) == "af1297d42b06"
    assert command_hash(gather([(CELL, Autoregressive(twin=True)), (replace(CELL, tp=1), DFlash())])) == "d52fa2127198"


def test_golden_ids_of_parts_and_of_other_ways_to_ask():
    assert replace(CELL, split="dev", limit=32).cell_id == "12f6efe378c2"
    assert replace(CELL, context=4096, system="Be brief.", enable_thinking=True).cell_id == "655be4561bce"


def test_a_part_of_a_workload_never_goes_by_its_name_alone():
    assert CELL.workload_name == "smoke"
    assert replace(CELL, split="dev", limit=32).workload_name == "smoke:dev:limit=32"
    asked = replace(CELL, split="test", context=4096, system="Be brief.", enable_thinking=True)
    assert asked.workload_name == "smoke:test:context=4096:system:thinking" and asked.workload_name in str(asked)


def test_labels_stay_out_of_the_id():
    assert replace(CELL, model="my name for it", engine="another").cell_id == CELL.cell_id


@pytest.mark.parametrize(("name", "value"), [("seed", 1), ("repeats", 3), ("device", "cuda"), ("top_k", 5)])
def test_what_a_cell_consumes_is_in_the_id(name, value):
    assert replace(CELL, **{name: value}).cell_id != CELL.cell_id


def test_a_sweep_over_methods_and_budgets_is_one_cell():
    jobs = [(CELL, method) for method in (DFlash(), DFlash(), DDTree(16), DDTree(64), DDTree(16))]
    (cell,) = gather(jobs)
    assert [arm.name for arm in cell.arms] == ["autoregressive", "dflash", "ddtree-16", "ddtree-64"]
    assert [arm.name for arm in gather([(CELL, Autoregressive())])[0].arms] == ["autoregressive"]


def test_the_command_hash_does_not_depend_on_order():
    other = replace(CELL, workload="code")
    jobs = [(CELL, DDTree(16)), (CELL, DFlash()), (other, DDTree(16)), (other, DFlash())]
    assert command_hash(gather(jobs)) == command_hash(gather(reversed(jobs)))
    assert command_hash(gather(jobs)) != command_hash(gather(jobs[:2]))


def test_two_methods_of_one_name_are_refused():
    @dataclass(frozen=True)
    class Namesake(Faulty):
        depth: int = 1
        name: ClassVar[str] = "namesake"

    with pytest.raises(Refusal, match="both called 'faulty-none'"):
        gather([(CELL, Namesake(depth=1)), (CELL, Namesake(depth=2))])


def test_an_arm_is_told_by_class_and_settings():
    assert Arm(DDTree(64)).settings == {
        "_target_": "methods.ddtree.DDTree",
        "budget": 64,
        "chain_seed": False,
        "growth": "fixed",
        "costs": None,
    }


def test_a_setting_added_later_leaves_stored_arms_as_they_are():
    @dataclass(frozen=True)
    class Grown(Faulty):
        limits: tuple[int, ...] = (1, 2)
        depth: int = 1

    assert Arm(Grown()).identity.keys() == {"_target_"} and Arm(Grown(depth=2)).identity["depth"] == 2
    stored = {"_target_": Arm(Grown()).settings["_target_"], "fault": "none", "limits": [1, 2]}
    assert Arm(Grown()).is_stored_as(stored) and not Arm(Grown(depth=2)).is_stored_as(stored)


PROMPTS = [Turn(f"p{i}") for i in range(8)]
ARMS = ["autoregressive", "dflash", "ddtree-16"]


def test_a_plan_asks_every_arm_once_in_an_order_that_changes():
    steps = plan(ARMS, PROMPTS, 2, 0, set())
    asked = sorted((step.repeat, Turn(step.prompt_id, step.turn)) for step in steps)
    assert asked == sorted((r, p) for r in (0, 1) for p in PROMPTS)
    assert all(sorted(step.arms) == sorted(ARMS) for step in steps)
    assert len({step.arms for step in steps}) > 2
    assert [step.prompt_id for step in steps[:8]] != [step.prompt_id for step in steps[8:]]
    assert steps == plan(ARMS, PROMPTS, 2, 0, set())
    assert steps != plan(ARMS, PROMPTS, 2, 1, set())


def test_a_plan_takes_up_where_records_end_and_asks_ar_beside_what_is_owed():
    whole = plan(ARMS, PROMPTS, 1, 0, set())
    done = {(arm, step.prompt_id, 0, 0) for step in whole[:3] for arm in step.arms}
    done.add((whole[3].arms[0], whole[3].prompt_id, 0, 0))
    rest = plan(ARMS, PROMPTS, 1, 0, done)
    assert [step.prompt_id for step in rest] == [step.prompt_id for step in whole[3:]]
    assert rest[1:] == whole[4:]
    assert "autoregressive" in rest[0].arms
    assert set(rest[0].arms) == set(ARMS) - {whole[3].arms[0]} | {"autoregressive"}


def test_turns_are_asked_one_by_one():
    turns = [Turn(f"p{i}", turn) for i in range(4) for turn in range(3)]
    steps = plan(ARMS, turns, 1, 0, set())
    assert sorted(Turn(step.prompt_id, step.turn) for step in steps) == turns
    done = {(arm, step.prompt_id, step.turn, 0) for step in steps[:5] for arm in step.arms}
    assert plan(ARMS, turns, 1, 0, done) == steps[5:]


def test_an_arm_added_later_brings_ar_and_leaves_the_order():
    steps = plan(["ddtree-16"], PROMPTS, 1, 0, set())
    whole = plan(ARMS, PROMPTS, 1, 0, set())
    assert [step.arms for step in steps] == [tuple(a for a in step.arms if a != "dflash") for step in whole]


def test_blocks_ask_the_same_with_the_baseline_at_both_ends():
    steps = plan(ARMS, PROMPTS[:5], 1, 0, set())
    blocks = in_blocks(steps, ARMS)
    arms = [step.arms[0] for step in blocks]
    assert [arm for arm, _ in itertools.groupby(arms)] == [*ARMS, "dflash", "autoregressive"]
    assert sorted((*step[:2], arm) for step in steps for arm in step.arms) == sorted(
        (*step[:2], *step.arms) for step in blocks
    )
    assert [arms.count(arm) for arm in ARMS] == [5, 5, 5] and arms[3:] != arms[:3]


def test_one_prompt_in_blocks_is_asked_of_every_arm_once():
    assert [step.arms for step in in_blocks(plan(ARMS, PROMPTS[:1], 1, 0, set()), ARMS)] == [(arm,) for arm in ARMS]
