"""`python -m analysis table|plots|advise RESULTS`, `compare A B`, `show CELL PROMPT`, `rounds FILE`,
`rounds compare A B`: results as a person reads them."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from methods.base import Refusal

if TYPE_CHECKING:
    from rich.console import Console

ROUNDS_COMPARE = "rounds compare"
PICTURES = (
    *("budget", "stages", "histogram", "acceptance", "tp", "pareto", "pairs", "categories", "predicted", "advice"),
)
TABLE_FORMATS = ("terminal", "markdown", "csv", "latex")
VIEWS = {
    "stages": "where the time of a round goes, and whether that explains the speed-up",
    "latency": "times to the first token, per token and per round, throughput, memory, energy",
    "load": "many requests in flight: throughput, goodput, tails, from the steady part of the load",
    "acceptance": "how deep the rounds reach",
    "accuracy": "right answers beside speed",
    "paper": "the papers' layout: models, temperatures and methods down, workloads across",
    "budgets": "the budget sweep: an arm a row, workloads (or categories) across",
    "categories": "an arm a row, categories across",
    "scaling": "tensor-parallel sizes: time, efficiency, speed-up",
}


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:2] == ROUNDS_COMPARE.split():
        words[:2] = [ROUNDS_COMPARE]
    options = _parser().parse_args(words)
    commands: dict[str, Callable[[argparse.Namespace], int | None]] = {
        "table": _table,
        "compare": _compare,
        "plots": _plots,
        "report": _report,
        "replay": _replay,
        "advise": _advise,
        "show": _show,
        "rounds": _rounds,
        ROUNDS_COMPARE: _rounds_compare,
    }
    try:
        return commands[options.command](options) or 0
    except Refusal as refusal:
        print(refusal, file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m analysis", description="What the results mean.")
    commands = parser.add_subparsers(dest="command", required=True)
    table = commands.add_parser("table", help="the summary: per cell a table, per arm a row")
    table.add_argument("results", metavar="RESULTS", help="a results folder, or one above several")
    table.add_argument("--format", choices=TABLE_FORMATS, default="terminal")
    table.add_argument("--by", choices=("category",), help="a row per arm and category")
    views = table.add_mutually_exclusive_group()
    for view, meaning in VIEWS.items():
        views.add_argument(f"--{view}", dest="view", action="store_const", const=view, help=meaning)
    table.add_argument("--published", action="store_true", help="published numbers beside --paper and --budgets")
    table.add_argument(
        "--slo", metavar="NAME=SECONDS", action="append", default=[], help="for --load: ttft_s, tpot_s or e2e_s"
    )
    compare = commands.add_parser("compare", help="B over A, paired where the prompts are the same; what changed")
    compare.add_argument("a", metavar="A", help="a results folder, or one of its cells/<cell_id>")
    compare.add_argument("b", metavar="B", nargs="?", help="another; without it A is a folder of two cells")
    compare.add_argument("--format", choices=TABLE_FORMATS, default="terminal")
    plots = commands.add_parser("plots", help="pictures for print, the numbers of each beside it as CSV")
    plots.add_argument("results", metavar="RESULTS", help="a results folder, or one above several")
    plots.add_argument("--out", metavar="DIR", help="where the files go (RESULTS/plots)")
    plots.add_argument("--only", nargs="+", metavar="NAME", default=(), help=f"some of {' '.join(PICTURES)}")
    plots.add_argument("--format", type=_formats, default=("png", "svg"), help="of png,svg,pdf (png,svg)")
    plots.add_argument("--published", action="store_true", help="with published numbers, from other people's machines")
    report = commands.add_parser("report", help="one HTML file: the answer in words, tables, pictures, single rounds")
    report.add_argument("results", metavar="RESULTS", help="a results folder, or one above several")
    report.add_argument("--out", metavar="FILE.html", help="where it goes (RESULTS/report.html)")
    replay = commands.add_parser("replay", help="acceptance of every budget from one text, beside measured rounds")
    replay.add_argument("results", metavar="RESULTS", help="a results folder, or one above several")
    replay.add_argument("--by", choices=("category",), help="a curve per category")
    advise = commands.add_parser("advise", help="the budget to take, from a replay and the measured cost of widths")
    advise.add_argument("results", metavar="RESULTS", help="a results folder, or one above several")
    advise.add_argument("--format", choices=TABLE_FORMATS, default="terminal", help="csv has a row for every budget")
    show = commands.add_parser("show", help="one prompt's answers side by side, the rounds in colours")
    show.add_argument("cell", metavar="CELL", help="a cell's id, or the beginning of it")
    show.add_argument("prompt", metavar="PROMPT", help="a prompt's id")
    show.add_argument("--results", default="results/runs", help="a results folder, or one above several (%(default)s)")
    _rounds_parsers(commands)
    return parser


def _rounds_parsers(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    rounds = commands.add_parser("rounds", help="draft trees of dumped rounds, and what they add up to")
    rounds.add_argument("place", metavar="FILE-or-RESULTS", help="a rounds.jsonl, or a folder that holds some")
    chosen = rounds.add_mutually_exclusive_group()
    chosen.add_argument("--round", metavar="K", dest="rounds", type=_one_round, help="print the round of this index")
    chosen.add_argument(
        "--rounds", metavar="A-B", type=_round_range, help="print these, the last included; A- to the end"
    )
    compare = commands.add_parser(ROUNDS_COMPARE, help="the first round in which two dumps part; exit status 1 if any")
    for side in "AB":
        compare.add_argument(side.lower(), metavar=side, help="a rounds.jsonl, or a folder that holds some")
    arms = {rounds: "of this arm only; may be repeated", compare: "this arm; twice: A's, then B's"}
    for parser, arm in arms.items():
        parser.add_argument("--prompt", metavar="ID", help="of this prompt only")
        parser.add_argument("--arm", action="append", default=[], help=arm)
        parser.add_argument("--phase", choices=("warmup", "timed", "sentinel", "profile"), help="of this phase only")
        parser.add_argument("--tokenizer", metavar="FOLDER", help="with a tokenizer.json (the target's own)")
        parser.add_argument("--full", action="store_true", help="every node and request, however many")


def _formats(text: str) -> tuple[str, ...]:
    wanted = tuple(dict.fromkeys(text.split(",")))
    if not set(wanted) <= {"png", "svg", "pdf"}:
        raise argparse.ArgumentTypeError(f"{text!r} is not accepted: png, svg and pdf are, with commas between them")
    return wanted


def _one_round(text: str) -> tuple[int, float]:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not accepted: a round's index, from 0, is")
    return int(text), int(text)


def _round_range(text: str) -> tuple[int, float]:
    """`A-B` as a closed range, `A-` without an end."""
    low, dash, high = text.partition("-")
    first = int(low) if low.isdecimal() else -1
    last = int(high) if high.isdecimal() else math.inf if not high else -1
    if not dash or not 0 <= first <= last:
        raise argparse.ArgumentTypeError(f"{text!r} is not accepted: A-B with A at most B, or A- to the end, is")
    return first, last


def _table(options: argparse.Namespace) -> None:
    from analysis.load_window import Slos
    from analysis.tables import print_summary, table

    chosen = {"by": options.by, "view": options.view, "published": options.published}
    chosen["slos"] = Slos.read(options.slo)
    if options.format == "terminal":
        print_summary(options.results, **chosen)
    else:
        sys.stdout.write(table(options.results, options.format, **chosen))


def _compare(options: argparse.Namespace) -> None:
    from analysis.compare import compare, print_comparison

    if options.format == "terminal":
        print_comparison(options.a, options.b)
    else:
        sys.stdout.write(compare(options.a, options.b, options.format))


def _plots(options: argparse.Namespace) -> None:
    """The files of each picture and its caption; why there is none, where there is none."""
    from analysis.plots import write_plots

    for files, said in write_plots(options.results, options.out, options.format, options.only, options.published):
        print(*files, f"  {said}" if files else said, sep="\n")


def _report(options: argparse.Namespace) -> None:
    from analysis.report import write_report

    print(write_report(options.results, options.out))


def _replay(options: argparse.Namespace) -> None:
    from analysis.replay_table import print_replays

    print_replays(_wide(), options.results, by=options.by)


def _advise(options: argparse.Namespace) -> None:
    from analysis.advise_table import advice, print_advice

    if options.format == "terminal":
        print_advice(None, options.results)
    else:
        sys.stdout.write(advice(options.results, options.format))


def _show(options: argparse.Namespace) -> None:
    from rich.console import Console

    from analysis.show import show

    show(Console(highlight=False), options.cell, options.prompt, options.results)


def _rounds(options: argparse.Namespace) -> None:
    from analysis.round_dumps import Selection
    from analysis.rounds import show_rounds

    selection = Selection(options.prompt, tuple(options.arm), options.phase, options.rounds)
    show_rounds(_wide(), options.place, selection, tokenizer=options.tokenizer, full=options.full)


def _rounds_compare(options: argparse.Namespace) -> int:
    from analysis.round_compare import compare_rounds

    same = compare_rounds(
        _wide(),
        options.a,
        options.b,
        prompt=options.prompt,
        arms=options.arm,
        phase=options.phase,
        tokenizer=options.tokenizer,
        full=options.full,
    )
    return 0 if same else 1


def _wide() -> Console:
    """A console as wide as the terminal; into a file or a pipe, 120 columns."""
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=120)


if __name__ == "__main__":
    sys.exit(main())
