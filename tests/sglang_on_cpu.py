"""SGLang 0.5.15 without a GPU, as a plugin of it for tests: its Triton kernels run in Triton's interpreter, slowly.

What SGLang does on a CPU that keeps it from drafting there is undone: it leaves out a kernel launch, asks a CPU tensor
for a CUDA stream, and turns what the drafter reads into bfloat16 whatever its weights are (which it does on a GPU too,
so that only bfloat16 can be drafted in there; float32 makes answers comparable to the last bit).

With `GRAPHS` in its environment SGLang's own runner of captured graphs runs too, on a backend that captures nothing:
what a replay runs is the call that was captured, on the static batch and the attention's metadata of then.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

VARIABLES = {
    **{"SGLANG_USE_CPU_ENGINE": "1", "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
    "SGLANG_NCCL_SO_PATH": "none",  # where NCCL is found, ranks would meet through it, GPUs or not
}
GRAPHS = "SGLANG_ON_CPU_GRAPHS"
ARGUMENTS = {"device": "cpu", "disable_overlap_schedule": True, "disable_decode_cuda_graph": True}


def register() -> None:
    import torch
    from sglang.srt.speculative.triton_ops import cache_locs

    torch.Tensor.record_stream = lambda self, stream: None
    torch.Tensor.bfloat16 = lambda self: self if self.dtype == torch.float32 else self.to(torch.bfloat16)
    cache_locs._is_cuda = True
    if GRAPHS in os.environ:
        _pretend_to_capture()


def _pretend_to_capture() -> None:
    from sglang.srt.model_executor.forward_batch_info import ForwardMode
    from sglang.srt.model_executor.model_runner import ModelRunner
    from sglang.srt.model_executor.runner import decode_cuda_graph_runner as runners
    from sglang.srt.model_executor.runner_backend.full_cuda_graph_backend import FullCudaGraphBackend

    from methods.engines.sglang_ddtree import graphs

    class Recorded(FullCudaGraphBackend):  # type: ignore[misc]
        def __init__(self, runner: Any, **more: Any) -> None:
            super().__init__(runner, **more)
            self._runner = runner

        @contextmanager
        def capture_session(self, stream: Any) -> Iterator[None]:
            yield

        def capture_one(self, shape_key: Any, forward_fn: Any, **more: Any) -> None:
            forward_fn()
            self._graphs[shape_key] = forward_fn, self._runner.attn_backend.forward_metadata
            self._outputs[shape_key] = forward_fn()

        def replay(self, shape_key: Any, static_forward_batch: Any, **more: Any) -> Any:
            forward_fn, metadata = self._graphs[shape_key]
            self._runner.attn_backend.forward_metadata = metadata
            kept, made = self._outputs[shape_key], forward_fn()
            for name in ("next_token_logits", "hidden_states"):
                if getattr(kept, name) is not None:
                    getattr(kept, name).copy_(getattr(made, name))
            print(f"replayed {shape_key.size} requests", flush=True)
            return kept

    @contextmanager
    def capturing(*given: Any) -> Iterator[Any]:
        yield lambda step: step

    @contextmanager
    def graph_capture() -> Iterator[Any]:
        yield SimpleNamespace(stream=None)

    def init_decode_cuda_graph(self: Any) -> None:
        self.decode_cuda_graph_runner = runners.DecodeCudaGraphRunner(self)

    ForwardMode.is_cpu_graph = ForwardMode.is_cuda_graph
    ModelRunner.init_decode_cuda_graph = init_decode_cuda_graph
    runners.resolve_decode_backend, runners.graph_capture, graphs.capturing = Recorded, graph_capture, capturing
