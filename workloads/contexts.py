"""Real text in front of a question, so that the rendered prompt fills a bucket of tokens: 1,024, 32,768 and so on.

The text is the documents of the built-in long-context prompts, or the paragraphs of a user's file. Each prompt begins
at a place of its own, which its id decides, and goes on from there, once around at most: no text comes twice, and a
question about a document does not get that document again. The last passage is cut so that the rendered prompt is at
most as long as the bucket and at least 98 % of it. A corpus that is too short is refused, never stretched.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from methods.base import Refusal
from workloads.base import Message, Prompt
from workloads.suites import load

SMALLEST = 1024
SLACK = 0.02
BETWEEN = "\n\n"
_LONGEST_WORD = 40  # characters; beyond, as in scripts without blanks, a cut falls between any two
_NOT_DOCUMENT = re.compile(
    r"Read this document\.|Question: |Quote the |Look up |Concerning |I need to know |What does the "
)


@dataclass(frozen=True)
class Corpus:
    """Passages of text, each different from the others, in a fixed order."""

    name: str
    passages: tuple[str, ...]

    @property
    def sha256(self) -> str:
        return hashlib.sha256(BETWEEN.join(self.passages).encode()).hexdigest()

    def before(self, prompt: Prompt) -> str:
        """All the text that may stand before a prompt: from its own place around to there, without what it holds."""
        start = int.from_bytes(hashlib.sha256(prompt.id.encode()).digest()) % len(self.passages)
        held = "\n".join(message.content for message in prompt.messages)
        return BETWEEN.join(p for p in (*self.passages[start:], *self.passages[:start]) if p not in held)


def corpus(path: str | Path | None = None) -> Corpus:
    """The user's text file, its paragraphs being the passages; without one the built-in documents.

    Raises:
        Refusal: the file cannot be read, is not UTF-8, or holds no text.
    """
    if path is None:
        return _builtin()
    try:
        text = Path(path).expanduser().read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise Refusal(f"workload.context_path={path} cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError:
        raise Refusal(f"workload.context_path={path} is not accepted: UTF-8 text is.") from None
    passages = dict.fromkeys(p.strip() for p in re.split(r"\r?\n[ \t]*\r?\n", text))
    passages.pop("", None)
    if not passages:
        raise Refusal(f"workload.context_path={path} is not accepted: it holds no text.")
    return Corpus(str(path), tuple(passages))


@cache
def _builtin() -> Corpus:
    """The documents of the long-context prompts, without what is asked about them."""
    documents = []
    for prompt in load("long_context").prompts:
        paragraphs = prompt.messages[-1].content.split(BETWEEN)
        documents.append(BETWEEN.join(p for p in paragraphs if not _NOT_DOCUMENT.match(p)))
    return Corpus("the built-in text", tuple(dict.fromkeys(documents)))


def fill(prompt: Prompt, source: Corpus, bucket: int, length: Callable[[Prompt], int]) -> Prompt:
    """The prompt with so much text before its first user message that `length`, its tokens as rendered, is in
    [0.98 × bucket, bucket]. One that is there already stays as it is.

    Raises:
        Refusal: the prompt alone is longer than the bucket, or the corpus is too short.
    """
    floor = math.ceil(bucket * (1 - SLACK))
    alone = length(prompt)
    if alone > bucket:
        raise Refusal(f"workload.context={bucket} is not accepted: prompt {prompt.id!r} alone has {alone} tokens.")
    if alone >= floor:
        return prompt
    text = source.before(prompt)
    below, above = (0, alone), (len(text) + 1, math.inf)  # characters taken, and the tokens that makes
    rate = 4.0  # characters a token, until it is known
    while above[0] - below[0] > 1:
        wanted = (floor + bucket) / 2 - below[1]
        if math.isfinite(above[1]):
            rate = (above[0] - below[0]) / (above[1] - below[1])
        take = min(max(below[0] + round(wanted * rate), below[0] + 1), above[0] - 1)
        filled = _before(prompt, _cut(text, take))
        tokens = length(filled)
        if floor <= tokens <= bucket:
            return filled
        rate = take / max(tokens - alone, 1)
        below, above = ((take, tokens), above) if tokens < floor else (below, (take, tokens))
    if below[0] == len(text):
        raise Refusal(
            f"workload.context={bucket} is not accepted: with prompt {prompt.id!r}, all of {source.name} makes "
            f"{below[1]} tokens; a longer text is accepted as workload.context_path."
        )
    raise Refusal(f"workload.context={bucket} is not accepted: {source.name} cannot be cut to it.")


def _cut(text: str, characters: int) -> str:
    """The first characters, back to the end of a word where one is near."""
    if characters < len(text) and not text[characters].isspace():
        begun = re.search(r"\S*$", text[max(0, characters - _LONGEST_WORD) : characters])
        if begun is not None and len(begun[0]) < _LONGEST_WORD:
            characters -= len(begun[0])
    return text[:characters].rstrip()


def _before(prompt: Prompt, text: str) -> Prompt:
    """The prompt with `text` before its first user message (before its first message, if no user speaks)."""
    if not text:
        return prompt
    at = next((i for i, message in enumerate(prompt.messages) if message.role == "user"), 0)
    messages = list(prompt.messages)
    messages[at] = Message(messages[at].role, f"{text}{BETWEEN}{messages[at].content}")
    return replace(prompt, messages=tuple(messages))
