"""Gated delta net layers over a tree: every row from the state of its own ancestors, without a state per row.

A head's state S [d, e] reads and writes associations of keys and values (arXiv 2412.06464): with log decay a,
S ← eᵃ S, u = β (v − Sᵀk), S ← S + k uᵀ, o = Sᵀq. Along a tree each row continues its parent's state. Unrolled from the
state S₀ before the root, with g_i the sum of a over the path from the root to i, the root's own included:

    u_i = β_i (v_i − e^{g_i} S₀ᵀk_i − Σ_{j strict ancestor of i} e^{g_i − g_j} (k_i·k_j) u_j)
    o_i = e^{g_i} S₀ᵀq_i + Σ_{j ancestor of i, or i} e^{g_i − g_j} (q_i·k_j) u_j

The first is a unit lower triangular system, since parents come before children (the WY form of the delta rule under the
ancestor mask); one solve gives all rows. A chain is prefill, a chain of one row is decoding. What the accepted path
has made of the state, e^{g_a} S₀ + Σ_{j on it} e^{g_a − g_j} k_j u_jᵀ, is only computed when it is known.

Numbers: everything after the projections is float32, which on a GPU means `allow_tf32` off (PyTorch's default for
matrix products): with 10 bits of mantissa u would lose what the solve cancels. Decays can be −200 and more a row, so
their sums are float64: differences of float32 sums would be wrong by percents on a long path. In float64 a sum of
float32 numbers is as good as exact in any order, so a row's does not depend on the tree around its path. Differences
are masked before the exponential: off the path they may be positive and large.

Shape letters: n rows, h key heads on this rank, r value heads per key head, d key size, e value size, c channels of
the convolution, l gated delta layers, p rows of an accepted path, s rows before and of a pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from methods.reference.config import GatedDelta, TransformerConfig
from methods.reference.loading import Weights
from methods.reference.parallel import Group

if TYPE_CHECKING:
    from methods.reference.attention import Ancestry, Place
    from methods.reference.kernels.delta_traces import Traces

L2_EPS = 1e-6
BLOCK = 128  # rows of one triangular solve


class Lineage(NamedTuple):
    """What the layers of one pass need to know of its rows' ancestry.

    `sums_nn` (float64) is 1 where `strangers_nn` is false: for oneself and ancestors. `taps_nk` has each row's
    convolution inputs, oldest first: indices into the window followed by the rows.
    """

    sums_nn: Tensor
    strangers_nn: Tensor
    taps_nk: Tensor

    @staticmethod
    def of(ancestry: Ancestry, kernel: int) -> Lineage:
        parents_n, window = ancestry.parents_n, kernel - 1
        assert ancestry.visible_nn is not None
        before_s = torch.arange(-1, window + len(parents_n) - 1, device=parents_n.device)
        before_s[window + 1 :] = window + parents_n[1:]
        taps = [torch.arange(window, window + len(parents_n), device=parents_n.device)]
        for _ in range(window):
            taps.insert(0, before_s[taps[0]])
        return Lineage(ancestry.visible_nn.double(), ~ancestry.visible_nn, torch.stack(taps, dim=1))


class Constants(NamedTuple):
    """What a layer knows beside its projections, float32: the convolution's taps (oldest first), the log decay's factor
    and shift per value head, and the factors and ε of the norm of its output."""

    taps_kc: Tensor
    speed_hr: Tensor
    shift_hr: Tensor
    norm_e: Tensor
    eps: float


class Pending(NamedTuple):
    """What the rows of a pass would do to a layer's state and window, should they become text."""

    key_hnd: Tensor
    pseudo_value_hrne: Tensor
    decay_hrn: Tensor  # summed from the root, float64
    inputs_sc: Tensor  # the window, then the rows' inputs to the convolution


@dataclass
class Memory:
    """One layer's part of a `Recurrence`, and what its last pass left pending; the kernels leave all layers' traces."""

    state_hdre: Tensor
    window_kc: Tensor
    pending: Pending | Traces | None = None


