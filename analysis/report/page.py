"""One page from a results folder: everything it says is gathered here and put into the template."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from analysis.columns import count
from analysis.report import rounds as dumped
from analysis.report.advice import advised
from analysis.report.cautions import cautions
from analysis.report.expectations import Expectation, Finding, Verdict, expectations
from analysis.report.folder import Folder
from analysis.report.machine import machines
from analysis.report.pictures import pictures
from analysis.report.summary import GLANCE, answers, at_a_glance, summary
from analysis.report.tables import Row, groups
from methods.base import Refusal

NAME = "report.html"
_CAUTIONS = 80
_FINDINGS = 30
_FIRST = (Verdict.NOT, Verdict.HELD, Verdict.UNTOLD)
_FOLDER = Path(__file__).parent


def report(results: str | Path) -> str:
    """The page as text. It needs nothing outside of itself and may be sent on as a file.

    Args:
        results: a results folder, finished or running, or one above several.

    Raises:
        Refusal: there is no such folder, no cell in it, or a record is damaged.
    """
    folder = Folder(results)
    environment = Environment(
        loader=PackageLoader("analysis.report", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    return environment.get_template("page.html.jinja").render(_contents(folder))


def write_report(results: str | Path, out: str | Path | None = None) -> Path:
    """Write the page to `out`, or as report.html into the folder; a file that is there is replaced at once.

    Raises:
        Refusal: as `report`, or the file cannot be written.
    """
    file = Path(results) / NAME if out is None else Path(out)
    text = report(results)
    unfinished = file.with_name(f".{file.name}.part")
    try:
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(file)
    except OSError as error:
        raise Refusal(f"--out {file} cannot be written ({error.strerror}).") from None
    return file


def _contents(folder: Folder) -> dict[str, Any]:
    cells = folder.standings
    found, warned = answers(cells), cautions(folder)
    drawn, left_out = pictures(folder)
    trees, (tables, tables_left_out) = dumped.rounds(folder), groups(folder)
    advice, more_advice = advised(folder)
    sections = {
        "advice": ("Advice", bool(advice)),
        "expectations": ("Literature", True),
        "pictures": ("Pictures", bool(drawn or left_out)),
        "rounds": ("Rounds", bool(trees.rounds or trees.notes)),
        "tables": ("Tables", True),
        "cautions": ("Cautions", True),
        "environment": ("Environment", True),
    }
    judged = expectations(cells)
    requests = int(folder.measured["n_requests"].sum())
    return {
        "name": folder.name,
        "cells": count(len(folder.cells), "cell"),
        "arms": count(len(folder.measured), "arm"),
        "requests": count(requests, "timed request"),
        "made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "version": _version(),
        "sections": [(name, title) for name, (title, there) in sections.items() if there],
        "said": summary(folder, found),
        "glance": [Row(one.cells) for one in at_a_glance(folder, found)],
        "glance_columns": GLANCE,
        "glance_numbers": [title in ("over AR", "tree over that", "prompts") for title in GLANCE],
        "advice": advice,
        "more_advice": more_advice,
        "expectations": [{**vars(one), "tally": one.tally, "shown": _first(one)} for one in judged],
        "pictures": drawn,
        "left_out": left_out,
        "rounds": trees,
        "rounds_said": f"{count(trees.rounds, 'round')} of {count(trees.requests, 'request')}",
        "of_request": dumped.OF_REQUEST,
        "nodes": dumped.NODES,
        "tables": tables,
        "tables_left_out": tables_left_out,
        "cautions": warned[:_CAUTIONS],
        "cautions_left_out": max(0, len(warned) - _CAUTIONS),
        "cautioned": count(len(warned), "caution"),
        "machines": machines(folder),
        "css": Markup((_FOLDER / "page.css").read_text(encoding="utf-8")),
        "js": Markup("\n".join((_FOLDER / name).read_text(encoding="utf-8") for name in ("page.js", "rounds.js"))),
    }


def _first(one: Expectation) -> Sequence[Finding]:
    """The findings to show where there are many, those that speak against the expectation first."""
    return sorted(one.findings, key=lambda found: _FIRST.index(found.verdict))[:_FINDINGS]


def _version() -> str:
    try:
        return version("draft-tree-harness")
    except PackageNotFoundError:
        return "from source"
