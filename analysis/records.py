"""From a results folder to tables: finds the cells, reads what each request left behind, checks the schema.

A folder may still be running. Its JSONL files are the source of truth and a last line without its end is not
yet a record; the Parquet files are read in their place where they hold as many requests.
`results/README.md` describes the files.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd

from analysis.checks import check_record, check_rounds, check_sums
from methods.base import Refusal

SCHEMA_VERSION = 1
KEYS = ("cell_id", "sitting", "phase", "arm", "prompt_id", "turn", "repeat")
STAGES = ("draft_s", "build_s", "verify_s", "commit_s")
BASELINE = "autoregressive"
HIDDEN = ("invalid", "failed")  # arms whose figures nothing shows
MEASURED = "measured"  # the `source` of an arm that was not worked out from others
UNBOUNDED = 1e308  # how JSON, which has no infinity, writes an infinite gap

_DERIVED = {"n_rounds": "int64", "accepted_sum": "int64", "uncut_rounds": "int64", "accepted_uncut_sum": "int64"}
_DERIVED["shadow_uncut_sum"] = "Int64"
_READ = {
    "cell_id": "str",
    "sitting": "int64",
    "phase": "str",
    "arm": "str",
    "prompt_id": "str",
    "turn": "int64",
    "repeat": "int64",
    "order_index": "int64",
    "category": "str",
    "prompt_text": "str",
    "prompt_ids": "object",
    "output_ids": "object",
    "text": "str",
    "finish_reason": "str",
    "correct": "boolean",
    "answer": "str",
    "n_input": "int64",
    "n_output": "int64",
    "ttft_s": "float64",
    "decode_s": "float64",
    "e2e_s": "float64",
    "tpot_s": "float64",
    "tree_checksum": "int64",
    "exact_match": "boolean",
    "first_divergence": "Int64",
    "near_ties": "Int64",
    "true_violations": "Int64",
    "max_gap": "float64",
    "gap_tolerance": "float64",
    "peak_mem_bytes": "float64",
    "energy_j": "float64",
    "oracle_rounds": "int64",
    "oracle_nodes": "int64",
    "oracle_max_gap": "float64",
    "oracle_disagreements": "int64",
    "started_utc": "str",
}
_WRITTEN = frozenset((*_READ, "rounds", "stages", "shadow"))
REQUEST_DTYPES = {**_READ, **dict.fromkeys(STAGES, "float64"), **_DERIVED}
ROUND_DTYPES = {
    **{key: _READ[key] for key in KEYS},
    "round": "int64",
    "accepted": "int64",
    "emitted": "int64",
    "cut": "str",
    "shadow_accepted": "Int64",
    "width": "Int64",
}
_LATER = {"width"}  # columns that older results lack

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Arm:
    """One method with its settings, as `arms/<arm>.json` has it. `budget` is NaN where the method has none; `source` is
    `replayed` where a replay says what its rounds would have been."""

    name: str
    method: str
    budget: float
    settings: Mapping[str, Any]
    status: str
    reason: str | None
    source: str = "measured"
    verify: str | None = None

    @property
    def drafts(self) -> bool:
        """Whether it proposes anything: the baseline and its twin in a null test do not."""
        return self.method != BASELINE

    @property
    def order(self) -> tuple[bool, bool, str, float, str]:
        """Sorts the baseline first, then arms without a budget, then by budget within each method."""
        without = math.isnan(self.budget)
        return self.name != BASELINE, not without, self.method, 0.0 if without else self.budget, self.name


@dataclass(frozen=True)
class Cell:
    """One cell of a results folder, its arms in the order of tables. `results` names the folder, which tells apart
    cells read together; `workload_name` is the workload with the part of it that was asked."""

    results: str
    folder: Path
    cell_id: str
    settings: Mapping[str, Any]
    workload_name: str | None
    arms: tuple[Arm, ...]


def find_cells(path: str | Path) -> list[Cell]:
    """The cells of a results folder, of a folder of several, or a single cell's folder, in the order of their names.

    Raises:
        Refusal: there is no such folder, no cell in it, or one written in another schema.
    """
    path = Path(path)
    if not path.is_dir():
        raise Refusal(f"results folder {path} does not exist.")
    if (path / "cell.json").is_file():
        found = [(path.resolve().parent.parent.name, path)]
    elif (path / "cells").is_dir():
        found = [(path.resolve().name, folder) for folder in sorted((path / "cells").iterdir())]
    else:
        roots = sorted({*path.glob("*/cells"), *path.glob("*/*/cells")})
        found = [(r.parent.relative_to(path).as_posix(), folder) for r in roots for folder in sorted(r.iterdir())]
    cells = [_cell(results, folder) for results, folder in found if (folder / "cell.json").is_file()]
    if not cells:
        raise Refusal(f"{path} holds no results: a folder with cells/<cell_id>/cell.json, or one above it, is needed.")
    return cells


def _cell(results: str, folder: Path) -> Cell:
    content = _read_json(folder / "cell.json")
    if content.get("schema_version") != SCHEMA_VERSION:
        version = content.get("schema_version")
        raise Refusal(f"{folder / 'cell.json'} has schema_version {version}: this version reads {SCHEMA_VERSION}.")
    arms = [_arm(_read_json(file)) for file in (folder / "arms").glob("*.json")]
    ordered = tuple(sorted(arms, key=lambda arm: arm.order))
    return Cell(results, folder, content["cell_id"], content["settings"], content.get("workload_name"), ordered)


def _arm(content: Record) -> Arm:
    budget = content.get("budget")
    return Arm(
        name=content["arm"],
        method=content["method"],
        budget=float("nan") if budget is None else float(budget),
        settings=content.get("settings") or {},
        status=content["status"],
        reason=content.get("reason"),
        verify=content.get("verify"),
    )


def engine_fact(cell: Cell, name: str) -> Any:
    """What the engine said of itself under `name`, from the first sitting that recorded it; None where none did."""
    for file in sorted(cell.folder.glob("sittings/*/environment.json"), key=lambda file: int(file.parent.name)):
        fact = (_read_json(file).get("engine") or {}).get(name)
        if fact is not None:
            return fact
    return None


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise Refusal(f"{file} is damaged ({error}).") from None
    if not isinstance(content, dict):
        raise Refusal(f"{file} is damaged (not a JSON object).")
    return content


def lines(file: Path) -> Iterator[dict[str, Any]]:
    """The records of a JSONL file. What follows the last line end is still being written and is passed over."""
    data = file.read_bytes()
    for number, line in enumerate(data[: data.rfind(b"\n") + 1].split(b"\n"), start=1):
        if line:
            try:
                yield json.loads(line)
            except ValueError as error:
                raise Refusal(f"{file}, line {number} is damaged ({error}).") from None


def sitting_files(cell: Cell) -> list[Path]:
    """The `requests.jsonl` of every sitting, first sitting first."""
    return sorted(cell.folder.glob("sittings/*/requests.jsonl"), key=lambda file: int(file.parent.name))


def records(cell: Cell) -> list[dict[str, Any]]:
    """Every record of a cell from its JSONL files, each compared with the baseline's answer of its sitting.

    The line itself cannot always tell: the baseline may have answered after it.
    """
    found = []
    for file in sitting_files(cell):
        for record in lines(file):
            check_record(record, _WRITTEN, file)
            found.append(record)
    answers = {_place(record): record["output_ids"] for record in found if record["arm"] == BASELINE}
    for record in found:
        reference = answers.get(_place(record))
        record["exact_match"] = None if reference is None else record["output_ids"] == reference
    return found


def _place(record: Record) -> tuple[Any, ...]:
    return tuple(record[key] for key in KEYS if key != "arm")


def requests_of(cell: Cell, columns: Sequence[str] = tuple(REQUEST_DTYPES)) -> pd.DataFrame:
    """One row a request with the columns asked for. Where many requests were in flight, those due outside of the steady
    part of their load have no times (`analysis.load_figures`)."""
    from analysis.load_figures import TIMES, Loads, is_loaded  # which reads cells itself

    if not is_loaded(cell) or not set(TIMES) & set(columns):
        return _recorded(cell, columns)
    keyed = _recorded(cell, tuple(dict.fromkeys((*columns, *KEYS))))
    return Loads(cell).times_of(keyed)[list(columns)]


def _recorded(cell: Cell, columns: Sequence[str]) -> pd.DataFrame:
    """From Parquet where it is complete, else from JSONL."""
    if _parquet_is_complete(cell):
        file = cell.folder / "requests.parquet"
        table = pd.read_parquet(file, columns=list(dict.fromkeys((*columns, *KEYS, "n_output", *_DERIVED))))
        check_sums(table, file)
        return pd.DataFrame({name: _column(name, table[name]) for name in columns})
    return requests_frame(records(cell), columns)


def rounds_of(cell: Cell) -> pd.DataFrame:
    """One row a round, in the order of `requests_of`."""
    if _parquet_is_complete(cell):
        file = cell.folder / "rounds.parquet"
        table = pd.read_parquet(file).reindex(columns=list(ROUND_DTYPES))
        check_rounds(table, requests_of(cell, (*KEYS, "n_output", "n_rounds")), file)
        return pd.DataFrame({name: _column(name, table[name]) for name in ROUND_DTYPES})
    return rounds_frame(records(cell))


def _parquet_is_complete(cell: Cell) -> bool:
    """Whether both Parquet files are of this schema and hold every request of the JSONL files, if those are there."""
    import pyarrow.parquet as pq

    files = sitting_files(cell)
    expected = {"requests.parquet": REQUEST_DTYPES, "rounds.parquet": ROUND_DTYPES}
    rows = dict.fromkeys(expected, 0)
    for name, columns in expected.items():
        if not (cell.folder / name).is_file():
            return False
        file = pq.read_metadata(cell.folder / name)
        version = (file.metadata or {}).get(b"schema_version", b"none").decode()
        if version != str(SCHEMA_VERSION) or not set(columns) - _LATER <= set(file.schema.to_arrow_schema().names):
            if files:
                return False
            raise Refusal(f"{cell.folder / name} is not of schema version {SCHEMA_VERSION}, which this version reads.")
        rows[name] = file.num_rows
    return not files or rows["requests.parquet"] == sum(file.read_bytes().count(b"\n") for file in files)


def requests_frame(found: Iterable[Record], columns: Sequence[str] = tuple(REQUEST_DTYPES)) -> pd.DataFrame:
    """Records as a table, one row a request: `stages` as four columns, the rounds as their sums."""
    values: dict[str, list[Any]] = {name: [] for name in columns}
    for record in found:
        stages, derived = record["stages"] or {}, _sums(record["rounds"], record["shadow"])
        for name, column in values.items():
            if name in _DERIVED:
                column.append(derived[name])
            else:
                column.append(stages.get(name) if name in STAGES else record[name])
    return pd.DataFrame({name: _column(name, column) for name, column in values.items()})


def _sums(rounds: Sequence[Sequence[Any]], shadow: Sequence[int] | None) -> dict[str, int | None]:
    beside = zip(rounds, shadow or (), strict=shadow is not None)
    uncut = [accepted for accepted, _, cut in rounds if not cut]
    return {
        "n_rounds": len(rounds),
        "accepted_sum": sum(accepted for accepted, _, _ in rounds),
        "uncut_rounds": len(uncut),
        "accepted_uncut_sum": sum(uncut),
        "shadow_uncut_sum": None if shadow is None else sum(tokens for (_, _, cut), tokens in beside if not cut),
    }


def rounds_frame(found: Iterable[Record]) -> pd.DataFrame:
    """Records as a table, one row a round: the request's keys, the round's index and what it did."""
    keys: dict[str, list[Any]] = {name: [] for name in KEYS}
    counts: list[int] = []
    rounds: list[Sequence[Any]] = []
    shadow: list[int | None] = []
    widths: list[int | None] = []
    for record in found:
        for name, column in keys.items():
            column.append(record[name])
        counts.append(len(record["rounds"]))
        rounds.extend(record["rounds"])
        nothing = [None] * len(record["rounds"])
        shadow.extend(record["shadow"] or nothing)
        widths.extend(record.get("widths") or nothing)
    owner = np.repeat(np.arange(len(counts)), counts)
    table = {name: _column(name, column).take(owner) for name, column in keys.items()}
    table = {name: column.reset_index(drop=True) for name, column in table.items()}
    table["round"] = pd.Series([index for count in counts for index in range(count)], dtype="int64")
    for index, name in enumerate(("accepted", "emitted", "cut")):
        table[name] = _column(name, [one[index] for one in rounds])
    table["shadow_accepted"] = _column("shadow_accepted", shadow)
    table["width"] = _column("width", widths)
    return pd.DataFrame(table)


def _column(name: str, values: Any) -> pd.Series[Any]:
    dtype = REQUEST_DTYPES.get(name) or ROUND_DTYPES[name]
    if dtype == "object":
        return pd.Series([np.asarray(ids, dtype=np.int64).tolist() for ids in values], dtype="object")
    if name == "tree_checksum":  # 64 bits, which may come as a decimal or without a sign
        values = [(int(value) + 2**63) % 2**64 - 2**63 for value in values]
    same = isinstance(values, pd.Series) and values.dtype == dtype
    column: pd.Series[Any] = values if same else pd.Series(values, dtype=cast(Any, dtype))
    return column.replace(UNBOUNDED, math.inf) if dtype == "float64" and (column == UNBOUNDED).any() else column
