"""From JSONL to prompts: one JSON object a line, with the keys of `Prompt`.

    {"id": "math-001", "category": "math", "messages": [{"role": "user", "content": "…"}], "tools": […], "answer": "42"}

`tools` and `answer` may be left out. A damaged line is refused in one sentence that names the file and the line.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from methods.base import Refusal
from workloads.base import Message, Prompt, Role

_REQUIRED = ("id", "category", "messages")
_KEYS = (*_REQUIRED, "tools", "answer")


def read(path: Path) -> tuple[Prompt, ...]:
    """Every prompt of a file, in order. Blank lines are passed over.

    Raises:
        Refusal: no such file, no prompt in it, a line that cannot be read, or an id given twice.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise Refusal(f"{path} cannot be read: {error.strerror or error}.") from error
    prompts: list[Prompt] = []
    line_of: dict[str, int] = {}
    for number, raw in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if not raw.strip():
            continue
        try:
            prompt = parse(raw)
        except Refusal as reason:
            raise Refusal(f"{path}, line {number}: {str(reason).rstrip('.')}.") from None
        if prompt.id in line_of:
            raise Refusal(
                f"{path}, line {number}: the id {prompt.id!r} was already given in line {line_of[prompt.id]}."
            )
        line_of[prompt.id] = number
        prompts.append(prompt)
    if not prompts:
        raise Refusal(f"{path} holds no prompts: one JSON object a line is expected.")
    return tuple(prompts)


def parse(raw: bytes) -> Prompt:
    """One line as a prompt; a `Refusal` says what is wrong with it."""
    try:
        fields = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError:
        raise Refusal("the line is not UTF-8 text") from None
    except (json.JSONDecodeError, RecursionError) as error:
        raise Refusal(f"the line is not JSON ({getattr(error, 'msg', 'nested too deeply')})") from None
    if not isinstance(fields, dict):
        raise Refusal("the line is not a JSON object")
    if missing := [key for key in _REQUIRED if key not in fields]:
        raise Refusal(f"{missing[0]} is missing")
    if unknown := [key for key in fields if key not in _KEYS]:
        raise Refusal(f"the key {unknown[0]!r} is not known: {', '.join(_KEYS)} are")
    for key in ("id", "category"):
        if not isinstance(fields[key], str):
            raise Refusal(f"{key} is not text")
    answer = fields.get("answer")
    if not (answer is None or isinstance(answer, str)):
        raise Refusal("answer is neither text nor null")
    return Prompt(fields["id"], fields["category"], _messages(fields["messages"]), _tools(fields.get("tools")), answer)


def _messages(value: Any) -> tuple[Message, ...]:
    if not isinstance(value, list):
        raise Refusal("messages is not a list")
    for message in value:
        if not (isinstance(message, dict) and message.keys() == {"role", "content"}):
            raise Refusal("a message is not an object of role and content")
        if not all(isinstance(part, str) for part in message.values()):
            raise Refusal("a message's role and content are not both text")
    return tuple(Message(cast(Role, message["role"]), message["content"]) for message in value)


def _tools(value: Any) -> tuple[dict[str, Any], ...]:
    if value is None:
        return ()
    if not (isinstance(value, list) and all(isinstance(tool, dict) for tool in value)):
        raise Refusal("tools is not a list of objects")
    return tuple(value)
