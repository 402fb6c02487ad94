"""Is an answer right? Exact checks for the prompts that carry one, as small pure functions.

A prompt with tools expects a tool call; one that asks for `\\boxed{}` the same mathematics (`workloads.mathematics`),
in the last box; an answer that is a number expects a final number, and any other answer expects that text in quotes.
What stands after `####` in a prompt's answer (GSM8K) is the answer, and what a text thinks, up to `</think>`, is not
part of its answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

from workloads import mathematics
from workloads.base import Prompt

_NUMBER = re.compile(r"(?<![\w.])[-−+]?\$?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?")
_MARKED = re.compile(r"####\s*([^\n]+)")
_BOX = "\\boxed"
_THOUGHT = "</think>"
_TOOL_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|$)", re.DOTALL)
_QUOTED = re.compile(r"\"([^\"\n]+)\"|“([^”\n]+)”|«([^»\n]+)»")


class Call(NamedTuple):
    """A tool call; the arguments as canonical JSON, so that 1 and true stay apart."""

    name: str
    arguments: str


def correct(prompt: Prompt, text: str) -> bool | None:
    """Whether `text` gives the prompt's answer; None where the prompt has none."""
    if prompt.answer is None:
        return None
    answer, text = _after_marks(prompt.answer), text.rpartition(_THOUGHT)[2]
    if prompt.tools and (calls := expected_calls(answer)) is not None:
        return list(tool_calls(text)) == calls
    box = mathematics.boxed(text)
    if box is not None and any(_BOX in message.content for message in prompt.messages):
        return mathematics.same(answer, box)
    if (expected := number(answer)) is not None:
        return final_number(text) == expected
    return _BOX not in prompt.text and quotes(answer, text)


def number(text: str) -> Decimal | None:
    """The number a text is (thousands' commas and a leading dollar sign allowed), or None."""
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        return None
    try:
        return Decimal(match[0].replace(",", "").replace("$", "").replace("−", "-"))
    except InvalidOperation:
        return None


def final_number(text: str) -> Decimal | None:
    r"""The number a worked solution ends on: in the last `\boxed{…}`, after the last `####`, or the last one there."""
    box = mathematics.boxed(text)
    found = _NUMBER.findall(_after_marks(text) if box is None else box)
    return number(found[-1]) if found else None


def _after_marks(text: str) -> str:
    """What stands after the last `####`; without one, all of it."""
    marked = _MARKED.findall(text)
    return marked[-1].strip() if marked else text


def expected_calls(answer: str) -> list[Call] | None:
    """The tool calls an answer is: one JSON object of `name` and `arguments`, or a list of them; None if it is not."""
    try:
        value = json.loads(answer)
    except (json.JSONDecodeError, RecursionError):
        return None
    calls = [_call(one) for one in (value if isinstance(value, list) else [value])]
    return None if None in calls else [call for call in calls if call is not None]


def tool_calls(text: str) -> Iterator[Call | None]:
    """Every tool call in a text, in order; an unreadable tagged call is None.

    Calls stand in `<tool_call>` tags, or are the JSON objects with `name` and `arguments` in the text.
    Arguments given as a JSON string are read.
    """
    tagged = _TOOL_CALL.findall(text)
    if tagged:
        for body in tagged:
            try:
                yield _call(json.loads(body))
            except (json.JSONDecodeError, RecursionError):
                yield None
        return
    yield from (call for call in map(_call, _json_values(text)) if call is not None)


def quotes(expected: str, text: str) -> bool:
    """Whether the last string in quotes is the expected one; a text without quotes counts as a whole."""
    found = ["".join(groups) for groups in _QUOTED.findall(text)]
    return _plain(found[-1] if found else text) == _plain(expected)


def _plain(text: str) -> str:
    return " ".join(text.split()).strip("\"'“”«» ").removesuffix(".")


def _call(value: Any) -> Call | None:
    if not (isinstance(value, dict) and isinstance(value.get("name"), str) and "arguments" in value):
        return None
    arguments = value["arguments"]
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except json.JSONDecodeError:
            return None
    return Call(value["name"], json.dumps(arguments, sort_keys=True))


def _json_values(text: str) -> Iterator[Any]:
    """The outermost JSON objects in a text, those in a list one by one."""
    decoder, at = json.JSONDecoder(), 0
    while (start := text.find("{", at)) >= 0:
        try:
            value, at = decoder.raw_decode(text, start)
        except (json.JSONDecodeError, RecursionError):
            at = start + 1
        else:
            yield value
