"""What a request leaves behind, and how it reaches the disk: a JSON line the moment it ends, folded into two
Parquet tables when its cell's work ends. The JSON lines stay the source of truth.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from io import BufferedRandom, BufferedWriter
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from methods.base import Generation, Inspected, Score, Stages

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA_VERSION = 1
INFINITE_GAP = 1e308  # JSON has no infinity
Phase = Literal["warmup", "timed", "sentinel", "profile"]
REQUESTS, ANSWERED = "requests.jsonl", "answered.jsonl"  # the second: answers whose score is still to come
ROUNDS = "rounds.jsonl"
KEYS = ("cell_id", "sitting", "phase", "arm", "prompt_id", "turn", "repeat")


@dataclass(frozen=True)
class Asked:
    """Which request it was: a row's identity and what was put to the model."""

    cell_id: str
    sitting: int
    phase: Phase
    arm: str
    prompt_id: str
    turn: int
    repeat: int
    order_index: int
    category: str
    prompt_text: str
    prompt_ids: tuple[int, ...]
    answer: str | None


@dataclass(frozen=True)
class Checked:
    """What the losslessness gate found; nothing where no score could tell. `exact_match` compares with the AR arm's
    output of the same sitting, None while there is none yet; folding fills it in."""

    exact_match: bool | None
    first_divergence: int | None
    near_ties: int | None
    true_violations: int | None
    max_gap: float | None
    gap_tolerance: float

    @classmethod
    def from_score(cls, score: Score | None, tolerance: float, exact_match: bool | None) -> Checked:
        if score is None:
            return cls(exact_match, None, None, None, None, tolerance)
        return cls(
            exact_match,
            score.first_divergence,
            score.near_ties(tolerance),
            score.true_violations(tolerance),
            min(score.max_gap, INFINITE_GAP),
            tolerance,
        )


@dataclass(frozen=True)
class Looked:
    """What the oracle found in a request's rounds, and the linear shadow by round; nothing where it did not look."""

    oracle_rounds: int
    oracle_nodes: int
    oracle_max_gap: float | None
    oracle_disagreements: int
    shadow: tuple[int, ...] | None

    @classmethod
    def into(cls, inspected: Sequence[Inspected] | None) -> Looked:
        checks = [seen.oracle for seen in inspected or () if seen.oracle]
        shadow = [seen.shadow_accepted for seen in inspected or () if seen.shadow_accepted is not None]
        return cls(
            len(checks),
            sum(check.nodes for check in checks),
            min(max(check.max_gap for check in checks), INFINITE_GAP) if checks else None,
            sum(check.disagreements for check in checks),
            tuple(shadow) if inspected and len(shadow) == len(inspected) else None,
        )


@dataclass(frozen=True)
class Record:
    """One finished request, as a line of requests.jsonl, or of answered.jsonl where it is still to be checked."""

    asked: Asked
    generation: Generation
    checked: Checked | None
    text: str
    started_utc: str
    correct: bool | None = None
    energy_j: float | None = None

    def line(self) -> dict[str, Any]:
        """The line's keys and values; seconds, bytes and joules, null where there is no value."""
        done = self.generation
        return {
            **vars(self.asked),
            "output_ids": done.output_ids,
            "text": self.text,
            "finish_reason": done.finish_reason,
            "correct": self.correct,
            "n_input": len(self.asked.prompt_ids),
            "n_output": len(done.output_ids),
            "ttft_s": done.ttft_s,
            "decode_s": done.decode_s,
            "e2e_s": done.e2e_s,
            "tpot_s": None if math.isnan(done.tpot_s) else done.tpot_s,
            "rounds": done.rounds,
            "widths": done.widths,
            "tree_checksum": done.tree_checksum,
            **(vars(self.checked) if self.checked else {}),
            **vars(Looked.into(done.inspected)),
            **self._unchecked(),
            "peak_mem_bytes": done.peak_mem_bytes,
            "energy_j": self.energy_j,
            "stages": None if done.stages is None else vars(done.stages),
            "started_utc": self.started_utc,
        }

    def _unchecked(self) -> dict[str, Any]:
        """What an oracle is still to judge, by round; no key of a line in requests.jsonl."""
        rounds = enumerate(self.generation.inspected or ())
        left = [(index, *seen.unchecked) for index, seen in rounds if seen.unchecked]
        return {"unchecked": left} if left else {}

    def dumped_rounds(self) -> list[dict[str, Any]]:
        """Its rounds' trees, as lines of rounds.jsonl; none where they were not asked for."""
        keys = {key: getattr(self.asked, key) for key in KEYS}
        return [
            {
                **keys,
                "round": index,
                **seen.tree._asdict(),
                "log_probs": [max(value, -INFINITE_GAP) for value in seen.tree.log_probs],
                "accepted": seen.accepted,
                "oracle_gap": None if seen.oracle is None else min(seen.oracle.max_gap, INFINITE_GAP),
                "shadow_accepted": seen.shadow_accepted,
            }
            for index, seen in enumerate(self.generation.inspected or ())
            if seen.tree
        ]


