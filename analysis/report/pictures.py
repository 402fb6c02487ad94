"""The plots as parts of the page: SVG that asks for nothing outside of it."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Callable, Iterator
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd

from analysis import stats
from analysis.acceptance import load_histogram
from analysis.load import runs_of
from analysis.plot_data import ARM, Source
from analysis.records import Cell
from analysis.report.folder import Folder, Place
from methods.base import Refusal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from analysis.plots import Plot

OF_ONE_PLOT = 2  # pictures of one kind
_HEAVY = 250_000  # bytes of SVG above which a picture goes in as pixels
_ALL = 1_800_000  # characters of markup after which no more pictures are drawn
_DOTS_PER_INCH = 160
_PIXELS_PER_INCH = 118  # on the screen: letters of 7 points become 11 pixels
_STYLE = re.compile(r"<style[^>]*>.*?</style>", re.DOTALL)
_NAMESPACES = re.compile(r' xmlns(:\w+)?="[^"]*"')
_PLACES = re.compile(r' (?:d|x|y|transform|points)="[^"]*"')
_DECIMALS = re.compile(r"(\.\d\d)\d+")  # a hundredth of a point is enough
_ID = re.compile(r'(\bid="|\bhref="#|url\(#)')


class Shown(NamedTuple):
    """One picture: markup that goes into the page as it is, the pixels it is made for, the sentence under it."""

    name: str
    markup: str
    width: int
    caption: str


class Drawn(Source):
    """A folder's first cells as the plots want them, what the report has read already not read again."""

    def __init__(self, folder: Folder) -> None:
        super().__init__(folder.path)
        self._folder = folder

    @cached_property
    def cells(self) -> dict[Place, Cell]:
        return {place: self._folder.cells[place] for place in self._folder.chosen}

    @cached_property
    def runs(self) -> pd.DataFrame:
        runs = self._folder.runs
        places = list(zip(runs["results"], runs["cell_id"], strict=True))
        return self._drawable(runs[[place in self.cells for place in places]])

    @cached_property
    def categories(self) -> pd.DataFrame:
        split = runs_of(self.cells.values(), by="category")
        place = [*stats.CELL, "arm"]
        return self.arms.merge(
            split.drop(columns=[name for name in ARM if name in split and name not in place]), on=place
        )

    @cached_property
    def acceptance(self) -> pd.DataFrame:
        return pd.concat([self._folder.acceptance(place) for place in self.cells], ignore_index=True)

    @cached_property
    def histogram(self) -> pd.DataFrame:
        return self._each(load_histogram)

    def _each(self, load: Callable[[Path], pd.DataFrame]) -> pd.DataFrame:
        """The drawn cells' tables; a cell read alone does not know the name that its folder has beside others."""
        found = [load(cell.folder).assign(results=cell.results) for cell in self.cells.values()]
        return pd.concat(found, ignore_index=True)


def pictures(folder: Folder) -> tuple[list[Shown], list[str]]:
    """The pictures that the folder has data for, a few of each kind, and what to know of those that are not there."""
    import matplotlib
    from matplotlib import pyplot

    from analysis.plots import PLOTS

    matplotlib.use("Agg")
    source = Drawn(folder)
    shown: list[Shown] = []
    left_out: list[str] = []
    drawn, most = len(folder.chosen), OF_ONE_PLOT if len(folder.chosen) == len(folder.labels) else 1
    if drawn < len(folder.labels):
        left_out.append(f"{drawn} of {len(folder.labels)} cells are drawn, chosen to go into one picture.")
    for plot in PLOTS if len(source.runs) else ():
        try:
            for picture in _of(plot, source, most):
                if picture is None or sum(len(one.markup) for one in shown) > _ALL:
                    left_out.append(f"There are more pictures of {plot.name} than are shown.")
                    break
                name, figure, caption = picture
                width = round(figure.get_size_inches()[0] * _PIXELS_PER_INCH)
                shown.append(Shown(name, markup(figure, f"p{len(shown)}-", caption), width, caption))
                pyplot.close(figure)
        except Exception as error:  # a picture that fails must not cost the report
            reason = str(error) if isinstance(error, Refusal) else f"{type(error).__name__}: {error}"
            left_out.append(f"{plot.name} could not be drawn ({reason}).")
            pyplot.close("all")
    return shown, left_out


def _of(plot: Plot, source: Source, most: int) -> Iterator[tuple[str, Figure, str] | None]:
    """The first pictures of a kind; None where there are more."""
    for number, picture in enumerate(plot.pictures(source)):
        if number == most:
            yield None
            return
        yield picture.name, picture.figure, picture.caption


def markup(figure: Figure, prefix: str, label: str) -> str:
    """A figure as an SVG element whose ids begin with `prefix`, or as an image where that would be heavy."""
    from matplotlib import rc_context

    text = io.StringIO()
    with rc_context({"svg.fonttype": "none"}):
        metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(text, format="svg", metadata=metadata)
    svg = text.getvalue()
    if len(svg) > _HEAVY:
        image = io.BytesIO()
        figure.savefig(image, format="png", dpi=_DOTS_PER_INCH)
        data = base64.b64encode(image.getvalue()).decode("ascii")
        return f'<img src="data:image/png;base64,{data}" alt="{escape(label)}">'
    svg = _NAMESPACES.sub("", _STYLE.sub("", svg[svg.index("<svg") :]))
    svg = _PLACES.sub(lambda found: _DECIMALS.sub(r"\1", found[0]), svg)
    svg = _ID.sub(lambda found: found[1] + prefix, svg)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{escape(label)}" ', 1)
