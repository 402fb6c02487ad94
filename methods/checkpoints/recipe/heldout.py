"""Writes the built-in workloads' prompts: original, held out from training, at least 24 a type, and four warm-ups.

Prompts come from the held-out world; a type's prompts open in different ways, and the reference answer of each is
longer than 64 tokens, so that a short run already sees many rounds.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from methods.checkpoints.recipe import documents
from methods.checkpoints.recipe.conversation import CATEGORIES, Conversation, render
from methods.checkpoints.recipe.corpus import conversation
from methods.checkpoints.recipe.words import World

PROMPTS = 28
LONG_ENTRIES = (12, 28)
"""Entries of a long document, about 1000 to 3000 tokens."""


def _long(seed: str) -> Conversation:
    w = World(random.Random(f"long_context:{seed}"), True)
    return documents.make(w, w.number(*LONG_ENTRIES))


def _candidates(category: str, seed: int) -> Any:
    index = 0
    while True:
        name = f"{seed}:built-in:{index}"
        yield _long(name) if category == "long_context" else conversation(category, name, held=True)
        index += 1


def choose(category: str, seed: int, count: int, tokenizer: Any) -> list[Conversation]:
    """`count` prompts of a category whose openings differ and whose reference answers are long enough."""
    floor = 70
    chosen: list[Conversation] = []
    openings: dict[str, int] = {}
    for talk in _candidates(category, seed):
        length = len(tokenizer.encode(talk.reply).ids)
        size = len(tokenizer.encode(render(talk.prompt)).ids)
        if length < floor or (category == "long_context" and not 1000 <= size <= 3000):
            continue
        opening = " ".join(talk.messages[-2]["content"].split()[:2])
        if openings.get(opening, 0) >= 4 and category != "long_context":
            continue
        openings[opening] = openings.get(opening, 0) + 1
        chosen.append(talk)
        if len(chosen) == count:
            return chosen
    raise AssertionError("candidates never end")


def row(talk: Conversation, name: str) -> dict[str, Any]:
    """One line of a built-in workload."""
    line: dict[str, Any] = {"id": name, "category": talk.category, "messages": talk.prompt.messages}
    if talk.tools:
        line["tools"] = talk.tools
    return {**line, "answer": talk.answer}


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows), encoding="utf-8")


def write(folder: Path, tokenizer: Any, seed: int = 7) -> None:
    """All workloads of the folder, one JSON Lines file a type, and warmup.jsonl from other seeds."""
    folder.mkdir(parents=True, exist_ok=True)
    for category in CATEGORIES:
        talks = choose(category, seed, PROMPTS, tokenizer)
        _write(folder / f"{category}.jsonl", [row(t, f"{category}-{i:03}") for i, t in enumerate(talks, 1)])
    warm = [choose(c, seed + 1000, 1, tokenizer)[0] for c in ("chat", "code", "math", "tool_calls")]
    _write(folder / "warmup.jsonl", [row(t, f"warmup-{i:03}") for i, t in enumerate(warm, 1)])
