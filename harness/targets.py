"""From a `_target_` in a YAML to the class it names, wherever that class lives: the only dispatch there is."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from typing import Any, TypeVar

from omegaconf import MissingMandatoryValue, OmegaConf, ValidationError

from harness.tracker import Tracker
from methods.base import Method, Refusal

T = TypeVar("T")
TYPE_WORDS: dict[Any, str] = {
    name: words
    for kind, words in ((int, "an integer"), (float, "a number"), (bool, "true or false"), (str, "a text"))
    for name in (kind, kind.__name__)
}


def load_class(target: str, base: type[T], setting: str) -> type[T]:
    """The class `target` names, a subclass of `base`; `setting` is how the refusal calls it."""
    module_name, _, class_name = target.rpartition(".")
    wanted = f"the dotted name of a {base.__module__}.{base.__name__} class is"
    if not module_name:
        raise Refusal(f"{setting}={target} is not accepted: {wanted}.")
    try:
        found = getattr(importlib.import_module(module_name), class_name, None)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise Refusal(f"{setting}={target} cannot be loaded: it needs the package {error.name}.") from error
        raise Refusal(f"{setting}={target} is not accepted: there is no module {error.name}; {wanted}.") from error
    if not isinstance(found, type) or not issubclass(found, base):
        raise Refusal(f"{setting}={target} is not accepted: {wanted}.")
    return found


def inexact(kind: Any, value: Any) -> bool:
    """Whether OmegaConf would quietly turn `value` into another: 2 into true."""
    return kind in (bool, "bool") and not isinstance(value, bool)


def build_method(config: Mapping[str, Any]) -> Method:
    """The method a YAML of settings and a `_target_` describes, checked against the dataclass's fields."""
    return _build(config, Method, "method")  # type: ignore[type-abstract]


def build_tracker(config: Mapping[str, Any]) -> Tracker:
    """The tracker a YAML of settings and a `_target_` describes, likewise."""
    return _build(config, Tracker, "tracker")  # type: ignore[type-abstract]


def _build(config: Mapping[str, Any], base: type[T], group: str) -> T:
    settings = {name: value for name, value in config.items() if name != "_target_"}
    if not isinstance(config.get("_target_"), str):
        raise Refusal(
            f"{group} has no _target_: the dotted name of a {base.__module__}.{base.__name__} class is needed."
        )
    found = load_class(config["_target_"], base, f"{group}._target_")
    called = getattr(found, "name", found.__name__)
    fields = {f.name: f.type for f in dataclasses.fields(found)}  # type: ignore[arg-type]
    for name, value in settings.items():
        if name not in fields:
            known = ", ".join(fields) or "none"
            raise Refusal(f"{group}.{name}={value} is not accepted: {called}'s settings are: {known}.")
        if inexact(fields[name], value):
            raise Refusal(f"{group}.{name}={value} is not accepted: {TYPE_WORDS[fields[name]]} is.")
    try:
        built = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(found), settings))
    except MissingMandatoryValue as error:
        raise Refusal(f"{group}.{error.full_key} is missing: {called} needs it.") from error
    except ValidationError as error:
        name = str(error.full_key)
        kind = TYPE_WORDS.get(fields.get(name), f"a value of type {fields.get(name)}")
        raise Refusal(f"{group}.{name}={settings.get(name)} is not accepted: {kind} is.") from error
    assert isinstance(built, base)
    return built


def target_of(thing: Method | Tracker) -> str:
    """The `_target_` that names this method's or tracker's class again."""
    return f"{type(thing).__module__}.{type(thing).__qualname__}"
