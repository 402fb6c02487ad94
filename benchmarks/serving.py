"""A serving engine's arms side by side: a server each, all of them up at once, asked in turn.

    python benchmarks/serving.py --engine sglang [--budgets 16,64,256] [--concurrency 1,4,8,16] [--overlap]
    python benchmarks/serving.py --engine vllm-cpu --budgets ''

The built-in pair's smoke prompts are answered by every arm at every concurrency, the arms in turn and in another order
each time, so that a drifting machine meets all of them; an idle server launches nothing. `tokens/s` is all output
tokens over the time from the first request to the last token, `TPOT` the median over requests; both the median over the
repetitions. The acceptance length is pooled over uncut rounds, beside the built-in engine's in the same dtype, whose
tokens/s are those of the same requests one at a time. `same rounds`: of the rounds that start at the same place of the
same text as one of the built-in engine's, the share that accepted as many tokens; of the `others` the texts part
inside the round, or the trees differ. `violations`: tokens that AR's own server would not have chosen, by more than its
tolerance. Stage times are of a pass of their own, and of a whole batch. With `--overlap` AR and DFlash stand there once
more with SGLang's overlapped scheduling, which trees do without. An arm that fails is left out, and why is said. The
last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple

import torch
from built_in import pair
from built_in import requests as prompts
from meeting import meetings
from rich.console import Console
from rich.table import Table

from harness.load import Answer, ClosedLoop, drive
from methods.autoregressive import Autoregressive
from methods.base import EngineSpec, Generation, Method, Refusal, Request, Stages
from methods.ddtree import DDTree
from methods.dflash import DFlash
from methods.engines.http import ServerError
from methods.engines.reference import ReferenceEngine
from methods.engines.scoring import ScoredEngine
from methods.engines.sglang import SglangEngine
from methods.engines.sglang_client import SglangClient
from methods.engines.sglang_ddtree.settings import STAGES
from methods.engines.vllm import VllmEngine
from methods.streaming import StreamingClient, Trace

ENGINES: dict[str, tuple[type[ScoredEngine], Literal["cpu", "cuda"]]] = {
    "sglang": (SglangEngine, "cuda"),
    "vllm": (VllmEngine, "cuda"),
    "vllm-cpu": (VllmEngine, "cpu"),
}
ALONE = {"disable_overlap_schedule": True}  # what trees need of all arms
TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Row:
    """One arm at one concurrency. Stages are milliseconds a round, where the engine tells them."""

    arm: str
    concurrency: int
    tokens_per_s: float
    tpot_ms: float
    acceptance: float
    speedup: float
    built_in: float
    built_in_per_s: float
    met: Met
    violations: int
    stages: Stages | None


@dataclass
class Arm:
    """A method's engine, which keeps one server, what it answered by concurrency, and why it answers no more."""

    name: str
    method: Method
    engine: ScoredEngine
    fault: str = ""
    speeds: dict[int, list[float]] = field(default_factory=dict)
    tpots: dict[int, list[float]] = field(default_factory=dict)
    answers: dict[int, dict[int, Generation]] = field(default_factory=dict)
    stages: dict[int, Stages] = field(default_factory=dict)  # milliseconds a round

    def tried(self, work: Callable[[], None]) -> None:
        """Do `work` unless something has failed before."""
        try:
            if not self.fault:
                work()
        except (ServerError, Refusal) as error:
            self.fault = str(error)
            print(f"{self.name} is left out: {error}", *getattr(error, "__notes__", ()), sep="\n", flush=True)

    def ask(self, requests: Sequence[Request], concurrency: int) -> None:
        found, traces = self._asked(requests, concurrency)
        seconds = max(t.last_token_s for t in traces) - min(t.started_s for t in traces)
        self.speeds.setdefault(concurrency, []).append(sum(t.n_output for t in traces) / seconds)
        self.tpots.setdefault(concurrency, []).append(statistics.median(t.tpot_s for t in traces if t.n_output > 1))
        self.answers.setdefault(concurrency, {}).update(found)

    def look(self, requests: Sequence[Request], concurrency: int) -> None:
        """Answer untimed, to warm the server at this concurrency, and again with stage times where they are told."""
        self._asked(requests, concurrency)
        if self.engine.profiles(self.method):
            found, _ = self._asked(requests, concurrency, looking=True)
            told = [asdict(one.stages) for one in found.values() if one.stages is not None]
            rounds = sum(len(one.rounds) for one in found.values())
            self.stages[concurrency] = Stages(**{name: 1e3 * sum(s[name] for s in told) / rounds for name in told[0]})

    def _asked(
        self, requests: Sequence[Request], concurrency: int, looking: bool = False
    ) -> tuple[dict[int, Generation], list[Trace]]:
        found: dict[int, Generation] = {}
        traces: list[Trace] = []

        def done(answer: Answer) -> None:
            if answer.trace.error is not None:
                raise ServerError(f"{answer.request.prompt_id}: {answer.trace.error}")
            found[answer.index] = self.engine.finished(answer.chunks, answer.trace.e2e_s)
            traces.append(answer.trace)

        async def work(client: StreamingClient) -> None:
            if looking and isinstance(client, SglangClient):
                client = replace(client, asked=(STAGES,))
            await drive(client, requests, ClosedLoop(concurrency), done, TIMEOUT_S)

        self.engine.crowd(self.method, work)
        return found, traces


