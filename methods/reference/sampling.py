"""From logits to tokens, exactly and without gathering a vocabulary.

Everything that decides a token is exact in any order of evaluation: maxima, integer keys that hold a logit and an
id, counts and fixed-point masses in int64. The one floating-point reduction, the log-sum-exp, has fixed parts in a
fixed order. So the result does not depend on how many ranks share the vocabulary.

At temperature 0 the token is the argmax, the smallest id among equals. Above 0 it is the argmax of the filtered
logits / temperature plus Gumbel noise that depends on (seed, request, turn, output position, token id) alone
(Gumbel-max: arXiv 1411.0030), so that every method sees the same noise at the same place of the text.

Shape letters: r rows, v this rank's part of the vocabulary, k candidates, t output positions.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from methods.base import Request, Sampling
from methods.reference import kernels
from methods.reference.parallel import Group, Vocabulary
from methods.reference.tree import Candidates

_LOW = 0xFFFFFFFF
_LOWEST = (-8388608) ^ 0x7FFFFFFF  # sortable(−inf)
_MASS_BITS = 32
_ROWS_AT_ONCE = 64  # filtering makes int64 copies of a row's logits: bound them


def sortable(values: Tensor) -> Tensor:
    """Map float32 to int64 so that integers compare as the numbers do; −0 equals 0."""
    bits = (values.float() + 0.0).view(torch.int32).to(torch.int64)
    return torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


def from_sortable(integers: Tensor) -> Tensor:
    """The inverse of `sortable`."""
    bits = torch.where(integers < 0, integers ^ 0x7FFFFFFF, integers)
    return bits.to(torch.int32).view(torch.float32)


def keys(values: Tensor, ids: Tensor) -> Tensor:
    """One int64 per entry that orders by value, then by smaller id; both can be read back."""
    return (sortable(values) << 32) | (_LOW - ids)


def ids_of(key: Tensor) -> Tensor:
    return _LOW - (key & _LOW)


def values_of(key: Tensor) -> Tensor:
    return from_sortable(key >> 32)


def best(values_rv: Tensor, vocabulary: Vocabulary) -> Tensor:
    """The id of the largest value of each row over all ranks, the smallest id among equals. int64 [r]."""
    ids = vocabulary.ids(values_rv.device)
    top_r = values_rv.amax(dim=-1)
    first_r = torch.where(values_rv == top_r[:, None], ids, _LOW).amin(dim=-1)
    return ids_of(vocabulary.group.max(keys(top_r, first_r)))


def fixed_order_sum(values: Tensor) -> Tensor:
    """Sum over the last dimension by halving: the same additions in the same order on every device."""
    while (length := values.shape[-1]) > 1:
        half = length // 2
        folded = values[..., :half] + values[..., half : 2 * half]
        values = torch.cat([folded, values[..., 2 * half :]], dim=-1) if length % 2 else folded
    return values[..., 0]


def log_sum_exp(logits_rv: Tensor, vocabulary: Vocabulary) -> Tensor:
    """log Σ exp of each row over all ranks, float32 [r]: 16 chunk sums, combined in the chunks' order."""
    top_r = vocabulary.group.max(logits_rv.amax(dim=-1))
    powers = torch.exp(logits_rv - top_r[:, None])
    chunks = fixed_order_sum(powers.unflatten(-1, (vocabulary.chunks, -1)))
    return top_r + torch.log(fixed_order_sum(vocabulary.group.gather(chunks, dim=-1)))


def candidates(logits_rv: Tensor, k: int, vocabulary: Vocabulary) -> Candidates:
    """Each row's `k` best tokens (at most the vocabulary) with their log-probs, best first, equals by id.

    Args:
        logits_rv: this rank's logits, in the model's dtype; padding is −inf.
    """
    if kernels.usable(logits_rv.device):
        from methods.reference.kernels import vocabulary as fast

        return fast.candidates(logits_rv, k, vocabulary)
    logits_rv = logits_rv.float()
    k = min(k, vocabulary.size)
    local = keys(logits_rv, vocabulary.ids(logits_rv.device)).topk(min(k, logits_rv.shape[-1]), dim=-1).values
    top_rk = local if vocabulary.group.size == 1 else vocabulary.group.gather(local, dim=-1).topk(k, dim=-1).values
    log_probs = values_of(top_rk) - log_sum_exp(logits_rv, vocabulary)[:, None]
    return Candidates(log_probs, ids_of(top_rk))


