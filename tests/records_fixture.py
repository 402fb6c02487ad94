"""A small results folder in the layout of `results/README.md`, made by rule, so that tests know every number in it.

One cell (`CELL`), two categories of three prompts, two repeats, two sittings: the second, in which the machine was
half as fast, added `ddtree-64` with its own AR. Neither drifted. Stages add up to the decoding time, but for
`ddtree-64`, whose rounds take a tenth longer. `ddtree-256` broke contract 1 once, `ddtree-1024` ran out of memory.
A second cell (`OTHER`) at tp 2 is still running.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from harness.records import fold

CELL = "a1b2c3d4e5f6"
OTHER = "a1ff00ff00ff"
AR = "autoregressive"
PROMPTS = {"code-1": "code", "code-2": "code", "code-3": "code", "math-1": "math", "math-2": "math", "math-3": "math"}
REPEATS = 2
N_OUTPUT = 30
ANSWER = "The sum is 7 + 5 = 12, says the naïve café owner — “zwölf”. " * 2
STAGES = {"draft_s": 0.2, "build_s": 0.1, "verify_s": 0.6, "commit_s": 0.1}  # shares of a round
WATCHED = list(PROMPTS)[:3]  # by the sentinel and in the profiled pass
JOULES = 0.5  # a token
FINGERPRINTS = {"target": "t0", "drafter": "d0", "prompts": "p0"}


@dataclass(frozen=True)
class FixtureArm:
    """An arm of the fixture: how often it is faster than AR on the first prompt, and what its rounds accept."""

    method: str
    budget: int | None
    speed: float
    accepted: int


ARMS = {
    AR: FixtureArm("autoregressive", None, 1.0, 0),
    "dflash": FixtureArm("dflash", None, 1.5, 1),
    "ddtree-16": FixtureArm("ddtree", 16, 2.0, 2),
    "ddtree-64": FixtureArm("ddtree", 64, 2.5, 3),
    "ddtree-256": FixtureArm("ddtree", 256, 9.0, 3),
    "ddtree-1024": FixtureArm("ddtree", 1024, 9.0, 3),
}


def speed(arm: str, prompt: int) -> float:
    """AR's TPOT over the arm's on a prompt, whatever the sitting and the repeat."""
    return 1.0 if arm == AR else ARMS[arm].speed * (1 + 0.1 * prompt)


def rounds(accepted: int, n_output: int = N_OUTPUT) -> list[list[Any]]:
    """Rounds of equal acceptance until the length limit cuts one."""
    left, made = n_output - 1, []
    while left > 0:
        if left >= accepted + 1:
            made.append([accepted, accepted + 1, ""])
        else:
            made.append([left, left, "length"])
        left -= made[-1][1]
    return made


def record(arm: str, prompt: str, repeat: int, sitting: int = 0, **changes: Any) -> dict[str, Any]:
    """One line of requests.jsonl; `changes` replace keys."""
    index = list(PROMPTS).index(prompt)
    tpot = 0.010 * (1 + 0.05 * index) * (1 + 0.01 * repeat) * (1 + sitting) / speed(arm, index)
    ttft = 0.05 * (1 + sitting)
    done = changes.get("rounds", rounds(ARMS[arm].accepted))
    n_output = 1 + sum(emitted for _, emitted, _ in done)
    decode = tpot * (n_output - 1)
    return {
        "cell_id": CELL,
        "sitting": sitting,
        "phase": "timed",
        "arm": arm,
        "prompt_id": prompt,
        "turn": 0,
        "repeat": repeat,
        "order_index": 0,
        "category": PROMPTS[prompt],
        "prompt_text": f"What about {prompt}?",
        "prompt_ids": [5, 6, 7 + index],
        "output_ids": (answer_ids() * 3)[:n_output],
        "text": ANSWER,
        "finish_reason": "length",
        "correct": None,
        "answer": "12" if PROMPTS[prompt] == "math" else None,
        "n_input": 3,
        "n_output": n_output,
        "ttft_s": ttft,
        "decode_s": decode,
        "e2e_s": ttft + decode,
        "tpot_s": tpot,
        "rounds": done,
        "tree_checksum": -(2**62),
        "exact_match": None,
        "first_divergence": None,
        "near_ties": 0,
        "true_violations": 0,
        "max_gap": 0.0,
        "gap_tolerance": 0.001,
        "peak_mem_bytes": None,
        "energy_j": JOULES * n_output,
        "oracle_rounds": 0,
        "oracle_nodes": 0,
        "oracle_max_gap": None,
        "oracle_disagreements": 0,
        "shadow": None,
        "stages": None,
        "started_utc": "2026-11-29T12:00:00.000+00:00",
        **changes,
    }


def timed(arms: list[str], sitting: int = 0, **changes: Any) -> list[dict[str, Any]]:
    return [record(arm, p, r, sitting, **changes) for r in range(REPEATS) for p in PROMPTS for arm in arms]


def sentinel(sitting: int = 0, moves: tuple[float, ...] = (1.0, 1.01, 0.99), **changes: Any) -> list[dict[str, Any]]:
    """AR at the start, the middle and the end of a sitting; `moves` are its TPOT there over that at the start."""
    lines = [record(AR, p, r, sitting, phase="sentinel", **changes) for r in range(len(moves)) for p in WATCHED]
    for line in lines:
        move = moves[line["repeat"]] / (1 + 0.01 * line["repeat"])  # the fixture's own slowing down taken out
        line.update(tpot_s=line["tpot_s"] * move, decode_s=line["decode_s"] * move)
    return lines


def profile(arms: list[str], sitting: int = 0, whole: float = 1.0) -> list[dict[str, Any]]:
    """The profiled pass; `whole` is all stages over the decoding time."""
    lines = [record(arm, p, 0, sitting, phase="profile") for p in WATCHED for arm in arms]
    for line in lines:
        shares = STAGES if line["arm"] != AR else {**dict.fromkeys(STAGES, 0.0), "verify_s": 0.9, "commit_s": 0.1}
        line["stages"] = {name: share * whole * line["decode_s"] for name, share in shares.items()}
    return lines


def make_results(root: Path) -> Path:
    """The folder described above; its target's tokenizer lies in `root/target`."""
    results = root / "results"
    make_tokenizer(root / "target")
    first = [record(arm, "code-1", 0, phase="warmup", prompt_id="warmup-1") for arm in ARMS]
    first += timed([AR, "dflash", "ddtree-16", "ddtree-256"])
    first += [record("ddtree-1024", "code-1", 0)]
    first += sentinel() + profile([AR, "dflash", "ddtree-16", "ddtree-256"])
    for line in first:
        if line["arm"] == "ddtree-16" and line["prompt_id"] == "math-1":
            line.update(near_ties=1, first_divergence=3, max_gap=0.0005, output_ids=[*line["output_ids"][:-1], 1])
        if line["arm"] == "ddtree-256" and line["prompt_id"] == "math-2" and line["repeat"] == 1:
            line.update(true_violations=1, first_divergence=4, max_gap=1e308)
    second = timed([AR, "ddtree-64"], sitting=1) + sentinel(1) + profile([AR], 1) + profile(["ddtree-64"], 1, 1 / 1.1)
    statuses = dict.fromkeys(ARMS, "complete") | {"ddtree-256": "invalid", "ddtree-1024": "failed"}
    reasons = {"ddtree-256": "1 position was not the target's choice", "ddtree-1024": "out of memory"}
    write_cell(results, CELL, [first, second], statuses, reasons, target=str(root / "target"))
    fold(results / "cells" / CELL)
    running = [line | {"cell_id": OTHER} for line in timed([AR, "ddtree-64"])[:7]]
    write_cell(
        results, OTHER, [running], dict.fromkeys([AR, "ddtree-64"], "pending"), {}, tp=2, target="nowhere/at-all"
    )
    return results


