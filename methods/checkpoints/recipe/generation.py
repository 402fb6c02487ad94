"""Answers many prompts at once with the target: the drafter's training text, and the answers to be evaluated."""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from methods.checkpoints.recipe.batches import cut, pad
from methods.checkpoints.recipe.caches import cache
from methods.checkpoints.recipe.conversation import render
from methods.checkpoints.recipe.corpus import Plan, conversation, held_out_ngrams, overlaps
from methods.checkpoints.recipe.model import Target
from methods.checkpoints.recipe.parts import rope
from methods.checkpoints.recipe.tokenizer import END_IDS
from methods.checkpoints.recipe.training import Sample

SELF_SHARE = {"chat": 0.28, "code": 0.26, "math": 0.18, "tool_calls": 0.16, "long_context": 0.12}


def _prompts(job: tuple[Plan, int, int]) -> list[np.ndarray]:
    """Rendered and tokenised prompts of the training world, free of held-out ones (in a worker process)."""
    from tokenizers import Tokenizer

    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    plan, start, count = job
    tokenizer = Tokenizer.from_file(str(plan.tokenizer / "tokenizer.json"))
    held = held_out_ngrams(plan.held_out)
    texts = []
    for i in range(start, start + count):
        rng = random.Random(f"self:{plan.seed}:{i}")
        category = rng.choices(list(SELF_SHARE), list(SELF_SHARE.values()))[0]
        talk = conversation(category, f"{plan.seed}:self:{i}")
        lead = 1 if talk.messages[0]["role"] == "system" else 0
        turns = range(lead + 1, len(talk.messages), 2)
        talk.messages = talk.messages[: rng.choice(turns) + 1]
        if not overlaps(talk, held):
            texts.append(render(talk.prompt, generate=True))
    encoded = tokenizer.encode_batch(texts, add_special_tokens=False)
    return [np.array(e.ids, np.uint16) for e in encoded if len(e.ids) < 3800]


def self_prompts(plan: Plan, count: int, workers: int, folder: Path) -> None:
    """Writes `count` prompts of the training world for the target to answer."""
    size = 500
    jobs = [(plan, start, min(size, count - start)) for start in range(0, count, size)]
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        prompts = [p for part in pool.imap(_prompts, jobs) for p in part]
    temporary = folder / "prompts.part.npz"
    np.savez(temporary, ids=np.concatenate(prompts), ends=np.cumsum([len(p) for p in prompts]))
    temporary.rename(folder / "prompts.npz")


def load_prompts(folder: Path) -> list[np.ndarray]:
    with np.load(folder / "prompts.npz") as data:
        ids, ends = data["ids"], data["ends"]
    return np.split(ids, ends[:-1])


