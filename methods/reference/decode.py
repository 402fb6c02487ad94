"""The round: draft → build → verify → commit, for every method alike.

Autoregressive decoding is the round with a tree of one row, DFlash with a chain, DDTree with a best-first tree. What
a round leaves behind (root, position, output, counts) stays on the device; the host follows it without making it
wait, and reads it when the request ends. All ranks drive the same calls in the same order.

Shape letters: n rows of the verify pass, d depths 0 … the deepest a node can be.
"""

from __future__ import annotations

import resource
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from methods.base import Cut, Generation, Inspect, Method, Request, Round, Score
from methods.reference import sampling, tree
from methods.reference.attention import Ancestry
from methods.reference.clock import Clock, Follower, Mark, StageClock
from methods.reference.drafter import Drafter
from methods.reference.inspection import Inspector, Verified
from methods.reference.parallel import up
from methods.reference.reading import SEEN_STEP, read
from methods.reference.target import Target

CUTS: tuple[Cut, ...] = ("", "stop", "length")


@dataclass
class State:
    """A request in flight, on the device. Scalars are 0-dim tensors, changed in place."""

    root: Tensor  # the last committed token
    root_at: Tensor  # its position
    written: Tensor  # output tokens so far
    finished: Tensor
    output: Tensor
    log: Tensor  # per round: accepted, emitted, index into CUTS
    checksum: Tensor
    features: Tensor | None  # of positions from `features_at` on, which the drafter has not seen yet
    features_at: Tensor
    stop_ids: Tensor


