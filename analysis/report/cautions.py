"""What speaks against trusting a figure, cell by cell: failed and invalid arms, drift, time that no stage explains,
acceptance at chance."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import pandas as pd

from analysis.columns import count, percent
from analysis.notes import UNEXPLAINED
from analysis.records import Cell
from analysis.report.folder import Folder, Place
from analysis.report.words import arm_name, listed

_TAIL = 4000  # characters of a log that are shown
_TAILS = 12  # logs that are shown
_HARMLESS = {"idle", "application clocks", "sync boost", "display clocks"}  # reasons for a clock below its highest


class Caution(NamedTuple):
    """One thing to know: its kind, where it is, what it is, and the end of a log that tells more."""

    kind: str
    where: str
    said: str
    log: str | None = None


def cautions(folder: Folder) -> list[Caution]:
    """All of them, those that cost figures first."""
    found = [caution for kind in _KINDS for caution in kind(folder)]
    logs = 0
    for index, caution in enumerate(found):
        logs += caution.log is not None
        if logs > _TAILS:
            found[index] = caution._replace(log=None)
    return found


def _place(row: Any) -> Place:
    return row.results, row.cell_id


def _rows(folder: Folder, chosen: pd.Series[bool]) -> Iterator[tuple[str, Any]]:
    """The rows of `load_runs` so chosen, each with its cell's name."""
    columns = ["results", "cell_id", "arm", "status", "reason", "true_violations", "oracle_disagreements", *_FIGURES]
    for row in folder.runs.loc[chosen, columns].itertuples(index=False):
        yield folder.labels[_place(row)], row


_FIGURES = ["drift", "drift_sitting", "drift_place", "identity_residual", "identity_measured", "identity_predicted"]


def _failed(folder: Folder) -> Iterator[Caution]:
    for where, row in _rows(folder, folder.runs["status"] == "failed"):
        reason = row.reason if pd.notna(row.reason) else "no reason was recorded"
        yield Caution("failed", where, f"{arm_name(row.arm)}: {reason}.", _tail(folder.cells[_place(row)], row.arm))


def _tail(cell: Cell, arm: str) -> str | None:
    """The end of the log as the arm's file has it."""
    try:
        said = json.loads((cell.folder / "arms" / f"{arm}.json").read_text(encoding="utf-8")).get("log_tail")
    except (OSError, ValueError, AttributeError):
        return None
    return str(said).strip()[-_TAIL:] or None if said else None


def _invalid(folder: Folder) -> Iterator[Caution]:
    for where, row in _rows(folder, folder.runs["status"] == "invalid"):
        broken = 0 if pd.isna(row.true_violations) else int(row.true_violations)
        said = [f"{count(broken, 'token')} that the target would not have chosen"] if broken else []
        if row.oracle_disagreements > 0:
            said.append(f"{count(int(row.oracle_disagreements), 'node')} where the oracle disagrees")
        said = said or [str(row.reason) if pd.notna(row.reason) else "marked so by the run"]
        yield Caution("invalid", where, f"{arm_name(row.arm)}: {listed(said)}. It is in no table or picture.")


def _drifted(folder: Folder) -> Iterator[Caution]:
    moved: dict[tuple[Any, ...], list[str]] = {}
    for where, row in _rows(folder, folder.runs["status"] == "drifted"):
        moved.setdefault((where, row.drift_sitting, row.drift_place, row.drift), []).append(arm_name(row.arm))
    for (where, sitting, place, shift), arms in moved.items():
        move = f"AR's TPOT moved by {percent(shift)} from the start of sitting {sitting} to its {place}"
        yield Caution("drifted", where, f"{move}: times of {listed(arms)} are not to be trusted to that part.")


def _throttled(folder: Folder) -> Iterator[Caution]:
    for place, cell in folder.cells.items():
        for sitting, content in folder.environments(cell):
            samples = [one for one in content.get("gpu_samples") or [] if one.get("throttled")]
            reasons = sorted({reason for one in samples for reason in one.get("throttle_reasons", {})} - _HARMLESS)
            if reasons:
                said = f"A GPU was held back in sitting {sitting}: {listed(reasons)}."
                yield Caution("throttled", folder.labels.get(place, place[1]), said)


def _at_chance(folder: Folder) -> Iterator[Caution]:
    for where, arms in _arms(folder, folder.runs["at_chance"].fillna(False).astype(bool)):
        said = (
            f"{listed(arms)}: acceptance cannot be told from chance. The drafter is not fed, or is not this target's."
        )
        yield Caution("at chance", where, said)


def _unexplained(folder: Folder) -> Iterator[Caution]:
    sound = ~folder.runs["status"].isin(("failed", "invalid"))
    shares = folder.runs["identity_residual"].where(sound)
    inverse = (folder.runs["identity_measured"] / folder.runs["identity_predicted"] - 1).where(sound)
    for values, said in (
        (shares, "slower than the stages of a round make them"),
        (inverse, "faster than their stages, timed one by one, add up to"),
    ):
        for where, arms in _arms(folder, values > UNEXPLAINED, values):
            yield Caution("unexplained", where, f"{said.capitalize()}: {listed(arms)}.")


def _arms(
    folder: Folder, chosen: pd.Series[bool], share: pd.Series[float] | None = None
) -> Iterator[tuple[str, list[str]]]:
    """The arms so chosen by cell, with a share where one is given."""
    rows = folder.runs[chosen]
    for place, group in rows.groupby(["results", "cell_id"], sort=False):
        shares = [""] * len(group) if share is None else [f" by {100 * share[i]:.0f} %" for i in group.index]
        arms = [f"{arm_name(arm)}{said}" for arm, said in zip(group["arm"], shares, strict=True)]
        yield folder.labels[cast(Place, place)], arms


_KINDS = (_failed, _invalid, _drifted, _throttled, _at_chance, _unexplained)
