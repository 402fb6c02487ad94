"""Of what advice can be given: the cells of one machine and workload whose trees were timed, the replays of the texts
that they answer, and the two halves of the prompts: a budget is chosen on one and reported on the other.

A replay says which rounds a budget takes through a text, whatever machine the text is from. So it may come from another
engine, tp, device or concurrency than the times, but not from another model, drafter, workload or way of sampling.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from analysis import stats
from analysis.load import runs_of
from analysis.records import BASELINE, HIDDEN, MEASURED, Cell, engine_fact, requests_of
from analysis.replay import FREE, Replayed, asks_the_same, replays_of
from methods.base import Refusal
from methods.ddtree import DDTree
from methods.dflash import DFlash
from workloads.splits import dev_half

PART = ("split", "limit")
MACHINE = ("engine_target", "engine_python", "engine_args", "tp", "concurrency", "device", "engine_urls")
LOAD = ("request_rate", "burstiness")
_SAID = {"target": "model.target", "drafter": "model.drafter", "weights": "model.weights"}
_PART_SAID = {name: f"workload.{name}" for name in ("context", "context_path", "system", "enable_thinking", "suite")}
_READ = (
    *("cell_id", "sitting", "phase", "arm", "prompt_id", "turn", "repeat", "category"),
    *("n_output", "n_rounds", "ttft_s", "decode_s", "e2e_s", "tpot_s"),
)
CHAIN = DFlash().arm


class Halves(NamedTuple):
    """The prompts that a budget is chosen on and those it is reported for; the same ones where they cannot be kept
    apart."""

    dev: frozenset[str]
    test: frozenset[str]

    @property
    def apart(self) -> bool:
        return not self.dev & self.test


@dataclass(frozen=True)
class Subject:
    """What one piece of advice is about. `timed` are the cells with times, `runs` their rows of `load_runs` that may
    be shown, `texts` the replays by prompt, `others` settings of the replay's that differ from the times'."""

    timed: tuple[Cell, ...]
    runs: pd.DataFrame
    texts: Mapping[str, Sequence[Replayed]]
    halves: Halves
    others: tuple[str, ...]

    @property
    def budget(self) -> int:
        """The largest that was replayed of every text."""
        return min(one.budget for texts in self.texts.values() for one in texts)

    @property
    def budgets(self) -> tuple[int, ...]:
        """Those that were timed and replayed, ascending."""
        timed = self.runs.dropna(subset=["budget"])
        known = {int(budget): DDTree(int(budget)).arm for budget in timed["budget"]}
        return tuple(sorted(b for b, arm in known.items() if arm in set(timed["arm"]) and b <= self.budget))

    @property
    def place(self) -> tuple[str, str]:
        """The cell that stands for the subject: of those with trees the first whose prompts are reported on."""
        trees = set(self.runs.loc[self.runs["budget"].notna(), "cell_id"])
        cells = sorted((cell for cell in self.timed if cell.cell_id in trees), key=lambda cell: _split(cell) == "dev")
        return cells[0].results, cells[0].cell_id

    @property
    def row(self) -> Any:
        """A row of `load_runs` that has the subject's settings."""
        here = self.runs[self.runs["cell_id"] == self.place[1]]
        return next(here.itertuples(index=False))

    @cached_property
    def requests(self) -> pd.DataFrame:
        """The timed requests that count, each with AR's of its sitting: as from `stats.pair`, and `log_cost`, the
        logarithm of what one of its rounds takes over one of AR's."""
        parts = []
        for cell in self.timed:
            sound = set(self.runs.loc[self.runs["cell_id"] == cell.cell_id, "arm"])
            asked = requests_of(cell, _READ).assign(results=cell.results)
            parts.append(stats.pair(asked[asked["arm"].isin(sound)]))
        found = pd.concat(parts, ignore_index=True)
        found = found[(found["n_rounds"] > 0) & found["log_speedup"].notna()].reset_index(drop=True)
        per_round = (found["n_output"] - 1) / found["n_rounds"]
        return found.assign(log_cost=np.log(per_round.to_numpy(dtype=np.float64)) - found["log_speedup"])

    @cached_property
    def block(self) -> int | None:
        """Rows of DFlash's verify pass, as the engine said."""
        for cell in self.timed:
            rows = engine_fact(cell, "block_size")
            if rows is not None and int(rows) > 1:  # of an engine without a drafter it is 1
                return int(rows)
        return None


