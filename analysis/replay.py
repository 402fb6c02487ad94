"""Every budget from one text: the rounds behind a replay, as rows of `load_runs` and as a curve over budgets.

A line of replay.jsonl says, for every root of AR's text, where the text's own continuation lies in the draft tree there
(`Replay` in methods/base.py). The tree of budget b is the first b nodes, so what it would have accepted, and therefore
every round of it, follows without a run. What follows are rounds, never times.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis import stats
from analysis.records import (
    BASELINE,
    KEYS,
    STAGES,
    Arm,
    Cell,
    find_cells,
    lines,
    requests_frame,
    rounds_frame,
)
from methods.base import Cut, Method, Round
from methods.ddtree import DDTree
from methods.dflash import DFlash

PAPER_BUDGETS = (16, 32, 64, 128, 256, 512, 1024)
REPLAYED = "replayed"
# Settings that change nothing about a timed request's rounds, and labels.
FREE = ("replay", "oracle_rate", "shadow_linear", "dump_rounds", "repeats", "engine", "model")
_TIMES = ("ttft_s", "decode_s", "e2e_s", "tpot_s", *STAGES, "peak_mem_bytes", "energy_j")
_SUMS = ("n_rounds", "accepted_sum", "uncut_rounds", "accepted_uncut_sum", "shadow_uncut_sum")
_ROOTS = {
    **dict.fromkeys(("cell_id", "prompt_id"), "str"),
    "turn": "int64",
    "category": "str",
    **dict.fromkeys(("root", "position", "token", "left", "budget", "chain"), "int64"),
    "places": "object",
    "results": "str",
}
_CURVE = {
    **dict.fromkeys(("cell_id", "model", "drafter", "workload"), "str"),
    "temperature": "float64",
    **dict.fromkeys(("budget", "n_prompts", "n_uncut_rounds"), "int64"),
    **dict.fromkeys(("acceptance_length", "acceptance_length_low", "acceptance_length_high"), "float64"),
    "tokens_per_round": "float64",
    "results": "str",
}

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Replayed:
    """One text of AR's and where it lies in the trees of its roots; a line of replay.jsonl."""

    prompt_id: str
    turn: int
    category: str
    n_input: int
    output_ids: tuple[int, ...]
    finish_reason: Cut
    budget: int
    places: tuple[tuple[int, ...], ...]
    chain: tuple[int, ...]

    @classmethod
    def of(cls, line: Mapping[str, Any]) -> Replayed:
        return cls(
            line["prompt_id"],
            line["turn"],
            line["category"],
            line["n_input"],
            tuple(line["output_ids"]),
            line["finish_reason"],
            line["budget"],
            tuple(map(tuple, line["places"])),
            tuple(line["chain"]),
        )

    def depths(self, method: Method) -> list[int]:
        """How much of the text a method's draft holds at each root."""
        budget = method.node_budget
        return list(self.chain) if budget is None else depths_within(self.places, budget)

    def rounds(self, method: Method) -> list[Round]:
        return rounds_from(self.depths(method), self.finish_reason)


def depths_within(places: Sequence[Sequence[int]], budget: int) -> list[int]:
    """How much of the text the tree of a budget holds at each root."""
    return [bisect_right(held, budget) for held in places]


def replay_rounds(places: Sequence[Sequence[int]], budget: int, finish_reason: Cut = "length") -> list[Round]:
    """The rounds that a budget takes through a text: as a run of it has them, one by one.

    Args:
        places: root by root, as in `Replay.places`; one root fewer than the text has tokens.
        finish_reason: why the text ends, which is what cuts its last round.
    """
    return rounds_from(depths_within(places, budget), finish_reason)


def rounds_from(depths: Sequence[int], finish_reason: Cut) -> list[Round]:
    """The rounds from the first root on, given how much of the text the draft at each root holds."""
    done, root = [], 0
    while root < len(depths):
        left, accepted = len(depths) - root, depths[root]
        # A draft that holds all that is left would have gone on: the end of the text cuts it.
        one = Round(accepted, accepted + 1, "") if accepted < left else Round(left, left, finish_reason)
        done.append(one)
        root += one.emitted
    return done


def replays_of(cell: Cell) -> list[Replayed]:
    """A cell's replays, one for each prompt and turn."""
    found: dict[tuple[str, int], Replayed] = {}
    for file in sorted(cell.folder.glob("sittings/*/replay.jsonl"), key=lambda file: int(file.parent.name)):
        for line in lines(file):
            one = Replayed.of(line)
            found.setdefault((one.prompt_id, one.turn), one)
    return list(found.values())