class Decoder:
    """A target, its drafter, and the loop over rounds."""

    def __init__(self, target: Target, drafter: Drafter | None) -> None:
        self.target, self.drafter, self.device = target, drafter, target.device
        self.block_size = drafter.config.block_size if drafter else 1
        if drafter:
            masks = torch.full((self.block_size - 1,), drafter.config.mask_token_id, device=self.device)
            self._masks_bh = target.embed(masks)

    @torch.inference_mode()
    def generate(
        self, method: Method, request: Request, *, profile: bool = False, inspect: Inspect | None = None
    ) -> Generation:
        """Answer one request.

        Prefill up to the first token is `ttft_s`. The rest is `decode_s`: it begins with the drafter's context of
        the whole prompt and ends with the round that emitted the last kept token.
        """
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        clock, stages = Clock(self.device), StageClock(self.device, profile)
        begin = clock.mark()
        state = self._prefill(method, request)
        marks = [clock.mark()]
        length, rows = len(request.prompt_ids), max(method.width(self.block_size), self.block_size)
        follower = Follower(state.root_at, state.finished, length, request.max_new_tokens == 1)
        follower.note()
        inspector = Inspector(self.target, request, inspect) if inspect and inspect.wanted else None
        while not follower.finished and len(marks) <= len(state.log):
            seen = min(up(follower.position_limit(self.block_size) + rows, SEEN_STEP), self.target.cache.slots)
            verified = self._round(method, request, state, len(marks) - 1, seen, stages)
            if inspector and int(state.log[len(marks) - 1, 1]):
                inspector.look(verified)
            marks.append(clock.mark())
            follower.note()
        generation = self._finish(state, request, clock, begin, marks, stages)
        return replace(generation, inspected=inspector.finish(generation.output_ids)) if inspector else generation

    def _prefill(self, method: Method, request: Request) -> State:
        layers = self._feature_layers(method)
        chunks = list(read(self.target, request.prompt_ids, layers))
        zero = torch.zeros((), dtype=torch.int64, device=self.device)
        logits = self.target.logits(chunks[-1].hidden_ch[-1:])
        root = sampling.choose(logits, zero, zero[None], request, 0, self.target.vocabulary)[0]
        limit = request.max_new_tokens
        stop_ids = torch.tensor(request.stop_ids, dtype=torch.int64, device=self.device)
        output = torch.zeros(limit + self.block_size, dtype=torch.int64, device=self.device)
        output[0] = root
        return State(
            root=root.clone(),
            root_at=zero + len(request.prompt_ids),
            written=zero + 1,
            finished=torch.isin(root, stop_ids) | (limit == 1),
            output=output,
            log=torch.zeros(limit + Follower.LAG, 3, dtype=torch.int64, device=self.device),
            checksum=zero.clone(),
            features=torch.cat([c.features_cf for c in chunks if c.features_cf is not None]) if layers else None,
            features_at=zero.clone(),
            stop_ids=stop_ids,
        )

    def _round(
        self,
        method: Method,
        request: Request,
        state: State,
        index: int,
        seen: int,
        stages: StageClock,
    ) -> Verified:
        target, depth_limit = self.target, self._depth_limit(method)
        stages.start()
        candidates = self._draft(method, state, seen) if method.uses_drafter else None
        stages.end("draft")
        draft = method.build(candidates, state.root)
        visible_nn = tree.visibility(draft.parents_n, depth_limit)
        stages.end("build")
        ancestry = Ancestry(draft.parents_n, visible_nn)
        view = target.view(state.root_at, tree.positions(draft, state.root_at), ancestry, seen)
        hidden_nh, features = target.forward(draft.tokens_n, view, self._feature_layers(method))
        choices_n = sampling.choose(
            target.logits(hidden_nh), state.written, draft.depths_n, request, depth_limit, target.vocabulary
        )
        stages.end("verify")
        walk = tree.walk(draft, visible_nn, choices_n, depth_limit)
        if target.group.size > 1:
            state.checksum.copy_(torch.where(state.finished, state.checksum, tree.checksum(draft, state.checksum)))
        self._commit(request, state, index, walk, choices_n, features)
        stages.end("commit")
        return Verified(draft, candidates, choices_n, walk)

    def _draft(self, method: Method, state: State, seen: int) -> tree.Candidates:
        assert self.drafter is not None and state.features is not None
        self.drafter.extend(state.features, state.features_at)
        block_bh = torch.cat([self.target.embed(state.root[None]), self._masks_bh])
        hidden_bh = self.drafter.block(block_bh, state.root_at, seen)
        logits = self.target.logits(hidden_bh[1:])
        return sampling.candidates(logits, method.candidates(self.block_size), self.target.vocabulary)

    def _commit(
        self,
        request: Request,
        state: State,
        index: int,
        walk: tree.Walk,
        choices_n: Tensor,
        features_nf: Tensor | None,
    ) -> None:
        """Move the accepted path's rows together and write what the round emits, cut at a stop or the limit."""
        depths_d = torch.arange(len(walk.path_d), device=self.device)
        self.target.commit(state.root_at, walk.path_d, walk.accepted)
        tokens_d = choices_n[walk.path_d]  # after depth d comes the target's choice: a node's token, or the bonus
        stops_d = torch.isin(tokens_d, state.stop_ids) & (depths_d <= walk.accepted)
        until_stop = torch.where(stops_d, depths_d, len(depths_d)).amin() + 1
        room = request.max_new_tokens - state.written
        emitted = torch.minimum(torch.minimum(walk.accepted + 1, until_stop), room)
        emitted = torch.where(state.finished, 0, emitted)
        stopped = until_stop <= emitted
        cut = torch.where(emitted == walk.accepted + 1, 0, torch.where(stopped, 1, 2))
        state.log[index] = torch.stack([torch.minimum(walk.accepted, emitted), emitted, cut])
        state.output.index_copy_(0, state.written + depths_d, tokens_d)
        state.written += emitted
        state.finished |= stopped | (state.written == request.max_new_tokens)
        if features_nf is not None:
            state.features = features_nf[walk.path_d]
            state.features_at.copy_(state.root_at)
        state.root.copy_(tokens_d[walk.accepted])
        state.root_at += torch.where(state.finished, 0, walk.accepted + 1)

    def _finish(
        self, state: State, request: Request, clock: Clock, begin: Mark, marks: list[Mark], stages: StageClock
    ) -> Generation:
        written = int(state.written)
        log: list[list[int]] = state.log[: len(marks)].tolist()
        rounds: list[Round] = []
        total = 1
        while total < written:  # later rounds were queued before the host knew of the end
            accepted, emitted, cut = log[len(rounds)]
            rounds.append(Round(accepted, emitted, CUTS[cut]))
            total += emitted
        output = tuple(state.output[:written].tolist())
        self._agree(state.checksum)
        return Generation(
            output_ids=output,
            finish_reason="stop" if output[-1] in request.stop_ids else "length",
            rounds=tuple(rounds),
            ttft_s=clock.between(begin, marks[0]),
            decode_s=clock.between(marks[0], marks[len(rounds)]),
            tree_checksum=int(state.checksum),
            stages=stages.total(len(rounds)),
            peak_mem_bytes=self._peak_memory(),
        )

    def _peak_memory(self) -> int:
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def _agree(self, checksum: Tensor) -> None:
        """Every rank has seen the same trees, or the result means nothing."""
        seen = self.target.group.gather(checksum[None], dim=0).tolist()
        if len(set(seen)) > 1:
            raise AssertionError(f"the ranks verified different trees: checksums {seen}")

    @torch.inference_mode()
    def score(self, request: Request, output_ids: Sequence[int], tolerance: float) -> Score:
        """Teacher-force an output through the plain target in wide causal passes."""
        before = len(request.prompt_ids) - 1
        output = torch.tensor(output_ids, device=self.device)
        found: list[float] = []
        for chunk in read(self.target, (*request.prompt_ids, *output_ids[:-1])):
            rows = torch.arange(chunk.start, chunk.start + len(chunk.hidden_ch), device=self.device)
            skip = max(0, before - chunk.start)
            if skip < len(rows):
                places = rows[skip:] - before
                logits = self.target.logits(chunk.hidden_ch[skip:])
                found += sampling.gaps(
                    logits, output[places], places, request, self.target.vocabulary, tolerance
                ).tolist()
        return Score(tuple(found))

    @torch.inference_mode()
    def width_noise(self, request: Request, output_ids: Sequence[int], widths: Sequence[int]) -> tuple[float, float]:
        """What the width of a pass does to the logits that matter, on one output.

        Returns:
            The largest change of a top-2 logit between reading the output token by token and in passes of each
            width, and the largest of these logits' magnitudes.
        """
        text, before = (*request.prompt_ids, *output_ids[:-1]), len(request.prompt_ids) - 1
        list(read(self.target, text[:before]))
        prompt = self.target.snapshot()
        narrow_rv, change, size = self._logits_after(text, before, 1), 0.0, 0.0
        own = self.target.vocabulary.ids(self.device)
        for width in widths:
            self.target.restore(prompt)
            wide_rv = self._logits_after(text, before, width)
            ids_rk = sampling.candidates(wide_rv, 2, self.target.vocabulary).ids_lk
            mine_rv = (own == ids_rk[:, :1]) | (own == ids_rk[:, 1:])
            changes = torch.where(mine_rv, (wide_rv - narrow_rv).abs(), 0.0).amax()
            sizes = torch.where(mine_rv, wide_rv.abs(), 0.0).amax()
            both = self.target.group.max(torch.stack([changes, sizes])).tolist()
            change, size = max(change, both[0]), max(size, both[1])
        return change, size

    def _logits_after(self, text: Sequence[int], before: int, rows: int) -> Tensor:
        """This rank's logits, float32, after each token from position `before` on; the cache holds what is before."""
        chunks = read(self.target, text[before:], start=before, rows=rows)
        return self.target.logits(torch.cat([chunk.hidden_ch for chunk in chunks])).float()

    def _depth_limit(self, method: Method) -> int:
        return self.block_size - 1 if method.uses_drafter else 0

    def _feature_layers(self, method: Method) -> tuple[int, ...]:
        return self.drafter.config.target_layer_ids if self.drafter and method.uses_drafter else ()
