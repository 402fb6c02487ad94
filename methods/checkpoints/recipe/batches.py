"""Batches of padded rows in a few fixed shapes: sequences gather in pools by length, and a full pool is a batch.

Rows are never packed, so every sequence stands at position 0 as it does in use. Padding stays small because the
widths are close, and no batch has a shape of its own, which would cost kernels their plans.
"""

from __future__ import annotations

import queue
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

T = TypeVar("T")
WIDTHS = (64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 896, 1024, 1280, 1536, 2048, 2560, 3072, 4096)


@dataclass
class Rows:
    """Padded token ids [B, S] (int64), the loss weight of each as a prediction target [B, S], and lengths [B]."""

    ids: Tensor
    weight: Tensor
    lengths: Tensor


def pad(sequences: list[tuple[np.ndarray, np.ndarray]], width: int | None = None) -> Rows:
    """Sequences of (ids, weights) as rows of `width` (else of the longest); padding has weight 0."""
    width = width or max(len(ids) for ids, _ in sequences)
    ids = np.zeros((len(sequences), width), np.int64)
    weight = np.zeros((len(sequences), width), np.float32)
    for row, (one, flags) in enumerate(sequences):
        ids[row, : len(one)] = one
        weight[row, : len(one)] = flags
    lengths = np.array([len(one) for one, _ in sequences])
    return Rows(torch.from_numpy(ids), torch.from_numpy(weight), torch.from_numpy(lengths))


class Pools(Generic[T]):
    """Collects items by length; `add` gives back (width, items) when a width has a full batch of them.

    A batch of width w has `tokens // (w + extra)` rows.
    """

    def __init__(self, tokens: int, extra: int = 0) -> None:
        self.rows = {width: max(1, tokens // (width + extra)) for width in WIDTHS}
        self.waiting: dict[int, list[T]] = {width: [] for width in WIDTHS}

    def add(self, length: int, item: T) -> tuple[int, list[T]] | None:
        width = WIDTHS[bisect_left(WIDTHS, length)]
        pool = self.waiting[width]
        pool.append(item)
        if len(pool) < self.rows[width]:
            return None
        self.waiting[width] = []
        return width, pool


def cut(lengths: list[int], limit: int, slack: float = 1.2) -> Iterator[list[int]]:
    """Indices grouped by length: at most `limit` padded tokens and lengths within a factor of about `slack`."""
    group: list[int] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        widest = lengths[index]
        if group and (widest * (len(group) + 1) > limit or widest > slack * lengths[group[0]] + 32):
            yield group
            group = []
        group.append(index)
    if group:
        yield group


def ahead(make: Callable[[], Iterator[T]], depth: int = 12) -> Iterator[T]:
    """The iterator's items, made in a thread that keeps `depth` of them ready."""
    ready: queue.Queue[T | BaseException | None] = queue.Queue(depth)

    def work() -> None:
        try:
            for item in make():
                ready.put(item)
            ready.put(None)
        except BaseException as error:
            ready.put(error)

    threading.Thread(target=work, daemon=True).start()
    while (item := ready.get()) is not None:
        if isinstance(item, BaseException):
            raise item
        yield item
