"""One data file at an address, pinned by its hash."""

from __future__ import annotations

import hashlib
import tempfile
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.error import URLError

from methods.base import Refusal
from workloads.sources import files
from workloads.sources.base import Fetch, Remote

TIMEOUT_S = 60


@dataclass(frozen=True, kw_only=True)
class Web(Remote):
    """A file at `url`. `revision` is its repository's commit and `sha256` the hash of its bytes, both as read there."""

    repository: str
    url: str
    revision: str | None = None
    sha256: str | None = None

    @property
    def title(self) -> str:
        return self.repository

    def advice(self, suite: str) -> str:
        return f"`python -m workloads fetch {suite}`"

    def fetch(self, columns: Sequence[str]) -> Fetch:
        try:
            with urllib.request.urlopen(self.url, timeout=TIMEOUT_S) as answer:
                data: bytes = answer.read()
        except (URLError, TimeoutError, ConnectionError) as error:
            raise Refusal(f"{self.url} could not be fetched: {getattr(error, 'reason', error)}.") from error
        found = hashlib.sha256(data).hexdigest()
        if self.sha256 not in (None, found):
            raise Refusal(f"{self.url} is not the file this suite is made of: its sha256 is {found}.")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / PurePosixPath(self.url).name
            path.write_bytes(data)
            return Fetch(files.read(path, shown=self.url), self.revision)

    def local(self, folder: Sequence[str]) -> list[str]:
        name = PurePosixPath(self.url).name
        return [path for path in folder if path.rpartition("/")[2] == name][:1]
