"""Replays: what every budget would have accepted of the text that AR gave, a line of replay.jsonl each prompt and turn.

AR's first answer is replayed, once it is on disk; what is replayed is on disk before the next begins.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.cells import BASELINE
from harness.environment import now_utc
from harness.questions import Question, Questions
from harness.records import append_line, sitting_lines
from harness.results import REPLAY, REPLAYS, Turn
from harness.sitting import Event, EventSender, Sitting
from methods.base import Engine, Replay


def replay_all(sitting: Sitting, folder: Path, engine: Engine, questions: Questions, events: EventSender) -> None:
    """Every replay that the sitting owes. `folder` is its place on disk."""
    if not sitting.replay:
        return
    events.send(Event("stage", total=len(sitting.replay), text="replaying every budget"))
    answers = _answers(folder.parents[1])
    with (folder / REPLAYS).open("ab") as file:
        for turn in sitting.replay:
            events.send(Event("started", REPLAY))
            question, answer, started = questions.asked[turn], answers[turn], now_utc()
            replay = engine.replay(question.request, answer["output_ids"], sitting.settings.replay)
            append_line(file, {**_asked(sitting, question, answer), **_found(replay), "started_utc": started})
            tokens = len(answer["output_ids"])
            events.send(Event("done", REPLAY, counted=True, tokens=tokens, decode_s=replay.seconds))


def _answers(cell_folder: Path) -> dict[Turn, dict[str, Any]]:
    """AR's records of the first repeat; where it was asked again, those of the first sitting."""
    found: dict[Turn, dict[str, Any]] = {}
    for line in sitting_lines(cell_folder):
        if line["phase"] == "timed" and line["arm"] == BASELINE.arm and line["repeat"] == 0:
            found.setdefault(Turn(line["prompt_id"], line["turn"]), line)
    return found


def _asked(sitting: Sitting, question: Question, answer: dict[str, Any]) -> dict[str, Any]:
    return {
        "cell_id": sitting.settings.cell_id,
        "sitting": sitting.number,
        "prompt_id": question.prompt.id,
        "turn": question.request.turn,
        "category": question.prompt.category,
        "n_input": len(question.request.prompt_ids),
        "output_ids": answer["output_ids"],
        "finish_reason": answer["finish_reason"],
    }


def _found(replay: Replay) -> dict[str, Any]:
    return {
        "budget": replay.budget,
        "places": replay.places,
        "chain": replay.chain,
        "replay_s": replay.seconds,
    }
