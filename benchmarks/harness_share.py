"""The harness's own share of a run: the wall time between the first and the last call of the engine that is spent
outside it (rendering, records on disk, progress), which no headline time contains but every user waits for.

    python benchmarks/harness_share.py [device=cuda workload=full …]

The words are settings of `python -m harness`. The engine is the reference engine with a stopwatch around each call.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from methods.base import EngineSpec, Generation, Method, Request, Score
from methods.engines.reference import ReferenceEngine

OUT = "HARNESS_SHARE_OUT"


class StopwatchEngine(ReferenceEngine):
    """Writes calls, seconds inside and seconds in all to the file that the environment names, as it closes."""

    def __init__(self, spec: EngineSpec) -> None:
        super().__init__(spec)
        self._calls, self._inside = 0, 0.0
        self._first = self._last = 0.0

    def generate(self, method: Method, request: Request, **options: Any) -> Generation:
        begin = time.perf_counter()
        try:
            return super().generate(method, request, **options)
        finally:
            self._add(begin)

    def score(self, request: Request, output_ids: Sequence[int], tolerance: float = 0.0) -> Score:
        begin = time.perf_counter()
        try:
            return super().score(request, output_ids, tolerance)
        finally:
            self._add(begin)

    def _add(self, begin: float) -> None:
        self._first = self._first or begin
        self._last = time.perf_counter()
        self._calls, self._inside = self._calls + 1, self._inside + self._last - begin

    def close(self) -> None:
        if self._calls and (out := os.environ.get(OUT)):
            Path(out).write_text(f"{self._calls} {self._inside} {self._last - self._first}")
        super().close()


def main() -> None:
    root = Path(__file__).parents[1]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "share"
        engine = "engine._target_=benchmarks.harness_share.StopwatchEngine"
        command = [sys.executable, "-m", "harness", engine, f"results_dir={folder}/results", *sys.argv[1:]]
        subprocess.run(command, cwd=root, env={**os.environ, OUT: str(out)}, check=True)
        calls, inside, whole = (float(part) for part in out.read_text().split())
    print(f"{calls:.0f} calls, {whole:.2f} s from first to last, {whole - inside:.2f} s of it outside the engine:")
    print(f"the harness's share is {1 - inside / whole:.2%}")


if __name__ == "__main__":
    main()
