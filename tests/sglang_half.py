"""A plugin of SGLang for tests: what its drafter reads stays in float16 where its weights are, instead of bfloat16."""

from __future__ import annotations


def register() -> None:
    import torch

    rounded = torch.Tensor.bfloat16
    torch.Tensor.bfloat16 = lambda self: self if self.dtype == torch.float16 else rounded(self)
