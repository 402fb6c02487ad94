"""The workloads by name: every YAML in conf/workload/ is one. The five built-in types and their mixes need nothing
else; `file` and `sharegpt` read the user's own; the published ones are in `workloads.published`.

A mix asks its parts type by type in turn: chat, code, math, tool calls, long context, chat, …
"""

from __future__ import annotations

import difflib
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from methods.base import Refusal
from workloads import jsonl, sharegpt
from workloads.base import Origin, Prompt, Workload
from workloads.published import Published
from workloads.sieve import Sieved
from workloads.sources import files
from workloads.suite import CONF, Suite, build, definition

BUILTIN_FOLDER = Path(__file__).parent / "builtin"
BUILTIN_LICENCE = "Apache-2.0"
TYPES = ("chat", "code", "math", "tool_calls", "long_context")


@dataclass(frozen=True, kw_only=True)
class Shipped(Suite):
    """What the built-in suites have in common."""

    @property
    def size(self) -> int | None:
        return len(self.load(None, False).prompts)

    @property
    def categories(self) -> tuple[str, ...]:
        return self.load(None, False).categories

    @property
    def source(self) -> str:
        return "built in"

    @property
    def licence(self) -> str:
        return BUILTIN_LICENCE

    @property
    def presence(self) -> str:
        return "built in"

    def load(self, path: Path | None, skip_bad: bool) -> Workload:
        for word, given in ((f"workload.path={path}", path is not None), ("workload.skip_bad=true", skip_bad)):
            if given:
                raise Refusal(f"{word} is not accepted with workload={self.name}: it goes with your own data.")
        return Workload(self.name, self.prompts(), origin=Origin(self.source, None, self.licence))

    @abstractmethod
    def prompts(self) -> tuple[Prompt, ...]:
        """The prompts in order."""

    def fetch(self) -> str:
        return f"{self.name} is built in: nothing is fetched."


@dataclass(frozen=True, kw_only=True)
class Builtin(Shipped):
    """One type, as its file has it."""

    def prompts(self) -> tuple[Prompt, ...]:
        return _builtin(self.name)


@dataclass(frozen=True, kw_only=True)
class Mix(Shipped):
    """The first `each` prompts of every part in turn (None: all), as far as a part has them."""

    of: tuple[str, ...]
    each: int | None = None

    def prompts(self) -> tuple[Prompt, ...]:
        parts = [_builtin(name) for name in self.of]
        each = max(map(len, parts)) if self.each is None else self.each
        return tuple(part[i] for i in range(each) for part in parts if i < len(part))


@dataclass(frozen=True, kw_only=True)
class Own(Suite):
    """The user's own data, read by `reader`; `what` says what `workload.path` has to name."""

    what: str
    reader: Callable[[Path, bool], Sieved]

    @property
    def size(self) -> int | None:
        return None

    @property
    def categories(self) -> tuple[str, ...]:
        return ()

    @property
    def source(self) -> str:
        return f"workload.path=…, {self.what}"

    @property
    def licence(self) -> str:
        return "yours"

    @property
    def presence(self) -> str:
        return "yours"

    def load(self, path: Path | None, skip_bad: bool) -> Workload:
        if path is None:
            raise Refusal(f"workload={self.name} needs workload.path: {self.what}.")
        prompts, skipped = self.reader(path, skip_bad)
        return Workload(self.name, prompts, origin=Origin(str(path), sha256=files.sha256([path])), skipped=skipped)


def _file(name: str, settings: Mapping[str, Any], where: str) -> Suite:
    _no_more(settings, where)
    return Own(name=name, what="a JSONL file of prompts", reader=jsonl.read)


def _sharegpt(name: str, settings: Mapping[str, Any], where: str) -> Suite:
    first = settings.get("first_turn_only")
    _no_more({k: v for k, v in settings.items() if k != "first_turn_only"}, where)
    if not isinstance(first, bool):
        raise Refusal(f"{where}: first_turn_only={first} is not accepted: true or false is.")
    what = "a JSON file of ShareGPT conversations"
    return Own(name=name, what=what, reader=lambda path, skip_bad: sharegpt.read(path, first, skip_bad))


def _no_more(settings: Mapping[str, Any], where: str) -> None:
    for key in settings:
        raise Refusal(f"{where}: {key} is not known.")


_KINDS: dict[str, Callable[[str, Mapping[str, Any], str], Suite]] = {
    "published": Published.read,
    "builtin": lambda name, settings, where: build(Builtin, {**settings, "name": name}, where),
    "mix": lambda name, settings, where: build(Mix, {**settings, "name": name}, where),
    "file": _file,
    "sharegpt": _sharegpt,
}


def names() -> tuple[str, ...]:
    """Every workload: the built-in ones first."""
    first = ("smoke", "ci", "full", *TYPES)
    return (*first, *sorted(path.stem for path in CONF.glob("*.yaml") if path.stem not in first))


def suite(name: str, settings: Mapping[str, Any] | None = None) -> Suite:
    """The suite of this name, unloaded; `settings` describe one that is not in conf/workload/.

    Raises:
        Refusal: an unknown name, or settings that do not describe a suite.
    """
    if settings is None and name not in names():
        near = difflib.get_close_matches(name, names(), n=1)
        meant = f"; did you mean {near[0]}?" if near else "."
        raise Refusal(f"workload={name} is not known: a name that `python -m workloads list` shows is accepted{meant}")
    rest = dict(definition(name) if settings is None else settings)
    kind, where = rest.pop("kind", None), f"workload/{name}.yaml, suite"
    if not isinstance(kind, str) or kind not in _KINDS:
        raise Refusal(f"{where}: kind={kind} is not accepted: one of {', '.join(_KINDS)} is.")
    return _KINDS[kind](name, rest, where)


def load(
    name: str,
    path: str | Path | None = None,
    skip_bad: bool = False,
    settings: Mapping[str, Any] | None = None,
) -> Workload:
    """The workload of this name with its warm-up prompts.

    Args:
        name: one of `names()`.
        path: the user's file, or files of a published suite's rows; not for a built-in name.
        skip_bad: leave out damaged and repeated rows of the user's own data, and count them.
        settings: the suite, where it is not one of conf/workload/.

    Raises:
        Refusal: an unknown name, data that is not here (with how to get it), or a damaged file.
    """
    workload = suite(name, settings).load(None if path is None else Path(path), skip_bad)
    ids, asked = {p.id for p in workload.prompts}, {p.messages for p in workload.prompts}
    warmup = (w for w in _builtin("warmup") if w.id not in ids and w.messages not in asked)
    return replace(workload, warmup=tuple(warmup))


def _builtin(name: str) -> tuple[Prompt, ...]:
    return jsonl.read(BUILTIN_FOLDER / f"{name}.jsonl").prompts
