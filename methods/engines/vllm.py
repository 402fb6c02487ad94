"""vLLM's OpenAI-compatible server behind the same methods: autoregressive decoding and DFlash, which it knows itself.

Token ids go in and come out, so that the prompts are rendered once, here. Fairness: prefix caching is off and a cached
token fails the request; the server of AR has no speculative configuration at all; everything else that is set is set
for all arms, and temperature, end ids and the number of requests at once are set explicitly. Outputs are scored with
the prompt log-probs of AR's server, whose differences are those of the logits.

vLLM counts drafts without the anchor: a block of 16 is 15 speculative tokens.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, ClassVar

from methods.autoregressive import Autoregressive
from methods.base import EngineSpec, Method, Refusal, Request, Score
from methods.dflash import DFlash
from methods.engines.environments import VLLM, VLLM_CPU, Environment
from methods.engines.http import Http, ServerError
from methods.engines.reference import FP32_GAP, LARGEST_GAP, MANTISSA_BITS, compute_dtype
from methods.engines.served import Running, ServedEngine, Told, is_plain
from methods.engines.server import flags
from methods.locate import is_hub_id, resolve
from methods.reference.config import check_pair, drafter_config, target_config
from methods.reference.memory import rank_bytes
from methods.streaming import Chunk, StreamingClient

MODULE = "vllm.entrypoints.openai.api_server"
LOGIT_EXPONENT = 4  # logits of 16 to 32: the server tells log-probs only
PROCESS_BYTES = 3 * 2**30  # a server's own processes on a CPU, beside weights and caches
KV_SPACE_GIB = 1
CPU_CAUTION = (
    "vllm-cpu 0.32.0 norms the drafter's context keys of every layer with the first layer's weights, because its CPU "
    "rms_norm reads one row of them: acceptance is lower than the drafter's own"
)


class VllmEngine(ServedEngine):
    """Qwen3, Llama and the other targets that the built-in engine reads, with DFlash drafters; temperature 0."""

    name: ClassVar[str] = "vllm"
    environments: ClassVar[dict[str, Environment]] = {"cpu": VLLM_CPU, "cuda": VLLM}
    own_arguments: ClassVar[tuple[str, ...]] = (
        *("model", "served-model-name", "host", "port", "dtype", "seed", "max-model-len", "max-num-seqs"),
        *("tensor-parallel-size", "enable-prefix-caching", "no-enable-prefix-caching", "speculative-config"),
        *("per-request-spec-decode-metrics", "enable-prompt-tokens-details", "generation-config"),
        *("enable-per-request-metrics", "disable-log-stats", "stream-interval"),
    )

    @classmethod
    def check(cls, spec: EngineSpec, methods: Sequence[Method]) -> None:
        for method in methods:
            if type(method) not in (Autoregressive, DFlash):
                raise Refusal(f"method={method.name} is not accepted: engine=vllm runs autoregressive and dflash.")
        if spec.model.weights != "checkpoint":
            raise Refusal(f"model.weights={spec.model.weights} is not accepted: engine=vllm reads checkpoints.")
        if spec.device == "cpu" and spec.tp > 1:
            raise Refusal(f"tp={spec.tp} is not accepted: engine=vllm runs one rank on a CPU.")
        target = target_config(resolve(spec.model.target, weights=False))
        target.check_ranks(spec.tp, "target")
        if any(method.uses_drafter for method in methods):
            check_pair(target, drafter_config(resolve(spec.model.drafter, weights=False)))
        if (longest := model_length(spec)) > target.window:
            raise Refusal(
                f"prompt and output of {spec.max_length} tokens do not fit {spec.model.name}'s window of "
                f"{target.window}: engine=vllm needs {longest - spec.max_length} more; "
                "fewer max_new_tokens or shorter prompts are needed."
            )
        for reference in (spec.model.target, spec.model.drafter):
            if not is_hub_id(reference) and not any(resolve(reference).glob("*.safetensors")):
                raise Refusal(f"{reference} holds no safetensors weights, which engine=vllm needs.")
        cls.check_environment(spec)

    @classmethod
    def memory_bytes(cls, spec: EngineSpec, method: Method) -> int:
        processes = PROCESS_BYTES + KV_SPACE_GIB * 2**30 if spec.device == "cpu" else 0
        return rank_bytes(spec, compute_dtype(spec), method) + processes

    def arguments(self, method: Method) -> list[str]:
        spec = self.spec
        settings: dict[str, str | int | float | bool | None] = {
            "model": str(resolve(spec.model.target).absolute()),
            "host": "127.0.0.1",
            "dtype": compute_dtype(spec),
            "seed": spec.seed,
            "max-model-len": model_length(spec),
            "max-num-seqs": 1,
            "tensor-parallel-size": spec.tp,
            "enable-prefix-caching": False,
            "enable-prompt-tokens-details": True,
            "enable-per-request-metrics": True,
            "generation-config": "vllm",
            "disable-uvicorn-access-log": True,
        }
        if spec.device == "cpu" and "enforce_eager" not in dict(spec.args):
            settings["enforce-eager"] = True
        if not is_plain(method):
            drafter = str(resolve(spec.model.drafter).absolute())
            speculative = {"method": "dflash", "model": drafter, "num_speculative_tokens": block_size(spec) - 1}
            settings["speculative-config"] = json.dumps(speculative)
            settings["per-request-spec-decode-metrics"] = "detailed"
        return ["-m", MODULE, *flags(settings, spec.args)]

    def address(self, model: str, port: int) -> list[str]:
        return flags({"served-model-name": model, "port": port}, ())

    def variables(self) -> dict[str, str]:
        cpu = {"VLLM_CPU_KVCACHE_SPACE": str(KV_SPACE_GIB)} if self.spec.device == "cpu" else {}
        return {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", **cpu}  # the folders are resolved already

    def client(self, running: Running) -> StreamingClient:
        return VllmClient(running.http, running.model)

    async def ready(self, http: Http, model: str) -> bool:
        listed = await http.get("/v1/models")
        return any(entry["id"] == model for entry in listed["data"])

    async def facts(self, running: Running) -> dict[str, str | int | float]:
        return {
            "dtype": compute_dtype(self.spec),
            "vllm_version": str((await running.http.get("/version"))["version"]),
            "graphs": "eager" if "--enforce-eager" in running.arguments else "compiled",
            **({"caution": CPU_CAUTION} if self.spec.device == "cpu" else {}),
        }

    def score(self, request: Request, output_ids: Sequence[int], tolerance: float = 0.0) -> Score:
        """The gaps between the log-prob of each output token and the best one's, from AR's server at temperature 0."""
        told = self._prompt_log_probs(request, output_ids, 1)
        return Score(
            tuple(max(0.0, max(row.values()) - row[token]) for token, row in zip(output_ids, told, strict=True))
        )

    def gap_tolerance(self, requests: Sequence[Request]) -> float:
        """1e-3 in float32; else twice the largest change of a top-2 log-prob between decoding and one wide pass, but at
        least one rounding step of the dtype at a logit of 16 to 32, and at most 0.5."""
        dtype = compute_dtype(self.spec)
        if dtype == "float32":
            return FP32_GAP
        tolerance = 2.0 ** (LOGIT_EXPONENT - MANTISSA_BITS[dtype])
        for request in requests:
            output, decoded = self._decoded_log_probs(request)
            for narrow, wide in zip(decoded, self._prompt_log_probs(request, output, 2), strict=True):
                changes = [abs(narrow[token] - wide[token]) for token in narrow.keys() & wide.keys()]
                tolerance = max([tolerance, *(2 * change for change in changes)])
        return min(tolerance, LARGEST_GAP)

    def _prompt_log_probs(self, request: Request, output_ids: Sequence[int], top: int) -> list[dict[int, float]]:
        """For each output token the log-probs of itself and the `top` best in its place, teacher-forced in one pass."""
        text = (*request.prompt_ids, *output_ids)
        asked = {"prompt": text, "max_tokens": 1, "temperature": 0.0, "prompt_logprobs": top}
        told = self._completion(asked)["prompt_logprobs"]
        return [{int(token): said["logprob"] for token, said in row.items()} for row in told[len(request.prompt_ids) :]]

    def _decoded_log_probs(self, request: Request) -> tuple[tuple[int, ...], list[dict[int, float]]]:
        """An answer, and for each of its tokens the log-probs of the two best as they were when it was decoded."""
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


def sampling(request: Request) -> dict[str, Any]:
    """A request in vLLM's words. Only the request's own end ids end it; they are part of the output."""
    return {
        "prompt": request.prompt_ids,
        "max_tokens": request.max_new_tokens,
        "temperature": 0.0,
        "ignore_eos": True,
        "stop_token_ids": request.stop_ids,
    }


@dataclass(frozen=True)
class VllmClient:
    """One connection a request; the figures of the request come as the last chunk."""

    http: Http
    model: str

    async def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        asked = {"stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True}
        content = {"model": self.model, **asked, **sampling(request)}
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
