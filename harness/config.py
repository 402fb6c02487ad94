"""The typed settings of a command: their schema for Hydra, and the way from a composed config to plain data.

No DictConfig leaves this module. A setting that is out of range is refused here, before anything is loaded.
"""

from __future__ import annotations

import atexit
import dataclasses
import json
import math
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast, get_type_hints

from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import MISSING, DictConfig, OmegaConf

import workloads
from harness.cells import BASELINE, CellSettings
from harness.machine import choose_device
from harness.targets import TYPE_WORDS, build_method, build_tracker, inexact, load_class
from harness.tracker import Tracker
from methods.base import INSPECTIONS, Engine, Inspect, Method, Refusal, Sampling, Weights
from methods.locate import shaped
from workloads.contexts import SMALLEST
from workloads.splits import SPLITS

CONF = Path(__file__).resolve().parents[1] / "conf"
DTYPES = ("auto", "float32", "bfloat16", "float16")


@dataclass
class EngineConfig:
    """An engine's class, and, where it runs servers, what starts them and the arguments they get beside its own, or
    where they run already; and the tokens a round that they are to accept whatever was drafted."""

    _target_: str = MISSING
    python: str | None = None
    args: Any = None  # a mapping; one that is there already could not be given other keys
    url: Any = None  # a mapping, likewise
    simulate_acceptance: float | None = None


@dataclass
class ModelConfig:
    """A target and its drafter: folders, hub ids, or `builtin:` names."""

    name: str = MISSING
    target: str = MISSING
    drafter: str = MISSING
    weights: str = MISSING


@dataclass
class WorkloadConfig:
    """What is asked, and how often and how long unless the command says otherwise."""

    name: str = MISSING
    path: str | None = None
    skip_bad: bool = False
    suite: dict[str, Any] = field(default_factory=dict)
    split: str = "all"
    limit: int | None = None
    context: int | None = None
    context_path: str | None = None
    system: str | None = None
    enable_thinking: bool = False
    repeats: int = MISSING
    max_new_tokens: int = MISSING


@dataclass
class ClusterConfig:
    """Where cells are worked: here, or as jobs of a submitit executor."""

    executor: str | None = None
    parameters: dict[str, Any] = field(default_factory=dict)


