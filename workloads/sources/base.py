"""The contract of a source: `Remote` ones are fetched into the cache, `Package` ones read where they are installed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Row(NamedTuple):
    """One row of a source: the words that find it in its file, and its columns."""

    where: str
    values: Mapping[str, Any]


class Fetch(NamedTuple):
    """What a fetch brought: the rows, and the revision they are of where the source has such a thing."""

    rows: list[Row]
    revision: str | None


@dataclass(frozen=True, kw_only=True)
class Source(ABC):
    """`only` keeps the rows that have these values; `rename` turns this source's column names into the suite's."""

    only: Mapping[str, Any] = field(default_factory=dict)
    rename: Mapping[str, str] = field(default_factory=dict)

    @property
    @abstractmethod
    def title(self) -> str:
        """The source in words, without its revision."""

    @abstractmethod
    def advice(self, suite: str) -> str:
        """What to do to get it, as the object of `to have it, `."""

    def shape(self, rows: Iterable[Row]) -> list[Row]:
        """The rows as the suite knows them."""
        kept = (row for row in rows if all(row.values.get(k) == v for k, v in self.only.items()))
        return [Row(where, {self.rename.get(k, k): v for k, v in values.items()}) for where, values in kept]

    def own_columns(self, columns: Sequence[str]) -> list[str]:
        """The source's names of the suite's columns."""
        theirs = {ours: name for name, ours in self.rename.items()}
        return [theirs.get(column, column) for column in columns]


class Remote(Source):
    """A source out on the network."""

    @abstractmethod
    def fetch(self, columns: Sequence[str]) -> Fetch:
        """The rows, with at least these of the suite's columns.

        Raises:
            Refusal: it could not be had, in one sentence.
        """

    @abstractmethod
    def local(self, folder: Sequence[str]) -> list[str]:
        """Of the data files in a folder (relative, in natural order), those that are this source's."""


class Package(Source):
    """A source inside an installed package."""

    @abstractmethod
    def version(self) -> str | None:
        """The installed version, or None."""

    @abstractmethod
    def read(self) -> Fetch:
        """The rows of the installed version."""
