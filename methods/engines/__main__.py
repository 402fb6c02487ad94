"""`python -m methods.engines setup|check NAME`: the environments of the serving engines. `serve NAME model=… method=…`:
a server of one of them for others to use."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from methods.autoregressive import Autoregressive
from methods.base import EngineSpec, ModelSpec, Refusal, Request
from methods.dflash import DFlash
from methods.engines.deployment import serve
from methods.engines.environments import ENVIRONMENTS, Environment, probe, set_up
from methods.engines.http import ServerError
from methods.engines.served import ServedEngine
from methods.engines.sglang import SglangEngine
from methods.engines.vllm import VllmEngine

ENGINES: dict[str, type[ServedEngine]] = {
    environment.name: engine for engine in (VllmEngine, SglangEngine) for environment in engine.environments.values()
}
PAIR = ModelSpec("tiny", "builtin:tiny/target", "builtin:tiny/drafter")
PROMPT = tuple(range(100, 140))
TOKENS = 16
SETTINGS = (
    "model=tiny method=dflash tp=1 dtype=auto concurrency=64 max_length=0 host=127.0.0.1 port=8000 args={}, or "
    "model.target=… model.drafter=…; python=… is another interpreter"
)


def check(environment: Environment, python: str | None = None) -> str:
    """Prove an environment: its engine starts, and answers alike with and without a draft. Says with what.

    Raises:
        Refusal: it is not set up, or the two answers differ.
        ServerError: the engine does not start or does not answer; its last lines are in the notes.
    """
    engine_class = ENGINES[environment.name]
    spec = EngineSpec(PAIR, device=environment.device, max_length=len(PROMPT) + TOKENS, python=python)
    request = Request("check", PROMPT, TOKENS)
    methods = (Autoregressive(), DFlash())
    engine_class.check(spec, methods)
    torch = probe(environment, python)
    with engine_class(spec) as engine:
        engine.open(methods)
        plain, drafted = (engine.generate(method, request) for method in methods)
        score, tolerance = engine.score(request, drafted.output_ids), engine.gap_tolerance((request,))
        facts = engine.describe()
    if score.true_violations(tolerance):
        raise Refusal(f"{environment.name} is there, but its dflash answers {drafted.output_ids}, not the target's.")
    version = facts[f"{engine_class.name}_version"]
    tested = "" if version == environment.version else f" (tested: {environment.version})"
    same = "the same text" if plain.output_ids == drafted.output_ids else "texts within rounding"
    return f"{environment.name}: version {version}{tested}, {torch}; autoregressive and dflash gave {same}."


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m methods.engines", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, words in (
        ("setup", "make an environment under the cache folder"),
        ("check", "prove an environment"),
        ("serve", "print and run an OpenAI-compatible server's command"),
    ):
        command = commands.add_parser(name, help=words, description=f"{words.capitalize()}.")
        command.add_argument("environment", choices=sorted(ENVIRONMENTS))
    commands.choices["check"].add_argument("--python", help="another interpreter than the environment's own")
    commands.choices["serve"].add_argument("settings", nargs="*", metavar="NAME=VALUE", help=SETTINGS)
    commands.choices["serve"].add_argument("--dry-run", action="store_true", help="print the command, run nothing")
    options = parser.parse_args(argv)
    environment = ENVIRONMENTS[options.environment]
    try:
        if options.command == "setup":
            print(f"{environment.name} is set up: {set_up(environment)}")
        elif options.command == "serve":
            serve(environment, ENGINES[environment.name], options.settings, options.dry_run)
        else:
            print(check(environment, options.python))
    except Refusal as refusal:
        print(refusal, file=sys.stderr)
        return 2
    except ServerError as error:
        print(error, *getattr(error, "__notes__", ()), sep="\n", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
