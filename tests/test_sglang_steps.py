"""The plugin's steps as captured graphs are replayed: what was recorded once, on the buffers of then, against steps
that run; and a vocabulary shared out as SGLang shares it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_sglang_ddtree import mask
from torch.fx.experimental.proxy_tensor import make_fx

from methods.engines.sglang_ddtree.settings import Settings
from methods.engines.sglang_ddtree.steps import Head, Shards, Steps
from methods.reference.parallel import Group, Vocabulary
from methods.reference.sampling import candidates
from methods.reference.tree import Candidates, build_by_heap

HIDDEN, VOCABULARY, LONGEST, SLOTS = 6, 70, 40, 600
SIZES = (2, 4)  # that are captured, of up to 5 requests
MOST = 5


def steps(told: Settings) -> Steps:
    generator = torch.Generator().manual_seed(7)
    weight = torch.randn(128, HIDDEN, generator=generator)  # padded by SGLang to 128 rows
    memory = [torch.arange(SLOTS * 2.0).view(SLOTS, 2), -torch.arange(SLOTS * 1.0).view(SLOTS, 1)]
    return Steps(told, MOST, LONGEST, Head(weight, Shards(VOCABULARY, Group())), memory)


def recorded(step):
    """A captured graph's stand-in: the tensor operations of one call, on the same memory, and nothing of Python's.

    Reading a tensor on the host fails, as it does in a capture.
    """
    step()  # what is made once is made
    graph = make_fx(lambda: step(), tracing_mode="real")()
    return lambda: graph()


def batch(data, told: Settings, seed: int):
    requests = data.draw(st.integers(1, MOST))
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, LONGEST + 1, (requests,), generator=generator)
    slots = 1 + torch.randperm(SLOTS - 1, generator=generator)[: requests * told.width].view(requests, -1)
    roots = torch.randint(0, VOCABULARY, (requests,), generator=generator)
    hidden = torch.randn(requests, told.block_size - 1, HIDDEN, generator=generator)
    return roots, lengths, slots, hidden, generator


def logits_of(trees, generator) -> torch.Tensor:
    """The target's logits: its choice after a row is often that row's child, so that paths are long."""
    requests, rows = trees.tokens_bn.shape
    found = torch.randn(requests, rows, VOCABULARY, generator=generator)
    for request in range(requests):
        for row in torch.randperm(rows, generator=generator).tolist():
            if row and trees.valid_bn[request, row]:
                found[request, trees.parents_bn[request, row], trees.tokens_bn[request, row]] = 9.0 + 0.01 * row
    return found.flatten(0, 1)


@settings(max_examples=4, deadline=None)
@given(st.integers(1, 20), st.booleans(), st.integers(0, 2**16), st.data())
def test_replayed_steps_are_the_steps_batch_after_batch(budget, chain_seed, seed, data):
    """Batches whose sizes change, filled up to what was captured, or larger than that."""
    told = Settings(budget, 6, chain_seed)
    replayed, direct = steps(told), steps(told)
    replayed.capture(SIZES, recorded)
    for part, fresh in zip(replayed._memory, direct._memory, strict=True):
        assert torch.equal(part[1:], fresh[1:])  # what a capture moves lies in the spare slot
    for turn in range(5):
        roots, lengths, slots, hidden, generator = batch(data, told, seed + turn)
        found = []
        for one in (replayed, direct):
            one.begin(roots, lengths, slots)
            proposed = one.propose(hidden)
            trees, places = one.grow()
            state = generator.get_state()
            logits = logits_of(trees, generator)
            generator.set_state(state)
            walks, done = one.settle(logits)
            found.append([*proposed, *trees, places, *walks, *done])
        for left, right in zip(*found, strict=True):
            assert left.dtype == right.dtype and torch.equal(left, right)
        for part, right in zip(replayed._memory, direct._memory, strict=True):
            assert torch.equal(part[1:], right[1:])
        visible = [mask(torch.stack([ancestors(tree)]), length[None]) for tree, length in each(trees, lengths)]
        wanted = torch.cat(visible)
        for one in (replayed, direct):
            assert torch.equal(one.mask[: len(wanted)].bool(), wanted)


def each(trees, lengths):
    return ((trees.parents_bn[request], length) for request, length in enumerate(lengths))


def ancestors(parents: torch.Tensor) -> torch.Tensor:
    """A row sees itself and what its parent sees: the definition."""
    visible = torch.eye(len(parents), dtype=torch.bool)
    for row in range(1, len(parents)):
        visible[row] |= visible[parents[row]]
    return visible


@pytest.mark.parametrize("chain_seed", [False, True])
def test_a_batchs_trees_are_the_reference_ones(chain_seed):
    told = Settings(12, 6, chain_seed)
    one = steps(told)
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(3, 5, HIDDEN, generator=generator)
    one.begin(torch.arange(3), torch.tensor([4, 9, 40]), torch.arange(1, 40).view(3, 13))
    proposed = one.propose(hidden)
    trees, places = one.grow()
    for request in range(3):
        own = Candidates(*(part[request] for part in proposed))
        wanted = build_by_heap(own, torch.tensor(request), 12, chain_seed=chain_seed)
        for column, right in zip(trees.of(request), wanted, strict=True):
            assert torch.equal(column, right)
    assert torch.equal(places, torch.tensor([4, 9, 40])[:, None] + trees.depths_bn)


def test_the_mask_has_room_for_the_longest_texts_of_the_largest_batch():
    """Texts that fill the context: a server gives requests no more, and the mask has rows beyond it."""
    told = Settings(8, 6)
    one = steps(told)
    slots = torch.arange(1, 1 + MOST * told.width).view(MOST, -1)
    one.begin(torch.arange(MOST), torch.full((MOST,), LONGEST), slots)
    one.propose(torch.randn(MOST, 5, HIDDEN))
    trees, _ = one.grow()
    wanted = torch.cat([mask(ancestors(parents)[None], length[None]) for parents, length in
                        each(trees, torch.full((MOST,), LONGEST))])  # fmt: skip
    assert len(one.mask) == len(wanted) and torch.equal(one.mask.bool(), wanted)


@given(st.sampled_from([1, 2, 4]), st.sampled_from([64, 70, 100, 128, 130, 200]), st.integers(0, 99))
@settings(deadline=None)
def test_a_ranks_part_of_the_head_gives_its_part_of_the_logits(ranks, size, seed):
    """SGLang pads the vocabulary to a multiple of 64 and shares that out; its padding rows may hold anything."""
    generator = torch.Generator().manual_seed(seed)
    whole = Shards(size, Group())
    weight = torch.randn(whole.padded, HIDDEN, generator=generator)
    hidden = torch.randn(3, HIDDEN, generator=generator)
    logits = Head(weight, whole)(hidden)
    assert logits.shape == (3, whole.padded) and logits[:, size:].isneginf().all()
    for rank in range(ranks):
        own = Shards(size, Group(rank, ranks))
        part = Head(weight[own.rows], own)(hidden)
        assert torch.allclose(part, logits[:, own.rows]) and own.rows.start == rank * whole.padded // ranks
    found = candidates(logits, 9, whole)
    assert (found.ids_lk < size).all()
    if size % 64 == 0:
        wanted = candidates(logits, 9, Vocabulary(size, Group()))
        assert all(torch.equal(*pair) for pair in zip(found, wanted, strict=True))
