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
        self._drawn: tuple[torch.Generator, torch.Generator] | None = None
        if seed is not None:  # what ranks share must be the same on all of them
            own, common = (torch.Generator(device).manual_seed(seed + extra) for extra in (1 + group.rank, 0))
            self._drawn = own, common

    def __contains__(self, name: str) -> bool:
        return name in self._files

    @property
    def made_up(self) -> bool:
        """Whether nothing is read: random weights."""
        return self._drawn is not None

    @property
    def text_prefix(self) -> str:
        """What the names of a target's text model begin with; a vision-language wrapper nests it."""
        nested = "model.language_model."
        return nested if any(name.startswith(nested) for name in self._files) else "model."

    def tensor(
        self,
        name: str,
        shape: tuple[int, ...],
        *,
        split: int | None = None,
        blocks: tuple[int, ...] = (),
        dtype: torch.dtype | None = None,
        neutral: float = 1.0,
    ) -> Tensor:
        """A tensor of `shape`, or this rank's equal share of it along dimension `split`.

        Args:
            blocks: sizes of what lies one after the other along `split`; the share is one of each.
            dtype: in place of the compute dtype.
            neutral: the value of a vector that is not read but made up.

        Raises:
            Refusal: it is missing, or has another shape.
        """
        share = [slice(None)] * len(shape)
        if split is None:
            return self._count(self._part(name, shape, share, neutral), dtype)
        parts, begin = [], 0
        for size in blocks or (shape[split],):
            own = self.group.share(size)
            share[split] = slice(begin + own.start, begin + own.stop)
            parts.append(self._part(name, shape, share, neutral))
            begin += size
        return self._count(torch.cat(parts, dim=split) if blocks else parts[0], dtype)

    def rows(self, name: str, shape: tuple[int, int], rows: slice) -> Tensor:
        """Rows of a vocabulary's matrix; rows beyond the vocabulary are zero."""
        there = slice(min(rows.start, shape[0]), min(rows.stop, shape[0]))
        part = self._part(name, shape, [there, slice(None)], 1.0)
        padded = part.new_zeros(rows.stop - rows.start, shape[1])
        padded[: len(part)] = part
        return self._count(padded, None)

    def _count(self, tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
        tensor = tensor.to(self.device, dtype or self.dtype).contiguous()
        self.bytes += tensor.nbytes
        return tensor

    def _part(self, name: str, shape: tuple[int, ...], share: list[slice], neutral: float) -> Tensor:
        if self._drawn is None:
            return self._read(name, shape, tuple(share))
        size = [len(range(*part.indices(length))) for part, length in zip(share, shape, strict=True)]
        if len(size) == 1:
            return torch.full(size, neutral, device=self.device, dtype=self.dtype)
        generator = self._drawn[all(part == slice(None) for part in share)]
        drawn = torch.randn(size, generator=generator, device=self.device, dtype=self.dtype)
        return drawn.mul_(shape[-1] ** -0.5)

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
