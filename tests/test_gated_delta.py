"""Gated delta nets over trees, against a scan that keeps one state per row, transformers' own layer, and decoding."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_target import CPU, open_target, read
from tiny_models import HYBRID_FAMILIES, hf_model, save_target
from transformers import DynamicCache
from transformers.models.qwen3_next.modeling_qwen3_next import torch_recurrent_gated_delta_rule

from methods.reference import tree
from methods.reference.attention import Ancestry, Place
from methods.reference.config import target_config
from methods.reference.gated_delta import GatedDeltaNet, Lineage, Recurrence, delta_rule
from methods.reference.loading import Weights
from methods.reference.parallel import Group
from methods.reference.target import Target

WHOLE = Group()
H, R, D, E = 2, 3, 8, 6  # key heads, value heads of one, key and value size


def chain(n: int) -> list[int]:
    return [max(0, row - 1) for row in range(n)]


def star(n: int) -> list[int]:
    return [0] * n


def comb(n: int) -> list[int]:
    """A spine with one leaf at each of its rows."""
    return [0, *(max(0, row - 2) if row % 2 else row - 1 for row in range(1, n))]


def scattered(n: int, seed: int = 0, reach: int = 9) -> list[int]:
    drawn = torch.rand(n, generator=torch.Generator().manual_seed(seed)).tolist()
    return [max(0, row - 1 - int(drawn[row] * min(row, reach))) for row in range(n)]


SHAPES = {"chain": chain, "star": star, "comb": comb, "random": scattered}


def ancestry(parents: list[int]) -> Ancestry:
    return Ancestry(torch.tensor(parents), tree.visibility(torch.tensor(parents), len(parents)))


def path_to(parents: list[int], row: int) -> list[int]:
    path = [row]
    while path[0]:
        path.insert(0, parents[path[0]])
    return path


class Problem(NamedTuple):
    """Arguments of `delta_rule`, lineage aside."""

    state: torch.Tensor
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    decay: torch.Tensor
    rate: torch.Tensor


def problem(n: int, seed: int = 0, strength: float = 1.0, dtype: torch.dtype = torch.float32) -> Problem:
    """Decays reach from almost none to `strength`; in bfloat16 the inputs are rounded to it."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator)

    unit = torch.nn.functional.normalize
    decay = -strength * torch.rand(n, H, R, generator=generator) ** 4
    rate = torch.rand(n, H, R, generator=generator)
    rows = unit(normal(n, H, D), dim=-1) * D**-0.5, unit(normal(n, H, D), dim=-1), normal(n, H, R, E), decay, rate
    return Problem(normal(H, D, R, E), *(part.to(dtype).float() for part in rows))


