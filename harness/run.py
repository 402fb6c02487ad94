"""Runs a command's cells: gathers the jobs, refuses what cannot be done, works each cell to its end in processes
of its own, and says what came of it. A failed arm or cell leaves its reason and does not stop the others.
"""

from __future__ import annotations

import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console
from rich.table import Table

import workloads
from harness import config
from harness.cells import BASELINE, Arm, Cell, command_hash, gather
from harness.config import Command, Job
from harness.environment import now_utc
from harness.process import Outcome, sit
from harness.progress import Progress
from harness.results import CellFolder, Lock, log_tail
from harness.sitting import Event, Sitting
from harness.targets import load_class
from harness.tracker import Tracker
from methods.base import Engine, Refusal
from methods.locate import fingerprint, resolve

RUNS = Path("results/runs")
FAILED = 1
INTERRUPTED = 130


def execute(jobs: Sequence[Job], argv: Sequence[str]) -> int:
    """Run every cell behind the jobs. Returns 0, 1 where an arm failed or is invalid, 130 after a Ctrl-C."""
    console = Console(highlight=False)
    command = _one_command(jobs)
    cells = gather((job.cell, job.method) for job in jobs)
    for cell in cells:
        engine = load_class(cell.settings.engine_target, Engine, "engine._target_")  # type: ignore[type-abstract]
        shortest = 1 + cell.settings.max_new_tokens  # the prompts are not rendered yet
        engine.check(cell.settings.engine_spec(shortest), cell.methods)
    root = Path(command.results_dir) if command.results_dir else RUNS / command_hash(cells)
    if command.dry_run:
        console.print(_overview(cells, root))
        return 0
    folders = [_cell_folder(root, cell) for cell in cells]
    if not command.overwrite:
        for folder in folders:
            folder.refuse_changes()
    lock = Lock(root)
    try:
        with _signals_as_interrupts():
            return Runner(root, folders, command, tuple(argv), lock, console).run()
    finally:
        lock.release()