class _Asked(NamedTuple):
    """A prompt, as the rule of the halves knows it."""

    id: str
    category: str


def subjects(cells: Iterable[Cell], arms: Collection[str] | None = None) -> list[Subject]:
    """Every subject among the cells, in their order.

    Args:
        cells: of one results folder or several; a subject's are of one.
        arms: use the times of these arms, and AR's, as if no others had been run.

    Raises:
        Refusal: no replay and no timed tree that belong together; it says which is missing, or what differs.
    """
    cells = list(cells)
    replayed = {(cell.results, cell.cell_id): (cell, replays) for cell in cells if (replays := _texts(cell))}
    groups = [group for group in _groups(cells) if any(arm.budget > 0 for cell in group for arm in cell.arms)]
    known = [cell for cell, _ in replayed.values()]
    ours = [group for group in groups if any(_belongs(cell, group[0]) for cell in known)]
    runs = _sound([cell for group in ours for cell in group], arms) if ours else pd.DataFrame()
    found = [one for group in ours if (one := _subject(group, runs, list(replayed.values()))) is not None]
    if not found:
        raise _nothing(groups, known)
    return found


def _texts(cell: Cell) -> list[Replayed]:
    """A cell's replays, unless AR's texts are not the target's own."""
    status = {arm.name: arm.status for arm in cell.arms}.get(BASELINE)
    return [] if status in HIDDEN else replays_of(cell)


def _sound(cells: Sequence[Cell], arms: Collection[str] | None) -> pd.DataFrame:
    """The rows of `load_runs` that were timed and may be shown, of cells whose AR may be."""
    runs = runs_of(cells, unfinished=True)
    runs = runs[(runs["source"] == MEASURED) & ~runs["status"].isin(HIDDEN) & (runs["n_requests"] > 0)]
    runs = runs[(runs["arm"] == BASELINE) | (runs["method"] != BASELINE)]  # not its twin of the null test
    if arms is not None:
        runs = runs[runs["arm"].isin({BASELINE, *arms})]
    with_baseline = runs.loc[runs["arm"] == BASELINE, stats.CELL]
    return runs[pd.MultiIndex.from_frame(runs[stats.CELL]).isin(pd.MultiIndex.from_frame(with_baseline))]


def _groups(cells: Sequence[Cell]) -> Iterator[list[Cell]]:
    """Cells that differ in nothing but the part of the workload that they ask, and what costs no time."""
    groups: list[list[Cell]] = []
    for cell in cells:
        for group in groups:
            first = group[0]
            if first.results == cell.results and asks_the_same(first, cell, (*FREE, *PART)):
                group.append(cell)
                break
        else:
            groups.append([cell])
    yield from groups


def _subject(
    group: Sequence[Cell], runs: pd.DataFrame, replayed: Sequence[tuple[Cell, list[Replayed]]]
) -> Subject | None:
    """The group's sound cells with the replays that belong to it; its own first, of several the first of each text."""
    places = [(cell.results, cell.cell_id) for cell in group]
    runs = runs[pd.MultiIndex.from_frame(runs[stats.CELL]).isin(places)]
    group = [cell for cell in group if cell.cell_id in set(runs["cell_id"])]
    if runs["budget"].isna().all():
        return None
    own = {cell.cell_id for cell in group}
    there = [(cell, replays) for cell, replays in replayed if _belongs(cell, group[0])]
    there.sort(key=lambda found: found[0].cell_id not in own)
    texts: dict[tuple[str, int], Replayed] = {}
    split: dict[str, str] = {}
    others: dict[str, None] = {}
    for cell, replays in there:
        new = {(one.prompt_id, one.turn): one for one in replays if (one.prompt_id, one.turn) not in texts}
        texts |= new
        for one in new.values():
            split.setdefault(one.prompt_id, _split(cell))
        others |= dict.fromkeys(_differing(cell, group[0]) if new else ())
    by_prompt: dict[str, list[Replayed]] = {}
    for one in texts.values():
        if one.chain:  # an answer of a single token has no rounds
            by_prompt.setdefault(one.prompt_id, []).append(one)
    if not by_prompt:
        return None
    found = Subject(tuple(group), runs, by_prompt, _halves(by_prompt, split), tuple(others))
    return found if found.budgets else None


