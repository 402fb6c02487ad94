"""Datasets of the Hugging Face hub, through the `datasets` library, which is imported here alone and when needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from methods.base import Refusal
from workloads.sources.base import Fetch, Remote, Row


@dataclass(frozen=True, kw_only=True)
class Hub(Remote):
    """A split of a dataset. `files` names its JSON-lines files where the hub's own loading does not serve them;
    `revision` is the commit it is pinned to, or None: then the newest is taken and recorded."""

    repository: str
    split: str
    config: str | None = None
    revision: str | None = None
    files: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        return f"Hugging Face {self.repository} ({', '.join(filter(None, (self.config, self.split)))})"

    def advice(self, suite: str) -> str:
        extra = "" if find_spec("datasets") else "`pip install datasets` and then "
        return f"{extra}`python -m workloads fetch {suite}`"

    def fetch(self, columns: Sequence[str]) -> Fetch:
        library = _library()
        try:
            revision = _commit(self.repository, self.revision)
            table = self._table(library, revision).select_columns(self.own_columns(columns))
            rows = [Row(f"{self.title}, row {number}", row) for number, row in enumerate(table, start=1)]
        except Exception as error:  # the library and the network behind it raise whatever they like
            first = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".:")
            raise Refusal(f"{self.title} could not be fetched: {first}.") from error
        return Fetch(rows, revision)

    def _table(self, library: Any, revision: str) -> Any:
        if not self.files:
            return library.load_dataset(self.repository, self.config, split=self.split, revision=revision)
        addresses = [f"hf://datasets/{self.repository}@{revision}/{file}" for file in self.files]
        return library.load_dataset("json", data_files={self.split: addresses}, split=self.split)

    def local(self, folder: Sequence[str]) -> list[str]:
        if self.files:
            return [name for file in self.files for name in folder if name == file]
        within = [name for name in folder if self.config and f"/{self.config}/" in f"/{name}"] or list(folder)
        ours = [name for name in within if name.rpartition("/")[2].startswith(self.split) or f"/{self.split}/" in name]
        return ours or (within if len(within) == 1 else [])


def _library() -> Any:
    try:
        return import_module("datasets")
    except ImportError:
        raise Refusal("The library `datasets` is not installed: `pip install datasets` brings it.") from None


def _commit(repository: str, revision: str | None) -> str:
    """The full commit that the revision (None: the newest) is today."""
    from huggingface_hub import HfApi

    return str(HfApi().dataset_info(repository, revision=revision).sha)
