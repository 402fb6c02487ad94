"""Exact sampling: against naive definitions, sharded against whole, noise against its distribution."""

from __future__ import annotations

import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from methods.base import Request, Sampling
from methods.reference import sampling
from methods.reference.parallel import Group, Vocabulary


class Meeting:
    """A group of threads instead of processes: collectives meet at a barrier."""

    def __init__(self, size: int) -> None:
        self.size, self.slots, self.barrier = size, [None] * size, threading.Barrier(size)

    def exchange(self, rank: int, tensor: torch.Tensor) -> list[torch.Tensor]:
        self.slots[rank] = tensor.clone()
        self.barrier.wait(30)
        everyone = list(self.slots)
        self.barrier.wait(30)
        return everyone


class ThreadGroup(Group):
    def __init__(self, rank: int, meeting: Meeting) -> None:
        super().__init__(rank, meeting.size)
        object.__setattr__(self, "meeting", meeting)

    def sum(self, tensor):
        return tensor.copy_(torch.stack(self.meeting.exchange(self.rank, tensor)).sum(0))

    def max(self, tensor):
        return tensor.copy_(torch.stack(self.meeting.exchange(self.rank, tensor)).amax(0))

    def gather(self, tensor, dim):
        return torch.cat(self.meeting.exchange(self.rank, tensor), dim=dim)


def sharded(logits: torch.Tensor, tp: int, call):
    """Run `call(this rank's logits, its vocabulary)` on tp ranks; their answers, which must agree."""
    size, results = logits.shape[-1], [None] * tp
    meeting = Meeting(tp)

    def work(rank: int) -> None:
        vocabulary = Vocabulary(size, Group() if tp == 1 else ThreadGroup(rank, meeting))
        padded = torch.nn.functional.pad(logits, (0, vocabulary.padded - size), value=-torch.inf)
        results[rank] = call(padded[..., vocabulary.rows].contiguous(), vocabulary)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(tp)]
    [thread.start() for thread in threads]
    [thread.join(60) for thread in threads]
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(as_tuple(results[0]), as_tuple(other), strict=True))
    return results[0]


def as_tuple(value):
    return value if isinstance(value, tuple) else (value,)


@st.composite
def logit_rows(draw, largest: int = 70):
    """Rows of logits, from smooth to heavily tied (bf16 steps), vocabularies that 16 does not divide among them."""
    rows, size = draw(st.integers(1, 4)), draw(st.integers(2, largest))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    logits = torch.randn(rows, size, generator=generator) * draw(st.sampled_from([0.1, 1.0, 5.0]))
    step = draw(st.sampled_from([0.0, 0.5]))
    return (logits / step).round() * step if step else logits


