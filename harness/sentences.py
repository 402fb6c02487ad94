"""Turns what Hydra and OmegaConf say about a command line into one sentence that names the setting, the value
and what is accepted. An error it does not know as the user's is left alone: a bug keeps its traceback.
"""

from __future__ import annotations

import difflib
import re
import traceback
from collections.abc import Iterable
from pathlib import Path

import hydra
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import ValidationError
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, InterpolationResolutionError, OmegaConfBaseException

from harness.config import CONF, leaves
from harness.targets import TYPE_WORDS
from methods.base import Refusal


def sentence(error: BaseException, words: Iterable[str] = ()) -> str | None:
    """The sentence for a user's error, None for anything else. `words` are the command line's."""
    words = list(words)
    if isinstance(error, Refusal):
        return str(error)
    if isinstance(error, OverrideParseException):
        return (
            f"{error.override!r} cannot be read: NAME=VALUE is accepted, quoted where the value has blanks or brackets."
        )
    if isinstance(error, MissingConfigException):
        return _bad_option(words) or _missing_option(error)
    if type(error).__module__.partition(".")[0] == "yaml":
        return f"A config file cannot be read as YAML: {_one_line(str(error))}."
    if isinstance(error, HydraException | OmegaConfBaseException):
        return _bad_option(words) or _composition(error, words)
    if isinstance(error, ValueError) and _raised_by_hydra(error):
        return _bad_option(words) or f"{_one_line(str(error))}."
    if isinstance(error, OSError) and error.filename and _raised_by_hydra(error, within=3):
        return f"{error.filename} cannot be written: {error.strerror}."
    return None


def closest(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?`, or nothing where nothing is near."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else ""


def known_settings() -> list[str]:
    """Every name a command can set: the schema's, the groups', and what the default method holds."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return sorted({*dict(leaves()), *(f"method.{name}" for name in compose("config").method), *_options()})


def _options() -> dict[str, list[str]]:
    """The groups and their options; to be called while Hydra is initialised."""
    loader = GlobalHydra.instance().config_loader()
    return {group: loader.get_group_options(group) for group in loader.list_groups("") if group != "hydra"}


def _bad_option(words: list[str]) -> str | None:
    """A group set to what cannot be an option: a number, a list, a mapping."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        options = _options()
    for word in words:
        group, _, value = word.partition("=")
        if not group:
            return f"{word!r} cannot be read: NAME=VALUE is accepted."
        if group in options and (
            value.lower() in ("null", "true", "false") or not re.fullmatch(r"[A-Za-z_][\w/,-]*", value)
        ):
            return f"{word} is not accepted: one of {', '.join(options[group])} is."
    return None


def _missing_option(error: MissingConfigException) -> str:
    missing = str(error.missing_cfg_file)
    group, _, option = missing.rpartition("/")
    options = sorted(error.options or [])
    if group and options:
        near = closest(option, options)
        return f"{group}={option} is not accepted: one of {', '.join(options)} is{near or '.'}"
    return f"{_one_line(re.split('(?i)check that|search path', str(error))[0])}."


def _composition(error: Exception, words: list[str]) -> str:
    text = str(error)
    there = re.search(r"An item is already at '([^']*)'|Multiple values for (\w+)\.", text)
    if there:
        name = there[1] or there[2]
        added = [word for word in words if word.startswith("+")]
        return f"{_word(name, added)} is not accepted: {name} is a setting already, so {name}=… without the + is."
    cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else error
    swept = re.search(r"(?:Ambiguous value for argument|Sweep parameters) '([^']*)'", text)
    if swept:
        return f"{swept[1]} is a sweep, which needs -m (--multirun); a list is written NAME=[a,b]."
    if isinstance(cause, ConfigAttributeError | ConfigKeyError):
        name = str(cause.full_key)
        word = _word(name, words)
        return f"{word} is not accepted: there is no setting {name}{closest(name, known_settings()) or '.'}"
    if isinstance(cause, ValidationError):
        return _wrong_type(cause, words)
    if isinstance(cause, InterpolationResolutionError):
        key = re.search(r"key '([^']*)'", str(cause))
        word = next((word for word in words if f"${{{key[1] if key else ''}" in word), str(cause.full_key))
        return f"{word} is not accepted: {_one_line(str(cause))}."
    if cause is not error:
        text = f"{text}: {cause}"
    return f"{_one_line(text)}."


def _wrong_type(cause: ValidationError, words: list[str]) -> str:
    name = str(cause.full_key)
    kinds = dict(leaves())
    accepted = TYPE_WORDS.get(kinds.get(name))
    for kind in (str, int):
        if kinds.get(name) == (kind | None):
            accepted = f"{TYPE_WORDS[kind]} or null"
    value = re.search(r"Value '([^']*)'", str(cause))
    words = [word for word in words if value is None or word.endswith(f"={value[1]}")] or words
    if accepted is None:  # a whole group set to a value, or a value inside an option's file
        return f"{_word(name, words)} is not accepted: {_one_line(str(cause))}."
    return f"{_word(name, words)} is not accepted: {accepted} is."


def _word(name: str, words: list[str]) -> str:
    """The command line's last word that set `name`, or the name itself where a file did."""
    return next((word for word in reversed(words) if word.lstrip("+~").split("=")[0] == name), name)


def _one_line(text: str) -> str:
    kept = (line.strip() for line in text.splitlines())
    return " ".join(
        line for line in kept if line and not line.startswith(("full_key:", "object_type=", "reference_type="))
    ).rstrip(".")


def _raised_by_hydra(error: BaseException, within: int = 1) -> bool:
    """Whether one of the last frames is Hydra's own: it raises a bare ValueError for some command lines, and what the
    system says of a folder it cannot make."""
    frames = traceback.extract_tb(error.__traceback__)[-within:]
    return any(Path(str(hydra.__file__)).parent in Path(frame.filename).parents for frame in frames)
