"""Rows from files: JSON, JSON lines (also gzipped) and Parquet, each row with the words that find it again."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from methods.base import Refusal
from workloads.sources.base import Row


def read(path: Path, records: str | None = None, shown: str | None = None) -> list[Row]:
    """Every row of a file. `records` names the list in a JSON file that is an object; `shown` is what complaints call
    the file.

    Raises:
        Refusal: it cannot be read, is of no known kind, or a row in it is damaged.
    """
    name = shown or str(path)
    reader = next((reader for suffix, reader in _READERS.items() if path.name.lower().endswith(suffix)), None)
    if reader is None:
        raise Refusal(f"{name} is not accepted: files that end in {', '.join(_READERS)} are.")
    try:
        rows = list(reader(path, name, records))
    except OSError as error:
        raise Refusal(f"{name} cannot be read: {error.strerror or error}.") from error
    if not rows:
        raise Refusal(f"{name} holds no rows: at least one is needed.")
    return rows


def data_files(folder: Path, choose: Callable[[Sequence[str]], list[str]]) -> list[Path]:
    """The files of a folder, or up to two folders further down, that `choose` takes from their relative names.

    Raises:
        Refusal: none is chosen.
    """
    below = (path for depth in ("*", "*/*", "*/*/*") for path in folder.glob(depth))
    found = (path.relative_to(folder) for path in below if path.name.lower().endswith(tuple(_READERS)))
    names = sorted((p.as_posix() for p in found if not any(part.startswith(".") for part in p.parts)), key=natural)
    chosen = choose(names)
    if not chosen:
        kinds = ", ".join(_READERS)
        raise Refusal(
            f"{folder} holds {len(names)} files of {kinds}, but none that is plainly this suite's: workload.path=… can "
            "name the file itself."
        )
    return [folder / name for name in chosen]


def natural(name: str) -> list[tuple[int, str]]:
    """A key that sorts test2 before test10, and test before both."""
    stem = re.sub(r"\.(json|jsonl|jsonl\.gz|parquet)$", "", name.lower())
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", stem) if part]


def sha256(paths: Sequence[Path]) -> str:
    """The hash of the files' bytes, one after the other."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def json_value(raw: bytes) -> Any:
    """The bytes as JSON; the `Refusal` is half a sentence, for the caller to say where."""
    try:
        return json.loads(raw.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise Refusal(f"not UTF-8 text (byte {error.start + 1})") from None
    except json.JSONDecodeError as error:
        raise Refusal(f"not JSON ({error.msg}, character {error.pos + 1})") from None
    except RecursionError:
        raise Refusal("not JSON (nested too deeply)") from None


def _lines(path: Path, shown: str, _: str | None) -> Iterator[Row]:
    for number, raw in enumerate(_bytes(path, shown).split(b"\n"), start=1):
        if not raw.strip():
            continue
        where = f"{shown}, line {number}"
        try:
            value = json_value(raw)
        except Refusal as reason:
            raise Refusal(f"{where}: {reason}.") from None
        yield _row(where, value)


def _document(path: Path, shown: str, records: str | None) -> Iterator[Row]:
    try:
        value = json_value(_bytes(path, shown))
    except Refusal as reason:
        raise Refusal(f"{shown}: {reason}.") from None
    if records is not None:
        value = value.get(records) if isinstance(value, dict) else None
    if not isinstance(value, list):
        what = f"an object whose {records!r} is a list" if records else "a list"
        raise Refusal(f"{shown} is not {what} of rows.")
    for number, item in enumerate(value, start=1):
        yield _row(f"{shown}, row {number}", item)


def _parquet(path: Path, shown: str, _: str | None) -> Iterator[Row]:
    import pyarrow
    import pyarrow.parquet

    try:
        rows = pyarrow.parquet.read_table(path).to_pylist()
    except (pyarrow.ArrowException, ValueError) as error:
        raise Refusal(f"{shown} is not a whole Parquet file ({' '.join(str(error).split())}).") from None
    yield from (Row(f"{shown}, row {number}", row) for number, row in enumerate(rows, start=1))


def _bytes(path: Path, shown: str) -> bytes:
    data = path.read_bytes()
    if path.suffix.lower() != ".gz":
        return data
    try:
        return gzip.decompress(data)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise Refusal(f"{shown} is not a whole gzip file.") from None


def _row(where: str, value: Any) -> Row:
    if not isinstance(value, dict):
        raise Refusal(f"{where}: not a JSON object.")
    return Row(where, value)


_READERS: dict[str, Callable[[Path, str, str | None], Iterator[Row]]] = {
    ".jsonl": _lines,
    ".jsonl.gz": _lines,
    ".json": _document,
    ".parquet": _parquet,
}
