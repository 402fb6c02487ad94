"""Muon for matrices and AdamW for the rest, with a schedule that falls to zero."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def schedule(step: int, done: float, *, warm: int = 100, fall: float = 0.45) -> float:
    """The learning rate's factor after `done` of the training: a short rise, a plateau, a linear fall to zero."""
    return min(1.0, (step + 1) / warm, max(0.0, (1 - done) / fall))


def orthogonalise(matrices: Tensor) -> Tensor:
    """The nearest matrices with singular values near one, for a stack [N, rows ≥ columns]; five Newton–Schulz steps."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrices.bfloat16()
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x.mT @ x
        x = a * x + x @ (b * gram + c * gram @ gram)
    whole: Tensor = x.float()
    return whole


class Muon:
    """Momentum made orthogonal (Jordan et al. 2024), batched over matrices of one shape.

    The update's root mean square is that of AdamW (0.2), so one learning rate serves both optimisers.
    """

    def __init__(self, matrices: list[nn.Parameter], decay: float = 0.05, momentum: float = 0.95) -> None:
        self.decay, self.momentum = decay, momentum
        groups: dict[tuple[int, int], list[nn.Parameter]] = {}
        for p in matrices:
            groups.setdefault((max(p.shape), min(p.shape)), []).append(p)
        self.groups: list[list[Tensor]] = [[*group] for group in groups.values()]
        self.buffers = [[torch.zeros_like(p) for p in group] for group in self.groups]

    @torch.no_grad()
    def step(self, rate: float) -> None:
        for group, buffers in zip(self.groups, self.buffers, strict=True):
            gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in group]
            torch._foreach_lerp_(buffers, gradients, 1 - self.momentum)
            ahead = torch._foreach_lerp(gradients, buffers, self.momentum)
            tall = torch.stack([g if g.shape[0] >= g.shape[1] else g.mT for g in ahead])
            update = orthogonalise(tall) * (0.2 * max(tall.shape[-2:]) ** 0.5)
            torch._foreach_mul_(group, 1 - rate * self.decay)
            parts = [u if p.shape[0] >= p.shape[1] else u.mT for u, p in zip(update.unbind(), group, strict=True)]
            torch._foreach_add_(group, parts, alpha=-rate)


class Optimiser:
    """Steps a model with Muon on its layers' matrices and AdamW on embeddings and norms."""

    def __init__(self, model: nn.Module, rate: float) -> None:
        self.model, self.rate = model, rate
        named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        matrices = [p for n, p in named if p.ndim == 2 and "embed" not in n]
        others = [p for n, p in named if p.ndim != 2 or "embed" in n]
        self.muon = Muon(matrices)
        self.adam = torch.optim.AdamW(others, lr=rate, betas=(0.9, 0.98), weight_decay=0.0)

    def step(self, index: int, done: float) -> None:
        """Applies the gradients of step `index`, at `done` (0 to 1) of the training."""
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        rate = self.rate * schedule(index, done)
        for group in self.adam.param_groups:
            group["lr"] = rate
        self.muon.step(rate)
        self.adam.step()
        self.model.zero_grad(set_to_none=False)
