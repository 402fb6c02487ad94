"""A results folder on disk: its lock, its cells, and what each arm has already done.

What an arm has finished is read from its records, never from a flag, so that a kill at any moment loses at
most the request in flight. Only the running parent writes here, bar the records of the sitting it started.
"""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

from harness.cells import BASELINE, Arm, Cell, digest
from harness.records import ANSWERED, REQUESTS, SCHEMA_VERSION, fold, key_of, read_json, sitting_lines, write_json
from harness.targets import load_class
from methods.base import Engine, Refusal

Status = Literal["pending", "complete", "invalid", "failed"]
LOG_TAIL_LINES = 30
ORPHANS_S = 10.0
SAMPLES = 3
REPLAY = "replay"  # what stands for an arm where AR's text is replayed
SCORES = "scores"  # and where answers wait for their scores alone
REPLAYS = "replay.jsonl"


class Turn(NamedTuple):
    """What is asked at once: a prompt, and at which turn of its conversation."""

    prompt_id: str
    turn: int = 0


class Step(NamedTuple):
    """One prompt's turn in a sitting: the arms that answer it, in their order."""

    repeat: int
    prompt_id: str
    arms: tuple[str, ...]
    turn: int = 0


Done = set[tuple[str, str, int, int]]  # (arm, prompt_id, turn, repeat)


def plan(pending: Iterable[str], turns: Sequence[Turn], repeats: int, seed: int, done: Done) -> list[Step]:
    """What is left to ask: turns in seeded order per repeat (their histories are there), arms in seeded order per turn.

    A turn that any pending arm still owes is answered by AR too, so that its ratio is formed in one sitting.
    The orders are hashes of names, so an arm added later does not move the others.
    """
    pending, steps = set(pending), []
    for repeat in range(repeats):
        order = list(turns)
        random.Random(f"{seed}:{repeat}").shuffle(order)
        for prompt_id, turn in order:
            owed = {arm for arm in pending if (arm, prompt_id, turn, repeat) not in done}
            if owed:
                place = (seed, repeat, prompt_id, *([turn] if turn else []))
                steps.append(Step(repeat, prompt_id, _ranked(owed | {BASELINE.arm}, *place), turn))
    return steps


def in_blocks(steps: Sequence[Step], arms: Sequence[str]) -> list[Step]:
    """The same requests arm by arm: the first half of the steps in the arms' order, the other half in the reverse, so
    that the first arm (AR) begins and ends and the last one has a single block in the middle."""
    middle = (len(steps) + 1) // 2
    halves = ((steps[:middle], list(arms)), (steps[middle:], list(reversed(arms))))
    return [step._replace(arms=(arm,)) for half, order in halves for arm in order for step in half if arm in step.arms]


def _ranked(arms: Iterable[str], *place: object) -> tuple[str, ...]:
    return tuple(sorted(arms, key=lambda arm: digest([*place, arm])))


