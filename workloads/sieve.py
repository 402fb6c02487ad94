"""Rows of a user's file as prompts: each checked, none twice, and what is wrong refused or, if allowed, counted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

from methods.base import Refusal
from workloads.base import Prompt

T = TypeVar("T")


class Sieved(NamedTuple):
    """The prompts in order, and a sentence for each row left out."""

    prompts: tuple[Prompt, ...]
    skipped: tuple[str, ...]


def sieve(source: object, rows: Iterable[tuple[str, T]], parse: Callable[[T, str], Prompt], skip_bad: bool) -> Sieved:
    """Every row (where it stands, what it is) as a prompt.

    Raises:
        Refusal: a row is damaged or asks again what another asked, unless `skip_bad`; or no good row is left.
    """
    prompts: list[Prompt] = []
    skipped: list[str] = []
    seen: dict[object, str] = {}
    for where, row in rows:
        try:
            prompt = parse(row, where)
            for key, what in ((prompt.id, f"the id {prompt.id!r} was"), (_asked(prompt), "the same prompt was")):
                if key in seen:
                    raise Refusal(f"{what} already given in {seen[key]}")
        except Refusal as reason:
            sentence = f"{where}: {str(reason).rstrip('.')}."
            if not skip_bad:
                raise Refusal(sentence) from None
            skipped.append(sentence)
            continue
        short = where.rpartition(", ")[2]
        seen |= {prompt.id: short, _asked(prompt): short}
        prompts.append(prompt)
    if not prompts and skipped:
        raise Refusal(f"{source} holds no good prompts: all {len(skipped)} were left out, the first as {skipped[0]}")
    if not prompts:
        raise Refusal(f"{source} holds no prompts: at least one is needed.")
    return Sieved(tuple(prompts), tuple(skipped))


def _asked(prompt: Prompt) -> object:
    return (prompt.messages, prompt.follow_ups, repr(prompt.tools))
