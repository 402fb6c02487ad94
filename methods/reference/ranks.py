"""The ranks of one model: rank 0 in this process, the others in worker processes that repeat its calls."""

from __future__ import annotations

import gc
import multiprocessing
import os
import socket
import sys
import threading
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from methods.base import EngineSpec, Method, Refusal
from methods.locate import resolve
from methods.reference import parallel
from methods.reference.config import drafter_config, target_config
from methods.reference.decode import Decoder
from methods.reference.drafter import Drafter
from methods.reference.loading import Weights
from methods.reference.memory import ROOTS_AT_ONCE
from methods.reference.parallel import Mailbox, Reader
from methods.reference.reading import SEEN_STEP
from methods.reference.target import Target

COLLECTIVE_TIMEOUT_S = 600.0
GRACE_S = 10.0  # for rank 0 to notice by itself that a worker is gone
LOST = 70  # the exit status of a process that had to end without its ranks


class Rank:
    """One rank's share of the model, ready to decode."""

    def __init__(
        self, spec: EngineSpec, dtype: str, methods: tuple[Method, ...], rank: int, port: int, reader: Reader | None
    ) -> None:
        device = torch.device("cuda", rank) if spec.device == "cuda" else torch.device("cpu")
        if device.type == "cuda":
            torch.cuda.set_device(device)
        self.group = parallel.join(rank, spec.tp, port, device, COLLECTIVE_TIMEOUT_S, reader)
        self.weights_bytes, self._device = 0, device
        self._decoder = self._load(spec, getattr(torch, dtype), methods, device)

    def _load(self, spec: EngineSpec, dtype: torch.dtype, methods: tuple[Method, ...], device: torch.device) -> Decoder:
        seed = spec.seed if spec.model.weights == "random" else None
        folder = resolve(spec.model.target, weights=seed is None)
        uses_drafter = spec.replay > 0 or any(method.uses_drafter for method in methods)
        draft_folder = resolve(spec.model.drafter, weights=seed is None) if uses_drafter else None
        draft_config = drafter_config(draft_folder) if draft_folder else None
        block = draft_config.block_size if draft_config else 1
        slots = parallel.up(spec.max_length + max([block, *(m.width(block) for m in methods)]), SEEN_STEP)
        weights = Weights(folder, self.group, device, dtype, seed)
        target, drafter = Target(target_config(folder), weights, slots), None
        self.weights_bytes = weights.bytes
        if draft_folder and draft_config:
            weights = Weights(draft_folder, self.group, device, dtype, seed)
            drafter = Drafter(draft_config, weights, slots + (ROOTS_AT_ONCE * block if spec.replay else 0))
            self.weights_bytes += weights.bytes
        with torch.inference_mode():
            return Decoder(target, drafter)

    @property
    def block_size(self) -> int:
        return self._decoder.block_size

    @property
    def vocab_size(self) -> int:
        return self._decoder.target.config.vocabulary

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._decoder, name)(*args, **kwargs)

    def leave(self, *, together: bool) -> None:
        """Leave the group for good. What is captured goes first: NCCL waits for graphs that hold its collectives."""
        if self._device.type == "cuda":
            if together:
                torch.cuda.synchronize(self._device)
            del self._decoder
            gc.collect()
        if self.group.size > 1:
            parallel.leave(self.group, together=together)


