"""From JSONL to prompts: one JSON object a line.

    {"id": "math-001", "category": "math", "messages": [{"role": "user", "content": "…"}], "tools": […], "answer": "42"}
    {"turns": ["What is 6 × 7?", "And half of that?"], "system": "Be brief."}

Either `messages`, a conversation so far, or `turns`, what the user says turn by turn (the target's own answers stand
between). The rest may be left out: `id` is then the line's number, `category` is `file`; `system` goes before the
messages. A damaged line is refused in one sentence that names the file and the line.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from methods.base import Refusal
from workloads.base import Message, Prompt, Role
from workloads.sieve import Sieved, sieve
from workloads.sources.files import json_value

_TEXTS = ("id", "category", "system", "answer")
_KEYS = ("id", "category", "messages", "turns", "system", "tools", "answer")


def read(path: Path, skip_bad: bool = False) -> Sieved:
    """Every prompt of a file, in order. Blank lines are passed over.

    Raises:
        Refusal: no such file, no prompt in it, or (unless `skip_bad`) a line that cannot be read or repeats another.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise Refusal(f"{path} cannot be read: {error.strerror or error}.") from error
    return sieve(path, _lines(path, data), parse, skip_bad)


def parse(raw: bytes, where: str = "line 1") -> Prompt:
    """One line as a prompt; a `Refusal` says what is wrong with it."""
    try:
        fields = json_value(raw)
    except Refusal as reason:
        raise Refusal(f"the line is {reason}") from None
    if not isinstance(fields, dict):
        raise Refusal("the line is not a JSON object")
    if unknown := [key for key in fields if key not in _KEYS]:
        raise Refusal(f"the key {unknown[0]!r} is not known: {', '.join(_KEYS)} are")
    for key in _TEXTS:
        if not isinstance(fields.get(key), str | None):
            raise Refusal(f"{key} is neither text nor null")
    given = [key for key in ("messages", "turns") if fields.get(key) is not None]
    if len(given) != 1:
        raise Refusal("messages and turns are both given: one is needed" if given else "messages or turns is missing")
    messages, follow_ups = _messages(fields["messages"]) if given == ["messages"] else _turns(fields["turns"])
    if fields.get("system") is not None:
        messages = (Message("system", fields["system"]), *messages)
    number = where.rpartition(" ")[2]
    return Prompt(
        id=fields["id"] if fields.get("id") is not None else f"line-{number}",
        category=fields["category"] if fields.get("category") is not None else "file",
        messages=messages,
        tools=_tools(fields.get("tools")),
        answer=fields.get("answer"),
        follow_ups=follow_ups,
        where=where,
    )


def _lines(path: Path, data: bytes) -> Iterator[tuple[str, bytes]]:
    for number, raw in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if raw.strip():
            yield f"{path}, line {number}", raw


def _messages(value: Any) -> tuple[tuple[Message, ...], tuple[str, ...]]:
    if not isinstance(value, list):
        raise Refusal("messages is not a list")
    for message in value:
        if not (isinstance(message, dict) and message.keys() == {"role", "content"}):
            raise Refusal("a message is not an object of role and content")
        if not all(isinstance(part, str) for part in message.values()):
            raise Refusal("a message's role and content are not both text")
    return tuple(Message(cast(Role, message["role"]), message["content"]) for message in value), ()


def _turns(value: Any) -> tuple[tuple[Message, ...], tuple[str, ...]]:
    if not (isinstance(value, list) and value and all(isinstance(turn, str) for turn in value)):
        raise Refusal("turns is not a list of texts, at least one")
    return (Message("user", value[0]),), tuple(value[1:])


def _tools(value: Any) -> tuple[dict[str, Any], ...]:
    if value is None:
        return ()
    if not (isinstance(value, list) and all(isinstance(tool, dict) for tool in value)):
        raise Refusal("tools is not a list of objects")
    return tuple(value)
