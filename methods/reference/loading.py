"""Weights from safetensors folders, each rank reading its own share; or random ones of the same shape.

A rank never holds a tensor it does not own: shares are sliced while reading. `Weights` hands out plain tensors
on the device in the compute dtype and counts their bytes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from methods.base import Refusal
from methods.reference.parallel import Group


class Weights:
    """A checkpoint folder seen from one rank.

    Args:
        folder: holds model.safetensors, or shards with model.safetensors.index.json.
        seed: with a number, nothing is read and tensors are drawn at random: a shape without weights, for timing.
    """

    def __init__(
        self, folder: Path, group: Group, device: torch.device, dtype: torch.dtype, seed: int | None = None
    ) -> None:
        self.group, self.device, self.dtype = group, device, dtype
        self.bytes = 0
        self._folder = folder
        self._open: dict[str, Any] = {}
        self._files = {} if seed is not None else _index(folder)
        self._generator = None if seed is None else torch.Generator(device).manual_seed(seed + group.rank)

    def tensor(self, name: str, shape: tuple[int, ...], *, split: int | None = None) -> Tensor:
        """A tensor of `shape`, or this rank's equal share of it along dimension `split`.

        Raises:
            Refusal: it is missing, or has another shape.
        """
        share = [slice(None)] * len(shape)
        if split is not None:
            share[split] = self.group.share(shape[split])
        return self._count(self._random(shape, share) if self._generator else self._read(name, shape, tuple(share)))

    def rows(self, name: str, shape: tuple[int, int], rows: slice) -> Tensor:
        """Rows of a vocabulary's matrix; rows beyond the vocabulary are zero."""
        there = slice(min(rows.start, shape[0]), min(rows.stop, shape[0]))
        share = (there, slice(None))
        part = self._random(shape, list(share)) if self._generator else self._read(name, shape, share)
        padded = part.new_zeros(rows.stop - rows.start, shape[1])
        padded[: len(part)] = part
        return self._count(padded)

    def _count(self, tensor: Tensor) -> Tensor:
        tensor = tensor.to(self.device, self.dtype).contiguous()
        self.bytes += tensor.nbytes
        return tensor

    def _read(self, name: str, shape: tuple[int, ...], share: tuple[slice, ...]) -> Tensor:
        if name not in self._files:
            raise Refusal(f"the checkpoint in {self._folder} has no tensor {name!r}.")
        file = self._files[name]
        if file not in self._open:
            self._open[file] = safe_open(self._folder / file, framework="pt")
        whole = self._open[file].get_slice(name)
        if tuple(whole.get_shape()) != shape:
            found = tuple(whole.get_shape())
            raise Refusal(f"tensor {name!r} in {self._folder} has shape {found}, but its config.json asks for {shape}.")
        part: Tensor = whole[share]
        return part

    def _random(self, shape: tuple[int, ...], share: list[slice]) -> Tensor:
        size = [len(range(*part.indices(length))) for part, length in zip(share, shape, strict=True)]
        if len(size) == 1:
            return torch.ones(size, device=self.device, dtype=self.dtype)  # norms: neutral
        drawn = torch.randn(size, generator=self._generator, device=self.device, dtype=self.dtype)
        return drawn.mul_(shape[-1] ** -0.5)


def _index(folder: Path) -> dict[str, str]:
    """Which file holds which tensor."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        weight_map: dict[str, str] = json.loads(index.read_text())["weight_map"]
        if gone := sorted({file for file in weight_map.values() if not (folder / file).is_file()}):
            raise Refusal(f"{folder} lacks {gone[0]}, which its index names.")
        return weight_map
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise Refusal(f"{folder} holds no safetensors weights; model.weights=random runs the shape without them.")
    found = {}
    for path in files:
        with safe_open(path, framework="pt") as opened:
            found.update(dict.fromkeys(opened.keys(), path.name))
    return found
