"""Command lines nobody would write: each composes, or ends in one sentence without a traceback."""

from __future__ import annotations

import random

import pytest

from harness.__main__ import compose
from harness.cells import command_hash, gather
from harness.sentences import sentence
from harness.targets import load_class
from methods.base import Engine

GROUPS = {
    "method": ("autoregressive", "dflash", "ddtree"),
    "engine": ("reference",),
    "model": ("tiny",),
    "workload": ("smoke", "chat", "math", "file", "code"),
    "tracker": ("none",),
    "cluster": ("none", "slurm"),
    "experiment": ("smoke", "null_test", "null"),
}
GOOD = {
    "budget": ("1", "16", "64", "1024"),
    "tp": ("1", "2", "4"),
    "concurrency": ("1",),
    "temperature": ("0", "1", "0.7", "1e-3"),
    "top_p": ("1", "0.9"),
    "top_k": ("0", "20"),
    "max_new_tokens": ("1", "64"),
    "seed": ("0", "7"),
    "repeats": ("1", "3"),
    "device": ("cpu", "auto"),
    "dtype": ("auto", "float32", "bfloat16"),
    "timeout_s": ("60", "0.5"),
    "dry_run": ("true", "false"),
    "retry_failed": ("true", "false"),
    "overwrite": ("true", "false"),
    "results_dir": ("out", "null", "'a b'"),
    "method.chain_seed": ("true", "false"),
    "method.twin": ("true",),
    "model.weights": ("random", "checkpoint"),
    "cluster.executor": ("null", "slurm"),
    "workload.path": ("nowhere.jsonl", "null"),
}
BAD_VALUES = (
    *("-1", "0", "1.5", "abc", "", "null", "true", "[]", "[1,2]", "{}", "{a:1}", "1e400", "-.inf", ".nan", "nan"),
    *(
        "99999999999999999999",
        "0x10",
        "1_000",
        "'1'",
        '"',
        "'",
        "(",
        ")",
        "]",
        "${budget}",
        "${nope}",
        "${oc.env:HOME}",
    ),
    *(
        "???",
        "1,2",
        "range(1,3)",
        "choice(1,2)",
        "glob(*)",
        "interval(0,1)",
        "é",
        "../..",
        "a=b",
        "\\",
        "!!python/x",
        "*",
    ),
)
ODD_WORDS = (
    *(
        "bugdet=3",
        "+colour=red",
        "++budget=3",
        "+budget=3",
        "~budget",
        "~method",
        "~method=ddtree",
        "=3",
        "=",
        "budget",
    ),
    *("method.budget.x=1", "method=ddtree/x", "hydra.run.dir=/dev/null/x", "hydra/launcher=joblib", "model@x=tiny"),
    *("--bogus", "-x", "--multirun=3", "--config-dir=/nowhere", "--config-name=nothing", "-m", "-m", "-m", "a.b.c=1"),
    *("+experiment=smoke", "experiment=[smoke]", "method._target_=os.system", "engine._target_=x", "schema=3"),
    *("overwrite=true", "retry_failed=true", "hydra.mode=RUN", "+method.extra=1", "workload=file", "workload.name=x"),
)


def command_line(dice: random.Random) -> list[str]:
    """A few words: most of them sound, so that several kinds of fault meet."""
    words = []
    for _ in range(dice.randint(1, 4)):
        kind = dice.random()
        name = dice.choice([*GOOD, *GROUPS])
        if kind < 0.45:
            words.append(f"{name}={dice.choice({**GOOD, **GROUPS}[name])}")
        elif kind < 0.8:
            words.append(f"{name}={dice.choice(BAD_VALUES)}")
        else:
            words.append(dice.choice(ODD_WORDS))
    return words


def outcome(words: list[str]) -> str:
    """`runs`, or the sentence; anything else is raised."""
    try:
        cells = gather((job.cell, job.method) for job in compose(words))
        for cell in cells:
            engine = load_class(cell.settings.engine_target, Engine, "engine._target_")
            engine.check(cell.settings.engine_spec(100), cell.methods)
        command_hash(cells)
        return "runs"
    except Exception as error:
        said = sentence(error, words)
        if said is None:
            raise AssertionError(f"{words} ended in {error!r}") from error
        return said


def assert_spoken_for(seed: int, count: int) -> None:
    dice, ran = random.Random(seed), 0
    for _ in range(count):
        words = command_line(dice)
        said = outcome(words)
        ran += said == "runs"
        assert said == "runs" or ("\n" not in said and said[-1] in ".?" and len(said) < 600), (words, said)
    assert 0 < ran < count


def test_fuzzed_command_lines_end_in_a_sentence(capsys):
    assert_spoken_for(seed=1, count=25)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_three_hundred_fuzzed_command_lines_end_in_a_sentence(capsys):
    assert_spoken_for(seed=2, count=300)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_fuzzed_starts_run_or_end_in_a_sentence(world):
    dice = random.Random(3)
    for _ in range(20):
        words = [word for word in command_line(dice) if word.partition("=")[0] not in ("results_dir", "timeout_s")]
        done = world.started(*words)
        assert "Traceback" not in done.stderr, (words, done.stderr)
        if done.returncode == 2:
            assert done.stderr.count("\n") == 1, (words, done.stderr)
        else:
            assert done.returncode in (0, 1), (words, done.stderr)
