"""`tune=true`: choose the budget for a pair, a machine and a workload. The command's arms are timed on the workload's
dev half and AR's texts replayed; widths that this leaves open are timed too; what is chosen is checked on the test
half, and written as YAML to run with.

Each part is a command of its own on the same results folder, so that what is killed continues by repeating the whole.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf
from rich.console import Console

import workloads
from harness.cells import BASELINE, Cell, CellSettings, command_hash, gather
from harness.config import Job
from harness.run import FAILED, INTERRUPTED, RUNS, execute
from methods.base import Method, Refusal
from methods.ddtree import DDTree
from methods.dflash import DFlash

if TYPE_CHECKING:
    from analysis.advise import Advice

TUNED = "tuned"
_HEAD = """\
{said}
#   python -m harness --config-dir {root} --config-name {name}
# with settings of your own after it, as ever (workload=… repeats=…); or say {words}
"""
_GIVEN = ("tp", "concurrency", "temperature", "top_p", "top_k", "device", "dtype")
_MODEL = ("target", "drafter", "weights")


def tune(jobs: Sequence[Job], argv: Sequence[str]) -> int:
    """Work the command's cells, look further where that may pay, check, advise, and write the YAML.

    Returns 0, 1 where an arm failed or nothing can be advised, 130 after a Ctrl-C.
    """
    _refuse(jobs)
    cells = gather((job.cell, job.method) for job in jobs)
    root = Path(jobs[0].command.results_dir or RUNS / command_hash(cells))
    jobs = [replace(job, command=replace(job.command, results_dir=str(root))) for job in jobs]
    code = execute(jobs, argv)
    if jobs[0].command.dry_run:
        print("Then what is chosen, and its neighbours, on the test half of each cell.")
        return code
    for further in (_further, _checks):
        if code == INTERRUPTED:
            return code
        code = max(code, execute(found, argv)) if (found := list(further(root, jobs, cells))) else code
    return code if code == INTERRUPTED else max(code, _conclude(root, cells))


def _refuse(jobs: Sequence[Job]) -> None:
    for job in jobs:
        cell = job.cell
        if cell.split != "dev":
            raise Refusal(
                f"workload.split={cell.split} is not accepted with tune=true: dev is, since the choice is checked on "
                "test."
            )
        if not cell.replay:
            raise Refusal("replay=0 is not accepted with tune=true: the largest budget in question is (1024).")
    if not any(job.method.node_budget for job in jobs):
        raise Refusal("tune=true is not accepted without a budget to time: method=ddtree with several of them is.")


def _advised(root: Path, cells: Sequence[Cell], as_asked: bool = False) -> Iterator[tuple[Cell, Advice]]:
    """The cells with what can be said of each; with `as_asked` from the command's own arms alone, so that repeating
    it asks the same again."""
    from analysis.advise import advise
    from analysis.records import find_cells

    stored = {cell.cell_id: cell for cell in find_cells(root)}
    for cell in cells:
        ids = [cell.cell_id, *([] if as_asked else [_test(cell.settings).cell_id])]
        arms = [arm.name for arm in cell.arms] if as_asked else None
        try:
            (advice,) = advise([stored[name] for name in ids if name in stored], arms)
        except Refusal as refusal:
            print(f"cell {cell.cell_id}: {refusal}", file=sys.stderr)
        else:
            yield cell, advice


def _further(root: Path, jobs: Sequence[Job], cells: Sequence[Cell]) -> Iterator[Job]:
    """Budgets that may be faster than those asked for: between them by a cost read off, above them because their
    rounds would pay at the cost of the largest."""
    for cell, advice in _advised(root, cells, as_asked=True):
        worth = advice.worth_measuring
        for budget in sorted({*advice.may_be_faster, *([worth[0]] if worth else [])}):
            again = _job(jobs, cell.settings, DDTree(budget))  # of a cell that was worked a moment ago
            yield replace(again, command=replace(again.command, overwrite=False))


def _checks(root: Path, jobs: Sequence[Job], cells: Sequence[Cell]) -> Iterator[Job]:
    """The test half: DFlash where it was asked for, the budget chosen, the fastest, and the next to the chosen one."""
    for cell, advice in _advised(root, cells):
        timed, choice = advice.costs.budgets, advice.choice
        at = timed.index(choice.budget)
        budgets = {choice.best, *timed[max(0, at - 1) : at + 2]}
        methods: list[Method] = [DFlash()] if DFlash() in cell.methods else []
        for method in (*methods, *map(DDTree, sorted(budgets))):
            yield _job(jobs, _test(cell.settings), method)


def _test(settings: CellSettings) -> CellSettings:
    return replace(settings, split="test")


def _job(jobs: Sequence[Job], settings: CellSettings, method: Method) -> Job:
    return Job(settings, method, jobs[0].command)


def _conclude(root: Path, cells: Sequence[Cell]) -> int:
    """Print the advice for every cell and write it. Returns 1 where there is none."""
    from analysis.advise_table import sentences, table_of
    from analysis.printing import print_tables

    found = list(_advised(root, cells))
    console = Console(highlight=False)
    for cell, advice in found:
        print_tables(console if console.is_terminal else None, [table_of(advice)])
        name = TUNED if len(cells) == 1 else f"{TUNED}-{cell.cell_id}"
        method = next(m for m in _methods(advice) if m.arm == advice.choice.take)
        file = root / f"{name}.yaml"
        file.write_text(_yaml(cell.settings, method, " ".join(sentences(advice)), root, name), encoding="utf-8")
        print(f"Written: {file}")
        print(f"Run with it: python -m harness --config-dir {root} --config-name {name}")
    return 0 if len(found) == len(cells) else FAILED


def _methods(advice: Advice) -> Iterator[Method]:
    yield from (BASELINE, DFlash(), DDTree(advice.choice.budget))


def _yaml(settings: CellSettings, method: Method, said: str, root: Path, name: str) -> str:
    """A primary config above conf/config.yaml: what was tuned, and all that the choice rests on."""
    budget = method.node_budget
    words = f"method={method.name}" + (f" budget={budget}" if budget else "")
    defaults: list[Any] = ["config", {"override method": method.name}]
    workload: dict[str, Any] = {"path": settings.workload_path, "context": settings.context}
    workload |= {"context_path": settings.context_path, "system": settings.system}
    workload = {key: value for key, value in workload.items() if value is not None}
    workload |= {"enable_thinking": True} if settings.enable_thinking else {}
    if settings.workload in workloads.names():
        defaults.append({"override workload": settings.workload})
    else:
        words += f"; add the workload that it was chosen for, {settings.workload}"
        workload = {}
    content: dict[str, Any] = {"defaults": [*defaults, "_self_"]}
    content |= {"budget": budget} if budget else {}
    content["model"] = {"name": settings.model} | {part: getattr(settings, part) for part in _MODEL}
    content["engine"] = _engine(settings)
    content |= {"workload": workload} if workload else {}
    content |= {setting: getattr(settings, setting) for setting in _GIVEN}
    comment = wrap(f"What tune=true chose. {said}", 120, initial_indent="# ", subsequent_indent="# ")
    head = _HEAD.format(said="\n".join(comment), root=root, name=name, words=words)
    return head + OmegaConf.to_yaml(OmegaConf.create(content))


def _engine(settings: CellSettings) -> Mapping[str, Any]:
    args = None if settings.engine_args is None else json.loads(settings.engine_args)
    given = {"_target_": settings.engine_target, "python": settings.engine_python, "args": args}
    return {name: value for name, value in given.items() if value is not None}
