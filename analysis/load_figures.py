"""What a cell's loads say, where many requests were in flight: the figures of their steady windows.

Every block of an arm is one load, with a window of its own (`analysis.load_window`); an arm's figures are over all of
its windows. Requests due outside of a window have no times that count: they filled the server or saw it drain. Their
texts and rounds count like any others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.load_window import Slos, Spread, Window, closed_window, open_window, pool, saturated
from analysis.records import Cell, find_cells, lines
from methods.streaming import Trace

TRACES, LOADS = "traces.jsonl", "loads.jsonl"
REQUEST = ("prompt_id", "turn", "repeat")
TIMES = ("ttft_s", "decode_s", "tpot_s", "e2e_s")
LOAD_FIGURES = (
    *("throughput_tokens_per_s", "requests_per_s", "goodput_per_s", "in_flight"),
    *("inter_chunk_s", "inter_chunk_p50_s", "inter_chunk_p99_s", "tokens_per_chunk"),
    *("ttft_p50_s", "ttft_p95_s", "ttft_p99_s", "e2e_p50_s", "e2e_p95_s", "e2e_p99_s"),
    *("start_lag_p99_s", "steady_s", "n_steady", "preemptions"),
)
_KEYS = ("cell_id", "sitting", "phase", "arm", *REQUEST, "load")


@dataclass(frozen=True)
class Load:
    """One block's requests, in the order asked, and their traces."""

    sitting: int
    arm: str
    place: int
    asked: tuple[tuple[Any, ...], ...]
    traces: tuple[Trace, ...]
    window: Window

    @property
    def steady(self) -> list[tuple[Any, ...]]:
        """The requests due within the window."""
        pairs = zip(self.asked, self.traces, strict=True)
        return [asked for asked, trace in pairs if self.window.holds(trace.scheduled_s)]


@dataclass(frozen=True)
class Loads:
    """A cell's loads; none where its requests came one by one."""

    cell: Cell

    @cached_property
    def all(self) -> list[Load]:
        if not is_loaded(self.cell):
            return []
        found: dict[tuple[int, str, int], list[Mapping[str, Any]]] = {}
        for line in _lines(self.cell, TRACES):
            found.setdefault((line["sitting"], line["arm"], line["load"]), []).append(line)
        return [self._load(place, block) for place, block in found.items()]

    def _load(self, place: tuple[int, str, int], block: list[Mapping[str, Any]]) -> Load:
        traces = [_trace(line) for line in block]
        if self.cell.settings.get("request_rate") is None:
            window = closed_window(traces, self.cell.settings["concurrency"])
        else:
            window = open_window(traces)
        sitting, arm, number = place
        asked = tuple(tuple(line[name] for name in REQUEST) for line in block)
        return Load(sitting, arm, number, asked, tuple(traces), window)

    def times_of(self, requests: pd.DataFrame) -> pd.DataFrame:
        """The requests, of which those that were timed outside of a window have no times."""
        if not self.all:
            return requests
        steady = [(load.sitting, load.arm, *asked) for load in self.all for asked in load.steady]
        keys = pd.MultiIndex.from_frame(requests[["sitting", "arm", *REQUEST]])
        outside = (requests["phase"] == "timed") & ~(keys.isin(steady) if steady else False)
        return requests.assign(**{name: requests[name].mask(outside) for name in TIMES if name in requests})

    def figures(self, arm: str, tp: int, slos: Slos | None = None) -> dict[str, float]:
        """An arm's figures from its windows, under the names of `load_runs`; NaN without a load."""
        loads = [load for load in self.all if load.arm == arm and load.window.seconds > 0]
        if not loads:
            return dict.fromkeys(LOAD_FIGURES, math.nan)
        steady = pool([(load.traces, load.window) for load in loads], slos)
        return {
            "throughput_tokens_per_s": steady.tokens_per_s,
            "requests_per_s": steady.requests_per_s,
            "goodput_per_s": steady.goodput_per_s,
            "in_flight": steady.concurrency,
            "inter_chunk_s": steady.inter_chunk_s.mean,
            "inter_chunk_p50_s": steady.inter_chunk_s.p50,
            "inter_chunk_p99_s": steady.inter_chunk_s.p99,
            "tokens_per_chunk": steady.tokens_per_chunk,
            **_percentiles("ttft", steady.ttft_s),
            **_percentiles("e2e", steady.e2e_s),
            "start_lag_p99_s": steady.start_lag_s.p99,
            "steady_s": steady.window.seconds,
            "n_steady": float(steady.n_requests),
            "preemptions": self._preemptions(arm),
            "tokens_per_s_per_gpu": steady.tokens_per_s / tp,
        }

    def _preemptions(self, arm: str) -> float:
        """Requests that the server put off while it was loaded; NaN where it does not tell."""
        told = [
            line["preemptions"] for line in _lines(self.cell, LOADS) if line["arm"] == arm and "preemptions" in line
        ]
        return float(sum(told)) if told else math.nan

    def saturated(self, arm: str) -> bool | None:
        """Whether the queue of an open loop kept growing; None where requests waited for each other."""
        if self.cell.settings.get("request_rate") is None:
            return None
        burstiness = float(self.cell.settings.get("burstiness") or 1.0)
        return any(saturated(load.traces, load.window, burstiness) for load in self.all if load.arm == arm)


def is_loaded(cell: Cell) -> bool:
    """Whether a cell's requests were a load."""
    return (cell.settings.get("concurrency") or 1) > 1 or cell.settings.get("request_rate") is not None


def load_traces(path: str | Path) -> pd.DataFrame:
    """One row a request of a load, failed ones too: its keys with the number of its `load` in the sitting, and when,
    in seconds since that load began, it was `scheduled_s`, `started_s`, had its `first_token_s` and `last_token_s`, and
    `ended_s`; `n_chunks`, `n_output`, whether it was `steady` (due within the window), and its `error`.
    """
    rows = []
    for cell in find_cells(path):
        loads = Loads(cell)
        for load in loads.all:
            steady = set(load.steady)
            for asked, trace in zip(load.asked, load.traces, strict=True):
                keys = (cell.cell_id, load.sitting, "timed", load.arm, *asked, load.place)
                rows.append({**dict(zip(_KEYS, keys, strict=True)), **_times(trace), "steady": asked in steady})
                rows[-1] |= {"error": trace.error, "results": cell.results}
    names = (*_KEYS, *_times(Trace(0.0, 0.0, 0.0, ())), "steady", "error", "results")
    return pd.DataFrame(rows, columns=list(names))


def _times(trace: Trace) -> dict[str, float]:
    return {
        "scheduled_s": trace.scheduled_s,
        "started_s": trace.started_s,
        "first_token_s": trace.first_token_s,
        "last_token_s": trace.last_token_s,
        "ended_s": trace.ended_s,
        "n_chunks": len(trace.chunks),
        "n_output": trace.n_output,
    }


def _percentiles(name: str, values: Spread) -> dict[str, float]:
    return {f"{name}_p{level}_s": getattr(values, f"p{level}") for level in (50, 95, 99)}


def _lines(cell: Cell, name: str) -> Iterable[Mapping[str, Any]]:
    files = cell.folder.glob(f"sittings/*/{name}")
    for file in sorted(files, key=lambda file: int(file.parent.name)):
        yield from lines(file)


def _trace(line: Mapping[str, Any]) -> Trace:
    return Trace.from_line({name: value for name, value in line.items() if name not in _KEYS})