def asks_the_same(cell: Cell, other: Cell, free: Sequence[str] = FREE) -> bool:
    """Whether two cells differ in nothing that counts; a setting that one does not know of is at its default."""
    mine, theirs = cell.settings, other.settings
    return all(mine[name] == theirs[name] for name in mine.keys() & theirs.keys() if name not in free)


def methods_of(budget: int) -> dict[str, Method]:
    """The methods whose rounds a replay of this budget holds, by arm: DFlash and every tree up to it."""
    methods: list[Method] = [DFlash(), *(DDTree(nodes) for nodes in range(1, budget + 1))]
    return {method.arm: method for method in methods}


def with_replayed(cell: Cell) -> Cell:
    """The cell with an arm for DFlash and for each budget of the paper that was replayed and not measured."""
    budgets = [replayed.budget for replayed in replays_of(cell)]
    if not budgets:
        return cell
    measured = {arm.name: arm for arm in cell.arms}
    chosen: list[Method] = [DFlash(), *(DDTree(b) for b in PAPER_BUDGETS if b <= min(budgets))]
    added = [
        Arm(method.arm, method.name, _budget(method), {}, measured[BASELINE].status, None, REPLAYED)
        for method in chosen
        if method.arm not in measured
    ]
    return replace(cell, arms=tuple(sorted((*cell.arms, *added), key=lambda arm: arm.order)))


def _budget(method: Method) -> float:
    return math.nan if method.node_budget is None else float(method.node_budget)


def replayed_requests(cell: Cell, requests: pd.DataFrame) -> pd.DataFrame:
    """`requests`, those of a cell as `with_replayed` gives it, and after them one for each replayed arm and text: AR's
    own with the rounds that the arm would have taken, and no times."""
    records = list(_records(cell, requests))
    if not records:
        return requests
    place = ["sitting", "phase", "prompt_id", "turn", "repeat"]
    there = [name for name in _SUMS if name in requests]
    sums = requests_frame(records, [*place, "arm", *there])
    rows = requests[requests["arm"] == BASELINE].drop(columns=["arm", *there]).merge(sums, on=place)
    blank = {name: math.nan for name in _TIMES if name in rows}
    rows = rows.assign(**blank)[list(requests)]
    return pd.concat([requests, rows.astype(requests.dtypes.to_dict())], ignore_index=True)


def replayed_rounds(cell: Cell, requests: pd.DataFrame) -> pd.DataFrame:
    """The rounds of `replayed_requests`, as `load_rounds` has them."""
    return rounds_frame(_records(cell, requests))


def _records(cell: Cell, requests: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """What a run of each replayed arm would have recorded, as far as that goes."""
    arms = [arm.name for arm in cell.arms if arm.source == REPLAYED]
    if not arms:
        return
    methods = methods_of(max(PAPER_BUDGETS))
    answers = requests[(requests["phase"] == "timed") & (requests["arm"] == BASELINE) & (requests["repeat"] == 0)]
    answers = answers.sort_values("sitting", kind="stable").drop_duplicates(["prompt_id", "turn"])
    keys = {(key["prompt_id"], key["turn"]): key for key in answers[list(KEYS)].to_dict("records")}
    for replayed in replays_of(cell):
        key = keys.get((replayed.prompt_id, replayed.turn))
        if key is not None:
            same = {str(name): value for name, value in key.items()} | {"stages": None, "shadow": None}
            yield from ({**same, "arm": arm, "rounds": replayed.rounds(methods[arm])} for arm in arms)


def load_replay(path: str | Path) -> pd.DataFrame:
    """One row a root: where a round could have started, and what it would have found there.

    Columns: `cell_id prompt_id turn category root position token left budget chain places results`. `root` counts from
    the first output token, `position` from the prompt's first; `left` is how much of the text follows, `places` where
    that lies in the tree of `budget` nodes, by depth from 1 as deep as it does, `chain` how much of it the drafter's
    first choices hold.
    """
    parts = [_roots(cell, replayed) for cell in find_cells(path) for replayed in replays_of(cell)]
    table = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=list(_ROOTS))
    return table.astype(_ROOTS)