@given(logit_rows(), st.integers(1, 80))
@settings(max_examples=60, deadline=None)
def test_candidates_are_the_best_by_logit_then_id(logits, k):
    found = sharded(logits, 1, lambda part, vocabulary: sampling.candidates(part, k, vocabulary))
    for row, ids, log_probs in zip(logits, found.ids_lk, found.log_probs_lk, strict=True):
        order = sorted(range(len(row)), key=lambda i: (-row[i].item(), i))[:k]
        assert ids.tolist() == order
        torch.testing.assert_close(log_probs, torch.log_softmax(row.double(), -1)[order].float(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tp", [2, 4])
@pytest.mark.parametrize("size", [203, 4096, 37995])
def test_candidates_do_not_depend_on_the_ranks(tp, size, dtype):
    logits = (torch.randn(5, size, generator=torch.Generator().manual_seed(size)) * 6).to(dtype)
    for k in (1, 16, 1024):
        whole = sharded(logits, 1, lambda part, v, k=k: sampling.candidates(part, k, v))
        parts = sharded(logits, tp, lambda part, v, k=k: sampling.candidates(part, k, v))
        assert torch.equal(whole.ids_lk, parts.ids_lk) and torch.equal(whole.log_probs_lk, parts.log_probs_lk)


def naive_keep(row: torch.Tensor, top_k: int, top_p: float) -> set[int]:
    """Filtering by the definition: sort, count, accumulate; equals share their fate."""
    keep = set(range(len(row)))
    if 0 < top_k < len(row):
        edge = row.sort(descending=True).values[top_k - 1]
        keep = {i for i in keep if row[i] >= edge}
    mass = {i: torch.exp((row[i] - row.max()).double()).item() for i in keep}
    total = sum(mass.values())
    return {i for i in keep if sum(mass[j] for j in keep if row[j] > row[i]) < top_p * total}


@given(logit_rows(), st.integers(0, 80), st.sampled_from([1.0, 0.95, 0.5, 0.05]), st.sampled_from([1, 2, 4]))
@settings(max_examples=80, deadline=None)
def test_filters_keep_what_their_definition_keeps(logits, top_k, top_p, tp):
    settings_ = Sampling(1.0, top_p, top_k)
    edge = sharded(logits, tp, lambda part, vocabulary: sampling.kept_from(part, settings_, vocabulary))
    for row, lowest in zip(logits, edge, strict=True):
        assert set((row >= lowest).nonzero()[:, 0].tolist()) == naive_keep(row, top_k, top_p)


@pytest.mark.parametrize("settings_", [Sampling(0.0), Sampling(0.7), Sampling(1.0, 0.9, 40), Sampling(2.0, 0.5)])
@pytest.mark.parametrize("tp", [2, 4])
def test_choices_do_not_depend_on_the_ranks(settings_, tp):
    logits = torch.randn(70, 1003, generator=torch.Generator().manual_seed(3)) * 3
    depths = torch.arange(70) % 16
    request = Request("p", (1,), 99, sampling=settings_)

    def choose(part, vocabulary):
        return sampling.choose(
            part, torch.tensor(5), depths, request.sampling, sampling.noise_key(request), 15, vocabulary
        )

    assert torch.equal(sharded(logits, 1, choose), sharded(logits, tp, choose))


def test_argmax_takes_the_smallest_id_among_equals():
    logits = torch.tensor([[1.0, 3.0, 3.0, -1.0], [-0.0, 0.0, -5.0, 0.0]])
    for tp in (1, 2, 4):
        assert sharded(logits, tp, sampling.best).tolist() == [1, 0]


def test_noise_is_a_function_of_its_place():
    ids, places = torch.arange(1000), torch.arange(20)
    whole = sampling.gumbel(42, places, ids)
    assert torch.equal(whole[3:5, 100:777], sampling.gumbel(42, places[3:5], ids[100:777]))
    assert whole.isfinite().all() and len(whole.unique()) > 0.99 * whole.numel()
    assert not torch.equal(whole, sampling.gumbel(43, places, ids))
    keys = {sampling.noise_key(Request(p, (1,), 1, turn=t, sampling=Sampling(1.0, seed=s)))
            for p in ("a", "b") for t in (0, 1) for s in (0, 1)}  # fmt: skip
    assert len(keys) == 8


def test_noise_draws_the_softmax():
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, 1.5, 0.3, -0.5])
    noise = sampling.gumbel(7, torch.arange(40_000), torch.arange(len(logits)))
    counts = torch.bincount((logits + noise).argmax(-1), minlength=len(logits))
    expected = torch.softmax(logits.double(), -1) * counts.sum()
    assert chisquare(counts.numpy(), expected.numpy()).pvalue > 1e-3


@given(logit_rows(), st.sampled_from([0.0, 1.0, 0.6]), st.sampled_from([(1.0, 0), (0.8, 0), (1.0, 3)]))
@settings(max_examples=60, deadline=None)
def test_gap_is_zero_for_the_choice_and_positive_for_others(logits, temperature, filters):
    request = Request("p", (1,), 99, sampling=Sampling(temperature, *filters))
    places = torch.arange(len(logits))
    vocabulary = Vocabulary(logits.shape[-1], Group())
    padded = torch.nn.functional.pad(logits, (0, vocabulary.padded - vocabulary.size), value=-torch.inf)
    chosen = torch.cat(
        [
            sampling.choose(
                padded[i : i + 1],
                places[i],
                torch.tensor([0]),
                request.sampling,
                sampling.noise_key(request),
                0,
                vocabulary,
            )
            for i in range(len(padded))
        ]
    )
    assert sampling.gaps(padded, chosen, places, request, vocabulary, 0.0).tolist() == [0.0] * len(padded)
    other = (chosen + 1) % vocabulary.size
    gap = sampling.gaps(padded, other, places, request, vocabulary, 0.0)
    if temperature == 0:
        expected = padded.gather(1, chosen[:, None])[:, 0] - padded.gather(1, other[:, None])[:, 0]
        torch.testing.assert_close(gap, expected)
    else:
        assert (gap > 0).all()


def test_log_sum_exp_is_the_same_for_any_number_of_ranks():
    logits = torch.randn(300, 1517, generator=torch.Generator().manual_seed(0)) * 8
    whole = sharded(logits, 1, sampling.log_sum_exp)
    torch.testing.assert_close(whole.double(), torch.logsumexp(logits.double(), -1), atol=1e-5, rtol=1e-6)
    for tp in (2, 4, 8, 16):
        assert torch.equal(whole, sharded(logits, tp, sampling.log_sum_exp))
