"""What the target answered in earlier turns: written once by AR, and part of every arm's later prompts from then on.

A results folder keeps one file for each target, workload, sampling and answer length. Cells that differ in engine, tp,
dtype, device, drafter or the part of the workload they ask share it: whichever comes first writes what it needs, and
so all of them ask the same. Each line holds one answer and the hash of the ids it answers, so that an answer to another
text (a changed file, another context) is never taken for this one's.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BufferedRandom
from pathlib import Path
from typing import Any

from harness import memory
from harness.cells import BASELINE, CellSettings, digest
from harness.environment import now_utc
from harness.questions import Question, Questions, Renderer
from harness.records import read_lines
from harness.sitting import Event, EventSender
from methods.base import Engine, Generation
from workloads.rendering import ids_sha256

CONSUMED = (
    *("workload", "workload_path", "suite", "skip_bad", "context", "context_path", "system", "enable_thinking"),
    *("weights", "temperature", "top_p", "top_k", "seed", "max_new_tokens"),
)
WRITES = ("engine", "tp", "dtype", "device")


def key(settings: CellSettings, fingerprints: Mapping[str, str]) -> str:
    """Names a file of histories: the target's own hash, and every setting that its answers or prompts hang on."""
    return digest({"target": fingerprints["target"], **{name: getattr(settings, name) for name in CONSUMED}})


class Histories:
    """The stored answers of one key. They are read at once; to add some, open `writing`."""

    def __init__(self, folder: Path, settings: CellSettings, fingerprints: Mapping[str, str]) -> None:
        self.path = folder / f"{key(settings, fingerprints)}.jsonl"
        self._writer = {name: getattr(settings, name) for name in WRITES}
        self._answers: dict[tuple[str, int, str], str] = {}
        self._file: BufferedRandom | None = None
        if self.path.exists():
            self._read()

    def answer_to(self, question: Question) -> str | None:
        """AR's answer to this very text, None where it is still to be given."""
        return self._answers.get(_place(question))

    def facts(self, questions: Questions) -> dict[str, str] | None:
        """For the records: the file, and the hash of the answers that the cell's later turns rest on; None without."""
        answers = [answer for question in questions.asked.values() if (answer := self.answer_to(question)) is not None]
        if not answers:
            return None
        return {"file": self.path.name, "sha256": digest(answers, length=64)}

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Alone with the file: another cell that wants to write waits, and finds what was written here. The torn line
        that a kill may have left is cut off."""
        self.path.parent.mkdir(exist_ok=True)
        with self.path.open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)
            self._read()
            self._file = file
            try:
                yield
            finally:
                self._file = None

    def add(self, question: Question, generation: Generation, text: str) -> None:
        """Store an answer; it is on disk when this returns."""
        assert self._file is not None, "histories are added to while `writing`"
        prompt_id, turn, sha256 = _place(question)
        line = {
            "prompt_id": prompt_id,
            "turn": turn,
            "prompt_sha256": sha256,
            "text": text.strip(),
            "output_ids": generation.output_ids,
            "finish_reason": generation.finish_reason,
            "written_by": self._writer,
            "written_utc": now_utc(),
        }
        self._file.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._answers[prompt_id, turn, sha256] = text.strip()

    def _read(self) -> None:
        for line in read_lines(self.path):
            self._answers[line["prompt_id"], line["turn"], line["prompt_sha256"]] = line["text"]


def _place(question: Question) -> tuple[str, int, str]:
    return question.prompt.id, question.request.turn, ids_sha256(question.request.prompt_ids)


def complete(
    histories: Histories,
    renderer: Renderer,
    engine_class: type[Engine],
    settings: CellSettings,
    tokenizer: Any,
    free_bytes: int | None,
    events: EventSender,
) -> Questions | None:
    """Every question of the cell, with AR having answered what is owed, all conversations turn by turn. None where AR
    does not fit in memory, which the events then tell."""
    questions = renderer.questions(histories.answer_to)
    if not questions.owed:
        return questions
    events.send(Event("stage", text="histories, waiting for their file"))
    with histories.writing():
        while (questions := renderer.questions(histories.answer_to)).owed:
            spec = settings.engine_spec(max(question.tokens for question in questions.owed))
            engine_class.check(spec, (BASELINE,))
            if not memory.fits(engine_class, spec, (BASELINE,), free_bytes, events):
                return None
            with engine_class(spec) as engine:
                engine.open((BASELINE,))
                for index, question in enumerate(questions.owed):
                    place = f"turn {question.request.turn}, answer {index + 1} of {len(questions.owed)}"
                    events.send(Event("stage", text=f"histories, {place}"))
                    events.send(Event("started", BASELINE.arm))
                    generation = engine.generate(BASELINE, question.request)
                    text = tokenizer.decode(list(generation.output_ids), skip_special_tokens=True)
                    histories.add(question, generation, text)
                    events.send(Event("done", BASELINE.arm))
    return questions