def write_cell(
    results: Path,
    cell_id: str,
    sittings: list[list[dict[str, Any]]],
    statuses: dict[str, str],
    reasons: dict[str, str],
    **settings: Any,
) -> Path:
    """A cell's folder without its Parquet files."""
    folder = results / "cells" / cell_id
    (folder / "arms").mkdir(parents=True)
    content = {"schema_version": 1, "cell_id": cell_id, "settings": SETTINGS | settings}
    (folder / "cell.json").write_text(json.dumps(content))
    for arm, status in statuses.items():
        stored = {
            "arm": arm,
            "method": ARMS[arm].method,
            "budget": ARMS[arm].budget,
            "settings": {"_target_": f"methods.{ARMS[arm].method}"},
            "status": status,
            "reason": reasons.get(arm),
            "log_tail": None,
            "fingerprints": FINGERPRINTS,
        }
        (folder / "arms" / f"{arm}.json").write_text(json.dumps(stored))
    for number, lines in enumerate(sittings):
        sitting = folder / "sittings" / str(number)
        sitting.mkdir(parents=True)
        (sitting / "environment.json").write_text(json.dumps({"engine": {"dtype": "float32"}, "gap_tolerance": 0.001}))
        (sitting / "requests.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


SETTINGS: dict[str, Any] = {
    "engine": "reference",
    "engine_target": "methods.engines.reference.ReferenceEngine",
    "tp": 1,
    "model": "tiny",
    "target": "builtin:tiny/target",
    "drafter": "builtin:tiny/drafter",
    "weights": "checkpoint",
    "device": "cpu",
    "dtype": "auto",
    "workload": "smoke",
    "workload_path": None,
    "temperature": 0.0,
    "top_p": 1.0,
    "top_k": 0,
    "max_new_tokens": N_OUTPUT,
    "seed": 0,
    "repeats": REPEATS,
    "concurrency": 1,
}


def tokenizer() -> Tokenizer:
    """A byte-level tokenizer that splits what it has not seen into bytes."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    made.train_from_iterator(["The sum is the owner of the cafe says"], trainer)
    return made


_TOKENIZER = tokenizer()


def answer_ids() -> list[int]:
    return list(_TOKENIZER.encode(ANSWER).ids)


def make_tokenizer(folder: Path) -> None:
    folder.mkdir(parents=True)
    _TOKENIZER.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text("{}")