class RecordWriter:
    """Appends lines that survive a kill at any moment: each is flushed and synced before `append` returns."""

    def __init__(self, path: Path) -> None:
        self._file: BufferedWriter = path.open("ab")
        self._rounds = path.with_name(ROUNDS)

    def append(self, record: Record) -> None:
        """The record, after its rounds' trees where there are any."""
        if rounds := record.dumped_rounds():
            with self._rounds.open("ab") as file:
                file.writelines(map(_line, rounds))
        append_line(self._file, record.line())

    def __enter__(self) -> RecordWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._file.close()


def append_line(file: BufferedWriter | BufferedRandom, content: dict[str, Any]) -> None:
    """Add a line; it is on disk when this returns."""
    file.write(_line(content))
    file.flush()
    os.fsync(file.fileno())


def fill_gaps(dump: Path, gaps: Mapping[tuple[Any, ...], float]) -> None:
    """Give dumped rounds, named by KEYS and `round`, what an oracle found later. The file is replaced at once."""
    part = dump.with_name(f".{dump.name}.part")
    with dump.open("rb") as old, part.open("wb") as new:
        for line in map(json.loads, (raw for raw in old if raw.endswith(b"\n"))):  # a kill tears the last one
            gap = gaps.get((*key_of(line), line["round"]), line["oracle_gap"])
            new.write(_line({**line, "oracle_gap": gap}))
        new.flush()
        os.fsync(new.fileno())
    part.replace(dump)


def _line(content: dict[str, Any]) -> bytes:
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a JSONL file. A torn last line, which a kill leaves, is dropped; any other damage raises."""
    *whole, _torn = path.read_bytes().split(b"\n")
    return [json.loads(line) for line in whole]


def write_json(path: Path, value: object) -> None:
    """Replace `path` at once: a reader finds the old text or the new, never a half."""
    _replace(path, json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False).encode() + b"\n")


def read_json(path: Path) -> Any:
    return json.loads(path.read_bytes())


def _replace(path: Path, data: bytes) -> None:
    part = path.with_name(f".{path.name}.part")
    with part.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def key_of(line: Mapping[str, Any]) -> tuple[Any, ...]:
    """What names a request."""
    return tuple(line[key] for key in KEYS)


def sitting_lines(cell_folder: Path, name: str = "requests.jsonl") -> list[dict[str, Any]]:
    """Every record of a cell, or every line of another file, in the order of its sittings."""
    files = sorted(cell_folder.glob(f"sittings/*/{name}"), key=lambda path: int(path.parent.name))
    return [line for path in files for line in read_lines(path)]


def fold(cell_folder: Path) -> None:
    """Write a cell's requests.parquet and rounds.parquet from its JSON lines."""
    lines = sitting_lines(cell_folder)
    _fill_exact_match(lines)
    # The rounds first: readers take both tables for whole once requests.parquet holds every request.
    _write_table(cell_folder / "rounds.parquet", list(_round_rows(lines)), _round_schema())
    _write_table(cell_folder / "requests.parquet", [_request_row(line) for line in lines], _request_schema())


