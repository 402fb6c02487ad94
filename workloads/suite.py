"""A suite is one YAML in conf/workload/: under `suite` it says what the prompts are made of.

`kind` names the class that reads the rest: `published` (rows of a source through templates), `builtin` (a file that
ships here), `mix` (the first prompts of other suites in turn), `file` and `sharegpt` (the user's own).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError  # type: ignore[import-untyped]

from methods.base import Refusal
from workloads.base import Workload

CONF = Path(__file__).resolve().parents[1] / "conf" / "workload"
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Suite(ABC):
    """What every kind of suite can say of itself, and its prompts."""

    name: str

    @property
    @abstractmethod
    def size(self) -> int | None:
        """How many prompts it asks; None where only the data can tell."""

    @property
    @abstractmethod
    def categories(self) -> tuple[str, ...]: ...

    @property
    @abstractmethod
    def source(self) -> str: ...

    @property
    @abstractmethod
    def licence(self) -> str: ...

    @property
    @abstractmethod
    def presence(self) -> str:
        """Where it is on this machine, in a few words; `no` if it is not."""

    @abstractmethod
    def load(self, path: Path | None, skip_bad: bool) -> Workload:
        """The prompts, without any to warm up. A `Refusal` says how to get what is not here."""

    def fetch(self) -> str:
        """Bring it to this machine; what was done, in a sentence."""
        raise Refusal(f"{self.name} is not fetched: it is your own data, which workload.path=… names.")


def definition(name: str, folder: Path = CONF) -> dict[str, Any]:
    """What the YAML of this name says under `suite`."""
    path = folder / f"{name}.yaml"
    try:
        content = OmegaConf.to_container(OmegaConf.load(path))
    except (OSError, UnicodeDecodeError, YAMLError, OmegaConfBaseException) as error:
        raise Refusal(f"{path} cannot be read as YAML: {' '.join(str(error).split())}.") from error
    suite = content.get("suite") if isinstance(content, dict) else None
    if not isinstance(suite, dict):
        raise Refusal(f"{path} is not accepted: a mapping with a mapping `suite` in it is.")
    return cast(dict[str, Any], suite)


def build(kind: type[T], settings: Any, where: str) -> T:
    """The dataclass made of a YAML mapping, whose lists become tuples; what is missing, unknown or of another type is
    refused."""
    if not isinstance(settings, Mapping):
        raise Refusal(f"{where}={settings} is not accepted: a mapping is.")
    known = {f.name: f for f in fields(kind)}  # type: ignore[arg-type]
    for key in settings:
        if key not in known:
            raise Refusal(f"{where}: {key} is not known: {', '.join(known)} are.")
    for name, f in known.items():
        if name not in settings and f.default is MISSING and f.default_factory is MISSING:
            raise Refusal(f"{where}: {name} is missing.")
    types = get_type_hints(kind)
    made = {key: tuple(value) if isinstance(value, list) else value for key, value in settings.items()}
    for key, value in made.items():
        if not _fits(value, types[key]):
            raise Refusal(f"{where}: {key}={settings[key]} is not accepted: {_words(types[key])} is.")
    return kind(**made)


def _fits(value: object, kind: Any) -> bool:
    """Whether a value is of a type as the suites' dataclasses use them."""
    if isinstance(kind, UnionType):
        return any(_fits(value, one) for one in get_args(kind))
    if get_origin(kind) is tuple:
        return isinstance(value, tuple) and all(isinstance(one, get_args(kind)[0]) for one in value)
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, get_origin(kind) or kind)


def _words(kind: Any) -> str:
    """The type as a person says it."""
    if isinstance(kind, UnionType):
        return " or ".join(_words(one) for one in get_args(kind))
    if get_origin(kind) is tuple:
        return "a list"
    words = {str: "a text", int: "an integer", bool: "true or false", type(None): "null"}
    return words.get(kind, "a mapping")
