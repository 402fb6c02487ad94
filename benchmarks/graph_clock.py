"""How long calls take on a GPU, launches aside: the clock of the kernels' benchmarks."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import torch


def seconds(calls: Sequence[Callable[[], object]], replays: int = 9) -> float:
    """Seconds a call takes: all of them in one CUDA graph, the median replay over their number."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    times: list[float] = []
    for _ in range(replays + 2):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(times[2:]) / len(calls)
