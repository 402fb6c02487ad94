"""The advice as a person reads it: one sentence that says what to run, and the curve over budgets behind it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
from rich.console import Console

from analysis.advise import Advice, advise, rows
from analysis.advise_frame import frame
from analysis.advise_subjects import CHAIN
from analysis.columns import NOTHING, count, interval, milliseconds, number, percent
from analysis.printing import Format, Table, Title, as_text, print_tables
from analysis.records import BASELINE, Cell, find_cells

T = TypeVar("T")
_TITLES = (
    Title("arm", text=True),
    Title("round (ms)"),
    Title("tokens per round"),
    Title("speed-up", group="dev"),
    Title("tokens/s", group="test"),
    Title("TPOT (ms)", group="test"),
    Title("speed-up", group="test"),
    Title("measured", group="test"),
    Title("off", group="test"),
    Title("verdict", text=True, wraps=True),
)
_DEV = 3


def advice_tables(cells: Iterable[Cell], every_budget: bool = False) -> list[Table]:
    """A table per subject, its advice first in the note. CSV has the rows that are shown, or every budget."""
    return [table_of(advice, every_budget) for advice in advise(cells)]


def advice(results: str | Path, format: Format = "terminal") -> str:
    """The tables of a results folder as text; `csv` has a row for every budget."""
    return as_text(advice_tables(find_cells(results), every_budget=format == "csv"), format)


def print_advice(console: Console | None, results: str | Path) -> None:
    """Print what to run and why.

    Raises:
        Refusal: as `load_advice`.
    """
    print_tables(console, advice_tables(find_cells(results)))


def table_of(advice: Advice, every_budget: bool = False) -> Table:
    """One subject's table: AR, DFlash, what was timed, and powers of two between."""
    known = list(rows(advice, None if every_budget else _shown(advice)))
    titles: tuple[Title, ...] = _TITLES
    kept = _shown(advice)
    others = ("budget", "tokens_per_round")  # without a number: no tree, or none that was replayed
    shown = [_cells(row) for row in known if row["budget"] in kept or any(math.isnan(row[name]) for name in others)]
    if not advice.subject.halves.apart:
        titles = tuple(Title(one.title, "", one.text, one.wraps) for one in _without(_TITLES))
        shown = list(map(_without, shown))
    return Table(_heading(advice), titles, tuple(shown), "\n".join(_notes(advice, known)), frame(advice, known))


def _without(row: tuple[T, ...]) -> tuple[T, ...]:
    """A row without what the prompts that are chosen on say, where they are the same ones."""
    return row[:_DEV] + row[_DEV + 1 :]


def _shown(advice: Advice) -> set[int]:
    largest, worth = advice.subject.budget, advice.worth_measuring
    powers = {2**power for power in range(largest.bit_length()) if 2**power <= largest}
    return powers | set(advice.subject.budgets) | {largest} | ({worth[0]} if worth else set())


def _heading(advice: Advice) -> str:
    row = advice.subject.row
    parts = [row.model, row.suite, row.engine, f"tp {row.tp}", row.device, row.dtype, f"T {row.temperature:g}"]
    parts += [f"concurrency {row.concurrency}"] if row.concurrency != 1 else []
    parts += [f"{row.request_rate:g} requests/s"] if pd.notna(row.request_rate) else []
    return f"Advice: {' · '.join(parts)}"


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    mark = "~" if row["cost_from"] == "interpolated" else ""
    return (
        row["arm"],
        NOTHING if math.isnan(row["round_s"]) else f"{mark}{milliseconds(row['round_s'])}",
        number(row["tokens_per_round"], 2),
        number(row["speedup_dev"], 2),
        number(row["tokens_per_s"], 1),
        NOTHING if math.isnan(row["tpot_s"]) else milliseconds(row["tpot_s"]),
        *(_ratio(row, name) for name in ("speedup", "measured_speedup")),
        _signed(row["difference"]),
        row["verdict"],
    )


def _signed(share: float) -> str:
    """A part in percent, nothing as +0.0."""
    return percent(round(share, 3) + 0.0)


def _ratio(row: dict[str, Any], name: str) -> str:
    if row["arm"] == BASELINE:
        return number(row[name], 2)
    return interval(row[name], row[f"{name}_low"], row[f"{name}_high"])


def sentences(advice: Advice) -> list[str]:
    """What to run, why, and what it gives."""
    return [*_take(advice), *_gives(advice), *_edges(advice)]


def _take(advice: Advice) -> Iterator[str]:
    choice = advice.choice
    where = f"{_name(advice, 'dev')} ({count(len(advice.dev.prompts), 'prompt')})"
    close = [budget for budget in choice.tied if budget not in choice.behind]
    if choice.take == BASELINE:
        yield f"Take no draft (method={BASELINE}): on {where} AR is told to be faster than budget {choice.budget}."
    elif choice.take == CHAIN:
        yield f"Take DFlash (method={CHAIN}): on {where} it is told to be faster than budget {choice.budget}."
    else:
        why = f"the fastest on {where}"
        if not choice.told:
            why += ", which are too few to tell others apart"
        elif len(close) > 1:
            why = f"{_listed(close)} cannot be told apart on {where}"
        elif not choice.behind:
            why += ", told apart from the others"
        yield f"Take budget {choice.budget} (method=ddtree budget={choice.budget}): {why}."
    if choice.behind:
        far = ", ".join(f"{budget} ({percent(share - 1)})" for budget, share in sorted(choice.behind.items()))
        yield f"Not told apart from {choice.best} either, but too far behind to be taken: {far}."