def noise_key(request: Request) -> int:
    """The 64-bit key of a request's noise: all that the noise depends on besides position and token."""
    text = f"{request.sampling.seed}\0{request.prompt_id}\0{request.turn}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


def _shift(values: Tensor, bits: int) -> Tensor:
    return (values >> bits) & ((1 << (64 - bits)) - 1)


def _mix(values: Tensor) -> Tensor:
    """The finaliser of SplitMix64 (Steele, Lea, Flood 2014), on wrapping int64."""
    values = (values ^ _shift(values, 30)) * -0x40A7B892E31B1A47
    values = (values ^ _shift(values, 27)) * -0x6B2FB644ECCEEE15
    return values ^ _shift(values, 31)


def gumbel(key: int | Tensor, positions_t: Tensor, ids_v: Tensor) -> Tensor:
    """Gumbel noise of output positions and token ids, float32 [t, v]: a pure function of (key, position, id)."""
    row_t = _mix(_mix(positions_t * -0x61C8864680B583EB + key))
    bits_tv = _mix(row_t[:, None] + (ids_v + 1) * -0x61C8864680B583EB)
    uniform = (_shift(bits_tv, 12).double() + 0.5) * 2.0**-52
    return -torch.log(-torch.log(uniform)).float()


def edge(values_rv: Tensor, weights_rv: Tensor, limits_r: Tensor, group: Group) -> Tensor:
    """The smallest key x of each row such that the weight of larger keys is below the row's limit.

    A bisection 256 ways at a time, on integer histograms that all ranks add up: exact in any order.

    Args:
        values_rv: sortable float32 keys; weights_rv: int64 ≥ 0; limits_r: int64 ≥ 1.
    """
    shifted = values_rv + 2**31  # 0 … 2^32 − 1
    low_r = torch.zeros_like(limits_r)
    above_r = torch.zeros_like(limits_r)  # the weight of keys beyond the current range
    for bits in (24, 16, 8, 0):
        bucket = (shifted - low_r[:, None]) >> bits
        inside = (bucket >= 0) & (bucket < 256)
        histogram = torch.zeros(len(limits_r), 256, dtype=torch.int64, device=limits_r.device)
        histogram.scatter_add_(1, bucket.clamp(0, 255), weights_rv * inside)
        group.sum(histogram)
        beyond = above_r[:, None] + histogram.flip(1).cumsum(1).flip(1) - histogram
        # The lowest bucket beyond which too little weight lies holds the edge, somewhere inside it.
        place = (beyond < limits_r[:, None]).to(torch.int64).argmax(dim=1)
        above_r = beyond.gather(1, place[:, None])[:, 0]
        low_r = low_r + (place << bits)
    return low_r - 2**31


def kept_from(logits_rv: Tensor, sampling: Sampling, vocabulary: Vocabulary) -> Tensor:
    """The smallest logit/temperature that top-k, then top-p keep in each row, float32 [r]; equals stay together.

    top-p keeps a token while the probability of those above it is below `top_p`; probabilities are fixed-point.
    """
    key_rv = sortable(logits_rv)
    edge_r = torch.full((len(logits_rv),), -(2**31), dtype=torch.int64, device=logits_rv.device)
    if 0 < sampling.top_k < vocabulary.size:
        edge_r = edge(key_rv, torch.ones_like(key_rv), torch.full_like(edge_r, sampling.top_k), vocabulary.group)
    if sampling.top_p < 1:
        top_r = vocabulary.group.max(logits_rv.amax(dim=-1))
        mass_rv = (torch.exp(logits_rv - top_r[:, None]).double() * 2.0**_MASS_BITS).to(torch.int64)
        mass_rv = torch.where(key_rv >= edge_r[:, None], mass_rv, 0)
        limit_r = (vocabulary.group.sum(mass_rv.sum(dim=-1)).double() * sampling.top_p).ceil().to(torch.int64)
        edge_r = torch.maximum(edge_r, edge(key_rv, mass_rv, limit_r, vocabulary.group))
    return from_sortable(edge_r.clamp_min(_LOWEST))


