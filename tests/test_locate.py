"""Where a model's folder is, and what identifies it."""

from __future__ import annotations

import json

import pytest

from methods import locate
from methods.base import EngineSpec, ModelSpec, Refusal
from methods.engines.reference import compute_dtype


def folder(tmp_path, **config):
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def test_built_in_pair_is_found():
    for part in ("target", "drafter"):
        assert (locate.resolve(f"builtin:tiny/{part}") / "model.safetensors").is_file()


def test_a_shape_is_a_config_that_borrows_a_tokenizer():
    shape = locate.resolve("shape:qwen3_8b/target")
    assert [path.name for path in shape.iterdir()] == ["config.json"] and not locate.is_hub_id("shape:qwen3_8b/target")
    assert (locate.text_folder("shape:qwen3_8b/target") / "tokenizer.json").is_file()
    assert locate.text_folder("builtin:tiny/target") == locate.resolve("builtin:tiny/target")


@pytest.mark.parametrize(
    "reference", ["builtin:nothing/target", "shape:nothing/target", "/nowhere", "./nowhere", "plain-name", "a/b/c"]
)
def test_a_folder_that_is_not_there_is_one_sentence(reference):
    with pytest.raises(Refusal, match=r"is not a model: .* has no config\.json"):
        locate.resolve(reference)


def test_a_hub_that_cannot_answer_is_one_sentence(monkeypatch):
    def offline(*args, **kwargs):
        raise OSError("no route to host\nmore")

    monkeypatch.setattr("huggingface_hub.snapshot_download", offline)
    with pytest.raises(Refusal, match=r"neither a folder here nor to be had from the hub \(no route to host\)"):
        locate.resolve("someone/some-model")


def test_only_configs_are_fetched_for_a_check(monkeypatch, tmp_path):
    asked = {}

    def download(repository, allow_patterns):
        asked[repository] = allow_patterns
        return str(folder(tmp_path))

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    locate.resolve("someone/light", weights=False)
    locate.resolve("someone/whole")
    assert "*.safetensors" not in asked["someone/light"] and "*.safetensors" in asked["someone/whole"]


def test_stop_ids_are_all_that_either_file_names(tmp_path):
    assert locate.stop_ids(folder(tmp_path, eos_token_id=7)) == (7,)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [9, 3]}))
    assert locate.stop_ids(tmp_path) == (3, 7, 9)
    folder(tmp_path, text_config={"eos_token_id": 5})
    assert locate.stop_ids(tmp_path) == (3, 5, 9)


def test_a_fingerprint_follows_the_content(tmp_path):
    first, second = tmp_path / "a", tmp_path / "b"
    for each in (first, second):
        each.mkdir()
        folder(each, x=1)
        (each / "model.safetensors").write_bytes(b"same")
    assert locate.fingerprint(first) == locate.fingerprint(second)
    third = tmp_path / "c"
    third.mkdir()
    folder(third, x=1)
    (third / "model.safetensors").write_bytes(b"other")
    assert locate.fingerprint(third) != locate.fingerprint(first)


def test_auto_dtype(tmp_path):
    raw = {"model_type": "llama", "num_hidden_layers": 1, "hidden_size": 8, "intermediate_size": 8}
    path = str(folder(tmp_path, **raw, num_attention_heads=1, vocab_size=9, dtype="bfloat16"))
    model = ModelSpec("m", path, path)
    built_in = ModelSpec("tiny", "builtin:tiny/target", "builtin:tiny/drafter")
    assert compute_dtype(EngineSpec(model, device="cpu")) == "float32"
    assert compute_dtype(EngineSpec(model, device="cuda")) == "bfloat16"
    assert compute_dtype(EngineSpec(model, device="cuda", dtype="float16")) == "float16"
    assert compute_dtype(EngineSpec(built_in, device="cuda")) == "float32"


def test_random_weights_need_no_hub_where_the_shape_is_here(tmp_path):
    assert locate.shaped("qwen3_8b", "target", "Qwen/Qwen3-8B") == "shape:qwen3_8b/target"
    assert locate.shaped("llama31_8b", "target", "meta-llama/Llama-3.1-8B") == "meta-llama/Llama-3.1-8B"
    assert locate.shaped("qwen3_8b", "target", str(tmp_path)) == str(tmp_path)
    assert locate.resolve("shape:qwen3_8b/target").is_dir()
