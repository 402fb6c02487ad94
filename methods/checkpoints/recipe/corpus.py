"""The training text: a fixed stream of shards of tokenised conversations, each shard a function of (seed, index).

Worker processes write shards while training reads the first ones; which shards exist and what is in them depends
on the seed alone. A conversation that shares 13 consecutive words with a held-out prompt is left out of its shard.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from methods.checkpoints.recipe import chat, documents, math_problems, programs, tools
from methods.checkpoints.recipe.conversation import CATEGORIES, Conversation, prompt_text, segments, word_ngrams
from methods.checkpoints.recipe.words import World

MAKERS: dict[str, Callable[[World], Conversation]] = {
    "chat": chat.make,
    "code": programs.make,
    "math": math_problems.make,
    "tool_calls": tools.make,
    "long_context": documents.make,
}
SHARE = {"chat": 0.32, "code": 0.25, "math": 0.24, "tool_calls": 0.13, "long_context": 0.07}
SHARD_CONVERSATIONS = 4000
MAX_LENGTH = 4096


def conversation(category: str, seed: str, *, held: bool = False) -> Conversation:
    """One conversation of a category; the seed decides everything."""
    return MAKERS[category](World(random.Random(f"{category}:{seed}"), held))


def training_conversation(seed: str) -> Conversation:
    """One conversation of the mix; some plain ones go on with a second topic."""
    rng = random.Random(f"mix:{seed}")
    category = rng.choices(list(SHARE), list(SHARE.values()))[0]
    talk = conversation(category, seed)
    if not talk.tools and category != "long_context" and rng.random() < 0.12:
        more = conversation(rng.choice(("chat", "code", "math")), seed + "+")
        turns = [m for m in more.messages if m["role"] != "system"]
        talk = Conversation(category, talk.messages + turns, answer=more.answer)
    return talk


def held_out_ngrams(folder: Path) -> frozenset[str]:
    """All runs of 13 words in the held-out prompts of a folder of JSON Lines."""
    found: set[str] = set()
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            talk = Conversation(row["category"], row["messages"], row.get("tools") or [])
            found.update(word_ngrams(prompt_text(talk)))
    return frozenset(found)


def overlaps(talk: Conversation, held: frozenset[str]) -> bool:
    """Whether a training conversation shares 13 consecutive words with a held-out prompt."""
    text = "\n".join([prompt_text(talk), *(m["content"] for m in talk.messages if m["role"] == "assistant")])
    return any(gram in held for gram in word_ngrams(text))


@dataclass(frozen=True)
class Plan:
    """What a corpus consists of: the seed, the number of shards and where tokenizer and held-out prompts lie."""

    seed: int
    shards: int
    tokenizer: Path
    held_out: Path


_state: dict[str, Any] = {}


def _start(plan: Plan) -> None:
    from tokenizers import Tokenizer

    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _state["plan"] = plan
    _state["tokenizer"] = Tokenizer.from_file(str(plan.tokenizer / "tokenizer.json"))
    _state["held"] = held_out_ngrams(plan.held_out)


def encode(tokenizer: Any, talks: list[Conversation]) -> Iterator[tuple[list[int], list[int]]]:
    """Token ids of whole conversations, and 1 where an assistant's words are to be learnt."""
    pieces = [list(segments(talk)) for talk in talks]
    encoded = iter(tokenizer.encode_batch([t for piece in pieces for t, _ in piece], add_special_tokens=False))
    for piece in pieces:
        ids: list[int] = []
        learn: list[int] = []
        for _, wanted in piece:
            part = next(encoded).ids
            ids += part
            learn += [int(wanted)] * len(part)
        yield ids, learn


def _shard(job: tuple[int, Path]) -> dict[str, int]:
    """Writes one shard (ids, learn, ends) and counts what it holds."""
    index, path = job
    plan: Plan = _state["plan"]
    talks, dropped = [], 0
    for i in range(SHARD_CONVERSATIONS):
        talk = training_conversation(f"{plan.seed}:{index}:{i}")
        if overlaps(talk, _state["held"]):
            dropped += 1
        else:
            talks.append(talk)
    ids: list[int] = []
    learn: list[int] = []
    ends: list[int] = []
    counts = dict.fromkeys(CATEGORIES, 0)
    long = 0
    for talk, (one, flags) in zip(talks, encode(_state["tokenizer"], talks), strict=True):
        if len(one) > MAX_LENGTH:
            long += 1
            continue
        ids += one
        learn += flags
        ends.append(len(ids))
        counts[talk.category] += len(one)
    temporary = path.with_suffix(".part.npz")
    np.savez(temporary, ids=np.array(ids, np.uint16), learn=np.array(learn, np.uint8), ends=np.array(ends, np.int64))
    temporary.rename(path)
    return {"conversations": len(ends), "dropped": dropped, "too_long": long, "tokens": len(ids), **counts}


def shard_path(folder: Path, index: int) -> Path:
    return folder / f"shard-{index:05d}.npz"


def write_shards(plan: Plan, folder: Path, workers: int) -> dict[str, int]:
    """Writes all shards of the plan with `workers` processes and adds up their counts."""
    folder.mkdir(parents=True, exist_ok=True)
    jobs = [(i, shard_path(folder, i)) for i in range(plan.shards)]
    total: dict[str, int] = {}
    with multiprocessing.get_context("spawn").Pool(workers, _start, (plan,)) as pool:
        for counts in pool.imap(_shard, jobs):
            for key, value in counts.items():
                total[key] = total.get(key, 0) + value
    (folder / "counts.json").write_text(json.dumps(total))
    return total


def read_shard(folder: Path, index: int, patience: float = 120.0) -> list[tuple[np.ndarray, np.ndarray]]:
    """The (ids, learn) pairs of one shard, waiting for the workers that are still writing it."""
    path = shard_path(folder, index)
    start = time.monotonic()
    while not path.exists():
        if time.monotonic() - start > patience:
            raise TimeoutError(f"{path} was not written within {patience:.0f} seconds")
        time.sleep(0.05)
    with np.load(path) as data:
        ids, learn, ends = data["ids"], data["learn"], data["ends"]
    starts = np.concatenate([[0], ends[:-1]])
    return [(ids[a:b], learn[a:b]) for a, b in zip(starts, ends, strict=True)]
