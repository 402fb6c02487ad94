"""What tensor parallelism brings: the same cell at tp 1, 2 and 4, arm by arm.

A GPU at tp n is used efficiently if n of them are n times as fast: efficiency = t₁ / (n · tₙ), t being the TPOT. Cells
are paired prompt for prompt; without tp 1 the smallest there takes its place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.columns import (
    NOTHING,
    acceptance_length,
    interval,
    lossless,
    milliseconds,
    named,
    order,
    rows_of,
    speedup,
)
from analysis.load import load_runs
from analysis.notes import INTERVALS, SPEEDUPS, drifts
from analysis.pairing import counted, matched, ratio
from analysis.printing import Table, Title
from analysis.records import HIDDEN, Cell, find_cells
from analysis.stats import Interval
from methods.base import Refusal

_SAME = (
    *("model", "drafter", "engine", "device", "dtype", "workload", "temperature", "concurrency", "max_new_tokens"),
    *("request_rate", "simulate_acceptance"),
)
_NUMBERS = (
    *(*_SAME, "tp", "arm", "method", "budget", "status", "reason", "n_prompts", "n_requests", "tpot_s"),
    *("speedup", "speedup_low", "speedup_high"),
    *("acceptance_length", "acceptance_length_low", "acceptance_length_high", "tokens_per_s_per_gpu"),
)
_FIGURES = _NUMBERS[_NUMBERS.index("tpot_s") :]

Pairs = dict[tuple[str, int], Interval]  # by arm and tp, the ratio of TPOTs


def scaling_tables(results: str | Path) -> list[Table]:
    """A table for each cell that was run at several sizes, an arm at a size a row.

    Raises:
        Refusal: none was.
    """
    cells = {(cell.results, cell.cell_id): cell for cell in find_cells(results)}
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for row in rows_of(load_runs(results, unfinished=True)):
        groups.setdefault(tuple(map(str, (getattr(row, name) for name in _SAME))), []).append(row)
    scaled = [group for group in groups.values() if len({row.tp for row in group if row.n_requests}) > 1]
    if not scaled:
        raise Refusal(f"{results} has no cell at several tensor-parallel sizes: tp=1,2,4 asks for them.")
    return [_table(group, cells) for group in scaled]


def _table(rows: Sequence[Any], cells: dict[tuple[str, str], Cell]) -> Table:
    places: dict[int, dict[tuple[str, str], None]] = {}
    for row in rows:
        places.setdefault(row.tp, {})[row.results, row.cell_id] = None
    taken = {tp: next(iter(found)) for tp, found in places.items()}
    left_out = [cell for found in places.values() for _, cell in list(found)[1:]]
    rows = [row for row in rows if taken[row.tp] == (row.results, row.cell_id)]
    base = min(row.tp for row in rows if row.n_requests)
    pairs = _pairs(taken, base, cells)
    titles = (
        *(Title("arm", text=True), Title("tp", text=True), Title("TPOT (ms)"), Title(f"speed over tp {base}")),
        *(
            Title("efficiency"),
            Title("speed-up over AR"),
            Title("acceptance length"),
            Title("lossless", text=True, wraps=True),
        ),
    )
    shown, numbers, above = [], [], ""
    for row in sorted(rows, key=lambda row: (order(row), row.tp)):
        gain = pairs.get((row.arm, row.tp))
        gain = None if row.status in HIDDEN or _hidden(rows, row.arm, base) else gain
        share = None if gain is None else _scaled(gain, base / row.tp)
        shown.append(("" if named(row) == above else named(row), *_cells(row, gain, share)))
        numbers.append(_unrounded(row, gain, share))
        above = named(row)
    first = rows[0]
    parts = [first.model, first.workload, first.engine, first.device, first.dtype, f"T {first.temperature:g}"]
    parts += [f"concurrency {first.concurrency}"] if first.concurrency != 1 else []
    note = "\n".join(_notes(rows, base, pairs, left_out))
    return Table(" · ".join(parts), titles, tuple(shown), note, pd.DataFrame(numbers))


def _pairs(taken: dict[int, tuple[str, str]], base: int, cells: dict[tuple[str, str], Cell]) -> Pairs:
    """The base's TPOT over that at each other size, arm by arm, over the prompts both asked."""
    first = counted(cells[taken[base]])
    found: Pairs = {}
    for tp, place in taken.items():
        if tp != base:
            both = matched(counted(cells[place]), first)
            found |= {(str(arm), tp): ratio(of_arm) for arm, of_arm in both.groupby("arm", sort=False)}
    return found


def _scaled(one: Interval, factor: float) -> Interval:
    return Interval(one.point * factor, one.low * factor, one.high * factor, one.n)


def _hidden(rows: Sequence[Any], arm: str, tp: int) -> bool:
    return any(row.arm == arm and row.tp == tp and row.status in HIDDEN for row in rows)


def _cells(row: Any, gain: Interval | None, share: Interval | None) -> tuple[str, ...]:
    if row.status in HIDDEN:
        return str(row.tp), *(NOTHING,) * 5, lossless(row)
    scaled = (NOTHING if one is None else interval(one.point, one.low, one.high) for one in (gain, share))
    return str(row.tp), milliseconds(row.tpot_s), *scaled, speedup(row), acceptance_length(row), lossless(row)


def _unrounded(row: Any, gain: Interval | None, share: Interval | None) -> dict[str, Any]:
    found = {name: getattr(row, name) for name in _NUMBERS} | {"cell_id": row.cell_id}
    found |= dict.fromkeys(_FIGURES) if row.status in HIDDEN else {}
    for name, one in (("tpot_ratio", gain), ("efficiency", share)):
        found |= dict(zip((name, f"{name}_low", f"{name}_high"), one[:3] if one else (None,) * 3, strict=True))
    return found | {"n_paired_prompts": gain.n if gain else 0}


def _notes(rows: Sequence[Any], base: int, pairs: Pairs, left_out: Sequence[str]) -> Iterator[str]:
    prompts = {row.n_prompts for row in rows if row.n_requests}
    paired = {gain.n for gain in pairs.values()}
    said = (
        f"{_range(prompts)} prompts, {_range(paired)} of them the same as at tp {base}" if paired else "nothing paired"
    )
    yield (
        f"{said}; speed over tp {base}: its TPOT over the row's, geometric mean over prompts {INTERVALS}; efficiency: "
        f"that × {base} / tp; "
        f"{SPEEDUPS}, over AR at the same tp; acceptance length: pooled; it should not depend on tp."
    )
    yield "Sizes were timed in processes of their own: what the machine did in between is part of their ratio."
    if any(NOTHING in cells for row in rows for cells in [_cells(row, pairs.get((row.arm, row.tp)), None)]):
        yield f"{NOTHING}: tp {base} itself, an arm that is hidden or not there at tp {base}, or no prompt in common."
    if left_out:
        yield f"Left out, another cell of the same tp stands here: {', '.join(left_out)}."
    for tp in sorted({row.tp for row in rows}):
        for line in drifts([row for row in rows if row.tp == tp and row.status not in HIDDEN]):
            yield f"tp {tp}: {line}"


def _range(values: set[int]) -> str:
    if not values:
        return "0"
    return f"{min(values)}" if len(values) == 1 else f"{min(values)} to {max(values)}"