class Ranks:
    """All ranks, driven from rank 0.

    Raises:
        Refusal: there are fewer GPUs than ranks.
        RuntimeError: a worker could not start or has died; the message holds its reason.
    """

    def __init__(self, spec: EngineSpec, dtype: str, methods: tuple[Method, ...]) -> None:
        if spec.device == "cuda" and spec.tp > torch.cuda.device_count():
            raise Refusal(f"tp={spec.tp} needs {spec.tp} GPUs, one a rank; here are {torch.cuda.device_count()}.")
        parallel.use_threads(spec.tp)
        port = _free_port() if spec.tp > 1 else 0
        shared = spec.tp > 1 and spec.device == "cpu" and Mailbox.usable()
        mailbox = Mailbox(spec.tp) if shared else None
        self._workers: list[tuple[BaseProcess, Connection]] = []
        context = multiprocessing.get_context("spawn")
        for rank in range(1, spec.tp):
            ours, theirs = context.Pipe()
            worker = context.Process(
                target=_work, args=(spec, dtype, methods, rank, port, theirs, mailbox), name=f"rank-{rank}", daemon=True
            )
            worker.start()
            theirs.close()
            self._workers.append((worker, ours))
        self._closing, self._in_step = threading.Event(), True
        if self._workers:
            threading.Thread(target=self._watch, daemon=True).start()
        self._rank: Rank | None = None
        reader = Reader(mailbox, 0, self._all_live) if mailbox else None
        try:
            self._rank = self._guard(lambda: Rank(spec, dtype, methods, 0, port, reader))
            loaded = [self._rank.weights_bytes] + [self._guard(pipe.recv) for _, pipe in self._workers]
        except BaseException:
            self.close()
            raise
        self.block_size = self._rank.block_size
        self.facts: dict[str, str | int | float] = {"block_size": self.block_size, "vocab_size": self._rank.vocab_size}
        if spec.tp > 1:
            self.facts["collectives"] = self._rank.group.way
        self.facts |= {f"weights_bytes_rank{i}": size for i, size in enumerate(loaded)}

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Run a decoder's method on every rank; rank 0's answer is returned."""
        for _, pipe in self._workers:
            self._guard(lambda pipe=pipe: pipe.send((name, args, kwargs)))
        rank = self._rank
        assert rank is not None
        return self._guard(lambda: rank.call(name, *args, **kwargs))

    def close(self) -> None:
        """End the workers through a barrier; by force once rank 0 has left a call that they may still be in."""
        self._closing.set()
        together = self._in_step and self._rank is not None
        for worker, pipe in self._workers:
            if together:
                with suppress(OSError):
                    pipe.send(None)
            else:
                worker.kill()
        with suppress(Exception):
            if self._rank:
                self._rank.leave(together=together)
            else:
                parallel.leave(parallel.Group(), together=False)
        for worker, pipe in self._workers:
            worker.join(GRACE_S)
            if worker.is_alive():
                worker.kill()
                worker.join()
            pipe.close()
        self._workers = []

    def _guard(self, action: Any) -> Any:
        """Run `action`; if it fails because a worker is gone, say why the worker went."""
        try:
            return action()
        except Exception as error:
            self._in_step = False
            if reason := self._reason():
                raise RuntimeError(reason) from error
            raise

    def _all_live(self) -> bool:
        return all(worker.is_alive() for worker, _ in self._workers)

    def _reason(self) -> str | None:
        for rank, (worker, pipe) in enumerate(self._workers, start=1):
            with suppress(OSError, EOFError):
                while pipe.poll(0.5):
                    message = pipe.recv()
                    if isinstance(message, str):
                        return f"rank {rank} failed: {message}"
            worker.join(0.5)
            if worker.exitcode is not None:
                return f"rank {rank} ended with status {worker.exitcode}"
        return None

    def _watch(self) -> None:
        """Rank 0 may hang in a collective whose partner died: then end this process, with the reason."""
        gone = wait([worker.sentinel for worker, _ in self._workers])
        if self._closing.wait(GRACE_S):
            return
        lost = [worker.name for worker, _ in self._workers if worker.sentinel in gone]
        print(f"{', '.join(lost)} ended and the other ranks cannot go on", file=sys.stderr, flush=True)
        os._exit(LOST)


def _work(
    spec: EngineSpec,
    dtype: str,
    methods: tuple[Method, ...],
    rank: int,
    port: int,
    pipe: Connection,
    mailbox: Mailbox | None,
) -> None:
    """A worker's life: load, then repeat rank 0's calls until told to stop or left alone."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()
    try:
        parallel.use_threads(spec.tp)
        reader = Reader(mailbox, rank, parent.is_alive) if mailbox else None
        own = Rank(spec, dtype, methods, rank, port, reader)
        pipe.send(own.weights_bytes)
        while (order := pipe.recv()) is not None:
            name, args, kwargs = order
            own.call(name, *args, **kwargs)
        own.leave(together=True)
    except Exception as error:
        traceback.print_exc()
        with suppress(OSError):
            pipe.send(f"{type(error).__name__}: {error}")
        os._exit(LOST)


def _end_with(sentinel: int) -> None:
    wait([sentinel])
    os._exit(LOST)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
