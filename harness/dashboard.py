"""`python -m harness.dashboard --entity E`: the saved view of a wandb project that tracker=wandb fills.

Its panels are what a sweep is for: speed-up and acceptance over the budget, what a reader gets against what a GPU
gives, where a round's time goes, what drifted or failed, and what is running now. Saving needs `wandb login`;
`--spec` prints the view and asks nobody.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Sequence
from typing import Any

from harness.tracker_wandb import CURVES, WandbTracker
from methods.base import Refusal

NAME = "Is the tree worth it?"
METHODS = ("ddtree", "ddtree-chain", "dflash", "autoregressive")
STAGES = ("draft_s", "build_s", "verify_s", "commit_s")
ARMS = ("autoregressive", "dflash", *(f"ddtree-{budget}" for budget in (16, 32, 64, 128, 256, 512, 1024)))


def workspace(entity: str, project: str, name: str = NAME) -> Any:
    """The view as a wandb_workspaces Workspace; builds it here, without a network.

    Raises:
        Refusal: the package wandb-workspaces is missing.
    """
    ws, wr = _package("workspaces"), _package("reports.v2")

    def over_budget(title: str, figure: str, methods: Sequence[str] = METHODS, **options: Any) -> Any:
        assert figure in CURVES
        curves = [f"by_budget/{method}/{figure}" for method in methods]
        return wr.LinePlot(title=title, x="budget", y=curves, log_x=True, title_x="budget", **options)

    def bars(title: str, figure: str) -> Any:
        return wr.BarPlot(title=title, metrics=[f"{arm}/{figure}" for arm in ARMS], orientation="v")

    return ws.Workspace(
        entity=entity,
        project=project,
        name=name,
        sections=[
            ws.Section(
                name="Speed-up over autoregressive decoding",
                is_open=True,
                panels=[
                    over_budget("Speed-up by budget", "speedup"),
                    over_budget("Its 95 % interval, below", "speedup_low", METHODS[:-1]),
                    over_budget("Its 95 % interval, above", "speedup_high", METHODS[:-1]),
                    bars("Speed-up by arm", "speedup"),
                ],
            ),
            ws.Section(
                name="Acceptance",
                is_open=True,
                panels=[
                    over_budget("Acceptance length by budget", "acceptance_length"),
                    over_budget("Tokens per round by budget", "tokens_per_round"),
                ],
            ),
            ws.Section(
                name="Per user against per GPU",
                panels=[
                    wr.ScatterPlot(
                        title=arm,
                        x=wr.SummaryMetric(f"{arm}/tokens_per_s_per_user"),
                        y=wr.SummaryMetric(f"{arm}/tokens_per_s_per_gpu"),
                    )
                    for arm in ("autoregressive", "dflash", "ddtree-64")
                ],
            ),
            ws.Section(
                name="Where a round's time goes",
                panels=[
                    over_budget("A whole round, in seconds", "step_s"),
                    *(over_budget(f"{stage.removesuffix('_s')}, in seconds", stage, METHODS[:2]) for stage in STAGES),
                ],
            ),
            ws.Section(
                name="What to doubt",
                panels=[
                    bars("True violations (0, or the arm is invalid)", "true_violations"),
                    bars("Near ties", "near_ties"),
                    bars("How far the machine drifted", "drift"),
                    wr.RunComparer(diff_only="split"),
                ],
            ),
            ws.Section(
                name="Running now",
                panels=[
                    wr.LinePlot(title="Tokens/s so far", x="live/request", metric_regex="live/.*/tokens_per_s"),
                    wr.LinePlot(title="Acceptance so far", x="live/request", metric_regex="live/.*/acceptance_length"),
                ],
            ),
        ],
        runset_settings=ws.RunsetSettings(
            pinned_columns=["summary:ddtree-64/speedup", "summary:ddtree-64/acceptance_length", "config:model"],
        ),
    )


def _package(module: str) -> Any:
    try:
        return importlib.import_module(f"wandb_workspaces.{module}")
    except ModuleNotFoundError as error:
        raise Refusal(
            f"the dashboard needs the package {(error.name or 'wandb_workspaces').replace('_', '-')}: "
            "`pip install wandb-workspaces` gets it."
        ) from error


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m harness.dashboard", description=__doc__)
    parser.add_argument("--entity", required=True, help="whose project it is: a user or a team of wandb")
    parser.add_argument("--project", default=WandbTracker().project, help="as tracker.project (%(default)s)")
    parser.add_argument("--name", default=NAME, help="of the view (%(default)s)")
    parser.add_argument("--spec", action="store_true", help="print the view as JSON and save nothing")
    options = parser.parse_args(argv)
    try:
        view = workspace(options.entity, options.project, options.name)
        spec = view._to_model().model_dump(mode="json", by_alias=True)
        if not options.spec:
            view.save()
    except Refusal as refusal:
        print(refusal, file=sys.stderr)
        return 2
    except Exception as error:  # whatever wandb raises for a missing key, an unknown project or no network
        print(f"The dashboard could not be saved: {' '.join(str(error).split()).rstrip('.')}.", file=sys.stderr)
        return 1
    print(json.dumps(spec, indent=1) if options.spec else f"Saved: {view.url}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
