"""Captured graphs inside SGLang: its own of the two passes, with the trees' mask, and those of the plugin's steps.

Imports SGLang: nothing but its own processes loads this module. SGLang captures DFlash's verify pass without a mask
(`_DFLASH_VERIFY_SKIP_CUSTOM_MASK_BACKENDS`), and a replay then leaves in silence whatever mask it is given unread; and
it gives both passes one width. `Runner` captures each pass as its `Pass` asks, and looks afterwards at what the
kernels were given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from sglang.srt.distributed.parallel_state import GroupCoordinator, graph_capture
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
from sglang.srt.model_executor.runner import decode_cuda_graph_runner
from sglang.srt.model_executor.runner_utils.pool import get_or_create_global_graph_memory_pool
from sglang.srt.speculative.dflash_info import DFlashVerifyInput
from torch import Tensor

from methods.engines.sglang_ddtree.steps import Run
from methods.reference.parallel import Group

WARM_UPS = 2  # runs before a capture: kernels are compiled and what is made once is made


class Pass(NamedTuple):
    """One model's pass: rows a request, which hidden states it gives, and the mask it goes through, if any."""

    width: int
    hidden: CaptureHiddenMode
    mask: Tensor | None = None

    def input(self, tokens: Tensor | None, positions: Tensor | None, *, captured: bool) -> DFlashVerifyInput:
        """A batch's rows. SGLang copies a mask into that of a captured pass: here it lies there already."""
        mask = self.mask[:0] if captured and self.mask is not None else self.mask
        return DFlashVerifyInput(
            draft_token=tokens,
            positions=positions,
            draft_token_num=self.width,
            custom_mask=mask,
            capture_hidden_mode=self.hidden,
        )

    def check(self, made: Any) -> None:
        """Whether the attention's kernels were given this width and mask (SGLang's `ForwardMetadata`)."""
        if made.custom_mask is not self.mask or made.max_extend_len != self.width:
            raise RuntimeError(f"a pass of {self.width} rows a request was made with another width or mask")


class Runner(decode_cuda_graph_runner.DecodeCudaGraphRunner):  # type: ignore[misc]
    """SGLang's, for models that have their pass as `draft_tree`."""

    def get_spec_info(self, num_tokens: int) -> DFlashVerifyInput:
        return self.model_runner.draft_tree.input(None, None, captured=True)

    def capture(self) -> None:
        backend, own = self.attn_backend, self.model_runner.draft_tree
        # SGLang makes room for a whole text in every row, where every request needs it once.
        backend.cuda_graph_kv_indices = torch.zeros(
            self.max_bs * backend.max_context_len, dtype=torch.int64, device=self.device
        )
        if own.mask is not None:
            backend.cuda_graph_custom_mask = own.mask
        super().capture()

    def capture_one_shape(self, *given: Any, **named: Any) -> None:
        super().capture_one_shape(*given, **named)
        self.model_runner.draft_tree.check(self.attn_backend.forward_metadata)


def use(model_runner: Any, own: Pass) -> None:
    """Have SGLang capture this model's pass so; its runner is looked up by name when it captures."""
    model_runner.draft_tree = own
    model_runner.attn_backend.num_draft_tokens = own.width
    decode_cuda_graph_runner.DecodeCudaGraphRunner = Runner


@contextmanager
def capturing(tp_group: GroupCoordinator) -> Iterator[Callable[[Run], Run]]:
    """Capture the plugin's own steps; what ranks exchange in them is captured too."""
    pool = get_or_create_global_graph_memory_pool(torch.cuda)
    with graph_capture() as context:

        def captured(step: Run) -> Run:
            for _ in range(WARM_UPS):
                torch.cuda.synchronize()
                tp_group.barrier()
                step()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, stream=context.stream):
                step()
            return graph.replay

        yield captured
    torch.cuda.synchronize()


@dataclass(frozen=True)
class Ranks(Group):
    """SGLang's tensor-parallel ranks as the vocabulary's."""

    server: GroupCoordinator | None = None

    @classmethod
    def of(cls, server: GroupCoordinator) -> Ranks:
        return cls(server.rank_in_group, server.world_size, server=server)

    def max(self, tensor: Tensor) -> Tensor:
        return self.gather(tensor[None], dim=0).amax(dim=0)

    def gather(self, tensor: Tensor, dim: int) -> Tensor:
        return self.server.all_gather(tensor.contiguous(), dim=dim) if self.server else tensor