@dataclass
class CommandConfig:
    """The top level of conf/config.yaml, where the defaults and their comments are."""

    method: dict[str, Any] = field(default_factory=dict)
    engine: EngineConfig = field(default_factory=EngineConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    workload: WorkloadConfig = field(default_factory=WorkloadConfig)
    tracker: dict[str, Any] = field(default_factory=dict)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    budget: int = MISSING
    tp: int = MISSING
    concurrency: int = MISSING
    request_rate: float | None = None
    burstiness: float = MISSING
    temperature: float = MISSING
    top_p: float = MISSING
    top_k: int = MISSING
    max_new_tokens: int = MISSING
    seed: int = MISSING
    oracle_rate: float = MISSING
    shadow_linear: bool = MISSING
    dump_rounds: bool = MISSING
    replay: int = MISSING
    tune: bool = MISSING
    repeats: int = MISSING
    device: str = MISSING
    dtype: str = MISSING
    results_dir: str | None = None
    timeout_s: float = MISSING
    dry_run: bool = MISSING
    retry_failed: bool = MISSING
    overwrite: bool = MISSING


@dataclass(frozen=True)
class Cluster:
    """A submitit executor by its name, and its parameters."""

    executor: str
    parameters: dict[str, Any]


@dataclass(frozen=True)
class Command:
    """What holds for a whole command, whatever it sweeps over."""

    results_dir: str | None
    timeout_s: float
    dry_run: bool
    retry_failed: bool
    overwrite: bool
    tracker: Tracker
    cluster: Cluster | None
    tune: bool = False
    sweep: str = ""  # the hash of the command's cells, once they are gathered


@dataclass(frozen=True)
class Job:
    """One composed point of a command: a cell, a method for it, and the command it came from."""

    cell: CellSettings
    method: Method
    command: Command


def leaves(schema: type = CommandConfig, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every scalar setting's dotted name and type."""
    for name, kind in get_type_hints(schema).items():
        if dataclasses.is_dataclass(kind):
            yield from leaves(cast(type, kind), f"{prefix}{name}.")
        else:
            yield prefix + name, kind


@cache
def scratch() -> str:
    """Where Hydra writes until results_dir is known; gone at exit unless moved there."""
    folder = tempfile.mkdtemp(prefix="harness-hydra-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def register() -> None:
    """Make the schema and the `scratch` resolver known to Hydra; to be called before composing."""
    ConfigStore.instance().store(name="schema", node=CommandConfig)
    OmegaConf.register_new_resolver("scratch", scratch, replace=True)


def job_from(config: DictConfig, overrides: Sequence[str] = ()) -> Job:
    """The job a composed config describes. `overrides` are its command-line words."""
    _refuse_words(overrides)
    for name in sorted(OmegaConf.missing_keys(config)):
        raise Refusal(f"{name} is missing: the options chosen leave it to the command line.")
    plain = OmegaConf.to_object(config)
    assert isinstance(plain, CommandConfig)
    _refuse_additions(plain)
    _refuse_out_of_range(plain)
    settings, method = _cell_settings(plain), build_method(plain.method)
    engine = load_class(settings.engine_target, Engine, "engine._target_")  # type: ignore[type-abstract]
    if method.adapts and not engine.adapts:
        raise Refusal(f"{method.arm} is not accepted: engine={engine.name} verifies every round at the same width.")
    if (said := _inspection(plain)) and not engine.profiles(method):
        raise Refusal(f"{said} is not accepted: engine={engine.name} cannot look into the rounds of {method.arm}.")
    return Job(settings, method, _command(plain))


def _refuse_words(overrides: Sequence[str]) -> None:
    """What OmegaConf would accept and should not: a number as a truth value, a setting taken away."""
    kinds = dict(leaves())
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        if override.is_delete():
            raise Refusal(f"{override.input_line} is not accepted: a setting can be set, not removed.")
        value, kind = override.value(), kinds.get(override.key_or_group)
        if kind is not None and inexact(kind, value):
            raise Refusal(f"{override.key_or_group}={value} is not accepted: {TYPE_WORDS[kind]} is.")


def _refuse_additions(plain: Any, prefix: str = "") -> None:
    """`+name=value` adds to any config; here nothing would read it."""
    known = [f.name for f in dataclasses.fields(plain)]
    for name, value in vars(plain).items():
        if name not in known:
            raise Refusal(f"{prefix}{name}={value} is not accepted: there is no such setting.")
        if dataclasses.is_dataclass(value):
            _refuse_additions(value, f"{prefix}{name}.")


def _refuse_out_of_range(plain: CommandConfig) -> None:
    for name in ("budget", "tp", "concurrency", "max_new_tokens", "repeats"):
        value = getattr(plain, name)
        if value < 1:
            raise Refusal(f"{name}={value} is not accepted: an integer of at least 1 is.")
    for name in ("seed", "replay"):
        value = getattr(plain, name)
        if value < 0:
            raise Refusal(f"{name}={value} is not accepted: an integer of at least 0 is.")
    if plain.request_rate is not None and not 0 < plain.request_rate < math.inf:
        raise Refusal(f"request_rate={plain.request_rate:g} is not accepted: a number above 0 or null is.")
    if not 0 < plain.burstiness < math.inf:
        raise Refusal(f"burstiness={plain.burstiness:g} is not accepted: a number above 0 is.")
    if not plain.timeout_s > 0:
        raise Refusal(f"timeout_s={plain.timeout_s:g} is not accepted: a number of seconds above 0 is.")
    if plain.dtype not in DTYPES:
        raise Refusal(f"dtype={plain.dtype} is not accepted: {', '.join(DTYPES[:-1])} or {DTYPES[-1]} is.")
    if plain.model.weights not in ("checkpoint", "random"):
        raise Refusal(f"model.weights={plain.model.weights} is not accepted: checkpoint or random is.")
    if plain.overwrite and plain.retry_failed:
        raise Refusal("overwrite=true and retry_failed=true contradict each other: one of them is accepted.")
    _refuse_workload(plain.workload)
    Sampling(plain.temperature, plain.top_p, plain.top_k, plain.seed)
    Inspect(plain.oracle_rate)


def _refuse_workload(workload: WorkloadConfig) -> None:
    if workload.split not in SPLITS:
        said = f"{', '.join(SPLITS[:-1])} or {SPLITS[-1]}"
        raise Refusal(f"workload.split={workload.split} is not accepted: {said} is.")
    for name, least in (("limit", 1), ("context", SMALLEST)):
        value = getattr(workload, name)
        if value is not None and value < least:
            raise Refusal(f"workload.{name}={value} is not accepted: an integer of at least {least} or null is.")
    if workload.context_path is not None and workload.context is None:
        raise Refusal(f"workload.context_path={workload.context_path} is not accepted without workload.context.")
    if workload.system is not None and not workload.system.strip():
        raise Refusal("workload.system is not accepted: it is empty; some text or null is.")


def _cell_settings(plain: CommandConfig) -> CellSettings:
    engine = load_class(plain.engine._target_, Engine, "engine._target_")  # type: ignore[type-abstract]
    _refuse_inspection(plain, engine)
    if plain.temperature and not engine.samples:
        raise Refusal(
            f"temperature={plain.temperature:g} is not accepted: engine={engine.name} does not sample, so 0 is."
        )
    _refuse_crowds(plain, engine)
    if plain.replay and not engine.replays:
        raise Refusal(f"replay={plain.replay} is not accepted: engine={engine.name} cannot replay a text.")
    return CellSettings(
        engine_target=plain.engine._target_,
        target=_model(plain, "target"),
        drafter=_model(plain, "drafter"),
        weights=cast(Weights, plain.model.weights),
        workload=plain.workload.name,
        workload_path=plain.workload.path,
        skip_bad=plain.workload.skip_bad,
        suite=_own_suite(plain.workload),
        split=plain.workload.split,
        limit=plain.workload.limit,
        context=plain.workload.context,
        context_path=plain.workload.context_path,
        system=plain.workload.system,
        enable_thinking=plain.workload.enable_thinking,
        tp=plain.tp,
        concurrency=plain.concurrency,
        temperature=plain.temperature,
        top_p=plain.top_p,
        top_k=plain.top_k,
        max_new_tokens=plain.max_new_tokens,
        seed=plain.seed,
        repeats=plain.repeats,
        device=_device(plain),
        dtype=plain.dtype,
        engine=engine.name,
        model=plain.model.name,
        oracle_rate=plain.oracle_rate,
        shadow_linear=plain.shadow_linear,
        dump_rounds=plain.dump_rounds,
        replay=plain.replay,
        engine_python=plain.engine.python,
        engine_args=_engine_args(plain.engine, engine),
        engine_urls=_engine_urls(plain.engine),
        simulate_acceptance=plain.engine.simulate_acceptance,
        request_rate=plain.request_rate,
        burstiness=plain.burstiness if plain.request_rate is not None else 1.0,
    )


def _inspection(plain: CommandConfig) -> str | None:
    """The first setting by which rounds are looked into, as it was given."""
    return next((f"{name}={value}" for name in INSPECTIONS if (value := getattr(plain, name))), None)


def _refuse_inspection(plain: CommandConfig, engine: type[Engine]) -> None:
    """What an engine cannot tell of its rounds."""
    if (said := _inspection(plain)) is None:
        return
    if not engine.inspects:
        raise Refusal(f"{said} is not accepted: engine={engine.name} cannot look into its rounds.")
    if plain.concurrency > 1 or plain.request_rate is not None:
        raise Refusal(f"{said} is not accepted with requests in flight together: concurrency=1 is.")


def _refuse_crowds(plain: CommandConfig, engine: type[Engine]) -> None:
    """What only some engines do: many requests at once, and acceptance that was asked for."""
    for name, single in (("concurrency", 1), ("request_rate", None)):
        if not engine.crowds and (value := getattr(plain, name)) != single:
            said = f"{name}={value} is not accepted: engine={engine.name} answers one request at a time"
            raise Refusal(f"{said}, so {'null' if single is None else single} is.")
    if plain.engine.simulate_acceptance is not None and not engine.simulates:
        said = f"engine.simulate_acceptance={plain.engine.simulate_acceptance:g} is not accepted"
        raise Refusal(f"{said}: engine={engine.name} accepts what its target would have chosen.")


def _engine_urls(config: EngineConfig) -> str | None:
    """The servers that run already, by arm, as JSON; one alone can only be AR's."""
    if config.url is None:
        return None
    urls = {BASELINE.name: config.url} if isinstance(config.url, str) else config.url
    if not isinstance(urls, dict) or not urls or not all(isinstance(url, str) for url in urls.values()):
        raise Refusal(f"engine.url={config.url} is not accepted: {{autoregressive: http://HOST:PORT, …}} is.")
    for name in ("python", "args"):
        if (value := getattr(config, name)) is not None:
            raise Refusal(f"engine.{name}={value} is not accepted with engine.url: that server runs already.")
    return json.dumps(urls, sort_keys=True)


def _engine_args(config: EngineConfig, engine: type[Engine]) -> str | None:
    """The arguments for an engine's servers, as JSON; None without any."""
    for name in ("python", "args", "url"):
        if getattr(config, name) is not None and not engine.blocks:
            raise Refusal(
                f"engine.{name}={getattr(config, name)} is not accepted: engine={engine.name} runs no server."
            )
    if config.args is None:
        return None
    if not isinstance(config.args, dict):
        raise Refusal(
            f"engine.args={config.args} is not accepted: arguments by their names are, as in {{block_size: 32}}."
        )
    for name, value in config.args.items():
        if not isinstance(value, str | int | float | bool):
            raise Refusal(f"engine.args.{name}={value} is not accepted: a text, a number, true or false is.")
    return json.dumps(config.args, sort_keys=True) if config.args else None


def _own_suite(workload: WorkloadConfig) -> str | None:
    """The definition of a suite that is not the project's, as JSON; None for one that is, which has to be as it is."""
    if workload.name not in workloads.names():
        return json.dumps(workload.suite, sort_keys=True)
    if workload.suite and workload.suite != workloads.definition(workload.name):
        raise Refusal(
            f"workload.suite differs from that of workload={workload.name}: another suite needs another workload.name."
        )
    return None


def _model(plain: CommandConfig, part: str) -> str:
    """The target or the drafter; random weights need a shape alone, which may come with this package."""
    reference: str = getattr(plain.model, part)
    return shaped(plain.model.name, part, reference) if plain.model.weights == "random" else reference


def _device(plain: CommandConfig) -> Literal["cpu", "cuda"]:
    """The device, judged by this machine unless a cluster's are to do the work."""
    if plain.cluster.executor is None:
        return choose_device(plain.device, plain.tp)
    if plain.device not in ("cpu", "cuda"):
        raise Refusal(
            f"device={plain.device} is not accepted with a cluster: cpu or cuda is, since jobs run elsewhere."
        )
    return cast(Literal["cpu", "cuda"], plain.device)


def _command(plain: CommandConfig) -> Command:
    return Command(
        results_dir=plain.results_dir,
        timeout_s=plain.timeout_s,
        dry_run=plain.dry_run,
        retry_failed=plain.retry_failed,
        overwrite=plain.overwrite,
        tracker=build_tracker(plain.tracker),
        cluster=Cluster(plain.cluster.executor, plain.cluster.parameters) if plain.cluster.executor else None,
        tune=plain.tune,
    )
