"""What a command would do, for `dry_run=true`: its cells, their arms, and the time they would take where earlier
records tell.

A request's time runs until the next one starts, so that scoring and writing count too. A cell without records of its
own takes those of a cell on the same engine, models, device, tp and answer length.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.cells import BASELINE, Cell, CellSettings
from harness.progress import clock
from harness.questions import turns
from harness.records import read_json, read_lines
from harness.results import SAMPLES, Done

ALIKE = ("engine_target", "target", "drafter", "weights", "tp", "device", "dtype", "max_new_tokens", "context")
UNKNOWN = "unknown"


@dataclass
class Past:
    """What earlier sittings took: seconds a request by arm, seconds before the first timed one, and what is done."""

    request_s: dict[str, list[float]] = field(default_factory=dict)
    start_s: list[float] = field(default_factory=list)
    done: Done = field(default_factory=set)

    def read(self, cell_folder: Path) -> Past:
        """Add a stored cell's sittings."""
        for file in sorted(cell_folder.glob("sittings/*/requests.jsonl")):
            lines = [line for line in read_lines(file) if line["phase"] != "warmup"]
            starts = [datetime.fromisoformat(line["started_utc"]) for line in lines]
            for line, start, end in zip(lines, starts, starts[1:], strict=False):
                self.request_s.setdefault(line["arm"], []).append((end - start).total_seconds())
            self.done |= {
                (line["arm"], line["prompt_id"], line["turn"], line["repeat"])
                for line in lines
                if line["phase"] == "timed"
            }
            environment = file.parent / "environment.json"
            if starts and environment.exists():
                began = datetime.fromisoformat(read_json(environment)["started_utc"])
                self.start_s.append((starts[0] - began).total_seconds())
        return self

    def seconds(self, owed: Mapping[str, int], extra: Mapping[str, int]) -> float | None:
        """The time for `owed` timed and `extra` other requests per arm; None where an arm's pace is not known."""
        if not any(owed.values()):
            return 0.0
        counts = {arm: owed.get(arm, 0) + extra.get(arm, 0) for arm in {*owed, *extra}}
        if not self.start_s or any(count and arm not in self.request_s for arm, count in counts.items()):
            return None
        return fmean(self.start_s) + sum(fmean(self.request_s[arm]) * n for arm, n in counts.items() if n)


def print_overview(console: Console, cells: Sequence[Cell], root: Path) -> None:
    """A line about the whole and a table with a row a cell."""
    estimates = [_estimate(cell, root) for cell in cells]
    known = [seconds for seconds in estimates if seconds is not None]
    whole = f"about {clock(sum(known))}" if len(known) == len(cells) else UNKNOWN
    console.print(
        f"{len(cells)} cells for {root}, estimated time {whole}, nothing is run", soft_wrap=True, markup=False
    )
    table = Table(box=None)
    for column in ("cell", "model", "workload", "tp", "T"):
        table.add_column(column, no_wrap=True)
    for column in ("requests an arm", "time", "arms"):
        table.add_column(column, overflow="fold")
    for cell, seconds in zip(cells, estimates, strict=True):
        s = cell.settings
        requests = str(len(turns(s)) * s.repeats)
        time = UNKNOWN if seconds is None else clock(seconds)
        names = " ".join(arm.name for arm in cell.arms)
        row = (cell.cell_id, s.model, s.workload_name, str(s.tp), f"{s.temperature:g}", requests, time, names)
        table.add_row(*map(Text, row))  # names are no markup
    console.print(table)


def _estimate(cell: Cell, root: Path) -> float | None:
    """Seconds that are left to do for a cell."""
    own = Past().read(root / "cells" / cell.cell_id)
    asked, settings = turns(cell.settings), cell.settings
    owed = {
        arm.name: sum((arm.name, *turn, r) not in own.done for turn in asked for r in range(settings.repeats))
        for arm in cell.arms
    }
    owed[BASELINE.arm] = max(owed.values())  # AR answers whatever another arm still owes
    samples = len([turn for turn in asked if turn.turn == 0][:SAMPLES])
    extra = dict.fromkeys(owed, samples)
    extra[BASELINE.arm] += 3 * samples
    seconds = own.seconds(owed, extra)
    if seconds is not None:
        return seconds
    for folder in _alike(settings, root):
        own.read(folder)
    return own.seconds(owed, extra)


def _alike(settings: CellSettings, root: Path) -> Iterator[Path]:
    """The other stored cells of the folder whose requests take about as long."""
    for file in sorted(root.glob("cells/*/cell.json")):
        stored: dict[str, Any] = read_json(file)["settings"]
        same = all(stored.get(name) == getattr(settings, name) for name in ALIKE)
        if same and file.parent.name != settings.cell_id:
            yield file.parent