class Lock:
    """One running command per results folder. The file descriptor is handed to the cell's process as well, so
    that a folder whose parent was killed stays locked until the last of its processes is gone."""

    def __init__(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file: IO[str] = (folder / "lock").open("a+")
        except OSError as error:
            raise Refusal(f"results_dir={folder} is not accepted: it cannot be written ({error.strerror}).") from error
        deadline = time.monotonic() + ORPHANS_S
        while not self._try():
            owner = self._owner()
            if (owner is not None and _alive(owner)) or time.monotonic() > deadline:
                self._file.close()
                raise Refusal(f"results_dir={folder} is in use by process {owner}: wait for it, or choose another.")
            time.sleep(0.05)  # the owner was killed and its last processes are ending
        self._file.truncate(0)
        self._file.write(str(os.getpid()))
        self._file.flush()

    def fileno(self) -> int:
        return self._file.fileno()

    def release(self) -> None:
        self._file.close()

    def _try(self) -> bool:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _owner(self) -> int | None:
        self._file.seek(0)
        text = self._file.read().strip()
        return int(text) if text.isdigit() else None


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


@dataclass
class CellFolder:
    """A cell on disk: `cells/<cell_id>` and the arms asked of it by this command."""

    root: Path
    cell: Cell
    fingerprints: dict[str, str]
    turns: tuple[Turn, ...]

    @property
    def path(self) -> Path:
        return self.root / "cells" / self.cell.cell_id

    def refuse_changes(self) -> None:
        """Refuse a stored arm whose settings, weights or prompts are no longer those asked for."""
        cell_file = self.path / "cell.json"
        if cell_file.exists() and (version := read_json(cell_file)["schema_version"]) != SCHEMA_VERSION:
            raise Refusal(f"{self.root} holds records of schema {version}, this version writes {SCHEMA_VERSION}.")
        for arm in self.cell.arms:
            stored = self._stored(arm.name)
            if stored is None:
                continue
            changed = [name for name, value in self.fingerprints.items() if stored["fingerprints"].get(name) != value]
            if not arm.is_stored_as(stored["settings"]):
                changed.insert(0, "settings")
            if changed:
                raise Refusal(
                    f"{self.root} holds arm {arm.name} with another {' and '.join(changed)}: "
                    "another results_dir or overwrite=true is accepted."
                )

    def prepare(self, *, retry_failed: bool, overwrite: bool) -> None:
        """Write what is asked, and bring every arm's status up to what its records say."""
        discarded = self.root / "discarded" / self.cell.cell_id
        if overwrite and self.path.exists():
            # Moved away at once, then removed: a kill in between leaves no half of a cell to be taken for a whole.
            shutil.rmtree(discarded, ignore_errors=True)
            discarded.parent.mkdir(exist_ok=True)
            self.path.rename(discarded)
        shutil.rmtree(discarded.parent, ignore_errors=True)
        (self.path / "arms").mkdir(parents=True, exist_ok=True)
        (self.path / "sittings").mkdir(exist_ok=True)
        settings = self.cell.settings
        content = {"schema_version": SCHEMA_VERSION, "cell_id": self.cell.cell_id}
        content |= {"workload_name": settings.workload_name, "settings": asdict(settings)}
        write_json(self.path / "cell.json", content)
        for arm in self.cell.arms:
            stored = self._stored(arm.name)
            if stored is None or (retry_failed and stored["status"] == "failed"):
                self._write(arm, "pending")
        if self.pending:
            self.settle()

    def settle(self) -> None:
        """Mark the arms whose records are whole: `complete`, or `invalid` where one broke contract 1."""
        done, broken = self._records()
        for arm in self.cell.arms:
            status, whole = self.status(arm), len({key for key in done if key[0] == arm.name}) == self.requests
            if arm.name in broken and (status == "complete" or (status == "pending" and whole)):
                self._write(arm, "invalid", f"{broken[arm.name]} positions were not the target's choice")
            elif status == "pending" and whole:
                self._write(arm, "complete")

    def fail(self, arm: Arm, reason: str, log_tail: str | None) -> None:
        self._write(arm, "failed", reason, log_tail)

    def finish(self) -> None:
        """Fold the records into tables and say how the cell stands; `status.json` is written last."""
        stored = {path.stem: read_json(path) for path in sorted((self.path / "arms").glob("*.json"))}
        statuses = {name: arm["status"] for name, arm in stored.items()}
        failures = {
            name: {"reason": arm["reason"], "log_tail": arm["log_tail"]}
            for name, arm in stored.items()
            if arm["status"] == "failed"
        }
        if failures:
            write_json(self.path / "failure.json", {"arms": failures})
        else:
            (self.path / "failure.json").unlink(missing_ok=True)
        whole = "failed" if failures else "partial" if "pending" in statuses.values() else "complete"
        status = {"status": whole, "arms": statuses}
        path = self.path / "status.json"
        if not (path.exists() and read_json(path) == status):
            fold(self.path)
            write_json(path, status)

    @property
    def requests(self) -> int:
        """Timed requests an arm owes."""
        return len(self.turns) * self.cell.settings.repeats

    def status(self, arm: Arm) -> Status:
        stored = self._stored(arm.name)
        assert stored is not None
        status: Status = stored["status"]
        return status

    def reason(self, arm: Arm) -> str:
        stored = self._stored(arm.name)
        return str(stored["reason"]) if stored else ""

    @property
    def pending(self) -> list[Arm]:
        return [arm for arm in self.cell.arms if self.status(arm) == "pending"]

    def steps(self) -> list[Step]:
        settings, names = self.cell.settings, [arm.name for arm in self.pending]
        done = self._records()[0] | _timed(sitting_lines(self.path, ANSWERED))
        steps = plan(names, self.turns, settings.repeats, settings.seed, done)
        return in_blocks(steps, [arm.name for arm in self.cell.arms]) if self._engine.blocks else steps

    @property
    def samples(self) -> tuple[str, ...]:
        """The prompts that show drift and whose stages are timed, at their first turns: the workload's first three."""
        return tuple(prompt_id for prompt_id, turn in self.turns if turn == 0)[:SAMPLES]

    def profile_steps(self, without: Collection[str] = ()) -> list[Step]:
        """The requests with timed stages that are owed, of every arm that is or is to be complete."""
        settings = self.cell.settings
        if settings.concurrency > 1 or settings.request_rate is not None:
            return []  # a round of requests in flight together is no one's own
        lines = (*sitting_lines(self.path), *sitting_lines(self.path, ANSWERED))
        of_profile = [line for line in lines if line["phase"] == "profile"]
        done = {(line["arm"], line["prompt_id"], line["turn"], line["repeat"]) for line in of_profile}
        able = {arm.name for arm in self.cell.arms if self._engine.profiles(arm.method)}
        names = [arm.name for arm in self.cell.arms if self.status(arm) in ("pending", "complete")]
        owing = [name for name in names if name in able and name not in without]
        turns = self.turns if settings.inspect.wanted else [Turn(prompt_id) for prompt_id in self.samples]
        steps = plan(owing, turns, 1, settings.seed, done)
        return [step._replace(arms=tuple(arm for arm in step.arms if arm in able)) for step in steps]

    def owed_replays(self, without: Collection[str] = ()) -> list[Turn]:
        """The turns whose replay is owed, in the order asked; none where AR's answers are not to be had."""
        wanted = self.cell.settings.replay and REPLAY not in without
        if not wanted or self.status(self.cell.arms[0]) not in ("pending", "complete"):
            return []
        done = {(line["prompt_id"], line["turn"]) for line in sitting_lines(self.path, REPLAYS)}
        return [turn for turn in self.turns if turn not in done]

    def owes_scores(self, without: Collection[str] = ()) -> bool:
        """Whether answers wait for their scores, which AR's server could still give: every sitting gives them first."""
        if SCORES in without or self.status(self.cell.arms[0]) not in ("pending", "complete"):
            return False
        answered, scored = ({key_of(line) for line in sitting_lines(self.path, name)} for name in (ANSWERED, REQUESTS))
        return not answered <= scored

    def owes(self, without: Collection[str] = ()) -> bool:
        """Whether anything is left to do, but for what is given up (`without`)."""
        steps = self.pending or self.profile_steps(without) or self.owed_replays(without)
        return bool(steps) or self.owes_scores(without)

    def next_sitting(self) -> Path:
        """A fresh folder for a sitting, numbered after those that are there."""
        number = max((int(path.name) for path in (self.path / "sittings").iterdir()), default=-1) + 1
        folder = self.path / "sittings" / str(number)
        folder.mkdir()
        (self.path / "status.json").unlink(missing_ok=True)  # the cell's work is open again
        return folder

    def _records(self) -> tuple[Done, dict[str, int]]:
        """The timed requests that are done, and the arms that broke contract 1 with how many positions.

        A request without AR's answer to the same prompt in its sitting forms no ratio: it is still owed.
        """
        lines = [line for line in sitting_lines(self.path) if line["phase"] != "warmup"]
        broken: dict[str, int] = {}
        for line in lines:
            if wrong := (line["true_violations"] or 0) + line["oracle_disagreements"]:
                broken[line["arm"]] = broken.get(line["arm"], 0) + wrong
        return _timed(lines), broken

    @property
    def _engine(self) -> type[Engine]:
        return load_class(self.cell.settings.engine_target, Engine, "engine._target_")  # type: ignore[type-abstract]

    def _stored(self, arm: str) -> dict[str, Any] | None:
        path = self.path / "arms" / f"{arm}.json"
        if not path.exists():
            return None
        content: dict[str, Any] = read_json(path)
        return content

    def _write(self, arm: Arm, status: Status, reason: str | None = None, log_tail: str | None = None) -> None:
        settings = self.cell.settings
        content = {
            "arm": arm.name,
            "method": arm.method.name,
            "budget": arm.method.node_budget,
            "verify": self._engine.verify(settings.engine_spec(1), arm.method, settings.sampling),
            "settings": arm.settings,
            "status": status,
            "reason": reason,
            "log_tail": log_tail,
            "fingerprints": self.fingerprints,
        }
        write_json(self.path / "arms" / f"{arm.name}.json", content)


def _timed(lines: Iterable[dict[str, Any]]) -> Done:
    """The timed requests that form a ratio."""
    timed = [line for line in lines if line["phase"] == "timed"]
    paired = {_place(line) for line in timed if line["arm"] == BASELINE.arm}
    return {(line["arm"], *_place(line)[1:]) for line in timed if _place(line) in paired}


def _place(line: dict[str, Any]) -> tuple[int, str, int, int]:
    return line["sitting"], line["prompt_id"], line["turn"], line["repeat"]


def log_tail(path: Path) -> str | None:
    """The last lines of a sitting's log."""
    if not path.exists():
        return None
    return "\n".join(path.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]) or None
