"""`python -m harness`: compose the command, refuse what cannot be done in one sentence, run the rest.

Hydra composes every job of the command (one, or a whole multirun) and this module only notes them down. When
all are known they are gathered into cells, so that a sweep over methods and budgets shares each cell's
autoregressive arm and interleaves all of its arms.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.plugins.sweeper import Sweeper
from omegaconf import DictConfig

from harness import config
from harness.sentences import closest, sentence
from methods.base import Refusal

USER_ERROR = 2
INTERRUPTED = 130


def compose(argv: list[str]) -> list[config.Job]:
    """Every job of the command line `argv`; empty where it only asked for help or a print-out."""
    jobs: list[config.Job] = []

    def note(composed: DictConfig) -> None:
        # Called inside Hydra's job loop, which would print an exception's job before raising it: keep it instead.
        try:
            jobs.append(config.job_from(composed, HydraConfig.get().overrides.task))
        except Exception as error:
            errors.append(error)

    errors: list[Exception] = []
    asked = _parse(argv)
    config.register()
    _quietly(
        hydra.main(config_path=str(config.CONF), config_name="config", version_base="1.3")(note),
        _flags_first(argv, asked),
    )
    if errors:
        raise errors[0]
    only_prints = asked.help or asked.hydra_help or asked.cfg or asked.info is not None or asked.shell_completion
    if not jobs and not only_prints:
        raise Refusal(
            "hydra/launcher is not accepted: basic is, since cells are gathered first; cluster=slurm makes each a job."
        )
    return jobs


def main(argv: list[str] | None = None) -> int:
    """Run one command line. Returns the exit code: 0, 1 where something failed, 2 for a user's error."""
    argv = sys.argv[1:] if argv is None else argv
    try:
        jobs = compose(argv)
        if not jobs:
            return 0
        from harness.run import execute
        from harness.tune import tune

        return (tune if jobs[0].command.tune else execute)(jobs, argv)
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        said = sentence(error, argv)
        if said is None:
            raise
        print(said, file=sys.stderr)
        return USER_ERROR


def _parse(argv: list[str]) -> Any:
    """Hydra's own flags, with argparse's two-line complaint made one sentence."""
    parser = get_args_parser()
    flags = [flag for action in parser._actions for flag in action.option_strings]

    def refuse(message: str) -> None:
        unknown = next((word for word in argv if word.startswith("-") and word.split("=")[0] not in flags), "")
        near = closest(unknown.split("=")[0], flags) if unknown else ""
        if unknown and message.startswith("unrecognized arguments"):  # it would name every word after it too
            message = f"{unknown} is no option of this command"
        raise Refusal(f"{message[0].upper()}{message[1:]}{near or '.'}")

    parser.error = refuse  # type: ignore[method-assign, assignment]
    return parser.parse_intermixed_args(argv)


def _flags_first(argv: list[str], asked: Any) -> list[str]:
    """Hydra reads settings in one stretch only; people write `-m` anywhere."""
    overrides: list[str] = asked.overrides
    return [word for word in argv if word not in overrides] + overrides


def _quietly(run: Callable[[], Any], argv: list[str]) -> None:
    """Run Hydra on `argv` so that its errors reach the caller instead of its own printer."""
    before = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv, os.environ["HYDRA_FULL_ERROR"] = ["harness", *argv], "1"
    try:
        with patch.object(Sweeper, "validate_batch_is_legal"):  # it composes every job, and the launcher does again
            run()
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
    finally:
        sys.argv = before[0]
        if before[1] is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = before[1]


if __name__ == "__main__":
    sys.exit(main())