class Met(NamedTuple):
    """Rounds of two answers that start at the same place of the same text: as many tokens accepted, or not, since the
    texts part inside the round (two tokens of the target nearly tie) or else the trees held different nodes."""

    alike: int = 0
    parted: int = 0
    other_tree: int = 0

    @classmethod
    def of(cls, one: Generation, other: Generation) -> Met:
        found = [0, 0, 0]
        for met in meetings(one, other):
            found[0 if met.one == met.other else 1 if met.parted else 2] += 1
        return cls(*found)


def pooled(generations: Sequence[Generation]) -> float:
    accepted = [one.accepted for generation in generations for one in generation.rounds if not one.cut]
    return 1 + statistics.fmean(accepted) if accepted else 1.0


def measure(arms: Sequence[Arm], requests: Sequence[Request], concurrency: int, repeats: int) -> None:
    asked = [requests[i % len(requests)] for i in range(max(len(requests), 2 * concurrency))]
    for arm in arms:
        arm.tried(partial(arm.look, asked, concurrency))
    for turn in range(repeats):
        turned = [*arms[turn % len(arms) :], *arms[: turn % len(arms)]]
        for arm in turned if turn % 2 == 0 else reversed(turned):
            arm.tried(partial(arm.ask, asked, concurrency))


def rows(
    arms: Sequence[Arm], requests: Sequence[Request], built_in: dict[str, list[Generation]], concurrency: int
) -> list[Row]:
    plain, found = arms[0], []
    tolerance = plain.engine.gap_tolerance(requests[:2])
    wrong = cache(lambda place, output: plain.engine.score(requests[place], output).true_violations(tolerance))
    base = statistics.median(plain.speeds[concurrency])
    for arm in arms:
        if arm.fault:
            continue
        answers = [(index % len(requests), answer) for index, answer in sorted(arm.answers[concurrency].items())]
        own = built_in[arm.method.arm]
        speed = statistics.median(arm.speeds[concurrency])
        found.append(
            Row(
                arm=arm.name,
                concurrency=concurrency,
                tokens_per_s=speed,
                tpot_ms=1e3 * statistics.median(arm.tpots[concurrency]),
                acceptance=pooled([answer for _, answer in answers]),
                speedup=speed / base,
                built_in=pooled([own[place] for place, _ in answers]),
                built_in_per_s=sum(len(one.output_ids) for one in own) / sum(one.ttft_s + one.decode_s for one in own),
                met=Met(*map(sum, zip(*(Met.of(answer, own[place]) for place, answer in answers), strict=True))),
                violations=sum(wrong(place, answer.output_ids) for place, answer in answers),
                stages=arm.stages.get(concurrency),
            )
        )
    return found


def reference(spec: EngineSpec) -> ReferenceEngine:
    """The built-in engine, in the same dtype on the same device."""
    return ReferenceEngine(EngineSpec(spec.model, device=spec.device, dtype=spec.dtype, max_length=spec.max_length))


