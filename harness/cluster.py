"""One cluster job per cell, through submitit: the command prepares the results folder, hands out the cells, waits,
and says what came of them. A job works its cell as the command would, in processes of its own.

Jobs outlive a command that is killed; each holds its cell's own lock, so that repeating the command meanwhile leaves
a cell at work alone.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from harness.cells import Cell
from harness.config import Cluster, Command
from harness.results import CellFolder, Lock
from methods.base import Refusal

if TYPE_CHECKING:
    from harness.run import Unprofiled

GRACE_MIN = 10  # for what a job does outside its sittings


def work_cell(root: Path, cell: Cell, command: Command, argv: tuple[str, ...], title: str) -> list[Unprofiled]:
    """What runs in the job: the whole cell, on its own lock. Returns the arms whose stages could not be timed."""
    from harness.run import Runner, cell_folder, signals_as_interrupts

    folder = cell_folder(root, cell)
    lock = Lock(folder.path)
    try:
        with signals_as_interrupts():
            runner = Runner(root, [folder], replace(command, cluster=None), argv, lock, Console(highlight=False))
            runner.work_through([title])
            return runner.unprofiled
    finally:
        lock.release()


def work_on(
    cluster: Cluster, root: Path, folders: Sequence[CellFolder], titles: Sequence[str], command: Command, argv: Any
) -> list[Unprofiled]:
    """Submit a job for every cell that owes something and wait for all. A job that dies fails its pending arms; an
    interrupt cancels them all."""
    jobs = []
    unprofiled: list[Unprofiled] = []
    try:
        for folder, title in zip(folders, titles, strict=True):
            if folder.owes():
                executor = _executor(cluster, root, folder.cell, command.timeout_s)
                jobs.append((folder, executor.submit(work_cell, root, folder.cell, command, argv, title)))
                print(f"{title}: submitted as job {jobs[-1][1].job_id}", flush=True)
            else:
                folder.finish()
        for folder, job in jobs:
            try:
                unprofiled += job.result()
            except Exception as error:  # whatever submitit raises for a job that failed, timed out or was preempted
                reason = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
                for arm in folder.pending:
                    folder.fail(arm, f"cluster job {job.job_id} ended badly: {reason}", None)
                folder.finish()
    except BaseException:
        for _, job in jobs:
            job.cancel()
        raise
    return unprofiled


def _executor(cluster: Cluster, root: Path, cell: Cell, timeout_s: float) -> Any:
    try:
        submitit = importlib.import_module("submitit")
    except ModuleNotFoundError:
        raise Refusal(
            f"cluster.executor={cluster.executor} needs the package submitit: `pip install submitit` gets it."
        ) from None
    parameters = {name: value for name, value in cluster.parameters.items() if value is not None}
    minutes = math.ceil(timeout_s / 60) + GRACE_MIN
    gpus = {"gpus_per_node": cell.settings.tp} if cell.settings.device == "cuda" else {}
    try:
        executor = submitit.AutoExecutor(folder=root / "cluster", cluster=cluster.executor)
        executor.update_parameters(**{"name": "harness", "timeout_min": minutes, **gpus, **parameters})
    except (NameError, TypeError, RuntimeError, ValueError) as error:
        raise Refusal(f"cluster is not accepted by submitit: {str(error).splitlines()[0].rstrip('.')}.") from error
    return executor
