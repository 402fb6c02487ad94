"""The round: draft → build → verify → commit, for every method alike.

Autoregressive decoding is the round with a tree of one row, DFlash with a chain, DDTree with a best-first tree. A
round reads no value on the host and its shapes depend on the method alone, so on a GPU it is captured once as a CUDA
graph and replayed: one launch a round, whatever the round holds. A profiled pass replays the same work as four graphs,
one a stage. On a CPU the same functions are simply called.

A method that adapts has several widths. Its round is two graphs, the second one of as many as there are widths, and
which of them is the one integer that the host reads in between.

Shape letters: n rows of the verify pass, d depths 0 … the deepest a node can be, w widths.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from methods.base import Method, Sampling
from methods.reference import kernels, sampling, tree
from methods.reference.attention import Ancestry
from methods.reference.clock import StageClock
from methods.reference.drafter import Drafter
from methods.reference.inspection import Verified
from methods.reference.state import State
from methods.reference.target import Target

WARM_RUNS = 2  # before a capture, so that libraries and kernels are set up
DRAFTING, CHECKING = ("draft", "build"), ("descend", "verify", "commit")  # what comes before and after the choice
STEPS = (*DRAFTING, *CHECKING)
STAGED = (("draft",), ("build", "descend"), ("verify",), ("commit",))  # of each of `clock.STAGES`


class Pass:
    """What a round at one width makes from its tree on."""

    draft: tree.Tree
    ancestry: Ancestry
    choices_n: Tensor
    features_nf: Tensor | None
    walk: tree.Walk


class Cycle:
    """One method's round on a target and its drafter. What a step makes for the next lies in attributes.

    `at` is which of the method's widths the steps after the choice work at; `costs_w` are the milliseconds of a round
    at each, which the choice reads.
    """

    candidates: tree.Candidates | None
    whole: tree.Tree
    choice: Tensor

    def __init__(self, target: Target, drafter: Drafter | None, state: State, method: Method, how: Sampling) -> None:
        self._target, self._state, self._method, self._how = target, state, method, how
        self._drafter = drafter if method.uses_drafter else None
        self._depth_limit, self._block = 0, 1
        self._layers: tuple[int, ...] = ()
        self._masks_bh: Tensor | None = None
        if self._drafter:
            config = self._drafter.config
            self._block, self._depth_limit = config.block_size, config.block_size - 1
            self._layers = config.target_layer_ids
            masks = torch.full((self._depth_limit,), config.mask_token_id, device=target.device)
            self._masks_bh = target.embed(masks)
        self.widths = method.widths(self._block)
        self.at, self._passes = len(self.widths) - 1, [Pass() for _ in self.widths]
        self.costs_w = torch.ones(len(self.widths), dtype=torch.float64, device=target.device)

    @property
    def width(self) -> int:
        """The rows of the pass at hand."""
        return self.widths[self.at]

    @property
    def draft(self) -> tree.Tree:
        """The tree as it is verified: the first rows of the whole one."""
        return self._passes[self.at].draft

    @property
    def rows(self) -> int:
        """The slots beyond the root's that a round may write to."""
        return max(self._method.width(self._block), self._block)

    @property
    def verified(self) -> Verified:
        """The last round, for those who look at it before the next one runs."""
        done = self._passes[self.at]
        return Verified(done.draft, self.candidates, done.choices_n, done.walk)

    def step(self, name: str, seen: int) -> None:
        """Run one step; `seen` is how many slots any row may look at."""
        steps: dict[str, Callable[[int], None]] = {
            "draft": self._draft,
            "build": self._build,
            "descend": self._descend,
            "verify": self._verify,
            "commit": self._commit,
        }
        steps[name](seen)

    def _draft(self, seen: int) -> None:
        self.candidates = self.propose(seen) if self._drafter else None

    def propose(self, seen: int) -> tree.Candidates:
        """The drafter's candidates at every position of the block behind the root."""
        state, target, drafter = self._state, self._target, self._drafter
        assert drafter is not None and state.features is not None and self._masks_bh is not None
        drafter.extend(state.features, state.features_at)
        block_bh = torch.cat([target.embed(state.root[None]), self._masks_bh])
        hidden_bh = drafter.block(block_bh, state.root_at, seen)
        logits = target.logits(hidden_bh[1:])
        return sampling.candidates(logits, self._method.candidates(self._block), target.vocabulary)

    def _build(self, seen: int) -> None:
        self.whole = self._method.build(self.candidates, self._state.root)
        if self._method.adapts:  # ranks with the same tree choose alike; this holds them together whatever they have
            self.choice = self._target.group.max(self._method.choose(self.whole, self.costs_w)[None])

    def _descend(self, seen: int) -> None:
        now = self._passes[self.at]
        now.draft = tree.Tree(*(column[: self.width] for column in self.whole))
        now.ancestry = self._target.descent(now.draft.parents_n, self._depth_limit)

    def _verify(self, seen: int) -> None:
        state, target, now = self._state, self._target, self._passes[self.at]
        view = target.view(state.root_at, tree.positions(now.draft, state.root_at), now.ancestry, seen)
        hidden_nh, now.features_nf = target.forward(now.draft.tokens_n, view, self._layers)
        now.choices_n = self.choose(target.logits(hidden_nh))

    def choose(self, logits_nv: Tensor) -> Tensor:
        """The target's own next token after each row, int64 [n]."""
        state, vocabulary = self._state, self._target.vocabulary
        return sampling.choose(
            logits_nv, state.written, self.draft.depths_n, self._how, state.noise, self._depth_limit, vocabulary
        )

    def _commit(self, seen: int) -> None:
        state, target, now = self._state, self._target, self._passes[self.at]
        walk = now.walk = self._walked(now)
        if target.group.size > 1:
            seen_trees = tree.checksum(now.draft, state.checksum)
            state.checksum.copy_(torch.where(state.finished, state.checksum, seen_trees))
        target.commit(state.root_at, walk.path_d, walk.accepted)
        if now.features_nf is not None:
            assert state.features is not None
            state.features.copy_(now.features_nf[walk.path_d])
            state.features_at.copy_(state.root_at)
        state.emit(now.choices_n[walk.path_d], walk.accepted)

    def _walked(self, now: Pass) -> tree.Walk:
        if kernels.usable(self._target.device):
            from methods.reference.kernels.walk import walk

            return walk(now.draft, now.choices_n, self._depth_limit)
        assert now.ancestry.visible_nn is not None
        return tree.walk(now.draft, now.ancestry.visible_nn, now.choices_n, self._depth_limit)


