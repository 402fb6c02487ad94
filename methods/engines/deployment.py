"""`python -m methods.engines serve NAME model=… method=…`: an OpenAI-compatible server with a measured arm's settings.

The command is printed and then takes this process's place, so that it can be copied, and ends as it would by hand. The
arguments are those of the arm's server, with what only measuring needs left to the model: its own sampling defaults and
its whole window. Such a server can be measured itself (`engine.url`).
"""

from __future__ import annotations

import os
import shlex
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

import yaml  # type: ignore[import-untyped]

from methods.autoregressive import Autoregressive
from methods.base import EngineSpec, Method, ModelSpec, Refusal
from methods.ddtree import DDTree
from methods.dflash import DFlash
from methods.engines.environments import Environment, interpreter
from methods.engines.served import Place, ServedEngine
from methods.engines.server import LEFT_OUT

MODELS = Path(__file__).resolve().parents[2] / "conf" / "model"
METHODS: dict[str, Method] = {each.name: each for each in (Autoregressive(), DFlash(), DDTree(64))}


@dataclass(frozen=True)
class Wanted:
    """The words of the command line. `max_length` 0 is the model's window; `args` go to the server as they are."""

    model: str = "tiny"
    target: str = ""
    drafter: str = ""
    method: str = "dflash"
    tp: int = 1
    dtype: str = "auto"
    concurrency: int = 64
    max_length: int = 0
    host: str = "127.0.0.1"
    port: int = 8000
    python: str = ""
    args: str = "{}"

    @classmethod
    def read(cls, words: Sequence[str]) -> Wanted:
        """From `name=value` words, as on the harness's own command line.

        Raises:
            Refusal: a word is no setting, or its value of another kind.
        """
        found: dict[str, Any] = {}
        for word in words:
            name, equals, value = word.partition("=")
            key = {"model.target": "target", "model.drafter": "drafter", "engine.python": "python"}.get(name, name)
            key = key.removeprefix("engine.")
            if not equals or key not in cls.__dataclass_fields__:
                known = ", ".join(cls.__dataclass_fields__)
                raise Refusal(f"{word} is not accepted: NAME=VALUE is, with one of {known}.")
            if isinstance(getattr(cls, key), int):
                if not value.isdecimal():
                    raise Refusal(f"{word} is not accepted: an integer of at least 0 is.")
                found[key] = int(value)
            else:
                found[key] = value
        return cls(**found)

    def spec(self, device: Literal["cpu", "cuda"]) -> EngineSpec:
        """What the engine is opened with."""
        return EngineSpec(
            self.model_spec,
            self.tp,
            device,
            self.dtype,
            max_length=self.max_length or 1,
            python=self.python or None,
            args=tuple(self._arguments().items()),
            concurrency=self.concurrency,
        )

    @property
    def model_spec(self) -> ModelSpec:
        """The pair: one that conf/model names, or the two folders or hub ids given."""
        if self.target and self.drafter:
            return ModelSpec(Path(self.target).name, self.target, self.drafter)
        file = MODELS / f"{self.model}.yaml"
        if not file.is_file():
            raise Refusal(
                f"model={self.model} is not accepted: {', '.join(sorted(path.stem for path in MODELS.glob('*.yaml')))} "
                "is, or model.target=… with model.drafter=…."
            )
        named = yaml.safe_load(file.read_text())
        return ModelSpec(named["name"], self.target or named["target"], self.drafter or named["drafter"])

    @property
    def chosen(self) -> Method:
        if self.method not in METHODS:
            raise Refusal(f"method={self.method} is not accepted: {', '.join(METHODS)} are.")
        return METHODS[self.method]

    def _arguments(self) -> dict[str, Any]:
        try:
            given = yaml.safe_load(self.args)
        except yaml.YAMLError:
            given = None
        if not isinstance(given, dict) or not all(
            isinstance(each, str | int | float | bool) for each in given.values()
        ):
            raise Refusal(f"args={self.args} is not accepted: arguments by their names are, as in {{block_size: 32}}.")
        return cast(dict[str, Any], given)


def serve(environment: Environment, engine_class: type[ServedEngine], words: Sequence[str], dry_run: bool) -> None:
    """Print the command and become it; with `dry_run` only print it.

    Raises:
        Refusal: what is asked cannot be served, or the port is somebody's.
    """
    wanted = Wanted.read(words)
    method = wanted.chosen
    spec = wanted.spec(environment.device)
    engine_class.check(spec, (method,))
    if not wanted.max_length:
        spec = replace(spec, max_length=engine_class.longest(spec))
    place = Place(spec.model.name, wanted.host, wanted.port)
    command, variables = command_of(environment, engine_class(spec), method, place)
    if not dry_run:
        _refuse_taken(place)
    set_first = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
    print(" ".join([*set_first, shlex.join(command)]), flush=True)
    if dry_run:
        return
    kept = {name: value for name, value in os.environ.items() if name not in LEFT_OUT}
    os.execvpe(command[0], command, {**kept, **variables})


def command_of(
    environment: Environment, engine: ServedEngine, method: Method, place: Place
) -> tuple[list[str], Mapping[str, str]]:
    """The whole command of a deployed server and what its environment gets."""
    python = interpreter(environment, engine.spec.python)
    variables = {name: value for name, value in engine.variables().items() if name not in engine.private}
    return [str(python), *engine.deployment(method, place)], variables


def _refuse_taken(place: Place) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((place.host, place.port))
        except OSError as error:
            said = f"port={place.port} is not accepted: {place.host} does not give it ({error.strerror})."
            raise Refusal(said) from error
