"""Sittings whose arms run as blocks, because changing the arm means another server: AR – methods – AR.

The first half of the prompts is asked of AR, then of every method; the other half of every method the other way round,
and at last of AR. So each prompt's ratio is formed from blocks on both sides of the same middle, which a steady drift
leaves as it is, and AR's two blocks, with the sentinel's prompts at the very start and the very end, show the drift.
Requests whose rounds are looked into follow an arm's last block, while its server is there.

Where many requests are in flight (`concurrency`, `request_rate`) a block is one load (`harness.crowd`); the sentinel's
requests come one by one all the same.

Outputs are scored by AR's server, and so only in its blocks, and by it the oracle judges what was left unchecked. Until
then a request stands in `answered.jsonl`, on disk before the next one starts, and joins `requests.jsonl` with its
score. What a killed sitting left unscored the next one scores.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.cells import BASELINE
from harness.crowd import Crowd, load_of
from harness.questions import Question, Questions
from harness.records import (
    ANSWERED,
    INFINITE_GAP,
    KEYS,
    REQUESTS,
    ROUNDS,
    Checked,
    Looked,
    append_line,
    fill_gaps,
    key_of,
    read_lines,
)
from harness.results import Step, Turn
from harness.sitting import Event
from methods.base import Engine, Inspected, Method, Request, Sampling, Score, Unchecked

if TYPE_CHECKING:
    from harness.cell import Worker

START, END = 0, 2  # the sentinel's places; in the middle there is no AR server


def ask_in_blocks(worker: Worker, questions: Questions, folder: Path) -> None:
    """The timed requests, block by block, and every score that the cell still owes. `folder` is the sitting's."""
    settings = worker.sitting.settings
    scores = Scores(worker.engine, folder.parent, settings.sampling, worker.tolerance)
    crowd = Crowd(worker, questions, folder) if load_of(settings) else None
    methods = {method.arm: method for method in worker.sitting.methods}
    scores.settle(worker.events.send)
    steps, profile = worker.sitting.steps, worker.sitting.profile
    stretches = [(arm, list(block)) for arm, block in itertools.groupby(steps, lambda step: step.arms[0])]
    timed = {arm for arm, _ in stretches}
    stretches += [(arm, []) for arm in methods if arm not in timed and any(arm in step.arms for step in profile)]
    if not stretches:
        return
    if stretches[-1][0] != BASELINE.arm:
        stretches.append((BASELINE.arm, []))
    looked = sum(len(step.arms) for step in profile)
    worker.events.send(Event("stage", total=len(steps) + looked, text="asking block by block"))
    last = {arm: place for place, (arm, _) in enumerate(stretches)}
    for place, (arm, block) in enumerate(stretches):
        warming = [*questions.warmup, *questions.shapes]
        _warm(worker, methods[arm], warming, place)
        if place == 0 and steps:
            _watch(worker, questions, START)
        if crowd and block:
            crowd.warm(methods[arm], warming)
            crowd.ask(methods[arm], block, place)
        for step in () if crowd else block:
            worker.answer(methods[arm], questions.asked[Turn(step.prompt_id, step.turn)], "timed", step.repeat)
        if place == last[arm]:
            _look(worker, questions, methods[arm], [step for step in profile if arm in step.arms])
        if place == len(stretches) - 1 and steps:
            _watch(worker, questions, END)
        if arm == BASELINE.arm:
            scores.settle(worker.events.send)


def _warm(worker: Worker, method: Method, asked: Sequence[Question], place: int) -> None:
    """A server that has just started, in every shape that will be timed."""
    for index, question in enumerate(asked):
        worker.events.send(Event("stage", text=f"warming up {method.arm}, prompt {index + 1} of {len(asked)}"))
        worker.answer(method, question, "warmup", repeat=place)


def _look(worker: Worker, questions: Questions, method: Method, steps: Sequence[Step]) -> None:
    """An arm's requests whose rounds are looked into, once its timed ones are done."""
    if steps:
        worker.events.send(Event("stage", text=f"looking into rounds of {method.arm}"))
    for step in steps:
        worker.answer(method, questions.asked[Turn(step.prompt_id, step.turn)], "profile", step.repeat, profile=True)


def _watch(worker: Worker, questions: Questions, place: int) -> None:
    worker.events.send(Event("stage", text="watching for drift"))
    for prompt_id in worker.sitting.sentinel:
        worker.answer(BASELINE, questions.asked[Turn(prompt_id)], "sentinel", repeat=place)


class Scores:
    """Scores what a cell's sittings have answered. The same output of the same prompt is scored once, and none where
    the engine's scores say nothing of it."""

    def __init__(self, engine: Engine, sittings: Path, sampling: Sampling, tolerance: float) -> None:
        self._engine, self._sittings, self._sampling, self._tolerance = engine, sittings, sampling, tolerance
        self._judges = engine.judges(engine.spec, sampling)
        self._known: dict[tuple[tuple[int, ...], tuple[int, ...]], Score] = {}

    def settle(self, send: Callable[[Event], None]) -> None:
        """Give every answered request of the cell its line in requests.jsonl."""
        for answered in sorted(self._sittings.glob(f"*/{ANSWERED}")):
            lines = read_lines(answered)
            baseline = {_place(line): line["output_ids"] for line in lines if line["arm"] == BASELINE.arm}
            with answered.with_name(REQUESTS).open("a+b") as file:
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)  # a line that a kill tore
                done = {key_of(line) for line in read_lines(answered.with_name(REQUESTS))}
                owed = [line for line in lines if key_of(line) not in done]
                self._check([line for line in owed if "unchecked" in line], answered.with_name(ROUNDS), send)
                for index, line in enumerate(owed):
                    send(Event("stage", text=f"scoring, request {index + 1} of {len(owed)}"))
                    reference = baseline.get(_place(line))
                    match = None if reference is None else reference == line["output_ids"]
                    score = self._score(line) if self._judges else None
                    append_line(file, {**line, **vars(Checked.from_score(score, self._tolerance, match))})

    def _check(self, lines: Sequence[dict[str, Any]], dump: Path, send: Callable[[Event], None]) -> None:
        """Have the oracle judge the rounds that requests left unchecked: into their lines, and into the dump if any."""
        gaps: dict[tuple[Any, ...], float] = {}
        for index, line in enumerate(lines):
            send(Event("stage", text=f"checking rounds of {line['arm']}, request {index + 1} of {len(lines)}"))
            text = (*line["prompt_ids"], *line["output_ids"])
            checks = {
                place: self._engine.oracle(text, Unchecked(*nodes), self._tolerance)
                for place, *nodes in line.pop("unchecked")
            }
            found = Looked.into([Inspected(0, check) for check in checks.values()])
            line.update(vars(replace(found, shadow=line["shadow"])))
            gaps |= {(*key_of(line), place): min(check.max_gap, INFINITE_GAP) for place, check in checks.items()}
        if gaps and dump.exists():
            fill_gaps(dump, gaps)

    def _score(self, line: dict[str, Any]) -> Score:
        prompt, output = tuple(line["prompt_ids"]), tuple(line["output_ids"])
        if (prompt, output) not in self._known:
            request = Request(line["prompt_id"], prompt, len(output), turn=line["turn"], sampling=self._sampling)
            self._known[prompt, output] = self._engine.score(request, output, self._tolerance)
        return self._known[prompt, output]


def _place(line: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(line[key] for key in KEYS if key != "arm")
