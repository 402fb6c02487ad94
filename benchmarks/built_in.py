"""What benchmarks ask the built-in pairs: the smoke workload's prompts."""

from __future__ import annotations

from transformers import AutoTokenizer

from methods.base import ModelSpec, Request
from methods.locate import resolve, stop_ids
from workloads import load, render


def pair(name: str) -> ModelSpec:
    """A built-in pair by its name."""
    return ModelSpec(name, f"builtin:{name}/target", f"builtin:{name}/drafter")


def requests(model: ModelSpec, tokens: int, count: int | None = None) -> list[Request]:
    """The first `count` of the smoke prompts (None: all) for a pair, answered with at most so many tokens."""
    folder = resolve(model.target)
    tokenizer, stops = AutoTokenizer.from_pretrained(folder), stop_ids(folder)
    return [Request(one.id, render(tokenizer, one), tokens, stops) for one in load("smoke").prompts[:count]]
