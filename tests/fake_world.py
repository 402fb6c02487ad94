"""A fake world for tests of the harness: an engine of milliseconds behind the real command line."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from harness.__main__ import main
from harness.config import scratch
from harness.questions import workload_of
from harness.records import read_json, sitting_lines
from harness.run import _model_fingerprint

TESTS = Path(__file__).parent
REPOSITORY = TESTS.parent
WORDS = ("red", "green", "blue", "white", "black")


@contextlib.contextmanager
def warnings_on_stderr() -> Iterator[None]:
    """What Python does where nobody collects them, so that a command that warns does not pass for a quiet one."""

    def show(message: Warning | str, category: type[Warning], file: str, line: int, *_: Any) -> None:
        sys.stderr.write(warnings.formatwarning(message, category, file, line))

    with warnings.catch_warnings():
        warnings.resetwarnings()
        for unseen in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
            warnings.simplefilter("ignore", unseen)
        warnings.showwarning = show
        yield


@dataclass(frozen=True)
class FakeWorld:
    """A folder with its own conf (`engine=fake model=fake method=faulty`), prompts and working directory."""

    folder: Path
    out: str = "out"

    @classmethod
    def make(cls, folder: Path) -> FakeWorld:
        world = cls(folder)
        world.write("conf/engine/fake.yaml", "_target_: fake_engine.FakeEngine\n")
        world.write("conf/method/faulty.yaml", "_target_: fake_engine.Faulty\nfault: none\n")
        pair = f"target: {folder}/model\ndrafter: {folder}/model\n"
        world.write("conf/model/fake.yaml", f"name: fake\n{pair}weights: checkpoint\n")
        world.write("modules/transformers.py", "from fake_engine import FakeTokenizer as AutoTokenizer\n")
        world.write("model/config.json", json.dumps({"max_position_embeddings": 128, "eos_token_id": 3}))
        world.write_prompts(WORDS)
        return world

    def write(self, name: str, text: str) -> None:
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_text(text)

    def write_prompts(self, words: tuple[str, ...]) -> None:
        prompts = [
            {"id": word, "category": "colour", "messages": [{"role": "user", "content": f"Say {word}."}]}
            for word in words
        ]
        self.write("prompts.jsonl", "".join(json.dumps(prompt) + "\n" for prompt in prompts))

    @property
    def results(self) -> Path:
        return self.folder / self.out

    @property
    def words(self) -> list[str]:
        """What every command line here begins with."""
        prompts = f"workload.path={self.folder / 'prompts.jsonl'}"
        conf = f"--config-dir={self.folder / 'conf'}"
        settings = ["engine=fake", "model=fake", "workload=file", "device=cpu", "repeats=2", "max_new_tokens=20"]
        return [conf, *settings, prompts, f"results_dir={self.results}"]

    @property
    def environment(self) -> dict[str, str]:
        path = [str(self.folder / "modules"), str(TESTS), str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
        return {"PYTHONPATH": os.pathsep.join(path), "COLUMNS": "200", "FAKE_WORLD": str(self.folder)}

    def start(self, *words: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "harness", *self.words, *words],
            cwd=self.folder,
            env={**os.environ, **self.environment, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def started(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """The command as a user starts it, to its end."""
        process = self.start(*words, **environment)
        out, err = process.communicate(timeout=60)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    @contextlib.contextmanager
    def own_modules(self) -> Iterator[None]:
        """This world's modules can be imported, and are forgotten afterwards: another world has its own."""
        folder = str(self.folder / "modules")
        try:
            with patch.object(sys, "path", [folder, *sys.path]):
                yield
        finally:
            for name, module in list(sys.modules.items()):
                if (getattr(module, "__file__", None) or "").startswith(folder):
                    del sys.modules[name]

    def run(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """The command by its own `main` in this process, as if it had just started; its cells are real processes."""
        words, out, err = (*self.words, *words), io.StringIO(), io.StringIO()
        for remembered in (scratch, workload_of, _model_fingerprint):
            remembered.cache_clear()
        with (
            contextlib.chdir(self.folder),
            patch.dict(os.environ, self.environment | environment),
            self.own_modules(),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            warnings_on_stderr(),
        ):
            status = main([*words])
        return subprocess.CompletedProcess(words, status, out.getvalue(), err.getvalue())

    @property
    def cell(self) -> Path:
        """The only cell's folder."""
        (cell,) = (self.results / "cells").iterdir()
        return cell

    def arm(self, name: str) -> dict[str, Any]:
        content: dict[str, Any] = read_json(self.cell / "arms" / f"{name}.json")
        return content

    def timed(self) -> list[dict[str, Any]]:
        return [line for line in sitting_lines(self.cell) if line["phase"] == "timed"]

    def wait_for(self, pattern: str, seconds: float = 20.0) -> None:
        """Until a file of the results matches and holds something."""
        deadline = time.monotonic() + seconds
        while not any(path.stat().st_size for path in self.results.glob(pattern)):
            assert time.monotonic() < deadline, f"no {pattern} within {seconds} s"
            time.sleep(0.01)

    def processes(self, *words: str) -> dict[int, str]:
        """The processes this world started that still run, whatever they are, by id; `words` are in their command."""
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                mine = f"FAKE_WORLD={self.folder}\0".encode() in (path / "environ").read_bytes()
                command = (path / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
            except OSError:
                continue
            if mine and command and all(word in command for word in words):
                found[int(path.name)] = command
        return found

    def assert_no_process_left(self) -> None:
        deadline = time.monotonic() + 5
        while self.processes():
            assert time.monotonic() < deadline, self.processes()
            time.sleep(0.02)
