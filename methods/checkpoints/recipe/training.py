"""Trains the target on the corpus and the drafter on the target's own text."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from methods.checkpoints.recipe.batches import Pools, Rows, ahead, pad
from methods.checkpoints.recipe.captured import Captured
from methods.checkpoints.recipe.corpus import Plan, read_shard
from methods.checkpoints.recipe.model import Drafter, Target
from methods.checkpoints.recipe.optimiser import Optimiser
from methods.checkpoints.recipe.parts import BLOCK, rope
from methods.checkpoints.recipe.shapes import Pair, Shape
from methods.checkpoints.recipe.tokenizer import MASK_ID

T = TypeVar("T")
GAMMA = 7.0
"""Decay of the drafter's loss over the block: slot k counts exp(−(k − 1)/γ)."""


@dataclass(frozen=True)
class Budget:
    """How long to train: a number of steps, or seconds if it is 0; and what a step is made of."""

    steps: int = 0
    seconds: float = 0.0
    rate: float = 4e-3
    batch: int = 32768
    batches: int = 3

    def done(self, step: int, start: float) -> float:
        """The share of the training that lies behind this step."""
        return step / self.steps if self.steps else (time.monotonic() - start) / self.seconds


@dataclass(frozen=True)
class Machine:
    """Where the recipe runs, and the dtype of activations there."""

    device: str
    dtype: torch.dtype

    def rows(self, rows: Rows) -> Rows:
        parts = (rows.ids, rows.weight, rows.lengths)
        if self.device == "cuda":
            return Rows(*(t.pin_memory().to(self.device, non_blocking=True) for t in parts))
        return Rows(*(t.to(self.device) for t in parts))


def _grouped(items: Iterator[T], count: int) -> Iterator[list[T]]:
    group: list[T] = []
    for item in items:
        group.append(item)
        if len(group) == count:
            yield group
            group = []


def _text(plan: Plan, folder: Path, tokens: int, prompt_weight: float) -> Iterator[Rows]:
    """Endless batches over the shards, in an order fixed by the seed."""
    pools: Pools[tuple[np.ndarray, np.ndarray]] = Pools(tokens)
    lap = 0
    while True:
        for shard in range(plan.shards):
            sequences = read_shard(folder, shard)
            for index in np.random.default_rng((plan.seed, lap, shard)).permutation(len(sequences)):
                ids, learn = sequences[index]
                full = pools.add(len(ids), (ids, np.where(learn > 0, 1.0, prompt_weight)))
                if full:
                    yield pad(full[1], full[0])
        lap += 1


