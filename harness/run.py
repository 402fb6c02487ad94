"""Runs a command's cells: gathers the jobs, refuses what cannot be done, works each cell to its end in processes
of its own, and says what came of it. A failed arm or cell leaves its reason and does not stop the others.
"""

from __future__ import annotations

import shutil
import signal
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from rich.console import Console

from harness import config
from harness.cells import BASELINE, Arm, Cell, command_hash, gather
from harness.cluster import work_on
from harness.config import Command, Job
from harness.crowd import check_load
from harness.environment import now_utc
from harness.overview import print_overview
from harness.process import Outcome, sit
from harness.progress import Progress
from harness.questions import prompts_sha256, turns, workload_of
from harness.records import sitting_lines
from harness.results import REPLAY, SCORES, CellFolder, Lock, log_tail
from harness.sitting import Event, Sitting
from harness.targets import load_class
from harness.tracker import Listener
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
        _check(cell)
    command.tracker.check()
    command = replace(command, sweep=command_hash(cells))
    root = Path(command.results_dir) if command.results_dir else RUNS / command.sweep
    if command.dry_run:
        print_overview(console, cells, root)
        return 0
    folders = [cell_folder(root, cell) for cell in cells]
    if not command.overwrite:
        for folder in folders:
            folder.refuse_changes()
    lock = Lock(root)
    try:
        with signals_as_interrupts():
            return Runner(root, folders, command, tuple(argv), lock, console).run()
    finally:
        lock.release()


def _check(cell: Cell) -> None:
    """Refuse what the engine cannot do, and a context that the model's window cannot hold beside the answer."""
    settings = cell.settings
    engine = load_class(settings.engine_target, Engine, "engine._target_")  # type: ignore[type-abstract]
    check_load(settings, len(turns(settings)) * settings.repeats)
    shortest = 1 + settings.max_new_tokens  # the prompts are not rendered yet
    engine.check(settings.engine_spec(shortest), cell.methods)
    if settings.context is not None:
        try:
            engine.check(settings.engine_spec(settings.context + settings.max_new_tokens), cell.methods)
        except Refusal as refusal:
            raise Refusal(f"workload.context={settings.context} is not accepted: {refusal}") from refusal


class Unprofiled(NamedTuple):
    """Arms of a cell whose timed requests are done and whose stages could not be timed; or its replay, or scores."""

    cell_id: str
    arms: list[str]
    reason: str
    missing: str = "stage times"


