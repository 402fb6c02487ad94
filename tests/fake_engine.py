"""A millisecond engine and methods with faults, for tests of the harness alone: no tensor library, no weights.

It follows the contracts: every arm's output is the same function of the prompt, and a round emits up to
`method.width` tokens. Faults live in methods, so that a test asks for them like for any other method.
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from methods.base import (
    Engine,
    Generation,
    Inspect,
    Inspected,
    Method,
    OracleCheck,
    Refusal,
    Replay,
    Request,
    Round,
    Score,
    Stages,
    TreeDump,
)

BLOCK = 8
REQUEST_S = float(os.environ.get("FAKE_REQUEST_S", "0.001"))
REPLAY_S = float(os.environ.get("FAKE_REPLAY_S", REQUEST_S))
ROW_S = float(os.environ.get("FAKE_ROW_S", "0"))  # what each row of a verify pass costs; 0: all arms are equally fast


class FakeTokenizer:
    """Bytes as ids; what harness.cell and workloads.render ask of a transformers tokenizer."""

    chat_template = "messages, tools"
    eos_token_id = 3

    @classmethod
    def from_pretrained(cls, folder: str) -> FakeTokenizer:
        assert (Path(folder) / "config.json").is_file()
        return cls()

    def get_chat_template(self, chat_template: Any = None, tools: Any = None) -> str:
        return self.chat_template

    def apply_chat_template(self, conversation: list[dict[str, str]], **options: Any) -> list[int]:
        return list("".join(message["content"] for message in conversation).encode())[:512]

    def decode(self, ids: list[int], skip_special_tokens: bool = False) -> str:
        return " ".join(map(str, ids))


class FakeEngine(Engine):
    """Output token t is a hash of prompt, seed and t."""

    name: ClassVar[str] = "fake"
    inspects: ClassVar[bool] = True
    replays: ClassVar[bool] = True

    @classmethod
    def check(cls, spec, methods) -> None:
        if spec.tp > 2:
            raise Refusal(f"tp={spec.tp} is not accepted: 1 or 2 is.")

    @classmethod
    def memory_bytes(cls, spec, method) -> int:
        return 2**60 if getattr(method, "fault", "") == "huge" else 2**20

    def open(self, methods) -> None:
        if os.environ.get("FAKE_OPEN_FAILS"):
            raise MemoryError("no room for the weights")

    def generate(self, method, request, *, profile=False, inspect=None) -> Generation:
        time.sleep(REQUEST_S)
        fault = getattr(method, "fault", "")
        if fault == "raise" or (fault == "profile" and profile):
            raise RuntimeError("the draft went wrong")
        if fault == "hang":
            subprocess.Popen(["sleep", "600"])  # a worker that has to go too
            time.sleep(600)
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        output = truth(request)
        if fault == "lie":
            output = (*output[:-1], output[-1] + 1)
        done = rounds(len(output), method.width(BLOCK))
        stages = Stages(0.001, 0.002, 0.003, 0.004) if profile else None
        seen = tuple(look(one, inspect, fault) for one in done) if inspect and inspect.wanted else None
        decode_s = len(done) * (0.002 + ROW_S * method.width(BLOCK)) if ROW_S else 0.002 * len(output)
        return Generation(output, "length", done, 0.001, decode_s, 7, stages, None, seen)

    def score(self, request, output_ids, tolerance=0.0) -> Score:
        right = truth(request)
        return Score(tuple(0.0 if mine == true else 9.0 for mine, true in zip(output_ids, right, strict=True)))

    def replay(self, request, output_ids, budget) -> Replay:
        """What `rounds` says of every width: half of it is accepted, at most BLOCK − 1."""
        time.sleep(REPLAY_S)
        if os.environ.get("FAKE_REPLAY_FAILS") == request.prompt_id:
            raise RuntimeError("the replay went wrong")
        left = [len(output_ids) - 1 - root for root in range(len(output_ids) - 1)]
        places = tuple(tuple(2 * d for d in range(1, min(BLOCK - 1, n, budget // 2) + 1)) for n in left)
        return Replay(budget, places, tuple(min(n, (BLOCK - 1) // 2) for n in left), 0.5)

    def gap_tolerance(self, requests) -> float:
        assert requests
        return 1e-3

    def describe(self) -> dict[str, str | int | float]:
        return {"dtype": "float32"}

    def close(self) -> None:
        pass


class BlindEngine(FakeEngine):
    """Cannot look into its rounds or replay a text."""

    name: ClassVar[str] = "blind"
    inspects: ClassVar[bool] = False
    replays: ClassVar[bool] = False


def look(one: Round, inspect: Inspect, fault: str) -> Inspected:
    """As if the oracle had looked at every round; the fault `branch` lies on a rejected one."""
    gap = 2.0 if fault == "branch" else 0.0
    check = OracleCheck(5, gap, int(gap > inspect.tolerance)) if inspect.oracle_rate else None
    tree = TreeDump(3, (1, 2), (0, 0), (0, 1), (0.0, -0.5), (0,), 9) if inspect.dump_rounds else None
    return Inspected(one.accepted, check, 1 if inspect.shadow_linear else None, tree)


def truth(request: Request) -> tuple[int, ...]:
    seed = f"{request.prompt_ids}{request.sampling.seed}{os.environ.get('FAKE_SALT', '')}"
    return tuple(hashlib.sha256(f"{seed}{t}".encode()).digest()[0] for t in range(request.max_new_tokens))


def rounds(n_output: int, width: int) -> tuple[Round, ...]:
    """As if every round accepted half of its width, cut at the length limit."""
    done, left = [], n_output - 1
    while left:
        wanted = 1 + min(BLOCK - 1, (width - 1) // 2)
        emitted = min(wanted, left)
        cut = "length" if emitted < wanted else ""
        done.append(Round(emitted if cut else wanted - 1, emitted, cut))
        left -= emitted
    return tuple(done)


@dataclass(frozen=True)
class Faulty(Method):
    """A method whose requests go wrong as `fault` says: raise, hang, kill, lie, huge (no room
    for it), profile (raises in the profiled pass only), branch (wrong on rejected branches), or nothing for `none`."""

    fault: str = "none"
    name: ClassVar[str] = "faulty"

    @property
    def arm(self) -> str:
        return f"faulty-{self.fault}"

    def width(self, block_size: int) -> int:
        return block_size

    def build(self, candidates, root):
        raise NotImplementedError
