"""From a prompt to token ids through the target's own chat template, once, for every arm and engine alike.

A later turn is a prompt too: the conversation so far, with the target's own answers, and what the user says next.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from methods.base import Refusal
from workloads.base import Message, Prompt

SAID_NOTHING = "…"  # stands for an empty answer, which few templates can express


class ChatTokenizer(Protocol):
    """What is needed of a transformers tokenizer."""

    chat_template: Any

    def get_chat_template(self, chat_template: str | None = None, tools: list[Any] | None = None) -> str: ...

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any: ...


def render(tokenizer: ChatTokenizer, prompt: Prompt, enable_thinking: bool = False) -> tuple[int, ...]:
    """The ids of the rendered conversation, ending where the assistant is to speak.

    `enable_thinking` is passed on where the template knows it.

    Raises:
        Refusal: the target has no chat template, or its template cannot express this prompt.
    """
    if not tokenizer.chat_template:
        raise Refusal(f"prompt {prompt.id!r} cannot be rendered: the target's tokenizer has no chat template.")
    tools = [dict(tool) for tool in prompt.tools] or None
    template = tokenizer.get_chat_template(tools=tools)
    if tools and "tools" not in template:
        raise Refusal(f"prompt {prompt.id!r} offers tools, which the target's chat template does not know.")
    options: dict[str, Any] = {}
    if "enable_thinking" in template:
        options["enable_thinking"] = enable_thinking
    elif enable_thinking:
        raise Refusal("enable_thinking=true is not accepted: the target's chat template has no such switch.")
    messages = [{"role": message.role, "content": message.content} for message in prompt.messages]
    try:
        ids = tokenizer.apply_chat_template(
            messages, tools=tools, add_generation_prompt=True, tokenize=True, return_dict=False, **options
        )
    except Exception as error:  # a template says what it does not accept by raising whatever it likes
        raise Refusal(f"prompt {prompt.id!r} cannot be rendered by the target's chat template: {error}.") from error
    return tuple(int(i) for i in ids)


def ids_sha256(ids: Sequence[int]) -> str:
    """The hash of rendered ids."""
    return hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest()


def with_system(prompt: Prompt, system: str) -> Prompt:
    """The prompt under this system prompt; one that has its own is refused, since only one of them can hold."""
    if any(message.role == "system" for message in prompt.messages):
        raise Refusal(f"workload.system is not accepted: prompt {prompt.id!r} has a system message of its own.")
    return replace(prompt, messages=(Message("system", system), *prompt.messages))


def next_turn(prompt: Prompt, answer: str) -> Prompt:
    """The conversation after the target's answer, ending with what the user says next. Only first turns are scored,
    so that later ones carry no right answer."""
    said = Message("assistant", answer.strip() or SAID_NOTHING)
    asked, *later = prompt.follow_ups
    messages = (*prompt.messages, said, Message("user", asked))
    return replace(prompt, messages=messages, answer=None, follow_ups=tuple(later))
