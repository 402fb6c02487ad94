"""The process that works one sitting of a cell: `python -m harness.cell SITTING.json`, started by the parent.

It opens the engine, warms every shape, and then answers prompt after prompt with all arms in turn; before, halfway
and after, AR answers the same few prompts to show whether the machine drifted; at the end the stages are timed. A
request is timed, scored outside the timing, and on disk before the next one starts.
"""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
import threading
import traceback
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from harness import memory
from harness.blocks import ask_in_blocks
from harness.cells import BASELINE
from harness.crowd import no_collection
from harness.environment import environment, now_utc, tokenizer_facts
from harness.gpu import GpuWatch
from harness.histories import Histories, complete
from harness.questions import Question, Questions, Renderer, source_facts
from harness.records import ANSWERED, REQUESTS, Asked, Checked, Phase, Record, RecordWriter, read_json, write_json
from harness.replays import replay_all
from harness.results import Step, Turn
from harness.sitting import Event, EventSender, Sitting
from harness.targets import load_class
from methods.base import Engine, Generation, Inspect, Method, Refusal, Request, Score
from methods.locate import text_folder
from workloads import answers

REFUSED = 2
SENTINEL_PLACES = ("start", "middle", "end")


@dataclass
class Worker:
    """Answers requests and records them, with what it needs to remember between them."""

    sitting: Sitting
    engine: Engine
    tokenizer: Any
    writer: RecordWriter
    events: EventSender
    watch: GpuWatch
    tolerance: float = 0.0
    order_index: int = 0
    baseline_outputs: dict[tuple[Phase, str, int, int], tuple[int, ...]] = field(default_factory=dict)
    scores: dict[tuple[str, int, tuple[int, ...]], Score] = field(default_factory=dict)

    def answer(self, method: Method, question: Question, phase: Phase, repeat: int, *, profile: bool = False) -> None:
        """One request, from the question to the line on disk."""
        self.events.send(Event("started", method.arm))
        asked, started = self.asked(method, question, phase, repeat), now_utc()
        inspect = replace(self.sitting.settings.inspect, tolerance=self.tolerance) if phase == "profile" else None
        generation, energy_j = self._generate(method, question.request, profile, inspect)
        self.record(asked, question, generation, started, energy_j)

    def record(
        self, asked: Asked, question: Question, generation: Generation, started_utc: str, energy_j: float | None = None
    ) -> None:
        """An answer, from the engine to the line on disk."""
        phase, place = asked.phase, (asked.phase, *_turn(question), asked.repeat)
        if phase != "warmup":
            self.watch.sample()
            if asked.arm == BASELINE.arm:
                self.baseline_outputs[place] = generation.output_ids
        text = self.tokenizer.decode(list(generation.output_ids), skip_special_tokens=True)
        record = Record(
            asked=asked,
            generation=generation,
            checked=self._check(question, generation, phase, asked.repeat),
            text=text,
            started_utc=started_utc,
            correct=answers.correct(question.prompt, text),
            energy_j=energy_j,
        )
        self.writer.append(record)
        self.order_index += 1
        self.events.send(_done(asked.arm, generation, phase))

    def _generate(
        self, method: Method, request: Request, profile: bool, inspect: Inspect | None
    ) -> tuple[Generation, float | None]:
        """The engine's answer, and the joules that the cell's GPUs used for it where they count them."""
        before = self.watch.energy_j()
        with no_collection():
            generation = self.engine.generate(method, request, profile=profile, inspect=inspect)
        after = self.watch.energy_j()
        return generation, None if before is None or after is None else after - before

    def asked(self, method: Method, question: Question, phase: Phase, repeat: int) -> Asked:
        """The next record's identity."""
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

    def _check(self, question: Question, generation: Generation, phase: Phase, repeat: int) -> Checked | None:
        """Contract 1: every output through the plain target, the same output of the same prompt only once. None where
        the plain target has a server of its own, which checks later."""
        if self.engine.blocks:
            return None
        output = generation.output_ids
        key = *_turn(question), output
        if key not in self.scores:
            self.scores[key] = self.engine.score(question.request, output, self.tolerance)
        reference = self.baseline_outputs.get((phase, *_turn(question), repeat))
        return Checked.from_score(self.scores[key], self.tolerance, None if reference is None else reference == output)


def _turn(question: Question) -> tuple[str, int]:
    return question.prompt.id, question.request.turn


