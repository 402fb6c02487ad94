"""Engines that run in a server of another environment: one server at a time, another for each kind of arm.

An adapter says how its server is started, how it is spoken to and what its counters mean; the life of the servers, the
times of a request and what is told when one fails are here. Every adapter has to say `arguments`, `address`,
`variables`, `client`, `ready` and `facts`; `attached`, `counters`, `longest` and `deployment` where its engine offers
them. Set for all: at most `spec.concurrency` requests run at once.

A request's whole time is this process's, from the call to the last token off the socket. How much of it was decoding is
what the engine itself says: on a busy machine tokens can wait for a reader, and all come at once.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import shutil
import tempfile
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

from methods.autoregressive import Autoregressive
from methods.base import Cut, Engine, EngineSpec, Generation, Inspect, Method, Refusal, Request, Round, Sampling
from methods.engines.environments import Environment, interpreter
from methods.engines.http import STALL_S, Http, ServerError
from methods.engines.server import PORT_TAKEN, READY_S, Launch, Server, free_port
from methods.locate import is_hub_id, resolve
from methods.reference.config import check_pair, drafter_config, target_config
from methods.streaming import Chunk, StreamingClient

T = TypeVar("T")
LAST_S = 2.0  # from a broken answer until its server has ended, where it does
PORTS = 3  # tries, where somebody else was quicker to take a port that was free


@dataclass(frozen=True)
class Told(Chunk):
    """What a server tells of a request beside its tokens: the seconds from its first token to its last, how many
    drafted tokens each verify step accepted, in order, and how many of the prompt's tokens came from a cache."""

    decode_s: float = 0.0
    accepted: tuple[int, ...] = ()
    cached_tokens: int = 0


class Place(NamedTuple):
    """Where a deployed server listens, and what it is called there."""

    name: str
    host: str
    port: int


@dataclass(frozen=True)
class Running:
    """A server that answers, under a name nobody else has; without `server` it is somebody else's, at a URL."""

    server: Server | None
    http: Http
    model: str
    arguments: tuple[str, ...]


