"""The words every room shares: what is asked (`Request`), what a round did (`Round`), what came back
(`Generation`), and the two contracts behind them: a `Method` proposes drafts, an `Engine` runs them.

This module imports nothing heavy, so that the command line can name, check and print methods and
engines without loading a tensor library.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

    from methods.reference.tree import Candidates, Tree

Cut = Literal["", "stop", "length"]
FinishReason = Literal["stop", "length"]


class Refusal(ValueError):
    """A request the user can mend: one sentence naming the setting, the value and what is accepted."""


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen: 0 is the argmax, above 0 keyed Gumbel noise over the filtered logits.

    `top_k` 0 and `top_p` 1 switch their filters off.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise Refusal(f"temperature={self.temperature} is not accepted: a number of at least 0 is.")
        if not 0 < self.top_p <= 1:
            raise Refusal(f"top_p={self.top_p} is not accepted: a number above 0 and at most 1 is.")
        if self.top_k < 0:
            raise Refusal(f"top_k={self.top_k} is not accepted: 0 (off) or a positive integer is.")


@dataclass(frozen=True)
class Request:
    """One prompt to answer, already rendered to token ids. `stop_ids` end the output, inclusively."""

    prompt_id: str
    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    stop_ids: tuple[int, ...] = ()
    turn: int = 0
    sampling: Sampling = field(default_factory=Sampling)

    def __post_init__(self) -> None:
        if not self.prompt_ids:
            raise Refusal(f"prompt {self.prompt_id!r} is empty: at least one token is needed.")
        if self.max_new_tokens < 1:
            raise Refusal(f"max_new_tokens={self.max_new_tokens} is not accepted: an integer of at least 1 is.")


class Round(NamedTuple):
    """One draft → build → verify → commit cycle, after any cut (root and bonus are not in `accepted`)."""

    accepted: int
    emitted: int
    cut: Cut


@dataclass(frozen=True)
class Stages:
    """Seconds per stage summed over the rounds of a profiled request (never of a timed one)."""

    draft_s: float
    build_s: float
    verify_s: float
    commit_s: float


@dataclass(frozen=True)
class Inspect:
    """What to look at round by round, in a pass whose times are no headline.

    `oracle_rate`: the share of rounds whose tree a sequential oracle checks, with `tolerance` in logits.
    `shadow_linear`: what the drafter's first choices alone would have had accepted in each round.
    `dump_rounds`: every round's tree.
    """

    oracle_rate: float = 0.0
    shadow_linear: bool = False
    dump_rounds: bool = False
    tolerance: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.oracle_rate <= 1:
            raise Refusal(f"oracle_rate={self.oracle_rate} is not accepted: a number from 0 to 1 is.")

    @property
    def wanted(self) -> bool:
        return self.oracle_rate > 0 or self.shadow_linear or self.dump_rounds


INSPECTIONS = ("oracle_rate", "shadow_linear", "dump_rounds")


class OracleCheck(NamedTuple):
    """Some nodes of a round's tree decoded one by one: how many, by how much at most the plain target preferred its
    own choice to the verify pass's (logits), and at how many nodes by more than the tolerance."""

    nodes: int
    max_gap: float
    disagreements: int


class TreeDump(NamedTuple):
    """A round's tree, the root as row 0: `log_probs` are the nodes' own, `path` the accepted rows."""

    root_at: int
    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    depths: tuple[int, ...]
    log_probs: tuple[float, ...]
    path: tuple[int, ...]
    bonus: int


class Unchecked(NamedTuple):
    """Nodes of a round's tree that an oracle is still to judge, where it is another server: the root as row 0, each
    row's parent among them, and what the verify pass chose after it."""

    root_at: int
    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    choices: tuple[int, ...]


class Inspected(NamedTuple):
    """What `Inspect` asked of one round; `accepted` is before any cut. In place of `oracle`, `unchecked` is what
    `Engine.oracle` makes it of."""

    accepted: int
    oracle: OracleCheck | None = None
    shadow_accepted: int | None = None
    tree: TreeDump | None = None
    unchecked: Unchecked | None = None


@dataclass(frozen=True)
class Generation:
    """One answered request. Times are in seconds; `decode_s` covers every token after the first.

    `tree_checksum` is a running checksum of every tree the request was verified with, equal on all ranks (0 where
    none is kept). `peak_mem_bytes` is the most device memory in use during the request on a GPU, else the
    process's peak so far; of rank 0. `inspected` has an entry a round where that was asked for, `widths` the rows of
    each round's verify pass where the method adapts them.
    """

    output_ids: tuple[int, ...]
    finish_reason: FinishReason
    rounds: tuple[Round, ...]
    ttft_s: float
    decode_s: float
    tree_checksum: int = 0
    stages: Stages | None = None
    peak_mem_bytes: int | None = None
    inspected: tuple[Inspected, ...] | None = None
    widths: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        emitted = sum(r.emitted for r in self.rounds)
        if 1 + emitted != len(self.output_ids):
            raise AssertionError(f"1 + {emitted} emitted tokens do not make {len(self.output_ids)} output tokens")

    @property
    def tpot_s(self) -> float:
        """Seconds per output token after the first; NaN for a single token."""
        later = len(self.output_ids) - 1
        return self.decode_s / later if later else math.nan

    @property
    def e2e_s(self) -> float:
        return self.ttft_s + self.decode_s


