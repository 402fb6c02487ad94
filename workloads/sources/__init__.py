"""Where a published suite's rows come from: a hub, a file at an address, an installed package, or the user's files.

A source only brings rows of the published schema; what is asked of them is `workloads.mapping`'s.
"""

from workloads.sources.base import Fetch, Package, Remote, Row, Source
from workloads.sources.hub import Hub
from workloads.sources.package import Installed
from workloads.sources.web import Web

KINDS: dict[str, type[Source]] = {"hub": Hub, "web": Web, "package": Installed}

__all__ = ["KINDS", "Fetch", "Package", "Remote", "Row", "Source"]
