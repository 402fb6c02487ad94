"""Forward and backward passes recorded as CUDA graphs: a batch costs one launch instead of thousands of small ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass
class _Recording:
    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    output: Tensor


class Captured:
    """Work on a batch that adds to a model's gradients and returns a loss, recorded once for each shape of its inputs.

    The first batch of a shape runs as it is, which also warms the kernels up; the second is recorded; from then on the
    recording is replayed. Off CUDA the work always runs as it is.
    """

    def __init__(self, model: nn.Module, work: Callable[..., Tensor]) -> None:
        self.work = work
        self.recordings: dict[tuple[torch.Size, ...], _Recording | None] = {}
        for p in model.parameters():
            # Recordings add to these tensors, so they must be there and stay.
            p.grad = torch.zeros_like(p)

    def __call__(self, *inputs: Tensor) -> Tensor:
        if not inputs[0].is_cuda:
            return self.work(*inputs)
        key = tuple(t.shape for t in inputs)
        if key not in self.recordings:
            self.recordings[key] = None
            return self.work(*inputs)
        recording = self.recordings[key] or self._record(inputs)
        self.recordings[key] = recording
        for own, given in zip(recording.inputs, inputs, strict=True):
            own.copy_(given)
        recording.graph.replay()
        return recording.output.clone()

    def _record(self, inputs: tuple[Tensor, ...]) -> _Recording:
        # One pool serves all, since no two replays overlap and nothing but the losses outlives a replay.
        pool = next((r.graph.pool() for r in self.recordings.values() if r), None)
        own, graph = [t.clone() for t in inputs], torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            output = self.work(*own)
        return _Recording(graph, own, output)
