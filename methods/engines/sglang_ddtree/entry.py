"""How SGLang finds the plugin: a distribution's metadata with an entry point, in a folder on its path.

Nothing has to be installed into SGLang's environment and no file of it is changed: a server that is started with
`path(folder)` in PYTHONPATH loads the plugin in every process it starts. SGLang logs a plugin that fails and goes on
without it, so that a server has to be asked whether it is there: `loaded` reads its own account.
"""

from __future__ import annotations

import os
from pathlib import Path

import methods
from methods.base import Refusal
from methods.engines.sglang_ddtree import NAME, TESTED

LINE = "draft-tree plugin: {name} registered in process {pid}"


def path(folder: Path) -> str:
    """Write the metadata below `folder`; what a server's PYTHONPATH has to hold, this project's root with it."""
    return plugin(folder, "draft-tree-sglang", "methods.engines.sglang_ddtree", Path(methods.__file__).parents[1])


def plugin(folder: Path, name: str, module: str, root: Path) -> str:
    """Write, below `folder`, the metadata of a distribution `name` whose `module`, found in `root`, has `register`;
    what a server's PYTHONPATH has to hold."""
    place = folder / name / f"{name.replace('-', '_')}-0.1.dist-info"
    place.mkdir(parents=True, exist_ok=True)
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1\n")
    (place / "entry_points.txt").write_text(f"[sglang.srt.plugins]\n{name.replace('-', '_')} = {module}:register\n")
    (place / "RECORD").write_text("")
    return os.pathsep.join([str(place.parent.absolute()), str(root.absolute())])


def check_version(version: str) -> None:
    """Refuse a version of SGLang whose insides nobody has tried."""
    if version not in TESTED:
        raise Refusal(f"SGLang {version} is not accepted: method=ddtree was tried with {', '.join(TESTED)}.")


def loaded(log: str) -> tuple[int, ...]:
    """The processes that registered the algorithm, from a server's log: the one that serves, and each scheduler's."""
    before = LINE.split("{pid}")[0].format(name=NAME)
    return tuple(int(line.partition(before)[2].split()[0]) for line in log.splitlines() if before in line)