def _fill_exact_match(lines: list[dict[str, Any]]) -> None:
    """The AR answer may have come after another arm's; by now every sitting's answers are known."""
    from harness.cells import BASELINE

    def place(line: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(line[key] for key in KEYS if key != "arm")

    baseline = {place(line): line["output_ids"] for line in lines if line["arm"] == BASELINE.arm}
    for line in lines:
        reference = baseline.get(place(line))
        line["exact_match"] = None if reference is None else line["output_ids"] == reference


def _request_row(line: dict[str, Any]) -> dict[str, Any]:
    """A request's row: its stages as columns, its rounds summed up over all of them and over the uncut ones."""
    row = {key: value for key, value in line.items() if key not in ("rounds", "widths", "stages", "shadow")}
    row.update(line["stages"] or {})
    uncut = [accepted for accepted, _, cut in line["rounds"] if not cut]
    row["n_rounds"] = len(line["rounds"])
    row["accepted_sum"] = sum(accepted for accepted, _, _ in line["rounds"])
    row["uncut_rounds"], row["accepted_uncut_sum"] = len(uncut), sum(uncut)
    row["shadow_uncut_sum"] = None
    if line["shadow"] is not None:
        pairs = zip(line["rounds"], line["shadow"], strict=True)
        row["shadow_uncut_sum"] = sum(shadow for (_, _, cut), shadow in pairs if not cut)
    return row


def _round_rows(lines: Iterable[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    for line in lines:
        keys = {key: line[key] for key in KEYS}
        nothing = [None] * len(line["rounds"])
        shadow, widths = line["shadow"] or nothing, line.get("widths") or nothing
        for index, (accepted, emitted, cut) in enumerate(line["rounds"]):
            counts = {"round": index, "accepted": accepted, "emitted": emitted, "cut": cut}
            yield {**keys, **counts, "shadow_accepted": shadow[index], "width": widths[index]}


def _write_table(path: Path, rows: list[dict[str, Any]], schema: pa.Schema) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    buffer = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), buffer)
    _replace(path, buffer.getvalue().to_pybytes())


def _request_schema() -> pa.Schema:
    import pyarrow as pa

    integers = (
        "sitting turn repeat order_index n_input n_output first_divergence near_ties true_violations peak_mem_bytes "
        "tree_checksum n_rounds accepted_sum uncut_rounds accepted_uncut_sum shadow_uncut_sum oracle_rounds "
        "oracle_nodes oracle_disagreements"
    )
    stages = [stage.name for stage in fields(Stages)]
    reals = ["ttft_s", "decode_s", "e2e_s", "tpot_s", "max_gap", "gap_tolerance", "oracle_max_gap", "energy_j", *stages]
    types = dict.fromkeys(integers.split(), pa.int64()) | dict.fromkeys(reals, pa.float64())
    types["exact_match"] = types["correct"] = pa.bool_()
    types["prompt_ids"] = types["output_ids"] = pa.list_(pa.int64())
    names = [
        *(f.name for f in fields(Asked)),
        *("output_ids", "text", "finish_reason", "correct"),
        *("n_input", "n_output", "ttft_s", "decode_s", "e2e_s", "tpot_s"),
        *("n_rounds", "accepted_sum", "uncut_rounds", "accepted_uncut_sum", "shadow_uncut_sum", "tree_checksum"),
        *(f.name for f in fields(Checked)),
        *(f.name for f in fields(Looked) if f.name != "shadow"),
        *("peak_mem_bytes", "energy_j", *stages, "started_utc"),
    ]
    return pa.schema([(name, types.get(name, pa.string())) for name in names], metadata=_METADATA)


def _round_schema() -> pa.Schema:
    import pyarrow as pa

    integers = ("sitting", "turn", "repeat", "round", "accepted", "emitted", "shadow_accepted", "width")
    names = (*KEYS, "round", "accepted", "emitted", "cut", "shadow_accepted", "width")
    return pa.schema([(name, pa.int64() if name in integers else pa.string()) for name in names], metadata=_METADATA)


_METADATA = {"schema_version": str(SCHEMA_VERSION)}
