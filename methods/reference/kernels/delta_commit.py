"""The accepted path becomes text in Triton: states and windows of all gated delta layers, one launch each.

Of a pass's rows only the accepted path's pseudo-values u are ever computed: u = w − a u among at most as many rows as
a path has (`delta.py`), by substitution from the root down. Then the state is e^{g_a} S₀ + Σ_j e^{g_a − g_j} k_j u_jᵀ,
read and written once. How much of the path counts is read on the device.

Shape letters as in `delta.py`; p rows of a path.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from methods.reference.kernels.delta_traces import Traces
from methods.reference.kernels.launch import chain, ready

CHANNELS_AT_ONCE, KEYS_AT_ONCE = 1024, 32


def commit(states_lhdre: Tensor, windows_lkc: Tensor, traces: Traces, path_p: Tensor, accepted: Tensor) -> None:
    """Advance all layers along the rows `path_p[0 … accepted]` of the pass that left the traces.

    Args:
        path_p: int64, at most `delta.DEEPEST` + 1 rows; those beyond `accepted` (0-dim int64) do not count.
    """
    (layers, h, d, r, e), n = states_lhdre.shape, traces.key_lnhd.shape[1]
    wide = max(16, triton.next_power_of_2(e))
    columns = min(64, wide)
    places = 1 if n == 1 else max(16, triton.next_power_of_2(len(path_p)))
    _commit[(layers * h * r, triton.cdiv(e, columns))](
        states_lhdre, *traces[:5], path_p, accepted, n, len(path_p), H=h, R=r, D=d, E=e, PLACES=places,
        AT_ONCE=min(KEYS_AT_ONCE, max(16, triton.next_power_of_2(d))), COLUMNS=columns,
        num_warps=4 if places <= 32 else 8,        **chain(path_p.device),
    )  # fmt: skip
    window, channels = windows_lkc.shape[1:]
    _slide[(layers, triton.cdiv(channels, CHANNELS_AT_ONCE))](
        windows_lkc, traces.input_lnc, path_p, accepted, n, channels, WINDOW=window, BLOCK=CHANNELS_AT_ONCE,
        num_warps=4, **chain(path_p.device),
    )  # fmt: skip


@triton.jit(do_not_specialize=["n", "length"])
def _commit(
    states, key, scale, wanted, sums, rates, path, accepted_at, n, length,
    H: tl.constexpr, R: tl.constexpr, D: tl.constexpr, E: tl.constexpr, PLACES: tl.constexpr, AT_ONCE: tl.constexpr,
    COLUMNS: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    """Some columns of one layer's and value head's state, AT_ONCE of its rows after the others."""
    ready(CHAIN)
    layer, head = (tl.program_id(0) // (H * R)).to(tl.int64), tl.program_id(0) % (H * R)
    key_head, first = head // R, layer * n
    part, e = tl.arange(0, AT_ONCE), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    states += (layer * H + key_head) * D * R * E + head % R * E
    if PLACES == 1:
        last_sum = tl.load(sums + first * (H * R) + head)
        row_scale = tl.load(scale + first * H + key_head)
        values = tl.load(wanted + (first * (H * R) + head) * E + e, mask=e < E, other=0.0)[None, :]
        key_at = key + (first * H + key_head) * D
    else:
        accepted, place = tl.load(accepted_at).to(tl.int32), tl.arange(0, PLACES)
        live = (place <= accepted) & (place < length)
        row = first + tl.load(path + place, mask=live, other=0)
        sum_p = tl.load(sums + row * (H * R) + head, mask=live, other=0.0)
        last_sum = tl.load(sums + (first + tl.load(path + accepted)) * (H * R) + head)
        rate_p = tl.load(rates + row * (H * R) + head, mask=live, other=0.0)
        scale_p = tl.load(scale + row * H + key_head, mask=live, other=0.0)
        values = tl.load(
            wanted + (row * (H * R) + head)[:, None] * E + e[None, :],
            mask=live[:, None] & (e < E)[None, :], other=0.0,
        )  # fmt: skip
        key_at = key + ((row * H + key_head) * D)[:, None]
        alike = tl.zeros([PLACES, PLACES], tl.float32)
        for at in range(0, D, AT_ONCE):
            inside = live[:, None] & (at + part < D)[None, :]
            keys = tl.load(key_at + at + part[None, :], mask=inside, other=0.0) * scale_p[:, None]
            alike = tl.dot(keys, tl.trans(keys), alike, input_precision="ieee")
        above = live[:, None] & (place[:, None] > place[None, :])
        between = tl.where(above, (sum_p[:, None] - sum_p[None, :]).to(tl.float32), float("-inf"))
        tied = alike * tl.exp(between) * rate_p[:, None]
        for done in range(0, accepted):
            value = tl.sum(tl.where(place[:, None] == done, values, 0.0), 0)
            share = tl.sum(tl.where(place[None, :] == done, tied, 0.0), 1)
            values -= share[:, None] * value[None, :]
        row_scale = scale_p * tl.exp(tl.where(live, (last_sum - sum_p).to(tl.float32), float("-inf")))
    left = tl.exp(last_sum.to(tl.float32))
    for at in range(0, D, AT_ONCE):
        d = at + part
        held_at, inside = states + d[:, None] * (R * E) + e[None, :], (d < D)[:, None] & (e < E)[None, :]
        held = tl.load(held_at, mask=inside, other=0.0) * left
        if PLACES == 1:
            held += (tl.load(key_at + d, mask=d < D, other=0.0) * row_scale)[:, None] * values
        else:
            keys = tl.load(key_at + d[None, :], mask=live[:, None] & (d < D)[None, :], other=0.0) * row_scale[:, None]
            held = tl.dot(tl.trans(keys), values, held, input_precision="ieee")
        tl.store(held_at, held, mask=inside)


@triton.jit(do_not_specialize=["n", "channels"])
def _slide(
    windows, inputs, path, accepted_at, n, channels, WINDOW: tl.constexpr, BLOCK: tl.constexpr, CHAIN: tl.constexpr
):  # fmt: skip
    """Some channels of one layer's window. What is read lies behind what has been written: no value is lost."""
    ready(CHAIN)
    layer, col = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = col < channels
    after = tl.load(accepted_at).to(tl.int32) + 1
    for place in tl.static_range(WINDOW):
        source = after + place
        old = source < WINDOW
        row = tl.load(path + tl.maximum(source - WINDOW, 0))
        kept = windows + (layer * WINDOW + tl.minimum(source, WINDOW - 1)) * channels + col
        value = tl.load(kept, mask=col < tl.where(old, channels, 0), other=0.0)
        new = tl.load(inputs + (layer * n + row) * channels + col, mask=col < tl.where(old, 0, channels), other=0.0)
        tl.store(windows + (layer * WINDOW + place) * channels + col, tl.where(old, value, new), mask=inside)
