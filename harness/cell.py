"""The process that works one sitting of a cell: `python -m harness.cell SITTING.json`, started by the parent.

It opens the engine, warms every arm, and then answers prompt after prompt with all arms in turn. A request is
timed, scored outside the timing, and on disk before the next one starts.
"""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import workloads
from harness.cells import BASELINE
from harness.environment import environment, now_utc
from harness.records import Asked, Checked, Phase, Record, RecordWriter, write_json
from harness.sitting import Event, EventSender, Sitting
from harness.targets import load_class
from methods.base import Engine, Generation, Method, Refusal, Request, Score
from methods.locate import resolve, stop_ids
from workloads import Prompt

WARMUP_TOKENS = 32
REFUSED = 2


@dataclass(frozen=True)
class Question:
    """A prompt, rendered: the same ids for every arm."""

    prompt: Prompt
    request: Request


@dataclass
class Questions:
    """Every question of the cell, those for warm-up apart."""

    asked: dict[str, Question]
    warmup: list[Question]

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt with its answer."""
        every = [question.request for question in (*self.asked.values(), *self.warmup)]
        return max(len(request.prompt_ids) + request.max_new_tokens for request in every)


@dataclass
class Worker:
    """Answers requests and records them, with what it needs to remember between them."""

    sitting: Sitting
    engine: Engine
    tokenizer: Any
    writer: RecordWriter
    events: EventSender
    tolerance: float = 0.0
    order_index: int = 0
    baseline_outputs: dict[tuple[str, int], tuple[int, ...]] = field(default_factory=dict)
    scores: dict[tuple[str, tuple[int, ...]], Score] = field(default_factory=dict)

    def answer(self, method: Method, question: Question, phase: Phase, repeat: int) -> None:
        """One request, from the question to the line on disk."""
        self.events.send(Event("started", method.arm))
        started = now_utc()
        with _no_collection():
            generation = self.engine.generate(method, question.request)
        if phase == "timed" and method == BASELINE:
            self.baseline_outputs[question.prompt.id, repeat] = generation.output_ids
        record = Record(
            asked=self._asked(method, question, phase, repeat),
            generation=generation,
            checked=self._check(question, generation, phase, repeat),
            text=self.tokenizer.decode(list(generation.output_ids), skip_special_tokens=True),
            started_utc=started,
        )
        self.writer.append(record)
        self.order_index += 1
        self.events.send(_done(method, generation, phase))

    def _asked(self, method: Method, question: Question, phase: Phase, repeat: int) -> Asked:
        prompt, request = question.prompt, question.request
        return Asked(
            cell_id=self.sitting.settings.cell_id,
            sitting=self.sitting.number,
            phase=phase,
            arm=method.arm,
            prompt_id=prompt.id,
            turn=request.turn,
            repeat=repeat,
            order_index=self.order_index,
            category=prompt.category,
            prompt_text=prompt.text,
            prompt_ids=request.prompt_ids,
            answer=prompt.answer,
        )

    def _check(self, question: Question, generation: Generation, phase: Phase, repeat: int) -> Checked:
        """Contract 1: every output through the plain target, the same output of the same prompt only once."""
        output = generation.output_ids
        key = question.prompt.id, output
        if key not in self.scores:
            self.scores[key] = self.engine.score(question.request, output, self.tolerance)
        reference = self.baseline_outputs.get((question.prompt.id, repeat)) if phase == "timed" else None
        return Checked.from_score(self.scores[key], self.tolerance, None if reference is None else reference == output)


def work(sitting: Sitting, folder: Path, events: EventSender) -> None:
    """The whole sitting. `folder` is its place on disk, where records and environment go."""
    facts = environment(sitting.argv)
    settings = sitting.settings
    events.send(Event("stage", text="rendering the prompts"))
    model_folder = resolve(settings.target)
    tokenizer = load_tokenizer(model_folder)
    questions = render(sitting, tokenizer, model_folder)
    engine_class = load_class(settings.engine_target, Engine, "engine._target_")  # type: ignore[type-abstract]
    spec = settings.engine_spec(questions.longest)
    engine_class.check(spec, sitting.methods)
    events.send(Event("stage", text="opening the engine"))
    with (
        engine_class(spec) as engine,
        RecordWriter(folder / "requests.jsonl") as writer,
    ):
        engine.open(sitting.methods)
        tolerance = engine.gap_tolerance([question.request for question in questions.warmup])
        facts |= {"engine": engine.describe(), "gap_tolerance": tolerance}
        write_json(folder / "environment.json", facts)
        worker = Worker(sitting, engine, tokenizer, writer, events, tolerance)
        warm(worker, questions)
        ask(worker, questions)
    write_json(folder / "environment.json", facts | {"finished_utc": now_utc()})


def warm(worker: Worker, questions: Questions) -> None:
    """Every arm on prompts outside the set, so that no timed request pays for what happens once."""
    for index, question in enumerate(questions.warmup):
        for method in worker.sitting.methods:
            text = f"warming up, prompt {index + 1} of {len(questions.warmup)}"
            worker.events.send(Event("stage", text=text))
            worker.answer(method, question, "warmup", repeat=0)
    gc.collect()
    gc.freeze()


def ask(worker: Worker, questions: Questions) -> None:
    """The timed requests, in the order the parent laid down."""
    methods = {method.arm: method for method in worker.sitting.methods}
    for step in worker.sitting.steps:
        for arm in step.arms:
            worker.answer(methods[arm], questions.asked[step.prompt_id], "timed", step.repeat)


def render(sitting: Sitting, tokenizer: Any, model_folder: Path) -> Questions:
    """Every prompt of the workload as a request."""
    settings = sitting.settings
    workload = workloads.load(settings.workload, settings.workload_path)
    stops = stop_ids(model_folder)
    if tokenizer.eos_token_id is not None:
        stops = tuple(sorted({*stops, tokenizer.eos_token_id}))

    def question(prompt: Prompt) -> Question:
        ids = workloads.render(tokenizer, prompt)
        return Question(prompt, Request(prompt.id, ids, settings.max_new_tokens, stops, sampling=settings.sampling))

    asked = {prompt.id: question(prompt) for prompt in workload.prompts}
    short = min(WARMUP_TOKENS, settings.max_new_tokens)
    warmup = [
        replace(one, request=replace(one.request, max_new_tokens=short)) for one in map(question, workload.warmup)
    ]
    return Questions(asked, warmup)


def load_tokenizer(model_folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(model_folder))


@contextmanager
def _no_collection() -> Iterator[None]:
    """No garbage collection inside the timed region."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _done(method: Method, generation: Generation, phase: Phase) -> Event:
    uncut = [r for r in generation.rounds if not r.cut]
    return Event(
        "done",
        method.arm,
        timed=phase == "timed",
        tokens=len(generation.output_ids),
        decode_s=generation.decode_s,
        rounds=len(uncut),
        accepted=sum(r.accepted for r in uncut),
    )


def end_with_parent(fd: int) -> None:
    """End this process group when the parent is gone, however it went: the kernel closes its end of the pipe."""

    def watch() -> None:
        while os.read(fd, 1):
            pass
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True, name="end-with-parent").start()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m harness.cell", description="Work one sitting of a cell.")
    parser.add_argument("sitting", type=Path, help="the sitting.json the parent wrote")
    parser.add_argument("--events-fd", type=int, help="where events are written")
    parser.add_argument("--parent-fd", type=int, help="a pipe that closes with the parent")
    options = parser.parse_args(argv)
    if options.parent_fd is not None:
        end_with_parent(options.parent_fd)
    events = EventSender(options.events_fd)
    try:
        work(Sitting.read(options.sitting), options.sitting.parent, events)
    except Refusal as refusal:
        events.send(Event("refused", text=str(refusal)))
        print(refusal, file=sys.stderr)
        return REFUSED
    except Exception as error:
        traceback.print_exc()
        said = str(error).strip().splitlines()
        events.send(Event("failed", text=f"{type(error).__name__}: {said[0] if said else 'no message'}"))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