class Runner:
    """Runs a round again and again: as calls on a CPU, as CUDA graphs on a GPU."""

    def __init__(self, cycle: Cycle, device: torch.device, pool: Any) -> None:
        self.cycle, self._pool = cycle, pool
        self._on_gpu = device.type == "cuda"
        self._graphs: dict[tuple[tuple[str, ...], int], torch.cuda.CUDAGraph] = {}

    def prepare(self, seen: int, *, by_stage: bool) -> None:
        """Capture what `run` will replay. Between requests: the state and the text are scratch."""
        if not self._on_gpu:
            return
        every = range(len(self.cycle.widths))
        for part in self._parts(by_stage):
            for at in every if part[-1] in CHECKING else every[-1:]:
                if (part, at) not in self._graphs:
                    self._graphs[part, at] = self._capture(part, at, seen)

    def run(self, seen: int, stages: StageClock, *, by_stage: bool, at: int | None = None) -> None:
        """One round; with `by_stage` stage by stage, so that it can be timed and looked at.

        Args:
            at: the width that is taken whatever was chosen.
        """
        cycle, adapts = self.cycle, len(self.cycle.widths) > 1
        stages.start()
        for part in self._parts(by_stage):
            if adapts and part[0] == CHECKING[0]:
                chosen = int(cycle.choice)  # the one value that is read
                cycle.at = chosen if at is None else at
            if self._on_gpu:
                self._graphs[part, cycle.at if part[-1] in CHECKING else len(cycle.widths) - 1].replay()
            else:
                for step in part:
                    cycle.step(step, seen)
            if part != ("build",):  # what follows the choice is of the same stage
                stages.end()

    def _parts(self, by_stage: bool) -> tuple[tuple[str, ...], ...]:
        """The steps that run in one go."""
        adapts = len(self.cycle.widths) > 1
        if by_stage or not self._on_gpu:
            return (("draft",), ("build",), ("descend",), *STAGED[2:]) if adapts else STAGED
        return (DRAFTING, CHECKING) if adapts else (STEPS,)

    def _capture(self, part: tuple[str, ...], at: int, seen: int) -> torch.cuda.CUDAGraph:
        if part[0] == STEPS[0]:
            self._warm(seen)
        self.cycle.at = at
        graph = torch.cuda.CUDAGraph()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The CUDA Graph is empty")  # as AR's draft is
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                for name in part:
                    self.cycle.step(name, seen)
        return graph

    def _warm(self, seen: int) -> None:
        """What happens once (kernels compiled, workspaces made, tables cached) must not happen in a capture."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_RUNS):
                for at in range(len(self.cycle.widths)):
                    self.cycle.at = at
                    for name in STEPS:
                        self.cycle.step(name, seen)
        torch.cuda.current_stream().wait_stream(stream)
