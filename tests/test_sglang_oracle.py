"""The oracle of trees on SGLang, against a fake server: which rounds AR's server judges, what is asked of it, and what
its answers come to in the records.
"""

from __future__ import annotations

import json
import random
from itertools import pairwise

from test_sglang import REQUEST, served  # noqa: F401

from harness.records import REQUESTS, ROUNDS, read_json, sitting_lines
from methods.base import OracleCheck, TreeDump, Unchecked
from methods.engines.sglang_oracle import PATHS, TOGETHER, judged, questions
from methods.reference.drawn import drawn

ORACLE = (
    *("engine=served", "model=tiny", "method=ddtree", "budget=20", "repeats=1", "dump_rounds=true"),
    "engine.args={disable_overlap_schedule:true,disable_decode_cuda_graph:true}",
)


def test_ars_server_judges_the_rounds_that_the_built_in_oracle_would_look_at(served):  # noqa: F811
    done = served.run(*ORACLE, "oracle_rate=0.5", "shadow_linear=true")
    assert done.returncode == 0, done.stderr
    lines = sitting_lines(served.cell)
    assert not any("unchecked" in line for line in lines)
    assert not any(line["oracle_rounds"] for line in lines if line["phase"] != "profile")
    looked, found = [line for line in lines if line["phase"] == "profile"], 0
    for line in looked:
        rounds = range(len(line["rounds"]))
        seeds = [f"0:{line['prompt_id']}:{line['turn']}:{place}" for place in rounds]
        wanted = [random.Random(seed).random() < 0.5 for seed in seeds]
        assert (line["oracle_rounds"], line["oracle_nodes"]) == (sum(wanted), 16 * sum(wanted))
        assert (line["oracle_max_gap"], line["oracle_disagreements"]) == (0.0 if any(wanted) else None, 0)
        assert len(line["shadow"]) == len(rounds)
        dumped = [one for one in sitting_lines(served.cell, ROUNDS) if one["prompt_id"] == line["prompt_id"]]
        assert [one["oracle_gap"] for one in dumped] == [0.0 if yes else None for yes in wanted]
        found += sum(wanted)
    assert 0 < found < sum(len(line["rounds"]) for line in looked)
    assert served.arm("ddtree-20")["status"] == "complete"
    served.assert_no_process_left()


def test_a_wrong_choice_on_a_rejected_branch_is_found(served):  # noqa: F811
    """Where the text says nothing of it."""
    assert served.run(*ORACLE, "oracle_rate=1", FAKE_SGLANG="ddtree:choice").returncode == 1
    assert served.arm("ddtree-20")["status"] == "invalid" and served.arm("autoregressive")["status"] == "complete"
    lines = [line for line in sitting_lines(served.cell) if line["phase"] == "profile"]
    for line in lines:
        assert line["true_violations"] == 0 and line["oracle_max_gap"] == 9.0
        assert line["oracle_disagreements"] == line["oracle_rounds"] == len(line["rounds"])
    assert {one["oracle_gap"] for one in sitting_lines(served.cell, ROUNDS)} == {9.0}


def test_rounds_that_a_killed_sitting_left_unchecked_are_checked_by_the_next(served):  # noqa: F811
    done = served.run(*ORACLE, "oracle_rate=1")
    assert done.returncode == 0, done.stderr
    (folder,) = served.cell.glob("sittings/0")
    wanted = {name: (folder / name).read_bytes() for name in (REQUESTS, ROUNDS)}
    dumped = [{**one, "oracle_gap": None} for one in sitting_lines(served.cell, ROUNDS)]
    (folder / ROUNDS).write_text("".join(json.dumps(one, separators=(",", ":")) + "\n" for one in dumped) + '{"torn')
    (folder / REQUESTS).write_bytes(b"")
    for name in ("autoregressive", "ddtree-20"):
        arm = served.cell / "arms" / f"{name}.json"
        arm.write_text(json.dumps(read_json(arm) | {"status": "pending"}))
    assert served.run(*ORACLE, "oracle_rate=1").returncode == 0
    assert {name: (folder / name).read_bytes() for name in wanted} == wanted


def test_each_leaf_is_asked_once_and_each_node_is_judged():
    nodes = Unchecked(3, (7, 1, 2, 3, 4), (0, 0, 0, 1, 1), (1, 3, 9, 8, 6))
    (asked,) = questions((5, 6, 7, 7, 1, 3, 8), nodes)
    assert asked["input_ids"] == [[5, 6, 7, 7, 2, 9], [5, 6, 7, 7, 1, 3, 8], [5, 6, 7, 7, 1, 4, 6]]
    assert asked["token_ids_logprob"] == [[1, 9], [1, 3, 8], [1, 3, 6]] and asked["logprob_start_len"] == 3
    own_choices = {7: 1, 1: 4, 2: 9, 3: 8, 4: 6}  # after 1 the target would rather have 4 than 3

    def answer(text: list[int], beside: list[int]) -> dict:
        def one(before: int, token: int) -> list:
            return [-0.5 if token == own_choices[before] else -0.75, token, None]

        pairs = list(pairwise(text[3:]))
        told = {
            "input_token_logprobs": [[None, text[3], None], *(one(*pair) for pair in pairs)],
            "input_top_logprobs": [None, *([one(before, own_choices[before])] for before, _ in pairs)],
            "input_token_ids_logprobs": [None, *([one(before, token) for token in beside] for before, _ in pairs)],
        }
        return {"meta_info": told}

    answers = [answer(*each) for each in zip(asked["input_ids"], asked["token_ids_logprob"], strict=True)]
    assert judged(nodes, answers, 0.125) == OracleCheck(5, 0.25, 1)
    assert judged(nodes, answers, 0.25) == OracleCheck(5, 0.25, 0)


def test_many_paths_are_asked_for_a_few_at_a_time():
    rows = 2 * TOGETHER + 2
    nodes = Unchecked(1, (0, *range(rows - 1)), (0,) * rows, (3,) * rows)
    sent = [len(asked["input_ids"]) for asked in questions((4, 0, 9), nodes)]
    assert sent == [TOGETHER, TOGETHER, 1]


def test_no_more_leaves_are_asked_than_a_check_may_cost():
    """The same ones every time, and the accepted path whatever is drawn."""
    rows = 400
    tree = TreeDump(9, (5,) * rows, (0,) * rows, (0, *[1] * (rows - 1)), (0.0,) * rows, (0, 333), 4)
    found = drawn(REQUEST, 2, 1.0, tree, PATHS)
    assert found == drawn(REQUEST, 2, 1.0, tree, PATHS) and {0, 333} <= {*found}
    assert PATHS + 1 <= len(found) <= PATHS + 2
    assert drawn(REQUEST, 2, 0.0, tree, PATHS) is None
