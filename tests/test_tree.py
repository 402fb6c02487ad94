"""Draft trees against brute force, reachability and a walk by hand."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from methods.reference import tree

ROOT = torch.tensor(7)


@st.composite
def candidate_sets(draw, positions: int = 5, width: int = 6):
    """Candidates as a drafter gives them: log-probs descending; coarse steps so that ties abound."""
    length, k = draw(st.integers(1, positions)), draw(st.integers(1, width))
    step = draw(st.sampled_from([0.0, 0.25, 1.0]))
    seed = draw(st.integers(0, 2**31))
    generator = torch.Generator().manual_seed(seed)
    log_probs = torch.log_softmax(torch.randn(length, k + 3, generator=generator) * 3, dim=-1)
    if step:
        log_probs = (log_probs / step).round() * step
    ids = torch.argsort(torch.rand(length, 50, generator=generator), dim=-1)[:, :k]
    return tree.Candidates(log_probs.sort(dim=-1, descending=True).values[:, :k].contiguous(), ids)


def brute_force(candidates: tree.Candidates, budget: int) -> list[tuple[int, ...]]:
    """The best prefixes (as rank tuples) by enumerating all of them in the contract's order."""
    log_probs = candidates.log_probs_lk
    length, k = log_probs.shape
    scored = []
    for depth in range(1, length + 1):
        for ranks in itertools.product(range(k), repeat=depth):
            score = torch.tensor(0.0)
            for position, rank in enumerate(ranks):
                score = score + log_probs[position, rank]
            scored.append((-score.item(), depth, ranks))
    place: dict[tuple[int, ...], int] = {(): 0}
    order = []
    while len(order) < budget and len(order) < len(scored):
        ready = [s for s in scored if s[2][:-1] in place and s[2] not in place]
        _, _, ranks = min(ready, key=lambda s: (s[0], s[1], place[s[2][:-1]], s[2][-1]))
        place[ranks] = len(place)
        order.append(ranks)
    return order


def rank_paths(built: tree.Tree, candidates: tree.Candidates) -> list[tuple[int, ...]]:
    ids = candidates.ids_lk.tolist()
    paths: list[tuple[int, ...]] = [()]
    for row in range(1, int(built.valid_n.sum())):
        parent = paths[int(built.parents_n[row])]
        paths.append((*parent, ids[len(parent)].index(int(built.tokens_n[row]))))
    return paths[1:]