def choose(
    logits_rv: Tensor,
    first: Tensor,
    depths_r: Tensor,
    sampling: Sampling,
    noise: int | Tensor,
    depth_limit: int,
    vocabulary: Vocabulary,
) -> Tensor:
    """The target's own next token after each row, int64 [r], equal on all ranks.

    Args:
        first: the output position of the token after the root, 0-dim int64.
        noise: the request's `noise_key`, a number or a 0-dim int64.
        depths_r: each row's depth, at most `depth_limit`: the token after it has output position first + depth.
    """
    if kernels.usable(logits_rv.device):
        from methods.reference.kernels import choice as fast

        key = noise if isinstance(noise, Tensor) else torch.tensor(noise, device=logits_rv.device)
        return fast.choose(logits_rv, first, depths_r, sampling, key, depth_limit, vocabulary)
    if sampling.temperature == 0:
        return best(logits_rv, vocabulary)
    places_t = first + torch.arange(depth_limit + 1, device=first.device)
    noise_tv = gumbel(noise, places_t, vocabulary.ids(first.device))
    chosen = []
    for rows, depths in zip(logits_rv.split(_ROWS_AT_ONCE), depths_r.split(_ROWS_AT_ONCE), strict=True):
        scaled = rows.float() / sampling.temperature
        noisy = scaled + noise_tv[depths]
        if filters(sampling, vocabulary):
            noisy.masked_fill_(scaled < kept_from(scaled, sampling, vocabulary)[:, None], -torch.inf)
        chosen.append(best(noisy, vocabulary))
    return torch.cat(chosen)


def filters(sampling: Sampling, vocabulary: Vocabulary) -> bool:
    return sampling.top_p < 1 or 0 < sampling.top_k < vocabulary.size


def gaps(
    logits_rv: Tensor, tokens_r: Tensor, positions_r: Tensor, request: Request, vocabulary: Vocabulary, tolerance: float
) -> Tensor:
    """By how much, in logits, the target prefers its own choice to the token given; float32 [r], 0 where equal.

    Rounding that can flip a near tie can also flip a token at the filter's edge. So a token counts as possible if
    it lies within `tolerance` logits below the edge, and the choice is taken among tokens that lie as far above it.
    """
    sampling, key = request.sampling, noise_key(request)
    ids = vocabulary.ids(logits_rv.device)
    own_rv = ids == tokens_r[:, None]
    if sampling.temperature == 0:
        value_rv, unit = logits_rv.float(), 1.0
        firm_rv = possible_rv = torch.ones_like(own_rv)
    else:
        scaled = logits_rv.float() / sampling.temperature
        unit = sampling.temperature
        edge_r = kept_from(scaled, sampling, vocabulary)
        top_r = vocabulary.group.max(scaled.amax(dim=-1))
        slack = tolerance / unit
        firm_rv = scaled >= torch.minimum(edge_r + slack, top_r)[:, None]
        possible_rv = scaled >= (edge_r - slack)[:, None]
        value_rv = scaled + gumbel(key, positions_r, ids)
    nothing = torch.tensor(-torch.inf, device=logits_rv.device)
    own_r = vocabulary.group.max(torch.where(own_rv & possible_rv, value_rv, nothing).amax(dim=-1))
    best_r = vocabulary.group.max(torch.where(firm_rv, value_rv, nothing).amax(dim=-1))
    return ((best_r - own_r) * unit).clamp_min(0.0)
