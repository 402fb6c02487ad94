"""From ShareGPT's JSON to prompts: a list of conversations, whose human turns are asked.

    [{"id": "abc", "conversations": [{"from": "human", "value": "…"}, {"from": "gpt", "value": "…"}, …]}, …]

The answers in the file are not used: a turn follows on the target's own. A system message may come first.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from methods.base import Refusal
from workloads.base import Message, Prompt
from workloads.sieve import Sieved, sieve
from workloads.sources import files

_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "chatgpt": "assistant", "assistant": "assistant"}
CATEGORY = "chat"


def read(path: Path, first_turn_only: bool, skip_bad: bool = False) -> Sieved:
    """Every conversation of a file, in order: all of its human turns, or the first alone.

    Raises:
        Refusal: no such file, a damaged file, or (unless `skip_bad`) a conversation that cannot be asked or repeats.
    """

    def parse(row: Mapping[str, Any], where: str) -> Prompt:
        return _prompt(row, where, first_turn_only)

    return sieve(path, files.read(path), parse, skip_bad)


def _prompt(row: Mapping[str, Any], where: str, first_turn_only: bool) -> Prompt:
    turns = row.get("conversations")
    if not isinstance(turns, list) or not turns:
        raise Refusal("conversations is not a list of turns, at least one")
    for turn in turns:
        if not (isinstance(turn, dict) and isinstance(turn.get("from"), str) and isinstance(turn.get("value"), str)):
            raise Refusal("a turn is not an object of from and value, both text")
    system = [turn["value"] for turn in turns[:1] if turn["from"] == "system"]
    turns = turns[len(system) :]
    for place, turn in enumerate(turns):
        expected = ("user", "assistant")[place % 2]
        if _ROLES.get(turn["from"]) != expected:
            raise Refusal(f"turn {place + 1} is from {turn['from']!r} where the {expected} should speak")
    said = [turn["value"] for turn in turns[::2]]
    if not said:
        raise Refusal("the conversation has no human turn")
    name = row.get("id")
    return Prompt(
        id=name if isinstance(name, str) and name.strip() else f"row-{where.rpartition(' ')[2]}",
        category=CATEGORY,
        messages=(*(Message("system", text) for text in system), Message("user", said[0])),
        follow_ups=() if first_turn_only else tuple(said[1:]),
        where=where,
    )
