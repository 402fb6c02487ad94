"""SGLang's own server behind the same methods: autoregressive decoding and DFlash, which it knows itself, and DDTree,
which comes to it as a plugin (`sglang_ddtree`).

Token ids go in and come out (`--skip-tokenizer-init`), so that the prompts are rendered once, here. Fairness: the radix
cache is off and a cached token fails the request; the server of AR has no speculative algorithm at all; the attention
backend, overlap, captured graphs and the number of requests at once are set for all arms, and what SGLang made of them
is read back: a server that differs from the first one in any of them fails its arm. Outputs are scored with the prompt
log-probs of AR's server, whose differences are those of the logits.

`--speculative-num-draft-tokens` counts the root: it is the block size itself, or 1 + budget, and the width of the
verify pass. What its figures mean stands in `sglang_client`.

The arguments and figures used here have the same names in SGLang 0.5.15, the tested version, and in 0.5.23.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from methods.autoregressive import Autoregressive
from methods.base import (
    EngineSpec,
    Generation,
    Inspect,
    Method,
    OracleCheck,
    Refusal,
    Request,
    Unchecked,
)
from methods.ddtree import DDTree
from methods.dflash import DFlash
from methods.engines import sglang_oracle
from methods.engines.environments import SGLANG, Environment
from methods.engines.http import Http, ServerError
from methods.engines.scoring import ScoredEngine
from methods.engines.served import Place, Running, is_plain, same_model, tool_call_parser
from methods.engines.sglang_client import SglangClient, Traced, asking, forced, log_probs, looked_into, sampling
from methods.engines.sglang_ddtree import NAME as TREES
from methods.engines.sglang_ddtree import entry
from methods.engines.sglang_ddtree.settings import Settings, mask_bytes, refuse_target
from methods.locate import resolve
from methods.reference.config import drafter_config, target_config
from methods.reference.memory import rank_bytes
from methods.streaming import Chunk, StreamingClient

MODULE = "sglang.launch_server"
TREES_NEED = ("disable-overlap-schedule",)
KV_SPLITS = 8  # parts that the Triton kernels of plain decoding split a text into
SPARE = 7  # tokens that SGLang takes no text for: it keeps one for itself, and five of what it is given
MEASURING = ("skip-tokenizer-init", "grammar-backend", "sampling-backend", "skip-server-warmup")  # no server for others
# What a chat template says of a tool call, and the parser that reads it; the first that is found.
TOOL_CALLS = {"<function=": "qwen3_coder", "<tool_call>": "hermes", '"parameters"': "llama3"}
FAIR = (
    *("attention_backend", "sampling_backend", "disable_overlap_schedule", "disable_radix_cache", "page_size"),
    *("max_running_requests", "max_total_num_tokens", "chunked_prefill_size", "dtype", "tp_size", "stream_interval"),
)


class SglangEngine(ScoredEngine):
    """Qwen3, Llama and the other targets that the built-in engine reads, with DFlash drafters; temperature 0. Trees
    need dense targets and servers without overlap, which all arms then have alike."""

    name: ClassVar[str] = "sglang"
    samples: ClassVar[bool] = False
    inspects: ClassVar[bool] = True
    environments: ClassVar[dict[str, Environment]] = {"cuda": SGLANG}
    drafts_in: ClassVar[tuple[str, ...]] = ("bfloat16",)
    own_arguments: ClassVar[tuple[str, ...]] = (
        *("model-path", "model", "served-model-name", "host", "port", "dtype", "random-seed", "context-length"),
        *("max-running-requests", "max-total-tokens", "tp-size", "tensor-parallel-size", "disable-radix-cache"),
        *("skip-tokenizer-init", "incremental-streaming-output", "stream-interval", "enable-metrics", "page-size"),
        *("speculative-algorithm", "speculative-draft-model-path", "speculative-draft-model"),
        *("speculative-num-draft-tokens", "speculative-dflash-block-size", "cuda-graph-bs-decode"),
        *("speculative-draft-attention-backend", "speculative-num-steps", "speculative-eagle-topk"),
    )

    def __init__(self, spec: EngineSpec) -> None:
        super().__init__(spec)
        self._fair: dict[str, Any] = {}
        self._method: Method = Autoregressive()  # whose server is started
        self._widest = block_size(spec)  # rows that any arm's server verifies for one request

    @classmethod
    def check(cls, spec: EngineSpec, methods: Sequence[Method]) -> None:
        for method in methods:
            if type(method) not in (Autoregressive, DFlash, DDTree):
                known = "autoregressive, dflash and ddtree"
                raise Refusal(f"method={method.name} is not accepted: engine=sglang runs {known}.")
        if spec.model.weights != "checkpoint":
            raise Refusal(f"model.weights={spec.model.weights} is not accepted: engine=sglang reads checkpoints.")
        if spec.device not in cls.environments:
            raise Refusal(
                f"device={spec.device} is not accepted: engine=sglang runs on {' or '.join(cls.environments)}."
            )
        if (dtype := dtype_of(spec)) not in cls.drafts_in and any(method.uses_drafter for method in methods):
            raise Refusal(f"dtype={dtype} is not accepted: SGLang turns what its drafter reads into bfloat16.")
        widest = max([block_size(spec), *(method.width(block_size(spec)) for method in methods)])
        cls.check_model(spec, methods, text_length(spec, widest))
        if any(isinstance(method, DDTree) for method in methods):
            check_trees(spec)
        cls.check_environment(spec)
        cls.check_urls(spec, methods)

    @classmethod
    def profiles(cls, method: Method) -> bool:
        """Only our own plugin tells its rounds."""
        return isinstance(method, DDTree)

    @classmethod
    def memory_bytes(cls, spec: EngineSpec, method: Method) -> int:
        needed = rank_bytes(spec, dtype_of(spec), method)
        if isinstance(method, DDTree):
            needed += mask_bytes(
                Settings(method.budget, block_size(spec)), spec.concurrency, text_length(spec, 1 + method.budget)
            )
            needed += graph_bytes(spec, method)
        return needed

    @classmethod
    def longest(cls, spec: EngineSpec) -> int:
        return super().longest(spec) - (text_length(spec, block_size(spec)) - spec.max_length)

    def open(self, methods: Sequence[Method]) -> None:
        self._widest = max(method.width(block_size(self.spec)) for method in methods)
        super().open(methods)

    def serving(self, method: Method) -> Running:
        self._method = method
        return super().serving(method)

    def arguments(self, method: Method) -> list[str]:
        return ["-m", MODULE, *self._words(self._settings() | {"host": "127.0.0.1"}, method)]

    def deployment(self, method: Method, place: Place) -> list[str]:
        self._method, self._widest = method, max(self._widest, method.width(block_size(self.spec)))
        settings = {name: value for name, value in self._settings().items() if name not in MEASURING}
        settings |= {"host": place.host, "port": place.port, "served-model-name": place.name}
        if parser := tool_call_parser(self.spec.model.target, TOOL_CALLS):
            settings["tool-call-parser"] = parser
        return ["-m", MODULE, *self._words(settings, method)]

    def _settings(self) -> dict[str, str | int | float | bool]:
        """What the servers of all arms have in common."""
        spec = self.spec
        return {
            "model-path": str(resolve(spec.model.target).absolute()),
            "dtype": dtype_of(spec),
            "random-seed": spec.seed,
            "context-length": text_length(spec, self._widest),
            "max-running-requests": spec.concurrency,
            "max-total-tokens": slots(spec, self._widest),
            "tp-size": spec.tp,
            "page-size": 1,
            "stream-interval": 1,
            # The Triton kernels take every kind of verify mask, and so can be the same in all arms.
            "attention-backend": "triton",
            "sampling-backend": "pytorch",
            "grammar-backend": "none",
            **dict.fromkeys(("disable-radix-cache", "disable-prefill-cuda-graph", "skip-tokenizer-init"), True),
            **dict.fromkeys(("incremental-streaming-output", "enable-metrics", "skip-server-warmup"), True),
        }

    def _words(self, settings: dict[str, str | int | float | bool], method: Method) -> list[str]:
        """The settings, with what the user gave in place of them, and what a method adds."""
        settings = settings | given(self.spec)
        found = [*words(settings), "--cuda-graph-bs-decode", *map(str, graph_sizes(self.spec.concurrency))]
        if is_plain(method):
            return found
        backend = settings["attention-backend"]
        return found + words(speculative(self.spec, method) | {"speculative-draft-attention-backend": backend})

    def address(self, model: str, port: int) -> list[str]:
        return words({"served-model-name": model, "port": port})

    def variables(self) -> dict[str, str]:
        # The folders are resolved already. The port of a protocol that stays off is else 10000 above the server's own,
        # and refused where there is none.
        found = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "SGLANG_GRPC_PORT": "1"}
        if isinstance(self._method, DDTree):
            rounds = str(self._logs().absolute() / f"rounds-{self._method.arm}.jsonl")  # of requests that ask for them
            told = Settings(self._method.budget, block_size(self.spec), self._method.chain_seed, rounds)
            found |= told.variables() | {"PYTHONPATH": entry.path(self._logs())}
        return found

    def client(self, running: Running) -> StreamingClient:
        return SglangClient(running.http)

    def generate(
        self, method: Method, request: Request, *, profile: bool = False, inspect: Inspect | None = None
    ) -> Generation:
        running = self.serving(method)
        asked = asking(profile, inspect) if self.profiles(method) else None
        done = self.answered(running, SglangClient(running.http, asked), request)
        return sglang_oracle.left(done, request, inspect) if inspect and inspect.oracle_rate else done

    def finished(self, chunks: Sequence[Chunk], elapsed_s: float) -> Generation:
        done, told = super().finished(chunks, elapsed_s), chunks[-1]
        return looked_into(done, told) if isinstance(told, Traced) else done

    async def ready(self, http: Http, model: str) -> bool:
        listed = await http.get("/v1/models")
        return any(entry["id"] == model for entry in listed["data"])

    async def facts(self, running: Running) -> dict[str, str | int | float]:
        """What the server made of its arguments; a ServerError where it is not like those before it."""
        told = await running.http.get("/server_info")
        fair = {name: told.get(name) for name in FAIR}
        fair["graphs"] = graphs(told)
        for name, value in fair.items():
            if (other := self._fair.setdefault(name, value)) != value:
                raise ServerError(f"{running.model} runs with {name}={value}, the server before it with {other}")
        if fair["max_running_requests"] != self.spec.concurrency:
            raise ServerError(
                f"the server answers {fair['max_running_requests']} requests at once, not {self.spec.concurrency}"
            )
        wanted = self._method.width(block_size(self.spec))
        if told.get("speculative_algorithm") and (width := told["speculative_num_draft_tokens"]) != wanted:
            raise ServerError(f"the server verifies {width} rows a request, not {wanted}")
        if isinstance(self._method, DDTree) and running.server is not None:
            log = running.server.launch.log.read_text(errors="replace")
            loaded, wanted = len(entry.loaded(log)), 1 + self.spec.tp  # the one that serves, and a scheduler a rank
            if loaded < wanted:
                raise ServerError(f"the plugin is in {loaded} of the server's {wanted} processes")
        return {
            "dtype": dtype_of(self.spec),
            "sglang_version": str(told["version"]),
            "graphs": fair["graphs"],
            "attention_backend": str(fair["attention_backend"]),
            "overlap": "off" if fair["disable_overlap_schedule"] else "on",
            "page_size": int(fair["page_size"]),
        }

    async def attached(self, http: Http, method: Method) -> tuple[str, dict[str, str | int | float]]:
        told, where = await http.get("/server_info"), f"the server at {http.host}:{http.port}"
        if not same_model(str(told["model_path"]), self.spec.model.target):
            raise Refusal(f"{where} serves {told['model_path']}, not model.target={self.spec.model.target}.")
        drafting = told.get("speculative_algorithm")
        if (drafting or "").upper() != ("" if is_plain(method) else "DFLASH"):
            raise Refusal(f"{where} runs speculative_algorithm={drafting}, so it is no server of {method.name}.")
        for name in ("disable_radix_cache", "incremental_streaming_output", "enable_metrics"):
            if not told[name]:
                raise Refusal(f"{where} runs without --{name.replace('_', '-')}, which records need.")
        if (length := told["context_length"]) is not None and int(length) < text_length(self.spec, self._widest):
            raise Refusal(f"{where} has room for {length} tokens: {text_length(self.spec, self._widest)} are needed.")
        arguments = {name: value for name, value in told.items() if isinstance(value, str | int | float)}
        return str(told["served_model_name"]), {"arguments": str(arguments)}

    def dtype(self) -> str:
        return dtype_of(self.spec)

    def prompt_log_probs(self, request: Request, output_ids: Sequence[int], top: int) -> list[dict[int, float]]:
        text = [*request.prompt_ids, *output_ids]
        (answer,) = self._generated(forced([text], len(request.prompt_ids) - 1, top))
        told = answer["meta_info"]
        # Each list begins with the token before the output, of which nothing is told.
        return log_probs(told["input_token_logprobs"][1:], told["input_top_logprobs"][1:])

    def decoded_log_probs(self, request: Request) -> tuple[tuple[int, ...], list[dict[int, float]]]:
        told = self._generated({**sampling(request), "return_logprob": True, "top_logprobs_num": 2})
        figures = told["meta_info"]
        rows = log_probs(figures["output_token_logprobs"], figures["output_top_logprobs"])
        return tuple(told["output_ids"]), rows[: len(told["output_ids"])]

    def oracle(self, text: Sequence[int], unchecked: Unchecked, tolerance: float) -> OracleCheck:
        asked = sglang_oracle.questions(text, unchecked)
        answers = [answer for some in asked for answer in self._generated(some)]
        return sglang_oracle.judged(unchecked, answers, tolerance)

    def _generated(self, asked: dict[str, Any]) -> Any:
        running = self.serving(Autoregressive())
        return self.within(running, running.http.post("/generate", asked))


def given(spec: EngineSpec) -> dict[str, str | int | float | bool]:
    """The user's arguments, by their names on the command line."""
    return {name.replace("_", "-"): value for name, value in spec.args}