def scan(p: Problem, parents: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """The second opinion: row by row from its parent's stored state, in float64. Outputs and states of all rows."""
    p = Problem(*(part.double() for part in p))
    states, outputs = [], []
    for row, parent in enumerate(parents):
        state = (states[parent] if row else p.state) * p.decay[row].exp()[:, None, :, None]
        told = torch.einsum("hdre,hd->hre", state, p.key[row])
        written = (p.value[row] - told) * p.rate[row][..., None]
        state = state + torch.einsum("hd,hre->hdre", p.key[row], written)
        states.append(state)
        outputs.append(torch.einsum("hdre,hd->hre", state, p.query[row]))
    return torch.stack(outputs), torch.stack(states)


def check(p: Problem, parents: list[int], lineage: Lineage | None = None) -> None:
    lineage = lineage or Lineage.of(ancestry(parents), 4)
    outputs, *_ = delta_rule(*p, lineage)
    torch.testing.assert_close(outputs.double(), scan(p, parents)[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("strength", [0.1, 1.0, 200.0])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("n", [1, 2, 65])
def test_all_rows_at_once_equal_the_scan(shape, n, strength):
    check(problem(n, strength=strength), SHAPES[shape](n))
    check(problem(n, 1, strength, torch.bfloat16), SHAPES[shape](n))


@pytest.mark.parametrize("shape", ["chain", "comb", "random"])
@pytest.mark.parametrize("strength", [1.0, 200.0])
def test_1025_rows_equal_the_scan(shape, strength):
    check(problem(1025, strength=strength), SHAPES[shape](1025))


@given(
    n=st.integers(1, 40), seed=st.integers(0, 999), reach=st.integers(1, 40), strength=st.sampled_from([0.5, 20, 300])
)
@settings(max_examples=40, deadline=None)
def test_random_trees_equal_the_scan(n, seed, reach, strength):
    check(problem(n, seed, strength), scattered(n, seed, reach))


@given(n=st.integers(2, 40), seed=st.integers(0, 999), after=st.floats(1.0, 300.0))
@settings(max_examples=10, deadline=None)
def test_weak_decays_after_strong_ones_keep_their_digits(n, seed, after):
    """Sums of −200 a row in float32 have no room left for the digits of the small differences that count."""
    p = problem(400 + n, seed, 0.01)
    p.decay[:400] -= after
    check(p, chain(400 + n))


def test_transformers_recurrence_is_the_judge_of_every_path():
    parents = scattered(33, 3)
    p = problem(33, 3, 200.0)
    outputs, *_ = delta_rule(*p, Lineage.of(ancestry(parents), 4))
    for row in range(33):
        path = path_to(parents, row)
        expected, _ = torch_recurrent_gated_delta_rule(
            p.query[path][None] * D**0.5,  # it scales queries itself
            p.key[path][None],
            p.value[path].flatten(1, 2)[None],
            g=p.decay[path].flatten(1)[None],
            beta=p.rate[path].flatten(1)[None],
            initial_state=p.state.permute(0, 2, 1, 3).flatten(0, 1)[None],
        )
        torch.testing.assert_close(outputs[row].flatten(0, 1), expected[0, -1], atol=1e-5, rtol=1e-5)


def flat(parents: list[int]) -> Lineage:
    return Lineage.of(ancestry(chain(len(parents))), 4)


@pytest.mark.parametrize("shape", ["star", "comb", "random"])
def test_a_flat_sequence_fails(shape):
    """The naive port: the tree's rows as one text, so that siblings write into each other's states."""
    parents = SHAPES[shape](33)
    check(problem(33), parents)
    with pytest.raises(AssertionError, match="not close"):
        check(problem(33), parents, flat(parents))
    with pytest.raises(AssertionError, match="not close"):  # the mask alone, without the decays along the path
        check(problem(33), parents, Lineage.of(ancestry(parents), 4)._replace(sums_nn=flat(parents).sums_nn))


class Judge:
    """A hybrid's first layer here and in transformers, and the inputs to compare them on."""

    def __init__(self, folder, family: str, dtype: torch.dtype, group: Group = WHOLE) -> None:
        save_target(folder, family)
        config = target_config(folder)
        weights = Weights(folder, group, CPU, dtype)
        self.layer = GatedDeltaNet(config, config.gated_delta, weights, "model.layers.0.linear_attn")
        self.recurrence = Recurrence(config, config.gated_delta, group, CPU, dtype)
        self.memory = self.recurrence.layers[0]
        self.theirs = hf_model(family).to(dtype)
        self.dtype, self.hidden = dtype, config.hidden

    def rows(self, n: int, seed: int = 0) -> torch.Tensor:
        return torch.randn(n, self.hidden, generator=torch.Generator().manual_seed(seed)).to(self.dtype)

    def forward(self, x: torch.Tensor, parents: list[int], lineage: Lineage | None = None) -> torch.Tensor:
        none = torch.zeros(0)
        view = Place(none, none, lineage or Lineage.of(ancestry(parents), 4))
        out = self.layer(x, view, self.memory)
        for layer in self.recurrence.layers[1:]:
            layer.pending = self.memory.pending
        return out

    def go_back(self, states: list[torch.Tensor]) -> None:
        """Before the commit of the last pass."""
        pending = self.memory.pending
        self.recurrence.restore(states)
        for layer in self.recurrence.layers:
            layer.pending = pending

    def commit(self, path: list[int], padding: int = 0) -> None:
        self.recurrence.commit(torch.tensor(path + [0] * padding), torch.tensor(len(path) - 1))

    def decode(self, cache: DynamicCache, x: torch.Tensor) -> torch.Tensor:
        """transformers' layer, one row at a time."""
        layer = self.theirs.model.layers[0].linear_attn
        return torch.cat([layer(row[None, None], cache=cache)[0] for row in x])

    def cache(self) -> DynamicCache:
        return DynamicCache(config=self.theirs.config)


@pytest.fixture(params=HYBRID_FAMILIES)
def judge(request, tmp_path):
    return Judge(tmp_path, request.param, torch.float32)


def assert_same_state(judge: Judge, cache: DynamicCache, tolerance: float) -> None:
    layer = cache.layers[0]
    state = judge.memory.state_hdre.permute(0, 2, 1, 3).flatten(0, 1)
    torch.testing.assert_close(state, layer.recurrent_states[0][0].float(), atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(
        judge.memory.window_kc.T, layer.conv_states[0][0, :, -3:], atol=tolerance, rtol=tolerance
    )


@torch.inference_mode()
def tree_rounds(judge: Judge, tolerance: float, lineage_of=None) -> None:
    """Some rounds of trees: every row's output is that of decoding its path, and so is the state after commit."""
    text = judge.rows(7)
    judge.forward(text, chain(7))
    judge.commit(list(range(7)))
    cache = judge.cache()
    judge.decode(cache, text)
    assert_same_state(judge, cache, tolerance)
    for seed, shape in enumerate(("random", "comb", "star", "chain")):
        parents = SHAPES[shape](14)
        x = judge.rows(14, seed + 1)
        before = judge.recurrence.snapshot()
        out = judge.forward(x, parents, lineage_of(parents) if lineage_of else None)
        assert all(torch.equal(a, b) for a, b in zip(before, judge.recurrence.snapshot(), strict=True))
        committed = text
        for row in range(14):
            path = path_to(parents, row)
            cache = judge.cache()
            judge.decode(cache, text)
            expected = judge.decode(cache, x[path])
            torch.testing.assert_close(out[row], expected[-1], atol=tolerance, rtol=tolerance)
            judge.go_back(before)
            judge.commit(path, padding=16 - len(path))
            assert_same_state(judge, cache, tolerance)
            committed = torch.cat([text, x[path]])
        text = committed


def test_transformers_layer_is_the_judge_of_trees_and_commits(judge):
    tree_rounds(judge, 2e-5)


def test_bfloat16_stays_close_to_transformers(tmp_path):
    judge = Judge(tmp_path, "qwen3_5_text", torch.bfloat16)
    tree_rounds(judge, 8e-2)
    judge.recurrence.reset()
    with pytest.raises(AssertionError, match="not close"):
        tree_rounds(judge, 8e-2, flat)


@pytest.mark.parametrize("part", ["all", "taps_nk"])
def test_a_flat_layer_fails(judge, part):
    """The whole layer as a flat sequence, and only its convolution."""

    def wrong(parents: list[int]) -> Lineage:
        if part == "all":
            return flat(parents)
        return Lineage.of(ancestry(parents), 4)._replace(taps_nk=flat(parents).taps_nk)

    with pytest.raises(AssertionError, match="not close"):
        tree_rounds(judge, 2e-5, wrong)


@torch.inference_mode()
def test_parts_of_ranks_add_up(judge, tmp_path):
    family = judge.theirs.config.model_type
    ranks = [
        Judge(tmp_path / f"{size}", family, torch.float32, Group(rank, size)) for size in (2, 4) for rank in range(size)
    ]
    text, x, parents = judge.rows(5), judge.rows(14, 1), scattered(14)
    for one in (judge, *ranks):
        one.forward(text, chain(5))
        one.commit(list(range(5)))
    expected = judge.forward(x, parents)
    judge.commit(path_to(parents, 13))
    for size, own in ((2, ranks[:2]), (4, ranks[2:])):
        torch.testing.assert_close(sum(r.forward(x, parents) for r in own), expected, atol=1e-5, rtol=1e-5)
        for rank in own:
            rank.commit(path_to(parents, 13))
        states = torch.cat([rank.memory.state_hdre for rank in own])
        torch.testing.assert_close(states, judge.memory.state_hdre, atol=1e-5, rtol=1e-5)
        assert own[0].memory.window_kc.shape[1] * size == judge.memory.window_kc.shape[1]


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return open_target(save_target(tmp_path_factory.mktemp("target"), "qwen3_5_text"))


def verify(target, prompt: list[int], draft: tree.Tree) -> torch.Tensor:
    read(target, prompt)
    visible = tree.visibility(draft.parents_n, 16)
    start = torch.tensor(len(prompt))
    view = target.view(start, start + draft.depths_n, Ancestry(draft.parents_n, visible), 128)
    return target.logits(target.forward(draft.tokens_n, view)[0])


@torch.inference_mode()
def test_a_tree_of_one_branch_is_the_chain_bit_for_bit(target):
    log_probs = torch.log_softmax(torch.tensor([[9.0, 0.0, -1.0]] * 7), dim=-1)
    ids = torch.arange(21).view(7, 3)
    root = torch.tensor(50)
    linear = tree.chain(ids[:, 0], log_probs[:, 0], root)
    branch = tree.build(tree.Candidates(log_probs, ids), root, 7)
    assert torch.equal(branch.tokens_n, linear.tokens_n)
    assert torch.equal(verify(target, [1, 2, 3], branch), verify(target, [1, 2, 3], linear))


@given(n=st.integers(2, 24), seed=st.integers(0, 99), length=st.integers(1, 20), row=st.integers(0, 23))
@settings(derandomize=True, max_examples=15, deadline=None)
@torch.inference_mode()
def test_the_state_after_commit_is_that_of_reading_the_text(target, n, seed, length, row):
    parents, prompt = scattered(n, seed), [(5 * i + seed) % 203 for i in range(length)]
    tokens = [(11 * i + seed) % 203 for i in range(n)]
    path = path_to(parents, row % n)
    depths = torch.tensor([len(path_to(parents, r)) - 1 for r in range(n)])
    none = torch.zeros(n)
    draft = tree.Tree(torch.tensor(tokens), torch.tensor(parents), depths, none, none == 0)
    read(target, prompt)
    visible = tree.visibility(draft.parents_n, n)
    start = torch.tensor(length)
    target.forward(draft.tokens_n, target.view(start, start + depths, Ancestry(draft.parents_n, visible), 128))
    target.commit(start, torch.tensor(path + [0] * (24 - len(path))), torch.tensor(len(path) - 1))
    left = target.snapshot()
    slots = target.cache.data[:, :, :, : length + len(path)].clone()
    read(target, prompt + [tokens[r] for r in path], rows=1)
    for mine, fresh in zip(left, target.snapshot(), strict=True):
        torch.testing.assert_close(mine, fresh, atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(slots, target.cache.data[:, :, :, : length + len(path)], atol=2e-5, rtol=1e-4)


@torch.inference_mode()
def test_a_snapshot_brings_the_text_back_and_a_reset_forgets_it(target):
    expected = read(target, [4, 5, 6, 7])
    read(target, [4, 5, 6])
    kept = target.snapshot()
    read(target, [9] * 20)
    target.restore(kept)
    one = Ancestry(torch.tensor([0]), torch.tensor([[True]]))
    read(target, [4, 5, 6])
    target.restore(kept)
    at = torch.tensor(3)
    logits = target.logits(target.forward(torch.tensor([7]), target.view(at, at[None], one, 128))[0])
    torch.testing.assert_close(logits[0, :203], expected[3], atol=2e-5, rtol=1e-5)
    target.reset()
    assert not any(part.any() for part in target.snapshot())
    assert kept[0].any() and kept[1].any()


@pytest.mark.gpu
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("strength", [1.0, 200.0])
def test_the_device_equals_the_scan(shape, strength):
    parents, p = SHAPES[shape](1025), problem(1025, strength=strength)
    lineage = Lineage(*(part.cuda() for part in Lineage.of(ancestry(parents), 4)))
    outputs, *_ = delta_rule(*(part.cuda() for part in p), lineage)
    torch.testing.assert_close(outputs.cpu().double(), scan(p, parents)[0], atol=1e-5, rtol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("family", "dtype"), [("qwen3_5_text", torch.float32), ("qwen3_5_moe_text", torch.bfloat16)]
)  # experts are grouped without the host in bfloat16 alone
@pytest.mark.parametrize("n", [1, 17, 300])
@torch.inference_mode()
def test_verify_and_commit_fit_one_cuda_graph(family, dtype, n, tmp_path):
    folder, parents, device = save_target(tmp_path, family), scattered(n), torch.device("cuda")
    target = Target(target_config(folder), Weights(folder, WHOLE, device, dtype), 512)
    read(target, list(range(20)))
    start = torch.tensor(20, device=device)
    tokens = (torch.arange(n, device=device) * 7) % 203
    depths = torch.tensor([len(path_to(parents, row)) - 1 for row in range(n)], device=device)
    kin = target.descent(torch.tensor(parents, device=device), int(depths.max()))
    path = path_to(parents, n - 1)[:16]
    rows, accepted = torch.tensor(path + [0] * (16 - len(path)), device=device), torch.tensor(len(path) - 1).cuda()

    def once() -> torch.Tensor:
        logits = target.logits(target.forward(tokens, target.view(start, start + depths, kin, 384))[0])
        target.commit(start, rows, accepted)
        return logits

    before = target.snapshot()
    expected, after = once(), target.snapshot()
    target.restore(before)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        logits = once()
    target.restore(before)
    graph.replay()
    for mine, eager in zip((logits, *target.snapshot()), (expected, *after), strict=True):
        torch.testing.assert_close(mine, eager, atol=1e-5, rtol=1e-5)
