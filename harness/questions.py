"""What a cell asks, rendered once: the workload's prompts as requests, and those that only warm the engine."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import workloads
from harness.cells import CellSettings
from methods.base import Request
from methods.locate import stop_ids
from workloads import Message, Prompt

WARMUP_TOKENS = 32
SHAPE_TOKENS = 8


@dataclass(frozen=True)
class Question:
    """A prompt, rendered: the same ids for every arm."""

    prompt: Prompt
    request: Request


@dataclass(frozen=True)
class Questions:
    """Every question of the cell. Outside the set: `warmup`, real prompts, and `shapes`, made-up ones of the lengths
    that the set has."""

    asked: dict[str, Question]
    warmup: tuple[Question, ...]
    shapes: tuple[Question, ...]

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt with its answer."""
        every = [question.request for question in (*self.asked.values(), *self.warmup, *self.shapes)]
        return max(len(request.prompt_ids) + request.max_new_tokens for request in every)

    @property
    def sha256(self) -> str:
        """The hash of the rendered ids of the set, in order."""
        digest = hashlib.sha256()
        for name, question in self.asked.items():
            digest.update(f"{name}:{','.join(map(str, question.request.prompt_ids))}\n".encode())
        return digest.hexdigest()


def render(settings: CellSettings, tokenizer: Any, model_folder: Path) -> Questions:
    """Every prompt of the workload as a request."""
    workload = workloads.load(settings.workload, settings.workload_path)
    stops = stop_ids(model_folder)
    if tokenizer.eos_token_id is not None:
        stops = tuple(sorted({*stops, tokenizer.eos_token_id}))

    def question(prompt: Prompt, max_new_tokens: int) -> Question:
        ids = workloads.render(tokenizer, prompt)
        return Question(prompt, Request(prompt.id, ids, max_new_tokens, stops, sampling=settings.sampling))

    asked = {prompt.id: question(prompt, settings.max_new_tokens) for prompt in workload.prompts}
    short = min(WARMUP_TOKENS, settings.max_new_tokens)
    warmup = tuple(question(prompt, short) for prompt in workload.warmup)
    return Questions(asked, warmup, tuple(_shapes(asked.values(), warmup, settings.max_new_tokens)))


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