@dataclass
class Runner:
    """One command at work on its locked results folder."""

    root: Path
    folders: list[CellFolder]
    command: Command
    argv: tuple[str, ...]
    lock: Lock
    console: Console

    def run(self) -> int:
        self._keep_hydra_output()
        for folder in self.folders:
            folder.prepare(retry_failed=self.command.retry_failed, overwrite=self.command.overwrite)
        finished = [(f, arm) for f in self.folders for arm in f.cell.arms if f.status(arm) != "pending"]
        tracker, interrupted = self.command.tracker(), False
        try:
            for index, folder in enumerate(self.folders):
                self._work(folder, f"cell {index + 1} of {len(self.folders)} ({folder.cell.settings})", tracker)
        except KeyboardInterrupt:
            interrupted = True
        finally:
            tracker.close()
        return self._summary(finished, interrupted)

    def _work(self, folder: CellFolder, title: str, tracker: Tracker) -> None:
        """Sit until every arm of the cell is complete, invalid or failed; each sitting settles at least one."""
        try:
            while before := folder.pending:
                outcome = self._sit(folder, title)
                folder.settle()
                self._blame(folder, outcome)
                for arm in before:
                    if folder.status(arm) != "pending":
                        tracker.arm_ended(folder.path, arm.name, folder.status(arm))
        finally:
            folder.finish()

    def _sit(self, folder: CellFolder, title: str) -> tuple[Path, Outcome]:
        steps = folder.steps()
        asked = {arm for step in steps for arm in step.arms}
        arms = [arm for arm in folder.cell.arms if arm.name in asked]
        place = folder.next_sitting()
        order = Sitting(
            int(place.name),
            folder.cell.settings,
            tuple(arm.method for arm in arms),
            tuple(arm.settings for arm in arms),
            tuple(steps),
            self.argv,
        )
        with Progress(self.console, title, order.requests) as progress:

            def listen(event: Event | None) -> None:
                if event is None:
                    progress.show()
                else:
                    progress.take(event)

            outcome = sit(order.write(place), self.lock, self.command.timeout_s, listen)
        how = "ended" if outcome.reason is None else f"stopped ({outcome.reason})"
        self.console.print(f"{title}: {how} after {progress.elapsed}", soft_wrap=True, markup=False)
        return place, outcome

    def _blame(self, folder: CellFolder, ended: tuple[Path, Outcome]) -> None:
        """Note a failure where it belongs: at the arm in flight, or at all that still wait for their turn."""
        place, outcome = ended
        pending = folder.pending
        if outcome.reason is None and not pending:
            return
        reason = outcome.reason or "the cell's process ended without finishing its requests"
        tail = None if outcome.explained else log_tail(place / "log.txt")
        guilty = [arm for arm in pending if arm.name == outcome.arm and arm.name != BASELINE.arm]
        for arm in guilty or pending:
            others = f" (while its {outcome.arm} arm was running)" if outcome.arm not in (None, arm.name) else ""
            folder.fail(arm, reason + others, tail)

    def _summary(self, finished: list[tuple[CellFolder, Arm]], interrupted: bool) -> int:
        """What came of it: the table, then every arm that failed, broke contract 1, or was there already."""
        from analysis.tables import print_summary

        arms = [(folder, arm) for folder in self.folders for arm in folder.cell.arms]
        by_status = {
            status: [(folder, arm) for folder, arm in arms if folder.status(arm) == status]
            for status in ("pending", "complete", "invalid", "failed")
        }
        if by_status["complete"] or by_status["invalid"]:
            print_summary(self.root)
        for status in ("failed", "invalid"):
            for folder, arm in by_status[status]:
                print(f"{status}: {arm.name} in cell {folder.cell.cell_id}: {folder.reason(arm)}", file=sys.stderr)
        if finished:
            print(f"{len(finished)} of {len(arms)} arms had ended before and were not run again.")
        if by_status["failed"]:
            print("retry_failed=true runs the failed arms again.", file=sys.stderr)
        print(f"Results: {self.root}")
        if interrupted:
            print(f"Interrupted with {len(by_status['pending'])} arms to go: repeat the command to continue.")
            return INTERRUPTED
        return FAILED if by_status["failed"] or by_status["invalid"] else 0

    def _keep_hydra_output(self) -> None:
        scratch = Path(config.scratch())
        if scratch.exists():
            (self.root / "hydra").mkdir(exist_ok=True)
            shutil.move(scratch, self.root / "hydra" / now_utc().replace(":", "-"))


def _one_command(jobs: Sequence[Job]) -> Command:
    """What holds for the whole command cannot differ between its jobs."""
    first = jobs[0].command
    for job in jobs[1:]:
        for name, value in vars(first).items():
            other: Any = getattr(job.command, name)
            if other != value:
                raise Refusal(f"{name} cannot be swept over ({value} and {other}): one value a command is accepted.")
    return first


def _cell_folder(root: Path, cell: Cell) -> CellFolder:
    settings = cell.settings
    workload = workloads.load(settings.workload, settings.workload_path)
    fingerprints = {
        "target": _model_fingerprint(settings.target),
        "drafter": _model_fingerprint(settings.drafter),
        "prompts": workload.sha256,
    }
    return CellFolder(root, cell, fingerprints, tuple(prompt.id for prompt in workload.prompts))


@cache
def _model_fingerprint(reference: str) -> str:
    return fingerprint(resolve(reference))


def _overview(cells: Sequence[Cell], root: Path) -> Table:
    """The table of a dry run."""
    table = Table(title=f"{len(cells)} cells for {root}, nothing is run", title_justify="left", box=None)
    for column in ("cell", "model", "workload", "tp", "temperature", "requests an arm", "arms"):
        table.add_column(column)
    for cell in cells:
        s = cell.settings
        requests = len(workloads.load(s.workload, s.workload_path).prompts) * s.repeats
        names = " ".join(arm.name for arm in cell.arms)
        table.add_row(cell.cell_id, s.model, s.workload, str(s.tp), f"{s.temperature:g}", str(requests), names)
    return table


@contextmanager
def _signals_as_interrupts() -> Iterator[None]:
    """A terminate or hang-up ends like a Ctrl-C: cells killed, records folded."""

    def interrupt(signum: int, frame: object) -> NoReturn:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
