"""What the chat generator knows (`chat_facts.json`): topics with facts, tasks with steps, places with details,
feelings with advice, ideas and things to compare.

All of it was written for this recipe. Facts are clauses that stand behind a connective; steps start with a verb.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_known: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))

TOPICS: dict[str, list[str]] = _known["topics"]
TASKS: dict[str, list[str]] = _known["tasks"]
SCENES: dict[str, tuple[list[str], list[str]]] = _known["scenes"]
"""A place's things, and what can be said of the place."""
JOBS: dict[str, list[str]] = _known["jobs"]
TREASURES: list[str] = _known["treasures"]
FEELINGS: dict[str, tuple[list[str], list[str]]] = _known["feelings"]
"""Causes, and advice."""
IDEAS: dict[str, list[str]] = _known["ideas"]
THINGS: dict[str, dict[str, str]] = _known["things"]
"""What can be said of a thing under four headings."""