@dataclass(frozen=True)
class Score:
    """An output teacher-forced through the plain target.

    `gaps[t]` is by how much, in logits, the target preferred its own choice at output position t to the
    token there (0 where they agree, infinity where sampling could not have given it).
    """

    gaps: tuple[float, ...]

    @property
    def max_gap(self) -> float:
        return max(self.gaps, default=0.0)

    @property
    def first_divergence(self) -> int | None:
        return next((t for t, gap in enumerate(self.gaps) if gap > 0), None)

    def near_ties(self, tolerance: float) -> int:
        return sum(0 < gap <= tolerance for gap in self.gaps)

    def true_violations(self, tolerance: float) -> int:
        return sum(not gap <= tolerance for gap in self.gaps)


@dataclass(frozen=True)
class Replay:
    """Where one text lies in the draft trees of all its roots: the rounds of every budget up to `budget` follow.

    Root j is output token j; the last token is no root. `places[j]` has the place (from 1) of the text's own
    continuation at depth 1, 2, … in the best-first tree of `budget` nodes that is drafted there, as deep as the tree
    holds it. The places rise, and the tree of a smaller budget is the beginning of this one, so it holds as many of
    them as are at most its budget. `chain[j]` is how much of the continuation the drafter's first choices hold. The
    continuation ends with the text.
    """

    budget: int
    places: tuple[tuple[int, ...], ...]
    chain: tuple[int, ...]
    seconds: float

    def __post_init__(self) -> None:
        if len(self.places) != len(self.chain):
            raise AssertionError(f"{len(self.places)} roots have places, {len(self.chain)} a chain")


class Method(ABC):
    """How a round's draft is proposed. One method a file; a subclass is a frozen dataclass whose fields are
    its settings, so that a YAML of the same keys with a `_target_` is all it takes to add one.

    A method that reads no draft (`uses_drafter = False`) proposes nothing: every round verifies the root
    alone, which is autoregressive decoding.
    """

    name: ClassVar[str]
    uses_drafter: ClassVar[bool] = True

    @property
    def arm(self) -> str:
        """The arm's name in tables: the method and what distinguishes its settings."""
        return self.name

    @property
    def node_budget(self) -> int | None:
        """The number of non-root nodes asked for; None where a method has no budget."""
        return None

    @abstractmethod
    def width(self, block_size: int) -> int:
        """Rows of the verify pass, root included, for a drafter of this block size."""

    @property
    def adapts(self) -> bool:
        """Whether each round is verified at one of several widths, which `choose` picks once its tree is built."""
        return False

    def widths(self, block_size: int) -> tuple[int, ...]:
        """The rows that a verify pass may have, ascending; the last is `width`."""
        return (self.width(block_size),)

    @property
    def width_costs(self) -> tuple[float, ...] | None:
        """Milliseconds of a round at each of `widths`, where they are a setting; None: the engine measures them."""
        return None

    def choose(self, draft: Tree, costs_w: Tensor) -> Tensor:
        """Of a method that adapts: which of `widths` this round is verified at. A 0-dim int64 index.

        The tree's first so many rows must be a tree. Static shapes and no reading of values on the host, as in `build`.

        Args:
            draft: what `build` made, of `width` rows.
            costs_w: milliseconds of a round at each width, float64.
        """
        raise NotImplementedError(f"{self.arm} has one width")

    def candidates(self, block_size: int) -> int:
        """How many tokens per position `build` chooses from; the vocabulary's size caps it."""
        return self.width(block_size) - 1

    @abstractmethod
    def build(self, candidates: Candidates | None, root: Tensor) -> Tree:
        """The draft tree for one round, of `width` rows.

        Static shapes and no reading of values on the host, so that the round can be captured in a CUDA graph.

        Args:
            candidates: `log_probs_lk` and `ids_lk`, each [block_size − 1, k], best first; None without a drafter.
            root: the root's token id, a 0-dimensional int64 tensor.
        """


Weights = Literal["checkpoint", "random"]


@dataclass(frozen=True)
class ModelSpec:
    """A target and its drafter: a folder, a hub id, or `builtin:NAME/target`. `weights=random` keeps only the shape."""

    name: str
    target: str
    drafter: str
    weights: Weights = "checkpoint"