def work(sitting: Sitting, folder: Path, events: EventSender) -> None:
    """The whole sitting. `folder` is its place on disk, where records and environment go."""
    facts = environment(sitting.argv)
    settings = sitting.settings
    events.send(Event("stage", text="rendering the prompts"))
    model_folder = text_folder(settings.target)
    tokenizer = load_tokenizer(model_folder)
    renderer = Renderer(settings, tokenizer, model_folder)
    engine_class = load_class(settings.engine_target, Engine, "engine._target_")  # type: ignore[type-abstract]
    watch = GpuWatch.open(settings.device, settings.tp)
    free_bytes = memory.free_per_rank(settings.engine_spec(1), watch)
    histories = Histories(folder.parents[3] / "histories", settings, sitting.fingerprints)
    questions = complete(histories, renderer, engine_class, settings, tokenizer, free_bytes, events)
    if questions is None:
        return
    refuse_other_prompts(folder, questions.sha256)
    spec = replace(settings.engine_spec(questions.longest), logs=str(folder.absolute()))
    engine_class.check(spec, sitting.methods)
    if not memory.fits(engine_class, spec, sitting.methods, free_bytes, events):
        return
    facts |= {"settings": asdict(settings), "arms": sitting.method_settings, "seed": settings.seed}
    facts |= {"fingerprints": sitting.fingerprints, **tokenizer_facts(model_folder, tokenizer.chat_template)}
    facts |= {"rendered_prompts_sha256": questions.sha256, "gpu_facts": watch.facts()}
    facts |= {"histories": histories.facts(questions), "workload": source_facts(settings)}
    events.send(Event("stage", text="opening the engine"))
    with (
        engine_class(spec) as engine,
        RecordWriter(folder / (ANSWERED if engine_class.blocks else REQUESTS)) as writer,
    ):
        engine.open(sitting.methods)
        tolerance = engine.gap_tolerance([question.request for question in questions.warmup])
        facts |= {"engine": engine.describe(), "gap_tolerance": tolerance}
        write_json(folder / "environment.json", facts)
        worker = Worker(sitting, engine, tokenizer, writer, events, watch, tolerance)
        if engine_class.blocks:
            ask_in_blocks(worker, questions, folder)
            facts["engine"] = engine.describe()  # of all the servers by now
        else:
            warm(worker, questions)
            ask_timed(worker, questions)
            ask_profiled(worker, questions)
        replay_all(sitting, folder, engine, questions, events)
    write_json(folder / "environment.json", facts | {"gpu_samples": watch.summary(), "finished_utc": now_utc()})


def refuse_other_prompts(folder: Path, sha256: str) -> None:
    """Every sitting of a cell asks the same ids, whatever happened to the template or the histories in between."""
    for file in folder.parent.glob("*/environment.json"):
        if read_json(file).get("rendered_prompts_sha256", sha256) != sha256:
            raise Refusal(
                f"the prompts, rendered, are not those of sitting {file.parent.name}: their histories or what renders "
                "them changed; another results_dir or overwrite=true is accepted."
            )


def warm(worker: Worker, questions: Questions) -> None:
    """Every arm on prompts outside the set, in every shape that will be timed, so that no timed request pays for
    what happens once: each verify width, each class of prompt lengths, the longest answer."""
    asked = (*questions.warmup, *questions.shapes)
    for index, question in enumerate(asked):
        for method in worker.sitting.methods:
            worker.events.send(Event("stage", text=f"warming up, prompt {index + 1} of {len(asked)}"))
            worker.answer(method, question, "warmup", repeat=0)
    gc.collect()
    gc.freeze()


def ask_timed(worker: Worker, questions: Questions) -> None:
    """The timed requests in the order the parent laid down, with AR's sentinel before, halfway and after them."""
    steps = worker.sitting.steps
    if not steps:
        return
    middle = (len(steps) + 1) // 2
    for place, stretch in enumerate((steps[:middle], steps[middle:], ())):
        worker.events.send(Event("stage", text=f"watching for drift, {SENTINEL_PLACES[place]}"))
        for prompt_id in worker.sitting.sentinel:
            worker.answer(BASELINE, questions.asked[Turn(prompt_id)], "sentinel", repeat=place)
        _ask(worker, questions, stretch, "timed")


def ask_profiled(worker: Worker, questions: Questions) -> None:
    """The pass whose stages are timed, which costs synchronisation: none of its times is a headline. It is warmed
    here, so that an arm which cannot be profiled fails once its timed requests are done."""
    steps = worker.sitting.profile
    text = "looking into rounds" if worker.sitting.settings.inspect.wanted else "timing the stages"
    worker.events.send(Event("stage", total=sum(len(step.arms) for step in steps), text=text))
    asked = {arm for step in steps for arm in step.arms}
    for method in worker.sitting.methods:
        if method.arm in asked:
            for question in questions.warmup[:1]:
                worker.answer(method, question, "warmup", repeat=1, profile=True)
    _ask(worker, questions, steps, "profile")


def _ask(worker: Worker, questions: Questions, steps: tuple[Step, ...], phase: Phase) -> None:
    methods = {method.arm: method for method in worker.sitting.methods}
    for step in steps:
        question = questions.asked[Turn(step.prompt_id, step.turn)]
        for arm in step.arms:
            worker.answer(methods[arm], question, phase, step.repeat, profile=phase == "profile")


def load_tokenizer(model_folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(model_folder))


def _done(arm: str, generation: Generation, phase: Phase) -> Event:
    uncut = [r for r in generation.rounds if not r.cut]
    return Event(
        "done",
        arm,
        timed=phase == "timed",
        counted=phase in ("timed", "profile"),
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
