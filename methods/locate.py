"""Where a model's folder is: built in, on this disk, or on the Hugging Face hub. Loads no tensor library."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from methods.base import Refusal

BUILTIN, SHAPE = "builtin:", "shape:"
CHECKPOINTS = Path(__file__).parent / "checkpoints"
LIGHT = ("*.json", "*.jinja", "*.txt", "*.model")
PATTERNS = (*LIGHT, "*.safetensors")


def is_hub_id(reference: str) -> bool:
    """Whether a reference names a hub repository rather than a folder."""
    local = reference.startswith((BUILTIN, SHAPE, "/", ".", "~")) or reference.count("/") != 1
    return not local and not Path(reference).exists()


def resolve(reference: str, *, weights: bool = True) -> Path:
    """The local folder of `builtin:NAME/target`, of `shape:NAME/target` (a published model's config.json alone), of a
    path, or of a hub id (downloaded when it is not cached).

    Without `weights` only configs and tokenizer are fetched from the hub.

    Raises:
        Refusal: there is no such folder, or the hub cannot give it.
    """
    if reference.startswith(BUILTIN):
        folder = CHECKPOINTS / reference.removeprefix(BUILTIN)
    elif reference.startswith(SHAPE):
        folder = CHECKPOINTS / "shapes" / reference.removeprefix(SHAPE)
    elif is_hub_id(reference):
        folder = _from_hub(reference, PATTERNS if weights else LIGHT)
    else:
        folder = Path(reference).expanduser()
    if not (folder / "config.json").is_file():
        raise Refusal(
            f"{reference!r} is not a model: {folder} has no config.json; a Hugging Face folder or id is needed."
        )
    return folder


def shaped(name: str, part: str, reference: str) -> str:
    """What stands in for a hub model whose shape alone is asked for: the shape that comes with this package, if it
    has one for this pair. `part` is target or drafter."""
    known = (CHECKPOINTS / "shapes" / name / part / "config.json").is_file()
    return f"{SHAPE}{name}/{part}" if known and is_hub_id(reference) else reference


def text_folder(reference: str) -> Path:
    """Where a model's tokenizer and stop ids are. A shape has none of its own: the built-in pair's stand in."""
    return resolve(f"{BUILTIN}tiny/target" if reference.startswith(SHAPE) else reference, weights=False)


def _from_hub(repository: str, patterns: tuple[str, ...]) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(repository, allow_patterns=list(patterns)))
    except Exception as error:  # every client and network error means the same to the user
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise Refusal(
            f"model {repository!r} is neither a folder here nor to be had from the hub ({reason})."
        ) from error


def read_json(folder: Path, name: str) -> dict[str, Any]:
    """A JSON file of a model folder; a Refusal where it is missing or damaged."""
    try:
        content = json.loads((folder / name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise Refusal(f"{folder} has no {name}.") from None
    except ValueError as error:
        raise Refusal(f"{folder / name} is not valid JSON ({error}).") from None
    if not isinstance(content, dict):
        raise Refusal(f"{folder / name} does not hold a JSON object.")
    return content


def stop_ids(folder: Path) -> tuple[int, ...]:
    """Every end id of the generation config, of the config and of the text model's inside it, ascending. Empty where a
    model names none."""
    found: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        if (folder / name).is_file():
            said = read_json(folder, name)
            for ids in (said.get("eos_token_id"), said.get("text_config", {}).get("eos_token_id")):
                found.update(ids if isinstance(ids, list) else [ids] if ids is not None else [])
    return tuple(sorted(found))


@lru_cache(maxsize=16)
def fingerprint(folder: Path) -> str:
    """SHA-256 over names and contents of everything in a model folder that decides its output."""
    digest = hashlib.sha256()
    for path in sorted(p for pattern in PATTERNS for p in folder.glob(pattern)):
        digest.update(path.name.encode() + b"\0")
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