def equal(one: tree.Tree, other: tree.Tree) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@given(candidate_sets(positions=3, width=4), st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_build_is_the_best_prefixes_in_order(candidates, budget):
    k = min(budget, candidates.ids_lk.shape[1])
    candidates = tree.Candidates(*(c[:, :k] for c in candidates))
    for builder in (tree.build_by_heap, tree.build_by_depth):
        built = builder(candidates, ROOT, budget)
        assert rank_paths(built, candidates) == brute_force(candidates, budget)


@given(candidate_sets(), st.integers(1, 90), st.booleans())
@settings(max_examples=150, deadline=None)
def test_builders_agree_bit_for_bit(candidates, budget, chain_seed):
    built = tree.build_by_depth(candidates, ROOT, budget, chain_seed=chain_seed)
    assert equal(built, tree.build_by_heap(candidates, ROOT, budget, chain_seed=chain_seed))
    assert len(built.tokens_n) == 1 + budget
    tree.check(built)


@pytest.mark.parametrize("budget", [16, 64, 256, 1024])
@pytest.mark.parametrize("step", [0.0, 0.5])
def test_builders_agree_at_real_sizes(budget, step):
    log_probs = torch.log_softmax(torch.randn(15, 4096, generator=torch.Generator().manual_seed(budget)) * 4, -1)
    if step:
        log_probs = (log_probs / step).round() * step
    ordered = log_probs.sort(dim=-1, descending=True, stable=True)
    candidates = tree.Candidates(ordered.values[:, :budget].contiguous(), ordered.indices[:, :budget].contiguous())
    for chain_seed in (False, True):
        built = tree.build_by_depth(candidates, ROOT, budget, chain_seed=chain_seed)
        assert equal(built, tree.build_by_heap(candidates, ROOT, budget, chain_seed=chain_seed))


@given(candidate_sets(), st.integers(1, 40), st.integers(0, 40), st.booleans())
@settings(max_examples=80, deadline=None)
def test_a_small_tree_is_the_prefix_of_a_larger_one(candidates, budget, more, chain_seed):
    small = tree.build(candidates, ROOT, budget, chain_seed=chain_seed)
    large = tree.build(candidates, ROOT, budget + more, chain_seed=chain_seed)
    assert equal(small, tree.Tree(*(column[: 1 + budget] for column in large)))


@given(candidate_sets(), st.integers(1, 30))
@settings(max_examples=60, deadline=None)
def test_chain_seed_starts_with_the_top_chain(candidates, budget):
    built = tree.build(candidates, ROOT, budget, chain_seed=True)
    length = min(len(candidates.ids_lk), budget)
    chain = tree.chain(candidates.ids_lk[:length, 0], candidates.log_probs_lk[:length, 0], ROOT)
    for mine, theirs in zip(built[:3], chain[:3], strict=True):
        assert torch.equal(mine[: 1 + length], theirs)


@st.composite
def shapes(draw):
    """Any tree, by parents: chains, stars, combs and whatever lies between."""
    size = draw(st.integers(1, 40))
    reach = draw(st.sampled_from([1, 3, 40]))
    parents = [0] + [draw(st.integers(max(0, row - reach), row - 1)) for row in range(1, size)]
    depths = [0]
    for row in range(1, size):
        depths.append(depths[parents[row]] + 1)
    return parents, depths


@given(shapes())
@settings(max_examples=80, deadline=None)
def test_visibility_is_reachability(shape):
    parents, depths = shape
    seen = tree.visibility(torch.tensor(parents), max(depths))
    for row in range(len(parents)):
        ancestors, at = {row}, row
        while at:
            at = parents[at]
            ancestors.add(at)
        assert set(seen[row].nonzero()[:, 0].tolist()) == ancestors


@given(shapes(), st.integers(0, 2**31), st.integers(1, 4))
@settings(max_examples=150, deadline=None)
def test_walk_follows_the_choices(shape, seed, vocabulary):
    parents, depths = shape
    generator = torch.Generator().manual_seed(seed)
    siblings: dict[int, int] = {}
    tokens = [0]
    for row in range(1, len(parents)):
        tokens.append(siblings.get(parents[row], 0))
        siblings[parents[row]] = tokens[-1] + 1
    valid = torch.arange(len(parents)) < max(1, len(parents) - 2)
    choices = torch.randint(0, vocabulary, (len(parents),), generator=generator)
    built = tree.Tree(
        torch.tensor(tokens), torch.tensor(parents), torch.tensor(depths), torch.zeros(len(parents)), valid
    )
    limit = max(depths)
    found = tree.walk(built, tree.visibility(built.parents_n, limit), choices, limit)
    path, at = [0], 0
    while True:
        children = [r for r in range(1, len(parents)) if parents[r] == at and valid[r] and tokens[r] == choices[at]]
        if not children:
            break
        at = children[0]
        path.append(at)
    assert int(found.accepted) == len(path) - 1
    assert found.path_d[: len(path)].tolist() == path
    assert not found.path_d[len(path) :].any()


def test_positions_follow_depth_not_row():
    candidates = tree.Candidates(torch.tensor([[-0.1, -0.2], [-3.0, -4.0]]), torch.tensor([[1, 2], [3, 4]]))
    built = tree.build(candidates, ROOT, 4)
    assert tree.positions(built, torch.tensor(10)).tolist() == [10, 11, 11, 12, 12]


def test_check_names_the_broken_row():
    good = tree.chain(torch.tensor([1, 2, 3]), torch.zeros(3), ROOT)
    tree.check(good)
    faults = {
        "row 2 has parent 3": good._replace(parents_n=torch.tensor([0, 0, 3, 2])),
        "row 3 is at depth 2": good._replace(depths_n=torch.tensor([0, 1, 2, 2])),
        "row 2 repeats token 1": good._replace(
            parents_n=torch.tensor([0, 0, 0, 2]),
            tokens_n=torch.tensor([7, 1, 1, 3]),
            depths_n=torch.tensor([0, 1, 1, 2]),
        ),
        "row 1 is padding": good._replace(valid_n=torch.tensor([True, False, True, True])),
        "row 0 must be the root": good._replace(depths_n=torch.tensor([1, 2, 3, 4])),
    }
    for message, broken in faults.items():
        with pytest.raises(ValueError, match=message):
            tree.check(broken)


def test_summary_counts_nodes_leaves_and_expected_depth():
    half = torch.tensor(0.5).log()
    candidates = tree.Candidates(half.expand(2, 2).contiguous(), torch.tensor([[1, 2], [3, 4]]))
    found = tree.summary(tree.build(candidates, ROOT, 9))
    assert found.nodes == 6 and found.nodes_by_depth == (2, 4) and found.leaves == 4
    assert found.expected_accepted == pytest.approx(2.0)
    assert tree.summary(tree.root_only(ROOT)) == tree.Summary(0, (), 0, 0.0)


@given(candidate_sets(), st.integers(1, 40))
@settings(max_examples=40, deadline=None)
def test_checksum_sees_a_changed_tree(candidates, budget):
    built, zero = tree.build(candidates, ROOT, budget), torch.tensor(0)
    changed = built._replace(tokens_n=built.tokens_n + (torch.arange(1 + budget) == budget))
    assert tree.checksum(built, zero) == tree.checksum(built, zero)
    assert tree.checksum(built, zero) != tree.checksum(changed, zero)
    assert tree.checksum(built, zero) != tree.checksum(built, tree.checksum(built, zero))
