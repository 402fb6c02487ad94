"""The target against transformers, and trees against the chains they hold."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import FAMILIES, SHAPE, WRAPPERS, hf_model, save_drafter, save_fused, save_target, save_wrapped

from methods.base import Refusal
from methods.reference import reading, tree
from methods.reference.attention import Ancestry
from methods.reference.config import check_pair, drafter_config, target_config
from methods.reference.loading import Weights
from methods.reference.parallel import Group
from methods.reference.target import Target

CPU = torch.device("cpu")


def open_target(folder, dtype=torch.float32, slots=256) -> Target:
    return Target(target_config(folder), Weights(folder, Group(), CPU, dtype), slots)


def read(target: Target, tokens: list[int], rows: int = 512) -> torch.Tensor:
    """Logits after each token of a text, without padding."""
    chunks = reading.read(target, tokens, rows=rows)
    return target.logits(torch.cat([chunk.hidden_ch for chunk in chunks]))[:, : target.config.vocabulary]


VARIANTS = [(family, {}) for family in FAMILIES] + [
    ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5000.0}}),
    ("qwen3_moe", {"norm_topk_prob": True, "decoder_sparse_step": 2}),
    ("qwen3_5_text", {"layer_types": ["full_attention", "linear_attention"] * 2, "tie_word_embeddings": False}),
    ("qwen3_next", {"mlp_only_layers": [1], "norm_topk_prob": False, "full_attention_interval": 2}),
    ("qwen3", {"attention_bias": True, "num_key_value_heads": 8, "vocab_size": 208, "tie_word_embeddings": False}),
]


@pytest.mark.parametrize(("family", "changes"), VARIANTS)
@torch.inference_mode()
def test_logits_equal_transformers(family, changes, tmp_path):
    target = open_target(save_target(tmp_path, family, shards="60KB" if changes else "50GB", **changes))
    tokens = torch.randint(0, 200, (70,), generator=torch.Generator().manual_seed(2)).tolist()
    expected = hf_model(family, **changes)(torch.tensor([tokens])).logits[0]
    for rows in (512, 16, 1):
        torch.testing.assert_close(read(target, tokens, rows), expected, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("save", "family"),
    [(save_wrapped, family) for family in WRAPPERS]
    + [(save_fused, family) for family in ("qwen3_moe", "qwen3_5_moe_text", "qwen3_next")],
)
@torch.inference_mode()
def test_published_layouts_load(save, family, tmp_path):
    target = open_target(save(tmp_path, family))
    tokens = list(range(20))
    expected = hf_model(family)(torch.tensor([tokens])).logits[0]
    torch.testing.assert_close(read(target, tokens), expected, atol=2e-5, rtol=1e-5)


def test_hybrid_layers_are_listed_or_counted(tmp_path):
    save_target(tmp_path, "qwen3_5_text")
    edit(tmp_path, layer_types=None)
    assert target_config(tmp_path).kinds == (*["linear_attention"] * 3, "full_attention")
    edit(tmp_path, full_attention_interval=2, rope_parameters={"rope_type": "mrope", "rope_theta": 7.0})
    config = target_config(tmp_path)
    assert config.kinds == ("linear_attention", "full_attention") * 2
    assert config.rotary_dim == 4 and config.rope.kind == "default"


@torch.inference_mode()
def test_features_are_layer_outputs(tmp_path):
    target = open_target(save_target(tmp_path))
    tokens = list(range(30))
    states = hf_model("qwen3")(torch.tensor([tokens]), output_hidden_states=True).hidden_states
    (chunk,) = reading.read(target, tokens, (0, 2))
    expected = torch.cat([states[1][0], states[3][0]], dim=-1)
    torch.testing.assert_close(chunk.features_cf, expected, atol=1e-4, rtol=1e-5)


@st.composite
def random_trees(draw):
    size, reach = draw(st.integers(2, 24)), draw(st.sampled_from([1, 4, 24]))
    parents, depths = [0], [0]
    for row in range(1, size):
        parents.append(draw(st.integers(max(0, row - reach), row - 1)))
        depths.append(depths[parents[-1]] + 1)
    tokens = draw(st.lists(st.integers(0, 202), min_size=size, max_size=size))
    return parents, depths, tokens


@pytest.fixture(scope="module", params=["qwen3", "qwen3_5_moe_text"])
def target(tmp_path_factory, request):
    return open_target(save_target(tmp_path_factory.mktemp("target"), request.param))


@given(shape=random_trees(), length=st.integers(1, 40))
@settings(max_examples=25, deadline=None)
@torch.inference_mode()
def test_a_node_sees_its_own_path_alone(target, shape, length):
    parents, depths, tokens = shape
    prompt = [(7 * i + length) % 203 for i in range(length)]
    seen = tree.visibility(torch.tensor(parents), max(depths))

    def verify() -> torch.Tensor:
        read(target, prompt)
        ancestry = Ancestry(torch.tensor(parents), seen)
        view = target.view(torch.tensor(length), length + torch.tensor(depths), ancestry, 128)
        return target.logits(target.forward(torch.tensor(tokens), view)[0])[:, :203]

    logits = verify()
    for row in range(len(parents)):
        path, at = [row], row
        while at:
            at = parents[at]
            path.insert(0, at)
        alone = read(target, prompt + [tokens[r] for r in path])
        torch.testing.assert_close(logits[row], alone[-1], atol=3e-5, rtol=1e-5)


def edit(folder, **changes):
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**raw, **changes}))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model_type": "mamba2"}, "model family 'mamba2'"),
        ({"layer_types": ["linear_attention"] * 4}, "layer type 'linear_attention'"),
        ({"use_sliding_window": True}, "layer type 'sliding_attention'"),
        ({"hidden_act": "gelu"}, "activation 'gelu'"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "rope type 'yarn'"),
        ({"hidden_size": None}, "hidden_size"),
        ({"model_type": "qwen3_5_text", "layer_types": None}, "linear_num_key_heads"),
        ({"model_type": "qwen3_5_text", "layer_types": ["mamba"]}, "layer type 'mamba'"),
        ({"partial_rotary_factor": 0.5}, "partial rotary"),
        ({"num_experts": 8}, "num_experts_per_tok"),
    ],
)
def test_unsupported_targets_are_refused_by_name(tmp_path, changes, sentence):
    edit(save_target(tmp_path), **changes)
    with pytest.raises(Refusal, match=sentence):
        target_config(tmp_path)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"hidden_size": 128}, "hidden size 128"),
        ({"dflash_config": {"mask_token_id": 5, "target_layer_ids": [1, 9]}}, "target layer 9"),
        ({"vocab_size": 999}, "vocabulary 999"),
        ({"dflash_config": {"mask_token_id": 203, "target_layer_ids": [1]}}, "mask token 203"),
    ],
)
def test_a_drafter_of_another_target_is_refused(tmp_path, changes, sentence):
    edit(save_drafter(tmp_path / "drafter"), **changes)
    with pytest.raises(Refusal, match=sentence):
        check_pair(target_config(save_target(tmp_path / "target")), drafter_config(tmp_path / "drafter"))


def test_damaged_checkpoints_are_refused_in_a_sentence(tmp_path):
    save_target(tmp_path, shards="60KB")
    shard = sorted(tmp_path.glob("*.safetensors"))[0]
    weights = shard.read_bytes()
    shard.unlink()
    with pytest.raises(Refusal, match=f"lacks {shard.name}"):
        open_target(tmp_path)
    shard.write_bytes(weights)
    edit(tmp_path, intermediate_size=SHAPE["intermediate_size"] * 2)
    with pytest.raises(Refusal, match="has shape"):
        open_target(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(Refusal, match="not valid JSON"):
        target_config(tmp_path)


@pytest.mark.parametrize("tp", [3, 8, 32])
def test_ranks_that_do_not_divide_are_refused(tmp_path, tp):
    with pytest.raises(Refusal, match=f"tp={tp}"):
        target_config(save_target(tmp_path)).check_ranks(tp, "target")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"linear_num_key_heads": 2}, "2 gated delta key heads"),
        ({"linear_num_key_heads": 3, "linear_num_value_heads": 4}, "4 gated delta value heads"),
        ({"moe_intermediate_size": 30}, "30 columns of an expert"),
        ({"shared_expert_intermediate_size": 30}, "30 columns of the shared expert"),
    ],
)
def test_hybrid_shapes_that_do_not_divide_are_refused(tmp_path, changes, sentence):
    save_target(tmp_path, "qwen3_5_moe_text")
    edit(tmp_path, **changes)
    with pytest.raises(Refusal, match=sentence):
        target_config(tmp_path).check_ranks(4, "target")
