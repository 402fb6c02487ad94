"""Sums and exchanges through each other's memory: what every rank gets, turn after turn, eagerly and from a graph.

On two GPUs, or two processes in Triton's interpreter: TRITON_INTERPRET=1 python -m pytest tests/test_peers.py
"""

from __future__ import annotations

import functools
import os
import random
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tiny_models import save_drafter, save_target
from torch import Tensor
from torch.multiprocessing.spawn import start_processes

pytest.importorskip("triton")

from methods.reference import kernels, parallel
from methods.reference.config import drafter_config, target_config
from methods.reference.drafter import Drafter
from methods.reference.kernels import layers, peers
from methods.reference.loading import Weights
from methods.reference.parallel import Group
from methods.reference.reading import read
from methods.reference.target import Target

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
GPUS = torch.cuda.device_count()
if not (GPUS >= 2 or INTERPRETED):
    pytest.skip("needs two GPUs, or TRITON_INTERPRET=1", allow_module_level=True)

pytestmark = [] if INTERPRETED else [pytest.mark.gpu]
SIZES = [2] if INTERPRETED else [size for size in (2, 4, 8) if size <= GPUS]
DTYPES = (torch.float32, torch.float16) if INTERPRETED else (torch.float32, torch.float16, torch.bfloat16)
SHAPES = (
    ((1, 64), (5, 96), (1, 4096))
    if INTERPRETED
    else ((1, 4096), (5, 96), (65, 4096), (257, 5120), (512, 1024), (1025, 4096))
)
PATIENCE_S = 300 if INTERPRETED else 60


def ranks(size: int, check: Callable[[Group, torch.device], None]) -> None:
    """Run `check` on so many ranks; what one of them raises is raised here."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    inboxes = []
    if INTERPRETED:
        inboxes = [torch.zeros(peers.INBOX, dtype=torch.int64).share_memory_() for _ in range(size)]
    context = start_processes(one, (size, port, inboxes, check), nprocs=size, join=False, start_method="spawn")
    end = time.monotonic() + PATIENCE_S
    while not context.join(timeout=1):
        if time.monotonic() > end:
            for process in context.processes:
                process.kill()
            pytest.fail(f"{check} hangs")


def one(rank: int, size: int, port: int, inboxes: list[Tensor], check: Callable[[Group, torch.device], None]) -> None:
    torch.set_num_threads(1)
    kernels.on = True
    if INTERPRETED:
        ways = peers.Peers(rank, inboxes[rank], [inbox.data_ptr() for inbox in inboxes])
        check(Group(rank, size, peers=ways), torch.device("cpu"))
        return
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    group = parallel.join(rank, size, port, device, PATIENCE_S)
    assert group.way == "peer memory"
    check(group, device)
    torch.cuda.synchronize()
    parallel.leave(group)


def drawn(size: int, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, turn: int) -> list[Tensor]:
    """Every rank's tensor of a turn, as all ranks know them."""
    generator = torch.Generator().manual_seed(turn)
    return [torch.randn(shape, generator=generator).to(device, dtype) for _ in range(size)]


def in_order(parts: list[Tensor]) -> Tensor:
    total = torch.zeros_like(parts[0], dtype=torch.float32)
    for part in parts:
        total += part.float()
    return total.to(parts[0].dtype)


def check_sums(group: Group, device: torch.device) -> None:
    assert group.peers
    turn = 0
    for dtype in DTYPES:
        for shape in SHAPES:
            turn += 1
            parts = drawn(group.size, shape, dtype, device, turn)
            x, own, whole = parts[0] * 2, parts[group.rank], in_order(parts)
            assert group.peers.fits(own) and group.peers.fits_rows(shape[0], shape[1], dtype)
            assert torch.equal(group.add(x, own), x + whole)
            weight = torch.ones(shape[1], device=device) + turn / 7
            ours = group.add_norm(x, own, weight, 1e-6)
            alone = layers.add_norm(x, whole, weight, 1e-6)
            assert torch.equal(ours[0], alone[0])
            torch.testing.assert_close(ours[1], alone[1], atol=1e-5, rtol=2 * torch.finfo(dtype).eps)
            split = torch.stack([own.float() * 0.25, own.float() * 0.75])
            found, _ = group.add_norm(x, split, weight, 1e-6)
            assert torch.equal(found, x + in_order([(p.float() * 0.25 + p.float() * 0.75).to(dtype) for p in parts]))
            assert torch.equal(group.sum(own), whole) and torch.equal(own, whole)


def check_two_shots(group: Group, device: torch.device) -> None:
    """The same in two shots, whatever the size."""
    peers.DEAR = -1
    check_sums(group, device)


def check_exchanges(group: Group, device: torch.device) -> None:
    for turn, shape in enumerate([(1,), (3, 5), (2, 15, 64), (7, 300)]):
        parts = [(part * 1e6).to(torch.int64) << 20 for part in drawn(group.size, shape, torch.float32, device, turn)]
        own = parts[group.rank]
        assert torch.equal(group.gather(own, dim=-1), torch.cat(parts, dim=-1))
        assert torch.equal(group.gather(own, dim=0), torch.cat(parts, dim=0))
        assert torch.equal(group.max(own.clone()), torch.stack(parts).amax(0))
        summed = own.clone()
        assert group.sum(summed) is summed and torch.equal(summed, torch.stack(parts).sum(0))