class Recurrence:
    """What the text so far has become: per layer a state [h, d, r, e] (float32) and the convolution's last inputs."""

    def __init__(
        self, config: TransformerConfig, shape: GatedDelta, group: Group, device: torch.device, dtype: torch.dtype
    ) -> None:
        heads, values = shape.key_heads // group.size, shape.value_heads // shape.key_heads
        self._states = torch.zeros(config.delta_layers, heads, shape.key_dim, values, shape.value_dim, device=device)
        channels = shape.channels // group.size
        self._windows = torch.zeros(config.delta_layers, shape.kernel - 1, channels, device=device, dtype=dtype)
        self.layers = [Memory(state, window) for state, window in zip(self._states, self._windows, strict=True)]

    def reset(self) -> None:
        """The state of no text; what is pending goes."""
        self._states.zero_()
        self._windows.zero_()
        self._forget()

    def snapshot(self) -> list[Tensor]:
        return [self._states.clone(), self._windows.clone()]

    def restore(self, copies: list[Tensor]) -> None:
        """The states of a `snapshot`; what is pending goes."""
        self._states.copy_(copies[0])
        self._windows.copy_(copies[1])
        self._forget()

    def _forget(self) -> None:
        for layer in self.layers:
            layer.pending = None

    def commit(self, path_p: Tensor, accepted: Tensor) -> None:
        """Advance all layers along the rows `path_p[0 … accepted]` of the last pass; later entries do not count."""
        left = [layer.pending for layer in self.layers]
        pending = [rows for rows in left if isinstance(rows, Pending)]
        if not pending:
            self._commit_traces(path_p, accepted)
            return
        window, steps_p = self._windows.shape[1], torch.arange(len(path_p), device=path_p.device)
        decay_lhrp = torch.stack([rows.decay_hrn[:, :, path_p] for rows in pending])
        last_lhr1 = decay_lhrp.index_select(-1, accepted[None])
        left_lhrp = (last_lhr1 - decay_lhrp).masked_fill_(steps_p > accepted, -torch.inf).exp().float()
        values_lhpre = torch.stack([rows.pseudo_value_hrne[:, :, path_p].transpose(1, 2) for rows in pending])
        values_lhpre.mul_(left_lhrp.transpose(2, 3)[..., None])
        keys_lhpd = torch.stack([rows.key_hnd[:, path_p] for rows in pending])
        self._states.mul_(last_lhr1.exp().float().transpose(2, 3)[..., None])
        flat = self._states.flatten(0, 1).flatten(2)
        flat.baddbmm_(keys_lhpd.mT.flatten(0, 1), values_lhpre.flatten(3).flatten(0, 1))
        latest = torch.cat([torch.arange(window, device=path_p.device), window + path_p])
        latest = latest[accepted + 1 + torch.arange(window, device=path_p.device)]
        self._windows.copy_(torch.stack([rows.inputs_sc[latest] for rows in pending]))

    def _commit_traces(self, path_p: Tensor, accepted: Tensor) -> None:
        from methods.reference.kernels import delta_commit

        traces = self.layers[0].pending
        assert traces is not None and not isinstance(traces, Pending)
        delta_commit.commit(self._states, self._windows, traces, path_p, accepted)