def show(found: Sequence[Row], title: str) -> None:
    table = Table(
        *("arm", "tokens/s", "÷ AR", "TPOT", "acceptance", "built-in's", "its tokens/s", "same rounds", "others"),
        *("violations", "draft", "build", "verify", "commit"),
        title=title,
    )
    for row in found:
        stages = list(asdict(row.stages).values()) if row.stages else []
        table.add_row(
            row.arm,
            f"{row.tokens_per_s:.0f}",
            f"{row.speedup:.2f}",
            f"{row.tpot_ms:.2f}",
            f"{row.acceptance:.2f}",
            f"{row.built_in:.2f}",
            f"{row.built_in_per_s:.0f}",
            f"{row.met.alike / sum(row.met):.1%} of {sum(row.met)}" if sum(row.met) else "–",
            f"{row.met.parted}, {row.met.other_tree}",
            str(row.violations),
            *([f"{ms:.2f}" for ms in stages] or ["–"] * 4),
        )
    console = Console(width=180)
    console.print(table)
    console.print("milliseconds; stages a round; acceptance: tokens a round, the bonus counted")


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--engine", choices=ENGINES, default="sglang")
    parser.add_argument("--model", default="tiny", help="a built-in pair")
    parser.add_argument("--python", default=None, help="starts the servers; else the engine's own environment")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--budgets", default="16,64,256", help="of DDTree's arms; '' for none")
    parser.add_argument("--concurrency", default="1,4,8,16")
    parser.add_argument("--overlap", action="store_true", help="AR and DFlash once more with overlapped scheduling")
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--logs", default=None, help="a folder for the servers' logs")
    parser.add_argument("--args", default="", help="NAME=VALUE,… for every server")
    return parser.parse_args()


def start(arms: Sequence[Arm], requests: Sequence[Request], stack: ExitStack) -> dict[str, list[Generation]]:
    """Start all servers at once, and ask the built-in engine, to warm it and again when nothing starts any more."""
    methods = list(dict.fromkeys(arm.method for arm in arms))
    for arm in arms:
        assert arm.engine.spec.logs is not None
        Path(arm.engine.spec.logs).mkdir(parents=True, exist_ok=True)
        stack.enter_context(arm.engine)
    with ThreadPoolExecutor(len(arms)) as pool, reference(arms[0].engine.spec) as built_in:
        # every server is made for the widest arm
        opened = [pool.submit(arm.tried, partial(arm.engine.open, [arm.method, *methods])) for arm in arms]
        built_in.open(methods)
        for _ in range(2):
            answers = {each.arm: [built_in.generate(each, request) for request in requests] for each in methods}
            for one in opened:
                one.result()
    print(f"{sum(not arm.fault for arm in arms)} of {len(arms)} servers are up", flush=True)
    return answers


def main() -> None:
    given = options()
    engine, device = ENGINES[given.engine]
    words = (word.partition("=")[::2] for word in given.args.split(",") if word)
    args: dict[str, Any] = {name: True if value == "true" else value for name, value in words}
    sizes = [int(size) for size in given.concurrency.split(",")]
    model = pair(given.model)
    requests = prompts(model, given.tokens)
    methods = [Autoregressive(), DFlash(), *(DDTree(int(budget)) for budget in given.budgets.split(",") if budget)]
    overlapped = EngineSpec(
        model,
        tp=given.tp,
        device=device,
        dtype=given.dtype,
        max_length=max(len(request.prompt_ids) for request in requests) + given.tokens,
        python=given.python,
        args=tuple(args.items()),
        concurrency=max(sizes),
    )
    alone = ALONE if issubclass(engine, SglangEngine) else {}
    spec = replace(overlapped, args=tuple({**args, **alone}.items()))
    try:
        engine.check(spec, methods)
    except Refusal as refusal:
        raise SystemExit(str(refusal)) from None
    named = [(method.arm, method, spec) for method in methods]
    if given.overlap:
        named += [(f"{method.arm}+overlap", method, overlapped) for method in methods[:2]]
    with ExitStack() as stack:
        logs = Path(given.logs or stack.enter_context(TemporaryDirectory()))
        arms = [Arm(name, method, engine(replace(its, logs=str(logs / name)))) for name, method, its in named]
        built_in = start(arms, requests, stack)
        where, found = torch.cuda.get_device_name() if device == "cuda" else "CPU", list[Row]()
        for size in sizes:  # a table each, so that what was measured is seen whatever comes after
            measure(arms, requests, size, given.repeats)
            if arms[0].fault:
                raise SystemExit(1)
            these = rows(arms, requests, built_in, size)
            show(these, f"{given.engine}, {model.name}, {given.dtype}, tp {given.tp}, {where}, concurrency {size}")
            found += these
        facts = arms[0].engine.describe()
    print(json.dumps({"rows": [asdict(row) for row in found], "facts": facts, "device": where}))


if __name__ == "__main__":
    main()
