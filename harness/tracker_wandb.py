"""Weights & Biases as a tracker: one run a cell, continued when the cell is taken up again, grouped by command.

While a cell runs, every arm's tokens/s and acceptance length so far; when it ends, every arm's figures in the summary,
curves over the budget, a table of arms and one of requests, and the files as an artifact. Everything comes from the
results folder and can be told again from there. Only this file knows wandb.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import netrc
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit
from uuid import uuid4

from harness.progress import Rate
from harness.records import read_json, write_json
from harness.sitting import Event
from harness.tracker import Listener, Tracker
from methods.base import Refusal

if TYPE_CHECKING:
    import pandas as pd

MODES = ("auto", "online", "offline", "disabled")
LIVE_EVERY_S = 1.0
MOST_ROWS = 10_000  # of the table of requests
LONGEST_TAG = 64
INIT_TIMEOUT_S = 20.0
CURVES = (
    *("acceptance_length", "tokens_per_round", "speedup", "speedup_low", "speedup_high"),
    *("tokens_per_s", "tpot_s", "step_s", "draft_s", "build_s", "verify_s", "commit_s"),
)
SUMMARY = (
    *("status", "budget", "n_requests", *CURVES, "speedup_e2e", "ttft_s", "tpot_p95_s", "e2e_s"),
    *("tokens_per_s_per_user", "tokens_per_s_per_gpu", "peak_mem_bytes", "near_ties", "true_violations", "drift"),
)
FILES = ("cell.json", "status.json", "arms/*.json", "requests.parquet", "rounds.parquet", "sittings/*/environment.json")


@dataclass(frozen=True)
class WandbTracker(Tracker):
    """The settings under `tracker.*`; conf/tracker/wandb.yaml says what they mean."""

    project: str = "draft-tree-harness"
    entity: str | None = None
    mode: str = "auto"
    tags: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise Refusal(f"tracker.mode={self.mode} is not accepted: {', '.join(MODES[:-1])} or {MODES[-1]} is.")
        if not self.project.strip():
            raise Refusal("tracker.project is not accepted: it is empty; a project's name is.")

    def check(self) -> None:
        found = importlib.util.find_spec("wandb")
        if found is None or found.origin is None:  # a folder of runs called wandb looks like a package without a file
            raise Refusal("tracker=wandb needs the package wandb: `pip install wandb` gets it.")
        if self.mode == "online" and not has_key():
            raise Refusal("tracker.mode=online needs a key: `wandb login` asks for it; tracker.mode=offline does not.")

    def listener(self, sweep: str) -> Listener:
        return WandbListener(self, sweep)


def has_key() -> bool:
    """Whether wandb will find a key where it looks for one; the key itself is of no interest here."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai").hostname or ""
    places = [os.environ["NETRC"]] if "NETRC" in os.environ else ["~/.netrc", "~/_netrc"]
    for place in map(os.path.expanduser, places):
        try:
            if netrc.netrc(place).authenticators(host):
                return True
        except (OSError, netrc.NetrcParseError):
            continue
    return False


