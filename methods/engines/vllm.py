"""vLLM's OpenAI-compatible server behind the same methods: autoregressive decoding and DFlash, which it knows itself.

Token ids go in and come out, so that the prompts are rendered once, here. Fairness: prefix caching is off and a cached
token fails the request; the server of AR has no speculative configuration at all; everything else that is set is set
for all arms, and temperature, end ids and the number of requests at once are set explicitly. Outputs are scored with
the prompt log-probs of AR's server, whose differences are those of the logits. Above temperature 0 a server draws with
a generator of its own, seeded for each request, and verifies drafts by rejection sampling: texts can be tested only.

vLLM counts drafts without the anchor: a block of 16 is 15 speculative tokens. Where graphs are captured, every arm has
those of both widths, so that neither runs outside of them.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, ClassVar

from methods.autoregressive import Autoregressive
from methods.base import EngineSpec, Method, Refusal, Request, Sampling, Verify
from methods.dflash import DFlash
from methods.engines.environments import VLLM, VLLM_CPU, Environment
from methods.engines.http import Http, ServerError
from methods.engines.reference import compute_dtype
from methods.engines.scoring import ScoredEngine
from methods.engines.served import Place, Running, Told, is_plain, tool_call_parser
from methods.engines.server import flags
from methods.engines.vllm_told import alike, configuration, counted, read_back, unlike
from methods.locate import read_json, resolve
from methods.reference.config import drafter_config, target_config
from methods.reference.memory import BYTES, cache_bytes, rank_bytes
from methods.streaming import Chunk, StreamingClient

MODULE = "vllm.entrypoints.openai.api_server"
PROCESS_BYTES = 3 * 2**30  # a server's own processes on a CPU, beside weights and caches
DEVELOPERS = "VLLM_SERVER_DEV_MODE"
GIB = 2**30
# What a chat template says of a tool call, and the parser that reads it; the first that is found.
TOOL_CALLS = {"<function=": "qwen3_coder", "<tool_call>": "hermes", '"parameters"': "llama3_json"}
CPU_CAUTION = (
    "vllm-cpu 0.32.0 norms the drafter's context keys of every layer with the first layer's weights, because its CPU "
    "rms_norm reads one row of them: acceptance is lower than the drafter's own; above temperature 0 its rejection "
    "sampling does not draw from the target, which the gate finds"
)


class VllmEngine(ScoredEngine):
    """Qwen3, Llama and the other targets that the built-in engine reads, with DFlash drafters."""

    name: ClassVar[str] = "vllm"
    simulates: ClassVar[bool] = True
    private: ClassVar[tuple[str, ...]] = (DEVELOPERS,)
    environments: ClassVar[dict[str, Environment]] = {"cpu": VLLM_CPU, "cuda": VLLM}
    own_arguments: ClassVar[tuple[str, ...]] = (
        *("model", "served-model-name", "host", "port", "dtype", "seed", "max-model-len", "max-num-seqs"),
        *("tensor-parallel-size", "enable-prefix-caching", "no-enable-prefix-caching", "speculative-config"),
        *("per-request-spec-decode-metrics", "enable-prompt-tokens-details", "generation-config"),
        *("enable-per-request-metrics", "disable-log-stats", "stream-interval", "cudagraph-capture-sizes"),
        "language-model-only",
    )

    def __init__(self, spec: EngineSpec) -> None:
        super().__init__(spec)
        self._alike: dict[str, dict[str, Any]] = {}

    @classmethod
    def check(cls, spec: EngineSpec, methods: Sequence[Method]) -> None:
        for method in methods:
            if type(method) not in (Autoregressive, DFlash):
                raise Refusal(f"method={method.name} is not accepted: engine=vllm runs autoregressive and dflash.")
        if spec.model.weights != "checkpoint":
            raise Refusal(f"model.weights={spec.model.weights} is not accepted: engine=vllm reads checkpoints.")
        if spec.device == "cpu" and spec.tp > (cores := len(os.sched_getaffinity(0))):
            raise Refusal(f"tp={spec.tp} is not accepted: engine=vllm needs a core for each rank, {cores} are there.")
        cls.check_simulation(spec)
        cls.check_model(spec, methods, model_length(spec))
        cls.check_environment(spec)
        cls.check_urls(spec, methods)

    @classmethod
    def check_simulation(cls, spec: EngineSpec) -> None:
        wanted = spec.simulate_acceptance
        if wanted is None:
            return
        if spec.device == "cpu":
            raise Refusal(f"engine.simulate_acceptance={wanted:g} is not accepted: engine=vllm simulates on a GPU.")
        most = block_size(spec)
        if not 1 <= wanted <= most:
            raise Refusal(f"engine.simulate_acceptance={wanted:g} is not accepted: a number from 1 to {most} is.")

    @classmethod
    def memory_bytes(cls, spec: EngineSpec, method: Method) -> int:
        if spec.urls:
            return 0  # theirs
        processes = PROCESS_BYTES + kv_space_gib(spec) * GIB if spec.device == "cpu" else 0
        return rank_bytes(spec, compute_dtype(spec), method) + processes

    @classmethod
    def verify(cls, spec: EngineSpec, method: Method, sampling: Sampling) -> Verify | None:
        if is_plain(method):
            return None
        return "rejection" if sampling.temperature > 0 else "exact"

    @classmethod
    def longest(cls, spec: EngineSpec) -> int:
        return super().longest(spec) - (model_length(spec) - spec.max_length)

    def arguments(self, method: Method) -> list[str]:
        return ["-m", MODULE, *flags(self._settings(method), self.spec.args), *graph_sizes(self.spec)]

    def deployment(self, method: Method, place: Place) -> list[str]:
        settings = self._settings(method) | {"generation-config": None, "host": place.host, "port": place.port}
        settings["served-model-name"] = place.name
        if parser := tool_call_parser(self.spec.model.target, TOOL_CALLS):
            settings |= {"enable-auto-tool-choice": True, "tool-call-parser": parser}
        return ["-m", MODULE, *flags(settings, self.spec.args), *graph_sizes(self.spec)]

    def _settings(self, method: Method) -> dict[str, str | int | float | bool | None]:
        spec = self.spec
        settings: dict[str, str | int | float | bool | None] = {
            "model": str(resolve(spec.model.target).absolute()),
            "host": "127.0.0.1",
            "dtype": compute_dtype(spec),
            "seed": spec.seed,
            "max-model-len": model_length(spec),
            "max-num-seqs": spec.concurrency,
            "tensor-parallel-size": spec.tp,
            "enable-prefix-caching": False,
            "enable-prompt-tokens-details": True,
            "enable-per-request-metrics": True,
            "generation-config": "vllm",
            "disable-uvicorn-access-log": True,
        }
        if "text_config" in read_json(resolve(spec.model.target, weights=False), "config.json"):
            settings["language-model-only"] = True  # no room for pictures, which nobody asks about
        if spec.device == "cpu" and "enforce_eager" not in dict(spec.args):
            settings["enforce-eager"] = True
        if not is_plain(method):
            settings["speculative-config"] = json.dumps(speculative(spec))
            settings["per-request-spec-decode-metrics"] = "detailed"
        return settings

    def address(self, model: str, port: int) -> list[str]:
        return flags({"served-model-name": model, "port": port}, ())

    def variables(self) -> dict[str, str]:
        found = {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}  # the folders are resolved already
        found |= {DEVELOPERS: "1"}  # so that it tells its configuration, on loopback
        if self.spec.device == "cpu":
            found["VLLM_CPU_KVCACHE_SPACE"] = str(kv_space_gib(self.spec))
            if self.spec.tp > 1:
                found["VLLM_CPU_OMP_THREADS_BIND"] = cores_by_rank(self.spec.tp)
        return found

    def client(self, running: Running) -> StreamingClient:
        return VllmClient(running.http, running.model, seeded=self.spec.device != "cpu")

    async def ready(self, http: Http, model: str) -> bool:
        listed = await http.get("/v1/models")
        return any(entry["id"] == model for entry in listed["data"])

    async def facts(self, running: Running) -> dict[str, str | int | float]:
        found: dict[str, str | int | float] = {
            "dtype": compute_dtype(self.spec),
            "vllm_version": str((await running.http.get("/version"))["version"]),
        }
        if running.server is not None:
            found["graphs"] = "eager" if "--enforce-eager" in running.arguments else "captured"
            found |= await self._compared(running)
        return found | ({"caution": CPU_CAUTION} if self.spec.device == "cpu" else {})

    async def _compared(self, running: Running) -> dict[str, str]:
        """What a server made of the settings that arms have to have in common, and in what the two kinds differ."""
        config = await configuration(running.http)
        if config is None:
            return {}
        kind = "drafting" if "--speculative-config" in running.arguments else "plain"
        self._alike[kind] = alike(config)
        found = {f"settings_{kind}": json.dumps(self._alike[kind], sort_keys=True)}
        return found | ({"unlike": unlike(**self._alike) or "nothing"} if len(self._alike) == 2 else {})

    def counters(self, method: Method) -> dict[str, float]:
        running = self.serving(method)
        told = self.within(running, running.http.text("/metrics"))
        return {"preemptions": counted(told, "vllm:num_preemptions_total")}

    async def attached(self, http: Http, method: Method) -> tuple[str, dict[str, str | int | float]]:
        return await read_back(self.spec, http, method, model_length(self.spec))

    def dtype(self) -> str:
        return compute_dtype(self.spec)

    def prompt_log_probs(self, request: Request, output_ids: Sequence[int], top: int) -> list[dict[int, float]]:
        text = (*request.prompt_ids, *output_ids)
        asked = {"prompt": text, "max_tokens": 1, "temperature": 0.0, "prompt_logprobs": top}
        told = self._completion(asked)["prompt_logprobs"]
        return [{int(token): said["logprob"] for token, said in row.items()} for row in told[len(request.prompt_ids) :]]

    def decoded_log_probs(self, request: Request) -> tuple[tuple[int, ...], list[dict[int, float]]]:
        asked = {**sampling(request), "logprobs": 2, "return_tokens_as_token_ids": True, "return_token_ids": True}
        choice = self._completion(asked)
        rows = choice["logprobs"]["top_logprobs"]
        named = [{int(name.removeprefix("token_id:")): value for name, value in row.items()} for row in rows]
        return tuple(choice["token_ids"]), named

    def _completion(self, asked: dict[str, Any]) -> dict[str, Any]:
        running = self.serving(Autoregressive())
        told = self.within(running, running.http.post("/v1/completions", {"model": running.model, **asked}))
        choice: dict[str, Any] = told["choices"][0]
        return choice


def block_size(spec: EngineSpec) -> int:
    return drafter_config(resolve(spec.model.drafter, weights=False)).block_size


def model_length(spec: EngineSpec) -> int:
    """Tokens that a server makes room for: the longest text, one token that scoring generates after it, and two blocks,
    since vLLM stops drafting where a block beyond the last one, all of it taken as accepted, does not fit."""
    return spec.max_length + 1 + 2 * block_size(spec)


def speculative(spec: EngineSpec) -> dict[str, Any]:
    """DFlash in vLLM's words. Drafts are the drafter's best tokens at every temperature."""
    found: dict[str, Any] = {"method": "dflash", "model": str(resolve(spec.model.drafter).absolute())}
    found |= {"num_speculative_tokens": block_size(spec) - 1, "draft_sample_method": "greedy"}
    if spec.simulate_acceptance is not None:
        found |= {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": spec.simulate_acceptance}
    return found


def graph_sizes(spec: EngineSpec) -> list[str]:
    """The batch sizes of captured graphs: of one token a request, and of a whole block a request. Nothing where there
    are none, or where `engine.args` says what is captured."""
    if spec.device == "cpu" or {"enforce_eager", "compilation_config"} & {name for name, _ in spec.args}:
        return []
    most = spec.concurrency
    requests = {size for size in (1, 2, 4, *range(8, most, 8)) if size < most} | {most}
    sizes = sorted({size * width for size in requests for width in (1, block_size(spec))})
    return ["--cudagraph-capture-sizes", *map(str, sizes)]


def kv_space_gib(spec: EngineSpec) -> int:
    """Memory for keys and values on a CPU: enough for all requests at once, so that none is put off."""
    target = target_config(resolve(spec.model.target, weights=False))
    drafter = drafter_config(resolve(spec.model.drafter, weights=False)).transformer
    size, slots = BYTES[compute_dtype(spec)], model_length(spec) * spec.concurrency
    return max(1, math.ceil(1.25 * sum(cache_bytes(part, slots, spec.tp, size) for part in (target, drafter)) / GIB))


def cores_by_rank(tp: int) -> str:
    """The cores that this process may use, dealt out to the ranks, as vLLM writes it: `0,1|2,3`."""
    cores = sorted(os.sched_getaffinity(0))
    each = len(cores) // tp
    return "|".join(",".join(map(str, cores[rank * each : (rank + 1) * each])) for rank in range(tp))


def sampling(request: Request, seeded: bool = True) -> dict[str, Any]:
    """A request in vLLM's words. Only its own end ids end it; they are part of the output. Above temperature 0
    it has a seed of its own, unless not `seeded`: vllm-cpu 0.32.0 crashes at one whose prompt is read in parts (a CPU's
    generator cannot be wound back), so that there the server's seed has to do and texts differ from run to run."""
    how, found = request.sampling, {"temperature": request.sampling.temperature}
    if how.temperature > 0:
        found |= {"top_p": how.top_p, "top_k": how.top_k}
    if how.temperature > 0 and seeded:
        named = f"{how.seed}:{request.prompt_id}:{request.turn}".encode()
        found["seed"] = int.from_bytes(hashlib.sha256(named).digest()[:4]) >> 1
    return {
        "prompt": request.prompt_ids,
        "max_tokens": request.max_new_tokens,
        **found,
        "ignore_eos": True,
        "stop_token_ids": request.stop_ids,
    }


