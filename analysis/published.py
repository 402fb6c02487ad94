"""What others have published, beside what was measured here.

`published.csv` has the numbers with their sources: speed-up over the authors' own AR and acceptance length, by model,
dataset, temperature, method and budget. They come from other machines, engines and prompts, without intervals, so they
are looked at and nothing is computed from them. A method with budgets but without one in its row is the best budget,
chosen on the same data.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from analysis.columns import number

FILE = Path(__file__).with_name("published.csv")
PUBLISHED = "published"


class Number(NamedTuple):
    """A published number as a cell of a table: its row's name, its workload, its figures as shown and unrounded."""

    label: str
    workload: str
    figures: tuple[str, str]
    numbers: dict[str, Any]


@cache
def load_published() -> pd.DataFrame:
    """Columns `model dataset temperature method budget speedup acceptance_length machine source note`, named as in
    this project's configs; NaN where a number was not published."""
    text = dict.fromkeys(("model", "dataset", "method", "machine", "source", "note"), "str")
    return pd.read_csv(FILE, dtype=text).fillna({"note": "", "machine": ""})


class Overlay:
    """The published numbers that stand beside measured ones, and their sources, numbered as they come."""

    def __init__(self) -> None:
        self._sources: dict[str, int] = {}
        self._notes: dict[str, None] = {}

    def beside(self, rows: Sequence[Any]) -> Iterator[Number]:
        """Those for the workloads of rows of one model and temperature."""
        found = load_published()
        workloads = {row.suite: row.workload for row in reversed(rows)}
        asked = {_plain(suite): workload for suite, workload in workloads.items()}
        same = (found["model"].map(_plain) == _plain(rows[0].model)) & (found["temperature"] == rows[0].temperature)
        same &= found["dataset"].map(_plain).isin(list(asked))
        for row in found[same].sort_values(["method", "source", "budget"], kind="stable").itertuples(index=False):
            budget = "" if pd.isna(row.budget) else f"-{row.budget:.0f}"
            index = self._sources.setdefault(str(row.source), len(self._sources) + 1)
            if row.note:
                self._notes.setdefault(f"[{index}] {row.method}{budget}: {row.note}")
            yield Number(
                f"published: {row.method}{budget}, {row.machine} [{index}]",
                asked[_plain(str(row.dataset))],
                (number(float(row.speedup), 2), number(float(row.acceptance_length), 2)),
                {**{str(name): value for name, value in row._asdict().items()}, "status": PUBLISHED},
            )

    def notes(self, asked: bool) -> Iterator[str]:
        """Where the numbers are from; that there is none, if they were asked for."""
        if self._sources:
            listed = "; ".join(f"[{index}] {source}" for source, index in self._sources.items())
            yield (
                "Published: other people's machines, engines, prompts and AR, without intervals; not to be compared "
                f"number for number. {listed}."
            )
            if self._notes:
                yield f"Of these, {'; '.join(self._notes)}."
        elif asked:
            yield "Nothing is published for these models, workloads and temperatures."


def _plain(name: str) -> str:
    """A name as everybody writes it: `Qwen3-8B` and `qwen3_8b` are the same."""
    return re.sub(r"[^a-z0-9]", "", name.lower())
