"""Measures the pair on held-out prompts: right answers, sound text, and acceptance lengths per type.

With a deterministic target a draft at root p depends on the text up to p alone, so acceptance is replayed on the
greedy text: the drafter speaks at every position at once, and the rounds are then walked on the CPU.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from methods.checkpoints.recipe import checks
from methods.checkpoints.recipe.batches import pad
from methods.checkpoints.recipe.conversation import CATEGORIES, Conversation, render
from methods.checkpoints.recipe.corpus import conversation
from methods.checkpoints.recipe.generation import answer
from methods.checkpoints.recipe.model import Drafter, Target
from methods.checkpoints.recipe.parts import BLOCK, rope
from methods.checkpoints.recipe.tokenizer import END_IDS
from methods.checkpoints.recipe.training import block_inputs

BUDGETS = (16, 64, 256)
CHOICES = 64


@dataclass
class Case:
    """A held-out prompt, its greedy answer and the draft's best tokens at every root of it [n, 15, CHOICES]."""

    talk: Conversation
    prompt: np.ndarray
    output: np.ndarray
    text: str
    scores: np.ndarray
    tokens: np.ndarray


def built_in(folder: Path) -> list[Conversation]:
    """The built-in prompts (warm-up left out) as conversations without a reply."""
    talks = []
    for category in CATEGORIES:
        for line in (folder / f"{category}.jsonl").read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            talks.append(Conversation(category, row["messages"], row.get("tools") or [], row["answer"]))
    return talks


def generated(count: int, seed: int) -> list[Conversation]:
    """More held-out prompts, `count` a category."""
    return [conversation(c, f"{seed}:evaluation:{i}", held=True).prompt for c in CATEGORIES for i in range(count)]


