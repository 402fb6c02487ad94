"""The recipe's unit of text: a conversation, and its rendering by the chat template.

`render` is the chat template written in Python (a test holds it equal to the tokenizer's own Jinja template),
because the corpus renders millions of conversations. `word_ngrams` serves the check that no held-out prompt
shares 13 consecutive words with the training text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

CATEGORIES = ("chat", "code", "math", "tool_calls", "long_context")
TOOLS_HEAD = "You may call these tools:\n<tools>"
TOOLS_TAIL = "\n</tools>\nWrite each call as a JSON object between <tool_call> and </tool_call>."

CHAT_TEMPLATE = (
    "{%- if tools %}{{- '<|im_start|>system\\n' }}"
    "{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}"
    "{{- " + json.dumps(TOOLS_HEAD) + " }}"
    "{%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}"
    "{{- " + json.dumps(TOOLS_TAIL) + " }}{{- '<|im_end|>\\n' }}"
    "{%- elif messages[0].role == 'system' %}"
    "{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}{%- endif %}"
    "{%- for message in messages %}{%- if not (loop.first and message.role == 'system') %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


@dataclass
class Conversation:
    """Messages of one category with the tools offered; `answer` is what a checker compares with, if anything."""

    category: str
    messages: list[dict[str, str]]
    tools: list[dict[str, Any]] = field(default_factory=list)
    answer: str | None = None

    @property
    def prompt(self) -> Conversation:
        """The conversation without its last assistant message."""
        return Conversation(self.category, self.messages[:-1], self.tools, self.answer)

    @property
    def reply(self) -> str:
        return self.messages[-1]["content"]


def user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


def assistant(content: str) -> dict[str, str]:
    return {"role": "assistant", "content": content}


def system(content: str) -> dict[str, str]:
    return {"role": "system", "content": content}


def segments(talk: Conversation) -> Iterator[tuple[str, bool]]:
    """The rendered text in pieces, each with whether the model is to learn to write it (an assistant's words)."""
    messages = talk.messages
    head = messages[0]["content"] if messages[0]["role"] == "system" else None
    if talk.tools:
        tools = "".join("\n" + json.dumps(tool, ensure_ascii=False) for tool in talk.tools)
        lead = f"{head}\n\n" if head is not None else ""
        yield f"<|im_start|>system\n{lead}{TOOLS_HEAD}{tools}{TOOLS_TAIL}<|im_end|>\n", False
    elif head is not None:
        yield f"<|im_start|>system\n{head}<|im_end|>\n", False
    for message in messages[1 if head is not None else 0 :]:
        if message["role"] == "assistant":
            yield "<|im_start|>assistant\n", False
            yield f"{message['content']}<|im_end|>", True
            yield "\n", False
        else:
            yield f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n", False


def render(talk: Conversation, *, generate: bool = False) -> str:
    """The whole text, ending in an open assistant turn if `generate`."""
    return "".join(text for text, _ in segments(talk)) + ("<|im_start|>assistant\n" if generate else "")


WORD = re.compile(r"[^\W_]+")


def word_ngrams(text: str, n: int = 13) -> Iterator[str]:
    """Every run of n consecutive words (letters and digits, case folded, punctuation dropped)."""
    words = WORD.findall(text.lower())
    for i in range(len(words) - n + 1):
        yield " ".join(words[i : i + n])


def prompt_text(talk: Conversation) -> str:
    """A prompt's own text, the chat template's words left out: every message and tool before the reply."""
    parts = [json.dumps(tool, ensure_ascii=False) for tool in talk.tools]
    parts += [m["content"] for m in talk.messages if m["role"] != "assistant"]
    return "\n".join(parts)
