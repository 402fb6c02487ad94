"""What others have published for the same model, workload and temperature, grey and hollow beside measured curves.

The numbers are those of `analysis.published`: other people's machines, engines and prompts. They are looked at, and
nothing is computed from them. A method with budgets but without one in its row is a dotted height: its best budget,
chosen on the same data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from analysis import style
from analysis.published import PUBLISHED, load_published

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

_MARKERS = "oDs^vPX"
_TOLD = ["machine", "source", "note"]
_LINE = ["kind", "machine", "source"]


def with_published(table: pd.DataFrame) -> pd.DataFrame:
    """A picture's table with the published rows for its models, workloads and temperatures below; the columns
    `machine`, `source` and `note` tell where they are from."""
    table, found = table.assign(**dict.fromkeys(_TOLD, "")), load_published()
    table = table.astype(dict.fromkeys(table.select_dtypes("int64"), "Int64"))  # published rows have none of these
    asked = table[["model", "suite", "temperature"]].drop_duplicates()
    rows = asked.merge(found.rename(columns={"dataset": "suite"}), on=["model", "suite", "temperature"], how="inner")
    rows = rows.assign(workload=rows["suite"], arm=rows["method"], kind=rows["method"], status=PUBLISHED)
    return pd.concat([table, rows], ignore_index=True) if len(rows) else table


def draw_published(axes: Axes, others: pd.DataFrame, column: str, places: Mapping[str, float]) -> None:
    """Curves over budgets; a method without one at its place on the axis; where it has none there, a height."""
    for number, (kind, line) in enumerate(_lines(others)):
        line = line[line[column].notna()].sort_values("budget")
        at = line["budget"].fillna(places.get(kind, math.nan))
        axes.plot(at, line[column], **_look(number, line), zorder=2.5)
        for height in line.loc[at.isna(), column]:
            axes.axhline(height, color=style.GREY, linestyle=":", linewidth=1.0, zorder=2)


def published_handles(others: pd.DataFrame, places: Mapping[str, float]) -> list[Artist]:
    """The legend's entries: that these are not ours, then each line with the number of its source."""
    from matplotlib.lines import Line2D

    if others.empty:
        return []
    made: list[Artist] = [Line2D([], [], linestyle="", label="other people's machines:")]
    numbers = _numbers(others)
    for number, (kind, line) in enumerate(_lines(others)):
        where = f"{line['machine'].iloc[0]} [{numbers[line['source'].iloc[0]]}]"
        look, said = _look(number, line), style.name(kind)
        if line["budget"].isna().all() and kind not in places:
            look = {"color": style.GREY, "linestyle": ":"}
            said = f"{said}, best budget" if kind == "ddtree" else said
        made.append(Line2D([], [], **look, label=f"{said}, {where}"))
    return made


def sources(table: pd.DataFrame) -> str:
    """What a caption says of them: nothing, where they were not asked for."""
    if "source" not in table:
        return ""
    others = table[table["status"] == PUBLISHED]
    if others.empty:
        return " Nothing is published for this model, workload and temperature."
    listed = "; ".join(f"[{number}] {source}" for source, number in _numbers(others).items())
    return f" Grey: other people's machines, engines and prompts, not to be compared number for number: {listed}."


def _look(number: int, line: pd.DataFrame) -> dict[str, Any]:
    look: dict[str, Any] = {"color": style.GREY, "linestyle": "-" if len(line) > 1 else "", "linewidth": 0.7}
    look |= {"markerfacecolor": "white", "markeredgewidth": 0.8}
    return look | {"marker": _MARKERS[number % len(_MARKERS)]}


def _lines(others: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """A method in a source: its rows with budgets, and those without."""
    if others.empty:
        return []
    keys = [*_LINE, others["budget"].isna().rename("without")]
    return [(str(key[0]), line) for key, line in others.groupby(keys, sort=False)]


def _numbers(others: pd.DataFrame) -> dict[str, int]:
    return {source: number for number, source in enumerate(dict.fromkeys(others["source"]), start=1)}