def dtype_of(spec: EngineSpec) -> str:
    """The dtype `auto` stands for: the checkpoint's, also where another engine takes float32 for a small model."""
    return spec.dtype if spec.dtype != "auto" else target_config(resolve(spec.model.target, weights=False)).dtype


def block_size(spec: EngineSpec) -> int:
    return drafter_config(resolve(spec.model.drafter, weights=False)).block_size


def text_length(spec: EngineSpec, widest: int) -> int:
    """Tokens of the longest text that a server takes: one more for scoring, what SGLang keeps for itself, and the rows
    of a pass, since it reserves two passes beyond a text where its table has room for one: the rest would be lost."""
    return spec.max_length + 1 + SPARE + widest


def slots(spec: EngineSpec, widest: int) -> int:
    """Slots for keys and values: of every request's text and of the rows being verified (SGLang keeps two passes
    ahead), with a quarter to spare, so that no request is put off or taken back. The same in all arms."""
    return spec.concurrency * (text_length(spec, widest) + 3 * widest) * 5 // 4 + 1


def graph_sizes(most: int) -> list[int]:
    """The numbers of requests that are captured: left to itself, SGLang captures others where it drafts."""
    return sorted({size for size in (1, 2, 3, 4, *range(8, most, 8)) if size < most} | {most})


