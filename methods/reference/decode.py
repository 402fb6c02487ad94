"""Answering and scoring requests: prefill, then round after round until the target stops or the limit is reached.

What a round leaves behind stays on the device; the host follows it without making it wait, and reads it when the
request ends. All ranks drive the same calls in the same order.
"""

from __future__ import annotations

import resource
import statistics
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from methods.base import Generation, Inspect, Method, Replay, Request, Round, Sampling, Score
from methods.reference import sampling
from methods.reference.clock import Clock, Follower, Mark, StageClock
from methods.reference.drafter import Drafter
from methods.reference.inspection import Inspector
from methods.reference.memory import PREFILL_ROWS
from methods.reference.parallel import up
from methods.reference.reading import SEEN_STEP, Chunk, read
from methods.reference.replay import Replayer
from methods.reference.rounds import Cycle, Runner
from methods.reference.state import CUTS, State
from methods.reference.target import Target

WARM_EACH, WARM_STEP = 96, 16  # each length below so many rows is read before the first request; then in steps
COST_TEXT, COST_ROUNDS = 512, 5  # tokens before the rounds that are timed to know what a width costs, and how many


class Decoder:
    """A target, its drafter, and the loop over rounds."""

    cycle_type: type[Cycle] = Cycle
    replayer_type: type[Replayer] = Replayer

    def __init__(self, target: Target, drafter: Drafter | None) -> None:
        self.target, self.drafter, self.device = target, drafter, target.device
        self.block_size, features = 1, None
        if drafter:
            self.block_size = drafter.config.block_size
            shape = self.block_size, len(drafter.config.target_layer_ids) * target.config.hidden
            features = torch.zeros(shape, dtype=target.dtype, device=self.device)
        self._state = State.empty(self.device, target.cache.slots, self.block_size, features)
        self._runners: dict[tuple[Method, Sampling], Runner] = {}
        self._costs: dict[Method, tuple[float, ...]] = {}
        self._pool = torch.cuda.graph_pool_handle() if self.device.type == "cuda" else None  # graphs run one at a time

    @torch.inference_mode()
    def generate(
        self, method: Method, request: Request, *, profile: bool = False, inspect: Inspect | None = None
    ) -> Generation:
        """Answer one request.

        Prefill up to the first token is `ttft_s`. The rest is `decode_s`: it begins with the drafter's context of
        the whole prompt and ends with the round that emitted the last kept token.
        """
        looks = bool(inspect and inspect.wanted)
        runner = self._runner(method, request.sampling)
        runner.prepare(self.target.cache.slots, by_stage=profile or looks)
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        clock = Clock(self.device)
        stages, state = StageClock(clock, profile), self._state
        begin = clock.mark()
        chunks = self._prefill(method, request)
        marks = [clock.mark()]
        follower = Follower(state.root_at, state.finished, len(request.prompt_ids), request.max_new_tokens == 1)
        follower.note()
        inspector = Inspector(self.target, request, inspect) if inspect and looks else None
        stages.start()
        self._feed(chunks)
        widths: list[int] = []
        while not follower.finished and len(marks) <= len(state.log):
            beyond = follower.position_limit(self.block_size) + runner.cycle.rows
            runner.run(min(up(beyond, SEEN_STEP), self.target.cache.slots), stages, by_stage=profile or looks)
            widths.append(runner.cycle.width)
            if inspector and int(state.log[len(marks) - 1, 1]):
                inspector.look(runner.cycle.verified)
            marks.append(clock.mark())
            follower.note()
        generation = self._finish(request, clock, begin, marks, stages)
        if method.adapts:
            generation = replace(generation, widths=tuple(widths[: len(generation.rounds)]))
        return replace(generation, inspected=inspector.finish(generation.output_ids)) if inspector else generation

    def _runner(self, method: Method, how: Sampling) -> Runner:
        """The round of a method and a way of choosing tokens; seeds differ by request and do not matter to it."""
        runner = self._kept(method, how)
        if method.adapts:
            runner.cycle.costs_w.copy_(torch.tensor(self.costs(method)))
        return runner

    def _kept(self, method: Method, how: Sampling) -> Runner:
        """As `_runner`, whatever its widths cost. No runner is dropped: with the last graph of a pool the pool goes,
        and no other can be captured into it."""
        key = method, replace(how, seed=0)
        if key not in self._runners:
            cycle = self.cycle_type(self.target, self.drafter, self._state, method, how)
            self._runners[key] = Runner(cycle, self.device, self._pool)
        return self._runners[key]

    @torch.inference_mode()
    def costs(self, method: Method) -> tuple[float, ...]:
        """Milliseconds of a round at each of a method's widths: as it says, else measured here, once, between requests.

        The round is a whole one, the host's reading of the choice included, behind a text of 512 tokens (fewer where
        requests are shorter); the median of a few, in which the widths take turns. Over several ranks it is the
        slowest one's, which is what all wait for.
        """
        if method not in self._costs:
            self._costs[method] = method.width_costs or self._measured(self._kept(method, Sampling()))
        return self._costs[method]

    def _measured(self, runner: Runner) -> tuple[float, ...]:
        state, clock = self._state, Clock(self.device)
        runner.prepare(self.target.cache.slots, by_stage=False)
        longest = self.target.cache.slots - runner.cycle.rows - self.block_size
        request = Request("", (0,) * max(1, min(COST_TEXT, longest)), self.block_size + 1)
        seen = min(up(len(request.prompt_ids) + runner.cycle.rows, SEEN_STEP), self.target.cache.slots)
        off, taken = StageClock(clock, on=False), []
        self.target.reset()
        for _ in range(1 + COST_ROUNDS):
            marks = []
            for at in range(len(runner.cycle.widths)):
                state.begin(request, torch.zeros_like(state.root))
                state.features_at.zero_()
                begin = clock.mark()
                runner.run(seen, off, by_stage=False, at=at)
                marks.append((begin, clock.mark()))
            taken.append([clock.between(begin, end) * 1e3 for begin, end in marks])
        medians = [statistics.median(times) for times in zip(*taken[1:], strict=True)]  # the first is warm-up
        mine = torch.tensor(medians, dtype=torch.float64, device=self.device)
        return tuple(self.target.group.max(mine).tolist())

    @torch.inference_mode()
    def warm(self) -> None:
        """Read texts of all lengths that differ in the kernels they are read with: what is compiled, loaded or planned
        at first use must not be so in a timed request."""
        if self.device.type != "cuda":
            return
        layers = self.drafter.config.target_layer_ids if self.drafter else ()
        longest, zero = min(PREFILL_ROWS, self.target.cache.slots - 1), torch.zeros_like(self._state.root)
        for n in range(1, longest + 1):
            if n < WARM_EACH or n % WARM_STEP < 2 or n == longest:
                (chunk,) = read(self.target, (0,) * n, layers)
                self.target.logits(chunk.hidden_ch[-1:])
                if self.drafter and chunk.features_cf is not None:
                    self.drafter.extend(chunk.features_cf, zero)
        self.target.reset()

    def _prefill(self, method: Method, request: Request) -> list[Chunk]:
        """Read the prompt and choose its first token; the chunks hold what the drafter is to see of it."""
        layers = self.drafter.config.target_layer_ids if self.drafter and method.uses_drafter else ()
        chunks = list(read(self.target, request.prompt_ids, layers))
        zero = torch.zeros((), dtype=torch.int64, device=self.device)
        logits = self.target.logits(chunks[-1].hidden_ch[-1:])
        noise = sampling.noise_key(request)
        root = sampling.choose(logits, zero, zero[None], request.sampling, noise, 0, self.target.vocabulary)[0]
        self._state.begin(request, root)
        return chunks

    def _feed(self, chunks: Sequence[Chunk]) -> None:
        """Give the drafter the prompt's features: all but the last block of them now, those with the first round."""
        parts = [chunk.features_cf for chunk in chunks if chunk.features_cf is not None]
        if not parts:
            return
        assert self.drafter is not None and self._state.features is not None
        features_cf, waiting = torch.cat(parts), self._state.features
        early = max(0, len(features_cf) - len(waiting))
        if early:
            self.drafter.extend(features_cf[:early], self._state.features_at.zero_())
        waiting.zero_()[: len(features_cf) - early] = features_cf[early:]  # rows beyond are overwritten unseen
        self._state.features_at.fill_(early)

    def _finish(self, request: Request, clock: Clock, begin: Mark, marks: list[Mark], stages: StageClock) -> Generation:
        state = self._state
        written = int(state.written)
        log: list[list[int]] = state.log[: len(marks)].tolist()
        done: list[Round] = []
        total = 1
        while total < written:  # later rounds were queued before the host knew of the end
            accepted, emitted, cut = log[len(done)]
            done.append(Round(accepted, emitted, CUTS[cut]))
            total += emitted
        output = tuple(state.output[:written].tolist())
        self._agree(state.checksum)
        return Generation(
            output_ids=output,
            finish_reason="stop" if output[-1] in request.stop_ids else "length",
            rounds=tuple(done),
            ttft_s=clock.between(begin, marks[0]),
            decode_s=clock.between(marks[0], marks[len(done)]),
            tree_checksum=int(state.checksum),
            stages=stages.total(len(done)),
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
    def replay(self, request: Request, output_ids: Sequence[int], budget: int) -> Replay:
        """Where an output lies in the draft trees of all its roots."""
        assert self.drafter is not None
        return self.replayer_type(self.target, self.drafter, request, output_ids, budget).run()

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