def check_turns(group: Group, device: torch.device) -> None:
    """Launches of all sizes follow each other while ranks come early and late: no part is seen twice or lost."""
    random.seed(group.rank)
    for turn in range(12 if INTERPRETED else 300):
        shape = ((1, 64), (3, 512), (2, 96), (40, 32))[turn % 4 if INTERPRETED else turn * 7 % 4]
        parts = drawn(group.size, shape, torch.float32, device, turn)
        if random.random() < 0.2:
            time.sleep(0.02)
        if turn % 3:
            assert torch.equal(group.add(parts[0], parts[group.rank]), parts[0] + in_order(parts))
        else:
            assert torch.equal(group.gather(parts[group.rank], dim=0), torch.cat(parts))


def check_graph(group: Group, device: torch.device) -> None:
    """A graph with an odd number of turns, replayed 1000 times, between calls outside of it."""
    count = torch.zeros((), device=device)
    wide, narrow = (torch.zeros(n, 512, dtype=torch.float32, device=device) for n in (65, 1))
    weight, keys = torch.ones(512, device=device), torch.zeros(15, 64, dtype=torch.int64, device=device)
    seen = torch.zeros(3, device=device, dtype=torch.float64)

    def step() -> None:
        count.add_(1)
        part = (count * (group.rank + 1)).expand(65, 512).contiguous()
        total, normed = group.add_norm(wide, part, weight, 0.0)
        least = group.add(narrow, part[:1].contiguous())
        best = group.max(keys + count.to(torch.int64) * (group.rank + 1))
        near = (normed - 1).abs() < 1e-6
        seen.add_(torch.stack([total.double().mean(), near.double().mean(), least.double().mean()]))
        seen[2].add_(best.double().mean())

    for _ in range(3):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        step()
    count.zero_()
    seen.zero_()
    for replay in range(1000):
        graph.replay()
        if replay % 100 == 0:
            group.add(narrow, narrow.clone())
    every = 1000 * 1001 / 2
    factor = sum(range(1, group.size + 1))
    assert seen.tolist() == [every * factor, 1000.0, every * factor + every * group.size]


@torch.inference_mode()
def check_layers(folder: Path, group: Group, device: torch.device) -> None:
    """A pass of several rows and passes of one, split over ranks and whole."""
    alone, split = (
        Target(target_config(folder), Weights(folder, own, device, torch.float32), 64) for own in (Group(), group)
    )
    text = torch.randint(200, (4,), generator=torch.Generator().manual_seed(4)).tolist()
    whole, parts = ([*read(t, text[:3], (0, 3)), *read(t, text[3:], (0, 3), start=3, rows=1)] for t in (alone, split))
    assert [len(chunk.hidden_ch) for chunk in parts] == [3, 1]
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(other.hidden_ch, one.hidden_ch, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(other.features_cf, one.features_cf, atol=1e-4, rtol=1e-4)
        logits = alone.logits(one.hidden_ch)
        torch.testing.assert_close(group.gather(split.logits(other.hidden_ch), -1), logits, atol=1e-4, rtol=1e-4)


@torch.inference_mode()
def check_drafter(folder: Path, group: Group, device: torch.device) -> None:
    """A context of some rows, of which each rank reads its share of the features, and the block behind it."""
    config = drafter_config(folder)
    shape = config.transformer
    features = drawn(1, (5, len(config.target_layer_ids) * shape.hidden), torch.float32, device, 1)[0]
    embedded, zero = drawn(1, (4, shape.hidden), torch.float32, device, 2)[0], torch.zeros((), dtype=torch.int64)
    found = []
    for own in (Group(), group):
        drafter = Drafter(config, Weights(folder, own, device, torch.float32), 64)
        drafter.extend(features, zero.to(device))
        found.append(drafter.block(embedded, torch.tensor(5, device=device), 64))
    torch.testing.assert_close(found[1], found[0], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("size", SIZES)
def test_a_drafter_is_split(tmp_path, size):
    ranks(size, functools.partial(check_drafter, save_drafter(tmp_path)))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("check", [check_sums, check_two_shots, check_exchanges, check_turns])
def test_ranks_get_the_same(size, check):
    ranks(size, check)


@pytest.mark.parametrize("family", ["qwen3"] if INTERPRETED else ["qwen3", "qwen3_5_text", "qwen3_moe"])
@pytest.mark.parametrize("size", SIZES)
def test_layers_are_split(tmp_path, size, family):
    ranks(size, functools.partial(check_layers, save_target(tmp_path, family)))


@pytest.mark.skipif(INTERPRETED, reason="graphs are a GPU's")
@pytest.mark.parametrize("size", SIZES)
def test_a_graph_is_replayed(size):
    ranks(size, check_graph)
