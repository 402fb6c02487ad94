"""A replay as a person reads it: the curve over budgets, beside what runs of the same budgets measured.

In float32 a replay has the rounds of a run exactly. In bfloat16 logits differ with the width of a pass, near ties fall
otherwise, and so do some trees: the rounds that differ are counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from rich.console import Console
from rich.table import Table
from rich.text import Text

from analysis import stats
from analysis.columns import count, interval, number, percent
from analysis.load import load_runs
from analysis.records import KEYS, Arm, Cell, find_cells, requests_of, rounds_of
from analysis.replay import Replayed, asks_the_same, load_curve, methods_of, replays_of
from analysis.replay_pairs import load_drafter_differences
from methods.base import Method, Refusal, Round
from methods.dflash import DFlash

_COMPARED = {
    **dict.fromkeys(("cell_id", "arm", "measured_cell_id"), "str"),
    **dict.fromkeys(("n_requests", "n_other_text", "n_rounds", "n_differing"), "int64"),
    **dict.fromkeys(("acceptance_length", "acceptance_length_replayed"), "float64"),
    "results": "str",
}


def load_differences(path: str | Path) -> pd.DataFrame:
    """A replay held against measured rounds: one row per replayed cell and arm measured in it, or in another cell of
    the same results folder that asks the same.

    Columns: `cell_id arm measured_cell_id n_requests n_other_text n_rounds n_differing acceptance_length
    acceptance_length_replayed results`. Compared are the requests whose output is the replayed text; `n_other_text`
    have another. Of their `n_rounds`, `n_differing` accepted or emitted otherwise, or were cut otherwise, than the
    replay says of a round that starts there. Both acceptance lengths are over these requests.
    """
    cells = find_cells(path)
    rows = [row for cell in cells if (replays := replays_of(cell)) for row in _differences(cell, replays, cells)]
    return pd.DataFrame(rows, columns=list(_COMPARED)).astype(_COMPARED)


def _differences(cell: Cell, replays: list[Replayed], cells: list[Cell]) -> Iterator[dict[str, Any]]:
    methods = methods_of(min(replayed.budget for replayed in replays))
    texts = {(replayed.prompt_id, replayed.turn): replayed for replayed in replays}
    for other in cells:
        arms = [arm for arm in other.arms if arm.name in methods and arm.status not in ("invalid", "failed")]
        if other.results == cell.results and asks_the_same(cell, other) and arms:
            place = {"cell_id": cell.cell_id, "measured_cell_id": other.cell_id, "results": cell.results}
            yield from ({**place, **row} for row in _differences_of(other, arms, texts, methods))


def _differences_of(
    cell: Cell, arms: list[Arm], texts: Mapping[tuple[str, int], Replayed], methods: Mapping[str, Method]
) -> Iterator[dict[str, Any]]:
    requests = stats.one_each(requests_of(cell, (*KEYS, "output_ids")).assign(results=cell.results))
    rounds = dict(list(rounds_of(cell).groupby(list(KEYS), sort=False)))
    for arm in arms:
        found: dict[str, int] = dict.fromkeys(("n_requests", "n_other_text", "n_rounds", "n_differing"), 0)
        measured: list[Round] = []
        replayed: list[Round] = []
        for asked in requests[requests["arm"] == arm.name].to_dict("records"):
            text = texts.get((asked["prompt_id"], asked["turn"]))
            if text is None or list(text.output_ids) != list(asked["output_ids"]):
                found["n_other_text"] += text is not None
                continue
            rows = rounds.get(tuple(asked[name] for name in KEYS))
            mine = [] if rows is None else [Round(*row) for row in rows[["accepted", "emitted", "cut"]].to_numpy()]
            found["n_requests"] += 1
            found["n_differing"] += _differing(mine, text, methods[arm.name])
            measured += mine
            replayed += text.rounds(methods[arm.name])
        lengths = {"acceptance_length": _length(measured), "acceptance_length_replayed": _length(replayed)}
        if found["n_requests"] or found["n_other_text"]:
            yield {"arm": arm.name, **found, "n_rounds": len(measured), **lengths}


def _differing(measured: list[Round], text: Replayed, method: Method) -> int:
    """The rounds that the replay has otherwise where they start, so that one that differs does not drag the next."""
    depths, root, differing = text.depths(method), 0, 0
    for one in measured:
        left, held = len(depths) - root, depths[root]
        differing += one != (Round(held, held + 1, "") if held < left else Round(left, left, text.finish_reason))
        root += one.emitted
    return differing


def _length(rounds: list[Round]) -> float:
    uncut = [one.accepted for one in rounds if not one.cut]
    return 1 + sum(uncut) / len(uncut) if uncut else math.nan


def print_replays(console: Console, results: str | Path, *, by: Literal["category"] | None = None) -> None:
    """Print each replayed cell's curve at powers of two, and what measured arms say of it.

    Raises:
        Refusal: there is nothing replayed.
    """
    points, differences = load_curve(results, by=by), load_differences(results)
    if points.empty:
        raise Refusal(f"{results} holds no replay: a run with experiment=replay, or replay=1024, makes one.")
    chains = load_runs(results, by=by, unfinished=True)
    chains = chains[chains["arm"] == DFlash().arm]
    keys = ["results", "cell_id", *([by] if by else [])]
    for place, points_of in points.groupby(keys, sort=False):
        chain = chains[(chains[keys] == list(place)).all(axis=1)]
        beside = differences[(differences[keys[:2]] == list(place[:2])).all(axis=1)]
        _print(console, points_of, chain, None if by else beside)
    if not by:
        _print_drafters(console, results)


def _print_drafters(console: Console, results: str | Path) -> None:
    """Drafters of one target beside each other, where there are several."""
    paired = load_drafter_differences(results)
    for _, rows in paired.groupby(["results", "cell_id", "other_cell_id"], sort=False):
        first = rows.iloc[0]
        console.print(Text(f"{first['other_drafter']} less {first['drafter']}, paired", style="bold"))
        table = _grid("acceptance length", "of the other", "difference")
        for row in _rows(rows[rows["budget"].isin(_shown(int(rows["budget"].max())))]):
            apart = interval(row.difference, row.difference_low, row.difference_high)
            lengths = number(row.acceptance_length, 2), number(row.other_acceptance_length, 2)
            table.add_row(f"ddtree-{row.budget}", *lengths, Text(apart))
        console.print(table)
        console.print(Text(f"{count(int(first['n_prompts']), 'prompt')} with the same text.", style="dim"))
        console.print()


def _grid(*titles: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("arm")
    for title in titles:
        table.add_column(title, justify="right")
    return table


def _print(console: Console, points: pd.DataFrame, chain: pd.DataFrame, beside: pd.DataFrame | None) -> None:
    first, budget = points.iloc[0], int(points["budget"].max())
    kind = [first["category"]] if "category" in points else []
    parts = [first["model"], first["drafter"], first["workload"], *kind, f"T {first['temperature']:g}"]
    console.print(Text(" · ".join([*parts, f"cell {first['cell_id']}"]), style="bold"))
    compared = {} if beside is None else dict(list(beside.groupby("arm")))
    titles = ["measured", "difference", "differing rounds"] if compared else []
    table = _grid("acceptance length", "tokens per round", *titles)
    for row in _rows(chain):
        shown = [row.arm, number(row.acceptance_length, 2), number(row.tokens_per_round, 2)]
        table.add_row(*map(Text, shown + _measured(compared.get(row.arm), bool(compared))))
    for row in _rows(points[points["budget"].isin(_shown(budget))]):
        length = interval(row.acceptance_length, row.acceptance_length_low, row.acceptance_length_high)
        arm = f"ddtree-{row.budget}"
        shown = [arm, length, number(row.tokens_per_round, 2)]
        table.add_row(*map(Text, shown + _measured(compared.get(arm), bool(compared))))
    console.print(table)
    console.print(Text(_note(int(first["n_prompts"]), beside), style="dim"))
    console.print()


def _rows(table: pd.DataFrame) -> Iterator[Any]:
    return iter(table.itertuples())


def _shown(budget: int) -> set[int]:
    return {2**power for power in range(budget.bit_length()) if 2**power <= budget} | {budget}


def _measured(rows: pd.DataFrame | None, asked: bool) -> list[str]:
    """The cells that compare an arm with its runs, one below the other where several cells have it."""
    if rows is None:
        return ["–"] * 3 if asked else []
    shares = rows["acceptance_length_replayed"] / rows["acceptance_length"] - 1
    rounds = zip(rows["n_differing"], rows["n_rounds"], strict=True)
    columns = (
        (number(length, 2) for length in rows["acceptance_length"]),
        map(percent, shares),
        (f"{differing} of {all_rounds}" for differing, all_rounds in rounds),
    )
    return ["\n".join(column) for column in columns]


def _note(prompts: int, beside: pd.DataFrame | None) -> str:
    said = [f"{count(prompts, 'prompt')}; replayed from AR's text at every root [95 % bootstrap interval over prompts]"]
    if beside is not None and len(beside):
        said.append("difference: replayed over measured, on requests with the replayed text")
        if others := int(beside["n_other_text"].sum()):
            said.append(f"{count(others, 'request')} answered otherwise left out")
    return "; ".join(said) + "."
