"""SGLang 0.5.15 without a GPU, as a plugin of it for tests: its Triton kernels run in Triton's interpreter, slowly.

What SGLang does on a CPU that keeps it from drafting there is undone: it leaves out a kernel launch, asks a CPU tensor
for a CUDA stream, and turns what the drafter reads into bfloat16 whatever its weights are (which it does on a GPU too,
so that only bfloat16 can be drafted in there; float32 makes answers comparable to the last bit).
"""

from __future__ import annotations

import os
from pathlib import Path

TESTS = Path(__file__).parent
VARIABLES = {"SGLANG_USE_CPU_ENGINE": "1", "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
ARGUMENTS = {"device": "cpu", "disable_overlap_schedule": True, "disable_decode_cuda_graph": True}


def path(folder: Path) -> str:
    """What a server's PYTHONPATH has to hold; the plugin's metadata are written below `folder`."""
    place = folder / "sglang-on-cpu" / "sglang_on_cpu-0.1.dist-info"
    place.mkdir(parents=True, exist_ok=True)
    (place / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang-on-cpu\nVersion: 0.1\n")
    (place / "entry_points.txt").write_text("[sglang.srt.plugins]\nsglang_on_cpu = sglang_on_cpu:register\n")
    return os.pathsep.join([str(place.parent.absolute()), str(TESTS)])


def register() -> None:
    import torch
    from sglang.srt.speculative.triton_ops import cache_locs

    torch.Tensor.record_stream = lambda self, stream: None
    torch.Tensor.bfloat16 = lambda self: self if self.dtype == torch.float32 else self.to(torch.bfloat16)
    cache_locs._is_cuda = True
