"""The round: draft → build → verify → commit, for every method alike.

Autoregressive decoding is the round with a tree of one row, DFlash with a chain, DDTree with a best-first tree. A
round reads no value on the host and its shapes depend on the method alone, so on a GPU it is captured once as a CUDA
graph and replayed: one launch a round, whatever the round holds. A profiled pass replays the same work as four graphs,
one a stage. On a CPU the same functions are simply called.

Shape letters: n rows of the verify pass, d depths 0 … the deepest a node can be.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from methods.base import Method, Sampling
from methods.reference import kernels, sampling, tree
from methods.reference.attention import Ancestry
from methods.reference.clock import STAGES, StageClock
from methods.reference.drafter import Drafter
from methods.reference.inspection import Verified
from methods.reference.state import State
from methods.reference.target import Target

WARM_RUNS = 2  # before a capture, so that libraries and kernels are set up


class Cycle:
    """One method's round on a target and its drafter. What a stage makes for the next lies in attributes."""

    candidates: tree.Candidates | None
    draft: tree.Tree
    ancestry: Ancestry
    choices_n: Tensor
    features_nf: Tensor | None
    walk: tree.Walk

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

    @property
    def rows(self) -> int:
        """The slots beyond the root's that a round may write to."""
        return max(self._method.width(self._block), self._block)

    @property
    def verified(self) -> Verified:
        """The last round, for those who look at it before the next one runs."""
        return Verified(self.draft, self.candidates, self.choices_n, self.walk)

    def stage(self, name: str, seen: int) -> None:
        """Run one stage; `seen` is how many slots any row may look at."""
        steps: dict[str, Callable[[int], None]] = {
            "draft": self._draft,
            "build": self._build,
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
        self.draft = self._method.build(self.candidates, self._state.root)
        self.ancestry = self._target.descent(self.draft.parents_n, self._depth_limit)

    def _verify(self, seen: int) -> None:
        state, target, draft = self._state, self._target, self.draft
        view = target.view(state.root_at, tree.positions(draft, state.root_at), self.ancestry, seen)
        hidden_nh, self.features_nf = target.forward(draft.tokens_n, view, self._layers)
        self.choices_n = self.choose(target.logits(hidden_nh))

    def choose(self, logits_nv: Tensor) -> Tensor:
        """The target's own next token after each row, int64 [n]."""
        state, vocabulary = self._state, self._target.vocabulary
        return sampling.choose(
            logits_nv, state.written, self.draft.depths_n, self._how, state.noise, self._depth_limit, vocabulary
        )

    def _commit(self, seen: int) -> None:
        state, target = self._state, self._target
        walk = self.walk = self._walked()
        if target.group.size > 1:
            seen_trees = tree.checksum(self.draft, state.checksum)
            state.checksum.copy_(torch.where(state.finished, state.checksum, seen_trees))
        target.commit(state.root_at, walk.path_d, walk.accepted)
        if self.features_nf is not None:
            assert state.features is not None
            state.features.copy_(self.features_nf[walk.path_d])
            state.features_at.copy_(state.root_at)
        state.emit(self.choices_n[walk.path_d], walk.accepted)

    def _walked(self) -> tree.Walk:
        if kernels.usable(self._target.device):
            from methods.reference.kernels.walk import walk

            return walk(self.draft, self.choices_n, self._depth_limit)
        assert self.ancestry.visible_nn is not None
        return tree.walk(self.draft, self.ancestry.visible_nn, self.choices_n, self._depth_limit)


class Runner:
    """Runs a round again and again: as calls on a CPU, as CUDA graphs on a GPU."""

    def __init__(self, cycle: Cycle, device: torch.device, pool: Any) -> None:
        self.cycle, self._pool = cycle, pool
        self._on_gpu = device.type == "cuda"
        self._graphs: dict[tuple[str, ...], torch.cuda.CUDAGraph] = {}

    def prepare(self, seen: int, *, by_stage: bool) -> None:
        """Capture what `run` will replay. Between requests: the state and the text are scratch."""
        if not self._on_gpu:
            return
        parts = [(name,) for name in STAGES] if by_stage else [STAGES]
        for part in parts:
            if part not in self._graphs:
                self._graphs[part] = self._capture(part, seen)

    def run(self, seen: int, stages: StageClock, *, by_stage: bool) -> None:
        """One round; with `by_stage` stage by stage, so that it can be timed and looked at."""
        stages.start()
        if self._on_gpu and not by_stage:
            self._graphs[STAGES].replay()
            return
        for name in STAGES:
            if self._on_gpu:
                self._graphs[name,].replay()
            else:
                self.cycle.stage(name, seen)
            stages.end()

    def _capture(self, part: tuple[str, ...], seen: int) -> torch.cuda.CUDAGraph:
        if part[0] == STAGES[0]:
            self._warm(seen)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            for name in part:
                self.cycle.stage(name, seen)
        return graph

    def _warm(self, seen: int) -> None:
        """What happens once (kernels compiled, workspaces made, tables cached) must not happen in a capture."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_RUNS):
                for name in STAGES:
                    self.cycle.stage(name, seen)
        torch.cuda.current_stream().wait_stream(stream)
