"""The pictures of a results folder, for papers and for the report.

    for picture in pictures("results/runs", only=["budget"]):
        picture.figure, picture.table, picture.caption

`write_plots` saves them, each with its numbers beside it as CSV. A module here is one plot or two: what it needs of the
loaders' tables, how it is drawn, and the sentence under it. `analysis.style` is the look they share and
`analysis.plot_data` says which arms are drawn: invalid and failed arms are not, and neither are those still to be
finished; drifted ones are marked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from analysis.plot_data import Source
from analysis.plots.advice import ADVICE
from analysis.plots.base import Picture, Plot
from analysis.plots.budget import BUDGET
from analysis.plots.categories import CATEGORIES
from analysis.plots.depth import ACCEPTANCE, HISTOGRAM
from analysis.plots.pairs import PAIRS
from analysis.plots.pareto import PARETO
from analysis.plots.predicted import PREDICTED
from analysis.plots.scaling import SCALING
from analysis.plots.stages import STAGES
from analysis.records import BASELINE
from analysis.style import RC
from methods.base import Refusal

FORMATS = ("png", "svg", "pdf")
PLOTS = (BUDGET, STAGES, HISTOGRAM, ACCEPTANCE, SCALING, PARETO, PAIRS, CATEGORIES, PREDICTED, ADVICE)

__all__ = ["FORMATS", "PLOTS", "Picture", "Plot", "Written", "pictures", "write_plots"]


class Written(NamedTuple):
    """One picture's files and its caption; without files, the sentence that says why there is none."""

    files: tuple[Path, ...]
    said: str


def pictures(results: str | Path, only: Sequence[str] = (), published: bool = False) -> Iterator[Picture]:
    """Every picture that the folder has data for, or those of the plots named in `only`.

    Raises:
        Refusal: there is no such results folder, a plot is not known, or nothing can be drawn.
    """
    source, drawn = Source(results), False
    for plot in _chosen(only):
        for picture in plot.pictures(source, published):
            drawn = True
            yield picture
    if not drawn:
        raise _nothing(source, only)


def write_plots(
    results: str | Path,
    out: str | Path | None = None,
    formats: Sequence[str] = FORMATS[:2],
    only: Sequence[str] = (),
    published: bool = False,
) -> Iterator[Written]:
    """Save the pictures in `out` (`results/plots`) one by one, and say for each which files these are."""
    source, drawn = Source(results), False
    folder = Path(results) / "plots" if out is None else Path(out)
    for plot in _chosen(only):
        empty = True
        for picture in plot.pictures(source, published):
            empty, drawn = False, True
            yield Written(_save(picture, folder, formats), picture.caption)
        if empty and len(source.runs):
            yield Written((), f"{plot.name} is not drawn: {plot.missing}.")
    if not drawn:
        raise _nothing(source, only)


def _chosen(only: Sequence[str]) -> list[Plot]:
    known = {plot.name: plot for plot in PLOTS}
    for name in only:
        if name not in known:
            raise Refusal(f"--only {name} is not accepted: {', '.join(known)} are.")
    return [plot for plot in PLOTS if not only or plot.name in only]


def _save(picture: Picture, folder: Path, formats: Sequence[str]) -> tuple[Path, ...]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refusal(f"--out {folder} cannot be made a folder ({error.strerror}).") from None
    from matplotlib import rc_context

    picture.table.to_csv(folder / f"{picture.name}.csv", index=False, lineterminator="\n")
    with rc_context(RC):
        for format in formats:
            metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(format)
            picture.figure.savefig(folder / f"{picture.name}.{format}", metadata=metadata)
    return tuple(folder / f"{picture.name}.{ending}" for ending in (*formats, "csv"))


def _nothing(source: Source, only: Sequence[str]) -> Refusal:
    if source.runs.empty:
        return Refusal(f"{source.path} has nothing to draw: no arm beside {BASELINE} is finished and valid there.")
    reasons = "; ".join(f"{plot.name}: {plot.missing}" for plot in _chosen(only))
    return Refusal(f"{source.path} has nothing to draw ({reasons}).")
