"""The tree and vocabulary kernels against the plain path: on a GPU, or anywhere in Triton's interpreter.

TRITON_INTERPRET=1 python -m pytest -m "gpu or not gpu" tests/test_kernels_tree.py
"""

from __future__ import annotations

import os

import pytest
import torch

pytest.importorskip("triton")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not (torch.cuda.is_available() or INTERPRETED):
    pytest.skip("needs a CUDA device, or TRITON_INTERPRET=1", allow_module_level=True)

from methods.base import Sampling  # noqa: E402
from methods.reference import sampling, tree  # noqa: E402
from methods.reference.kernels import choice  # noqa: E402
from methods.reference.kernels import tree as kernel  # noqa: E402
from methods.reference.kernels import vocabulary as words  # noqa: E402
from methods.reference.kernels.walk import walk  # noqa: E402
from methods.reference.parallel import Group, Vocabulary  # noqa: E402

pytestmark = [] if INTERPRETED else [pytest.mark.gpu]
DEVICE = "cpu" if INTERPRETED else "cuda"
ROOT = torch.tensor(7)


@pytest.fixture(autouse=True)
def few_guesses(monkeypatch):
    """The interpreter runs programs one by one: let there be more launches of fewer. And let depths be long."""
    if INTERPRETED:
        monkeypatch.setattr(kernel, "WAYS", 4)
        monkeypatch.setattr(kernel, "NODES_AT_ONCE", 8)


def drafted(length: int, width: int, kind: str, seed: int = 0) -> tree.Candidates:
    """Candidates of each sort that is hard in its own way."""
    generator = torch.Generator().manual_seed(seed + 100 * length + width)
    logits = torch.randn(length, width + 5, generator=generator) * 3
    if kind == "equal":
        logits = torch.zeros_like(logits)
    log_probs = torch.log_softmax(logits, dim=-1)
    if kind == "bf16":
        log_probs = log_probs.bfloat16().float()
    if kind == "coarse":
        log_probs = (log_probs * 2).round() / 2
    if kind == "certain":  # children score as high as their parents
        log_probs[:, 0] = 0.0
    if kind == "impossible":
        log_probs[log_probs < -4.0] = -torch.inf
    log_probs = log_probs.sort(dim=-1, descending=True).values[:, :width].contiguous()
    ids = torch.rand(length, 2 * width + 9, generator=generator).argsort(dim=-1)[:, :width].contiguous()
    return tree.Candidates(log_probs, ids)


def same_tree(candidates: tree.Candidates, budget: int, chain_seed: bool) -> None:
    on_device = tree.Candidates(*(part.to(DEVICE) for part in candidates))
    built = kernel.build(on_device, ROOT.to(DEVICE), budget, chain_seed=chain_seed)
    heap = tree.build_by_heap(candidates, ROOT, budget, chain_seed=chain_seed)
    for name, ours, theirs in zip(tree.Tree._fields, built, heap, strict=True):
        assert ours.dtype == theirs.dtype and torch.equal(ours.cpu(), theirs), name


KINDS = ["plain", "bf16", "coarse", "equal", "certain", "impossible"]
SMALL = [(1, 1, 1), (2, 3, 2), (3, 17, 16), (2, 1, 3), (4, 3, 30), (2, 2, 30), (3, 17, 17)]
LARGE = [(length, budget, budget) for length in (1, 2, 7, 15, 31) for budget in (1, 2, 15, 16, 17, 63, 64, 100, 256)]
LARGE += [
    (5, 4, 15),
    (15, 4, 16),
    (15, 17, 17),
    (15, 1024, 1024),
    (15, 333, 1024),
    (15, 1000, 1000),
    (15, 3, 1024),
    (15, 2048, 600),
]


CASES = [(*shape, kind) for shape in SMALL for kind in KINDS][:: 5 if INTERPRETED else 1]
CASES += [] if INTERPRETED else [(*shape, kind) for shape in LARGE for kind in KINDS]


@pytest.mark.parametrize("length, width, budget, kind", CASES)
def test_the_tree_is_the_heaps(length, width, budget, kind):
    for chain_seed in (False, True):
        same_tree(drafted(length, width, kind), budget, chain_seed)


