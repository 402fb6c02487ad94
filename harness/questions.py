"""What a cell asks, rendered once: the workload's prompts as requests, turn by turn, and those that only warm the
engine. Every arm gets the same ids.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import workloads
from harness.cells import CellSettings
from harness.results import Turn
from methods.base import Request
from methods.locate import stop_ids
from workloads import Message, Prompt, Workload, contexts, rendering, splits

WARMUP_TOKENS = 32
SHAPE_TOKENS = 8


@lru_cache(maxsize=4)
def workload_of(settings: CellSettings) -> Workload:
    """The part of the workload that a cell asks, under its system prompt; contexts are added when rendering, and the
    engine is warmed without either."""
    whole = workloads.load(settings.workload, settings.workload_path, settings.skip_bad, settings.own_suite)
    part = splits.part(whole, settings.split, settings.limit)
    if settings.system is None:
        return part
    prompts = tuple(rendering.with_system(prompt, settings.system) for prompt in part.prompts)
    return replace(part, prompts=prompts)


def turns(settings: CellSettings) -> tuple[Turn, ...]:
    """Every turn of every prompt that a cell asks."""
    prompts = workload_of(settings).prompts
    return tuple(Turn(prompt.id, turn) for prompt in prompts for turn in range(1 + len(prompt.follow_ups)))


def source_facts(settings: CellSettings) -> dict[str, Any]:
    """Where the workload's texts came from, and the rows that were left out."""
    workload = workload_of(settings)
    return {"origin": asdict(workload.origin) if workload.origin else None, "left_out": list(workload.skipped)}


def prompts_sha256(settings: CellSettings) -> str:
    """The hash of what the prompts are made of; how a target's template renders them is not in it."""
    prompts = workload_of(settings).sha256
    if settings.context is None:
        return prompts
    return hashlib.sha256(f"{prompts} {contexts.corpus(settings.context_path).sha256}".encode()).hexdigest()


@dataclass(frozen=True)
class Question:
    """A prompt's turn, rendered: the same ids for every arm. A later turn's prompt is the conversation so far."""

    prompt: Prompt
    request: Request

    @property
    def tokens(self) -> int:
        """Tokens of the prompt with the longest answer to it."""
        return len(self.request.prompt_ids) + self.request.max_new_tokens


@dataclass(frozen=True)
class Questions:
    """Every question of the cell. Outside the set: `warmup`, real prompts, and `shapes`, made-up ones of the lengths
    that the set has. `owed` are those that AR has to answer before the next turns can be asked; while there are any,
    `asked` lacks these turns."""

    asked: dict[Turn, Question]
    warmup: tuple[Question, ...]
    shapes: tuple[Question, ...]
    owed: tuple[Question, ...]

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt with its answer."""
        return max(question.tokens for question in (*self.asked.values(), *self.warmup, *self.shapes))

    @property
    def sha256(self) -> str:
        """The hash of the rendered ids of the set, in order."""
        digest = hashlib.sha256()
        for (prompt_id, turn), question in self.asked.items():
            name = f"{prompt_id}:{turn}" if turn else prompt_id
            digest.update(f"{name}:{','.join(map(str, question.request.prompt_ids))}\n".encode())
        return digest.hexdigest()


class Renderer:
    """Renders a cell's workload: first turns and warm-up prompts at once, later turns as their histories are there."""

    def __init__(self, settings: CellSettings, tokenizer: Any, model_folder: Path) -> None:
        self._settings, self._tokenizer = settings, tokenizer
        stops = {*stop_ids(model_folder), tokenizer.eos_token_id} - {None}
        self._stop_ids = tuple(sorted(stops))
        self._corpus = None if settings.context is None else contexts.corpus(settings.context_path)
        workload = workload_of(settings)
        short = min(WARMUP_TOKENS, settings.max_new_tokens)
        self._first = [self._question(self._in_context(prompt), settings.max_new_tokens) for prompt in workload.prompts]
        self._warmup = tuple(self._question(prompt, short) for prompt in workload.warmup)

    def questions(self, answer_to: Callable[[Question], str | None]) -> Questions:
        """What can be asked, given AR's stored answers; None where there is none yet."""
        asked: dict[Turn, Question] = {}
        owed = []
        for first in self._first:
            question = first
            asked[Turn(question.prompt.id)] = question
            while question.prompt.follow_ups:
                answer = answer_to(question)
                if answer is None:
                    owed.append(question)
                    break
                prompt, turn = rendering.next_turn(question.prompt, answer), question.request.turn + 1
                question = self._question(prompt, self._settings.max_new_tokens, turn)
                asked[Turn(prompt.id, turn)] = question
        shapes = _shapes(asked.values(), self._warmup, self._settings.max_new_tokens)
        return Questions(asked, self._warmup, tuple(shapes), tuple(owed))

    def _in_context(self, prompt: Prompt) -> Prompt:
        if self._corpus is None or self._settings.context is None:
            return prompt
        return contexts.fill(prompt, self._corpus, self._settings.context, lambda p: len(self._ids(p)))

    def _question(self, prompt: Prompt, max_new_tokens: int, turn: int = 0) -> Question:
        sampling = self._settings.sampling
        return Question(
            prompt, Request(prompt.id, self._ids(prompt), max_new_tokens, self._stop_ids, turn, sampling=sampling)
        )

    def _ids(self, prompt: Prompt) -> tuple[int, ...]:
        return rendering.render(self._tokenizer, prompt, self._settings.enable_thinking)


def _shapes(asked: Iterable[Question], warmup: tuple[Question, ...], max_new_tokens: int) -> Iterable[Question]:
    """For each class of prompt lengths (up to the same power of two) a warm-up text repeated to the longest of
    them. The longest of all is answered to the limit, past any stop, so that no timed request is longer."""
    if not warmup:
        return
    lengths: dict[int, int] = {}
    for one in asked:
        length = len(one.request.prompt_ids)
        lengths[length.bit_length()] = max(length, lengths.get(length.bit_length(), 0))
    source = warmup[0]
    longest = max(lengths.values())
    for length in sorted(lengths.values()):
        ids = (source.request.prompt_ids * (length // len(source.request.prompt_ids) + 1))[:length]
        prompt = Prompt(
            id=f"warmup-length-{length}",
            category="warmup",
            messages=(Message("user", f"{source.prompt.text} [repeated to {length} tokens]"),),
        )
        limit = max_new_tokens if length == longest else min(SHAPE_TOKENS, max_new_tokens)
        request = replace(source.request, prompt_id=prompt.id, prompt_ids=ids, max_new_tokens=limit, stop_ids=())
        yield Question(prompt, request)
