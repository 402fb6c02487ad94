"""`python -m workloads list`, `fetch NAME` and `show NAME [--id ID]`: what can be asked, and what would be."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from methods.base import Refusal
from workloads import Prompt, Workload, definition, load, names, suite

WIDEST = 24
HINT = "`python -m workloads show NAME` says how to get one that is not on this machine."


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    console = Console(highlight=False)
    try:
        if options.command == "list":
            console.print(overview())
            console.print(HINT)
        elif options.command == "fetch":
            print(suite(options.name, _settings(options)).fetch())
        else:
            workload = load(options.name, options.path, options.skip_bad, _settings(options))
            if options.id is None:
                print_contents(console, workload)
            else:
                print_prompt(console, workload.find(options.id))
    except Refusal as refusal:
        print(refusal, file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m workloads", description="The workloads and their prompts.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="every workload with its size, source and licence, and whether it is here")
    fetch = commands.add_parser("fetch", help="bring a published workload to this machine")
    show = commands.add_parser("show", help="the prompts of a workload, or one of them in full")
    for command in (fetch, show):
        command.add_argument("name", metavar="NAME", help="a name that `list` shows, or one of --config-dir")
        command.add_argument("--config-dir", metavar="DIR", help="a suite of your own: DIR/workload/NAME.yaml")
    show.add_argument("--id", help="the prompt to show in full")
    show.add_argument("--path", help="your own data, or the files of a published workload (workload.path)")
    show.add_argument("--skip-bad", action="store_true", help="leave out and count damaged rows (workload.skip_bad)")
    return parser


def _settings(options: argparse.Namespace) -> Mapping[str, Any] | None:
    """The suite of --config-dir, if it has one of this name."""
    if options.config_dir is None or options.name in names():
        return None
    return definition(options.name, Path(options.config_dir) / "workload")


def overview() -> Table:
    """One row a workload."""
    table = Table(box=None)
    for column in ("workload", "prompts", "categories", "here"):
        table.add_column(column, no_wrap=True)
    table.add_column("source, licence", overflow="fold")
    for name in names():
        one = suite(name)
        size = "" if one.size is None else f"{one.size:,}"
        kinds = one.categories[0] if len(one.categories) == 1 else f"{len(one.categories) or 'any'} kinds"
        cells = (name, size, kinds, one.presence, f"{one.source}; {one.licence}")
        table.add_row(*(Text(cell) for cell in cells))
    return table


def print_contents(console: Console, workload: Workload) -> None:
    """Where the prompts are from, what was left out, and the prompts."""
    origin = workload.origin
    if origin is not None:
        facts = (origin.source, origin.revision, origin.licence, origin.fetched_utc)
        console.print(Text(" · ".join(fact for fact in facts if fact)), soft_wrap=True)
    for sentence in workload.skipped:
        console.print(Text(f"left out: {sentence}"), soft_wrap=True)
    console.print(contents(workload))


def contents(workload: Workload) -> Table:
    """One row a prompt: id, category, turns, answer, and how it begins."""
    skipped = f", {len(workload.skipped)} left out" if workload.skipped else ""
    title = f"{workload.name}: {len(workload.prompts)} prompts{skipped}, sha256 {workload.sha256[:12]}"
    table = Table(title=title, title_justify="left", box=None, expand=True)
    answers = [prompt.answer or "" for prompt in workload.prompts]
    for heading, cells in (
        ("id", [prompt.id for prompt in workload.prompts]),
        ("category", workload.categories),
        ("turns", ["1"]),
        ("answer", answers),
    ):
        widest = min(WIDEST, max(map(len, (heading, *cells))))
        table.add_column(heading, no_wrap=True, min_width=widest, max_width=WIDEST)
    table.add_column("prompt", no_wrap=True, overflow="ellipsis", ratio=1)
    for prompt in workload.prompts:
        start = " ".join(prompt.messages[-1].content[:200].split())
        turns = str(1 + len(prompt.follow_ups))
        table.add_row(*(Text(cell) for cell in (prompt.id, prompt.category, turns, prompt.answer or "", start)))
    return table


def print_prompt(console: Console, prompt: Prompt) -> None:
    """One prompt in full: messages, later turns, tools and answer."""
    parts: list[tuple[str, str]] = [(message.role, message.content) for message in prompt.messages]
    parts += [("user, after an answer", text) for text in prompt.follow_ups]
    parts += [("tool", json.dumps(tool, ensure_ascii=False)) for tool in prompt.tools]
    parts += [("answer", prompt.answer)] if prompt.answer is not None else []
    console.print(Text.assemble((prompt.id, "bold"), f"  {prompt.category}"))
    for heading, text in parts:
        console.print(Text.assemble((f"\n{heading}\n", "bold"), text), soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
