"""The command line as a user starts it: help without a tensor library, sentences instead of tracebacks."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from fake_world import REPOSITORY

from harness.environment import redacted


def python(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], cwd=REPOSITORY, capture_output=True, text=True, timeout=60)


def test_help_is_quick_and_loads_no_tensor_library():
    began = time.monotonic()
    done = python("-X", "importtime", "-m", "harness", "--help")
    assert done.returncode == 0
    assert time.monotonic() - began < 5  # about 0.6 s when idle
    modules = {line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines()}
    assert not modules & {"torch", "transformers", "pandas", "pyarrow"}
    assert "method: autoregressive, ddtree, ddtree_adaptive, dflash" in done.stdout and "budget: 64" in done.stdout


@pytest.mark.parametrize("words", [["budget=ten"], ["--bogus"], ["-m", "budget=16,0"]])
def test_an_error_is_one_sentence_and_exit_code_2(words):
    done = python("-m", "harness", *words)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and done.stderr.endswith(".\n") and "Traceback" not in done.stderr


def test_the_doctor_reports():
    done = python("-m", "harness.doctor")
    assert done.returncode in (0, 1) and "Traceback" not in done.stderr
    assert all(word in done.stdout for word in ("Python", "memory", "torch", "built-in pair"))


def test_secrets_stay_out_of_the_records():
    words = ["budget=64", "max_new_tokens=8", "tracker.api_key=abc", "hf_token=abc", "x.password=abc", "tokenizer=t"]
    assert [word for word in redacted(words) if "<redacted>" not in word] == [words[0], words[1], words[5]]
    assert "abc" not in "".join(redacted(words))
