"""Record what the published DFlash drafter (package dflash 0.1.0) computes on our small random drafters.

Run where dflash is installed (`pip install --no-deps dflash==0.1.0`), from the repository's root:

    python tests/vectors/make_drafter_vectors.py

Three rounds per drafter: a context of several features, then a block; then more context, and so on, with the block's
keys dropped in between as its generation loop does.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).parents[1]))
from tiny_models import DRAFTER_KINDS, drafter_raw_config, drafter_tensors

ROUNDS = (11, 3, 8)  # context positions added before each block


def main() -> None:
    from dflash.model import DFlashDraftModel, _crop_to, _make_cache
    from transformers import Qwen3Config

    recorded = {}
    for kind, changes in DRAFTER_KINDS.items():
        raw = drafter_raw_config(**changes)
        config = Qwen3Config(**raw)
        model = DFlashDraftModel(config).eval()
        model.load_state_dict(drafter_tensors(raw), strict=True)
        cache, start = _make_cache(config), 0
        generator = torch.Generator().manual_seed(5)
        for index, new in enumerate(ROUNDS):
            features = torch.randn(new, 2 * raw["hidden_size"], generator=generator)
            block = torch.randn(raw["block_size"], raw["hidden_size"], generator=generator)
            positions = torch.arange(start, start + new + len(block))[None]
            with torch.inference_mode():
                hidden = model(
                    target_hidden=features[None],
                    noise_embedding=block[None],
                    position_ids=positions,
                    past_key_values=cache,
                    use_cache=True,
                )
            start += new
            _crop_to(cache, start)
            recorded |= {f"{kind}.{index}.features": features, f"{kind}.{index}.block": block}
            recorded[f"{kind}.{index}.hidden"] = hidden[0].clone()
    save_file(recorded, Path(__file__).with_name("drafter.safetensors"))


if __name__ == "__main__":
    main()