def _roots(cell: Cell, replayed: Replayed) -> pd.DataFrame:
    roots = np.arange(len(replayed.chain))
    columns = {
        "cell_id": cell.cell_id,
        "prompt_id": replayed.prompt_id,
        "turn": replayed.turn,
        "category": replayed.category,
        "root": roots,
        "position": replayed.n_input + roots,
        "token": replayed.output_ids[:-1],
        "left": len(roots) - roots,
        "budget": replayed.budget,
        "chain": replayed.chain,
        "places": pd.Series([list(held) for held in replayed.places], dtype="object"),
        "results": cell.results,
    }
    return pd.DataFrame(columns, index=range(len(roots)))


def load_curve(path: str | Path, *, by: Literal["category"] | None = None) -> pd.DataFrame:
    """One row per replayed cell and budget from 1 to the replay's; with `by`, also per category.

    Columns: `cell_id model drafter workload temperature (category) budget n_prompts n_uncut_rounds acceptance_length
    acceptance_length_low acceptance_length_high tokens_per_round results`. The interval over prompts is as
    in `load_runs`, and so are the figures of a budget that stands there.
    """
    names: dict[str, str] = {"cell_id": "str", **({str(by): "str"} if by else {}), **_CURVE}
    rows: list[dict[str, Any]] = []
    for cell in find_cells(path):
        groups: dict[str, list[Replayed]] = {}
        for replayed in replays_of(cell):
            groups.setdefault(replayed.category if by else "", []).append(replayed)
        settings = {name: cell.settings[name] for name in ("model", "drafter", "temperature")}
        settings |= {"workload": cell.workload_name or cell.settings["workload"]}
        for category, group in groups.items():
            same = {"cell_id": cell.cell_id, "results": cell.results, "category": category, **settings}
            rows += [{**same, **point} for point in curve(group)]
    return pd.DataFrame(
        {name: pd.Series([row[name] for row in rows], dtype=cast(Any, kind)) for name, kind in names.items()}
    )


def curve(replays: Sequence[Replayed]) -> Iterator[dict[str, float]]:
    """The figures of every budget, over texts of one kind."""
    prompts = sorted({replayed.prompt_id for replayed in replays})
    budget = min(replayed.budget for replayed in replays)
    accepted, uncut, rounds = (np.zeros((len(prompts), budget)) for _ in range(3))
    for replayed in replays:
        at = prompts.index(replayed.prompt_id)
        for total, counts in zip((accepted, uncut, rounds), count_rounds(replayed, budget), strict=True):
            total[at] += counts
    later = sum(len(replayed.chain) for replayed in replays)
    known: dict[bytes, stats.Interval] = {}  # budgets between which nothing changes
    for column in range(budget):
        key = accepted[:, column].tobytes() + uncut[:, column].tobytes()
        if key not in known:
            known[key] = stats.bootstrap_ci(stats.acceptance_by_prompt(accepted[:, column], uncut[:, column]))
        length, all_rounds = known[key], int(rounds[:, column].sum())
        yield {
            "budget": column + 1,
            "n_prompts": len(prompts),
            "n_uncut_rounds": int(uncut[:, column].sum()),
            "acceptance_length": length.point,
            "acceptance_length_low": max(length.low, 1.0),  # NaN stays
            "acceptance_length_high": length.high,
            "tokens_per_round": later / all_rounds if all_rounds else math.nan,
        }


def count_rounds(replayed: Replayed, budget: int) -> tuple[Counts, Counts, Counts]:
    """Accepted tokens of uncut rounds, uncut rounds and all rounds, by budget from 1: all budgets walk at once."""
    n = len(replayed.chain)
    held = np.zeros((n + 1, budget + 1), dtype=np.uint8)  # row n is the end, where nothing moves
    for root, places in enumerate(replayed.places):
        held[root, [place for place in places if place <= budget]] = 1
    held = held.cumsum(axis=1, dtype=np.uint8)[:, 1:]
    at, of_budget = np.zeros(budget, dtype=np.int64), np.arange(budget)
    accepted, uncut, rounds = (np.zeros(budget, dtype=np.int64) for _ in range(3))
    while (on := at < n).any():
        depth = held[at, of_budget].astype(np.int64)
        whole = on & (depth < n - at)
        accepted += np.where(whole, depth, 0)
        uncut += whole
        rounds += on
        at = np.where(whole, at + depth + 1, n)
    return accepted, uncut, rounds
