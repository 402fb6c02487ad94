"""Every published pair of conf/model on every engine, as far as configs tell: small configs of the same families stand
in for what the hub has, so that no network is needed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import yaml
from fake_world import REPOSITORY
from tiny_models import DELTA, EXPERTS, LLAMA3_ROPE, SHAPE, SHARED, VISION, drafter_raw_config

from methods import locate
from methods.autoregressive import Autoregressive
from methods.base import EngineSpec, ModelSpec
from methods.dflash import DFlash
from methods.engines.reference import ReferenceEngine
from methods.engines.sglang import SglangEngine
from methods.engines.vllm import TOOL_CALLS, VllmEngine

CONF = REPOSITORY / "conf"
WINDOW = {"max_position_embeddings": 4096}
DENSE = {"model_type": "qwen3", "head_dim": 16, **SHAPE, **WINDOW}
SPARSE = {**DENSE, "model_type": "qwen3_moe", **EXPERTS}
LLAMA = {**SHAPE, **WINDOW, "model_type": "llama", "rope_parameters": LLAMA3_ROPE, "eos_token_id": [1, 2]}
LAYERS = {"layer_types": ["linear_attention"] * 3 + ["full_attention"], "linear_conv_kernel_dim": 4}
ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}}


def wrapped(kind: str, **text) -> dict:
    inner = {"model_type": f"{kind}_text", **SHAPE, **WINDOW, **DELTA, **LAYERS, **ROPE, **text}
    return {"model_type": kind, "text_config": inner, "vision_config": VISION, "tie_word_embeddings": False}


HYBRID, HYBRID_SPARSE = wrapped("qwen3_5"), wrapped("qwen3_5_moe", **SHARED)
# The published pairs: the target, the drafter, and a config of the target's family.
PUBLISHED = {
    "qwen3_4b": ("Qwen/Qwen3-4B", "z-lab/Qwen3-4B-DFlash-b16", DENSE),
    "qwen3_8b": ("Qwen/Qwen3-8B", "z-lab/Qwen3-8B-DFlash-b16", DENSE),
    "qwen3_coder_30b_a3b": ("Qwen/Qwen3-Coder-30B-A3B-Instruct", "z-lab/Qwen3-Coder-30B-A3B-DFlash", SPARSE),
    "llama31_8b": ("meta-llama/Llama-3.1-8B-Instruct", "z-lab/LLaMA3.1-8B-Instruct-DFlash-UltraChat", LLAMA),
    "qwen35_4b": ("Qwen/Qwen3.5-4B", "z-lab/Qwen3.5-4B-DFlash", HYBRID),
    "qwen35_9b": ("Qwen/Qwen3.5-9B", "z-lab/Qwen3.5-9B-DFlash", HYBRID),
    "qwen35_27b": ("Qwen/Qwen3.5-27B", "z-lab/Qwen3.5-27B-DFlash", HYBRID),
    "qwen35_35b_a3b": ("Qwen/Qwen3.5-35B-A3B", "z-lab/Qwen3.5-35B-A3B-DFlash", HYBRID_SPARSE),
    "qwen36_27b": ("Qwen/Qwen3.6-27B", "z-lab/Qwen3.6-27B-DFlash", HYBRID),
    "qwen36_35b_a3b": ("Qwen/Qwen3.6-35B-A3B", "z-lab/Qwen3.6-35B-A3B-DFlash", HYBRID_SPARSE),
}
ARMS = (Autoregressive(), DFlash())


@pytest.fixture
def hub(tmp_path, monkeypatch) -> None:
    """A hub that has all of them, in small."""
    drafter = drafter_raw_config(["full_attention"] * 2, **WINDOW)
    has = {target: config for target, _, config in PUBLISHED.values()}
    has |= {name: drafter for _, name, _ in PUBLISHED.values()}

    def from_hub(repository: str, patterns: tuple[str, ...]) -> Path:
        folder = tmp_path / repository.replace("/", "--")
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(has[repository]))
        return folder

    monkeypatch.setattr(locate, "_from_hub", from_hub)


def model(name: str) -> ModelSpec:
    return ModelSpec(**yaml.safe_load((CONF / "model" / f"{name}.yaml").read_text()))


def test_every_published_pair_is_there_and_nothing_else():
    named = {path.stem for path in (CONF / "model").glob("*.yaml")}
    assert named == {*PUBLISHED, "tiny", "tiny_hybrid"}
    for name, (target, drafter, _) in PUBLISHED.items():
        assert model(name) == ModelSpec(name, target, drafter, "checkpoint")


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("engine", [ReferenceEngine, VllmEngine, SglangEngine])
@pytest.mark.parametrize("tp", [1, 2, 4])
def test_a_published_pair_is_one_config_for_every_engine(hub, name, engine, tp):
    python = None if engine is ReferenceEngine else sys.executable
    spec = EngineSpec(model(name), tp=tp, device="cuda", dtype="bfloat16", max_length=500, python=python)
    engine.check(spec, ARMS)
    assert all(engine.memory_bytes(spec, method) > 0 for method in ARMS)
    if engine is not ReferenceEngine:
        plain, drafted = (engine(spec).arguments(method) for method in ARMS)
        assert not any("speculative" in word for word in plain) and any("speculative" in word for word in drafted)
        drafter = locate.resolve(PUBLISHED[name][1])
        assert any(str(drafter) in word for word in drafted) and not any(str(drafter) in word for word in plain)
    if engine is VllmEngine:
        assert ("--language-model-only" in plain) == ("text_config" in PUBLISHED[name][2])


@pytest.mark.parametrize(
    ("template", "parser"),
    [
        ('{"name": <function-name>, "arguments": …} within <tool_call></tool_call>', "hermes"),
        ("<tool_call>\n<function=example>\n<parameter=x>", "qwen3_coder"),
        ('Respond in the format {"name": function name, "parameters": dictionary}.', "llama3_json"),
        ("messages", None),
    ],
)
def test_a_familys_tool_calls_are_told_by_its_template(tmp_path, template, parser):
    for file in (REPOSITORY / "methods/checkpoints/tiny/target").iterdir():
        if file.name != "tokenizer_config.json":
            (tmp_path / file.name).symlink_to(file)
    (tmp_path / "chat_template.jinja").write_text(template)
    spec = EngineSpec(ModelSpec("t", str(tmp_path), "builtin:tiny/drafter"), python=sys.executable)
    from methods.engines.served import Place

    words = VllmEngine(spec).deployment(DFlash(), Place("t", "127.0.0.1", 1))
    assert parser is None or parser in TOOL_CALLS.values()
    assert (words[words.index("--tool-call-parser") + 1] if "--tool-call-parser" in words else None) == parser