def delta_rule(
    state_hdre: Tensor,
    query_nhd: Tensor,
    key_nhd: Tensor,
    value_nhre: Tensor,
    decay_nhr: Tensor,
    rate_nhr: Tensor,
    lineage: Lineage,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gated delta rule for all rows of a tree at once, float32 (or, for a judge, float64).

    Args:
        query_nhd, key_nhd: normalised; queries scaled.
        decay_nhr: log decays a, at most 0.
        rate_nhr: β.

    Returns:
        Outputs [n, h, r, e], the pseudo-values u [h, r, n, e] and the decays' sums g [h, r, n] in float64.
    """
    key_hnd, query_hnd, value_hrne = key_nhd.transpose(0, 1), query_nhd.transpose(0, 1), value_nhre.permute(1, 2, 0, 3)
    rate_hrn = rate_nhr.permute(1, 2, 0)
    sum_hrn = (lineage.sums_nn @ decay_nhr.double().flatten(1)).T.unflatten(0, decay_nhr.shape[1:])
    between_hrnn = (sum_hrn[..., :, None] - sum_hrn[..., None, :]).to(state_hdre.dtype)
    between_hrnn.masked_fill_(lineage.strangers_nn, -torch.inf).exp_()
    decayed_hrn1 = sum_hrn.exp().to(state_hdre.dtype)[..., None]
    state_hdf, heads = state_hdre.flatten(2), state_hdre.shape[2:]
    recalled_hrne = (key_hnd @ state_hdf).unflatten(-1, heads).transpose(1, 2) * decayed_hrn1
    system_hrnn = (between_hrnn * (key_hnd @ key_hnd.mT)[:, None]).mul_(rate_hrn[..., None])
    wanted_hrne = (value_hrne - recalled_hrne) * rate_hrn[..., None]
    pseudo_hrne = _solved(system_hrnn, wanted_hrne)
    out_hrne = between_hrnn.mul_((query_hnd @ key_hnd.mT)[:, None]) @ pseudo_hrne
    out_hrne += (query_hnd @ state_hdf).unflatten(-1, heads).transpose(1, 2) * decayed_hrn1
    return out_hrne.permute(2, 0, 1, 3), pseudo_hrne, sum_hrn


def _solved(system_hrnn: Tensor, wanted_hrne: Tensor) -> Tensor:
    """x of L x = w, where L is what lies below the diagonal, and ones on it.

    Batched triangular solves are made for small matrices (cuBLAS says so of its own, and PyTorch leaves large ones to
    a library that no CUDA graph can hold), so blocks of the diagonal are solved and the rest is matrix products.
    """
    solved_hrne = torch.empty_like(wanted_hrne)
    for first in range(0, wanted_hrne.shape[2], BLOCK):
        rows = slice(first, first + BLOCK)
        part = wanted_hrne[:, :, rows]
        if first:
            part = part - system_hrnn[:, :, rows, :first] @ solved_hrne[:, :, :first]
        diagonal = system_hrnn[:, :, rows, rows]
        solved_hrne[:, :, rows] = torch.linalg.solve_triangular(diagonal, part, upper=False, unitriangular=True)
    return solved_hrne


class GatedDeltaNet:
    """A gated delta net layer; this rank's heads. The output is a part to be summed over ranks."""

    def __init__(self, config: TransformerConfig, shape: GatedDelta, weights: Weights, prefix: str) -> None:
        self._shape, ranks = shape, weights.group.size
        self._heads, self._values = shape.key_heads // ranks, shape.value_heads // shape.key_heads
        keys, values = shape.key_heads * shape.key_dim, shape.value_heads * shape.value_dim
        read = _packed if shape.packed else _separate
        self.projection = read(shape, config.hidden, weights, prefix)
        blocks, channels = (keys, keys, values), shape.channels
        taps = weights.tensor(
            f"{prefix}.conv1d.weight", (channels, 1, shape.kernel), split=0, blocks=blocks, dtype=torch.float32
        )

        def vector(name: str, neutral: float) -> Tensor:  # made up: a memory of some 30 rows
            share = weights.tensor(
                f"{prefix}.{name}", (shape.value_heads,), split=0, dtype=torch.float32, neutral=neutral
            )
            return share.view(self._heads, self._values)

        speed_hr, shift_hr = -vector("A_log", -3.0).exp(), vector("dt_bias", 0.0)
        norm_e = weights.tensor(f"{prefix}.norm.weight", (shape.value_dim,), dtype=torch.float32)
        self.constants = Constants(taps[:, 0].T.contiguous(), speed_hr, shift_hr, norm_e, config.eps)
        # x / √(Σ x² + ε) is an RMS norm scaled by d^−½; a query is scaled by d^−½ once more
        size = torch.full((shape.key_dim,), float(shape.key_dim), device=weights.device)
        self._query_scale, self._key_scale = 1 / size, size**-0.5
        self.out = weights.tensor(f"{prefix}.out_proj.weight", (config.hidden, values), split=1)

    def __call__(self, x_nh: Tensor, place: Place, memory: Memory) -> Tensor:
        """[n, hidden] → [n, hidden], this rank's part. The memory is read; what the rows did to it stays pending."""
        shape, lineage = self._shape, place.lineage
        assert lineage is not None
        taps_kc, speed_hr, shift_hr, norm_e, eps = self.constants
        keys, heads = self._heads * shape.key_dim, (self._heads, self._values)
        values = self._heads * self._values * shape.value_dim
        inputs, gate, rate, pace = F.linear(x_nh, self.projection).split(
            [2 * keys + values, values, heads[0] * heads[1], heads[0] * heads[1]], dim=-1
        )
        inputs_sc = torch.cat([memory.window_kc, inputs])
        mixed = F.silu((inputs_sc[lineage.taps_nk] * taps_kc).sum(dim=1))
        query, key, value = mixed.split([keys, keys, values], dim=-1)
        query, key = (
            F.rms_norm(part.unflatten(-1, (self._heads, -1)), (shape.key_dim,), scale, L2_EPS / shape.key_dim)
            for part, scale in ((query, self._query_scale), (key, self._key_scale))
        )
        decay_nhr = speed_hr * F.softplus(pace.float().unflatten(-1, heads) + shift_hr)
        out_nhre, pseudo, sums = delta_rule(
            memory.state_hdre,
            query,
            key,
            value.unflatten(-1, (*heads, -1)),
            decay_nhr,
            torch.sigmoid(rate.float()).unflatten(-1, heads),
            lineage,
        )
        memory.pending = Pending(key.transpose(0, 1), pseudo, sums, inputs_sc)
        normed = F.rms_norm(out_nhre, (shape.value_dim,), norm_e, eps).flatten(1)
        return F.linear((normed * F.silu(gate.float())).to(x_nh.dtype), self.out)


def _separate(shape: GatedDelta, hidden: int, weights: Weights, prefix: str) -> Tensor:
    """This rank's rows of the input projections, in the order queries, keys, values, gates, β, decays."""
    keys, values = shape.key_heads * shape.key_dim, shape.value_heads * shape.value_dim
    rows = {"qkv": (keys, keys, values), "z": (values,), "b": (shape.value_heads,), "a": (shape.value_heads,)}
    return torch.cat(
        [
            weights.tensor(f"{prefix}.in_proj_{name}.weight", (sum(blocks), hidden), split=0, blocks=blocks)
            for name, blocks in rows.items()
        ]
    )


def _packed(shape: GatedDelta, hidden: int, weights: Weights, prefix: str) -> Tensor:
    """The same from two projections that go key head by key head: its query, its key, its value heads' values …"""
    heads = shape.value_heads // shape.key_heads
    values = heads * shape.value_dim
    found = []
    for name, sizes in (("qkvz", [shape.key_dim, shape.key_dim, values, values]), ("ba", [heads, heads])):
        whole = (shape.key_heads * sum(sizes), hidden)
        share = weights.tensor(f"{prefix}.in_proj_{name}.weight", whole, split=0)
        parts = share.view(-1, sum(sizes), hidden).split(sizes, dim=1)
        found += [part.reshape(-1, hidden) for part in parts]
    return torch.cat(found)
