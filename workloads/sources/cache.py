"""The folder of fetched suites: for each its rows as JSON lines and a manifest that says where they came from.

    <cache>/gsm8k/rows-1f2e3d4c5b6a.jsonl
    <cache>/gsm8k/manifest.json

The manifest is replaced last and at once, so a fetch that was cut short leaves what was there. `DRAFT_TREE_CACHE` names
another folder than the platform's own for caches.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from methods.base import Refusal
from workloads.sources import files
from workloads.sources.base import Row

VARIABLE = "DRAFT_TREE_CACHE"
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Manifest:
    """What is known of a fetched suite; `sha256` is of the rows' file."""

    suite: str
    source: str
    revision: str | None
    licence: str
    fetched_utc: str
    columns: list[str]
    n_rows: int
    rows: str
    sha256: str
    schema_version: int = 1


def folder() -> Path:
    """Where fetched suites lie on this machine."""
    if named := os.environ.get(VARIABLE):
        return Path(named).expanduser()
    home = Path.home()
    if sys.platform == "darwin":
        base = home / "Library" / "Caches"
    elif sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")
    return base / "draft-tree-harness" / "workloads"


def store(suite: str, source: str, revision: str | None, licence: str, columns: list[str], rows: list[Row]) -> Manifest:
    """Write the rows (these columns of them) and then the manifest, each at once."""
    data = b"".join(_line({column: row.values.get(column) for column in columns}) for row in rows)
    digest = hashlib.sha256(data).hexdigest()
    now = datetime.now(UTC).isoformat(timespec="seconds")
    name = f"rows-{digest[:12]}.jsonl"
    manifest = Manifest(suite, source, revision, licence, now, columns, len(rows), name, digest)
    place = folder() / suite
    try:
        place.mkdir(parents=True, exist_ok=True)
        _replace(place / name, data)
        _replace(place / MANIFEST, json.dumps(asdict(manifest), indent=1).encode() + b"\n")
        _clear(path for path in place.glob("rows-*.jsonl") if path.name != name)
    except OSError as error:
        raise Refusal(f"{error.filename or place} cannot be written: {error.strerror or error}.") from error
    return manifest


def find(suite: str) -> Manifest | None:
    """The manifest of a fetched suite; None where there is none that can be read."""
    try:
        content = json.loads((folder() / suite / MANIFEST).read_bytes())
        return Manifest(**content) if content.get("schema_version") == Manifest.schema_version else None
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def read(manifest: Manifest) -> list[Row]:
    """The rows of a fetched suite, whole as they were stored."""
    path = folder() / manifest.suite / manifest.rows
    try:
        whole = files.sha256([path]) == manifest.sha256
    except OSError:
        whole = False
    if not whole:
        raise Refusal(f"{path} is damaged: `python -m workloads fetch {manifest.suite}` brings it anew.")
    return files.read(path)


def _line(values: dict[str, object]) -> bytes:
    try:
        return json.dumps(values, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:  # half a surrogate pair: kept as an escape, for the prompt's own check to name
        return json.dumps(values).encode() + b"\n"


def _replace(path: Path, data: bytes) -> None:
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        try:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


def _clear(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
