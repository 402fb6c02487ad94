"""The user's own data: ShareGPT files, and what a run says of rows that were left out."""

from __future__ import annotations

import json

import pytest
from fake_world import FakeWorld

import workloads
from methods.base import Refusal
from workloads import Message, Prompt


def talk(name, *turns):
    return {"id": name, "conversations": [{"from": who, "value": said} for who, said in turns]}


TALKS = [
    talk("one", ("human", "Hello"), ("gpt", "Hi."), ("human", "And?"), ("gpt", "So.")),
    talk("two", ("system", "Be kind."), ("user", "Help me"), ("chatgpt", "Yes.")),
]


def test_sharegpt_asks_the_first_turn_or_all(tmp_path):
    path = tmp_path / "talks.json"
    path.write_text(json.dumps(TALKS))
    one, two = workloads.load("sharegpt", path).prompts
    assert one == Prompt("one", "chat", (Message("user", "Hello"),))
    assert two.messages == (Message("system", "Be kind."), Message("user", "Help me"))
    assert workloads.load("sharegpt_turns", path).prompts[0].follow_ups == ("And?",)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (talk("x", ("gpt", "Hi.")), "turn 1 is from 'gpt' where the user should speak"),
        (talk("x", ("human", "a"), ("human", "b")), "turn 2 is from 'human' where the assistant should speak"),
        (talk("x", ("bing", "a")), "turn 1 is from 'bing'"),
        (talk("x", ("human", " ")), "the user message is empty"),
        (talk("x", ("system", "a")), "the conversation has no human turn"),
        (talk("x"), "conversations is not a list of turns, at least one"),
        ({"id": "x"}, "conversations is not a list of turns, at least one"),
        ({"id": "x", "conversations": [{"from": "human"}]}, "a turn is not an object of from and value, both text"),
        (talk("one", ("human", "Else")), "the id 'one' was already given in row 1"),
        (talk("x", ("human", "Hello")), "the same prompt was already given in row 1"),
    ],
)
def test_damaged_conversations(tmp_path, bad, said):
    path = tmp_path / "talks.json"
    path.write_text(json.dumps([*TALKS, bad]))
    with pytest.raises(Refusal) as refused:
        workloads.load("sharegpt", path)
    assert str(refused.value) == f"{path}, row 3: {said.rstrip('.')}." or said in str(refused.value)
    loaded = workloads.load("sharegpt", path, skip_bad=True)
    assert (len(loaded.prompts), len(loaded.skipped)) == (2, 1)


def test_a_sharegpt_file_cut_short(tmp_path):
    path = tmp_path / "talks.json"
    path.write_text(json.dumps(TALKS)[:-9])
    with pytest.raises(Refusal, match=r"talks.json: not JSON \(.*character \d+\)\.$"):
        workloads.load("sharegpt", path, skip_bad=True)
    with pytest.raises(Refusal, match=r"workload=sharegpt needs workload\.path: a JSON file"):
        workloads.load("sharegpt")


def test_a_run_says_what_was_left_out(tmp_path):
    world = FakeWorld.make(tmp_path)
    with (tmp_path / "prompts.jsonl").open("a") as file:
        file.write("{oops\n")
    refused = world.run("method=autoregressive")
    assert refused.returncode == 2 and "the line is not JSON" in refused.stderr
    ran = world.run("method=autoregressive", "workload.skip_bad=true")
    assert ran.returncode == 0 and f"1 bad rows of {tmp_path / 'prompts.jsonl'} were left out" in ran.stdout
    (environment,) = world.results.glob("cells/*/sittings/0/environment.json")
    facts = json.loads(environment.read_text())["workload"]
    assert facts["origin"]["source"] == str(tmp_path / "prompts.jsonl") and len(facts["left_out"]) == 1
