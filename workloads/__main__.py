"""`python -m workloads list` and `python -m workloads show NAME [--id ID]`: what would be asked, as tables."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from methods.base import Refusal
from workloads import Prompt, Workload, load, names


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m workloads", description="The workloads and their prompts.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="every workload with its size")
    show = commands.add_parser("show", help="the prompts of a workload, or one of them in full")
    show.add_argument("name", metavar="NAME", help=f"{', '.join(names())} or file")
    show.add_argument("--id", help="the prompt to show in full")
    show.add_argument("--path", help="the JSONL file of `file`")
    options = parser.parse_args(argv)
    console = Console(highlight=False)
    try:
        if options.command == "list":
            console.print(overview())
            return 0
        workload = load(options.name, options.path)
        if options.id is None:
            console.print(contents(workload))
        else:
            print_prompt(console, workload.find(options.id))
    except Refusal as refusal:
        print(refusal, file=sys.stderr)
        return 2
    return 0


def overview() -> Table:
    """One row a built-in workload."""
    table = Table("workload", "prompts", "categories", "with answers", "characters a prompt", "source", box=None)
    for name in names():
        workload = load(name)
        lengths = sorted(sum(len(m.content) for m in p.messages) for p in workload.prompts)
        table.add_row(
            name,
            str(len(workload.prompts)),
            ", ".join(workload.categories),
            str(sum(p.answer is not None for p in workload.prompts)),
            f"{lengths[0]}–{lengths[-1]}",
            "built in",
        )
    return table


def contents(workload: Workload) -> Table:
    """One row a prompt: its id, its category and how it begins."""
    title = f"{workload.name}: {len(workload.prompts)} prompts, sha256 {workload.sha256[:12]}"
    table = Table(title=title, title_justify="left", box=None)
    table.add_column("id", no_wrap=True)
    table.add_column("category", no_wrap=True)
    table.add_column("answer", no_wrap=True, max_width=24)
    table.add_column("prompt", no_wrap=True, overflow="ellipsis")
    for prompt in workload.prompts:
        start = " ".join(prompt.messages[-1].content[:200].split())
        table.add_row(*(Text(cell) for cell in (prompt.id, prompt.category, prompt.answer or "", start)))
    return table


def print_prompt(console: Console, prompt: Prompt) -> None:
    """One prompt in full: messages, tools and answer."""
    console.print(Text.assemble((prompt.id, "bold"), f"  {prompt.category}"))
    for message in prompt.messages:
        console.print(Text.assemble((f"\n{message.role}\n", "bold"), message.content), soft_wrap=True)
    for tool in prompt.tools:
        console.print(Text.assemble(("\ntool\n", "bold"), json.dumps(tool, ensure_ascii=False)), soft_wrap=True)
    if prompt.answer is not None:
        console.print(Text.assemble(("\nanswer\n", "bold"), prompt.answer), soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
