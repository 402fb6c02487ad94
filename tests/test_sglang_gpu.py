"""The real SGLang on a GPU, its rounds captured, against the built-in engine round by round.

    SGLANG_PYTHON=PATH [SGLANG_TP=2] python -m pytest -n 0 -m gpu tests/test_sglang_gpu.py

In float16: the built-in pair's logits often tie in bfloat16, and at a tie two engines part. SGLang drafts in bfloat16
alone, so that a plugin of the tests makes it keep to float16 (`sglang_half`).
"""

from __future__ import annotations

import json
import os
import sys
from typing import ClassVar

import pytest
import torch
from sglang_recorder import with_plugin

from methods.engines.sglang import SglangEngine

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(580)]
TP = int(os.environ.get("SGLANG_TP", "1"))


class HalfEngine(SglangEngine):
    """SGLang in float16, drafter and all."""

    drafts_in: ClassVar[tuple[str, ...]] = ("float16",)

    def variables(self) -> dict[str, str]:
        return with_plugin(self, super().variables(), "sglang_half")


def test_captured_rounds_accept_what_the_built_in_engines_do(serving, monkeypatch, capsys):
    """One at a time and in mixed batches that end at different rounds, at several budgets: the text is AR's, at least
    98 % of the rounds that start at the same place of the same text accept as many tokens, and so does the whole."""
    python = os.environ.get("SGLANG_PYTHON")
    if python is None or not torch.cuda.is_available():
        pytest.skip("SGLANG_PYTHON names no interpreter with SGLang, or there is no GPU")
    monkeypatch.setitem(serving.ENGINES, "sglang", (HalfEngine, "cuda"))
    budgets, sizes = ((16, 64, 256, 1024), (1, 4, 16)) if TP == 1 else ((16, 64), (1, 4))
    asked = f"--python {python} --dtype float16 --repeats 1 --tp {TP} --budgets {','.join(map(str, budgets))}"
    asked += f" --concurrency {','.join(map(str, sizes))}"
    fixed = "mem_fraction_static=0.3" + (
        ",disable_custom_all_reduce=true,enforce_disable_flashinfer_allreduce_fusion=true" if TP > 1 else ""
    )
    monkeypatch.setattr(sys, "argv", ["serving", *asked.split(), "--args", fixed])
    serving.main()
    said = capsys.readouterr().out
    with capsys.disabled():
        print(said)
    told = json.loads(said.splitlines()[-1])
    assert len(told["rows"]) == len(sizes) * (2 + len(budgets)) and told["facts"]["graphs"].startswith("captured")
    for row in told["rows"]:
        where = row["arm"], row["concurrency"]
        assert row["violations"] == 0, where
        alike, parted, other_tree = row["met"]
        assert alike >= 0.98 * (alike + parted + other_tree) > 0, (where, row["met"])
        assert abs(row["acceptance"] / row["built_in"] - 1) <= 0.02, where