class ServedEngine(Engine):
    """What the adapters share. Arms whose servers take the same arguments share one."""

    blocks: ClassVar[bool] = True
    crowds: ClassVar[bool] = True
    environments: ClassVar[dict[str, Environment]]  # by device
    ready_s: ClassVar[float] = READY_S  # how long a server may take to start
    stall_s: ClassVar[float] = STALL_S  # how long a request may wait for the next thing
    private: ClassVar[tuple[str, ...]] = ()  # variables that a server for others does not get
    own_arguments: ClassVar[tuple[str, ...]]  # those that `engine.args` cannot set

    def __init__(self, spec: EngineSpec) -> None:
        super().__init__(spec)
        self._running: Running | None = None
        self._scratch: Path | None = None
        self._started = 0
        self._facts: dict[str, str | int | float] = {}

    @classmethod
    def profiles(cls, method: Method) -> bool:
        return False

    @classmethod
    def check_model(cls, spec: EngineSpec, methods: Sequence[Method], longest: int) -> None:
        """Refuse a pair that does not fit together, the ranks, or the window, of which the server takes `longest`
        tokens; and one without weights."""
        target = target_config(resolve(spec.model.target, weights=False))
        target.check_ranks(spec.tp, "target")
        if any(method.uses_drafter for method in methods):
            check_pair(target, drafter_config(resolve(spec.model.drafter, weights=False)))
        if longest > target.window:
            raise Refusal(
                f"prompt and output of {spec.max_length} tokens do not fit {spec.model.name}'s window of "
                f"{target.window}: engine={cls.name} needs {longest - spec.max_length} more; "
                "fewer max_new_tokens or shorter prompts are needed."
            )
        for reference in (spec.model.target, spec.model.drafter):
            if not is_hub_id(reference) and not any(resolve(reference).glob("*.safetensors")):
                raise Refusal(f"{reference} holds no safetensors weights, which engine={cls.name} needs.")

    @classmethod
    def check_environment(cls, spec: EngineSpec) -> None:
        """Refuse arguments that the harness sets itself, and an environment that is not there."""
        for name, value in spec.args:
            if name.replace("_", "-") in cls.own_arguments:
                raise Refusal(f"engine.args.{name}={value} is not accepted: the harness sets --{name} itself.")
        if not spec.urls:
            interpreter(cls.environments[spec.device], spec.python)

    @classmethod
    def check_urls(cls, spec: EngineSpec, methods: Sequence[Method]) -> None:
        """Refuse addresses that are none, or not of every arm: AR's server has no speculative decoding at all."""
        for _, url in spec.urls:
            Http.at(url)
        if spec.urls:
            for method in methods:
                if method.name not in dict(spec.urls):
                    named = f"{{{', '.join(f'{each.name}: http://HOST:PORT' for each in methods)}}}"
                    raise Refusal(f"engine.url names no server of {method.name}: {named} is accepted.")

    @classmethod
    def judges(cls, spec: EngineSpec, sampling: Sampling) -> bool:
        """Above temperature 0 texts are tested (`improbable`), above 1 they are not; simulated ones are no target's."""
        return sampling.temperature <= 1 and spec.simulate_acceptance is None

    @abstractmethod
    def arguments(self, method: Method) -> list[str]:
        """The words that follow the interpreter for a server of this method, all but its name and its port."""

    @abstractmethod
    def address(self, model: str, port: int) -> list[str]:
        """The words that give a server its name and its port."""

    @abstractmethod
    def variables(self) -> dict[str, str]:
        """What the server's process gets in its environment."""

    @abstractmethod
    def client(self, running: Running) -> StreamingClient:
        """Speaks to the server; its last chunk is a `Told`."""

    @abstractmethod
    async def ready(self, http: Http, model: str) -> bool:
        """Whether the server of this name answers requests."""

    @abstractmethod
    async def facts(self, running: Running) -> dict[str, str | int | float]:
        """What a server says of itself, for the records."""

    @classmethod
    def longest(cls, spec: EngineSpec) -> int:
        """The tokens of the longest text, prompt and answer, that this pair's window holds here."""
        return target_config(resolve(spec.model.target, weights=False)).window

    def deployment(self, method: Method, place: Place) -> list[str]:
        """The words that follow the interpreter for a server of this method that anybody may ask: `arguments`, less
        what only measuring needs, and what chats and tool calls need."""
        raise Refusal(f"serve is not accepted: engine={self.name} has no server for others.")

    async def attached(self, http: Http, method: Method) -> tuple[str, dict[str, str | int | float]]:
        """The name under which a server that runs already answers, and its arguments as read back from it.

        Raises:
            Refusal: it serves another model, or not as this method's arm needs.
        """
        raise Refusal(f"engine.url is not accepted: engine={self.name} starts its servers itself.")

    def open(self, methods: Sequence[Method]) -> None:
        for method in methods[:0:-1] if self.spec.urls else ():
            self.serving(method)  # whatever is wrong with one that runs already is told before anything is asked
        self.serving(methods[0])

    def generate(
        self, method: Method, request: Request, *, profile: bool = False, inspect: Inspect | None = None
    ) -> Generation:
        running = self.serving(method)
        return self.answered(running, self.client(running), request)

    def answered(self, running: Running, client: StreamingClient, request: Request) -> Generation:
        """What a request comes to that `client` asks alone."""
        chunks, start_s = self.within(running, _read(client, request))
        return self.finished(chunks, max(chunk.time_s for chunk in chunks if chunk.token_ids) - start_s)

    def finished(self, chunks: Sequence[Chunk], elapsed_s: float) -> Generation:
        told = chunks[-1]
        if not isinstance(told, Told):
            raise ServerError("the answer came without its figures")
        if told.cached_tokens:
            raise ServerError(f"{told.cached_tokens} tokens of the prompt came from a cache, which has to be off")
        reason = next(chunk.finish_reason for chunk in chunks if chunk.finish_reason)
        output = tuple(token for chunk in chunks for token in chunk.token_ids)
        decode_s = min(told.decode_s, elapsed_s)
        return Generation(
            output_ids=output,
            finish_reason=reason,
            rounds=rounds(told.accepted, len(output), reason),
            ttft_s=elapsed_s - decode_s,
            decode_s=decode_s,
        )

    def crowd(self, method: Method, work: Callable[[StreamingClient], Coroutine[Any, Any, T]]) -> T:
        running = self.serving(method)
        return self.within(running, work(self.client(running)))

    def counters(self, method: Method) -> dict[str, float]:
        return {}

    def serving(self, method: Method) -> Running:
        """The server for this method, started now unless it is the one that runs."""
        url = dict(self.spec.urls).get(method.name)
        arguments = (url, method.name) if url else tuple(self.arguments(method))
        if self._running is None or self._running.arguments != arguments:
            self._stop()
            self._running = self._attach(method, url) if url else self._start(method, arguments)
        return self._running

    def within(self, running: Running, work: Coroutine[Any, Any, T]) -> T:
        """Do `work` with a server. Where that fails the error tells how the server ended, and its last lines."""
        try:
            return asyncio.run(work)
        except ServerError as error:
            if running.server is None:
                raise
            ended = running.server.ended(LAST_S)
            self._stop()
            told = error if ended is None else ServerError(f"{running.server.launch.name} {ended}: {error}")
            told.add_note(running.server.last_lines())
            raise told from None

    def _attach(self, method: Method, url: str) -> Running:
        http = Http.at(url, self.stall_s)
        model, told = asyncio.run(self.attached(http, method))
        self._facts[f"server_{method.arm}"] = url
        self._facts |= {f"{name}_{method.arm}": value for name, value in told.items()}
        running = Running(None, http, model, (url, method.name))
        self._facts |= asyncio.run(self.facts(running))
        return running

    def _start(self, method: Method, arguments: tuple[str, ...]) -> Running:
        for last in (*[False] * (PORTS - 1), True):
            port, model = free_port(), f"{self.name}-{secrets.token_hex(8)}"
            python = interpreter(self.environments[self.spec.device], self.spec.python)
            log = self._logs() / f"server-{self._started}-{method.arm}.log"
            command = (str(python), *arguments, *self.address(model, port))
            name = f"the {self.name} server of {method.arm}"
            self._started += 1
            server, http = Server(Launch(name, command, self.variables(), log)), Http(port, self.stall_s)
            running = Running(server, http, model, arguments)
            try:
                server.wait(lambda r=running: self._answers(r), self.ready_s)  # type: ignore[misc]
                self._facts |= asyncio.run(self.facts(running))
                self._facts[f"server_{method.arm}"] = " ".join(arguments)
                return running
            except ServerError as error:
                server.close()
                if not last and PORT_TAKEN in str(error).lower():
                    continue
                error.add_note(server.last_lines())
                raise
            except BaseException:
                server.close()
                raise
        raise AssertionError("the last try returns or raises")

    def _answers(self, running: Running) -> bool:
        try:
            return asyncio.run(self.ready(running.http, running.model))
        except ServerError:
            return False

    def _logs(self) -> Path:
        if self.spec.logs is not None:
            return Path(self.spec.logs)
        if self._scratch is None:
            self._scratch = Path(tempfile.mkdtemp(prefix=f"{self.name}-logs-"))
        return self._scratch

    def describe(self) -> dict[str, str | int | float]:
        spec, facts = self.spec, dict(self._facts)
        if not spec.urls:
            facts["python"] = str(interpreter(self.environments[spec.device], spec.python))
        if spec.simulate_acceptance is not None:
            facts["simulate_acceptance"] = spec.simulate_acceptance
        most = {"max_running_requests": spec.concurrency}
        return {"engine": self.name, "device": spec.device, "tp": spec.tp, **most, **facts}

    def close(self) -> None:
        self._stop()
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch = None

    def _stop(self) -> None:
        if self._running is not None and self._running.server is not None:
            self._running.server.close()
        self._running = None


