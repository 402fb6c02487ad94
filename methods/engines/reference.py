"""The built-in engine: our own target and drafter, in this process and, for tp > 1, in one worker process a rank.

All ranks run the same calls in the same order. Rank 0 lives here and hands each call to the workers through pipes; a
worker that dies takes the engine down with its reason, and workers whose rank 0 is gone leave by themselves.

Importing this module loads no tensor library, so that a command line can be checked first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from methods.base import Engine, EngineSpec, Generation, Inspect, Method, Refusal, Replay, Request, Score
from methods.locate import BUILTIN, is_hub_id, resolve
from methods.reference.config import check_pair, drafter_config, target_config
from methods.reference.memory import PREFILL_ROWS, rank_bytes

if TYPE_CHECKING:
    from methods.reference.ranks import Ranks

DTYPES = ("float32", "bfloat16", "float16")
MANTISSA_BITS = {"bfloat16": 7, "float16": 10}
FP32_GAP = 1e-3
LARGEST_GAP = 0.5


class ReferenceEngine(Engine):
    """Qwen2, Qwen3, Qwen3-MoE, Qwen3-Next, Qwen3.5/3.6 and Llama targets with DFlash drafters, on CPU or CUDA, at tp 1,
    2, 4, 8 or 16."""

    name: ClassVar[str] = "reference"
    inspects: ClassVar[bool] = True
    replays: ClassVar[bool] = True
    adapts: ClassVar[bool] = True

    def __init__(self, spec: EngineSpec) -> None:
        super().__init__(spec)
        self._ranks: Ranks | None = None
        self._methods: tuple[Method, ...] = ()

    @classmethod
    def check(cls, spec: EngineSpec, methods: Sequence[Method]) -> None:
        target = target_config(resolve(spec.model.target, weights=False))
        target.check_ranks(spec.tp, "target")
        if spec.dtype != "auto" and spec.dtype not in DTYPES:
            raise Refusal(f"dtype={spec.dtype} is not accepted: auto, {', '.join(DTYPES)} are.")
        if spec.max_length > target.window:
            raise Refusal(
                f"prompt and output of {spec.max_length} tokens do not fit {spec.model.name}'s window of "
                f"{target.window}: fewer max_new_tokens or shorter prompts are needed."
            )
        if spec.replay or any(method.uses_drafter for method in methods):
            drafter = drafter_config(resolve(spec.model.drafter, weights=False))
            check_pair(target, drafter)
            drafter.transformer.check_ranks(spec.tp, "drafter")
        if spec.model.weights == "checkpoint":
            for reference in (spec.model.target, spec.model.drafter):
                if not is_hub_id(reference) and not any(resolve(reference).glob("*.safetensors")):
                    raise Refusal(f"{reference} holds no safetensors weights; model.weights=random needs none.")

    @classmethod
    def memory_bytes(cls, spec: EngineSpec, method: Method) -> int:
        return rank_bytes(spec, compute_dtype(spec), method)

    def open(self, methods: Sequence[Method]) -> None:
        from methods.reference.ranks import Ranks

        self._methods = tuple(methods)
        self._ranks = Ranks(self.spec, compute_dtype(self.spec), self._methods)
        self._ranks.call("warm")
        for method in self._methods:
            if method.adapts:
                self._ranks.facts[f"costs_{method.arm}"] = self._costs(method)

    def _costs(self, method: Method) -> str:
        """What a method that adapts goes by, as the text that `method.costs` takes."""
        found = self._opened.call("costs", method)
        rows = method.widths(self._opened.block_size)
        return f"{{{', '.join(f'{width - 1}: {ms:.4g}' for width, ms in zip(rows, found, strict=True))}}}"

    def generate(
        self, method: Method, request: Request, *, profile: bool = False, inspect: Inspect | None = None
    ) -> Generation:
        generation: Generation = self._opened.call("generate", method, request, profile=profile, inspect=inspect)
        return generation

    def score(self, request: Request, output_ids: Sequence[int], tolerance: float = 0.0) -> Score:
        score: Score = self._opened.call("score", request, tuple(output_ids), tolerance)
        return score

    def replay(self, request: Request, output_ids: Sequence[int], budget: int) -> Replay:
        replay: Replay = self._opened.call("replay", request, tuple(output_ids), budget)
        return replay

    def gap_tolerance(self, requests: Sequence[Request]) -> float:
        """1e-3 in float32; else what the width of a pass can do to a logit, as measured here.

        That is twice the largest change of a top-2 logit between width 1 and the widths in use, but at least one
        rounding step of the dtype at the largest of these logits (a sample may miss it), and at most 0.5.
        """
        dtype = compute_dtype(self.spec)
        if dtype == "float32":
            return FP32_GAP
        from methods.autoregressive import Autoregressive

        block = self._opened.block_size
        widths = sorted({PREFILL_ROWS, *(width for method in self._methods for width in method.widths(block))} - {1})
        tolerance = 0.0
        for request in requests:
            output = self.generate(Autoregressive(), request).output_ids
            change, size = self._opened.call("width_noise", request, output, widths)
            step = 2.0 ** (math.floor(math.log2(max(size, 1.0))) - MANTISSA_BITS[dtype])
            tolerance = max(tolerance, 2 * change, step)
        return min(tolerance, LARGEST_GAP)

    def describe(self) -> dict[str, str | int | float]:
        return {
            "engine": self.name,
            "device": self.spec.device,
            "dtype": compute_dtype(self.spec),
            "tp": self.spec.tp,
            **self._opened.facts,
        }

    def close(self) -> None:
        if self._ranks is not None:
            self._ranks.close()
            self._ranks = None

    @property
    def _opened(self) -> Ranks:
        if self._ranks is None:
            raise RuntimeError("the engine is not open")
        return self._ranks


def compute_dtype(spec: EngineSpec) -> str:
    """The dtype `auto` stands for: float32 on a CPU and for built-in pairs, else the checkpoint's."""
    if spec.dtype != "auto":
        return spec.dtype
    if spec.device == "cpu" or spec.model.target.startswith(BUILTIN):
        return "float32"
    return target_config(resolve(spec.model.target, weights=False)).dtype
