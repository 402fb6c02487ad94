"""The advice as a part of the page, where the folder has a replay of the texts that its timed trees answered."""

from __future__ import annotations

from typing import NamedTuple

from analysis.advise import advise
from analysis.advise_table import sentences, table_of
from analysis.report.folder import Folder
from analysis.report.tables import Grid, grid
from methods.base import Refusal

SUBJECTS = 12  # that the page has


class Advised(NamedTuple):
    """What to run, in words, and the table behind it."""

    said: str
    table: Grid


def advised(folder: Folder) -> tuple[list[Advised], int]:
    """The advice for each machine, model, workload, tp and concurrency, and how many more there are."""
    try:
        found = advise(folder.cells.values())
    except Refusal:
        return [], 0
    made = []
    for advice in found[:SUBJECTS]:
        table = grid(table_of(advice))
        made.append(Advised(" ".join(sentences(advice)), table._replace(notes=table.notes[1:])))
    return made, len(found) - len(made)
