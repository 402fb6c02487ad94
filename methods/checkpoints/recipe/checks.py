"""What counts as a right or a sound answer: sums, tool calls, quotations and degenerate text."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}


def stated_number(text: str) -> str | None:
    """The number behind the last `Answer:`, or None."""
    found = re.findall(r"Answer:\s*(-?\d+)", text)
    return found[-1] if found else None


def calls_in(text: str) -> list[Any] | None:
    """The JSON values of all tool calls in a text; None if one cannot be parsed or there is none."""
    try:
        calls = [json.loads(body) for body in re.findall(r"<tool_call>(.*?)</tool_call>", text, re.DOTALL)]
    except ValueError:
        return None
    return calls or None


def fits(value: Any, schema: dict[str, Any]) -> bool:
    """Whether a value meets a JSON schema of types, enumerations, minima, items, properties and required names."""
    kind = schema.get("type")
    if kind is not None and (not isinstance(value, TYPES[kind]) or (isinstance(value, bool) and kind != "boolean")):
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    if "minimum" in schema and value < schema["minimum"]:
        return False
    if kind == "array":
        return all(fits(item, schema.get("items", {})) for item in value)
    if kind == "object":
        properties = schema.get("properties", {})
        known = all(name in properties and fits(item, properties[name]) for name, item in value.items())
        return known and all(name in value for name in schema.get("required", ()))
    return True


def valid_calls(text: str, tools: Sequence[dict[str, Any]]) -> bool:
    """Whether the text holds at least one tool call and each names an offered tool and meets its schema."""
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
    calls = calls_in(text)
    if calls is None:
        return False
    for call in calls:
        if not isinstance(call, dict) or set(call) != {"name", "arguments"} or call["name"] not in schemas:
            return False
        if not fits(call["arguments"], schemas[call["name"]]):
            return False
    return True


def same_calls(text: str, answer: str) -> bool:
    """Whether the calls are exactly the expected ones."""
    wanted = json.loads(answer)
    return calls_in(text) == (wanted if isinstance(wanted, list) else [wanted])


def degenerate(ids: Sequence[int], *, ratio: float = 0.3, window: int = 64, longest: int = 16) -> bool:
    """Whether few tokens are different (unique/total below `ratio`) or the text ends in a loop of a short period."""
    if not ids:
        return True
    if len(set(ids)) / len(ids) < ratio:
        return True
    tail = list(ids)[-window:]
    if len(tail) < window:
        return False
    return any(tail[p:] == tail[:-p] for p in range(1, longest + 1))