@dataclass(frozen=True)
class VllmClient:
    """One connection a request; the figures of the request come as the last chunk."""

    http: Http
    model: str
    seeded: bool = True

    async def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        asked = {"stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True}
        content = {"model": self.model, **asked, **sampling(request, self.seeded)}
        async with aclosing(self.http.events("/v1/completions", content)) as events:
            async for time_s, event in events:
                yield chunk(event, time_s)


def chunk(event: Any, time_s: float) -> Chunk:
    """What one event says: tokens, or, at the end, the figures of the request.

    `per_step_accepted` are the drafts that each verify step accepted; the cached tokens have to be told.
    """
    try:
        if "error" in event:
            raise ServerError(f"the server failed the request: {event['error']['message']}")
        if usage := event.get("usage"):
            speculative = event["metrics"].get("speculative_decoding") or {}
            steps = tuple(int(count) for count in speculative.get("per_step_accepted") or ())
            decode_s = float(event["metrics"]["generation_time_ms"]) / 1000
            return Told((), time_s, None, decode_s, steps, int(usage["prompt_tokens_details"]["cached_tokens"]))
        (choice,) = event["choices"]
        tokens, reason = tuple(int(token) for token in choice["token_ids"]), choice["finish_reason"]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ServerError(f"the server sent an event of another shape: {str(event)[:200]}") from error
    if reason not in (None, "stop", "length"):
        raise ServerError(f"the server ended the request with {reason}")
    return Chunk(tokens, time_s, reason)
