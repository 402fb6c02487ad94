"""What is asked: a `Prompt` is one conversation to be continued, a `Workload` is an ordered set of them.

Plain data without a tokenizer or a tensor library, so that the command line can list and check workloads.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from methods.base import Refusal

Role = Literal["system", "user", "assistant", "tool"]
ROLES: tuple[str, ...] = get_args(Role)
LONGEST = 4_000_000  # characters of one message; more than the largest window holds


@dataclass(frozen=True)
class Message:
    """One message of a conversation."""

    role: Role
    content: str

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise Refusal(f"role {self.role!r} is not accepted: one of {', '.join(ROLES)} is")
        if not self.content.strip():
            raise Refusal(f"the {self.role} message is empty: some text is needed")
        if len(self.content) > LONGEST:
            length = f"{len(self.content):,}"
            raise Refusal(f"the {self.role} message is {length} characters long: at most {LONGEST:,} are accepted")
        try:
            self.content.encode("utf-8")
        except UnicodeEncodeError:
            raise Refusal(f"the {self.role} message holds half a surrogate pair, which no text encoding has") from None


@dataclass(frozen=True)
class Prompt:
    """One prompt: the messages so far, the tools offered (OpenAI-style function schemas) and, where there is one,
    the right answer, which `workloads.answers` can check. `follow_ups` are what the user says in later turns, after
    each answer of the target's own. `where` is the file and line it was read from, for a later complaint to name."""

    id: str
    category: str
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    answer: str | None = None
    follow_ups: tuple[str, ...] = ()
    where: str = field(default="", compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.id.strip() or not self.category.strip():
            raise Refusal("id and category are needed, both as text that is not empty")
        if not self.messages:
            raise Refusal("messages is empty: at least one message is needed")
        if self.messages[-1].role not in ("user", "tool"):
            raise Refusal(f"the last message is the {self.messages[-1].role}'s: it has to be the user's or a tool's")
        for text in self.follow_ups:
            Message("user", text)  # the same rules

    @property
    def text(self) -> str:
        """The messages as a person reads them; a lone user message stands without its role."""
        if len(self.messages) == 1 and self.messages[0].role == "user":
            return self.messages[0].content
        return "\n\n".join(f"{m.role}: {m.content}" for m in self.messages)

    def canonical(self) -> str:
        """The prompt as JSON with sorted keys: what its hash is taken over."""
        fields: dict[str, Any] = {
            "id": self.id,
            "category": self.category,
            "messages": [[m.role, m.content] for m in self.messages],
            "tools": list(self.tools),
            "answer": self.answer,
        }
        if self.follow_ups:  # so that adding them left the hashes of stored runs as they were
            fields["follow_ups"] = list(self.follow_ups)
        return json.dumps(fields, ensure_ascii=False, sort_keys=True)


@dataclass(frozen=True)
class Origin:
    """Where a workload's texts came from: in words, at which revision or version, under which licence, the hash of what
    was read, and the UTC time of the fetch where there was one."""

    source: str
    revision: str | None = None
    licence: str | None = None
    sha256: str | None = None
    fetched_utc: str | None = None


@dataclass(frozen=True)
class Workload:
    """An ordered set of prompts with unique ids, and the warm-up prompts, none of which is in the set.

    `skipped` says of every line left out, at the user's wish, where it stood and what was wrong with it.
    """

    name: str
    prompts: tuple[Prompt, ...]
    warmup: tuple[Prompt, ...] = ()
    origin: Origin | None = None
    skipped: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.prompts:
            raise Refusal(f"workload {self.name!r} holds no prompts: at least one is needed.")
        counts = Counter(p.id for p in (*self.prompts, *self.warmup))
        twice = [prompt_id for prompt_id, count in counts.items() if count > 1]
        if twice:
            raise Refusal(f"workload {self.name!r} holds the id {twice[0]!r} more than once: ids must be unique.")
        asked = {p.messages for p in self.prompts}
        if any(p.messages in asked for p in self.warmup):
            raise Refusal(f"workload {self.name!r} asks a warm-up prompt again: warm-up prompts stay outside the set.")

    @property
    def categories(self) -> tuple[str, ...]:
        """The categories in the order of their first prompts."""
        return tuple(dict.fromkeys(p.category for p in self.prompts))

    @property
    def sha256(self) -> str:
        """The hash of the prompts as asked, in order; line ends and key order in the source do not matter."""
        return hashlib.sha256("\n".join(p.canonical() for p in self.prompts).encode()).hexdigest()

    def find(self, prompt_id: str) -> Prompt:
        """The prompt of this id, or a `Refusal` naming those that exist."""
        for prompt in (*self.prompts, *self.warmup):
            if prompt.id == prompt_id:
                return prompt
        known = ", ".join(p.id for p in self.prompts)
        raise Refusal(f"prompt {prompt_id!r} is not in workload {self.name!r}: it has {known}.")