@dataclass
class Runner:
    """One command at work on its locked results folder."""

    root: Path
    folders: list[CellFolder]
    command: Command
    argv: tuple[str, ...]
    lock: Lock
    console: Console
    unprofiled: list[Unprofiled] = field(default_factory=list)

    def run(self) -> int:
        self._keep_hydra_output()
        for folder in self.folders:
            folder.prepare(retry_failed=self.command.retry_failed, overwrite=self.command.overwrite)
        finished = [(f, arm) for f in self.folders for arm in f.cell.arms if f.status(arm) != "pending"]
        count, interrupted = len(self.folders), False
        titles = [f"cell {index + 1} of {count} ({f.cell.settings})" for index, f in enumerate(self.folders)]
        try:
            if self.command.cluster is None:
                self.work_through(titles)
            else:
                self.unprofiled += work_on(
                    self.command.cluster, self.root, self.folders, titles, self.command, self.argv
                )
        except KeyboardInterrupt:
            interrupted = True
        return self._summary(finished, interrupted)

    def work_through(self, titles: Sequence[str]) -> None:
        """Work every cell here, one after the other."""
        tracker = self.command.tracker.open(self.command.sweep)
        try:
            for folder, title in zip(self.folders, titles, strict=True):
                self._work(folder, title, tracker)
        finally:
            tracker.close()

    def _work(self, folder: CellFolder, title: str, tracker: Listener) -> None:
        """Sit until every arm of the cell is complete, invalid or failed and has its stages timed, AR's texts are
        replayed where that is asked, and every answer is scored; each sitting settles at least one arm, or gives up
        timing the stages of one, replaying or scoring."""
        without: set[str] = set()
        if owing := folder.owes():
            tracker.cell_began(folder.path, sum(line["phase"] == "timed" for line in sitting_lines(folder.path)))
        try:
            while folder.owes(without):
                before = folder.pending
                place, outcome = self._sit(folder, title, without, tracker)
                folder.settle()
                reason = outcome.reason or next(iter(outcome.unfit.values()), "the cell's process ended early")
                if folder.pending:
                    self._blame(folder, place, outcome)
                elif owed := {arm for step in folder.profile_steps(without) for arm in step.arms}:
                    guilty = owed & {outcome.arm, *outcome.unfit} - {BASELINE.arm} or owed
                    without |= guilty
                    self.unprofiled.append(Unprofiled(folder.cell.cell_id, sorted(guilty), reason))
                elif folder.owed_replays(without):
                    without.add(REPLAY)
                    self.unprofiled.append(Unprofiled(folder.cell.cell_id, [REPLAY], reason, "budget curve"))
                elif folder.owes_scores(without):
                    without.add(SCORES)
                    self.unprofiled.append(Unprofiled(folder.cell.cell_id, [SCORES], reason, "last scores"))
                for arm in before:
                    if folder.status(arm) != "pending":
                        tracker.arm_ended(folder.path, arm.name, folder.status(arm))
        finally:
            folder.finish()
            if owing:
                tracker.cell_ended(folder.path)

    def _sit(self, folder: CellFolder, title: str, without: Collection[str], tracker: Listener) -> tuple[Path, Outcome]:
        steps, profile = folder.steps(), folder.profile_steps(without)
        replay = folder.owed_replays(without)
        asked = {arm for step in (*steps, *profile) for arm in step.arms} | {BASELINE.arm}
        arms = [arm for arm in folder.cell.arms if arm.name in asked]
        place = folder.next_sitting()
        order = Sitting(
            number=int(place.name),
            settings=folder.cell.settings,
            methods=tuple(arm.method for arm in arms),
            method_settings=tuple(arm.settings for arm in arms),
            steps=tuple(steps),
            sentinel=folder.samples,
            profile=tuple(profile),
            fingerprints=folder.fingerprints,
            argv=self.argv,
            replay=tuple(replay),
        )
        with Progress(self.console, title, order.requests) as progress:

            def listen(event: Event | None) -> None:
                if event is None:
                    progress.show()
                else:
                    progress.take(event)
                    if event.kind == "done" and event.timed:
                        tracker.request_ended(event)

            outcome = sit(order.write(place), self.lock, self.command.timeout_s, listen)
        how = "ended" if outcome.reason is None else f"stopped ({outcome.reason})"
        self.console.print(f"{title}: {how} after {progress.elapsed}", soft_wrap=True, markup=False)
        return place, outcome

    def _blame(self, folder: CellFolder, place: Path, outcome: Outcome) -> None:
        """Note a failure where it belongs: at what does not fit, at the arm in flight, or at all that still wait."""
        pending = folder.pending
        if outcome.unfit:
            whole = outcome.unfit.get(BASELINE.arm)
            for arm in pending:
                if whole or arm.name in outcome.unfit:
                    folder.fail(arm, outcome.unfit.get(arm.name) or f"its {BASELINE.arm} arm {whole}", None)
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
        if (by_status["complete"] or by_status["invalid"]) and not self.command.tune:  # whose advice has it all
            print_summary(self.root)
        for status in ("failed", "invalid"):
            for folder, arm in by_status[status]:
                print(f"{status}: {arm.name} in cell {folder.cell.cell_id}: {folder.reason(arm)}", file=sys.stderr)
        for cell_id, names, reason, missing in self.unprofiled:
            print(f"no {missing}: {', '.join(names)} in cell {cell_id}: {reason}", file=sys.stderr)
        if finished:
            print(f"{len(finished)} of {len(arms)} arms had ended before and were not run again:")
            for folder in self.folders:
                names = [arm.name for owner, arm in finished if owner is folder]
                if names:
                    print(f"  skipped: {', '.join(names)} in cell {folder.cell.cell_id}")
        if by_status["failed"]:
            print("retry_failed=true runs the failed arms again.", file=sys.stderr)
        for settings in {folder.cell.settings for folder in self.folders}:
            if skipped := workload_of(settings).skipped:
                print(
                    f"{len(skipped)} bad rows of {settings.workload_path} were left out: environment.json says which."
                )
        print(f"Results: {self.root}")
        if interrupted:
            print(f"Interrupted with {len(by_status['pending'])} arms to go: repeat the command to continue.")
            return INTERRUPTED
        return FAILED if by_status["failed"] or by_status["invalid"] or self.unprofiled else 0

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


def cell_folder(root: Path, cell: Cell) -> CellFolder:
    """The cell's place in the results folder, with what identifies its weights and prompts today."""
    settings = cell.settings
    fingerprints = {
        "target": _model_fingerprint(settings.target),
        "drafter": _model_fingerprint(settings.drafter),
        "prompts": prompts_sha256(settings),
    }
    return CellFolder(root, cell, fingerprints, turns(settings))


@cache
def _model_fingerprint(reference: str) -> str:
    return fingerprint(resolve(reference))


@contextmanager
def signals_as_interrupts() -> Iterator[None]:
    """A terminate or hang-up ends like a Ctrl-C: cells killed, records folded."""

    def interrupt(signum: int, frame: object) -> NoReturn:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
