"""`python -m analysis table|plots RESULTS`, `python -m analysis show CELL PROMPT`: results as a person reads them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from methods.base import Refusal

VIEWS = {
    "stages": "where the time of a round goes, and whether that explains the speed-up",
    "latency": "times to the first token, per token and per round, throughput, memory, energy",
    "acceptance": "how deep the rounds reach",
}


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    try:
        {"table": _table, "plots": _plots, "show": _show}[options.command](options)
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
    views = table.add_mutually_exclusive_group()
    for view, meaning in VIEWS.items():
        views.add_argument(f"--{view}", dest="view", action="store_const", const=view, help=meaning)
    plots = commands.add_parser("plots", help="pictures for print, the numbers of each beside it as CSV")
    plots.add_argument("results", metavar="RESULTS", help="a results folder, or one above several")
    plots.add_argument("--out", metavar="DIR", help="where the files go (RESULTS/plots)")
    plots.add_argument(
        "--format",
        nargs="+",
        choices=("png", "svg", "pdf"),
        default=("png", "svg"),
        help="one or more, after RESULTS (png svg)",
    )
    show = commands.add_parser("show", help="one prompt's answers side by side, the rounds in colours")
    show.add_argument("cell", metavar="CELL", help="a cell's id, or the beginning of it")
    show.add_argument("prompt", metavar="PROMPT", help="a prompt's id")
    show.add_argument("--results", default="results/runs", help="a results folder, or one above several (%(default)s)")
    return parser


def _table(options: argparse.Namespace) -> None:
    from analysis.tables import print_summary, table

    if options.format == "terminal":
        print_summary(options.results, by=options.by, view=options.view)
    else:
        sys.stdout.write(table(options.results, options.format, options.by, options.view))


def _plots(options: argparse.Namespace) -> None:
    import matplotlib

    from analysis.plots import write_plots

    matplotlib.use("Agg")
    for file in write_plots(options.results, options.out, options.format):
        print(file)


def _show(options: argparse.Namespace) -> None:
    from rich.console import Console

    from analysis.show import show

    show(Console(highlight=False), options.cell, options.prompt, options.results)


if __name__ == "__main__":
    sys.exit(main())