def graph_bytes(spec: EngineSpec, method: Method) -> int:
    """Bytes of the buffers that SGLang makes to capture passes: for every row of the largest batch the logits, a whole
    text's slots and mask (until the plugin puts its own in their place), and what plain decoding would need."""
    if given(spec).get("disable-decode-cuda-graph"):
        return 0
    target = target_config(resolve(spec.model.target, weights=False))
    drafter = drafter_config(resolve(spec.model.drafter, weights=False))
    rows, drafted = (spec.concurrency * width for width in (method.width(drafter.block_size), drafter.block_size))
    parts = [(rows, target), (drafted, drafter.transformer)]
    decoding = sum(count * one.heads // spec.tp * KV_SPLITS * (one.head_dim + 1) * 4 for count, one in parts)
    return (
        decoding
        + (rows + drafted) * (8 + 1) * text_length(spec, rows // spec.concurrency)
        + rows * target.vocabulary * 4
    )


def speculative(spec: EngineSpec, method: Method) -> dict[str, str | int | float | bool]:
    """A method in SGLang's words."""
    return {
        "speculative-algorithm": TREES if isinstance(method, DDTree) else "DFLASH",
        "speculative-draft-model-path": str(resolve(spec.model.drafter).absolute()),
        "speculative-num-draft-tokens": method.width(block_size(spec)),
    }


def check_trees(spec: EngineSpec) -> None:
    """Refuse, by its name, what the plugin cannot do."""
    args = given(spec)
    missing = [name.replace("-", "_") for name in TREES_NEED if args.get(name) is not True]
    if missing:
        needed = ", ".join(f"{name}: true" for name in missing)
        raise Refusal(f"method=ddtree is not accepted by engine=sglang without engine.args={{{needed}}}, in all arms.")
    if (backend := args.get("attention-backend", "triton")) != "triton":
        raise Refusal(f"engine.args.attention_backend={backend} is not accepted with method=ddtree: triton is.")
    if spec.urls:
        raise Refusal("engine.url is not accepted with method=ddtree: its servers are started with the plugin.")
    refuse_target(target_config(resolve(spec.model.target, weights=False)).kinds)


def words(settings: dict[str, str | int | float | bool]) -> list[str]:
    """Command-line words: a switch that is on stands alone, one that is off is left out."""
    found: list[str] = []
    for name, value in settings.items():
        if value is not False:
            found += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return found


def graphs(told: dict[str, Any]) -> str:
    """Whether decoding and verifying are captured, and for how many requests, from a server's own account."""
    decode = (told.get("cuda_graph_config") or {}).get("decode") or {}
    if decode.get("backend") in (None, "disabled"):
        return "eager"
    return f"captured ({decode['backend']}: {', '.join(map(str, decode['bs']))})"
