"""Suites that people quote: the rows of a published source, in the published order, number and prompt form.

Where the rows are taken from, in this order: `workload.path`, the cache of fetched suites, an installed package.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from methods.base import Refusal
from workloads.base import Origin, Workload
from workloads.mapping import Templates
from workloads.sources import KINDS, Package, Remote, Row, Source, cache, files
from workloads.suite import Suite, build

SHOWN = 3


@dataclass(frozen=True)
class Placeholder:
    """A text that stands where a row's own is not shipped. Such rows are refused, or left out by a suite that says so;
    `remedy` is how to come by the text."""

    text: str
    leave_out: bool
    remedy: str


class Found(NamedTuple):
    """The rows of a suite, and where they were found."""

    rows: list[Row]
    origin: Origin


@dataclass(frozen=True, kw_only=True)
class Published(Suite):
    """A published suite.

    Args:
        sources: where the rows can be had, the best first.
        terms: the data's licence, as its source states it.
        rows: how many rows the source has; another number is another data set.
        count: how many are asked (None: all).
        shuffle_seed: rows beyond `count` are chosen as `datasets` does: `shuffle(seed).select(range(count))`.
        templates: how a row is asked.
        placeholder: what stands in rows whose text is not shipped.
    """

    sources: tuple[Source, ...]
    terms: str
    rows: int
    templates: Templates
    count: int | None = None
    shuffle_seed: int | None = None
    placeholder: Placeholder | None = None

    @classmethod
    def read(cls, name: str, settings: Mapping[str, Any], where: str) -> Published:
        """The suite that a YAML describes."""
        rest = dict(settings)
        listed = rest.pop("sources", None)
        if not (isinstance(listed, list) and listed):
            raise Refusal(f"{where}: sources={listed} is not accepted: a list of sources is.")
        sources = tuple(_source(one, f"{where}, sources") for one in listed)
        own = {f.name for f in fields(Templates)}
        templates = build(Templates, {k: rest.pop(k) for k in list(rest) if k in own}, where)
        if (templates.prompt is None) == (templates.turns is None):
            raise Refusal(f"{where}: prompt or turns is needed, and not both.")
        templates.check(where)
        if placeholder := rest.pop("placeholder", None):
            rest["placeholder"] = build(Placeholder, placeholder, f"{where}, placeholder")
        made = build(cls, {**rest, "name": name, "sources": sources, "templates": templates}, where)
        if made.count is not None and made.count < 1:
            raise Refusal(f"{where}: count={made.count} is not accepted: an integer of at least 1 or null is.")
        return made

    @property
    def size(self) -> int | None:
        return None if self.placeholder and self.placeholder.leave_out else self.count or self.rows

    @property
    def categories(self) -> tuple[str, ...]:
        return self.templates.categories

    @property
    def source(self) -> str:
        return "; or ".join(source.title for source in self.sources)

    @property
    def licence(self) -> str:
        return self.terms

    @property
    def presence(self) -> str:
        if manifest := self._fetched():
            return f"fetched {manifest.fetched_utc[:10]}"
        if package := self._package():
            return f"in {package.title} {package.version()}"
        return "no"

    @property
    def advice(self) -> str:
        """How to get it."""
        ways = [source.advice(self.name) for source in self.sources]
        return f"{' or '.join(ways)} brings it, or workload.path=… names a file or folder of its rows"

    def load(self, path: Path | None, skip_bad: bool) -> Workload:
        if skip_bad:
            raise Refusal(
                f"workload.skip_bad=true is not accepted with workload={self.name}: a part of a published suite is "
                "another suite, so it goes with file and sharegpt."
            )
        found = self._from_path(path) if path is not None else self._here()
        return self._workload(found)

    def fetch(self) -> str:
        remotes = [source for source in self.sources if isinstance(source, Remote)]
        if not remotes:
            if package := self._package():
                return f"{self.name} is in {package.title} {package.version()}: nothing is fetched."
            raise Refusal(f"{self.name} ships in a package: {self.advice}.")
        problems = []
        for source in remotes:
            try:
                got = source.fetch(self.templates.columns)
                rows = source.shape(got.rows)
                self._workload(Found(rows, Origin(source.title)))  # before anything is written
            except Refusal as reason:
                problems.append(str(reason))
                continue
            columns = self.templates.columns
            manifest = cache.store(self.name, source.title, got.revision, self.terms, columns, rows)
            place = cache.folder() / self.name
            return f"{self.name}: {manifest.n_rows} rows of {source.title} at {got.revision} are in {place}."
        raise Refusal(" ".join(problems))

    def _here(self) -> Found:
        if manifest := self._fetched():
            origin = Origin(
                manifest.source, manifest.revision, self.terms, manifest.sha256, fetched_utc=manifest.fetched_utc
            )
            return Found(cache.read(manifest), origin)
        if package := self._package():
            got = package.read()
            return Found(package.shape(got.rows), Origin(package.title, got.revision, self.terms))
        raise Refusal(f"workload={self.name} is not on this machine: {self.advice}.")

    def _from_path(self, path: Path) -> Found:
        if not path.exists():
            raise Refusal(f"workload.path={path} cannot be read: no such file or folder.")
        remotes = [source for source in self.sources if isinstance(source, Remote)]
        paths = files.data_files(path, remotes[0].local if remotes else _only_one) if path.is_dir() else [path]
        rows = [row for one in paths for row in files.read(one)]
        shaped = next((s.shape(rows) for s in self.sources if self._fits(s.shape(rows))), rows)
        return Found(shaped, Origin(str(path), None, self.terms, files.sha256(paths)))

    def _fits(self, rows: list[Row]) -> bool:
        return bool(rows) and all(column in rows[0].values for column in self.templates.columns)

    def _fetched(self) -> cache.Manifest | None:
        """The manifest in the cache, if it is of a source, a revision and columns that the suite has today."""
        manifest = cache.find(self.name)
        if manifest is None or not set(self.templates.columns) <= set(manifest.columns):
            return None
        pinned = {(source.title, getattr(source, "revision", None)) for source in self.sources}
        known = (manifest.source, None) in pinned or (manifest.source, manifest.revision) in pinned
        return manifest if known else None

    def _package(self) -> Package | None:
        packages = (source for source in self.sources if isinstance(source, Package))
        return next((package for package in packages if package.version() is not None), None)

    def _workload(self, found: Found) -> Workload:
        """The rows as asked."""
        if len(found.rows) != self.rows:
            raise Refusal(
                f"{found.origin.source} holds {len(found.rows):,} rows where {self.name} has {self.rows:,}: "
                "a part of it needs a name of its own (workload=file takes any prompts)."
            )
        places = self._placed(found.rows)
        prompts = tuple(self.templates.ask(place, found.rows[place]) for place in places)
        return Workload(self.name, prompts, origin=found.origin)

    def _placed(self, rows: list[Row]) -> list[int]:
        """The places of the rows that are asked, in the order they are."""
        places = list(range(len(rows)))
        if self.placeholder is not None:
            bare = {place for place in places if self._is_placeholder(place, rows[place])}
            if bare and not self.placeholder.leave_out:
                names = [self.templates.name(place, rows[place]) for place in sorted(bare)[:SHOWN]]
                raise Refusal(
                    f"workload={self.name}: {len(bare)} of {len(rows)} rows ship a placeholder for their text "
                    f"({', '.join(names)}{', …' if len(bare) > SHOWN else ''}): {self.placeholder.remedy}."
                )
            places = [place for place in places if place not in bare]
        if self.count is None or self.count >= len(places):
            return places
        if self.shuffle_seed is not None:
            import numpy as np

            places = [places[i] for i in np.random.default_rng(self.shuffle_seed).permutation(len(places))]
        return places[: self.count]

    def _is_placeholder(self, place: int, row: Row) -> bool:
        assert self.placeholder is not None
        try:
            return any(self.placeholder.text in text for text in self.templates.texts(place, row))
        except Refusal as reason:
            raise Refusal(f"{row.where}: {reason}.") from None


def _source(settings: object, where: str) -> Source:
    rest = dict(settings) if isinstance(settings, Mapping) else {}
    kind = rest.pop("kind", None)
    if not isinstance(kind, str) or kind not in KINDS:
        raise Refusal(f"{where}: kind={kind} is not accepted: one of {', '.join(KINDS)} is.")
    return build(KINDS[kind], rest, where)


def _only_one(names: Sequence[str]) -> list[str]:
    return list(names) if len(names) == 1 else []
