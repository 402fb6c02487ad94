"""The pools of words that every generator of the recipe draws from, and the rule that holds some of them out.

A `World` is a seeded source of choices. It is either a training world or a held-out one, and the two never
share a combination: `is_held` hashes the parts that make an item (a name; an operation and its operands; a
verb and its noun), and a tenth of all hashes belong to held-out prompts alone.
"""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

_pools: dict[str, list[str]] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))

NAMES = _pools["names"]
SURNAMES = _pools["surnames"]
SYLLABLES = _pools["syllables"]
ENDINGS = _pools["endings"]
PLACES = _pools["places"]
DAYS = _pools["days"]
MONTHS = _pools["months"]
COLOURS = _pools["colours"]
ADJECTIVES = _pools["adjectives"]
ITEMS = _pools["items"]
CONTAINERS = _pools["containers"]
WEATHER = _pools["weather"]
HOURS = _pools["hours"]
MOODS = _pools["moods"]
RELATIVES = _pools["relatives"]
PERSONAL = _pools["personal"]
AIRS = _pools["airs"]


def is_held(*parts: object) -> bool:
    """Whether this combination belongs to the held-out prompts (one in ten does)."""
    return zlib.crc32("|".join(map(str, parts)).encode()) % 10 == 0


def cap(text: str) -> str:
    """The text with its first letter in upper case."""
    return text[:1].upper() + text[1:]


def an(noun: str) -> str:
    """The noun behind its indefinite article."""
    return ("an " if noun[0].lower() in "aeiou" else "a ") + noun


def series(parts: Sequence[str], last: str = "and") -> str:
    """'a', 'a and b', 'a, b and c'."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} {last} {parts[-1]}"


class World:
    """A seeded source of choices in the training world or the held-out one."""

    def __init__(self, rng: random.Random, held: bool = False) -> None:
        self.rng = rng
        self.held = held
        self._used: set[str] = set()

    def pick(self, options: Sequence[T]) -> T:
        return options[int(self.rng.random() * len(options))]

    def some(self, options: Sequence[T], count: int) -> list[T]:
        """`count` different options in random order."""
        return self.rng.sample(options, min(count, len(options)))

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def number(self, low: int, high: int) -> int:
        return low + int(self.rng.random() * (high - low + 1))

    def ours(self, *parts: object) -> bool:
        """Whether this combination belongs to this world."""
        return is_held(*parts) == self.held

    def invented(self) -> str:
        """A made-up proper name, so that copying is learnt rather than a list of names."""
        count = 1 if self.chance(0.5) else 2
        return cap("".join(self.pick(SYLLABLES) for _ in range(count)) + self.pick(ENDINGS))

    def name(self) -> str:
        """A first name of this world, not given before by this instance."""
        while True:
            name = self.pick(NAMES) if self.chance(0.6) else self.invented()
            if name not in self._used and self.ours("name", name):
                self._used.add(name)
                return name

    def full_name(self) -> str:
        surname = self.pick(SURNAMES) if self.chance(0.6) else self.invented()
        return f"{self.name()} {surname}"

    def item(self) -> tuple[str, str]:
        """Singular and plural of a countable thing."""
        one, many = self.pick(ITEMS).split("/")
        return one, many

    def container(self) -> tuple[str, str]:
        one, many = self.pick(CONTAINERS).split("/")
        return one, many

    def word(self) -> str:
        """A made-up lower-case word."""
        return self.invented().lower()

    def code(self) -> str:
        """A made-up identifier such as KL-4021."""
        letters = "".join(self.pick("ABCDEFGHJKLMNPRSTUVWXYZ") for _ in range(2))
        return f"{letters}-{self.number(100, 9999)}"

    def date(self) -> str:
        return f"{self.number(1, 28)} {self.pick(MONTHS)}"

    def clock(self) -> str:
        return f"{self.number(7, 20)}:{self.pick(('00', '15', '30', '45'))}"