@pytest.mark.parametrize("budget", [1, 9] if INTERPRETED else [1, 9, 64, 1024])
def test_the_walk_follows_the_choices(budget):
    length = 4 if INTERPRETED else 15
    candidates = drafted(length, budget, "plain")
    built = tree.build_by_heap(candidates, ROOT, budget)
    seen = tree.visibility(built.parents_n, length)
    on_device = tree.Tree(*(column.to(DEVICE) for column in built))
    for last in range(0, budget + 1, max(1, budget // 40)):  # choices that lead there, and on as they may
        generator = torch.Generator().manual_seed(last)
        choices = torch.where(torch.rand(1 + budget, generator=generator) < 0.5, built.tokens_n.roll(-1), -1)
        path = seen[last].nonzero()[1:, 0]
        choices[built.parents_n[path]] = built.tokens_n[path]
        found, expected = walk(on_device, choices.to(DEVICE), length), tree.walk(built, seen, choices, length)
        assert torch.equal(found.path_d.cpu(), expected.path_d) and torch.equal(found.accepted.cpu(), expected.accepted)
        assert int(found.accepted) >= int(built.depths_n[last])


def test_padding_is_not_walked_on():
    candidates = tree.Candidates(torch.tensor([[-0.5], [-0.5]]), torch.tensor([[3], [4]]))
    built = tree.Tree(*(column.to(DEVICE) for column in tree.build_by_heap(candidates, ROOT, 6)))
    choices = torch.zeros(7, dtype=torch.int64, device=DEVICE)  # the padding's token
    assert int(walk(built, choices, 2).accepted) == 0


DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SIZES = [70] if INTERPRETED else [2, 70, 4096, 37995, 151_936, 248_320]


def logits_of(rows: int, size: int, dtype: torch.dtype, kind: str = "plain") -> tuple[torch.Tensor, Vocabulary]:
    """Padded logits of a whole vocabulary."""
    vocabulary = Vocabulary(size, Group())
    generator = torch.Generator(DEVICE).manual_seed(size + rows)
    logits = torch.randn(rows, size, generator=generator, device=DEVICE) * 4
    if kind == "equal":
        logits = torch.full_like(logits, 1.5)
    if kind == "zeros":  # of both signs
        logits = logits.round() * 0.0
    if kind == "impossible":
        logits[logits < 5.0] = -torch.inf
        logits[0] = -torch.inf
    logits = torch.nn.functional.pad(logits, (0, vocabulary.padded - size), value=-torch.inf)
    return logits.to(dtype), vocabulary


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_candidates_are_the_plain_paths(size, dtype):
    for kind in ("plain", "equal", "zeros", "impossible"):
        logits, vocabulary = logits_of(2, size, dtype, kind)
        for k in (24,) if INTERPRETED else (1, 16, 64, 1000, 1024):
            found, expected = (where.candidates(logits, k, vocabulary) for where in (words, sampling))
            assert torch.equal(found.ids_lk, expected.ids_lk), (kind, k)
            possible = expected.log_probs_lk.isfinite()
            gap = (found.log_probs_lk - expected.log_probs_lk)[possible].abs()
            assert not len(gap) or gap.max() < 5e-6, (kind, k)


@pytest.mark.parametrize("tp", [4] if INTERPRETED else [2, 4])
def test_candidates_do_not_depend_on_the_ranks(tp, monkeypatch):
    if INTERPRETED:
        monkeypatch.setattr(words, "SMALLEST_TILE", 16)  # so that a chunk has several
    for size in (275,) if INTERPRETED else (75, 4096, 151_936, 248_320):
        logits, whole = logits_of(2, size, torch.bfloat16)
        for k in (100,) if INTERPRETED else (1, 100, 1024):
            keys, sums = [], []
            for rank in range(tp):
                own = Vocabulary(size, Group(rank, tp))
                part = words.best_of_part(logits[:, own.rows], min(k, size), own)
                keys.append(part[0]), sums.append(part[1])
            found = words.in_order(torch.cat(keys, -1), torch.cat(sums, -1), min(k, size))
            expected = words.candidates(logits, k, whole)
            assert torch.equal(found.ids_lk, expected.ids_lk)
            assert torch.equal(found.log_probs_lk, expected.log_probs_lk)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_the_best_is_the_argmax(size, dtype):
    for kind in ("plain", "equal", "zeros", "impossible"):
        for rows in (1, 5) if INTERPRETED else (1, 5, 65, 1025):
            logits, vocabulary = logits_of(rows, size, dtype, kind)
            assert torch.equal(choice.best(logits, vocabulary), sampling.best(logits, vocabulary)), kind


def test_the_best_is_found_in_any_part(monkeypatch):
    monkeypatch.setattr(choice, "STEP", 64)
    for part in range(0, 1000, 90):
        logits, vocabulary = logits_of(2, 1000, torch.float32)
        logits[:, part] = logits[1, part // 2] = 50.0
        assert choice.best(logits, vocabulary).tolist() == [part, part // 2]


def test_noise_is_the_plain_paths():
    for size in (70, 1000) if INTERPRETED else (70, 151_936):
        vocabulary, key = Vocabulary(size, Group()), torch.tensor(-0x1234567890ABCDEF, device=DEVICE)
        first = torch.tensor(12345, device=DEVICE)
        expected = sampling.gumbel(key, first + torch.arange(4, device=DEVICE), vocabulary.ids(key.device))
        assert torch.equal(choice.gumbel(key, first, 4, vocabulary), expected)
        shard = Vocabulary(size, Group(1, 4))
        assert torch.equal(choice.gumbel(key, first, 4, shard), expected[:, shard.rows])


@pytest.mark.parametrize("how", [Sampling(), Sampling(0.5), Sampling(2.0, 0.9, 50), Sampling(0.5, 0.5)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_choices_are_the_plain_paths(how, dtype):
    if not INTERPRETED and how.temperature == 0.5:
        how = Sampling(0.7, how.top_p, how.top_k)  # torch on a CPU divides in another way
    rows, size = (5, 1000) if INTERPRETED else (70, 151_936)
    logits, vocabulary = logits_of(rows, size, dtype)
    depths = torch.arange(rows, device=DEVICE) % 16
    noise, first = torch.tensor(99, device=DEVICE), torch.tensor(5, device=DEVICE)
    ours, plain = (w.choose(logits, first, depths, how, noise, 15, vocabulary) for w in (choice, sampling))
    assert torch.equal(ours, plain)
