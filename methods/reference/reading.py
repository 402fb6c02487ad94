"""Reading a text into a target, causally and some rows at a time: prompts, outputs to be scored, an oracle's steps.

Shape letters: c rows of a chunk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from methods.reference.attention import Ancestry
from methods.reference.memory import PREFILL_ROWS
from methods.reference.parallel import up
from methods.reference.target import Target

SEEN_STEP = 64  # the number of slots a pass looks at grows in steps: few shapes, little waste


class Chunk(NamedTuple):
    """Some rows of a text, run through the target. `start` counts from the text's first token."""

    start: int
    hidden_ch: Tensor
    features_cf: Tensor | None


def read(
    target: Target,
    tokens: Sequence[int],
    feature_layers: Sequence[int] = (),
    *,
    start: int = 0,
    rows: int | None = None,
) -> Iterator[Chunk]:
    """Read tokens as the text from position `start` on; what the target holds of the text before stays.

    Position 0 begins a new text. Each chunk is text before it is handed out.
    """
    if start == 0:
        target.reset()
    text, rows = torch.tensor(tokens, device=target.device), rows or PREFILL_ROWS
    for offset in range(0, len(tokens), rows):
        part = text[offset : offset + rows]
        rows_c = torch.arange(len(part), device=target.device)
        chain = Ancestry((rows_c - 1).clamp_min(0), rows_c[:, None] >= rows_c, chain=True)
        first, seen = rows_c[0] + start + offset, min(up(start + offset + len(part), SEEN_STEP), target.cache.slots)
        chunk = Chunk(offset, *target.forward(part, target.view(first, first + rows_c, chain, seen), feature_layers))
        target.commit(first, rows_c, rows_c[-1])
        yield chunk
