"""Whole rounds through the kernels write what they write on the plain path: on a GPU, or in Triton's interpreter.

TRITON_INTERPRET=1 python -m pytest tests/test_kernels_rounds.py
"""

from __future__ import annotations

import os

import pytest
import torch
from test_decode import PlantedDecoder, prompt
from tiny_models import save_drafter, save_target

from methods.autoregressive import Autoregressive
from methods.base import Request, Sampling
from methods.ddtree import DDTree
from methods.dflash import DFlash
from methods.locate import resolve
from methods.reference import kernels
from methods.reference.config import drafter_config, target_config
from methods.reference.decode import Decoder
from methods.reference.drafter import Drafter
from methods.reference.loading import Weights
from methods.reference.parallel import Group
from methods.reference.target import Target

pytest.importorskip("triton")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not (torch.cuda.is_available() or INTERPRETED):
    pytest.skip("needs a CUDA device, or TRITON_INTERPRET=1", allow_module_level=True)

pytestmark = [] if INTERPRETED else [pytest.mark.gpu]
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
LENGTH = 5 if INTERPRETED else 48


SMALL = {"linear_num_key_heads": 1, "linear_num_value_heads": 2}  # the interpreter runs one program at a time


@pytest.fixture(scope="module", params=["dense", "hybrid"])
def folders(tmp_path_factory, request):
    """A dense pair, and a hybrid one: the built-in on a GPU."""
    if request.param == "hybrid" and not INTERPRETED:
        return resolve("builtin:tiny_hybrid/target"), resolve("builtin:tiny_hybrid/drafter")
    folder, family = tmp_path_factory.mktemp("pair"), "qwen3" if request.param == "dense" else "qwen3_5_text"
    changes = SMALL if request.param == "hybrid" else {}
    return save_target(folder / "target", family, **changes), save_drafter(folder / "drafter")


def opened(folders, on):
    """A decoder through the kernels or on the plain path; what it builds at once depends on that as well."""
    target_folder, drafter_folder = folders
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "on", on)
        target = Target(target_config(target_folder), Weights(target_folder, Group(), DEVICE, torch.float32), 128)
        drafter = Drafter(drafter_config(drafter_folder), Weights(drafter_folder, Group(), DEVICE, torch.float32), 128)
        assert (target._stack is not None) == on
        with torch.inference_mode():
            return (PlantedDecoder if INTERPRETED else Decoder)(target, drafter)  # planting reads on the host


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("method", [Autoregressive(), DFlash(), DDTree(16)], ids=lambda method: method.arm)
def test_both_paths_write_the_same(folders, monkeypatch, method, temperature):
    request = Request("p", prompt(20, 3), LENGTH, sampling=Sampling(temperature, seed=5))
    monkeypatch.setattr(kernels, "on", False)
    plain = opened(folders, False)
    plain.text = plain.generate(Autoregressive(), request).output_ids
    expected = plain.generate(method, request)
    fast = opened(folders, True)
    monkeypatch.setattr(kernels, "on", True)
    found = fast.generate(method, request)
    assert found.output_ids == expected.output_ids
    assert found.rounds == expected.rounds
