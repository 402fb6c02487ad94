"""Long documents with questions: registers, catalogues, minutes, diaries and inventories of invented things.

Every entry is a paragraph (or lines of fields) about one subject; each of its sentences states one aspect. A
question names a subject and an aspect, and the answer quotes the sentence, so the model has to find and copy it.
"""

from __future__ import annotations

from collections.abc import Callable

from methods.checkpoints.recipe.conversation import Conversation, assistant, user
from methods.checkpoints.recipe.entries import (
    Entry,
    Fact,
    diary,
    minutes,
    part,
    person,
    treasure,
)
from methods.checkpoints.recipe.words import World, cap

KINDS: dict[str, tuple[Callable[[World], Entry], tuple[str, ...]]] = {
    "register": (person, ("Register of the people of {}", "Staff book of {}", "Who is who in {}")),
    "catalogue": (treasure, ("Catalogue of the {} collection", "Objects in the house of {}", "List of finds at {}")),
    "minutes": (minutes, ("Minutes of the council of {}", "Decisions taken at {}", "Protocol of the {} assembly")),
    "diary": (diary, ("A journey through {}", "Travel notes from {}", "Diary of a summer near {}")),
    "inventory": (part, ("Stock list of {}", "Stores of the {} works", "Parts held at {}")),
}


def _title(w: World, entry: Entry, index: int, style: int) -> str:
    return (f"## {index}. {cap(entry.subject)}", f"Entry {index}: {entry.subject}", f"[{index}] {cap(entry.subject)}.")[
        style
    ]


def _body(entry: Entry, style: int) -> str:
    if entry.fields:
        return "\n".join(f"- {f.sentence}" for f in entry.facts)
    text = " ".join(f.sentence for f in entry.facts)
    return text if style < 2 else text.replace("\n", " ")


def _answer(w: World, parts: list[Entry], fact: Fact, index: int) -> str:
    """Quotes the sentence and its neighbours, and names the place, the value and what comes next."""
    entry = parts[index]
    number = index + 1
    at = entry.facts.index(fact)
    where = w.pick(
        (
            f"Entry {number} deals with {entry.subject}.",
            f"This is in entry {number}, {entry.subject}.",
            f"See number {number}, on {entry.subject}.",
            f"The part on {entry.subject} is number {number}.",
        )
    )
    quote = w.pick(("It says", "The words are", "There we read")) + f': "{fact.sentence}"'
    others = [(f, "after" if i > at else "before") for i, f in enumerate(entry.facts) if i != at]
    near = [pair for pair in others if abs(entry.facts.index(pair[0]) - at) == 1][-1]
    also = (
        w.pick((f"Right {near[1]} that it says", "The sentence beside it is", "The same entry notes"))
        + f': "{near[0].sentence}"'
    )
    lines = [where, quote, also]
    if w.chance(0.6):
        far = w.pick([f for f, _ in others if f is not near[0]] or [near[0]])
        lines.append(
            w.pick((f"On {far.asked} it adds", f"As for {far.asked}, it has", f"Of {far.asked} it tells us"))
            + f': "{far.sentence}"'
        )
    if w.chance(0.5):
        other, step = (parts[index + 1], "next") if number < len(parts) else (parts[index - 1], "previous")
        lines.append(
            w.pick(
                (
                    f"The {step} entry is about {other.subject}.",
                    f"It stands {'before' if step == 'next' else 'after'} {other.subject}.",
                )
            )
        )
    if fact.value[:4] in ("its ", "the "):
        lines.append(w.pick(("It says no more about this.", "That is all it says.", "Nothing else is said there.")))
    else:
        lines.append(
            w.pick(
                (
                    f"So {fact.asked} is given as {fact.value}.",
                    f"In short, {fact.asked}: {fact.value}.",
                    f"The answer is {fact.value}.",
                )
            )
        )
    return " ".join(lines)


def _question(w: World, entry: Entry, fact: Fact) -> str:
    return w.pick(
        (
            f"What does the text say about {fact.asked} in the entry on {entry.subject}? Quote it.",
            f"Look up {entry.subject}. What is said about {fact.asked}?",
            f"Quote the sentence on {fact.asked} from the entry about {entry.subject}.",
            f"I need to know {fact.asked} for {entry.subject}. Please quote the place.",
            f"Concerning {entry.subject}: which sentence is about {fact.asked}?",
        )
    )


def make(w: World, entries: int | None = None) -> Conversation:
    """A document of `entries` entries (drawn if None) with one question, or several in training conversations."""
    make_entry, titles = KINDS[w.pick(list(KINDS))]
    count = entries or int(4 * 8.5 ** w.rng.random())
    parts: list[Entry] = []
    while len(parts) < count:
        entry = make_entry(w)
        if all(entry.subject != p.subject for p in parts):
            parts.append(entry)
    style = w.number(0, 2)
    gap = "\n" if parts[0].fields or style < 2 else " "
    text = "\n\n".join(f"{_title(w, e, i, style)}{gap}{_body(e, style)}" for i, e in enumerate(parts, 1))
    title = w.pick(titles).format(w.invented())
    turns: list[dict[str, str]] = []
    answer = ""
    for index in w.some(range(count), 1 if entries else w.number(3, 6)):
        entry = parts[index]
        fact = w.pick(entry.facts)
        ask = _question(w, entry, fact)
        if not turns:
            ask = w.pick(
                (
                    f"{title}\n\n{text}\n\n{ask}",
                    f"Read this document.\n\n{title}\n\n{text}\n\nQuestion: {ask}",
                    f"{ask}\n\n{title}\n\n{text}",
                )
            )
        turns += [user(ask), assistant(_answer(w, parts, fact, index))]
        answer = fact.sentence
    return Conversation("long_context", turns, answer=answer)