def _gives(advice: Advice) -> Iterator[str]:
    """How fast what is taken is where that was not chosen on, and over DFlash."""
    take = advice.choice.take
    if take == BASELINE:
        return
    (row,) = (row for row in rows(advice, {advice.choice.budget}) if row["arm"] == take)
    predicted, found = _ratio(row, "speedup"), advice.measured(take)
    what = f"{_ratio(row, 'measured_speedup')} times as fast as AR, measured (predicted {predicted})"
    said = [what if len(found) else f"{predicted} times as fast as AR, predicted"]
    if take != CHAIN and len(found) and len(advice.measured(CHAIN)):
        said.append(f"{interval(*advice.faster(take, CHAIN)[:3])} times as fast as DFlash")
    flattered = "" if advice.subject.halves.apart else " It was chosen on these very prompts, which flatters."
    prompts = f" ({count(len(advice.test.prompts), 'prompt')})" if advice.subject.halves.apart else ""
    yield f"On {_name(advice, 'test')}{prompts} it is {' and '.join(said)}.{flattered}"


def _edges(advice: Advice) -> Iterator[str]:
    choice, timed, worth = advice.choice, advice.costs.budgets, advice.worth_measuring
    if len(timed) == 1:
        yield f"Budget {timed[0]} is the only one that was timed there: others cannot be judged."
    elif choice.best == timed[0] and choice.best > 1:
        yield f"Budget {choice.best} is the smallest that was timed: a smaller one may be faster."
    if timed[-1] < advice.subject.budget:
        larger = advice.may_be_faster
        if larger:
            names = f"{_listed(larger)} {'was' if len(larger) == 1 else 'were'}"
            yield f"{names} not timed and may be faster: at the cost of {timed[-1]} the rounds would pay."
        else:
            yield f"No larger budget than those timed can be faster: not even at the cost of {timed[-1]}."
    if worth is not None:
        budget, ratio = worth
        yield (
            f"Between the timed budgets {budget} is predicted {100 * (ratio - 1):.1f} % faster than {choice.best}, "
            f"from a cost that was not measured: budget={budget} measures it."
        )


def _notes(advice: Advice, known: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield " ".join(sentences(advice))
    yield (
        "Speed-up: geometric mean over prompts of AR's TPOT over the arm's [95 % interval over prompts]. Predicted: "
        "tokens per round, replayed, over what a round costs; round: its time over AR's in the same sitting, times "
        "AR's here. Off: predicted over measured. Tied: not told apart from the fastest."
    )
    yield " ".join(_about_costs(advice, known))
    if said := _compared(advice, known):
        yield said
    if advice.subject.others:
        yield f"The replay is from {', '.join(advice.subject.others)}: its rounds are taken to be those here."
    runs = advice.subject.runs
    drifted = list(dict.fromkeys(runs.loc[runs["status"] == "drifted", "arm"]))
    if drifted:
        every = len(drifted) == runs["arm"].nunique()
        yield f"The machine moved meanwhile (drifted): {'every arm' if every else ', '.join(drifted)}."


def _about_costs(advice: Advice, known: Sequence[dict[str, Any]]) -> Iterator[str]:
    costs, where = advice.costs, f"of {_name(advice, 'dev')}" if advice.subject.halves.apart else ""
    where = "" if advice.own_costs else where
    asked = f"{count(len(costs.prompts), 'prompt')} {where}".strip()
    yield f"A round's cost is from up to {count(costs.n_requests, 'timed request')} an arm, {asked}."
    if any(row["cost_from"] == "interpolated" for row in known):
        misses = costs.misses
        said = "~: read off between the measured neighbours, in a straight line, though real costs have stairs"
        if misses:
            worst = max(misses, key=lambda budget: abs(misses[budget]))
            said += f"; left out in turn, measured ones are missed by up to {100 * abs(misses[worst]):.1f} % ({worst})"
        yield f"{said}."
    if any(row["cost_from"] == "unknown" and not math.isnan(row["tokens_per_round"]) for row in known):
        yield f"{NOTHING}: a width beyond those that were timed; nothing is extrapolated."
    yield "AR drafts nothing and DFlash builds no tree: what trees cost is from trees alone."


def _compared(advice: Advice, known: Sequence[dict[str, Any]]) -> str:
    """How far what was measured lies from what was predicted."""
    apart = {row["arm"]: row["difference"] for row in known if not math.isnan(row["difference"])}
    if not apart:
        return "Nothing was measured on the prompts that are reported on."
    low, high = min(apart, key=lambda arm: apart[arm]), max(apart, key=lambda arm: apart[arm])
    if advice.own_costs:
        why = "costs and times are of the same requests, so that they agree but for rounds that differ"
        return f"Predicted over measured: {_signed(apart[low])} to {_signed(apart[high])}; {why}."
    ends = f"{_signed(apart[low])} ({low})" + (f" to {_signed(apart[high])} ({high})" if low != high else "")
    return f"Predicted over measured: {ends}; costs are from other prompts than these times."


def _name(advice: Advice, half: str) -> str:
    return f"the {half} half" if advice.subject.halves.apart else "all prompts"


def _listed(budgets: Collection[int]) -> str:
    names = list(map(str, sorted(budgets)))
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
