"""`python -m analysis table RESULTS`, `python -m analysis show CELL PROMPT`: results as a person reads them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from methods.base import Refusal


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    try:
        if options.command == "table":
            _table(options)
        else:
            _show(options)
    except Refusal as refusal:
        print(refusal, file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m analysis", description="What the results mean.")
    commands = parser.add_subparsers(dest="command", required=True)
    table = commands.add_parser("table", help="the summary: per cell a table, per arm a row")
    table.add_argument("results", metavar="RESULTS", help="a results folder, or one above several")
    table.add_argument("--format", choices=("terminal", "markdown", "csv", "latex"), default="terminal")
    table.add_argument("--by", choices=("category",), help="a row per arm and category")
    show = commands.add_parser("show", help="one prompt's answers side by side, the rounds in colours")
    show.add_argument("cell", metavar="CELL", help="a cell's id, or the beginning of it")
    show.add_argument("prompt", metavar="PROMPT", help="a prompt's id")
    show.add_argument("--results", default="results/runs", help="a results folder, or one above several (%(default)s)")
    return parser


def _table(options: argparse.Namespace) -> None:
    from analysis.tables import print_summary, table

    if options.format == "terminal":
        print_summary(options.results, by=options.by)
    else:
        sys.stdout.write(table(options.results, options.format, options.by))


def _show(options: argparse.Namespace) -> None:
    from rich.console import Console

    from analysis.show import show

    show(Console(highlight=False), options.cell, options.prompt, options.results)


if __name__ == "__main__":
    sys.exit(main())