class WandbListener(Listener):
    """Tells wandb of one cell after the other."""

    def __init__(self, tracker: WandbTracker, sweep: str) -> None:
        self._wandb: Any = importlib.import_module("wandb")
        self._tracker, self._sweep = tracker, sweep
        self._run: Any = None
        self._rates: dict[str, Rate] = {}
        self._requests, self._told, self._unreachable = 0, 0.0, False
        self._offline: list[Path] = []

    def cell_began(self, cell_folder: Path, requests: int) -> str | None:
        self._rates, self._requests, self._told = {}, requests, 0.0
        mode, said = self._mode(), None
        try:
            self._run = self._init(cell_folder, mode)
        except self._wandb.errors.Error as error:
            if mode == "offline":
                raise
            self._unreachable = True
            said = f"wandb cannot be reached ({' '.join(str(error).split())}): what follows is kept offline."
            self._wandb.teardown()  # its service still holds the id
            mode, self._run = "offline", self._init(cell_folder, "offline")
        for metrics, axis in (("live/*", "live/request"), ("by_budget/*", "budget")):
            self._run.define_metric(axis, hidden=True)
            self._run.define_metric(metrics, step_metric=axis)
        if mode == "offline":
            self._offline.append(Path(self._run.settings.sync_dir))
        elif mode == "online":
            said = f"wandb: {self._run.url}"
        return said

    def request_ended(self, event: Event) -> None:
        if event.arm is not None:
            self._requests += 1
            self._rates.setdefault(event.arm, Rate()).add(event)
            if time.monotonic() - self._told >= LIVE_EVERY_S:
                self._tell_live()

    def arm_ended(self, cell_folder: Path, arm: str, status: str) -> None:
        if self._run is not None:
            self._run.summary[f"{arm}/status"] = status

    def cell_ended(self, cell_folder: Path) -> str | None:
        try:
            if self._run is not None:
                self._tell_live()
                self._tell_figures(cell_folder)
        finally:
            self._finish()
        return None

    def close(self) -> str | None:
        self._finish()
        if not self._offline:
            return None
        folders = (
            " ".join(map(str, self._offline)) if len(self._offline) < 4 else f"{self._offline[0].parent}/offline-*"
        )
        return f"wandb: offline; `wandb sync {folders}` sends it."

    def _mode(self) -> str:
        if self._unreachable:
            return "offline"
        if self._tracker.mode != "auto":
            return self._tracker.mode
        return os.environ.get("WANDB_MODE") or ("online" if has_key() else "offline")

    def _init(self, cell_folder: Path, mode: str) -> Any:
        """The cell's run. It is told nothing of the machine but what environment.json holds, where secrets are left
        out, and samples nothing, which would take time from what is measured."""
        cell = read_json(cell_folder / "cell.json")
        settings = cell["settings"]
        workload = cell.get("workload_name") or settings["workload"]
        words = [settings["model"], workload, settings["engine"], f"tp{settings['tp']}"]
        arms = {arm["arm"]: arm["settings"] for arm in map(read_json, sorted(cell_folder.glob("arms/*.json")))}
        return self._wandb.init(
            project=self._tracker.project,
            entity=self._tracker.entity,
            group=self._sweep,
            job_type="cell",
            id=run_id(cell_folder),
            resume="allow" if mode == "online" else None,
            name=f"{settings['model']} {workload} tp={settings['tp']} T={settings['temperature']:g}",
            tags=[word[:LONGEST_TAG] for word in (*self._tracker.tags, *words) if word],
            config={"cell_id": cell["cell_id"], **settings, "workload_name": workload, "arms": arms},
            mode=mode,
            dir=str(cell_folder.resolve().parents[1]),
            settings=self._wandb.Settings(
                console="off",
                silent=True,
                save_code=False,
                disable_git=True,
                init_timeout=INIT_TIMEOUT_S,
                x_disable_stats=True,
                x_disable_meta=True,
                x_disable_machine_info=True,
                x_save_requirements=False,
            ),
        )

    def _tell_live(self) -> None:
        if self._run is None or not self._rates:
            return
        self._told = time.monotonic()
        live = {
            f"live/{arm}/{name}": value
            for arm, rate in self._rates.items()
            for name, value in (("tokens_per_s", rate.tokens_per_s), ("acceptance_length", rate.acceptance_length))
            if not math.isnan(value)
        }
        self._run.log({"live/request": self._requests, **live})

    def _tell_figures(self, cell_folder: Path) -> None:
        from analysis import load_requests, load_runs

        runs = load_runs(cell_folder, unfinished=True)
        for row in _rows(runs):
            self._run.summary.update({f"{row['arm']}/{name}": value for name, value in plain(row, SUMMARY).items()})
        if "pending" not in set(runs["status"]):  # a curve is told once, when it is whole
            for point in curves(runs):
                self._run.log(point)
        environments = sorted(cell_folder.glob("sittings/*/environment.json"), key=lambda file: int(file.parent.name))
        if environments:
            self._run.config.update({"environment": read_json(environments[-1])}, allow_val_change=True)
        arms = runs[["arm", "method", *SUMMARY]]
        tables = {"arms": arms, "requests": answered(load_requests(cell_folder))}
        self._run.log({name: self._wandb.Table(*_table(table)) for name, table in tables.items() if len(table)})
        self._run.log_artifact(self._artifact(cell_folder), aliases=["latest"])

    def _artifact(self, cell_folder: Path) -> Any:
        artifact = self._wandb.Artifact(f"cell-{cell_folder.name}", type="results", metadata={"sweep": self._sweep})
        for file in (file for pattern in FILES for file in sorted(cell_folder.glob(pattern))):
            artifact.add_file(str(file), name=file.relative_to(cell_folder).as_posix())
        return artifact

    def _finish(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.finish()


def run_id(cell_folder: Path) -> str:
    """The id of the cell's run. It is kept with the cell, so that the same command elsewhere is another run, and a cell
    that is thrown away begins a new one."""
    file = cell_folder / "wandb.json"
    if not file.is_file():
        write_json(file, {"id": f"{cell_folder.name}-{uuid4().hex[:8]}"})
    return str(read_json(file)["id"])


def plain(row: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """What is there of a row under these names, as plain values."""
    there = {name: value.item() if hasattr(value := row[name], "item") else value for name in names}
    return {name: value for name, value in there.items() if _is_there(value)}


def _is_there(value: Any) -> bool:
    return isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))


def curves(runs: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """One point a budget: the figures of every method that has an arm of that budget, under `by_budget/<method>/`.
    Methods without a budget are level lines: the same at every budget. Invalid and failed arms have none."""
    rows = [row for row in _rows(runs) if row["status"] in ("complete", "drifted")]
    for budget in sorted({int(row["budget"]) for row in rows if not math.isnan(row["budget"])}):
        point: dict[str, Any] = {"budget": budget}
        for row in rows:
            if math.isnan(row["budget"]) or row["budget"] == budget:
                series = str(row["arm"]).replace(f"-{budget}", "")
                point |= {f"by_budget/{series}/{name}": value for name, value in plain(row, CURVES).items()}
        yield point


def answered(requests: pd.DataFrame) -> pd.DataFrame:
    """The timed requests as a table to look into, the speed-up of each beside; the texts are in the artifact."""
    from analysis import stats

    pairs = stats.pair(requests)
    keys = ["arm", "sitting", "prompt_id", "turn", "repeat"]
    timed = requests[requests["phase"] == "timed"].merge(pairs[[*keys, "log_speedup"]], on=keys, how="left")
    uncut = timed["uncut_rounds"].where(timed["uncut_rounds"] > 0)
    timed = timed.assign(
        acceptance_length=1 + timed["accepted_uncut_sum"] / uncut,
        speedup=timed["log_speedup"].map(math.exp, na_action="ignore"),
    )
    counts = ["n_input", "n_output", "n_rounds", "acceptance_length", "ttft_s", "tpot_s", "speedup"]
    shown = ["prompt_id", "turn", "repeat", "category", "arm", *counts, "exact_match", "true_violations"]
    return timed[shown].head(MOST_ROWS)


def _table(frame: pd.DataFrame) -> tuple[list[str], list[list[Any]]]:
    """A frame's columns and rows as plain values, None where there is none."""
    names = list(frame.columns)
    rows = (plain(row, names) for row in _rows(frame))
    return names, [[row.get(name) for name in names] for row in rows]


def _rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return cast(list[dict[str, Any]], frame.to_dict("records"))