class Batch:
    """One batch of prompts with a cache a layer, decoded token by token."""

    def __init__(self, target: Target, prompts: list[np.ndarray], room: int, dtype: torch.dtype) -> None:
        rows = pad([(p, np.ones(len(p))) for p in prompts], -(-max(map(len, prompts)) // 32) * 32)
        device = target.embed_tokens.weight.device
        self.target, self.dtype = target, dtype
        self.ids, self.lengths = rows.ids.to(device), rows.lengths.to(device)
        self.caches = [cache(layer.mixer, room) for layer in target.stack]
        self.tables = rope(target.shape, device)

    def keep(self, rows: Tensor) -> None:
        """Goes on with these rows alone."""
        for one in self.caches:
            one.keep(rows)

    def prefill(self) -> Tensor:
        """Logits behind each prompt [B, V]; fills the caches."""
        x = self.target.embed(self.ids, self.dtype)
        cos, sin = (t[: x.shape[1]] for t in self.tables)
        for layer, one in zip(self.target.stack, self.caches, strict=True):
            x = layer.finish(x, one.prefill(layer.input_layernorm(x), cos, sin, self.lengths))
        last = self.target.norm(x[torch.arange(len(x), device=x.device), self.lengths - 1])
        return self.target.logits(last)

    def step(self, tokens: Tensor, places: Tensor, width: int) -> Tensor:
        """Logits [B, V] behind one more token a row, at position `places` [B]; `width` bounds the places in use."""
        x = self.target.embed(tokens[:, None], self.dtype)
        cos, sin = (t[places][:, None, None] for t in self.tables)
        for layer, one in zip(self.target.stack, self.caches, strict=True):
            x = layer.finish(x, one.step(layer.input_layernorm(x), cos, sin, places, width))
        return self.target.logits(self.target.norm(x[:, 0]))


@torch.inference_mode()
def _answer_batch(batch: Batch, limit: int, heat: Tensor | None, generator: torch.Generator) -> Tensor:
    """Answers [B, limit], 0 behind the end; rows leave the batch as they end, the last few are cut short."""
    device = batch.ids.device
    ends = torch.tensor(END_IDS, device=device)
    count = len(batch.ids)
    out = torch.zeros((count, limit), dtype=torch.long, device=device)
    alive = torch.arange(count, device=device)
    done = torch.zeros(count, dtype=torch.bool, device=device)
    prompt_width = batch.ids.shape[1]
    logits, places = batch.prefill(), batch.lengths.clone()
    for t in range(limit):
        if heat is not None:
            logits = (
                logits - heat[alive] * torch.empty_like(logits).exponential_(generator=generator).clamp(min=1e-20).log()
            )
        token = logits.argmax(-1)
        out[alive, t] = token.masked_fill(done, 0)
        done |= torch.isin(token, ends)
        if t + 1 == limit:
            break
        if t % 16 == 15:
            left = (~done).nonzero()[:, 0]
            if len(left) == 0:
                break
            if len(left) < 0.75 * len(alive):
                batch.keep(left)
                alive, token, places, done = alive[left], token[left], places[left], done[left]
        width = min(prompt_width + limit, -(-(prompt_width + t + 1) // 64) * 64)
        logits = batch.step(token, places, width)
        places = places + 1
    return out


def answer(
    target: Target,
    prompts: list[np.ndarray],
    limit: int,
    dtype: torch.dtype,
    *,
    heats: np.ndarray | None = None,
    seed: int = 0,
    tokens: int = 3_000_000,
    seconds: float = 1e9,
) -> list[np.ndarray]:
    """The target's answers, end token included, of at most `limit` tokens; greedy where the temperature is 0.

    Batches are answered in random order until `seconds` have passed; prompts not reached have empty answers.
    """
    device = target.embed_tokens.weight.device
    generator = torch.Generator(device).manual_seed(seed)
    answers: list[np.ndarray] = [np.zeros(0, np.int64)] * len(prompts)
    groups = list(cut([len(p) + limit for p in prompts], tokens))
    random.Random(seed).shuffle(groups)
    start = time.monotonic()
    for group in groups:
        if time.monotonic() - start > seconds:
            break
        heat = None if heats is None else torch.from_numpy(heats[group].astype(np.float32)).to(device)[:, None]
        batch = Batch(target, [prompts[i] for i in group], limit, dtype)
        for index, row in zip(group, _answer_batch(batch, limit, heat, generator).cpu().numpy(), strict=True):
            stop = np.flatnonzero(np.isin(row, END_IDS))
            answers[index] = row[: stop[0] + 1] if len(stop) else row
    return answers


def self_generate(
    target: Target, prompts: list[np.ndarray], dtype: torch.dtype, seed: int, limit: int = 320, seconds: float = 1e9
) -> list[Sample]:
    """The target's own text over training prompts: about 4 of 5 greedy, the others at temperature 1."""
    heats = (np.random.default_rng(seed).random(len(prompts)) < 0.2).astype(np.float32)
    replies = answer(target, prompts, limit, dtype, heats=heats, seed=seed, seconds=seconds)
    pairs = zip(prompts, replies, strict=True)
    return [(np.concatenate([p, r.astype(np.uint16)]), len(p)) for p, r in pairs if len(r) >= 4]