def _belongs(cell: Cell, timed: Cell) -> bool:
    """Whether the texts replayed in a cell are those that a timed one answers."""
    return (
        cell.results == timed.results
        and asks_the_same(cell, timed, _free(timed))
        and len({_dtype(cell), _dtype(timed)} - {None}) < 2
    )


def _free(timed: Cell) -> tuple[str, ...]:
    """The settings that change no text; above temperature 0 the engine does, which draws noise of its own."""
    machine = [name for name in MACHINE if name != "engine_target" or not timed.settings.get("temperature")]
    return (*FREE, *PART, *machine, *LOAD)


def _dtype(cell: Cell) -> str | None:
    """The dtype that `auto` came to, where a sitting has recorded that."""
    said = engine_fact(cell, "dtype")
    return None if said is None else str(said).removeprefix("torch.")


def _differing(cell: Cell, timed: Cell) -> list[str]:
    """What the machine of a replay has otherwise, as in `tp 2`."""
    names = [("engine", "engine"), ("tp", "tp"), ("concurrency", "concurrency"), ("device", "device")]
    mine, theirs = cell.settings, timed.settings
    return [f"{said} {mine[name]}" for name, said in names if mine.get(name) != theirs.get(name)]


def _split(cell: Cell) -> str:
    return str(cell.settings.get("split", "all"))


def _halves(texts: Mapping[str, Sequence[Replayed]], split: Mapping[str, str]) -> Halves:
    """Prompts asked as a half are of it; those asked as a whole are halved by the workload's own rule. All of them
    for both where one half would have none."""
    whole = [_Asked(name, texts[name][0].category) for name in texts if split[name] == "all"]
    first = dev_half(whole)
    dev = frozenset(name for name in texts if split[name] == "dev" or name in first)
    test = frozenset(texts) - dev
    return Halves(dev, test) if dev and test else Halves(dev | test, dev | test)


def _nothing(groups: Sequence[Sequence[Cell]], replayed: Sequence[Cell]) -> Refusal:
    """What is missing, in one sentence."""
    if not replayed:
        return Refusal(
            "no advice without a replay: replay=1024 with the same settings, or experiment=tune, makes one in the same "
            "results folder."
        )
    if not groups:
        return Refusal(
            "no advice without timed trees beside a sound AR: method=ddtree at several budgets, or experiment=tune, "
            "runs them in the same results folder."
        )
    timed, cell = groups[0][0], replayed[0]
    same = next((one for one in replayed if _belongs(one, timed)), None)
    if same is not None:
        return Refusal(
            f"no advice from replay={same.settings.get('replay')}: no budget up to that has sound times beside a sound "
            "AR (method=ddtree), or no answer has more than one token."
        )
    name, theirs, mine = next(_unlike(cell, timed), ("results_dir", cell.results, timed.results))
    return Refusal(
        f"no advice from the replay of another text: it has {name}={theirs}, the timed trees {name}={mine}; the same "
        "settings with replay=1024 are needed."
    )


def _unlike(cell: Cell, timed: Cell) -> Iterator[tuple[str, Any, Any]]:
    mine, theirs = cell.settings, timed.settings
    if mine.get("target") != theirs.get("target") and mine.get("model") != theirs.get("model"):
        yield "model", mine.get("model"), theirs.get("model")
    for name in (name for name in mine if name in theirs):
        if name not in _free(timed) and mine[name] != theirs[name]:
            yield (_SAID | _PART_SAID).get(name, name), mine[name], theirs[name]
    if len({_dtype(cell), _dtype(timed)} - {None}) > 1:
        yield "dtype", _dtype(cell), _dtype(timed)