@torch.inference_mode()
def draft_everywhere(
    target: Target, drafter: Drafter, prompt: np.ndarray, output: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Log-probs and ids of the best tokens of slots 1..15 for the root at every output position [n, 15, CHOICES]."""
    device = target.embed_tokens.weight.device
    rows = pad([(np.concatenate([prompt, output]), np.ones(len(prompt) + len(output)))])
    ids = rows.ids.to(device)
    _, outputs = target(ids, rope(target.shape, device), torch.float32)
    anchors = torch.arange(len(prompt), ids.shape[1], device=device)[None]
    inputs = block_inputs(target, ids, anchors, torch.float32)
    hidden = drafter(outputs, inputs, anchors, rope(drafter.shape, device))
    best = target.logits(hidden[0, :, 1:]).log_softmax(-1).topk(CHOICES, -1)
    return best.values.cpu().numpy(), best.indices.cpu().numpy()


def tree_paths(scores: np.ndarray, tokens: np.ndarray, budget: int) -> set[tuple[int, ...]]:
    """The paths (token tuples) of the best-first tree with `budget` nodes; a node's score is its log-probs' sum."""
    heap: list[tuple[float, tuple[int, ...]]] = [(-float(scores[0, 0]), (0,))]
    paths: set[tuple[int, ...]] = set()
    while heap and len(paths) < budget:
        cost, ranks = heapq.heappop(heap)
        depth, rank = len(ranks) - 1, ranks[-1]
        paths.add(tuple(int(tokens[d, r]) for d, r in enumerate(ranks)))
        if rank + 1 < scores.shape[1]:
            step = float(scores[depth, rank] - scores[depth, rank + 1])
            heapq.heappush(heap, (cost + step, (*ranks[:-1], rank + 1)))
        if depth + 1 < scores.shape[0]:
            heapq.heappush(heap, (cost - float(scores[depth + 1, 0]), (*ranks, 0)))
    return paths


def accepted_at(case: Case, root: int, budget: int | None) -> int:
    """Drafted tokens accepted at a root: along the top-1 chain (None) or in the tree of a budget."""
    truth = [int(t) for t in case.output[root + 1 : root + BLOCK]]
    if budget is None:
        return next((d for d, t in enumerate(truth) if int(case.tokens[root, d, 0]) != t), len(truth))
    paths = tree_paths(case.scores[root, : max(len(truth), 1)], case.tokens[root], budget)
    return next((d for d in range(len(truth)) if tuple(truth[: d + 1]) not in paths), len(truth))


def rounds(case: Case, budget: int | None) -> tuple[int, int, int]:
    """Accepted tokens and rounds over uncut rounds, and how many of these accept a whole block."""
    accepted_sum = count = full = root = 0
    last = len(case.output) - 1
    while root < last:
        accepted = accepted_at(case, root, budget)
        if root + accepted >= last:
            break
        accepted_sum, count, full = accepted_sum + accepted, count + 1, full + (accepted == BLOCK - 1)
        root += accepted + 1
    return accepted_sum, count, full


def cases(target: Target, drafter: Drafter, talks: Sequence[Conversation], tokenizer: Any, limit: int) -> list[Case]:
    """Greedy answers in float32 with drafts at every position."""
    prompts = [np.array(tokenizer.encode(render(t, generate=True), add_special_tokens=False).ids) for t in talks]
    outputs = answer(target, prompts, limit, torch.float32, tokens=200_000)
    made = []
    for talk, prompt, output in zip(talks, prompts, outputs, strict=True):
        scores, tokens = draft_everywhere(target, drafter, prompt, output)
        text = tokenizer.decode([int(t) for t in output if t not in END_IDS], skip_special_tokens=False)
        made.append(Case(talk, prompt, output, text, scores, tokens))
    return made


def quality(found: Sequence[Case]) -> dict[str, Any]:
    """Shares of right sums, valid and exact calls, quoted answers, and degenerate answers per type."""
    report: dict[str, Any] = {}
    for category in CATEGORIES:
        group = [c for c in found if c.talk.category == category]
        if not group:
            continue
        right: dict[str, list[bool]] = {"degenerate": [checks.degenerate(list(map(int, c.output))) for c in group]}
        right["ended"] = [int(c.output[-1]) in END_IDS for c in group]
        if category == "math":
            right["right"] = [checks.stated_number(c.text) == c.talk.answer for c in group]
        if category == "tool_calls":
            right["valid"] = [checks.valid_calls(c.text, c.talk.tools) for c in group]
            right["exact"] = [checks.same_calls(c.text, c.talk.answer or "null") for c in group]
        if category == "long_context":
            right["quoted"] = [(c.talk.answer or "") in c.text for c in group]
        lengths = [len(c.output) for c in group]
        report[category] = {name: round(float(np.mean(flags)), 4) for name, flags in right.items()}
        report[category] |= {
            "prompts": len(group),
            "prompt_tokens": round(float(np.mean([len(c.prompt) for c in group])), 1),
            "output_tokens": round(float(np.mean(lengths)), 1),
            "output_over_64": round(float(np.mean([n > 64 for n in lengths])), 3),
        }
    return report


def acceptance(found: Sequence[Case]) -> dict[str, dict[str, float]]:
    """Pooled acceptance lengths τ = 1 + Σ accepted / Σ rounds (uncut) per type and together, by method."""
    report: dict[str, dict[str, float]] = {}
    together: dict[str, list[int]] = {}
    for category in CATEGORIES:
        group = [c for c in found if c.talk.category == category]
        row: dict[str, float] = {}
        for name, budget in (("dflash", None), *((f"ddtree-{b}", b) for b in BUDGETS)):
            totals = np.sum([rounds(c, budget) for c in group], 0) if group else np.zeros(3)
            row[name] = round(1 + float(totals[0]) / max(float(totals[1]), 1.0), 3)
            row[f"{name} full blocks"] = round(float(totals[2]) / max(float(totals[1]), 1.0), 3)
            together.setdefault(name, [0, 0])
            together[name][0] += int(totals[0])
            together[name][1] += int(totals[1])
        report[category] = row
    report["all"] = {name: round(1 + a / max(n, 1), 3) for name, (a, n) in together.items()}
    return report


def missed(quality_report: dict[str, Any], tau: dict[str, dict[str, float]]) -> list[str]:
    """The bars that the figures do not meet, in words."""
    types = [c for c in CATEGORIES if c in quality_report]
    misses = []
    if quality_report["math"]["right"] < 0.8:
        misses.append(f"sums right {quality_report['math']['right']:.0%} < 80%")
    if quality_report["tool_calls"]["valid"] < 0.9:
        misses.append(f"tool calls valid {quality_report['tool_calls']['valid']:.0%} < 90%")
    weights = [quality_report[c]["prompts"] for c in types]
    loops = float(np.average([quality_report[c]["degenerate"] for c in types], weights=weights))
    if loops >= 0.05:
        misses.append(f"degenerate {loops:.1%} >= 5%")
    if not 3 <= tau["all"]["dflash"] <= 8:
        misses.append(f"DFlash over all types {tau['all']['dflash']} outside 3..8")
    misses += [f"DFlash {c} {tau[c]['dflash']} < 1.5" for c in types if tau[c]["dflash"] < 1.5]
    if len([c for c in types if tau[c]["dflash"] > 10]) > 1:
        misses.append("more than one type above 10")
    easiest = max(types, key=lambda c: tau[c]["dflash"])
    for c in types:
        gain = tau[c]["ddtree-64"] / tau[c]["dflash"]
        if c != easiest and gain < 1.15:
            misses.append(f"DDTree-64 over DFlash {c} {gain:.3f} < 1.15")
    if tau["code"]["dflash"] <= tau["chat"]["dflash"]:
        misses.append("code does not accept more than chat")
    return misses


def evaluate(
    target: Target, drafter: Drafter, talks: Sequence[Conversation], tokenizer: Any, limit: int = 320
) -> dict[str, Any]:
    """All figures over these held-out prompts, with sample answers of every type."""
    found = cases(target, drafter, talks, tokenizer, limit)
    quality_report, tau = quality(found), acceptance(found)
    samples = {
        c: [
            {"prompt": k.talk.messages[-1]["content"][-1500:], "answer": k.talk.answer, "text": k.text}
            for k in [k for k in found if k.talk.category == c][:8]
        ]
        for c in CATEGORIES
    }
    return {"quality": quality_report, "acceptance": tau, "missed": missed(quality_report, tau), "samples": samples}
