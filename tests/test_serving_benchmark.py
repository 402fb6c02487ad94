"""The serving engines' benchmark against a fake server, and how it sets rounds beside another engine's."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

from fake_world import TESTS

from methods.base import Generation, Round


def generation(text: str, *accepted: int) -> Generation:
    rounds = [Round(count, count + 1, "") for count in accepted]
    assert 1 + sum(one.emitted for one in rounds) == len(text)
    return Generation(tuple(map(ord, text)), "length", tuple(rounds), 0.1, 0.1)


def test_rounds_meet_where_the_text_before_them_is_the_same(serving):
    one = generation("abcdefgh", 1, 0, 3)  # rounds at 1, 3 and 4
    assert serving.Met.of(one, one) == (3, 0, 0)
    assert serving.Met.of(one, generation("abcdefgh", 1, 4)) == (1, 0, 1)  # at 3 a tree held more
    assert serving.Met.of(one, generation("abcdefgX", 1, 0, 3)) == (3, 0, 0)
    assert serving.Met.of(one, generation("abcdeX", 1, 0, 1)) == (2, 1, 0)  # at 4 the texts part
    assert serving.Met.of(one, generation("aXcdefgh", 1, 0, 3)) == (1, 0, 0)  # behind 1 nothing is the same


def test_a_cut_round_is_left_out(serving):
    one = generation("abcd", 1, 0)
    cut = replace(one, rounds=(one.rounds[0], Round(0, 1, "length")))
    assert serving.Met.of(one, cut) == (1, 0, 0) and serving.pooled([cut]) == 2.0


def test_arms_stand_side_by_side_and_one_that_fails_is_left_out(serving, tmp_path, monkeypatch, capsys):
    python = tmp_path / "python"
    fails = 'case "$*" in *DFLASH*) echo no room; exit 1;; esac'
    python.write_text(f'#!/bin/sh\n{fails}\nexec {sys.executable} {TESTS}/fake_sglang.py "$@"\n')
    python.chmod(0o755)
    here, whole = serving.reference, serving.prompts
    few = lambda *asked: sorted(whole(*asked), key=lambda request: len(request.prompt_ids))[:3]  # noqa: E731
    monkeypatch.setattr(serving, "prompts", few)
    monkeypatch.setattr(serving, "reference", lambda spec: here(replace(spec, device="cpu", dtype="float32")))
    monkeypatch.setattr(serving.torch.cuda, "get_device_name", lambda: "none")
    monkeypatch.setattr(
        sys, "argv", f"serving --python {python} --budgets 16 --concurrency 1,4 --tokens 6 --repeats 1".split()
    )
    serving.main()
    said = capsys.readouterr().out
    assert "dflash is left out" in said and "no room" in said and "2 of 3 servers are up" in said
    told = json.loads(said.splitlines()[-1])
    assert [(row["arm"], row["concurrency"]) for row in told["rows"]] == [
        (arm, size) for size in (1, 4) for arm in ("autoregressive", "ddtree-16")
    ]
    assert all(row["violations"] == 0 and row["tokens_per_s"] > 0 for row in told["rows"])
    assert told["rows"][0]["speedup"] == 1.0 and told["rows"][1]["stages"] is not None