def _next_token_loss(hidden: Tensor, table: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
    logits = F.linear(hidden, table.to(hidden.dtype)).float()
    return (F.cross_entropy(logits, labels, reduction="none") * weight).sum()


def train_target(
    shape: Shape, plan: Plan, folder: Path, machine: Machine, budget: Budget, prompt_weight: float = 0.1
) -> Target:
    """The target, trained on every token with an assistant's words weighted ten times a prompt's."""
    torch.manual_seed(plan.seed)
    model = Target(shape).to(machine.device)
    tables = rope(model.shape, machine.device)
    optimiser = Optimiser(model, budget.rate)

    def work(ids: Tensor, weight: Tensor) -> Tensor:
        hidden, _ = model(ids, tables, machine.dtype)
        labels, shares = ids[:, 1:].flatten(), weight[:, 1:].flatten()
        loss = _next_token_loss(hidden[:, :-1].flatten(0, 1), model.embed_tokens.weight, labels, shares)
        loss.backward()
        return loss.detach()

    captured = Captured(model, work)
    start, tokens, losses, step = time.monotonic(), 0, [], 0
    steps = ahead(lambda: _grouped(_text(plan, folder, budget.batch, prompt_weight), budget.batches))
    for step, parts in enumerate(steps):
        done = budget.done(step, start)
        if done >= 1:
            break
        total = sum(float(part.weight[:, 1:].sum()) for part in parts)
        for part in parts:
            tokens += int(part.lengths.sum())
            rows = machine.rows(part)
            losses.append(captured(rows.ids, rows.weight / total))
        optimiser.step(step, done)
        if step % 250 == 0:
            recent = float(torch.stack(losses).sum()) * len(parts) / len(losses)
            spent = time.monotonic() - start
            print(f"target step {step} loss {recent:.4f} tokens {tokens / 1e6:.1f}M seconds {spent:.1f}", flush=True)
            losses = []
    print(f"target: {step} steps, {tokens / 1e6:.1f}M tokens, {time.monotonic() - start:.1f} s", flush=True)
    return model


Sample = tuple[np.ndarray, int]
"""A sequence of prompt and answer ids, and the prompt's length."""


def _anchored(samples: list[Sample], budget: Budget, anchors: int, seed: int) -> Iterator[tuple[Rows, Tensor]]:
    """Endless batches of rows with the anchors of their blocks [B, A], drawn over the answers."""
    rng = np.random.default_rng(seed)
    pools: Pools[Sample] = Pools(budget.batch, anchors * BLOCK)
    while True:
        for index in rng.permutation(len(samples)):
            full = pools.add(len(samples[index][0]), samples[index])
            if full:
                width, group = full
                first = np.array([n for _, n in group])[:, None]
                last = np.array([len(ids) - 2 for ids, _ in group])[:, None]
                drawn = first + rng.random((len(group), anchors)) * np.maximum(last - first + 1, 1)
                rows = pad([(ids, np.ones(len(ids))) for ids, _ in group], width)
                yield rows, torch.from_numpy(drawn.astype(np.int64))


def block_inputs(target: Target, ids: Tensor, anchors: Tensor, dtype: torch.dtype) -> Tensor:
    """Embedded blocks [B, A, T, hidden]: each anchor's token, then masks."""
    tokens = torch.full((*anchors.shape, BLOCK), MASK_ID, device=ids.device)
    tokens[..., 0] = ids.gather(1, anchors)
    return target.embed(tokens, dtype)


def draft_labels(ids: Tensor, lengths: Tensor, anchors: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens that the slots 1..15 are to predict [B, A, 15] and their loss weights (0 behind the end)."""
    ahead_by = torch.arange(1, BLOCK, device=anchors.device)
    places = anchors[..., None] + ahead_by
    inside = places < lengths[:, None, None]
    labels = ids.gather(1, places.clamp(max=ids.shape[1] - 1).flatten(1)).view_as(places)
    return labels, torch.exp(-(ahead_by - 1) / GAMMA) * inside


def train_drafter(
    pair: Pair, target: Target, samples: list[Sample], machine: Machine, budget: Budget, seed: int, anchors: int = 32
) -> Drafter:
    """The drafter, trained with the frozen target's features on random blocks of the target's own answers."""
    torch.manual_seed(seed + 1)
    model = Drafter(pair.drafter, pair.features).to(machine.device)
    target.requires_grad_(False)
    tables, own_tables = rope(target.shape, machine.device), rope(model.shape, machine.device)
    table = target.embed_tokens.weight
    optimiser = Optimiser(model, budget.rate)

    def work(ids: Tensor, lengths: Tensor, at: Tensor, share: Tensor) -> Tensor:
        with torch.no_grad():
            _, outputs = target(ids, tables, machine.dtype)
        hidden = model(outputs, block_inputs(target, ids, at, machine.dtype), at, own_tables)
        labels, weight = draft_labels(ids, lengths, at)
        loss = _next_token_loss(hidden[:, :, 1:].flatten(0, 2), table, labels.flatten(), weight.flatten())
        loss = loss / weight.sum().clamp(min=1) * share
        loss.backward()
        return loss.detach()

    captured = Captured(model, work)
    start, losses, step, seen = time.monotonic(), [], 0, 0
    steps = ahead(lambda: _grouped(_anchored(samples, budget, anchors, seed), budget.batches))
    for step, parts in enumerate(steps):
        done = budget.done(step, start)
        if done >= 1:
            break
        share = sum(part.ids.shape[0] for part, _ in parts)
        seen += share
        for part, places in parts:
            rows, at = machine.rows(part), places.to(machine.device)
            own = torch.full((), part.ids.shape[0] / share, device=machine.device)
            losses.append(captured(rows.ids, rows.lengths, at, own))
        optimiser.step(step, done)
        if step % 250 == 0:
            recent = float(torch.stack(losses).sum()) * len(parts) / len(losses)
            print(f"drafter step {step} loss {recent:.4f} seconds {time.monotonic() - start:.1f}", flush=True)
            losses = []
    print(f"drafter: {step} steps, {seen / len(samples):.2f} passes, {time.monotonic() - start:.1f} s", flush=True)
    return model