async def _read(client: StreamingClient, request: Request) -> tuple[list[Chunk], float]:
    """The chunks of one answer, and when it was asked for."""
    start_s = asyncio.get_running_loop().time()
    async with aclosing(client.stream(request)) as stream:
        chunks = [chunk async for chunk in stream]
    if not any(chunk.token_ids for chunk in chunks):
        raise ServerError("the answer holds no token")
    if not any(chunk.finish_reason for chunk in chunks):
        raise ServerError("the answer has no finish reason")
    return chunks, start_s


def rounds(accepted: Sequence[int], n_output: int, reason: Cut) -> tuple[Round, ...]:
    """A request's rounds from what its verify steps accepted, in order; the first token is the prompt's.

    The engines count what a step accepted, whether or not it was kept: the step that reached the end is cut here as the
    reference engine cuts it. Tokens that no counted step emitted came one by one, from steps without a draft.
    """
    left, found = n_output - 1, []
    for count in accepted:
        if not left:
            raise ServerError(f"the server counts {len(accepted)} verify steps for {n_output} tokens, too many")
        emitted = min(count + 1, left)
        found.append(Round(min(count, emitted), emitted, "" if emitted == count + 1 else reason))
        left -= emitted
    return (*found, *[Round(0, 1, "")] * left)


def is_plain(method: Method) -> bool:
    """Whether a method's server has no speculative decoding at all."""
    return isinstance(method, Autoregressive)


def chat_template(target: str) -> str:
    """A target's chat template, from its own file or its tokenizer's; empty where it has none."""
    folder = resolve(target, weights=False)
    if (folder / "chat_template.jinja").is_file():
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    files = (folder / name for name in ("tokenizer_config.json", "chat_template.json"))
    told = (json.loads(file.read_text(encoding="utf-8")).get("chat_template") for file in files if file.is_file())
    return next((str(found) for found in told if found), "")


def tool_call_parser(target: str, parsers: Mapping[str, str]) -> str | None:
    """The parser of a target's tool calls, by what its chat template says of them; the first that is found."""
    template = chat_template(target)
    return next((parser for words, parser in parsers.items() if words in template), None)


def same_model(served: str, wanted: str) -> bool:
    """Whether what a server says it serves is the model that was asked for, by name or by folder."""
    return served == wanted or Path(served).resolve() == resolve(wanted, weights=False).resolve()
