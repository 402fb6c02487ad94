"""The MLPs: one gated MLP, or a few of many experts chosen row by row.

Every rank holds its columns of every MLP and every expert, so outputs are parts to be summed over ranks.

Shape letters: n rows, p pairs of a row and an expert it chose, e experts, w columns of one on this rank.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from methods.reference.config import Experts, TransformerConfig
from methods.reference.loading import Weights


class GatedMLP:
    """SwiGLU of `wide` columns; this rank's columns."""

    def __init__(self, config: TransformerConfig, weights: Weights, prefix: str, wide: int) -> None:
        hidden = config.hidden
        self.gate_up = torch.cat(
            [weights.tensor(f"{prefix}.{name}_proj.weight", (wide, hidden), split=0) for name in ("gate", "up")]
        )
        self._gate_up_bias = self._down_bias = None
        if config.mlp_bias:
            biases = [weights.tensor(f"{prefix}.{name}_proj.bias", (wide,), split=0) for name in ("gate", "up")]
            self._gate_up_bias = torch.cat(biases)
            self._down_bias = weights.tensor(f"{prefix}.down_proj.bias", (hidden,))
        self.down = weights.tensor(f"{prefix}.down_proj.weight", (hidden, wide), split=1)
        self._first_rank = weights.group.rank == 0

    def __call__(self, x_nh: Tensor) -> Tensor:
        gate, up = F.linear(x_nh, self.gate_up, self._gate_up_bias).chunk(2, dim=-1)
        return F.linear(F.silu(gate) * up, self.down, self._down_bias if self._first_rank else None)


class SparseMLP:
    """Routed experts, and beside them, where the model has one, a gated expert that sees every row.

    A row's experts are the most probable ones under a softmax over all. Rows are put in the order of their experts and
    multiplied group by group, so each expert in use is read once, and no count reaches the host.
    """

    def __init__(self, config: TransformerConfig, shape: Experts, weights: Weights, prefix: str) -> None:
        hidden = config.hidden
        self._shape = shape
        self._router = weights.tensor(f"{prefix}.gate.weight", (shape.count, hidden))
        self._gate_up_e, self._down_e = _experts(weights, f"{prefix}.experts", shape, hidden)
        self._shared = None
        if shape.shared:
            self._shared = GatedMLP(config, weights, f"{prefix}.shared_expert", shape.shared)
            self._shared_gate = weights.tensor(f"{prefix}.shared_expert_gate.weight", (1, hidden))

    def __call__(self, x_nh: Tensor) -> Tensor:
        routed = self._routed(x_nh)
        if self._shared is None:
            return routed
        return routed + torch.sigmoid(F.linear(x_nh, self._shared_gate)) * self._shared(x_nh)

    def _routed(self, x_nh: Tensor) -> Tensor:
        chosen = self._shape.chosen
        probabilities = torch.softmax(F.linear(x_nh, self._router), dim=-1, dtype=torch.float32)
        share_nk, expert_nk = torch.topk(probabilities, chosen, dim=-1)
        if self._shape.sum_to_one:
            share_nk = share_nk / share_nk.sum(dim=-1, keepdim=True)
        expert_p, pair_p = torch.sort(expert_nk.flatten(), stable=True)
        experts = torch.arange(self._shape.count, device=x_nh.device)
        ends_e = torch.searchsorted(expert_p, experts, right=True, out_int32=True)
        gate, up = F.grouped_mm(x_nh[pair_p // chosen], self._gate_up_e.mT, offs=ends_e).chunk(2, dim=-1)
        out_ph = F.grouped_mm(F.silu(gate) * up, self._down_e.mT, offs=ends_e)
        back = torch.empty_like(pair_p).scatter_(0, pair_p, torch.arange(len(pair_p), device=x_nh.device))
        out_nkh: Tensor = out_ph[back].unflatten(0, (-1, chosen)) * share_nk.to(x_nh.dtype)[..., None]
        return out_nkh.sum(dim=1)


def _experts(weights: Weights, prefix: str, shape: Experts, hidden: int) -> tuple[Tensor, Tensor]:
    """[e, 2 w, hidden] and [e, hidden, w], from one tensor for all experts or one for each, as published."""
    count, wide = shape.count, shape.width
    if weights.made_up or f"{prefix}.gate_up_proj" in weights:
        gate_up = weights.tensor(f"{prefix}.gate_up_proj", (count, 2 * wide, hidden), split=1, blocks=(wide, wide))
        return gate_up, weights.tensor(f"{prefix}.down_proj", (count, hidden, wide), split=2)
    share = wide // weights.group.size
    gate_up_e = torch.empty(count, 2 * share, hidden, device=weights.device, dtype=weights.dtype)
    down_e = torch.empty(count, hidden, share, device=weights.device, dtype=weights.dtype)
    for e in range(count):
        for name, place in (("gate", gate_up_e[e, :share]), ("up", gate_up_e[e, share:])):
            place.copy_(weights.tensor(f"{prefix}.{e}.{name}_proj.weight", (wide, hidden), split=0))
        down_e[e].copy_(weights.tensor(f"{prefix}.{e}.down_proj.weight", (hidden, wide), split=1))
    return gate_up_e, down_e