@dataclass(frozen=True)
class EngineSpec:
    """All an engine needs before it opens. `device` is `cpu` or `cuda`, `dtype` a torch name or `auto`, `replay` the
    largest budget of replays, 0 if there will be none, `concurrency` the most requests that are answered at once. For
    an engine with servers: `python` starts them (None: that of its own environment), `args` go to them as they are,
    their logs go to the folder `logs`, `urls` names the ones that run already, by arm, and with `simulate_acceptance`
    they accept so many tokens a round, whatever was drafted."""

    model: ModelSpec
    tp: int = 1
    device: Literal["cpu", "cuda"] = "cpu"
    dtype: str = "auto"
    max_length: int = 4096
    seed: int = 0
    replay: int = 0
    python: str | None = None
    args: tuple[tuple[str, str | int | float | bool], ...] = ()
    logs: str | None = None
    concurrency: int = 1
    urls: tuple[tuple[str, str], ...] = ()
    simulate_acceptance: float | None = None


Verify = Literal["exact", "rejection"]


class Engine(ABC):
    """Runs methods on a target. Life: `check` → constructor → `open` → `generate`* → `close`."""

    name: ClassVar[str]
    inspects: ClassVar[bool] = False  # whether `generate` can look into its rounds
    replays: ClassVar[bool] = False  # whether it has `replay`
    samples: ClassVar[bool] = True  # whether it chooses tokens at temperatures above 0
    crowds: ClassVar[bool] = False  # whether it answers many requests at once; then it is a `methods.streaming.Crowded`
    adapts: ClassVar[bool] = False  # whether a method may choose the width of each verify pass
    simulates: ClassVar[bool] = False  # whether it can accept tokens whatever was drafted
    blocks: ClassVar[bool] = False  # whether it runs servers, one at a time, so that arms had better run as blocks

    def __init__(self, spec: EngineSpec) -> None:
        self.spec = spec

    @classmethod
    @abstractmethod
    def check(cls, spec: EngineSpec, methods: Sequence[Method]) -> None:
        """Raise a `Refusal` for whatever this engine cannot do, reading config files only."""

    @classmethod
    @abstractmethod
    def memory_bytes(cls, spec: EngineSpec, method: Method) -> int:
        """Bytes that one rank needs to run `method`, from config files only."""

    @classmethod
    def profiles(cls, method: Method) -> bool:
        """Whether `generate` can time this method's stages and look into its rounds."""
        return True

    @classmethod
    def verify(cls, spec: EngineSpec, method: Method, sampling: Sampling) -> Verify | None:
        """How drafts are verified: `exact` where a drafted token has to be the one that the target chooses, with
        contract 1's noise above temperature 0; `rejection` where it is kept or drawn anew with the probabilities that
        leave the target's distribution as it is. None for a method that drafts nothing. Arms of unlike verification
        have unlike acceptance."""
        return "exact" if method.uses_drafter else None

    @classmethod
    def judges(cls, spec: EngineSpec, sampling: Sampling) -> bool:
        """Whether `score` can tell if an output is the target's own; where it cannot, outputs stay unchecked."""
        return True

    @abstractmethod
    def open(self, methods: Sequence[Method]) -> None:
        """Load the weights and reserve memory for requests of up to `spec.max_length` tokens in all."""

    @abstractmethod
    def generate(
        self, method: Method, request: Request, *, profile: bool = False, inspect: Inspect | None = None
    ) -> Generation:
        """Answer one request. With `profile` the stages are timed, which costs synchronisation; with `inspect` rounds
        are looked at in between, which costs far more."""

    @abstractmethod
    def score(self, request: Request, output_ids: Sequence[int], tolerance: float = 0.0) -> Score:
        """Teacher-force an output through the plain target. `tolerance` (logits) widens the edge of the
        top-k/top-p filters, whose membership rounding can flip as it flips a near tie."""

    def oracle(self, text: Sequence[int], unchecked: Unchecked, tolerance: float) -> OracleCheck:
        """Judge what `generate` left unchecked of a round of a text, prompt and output."""
        raise NotImplementedError(f"engine={self.name} leaves no round unchecked")

    def replay(self, request: Request, output_ids: Sequence[int], budget: int) -> Replay:
        """Draft at every root of an output, whichever rounds it came in, and find the output in the trees."""
        raise Refusal(f"replay={budget} is not accepted: engine={self.name} cannot replay a text.")

    @abstractmethod
    def gap_tolerance(self, requests: Sequence[Request]) -> float:
        """The gap, in logits, that counts as a near tie on this engine, measured on warm-up requests."""

    @abstractmethod
    def describe(self) -> dict[str, str | int | float]:
        """Facts for the records: dtype, device, bytes per rank and the like; the harness adds hashes and versions."""

    @abstractmethod
    def close(self) -> None:
        """Release everything; safe to call twice."""

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
