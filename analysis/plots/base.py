"""What a plot is: a name, its numbers, how they are drawn, and the sentence under the picture."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pandas as pd

from analysis.plot_data import APART, Source, relabelled, shares
from analysis.style import RC

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Picture:
    """One picture, drawn: the name of its files, the numbers that are in it, and its caption."""

    name: str
    table: pd.DataFrame
    figure: Figure
    caption: str


@dataclass(frozen=True)
class Plot:
    """A kind of picture.

    `data` gives its numbers, a row for each thing drawn, of all cells; none where the folder has nothing for it, which
    `missing` then says as the end of a sentence. At most `most` cells go into one picture; `compared` are the settings
    across which it compares cells, so that they stay together.
    """

    name: str
    shows: str
    data: Callable[[Source], pd.DataFrame]
    draw: Callable[[pd.DataFrame], Figure]
    caption: Callable[[pd.DataFrame], str]
    missing: str
    most: int = 12
    compared: tuple[str, ...] = ()
    overlay: Callable[[pd.DataFrame], pd.DataFrame] | None = None

    def pictures(self, source: Source, published: bool = False) -> Iterator[Picture]:
        """Every picture there is of this kind, each drawn when it is asked for.

        Args:
            source: the results.
            published: with what others have published, where this plot can show it.
        """
        from matplotlib import rc_context

        table, beside = self.data(source), self.overlay if published else None
        apart = (*APART, "workload") if beside else APART  # what others measured is of one dataset each
        for words, part in shares(table, self.most, self.compared, apart) if len(table) else ():
            shown = relabelled(part).reset_index(drop=True)
            shown = beside(shown) if beside else shown
            with rc_context(RC):
                figure = self.draw(shown)
            yield Picture("-".join(filter(None, (self.name, words))), shown, figure, self.caption(shown))
