"""What a vLLM server tells of itself: its whole configuration in developers' mode, its counters, and whether it is the
one that a cell needs where it ran before.
"""

from __future__ import annotations

import json
import re
from typing import Any

from methods.base import EngineSpec, Method, Refusal
from methods.engines.http import Http, ServerError
from methods.engines.reference import compute_dtype
from methods.engines.served import is_plain, same_model

TOLD_FLAGS = "--enable-prompt-tokens-details --enable-per-request-metrics"
DRAFTS_FLAG = "--per-request-spec-decode-metrics detailed"
# What arms have to have in common for their times to be compared, as (section, name) of the configuration.
ALIKE = (
    *(("scheduler_config", name) for name in ("async_scheduling", "max_num_seqs", "max_num_batched_tokens")),
    *(("cache_config", name) for name in ("enable_prefix_caching", "cache_dtype", "block_size")),
    *(("model_config", "enforce_eager"), ("attention_config", "backend"), ("compilation_config", "cudagraph_mode")),
)


async def configuration(http: Http) -> dict[str, Any] | None:
    """Everything that a server was started with, as vLLM made it out; None outside of developers' mode."""
    try:
        told: dict[str, Any] = (await http.get("/server_info?config_format=json"))["vllm_config"]
    except (ServerError, KeyError):
        return None
    return told


def alike(config: dict[str, Any]) -> dict[str, Any]:
    """The settings of a configuration that arms have to have in common; what is not there is left out."""
    found = {name: (config.get(section) or {}).get(name) for section, name in ALIKE}
    return {name: value for name, value in found.items() if value is not None}


def unlike(plain: dict[str, Any], drafting: dict[str, Any]) -> str:
    """In what two servers differ, AR's first; empty where in nothing."""
    names = [name for name in plain if name in drafting and plain[name] != drafting[name]]
    return ", ".join(f"{name} {plain[name]} / {drafting[name]}" for name in names)


async def read_back(
    spec: EngineSpec, http: Http, method: Method, needed: int
) -> tuple[str, dict[str, str | int | float]]:
    """What a server that runs already says of itself: the model's name, and its arguments as far as it tells them (all
    of them where it was started with VLLM_SERVER_DEV_MODE=1). A small request shows that it tells what records need.
    `needed` is the tokens that it has to have room for.

    Raises:
        Refusal: another model, too short a window, speculative decoding where there has to be none or none where there
            has to be some, or figures that it does not tell.
    """
    where = f"the server at {http.host}:{http.port}"
    (model, *_), metrics = (await http.get("/v1/models"))["data"], await http.text("/metrics")
    if not same_model(str(model["root"]), spec.model.target):
        raise Refusal(f"{where} serves {model['root']}, not model.target={spec.model.target}.")
    if (length := int(model["max_model_len"])) < needed:
        raise Refusal(f"{where} has room for {length} tokens: {needed} are needed (--max-model-len).")
    drafting = "vllm:spec_decode_num_drafts" in metrics
    if drafting == is_plain(method):
        raise Refusal(f"{where} {'drafts' if drafting else 'does not draft'}, so it is no server of {method.name}.")
    asked = {"model": model["id"], "prompt": [1, 2, 3], "max_tokens": 2, "temperature": 0.0, "ignore_eos": True}
    told = await http.post("/v1/completions", asked)
    details, figures = (told.get("usage") or {}).get("prompt_tokens_details"), told.get("metrics") or {}
    if details is None or "generation_time_ms" not in figures:
        raise Refusal(f"{where} does not tell all that records need: {TOLD_FLAGS} is needed.")
    if drafting and "per_step_accepted" not in (figures.get("speculative_decoding") or {}):
        raise Refusal(f"{where} does not tell what each step accepted: {DRAFTS_FLAG} is needed.")
    return str(model["id"]), {"model_root": str(model["root"]), "max_model_len": length, **await _config(spec, http)}


async def _config(spec: EngineSpec, http: Http) -> dict[str, str | int | float]:
    """A running server's whole configuration as JSON and what of it has to be as set here."""
    config = await configuration(http)
    if config is None:
        return {"arguments": "not told: the server runs without VLLM_SERVER_DEV_MODE=1"}
    wanted = {
        "tp": (spec.tp, config["parallel_config"]["tensor_parallel_size"]),
        "dtype": (compute_dtype(spec), str(config["model_config"]["dtype"]).removeprefix("torch.")),
        "concurrency": (spec.concurrency, config["scheduler_config"]["max_num_seqs"]),
    }
    for name, (ours, theirs) in wanted.items():
        if ours != theirs:
            raise Refusal(f"{name}={ours} is not accepted with engine.url: the server at {http.port} has {theirs}.")
    if config["cache_config"]["enable_prefix_caching"]:
        raise Refusal(f"the server at {http.port} caches prefixes: --no-enable-prefix-caching is needed.")
    graphs = "eager" if config["model_config"]["enforce_eager"] else "captured"
    return {"graphs": graphs, "arguments": json.dumps(config, sort_keys=True)}


def counted(metrics: str, name: str) -> float:
    """A counter's value over all of its labels, in Prometheus' text."""
    return sum(float(value) for value in re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", metrics, re.M))
