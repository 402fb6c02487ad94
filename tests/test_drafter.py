"""The drafter against the published one (recorded vectors), and against itself cut differently."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_models import DRAFTER_KINDS, save_drafter

from methods.base import Refusal
from methods.reference.config import default_layer_ids, drafter_config
from methods.reference.drafter import Drafter
from methods.reference.loading import Weights
from methods.reference.parallel import Group

VECTORS = load_file(Path(__file__).parent / "vectors" / "drafter.safetensors")


def open_drafter(folder: Path) -> Drafter:
    return Drafter(drafter_config(folder), Weights(folder, Group(), torch.device("cpu"), torch.float32), 128)


@pytest.mark.parametrize("kind", DRAFTER_KINDS)
@torch.inference_mode()
def test_hidden_states_equal_the_published_drafters(kind, tmp_path):
    drafter = open_drafter(save_drafter(tmp_path, **DRAFTER_KINDS[kind]))
    at = torch.tensor(0)
    for index in range(3):
        features, block, expected = (VECTORS[f"{kind}.{index}.{part}"] for part in ("features", "block", "hidden"))
        drafter.extend(features, at)
        at = at + len(features)
        torch.testing.assert_close(drafter.block(block, at, 64), expected, atol=2e-5, rtol=1e-4)


@torch.inference_mode()
def test_a_draft_depends_on_the_context_not_on_its_cuts(tmp_path):
    drafter = open_drafter(save_drafter(tmp_path, **DRAFTER_KINDS["mixed"]))
    features, block = torch.randn(40, 128), torch.randn(8, 64)
    drafter.extend(features, torch.tensor(0))
    whole = drafter.block(block, torch.tensor(40), 64)
    at = 0
    for step in (1, 7, 12, 20):
        drafter.extend(torch.cat([features[at : at + step], torch.full((5, 128), 3.0)]), torch.tensor(at))
        at += step
        drafter.block(torch.randn(8, 64), torch.tensor(at), 64)
    torch.testing.assert_close(drafter.block(block, torch.tensor(40), 64), whole, atol=1e-5, rtol=1e-5)


def test_default_layers_are_the_published_ones():
    assert default_layer_ids(36, 5) == (1, 9, 17, 25, 33)
    assert default_layer_ids(32, 5) == (1, 8, 15, 22, 29)
    assert default_layer_ids(36, 1) == (18,)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"dflash_config": {"mask_token_id": 3, "selector_rank": 16}}, "selector_rank, which is not DFlash"),
        ({"dflash_config": {}}, "needs a mask_token_id"),
        ({"layer_types": ["linear_attention"] * 2}, "layer type 'linear_attention'"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
    ],
)
def test_other_drafters_are_refused_by_name(tmp_path, changes, sentence):
    folder = save_drafter(tmp_path)
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**raw, **changes}))
    with pytest.raises(Refusal, match=sentence):
        drafter_config(folder)
