"""Records: a line is whole or absent, torn ends are passed over, folding agrees with the lines."""

from __future__ import annotations

import json
import math

import pyarrow.parquet as pq
import pytest

from harness.records import Asked, Checked, Record, RecordWriter, fold, read_lines, sitting_lines, write_json
from methods.base import Generation, Round, Score


def record(arm: str, prompt: str = "p", output: tuple[int, ...] = (5, 6, 7), sitting: int = 0) -> Record:
    rounds = (Round(1, 2, ""),) if len(output) == 3 else ()
    asked = Asked("c0ffee", sitting, "timed", arm, prompt, 0, 0, 0, "chat", "Hé\u2028llo", (1, 2), None)
    generation = Generation(output, "length", rounds, 0.5, 0.25 * (len(output) - 1), 11)
    return Record(asked, generation, Checked(None, None, 0, 0, 0.0, 1e-3), "text", "2026-01-01T00:00:00+00:00")


def test_a_torn_last_line_is_passed_over_and_other_damage_is_not(tmp_path):
    path = tmp_path / "requests.jsonl"
    with RecordWriter(path) as writer:
        writer.append(record("autoregressive"))
        writer.append(record("dflash"))
    whole = path.read_bytes()
    for cut in (1, 20, len(whole) // 2 - 30):
        path.write_bytes(whole[:-cut])
        assert [line["arm"] for line in read_lines(path)] == ["autoregressive"]
    path.write_bytes(b"{broken\n" + whole)
    with pytest.raises(json.JSONDecodeError):
        read_lines(path)


def test_a_line_has_no_value_that_json_lacks(tmp_path):
    one = record("dflash", output=(5,))
    assert math.isnan(one.generation.tpot_s)
    checked = Checked.from_score(Score((0.0, math.inf)), 0.1, None)
    assert (checked.max_gap, checked.true_violations, checked.first_divergence) == (1e308, 1, 1)
    with RecordWriter(tmp_path / "r.jsonl") as writer:
        writer.append(one)
    (line,) = read_lines(tmp_path / "r.jsonl")
    assert line["tpot_s"] is None
    assert line["rounds"] == [] and line["prompt_ids"] == [1, 2] and line["stages"] is None


def test_folding_sums_rounds_and_compares_with_ar_whatever_came_first(tmp_path):
    for sitting, answers in enumerate(({"dflash": (5, 6, 8), "autoregressive": (5, 6, 7)}, {"dflash": (5,)})):
        folder = tmp_path / "sittings" / str(sitting)
        folder.mkdir(parents=True)
        with RecordWriter(folder / "requests.jsonl") as writer:
            for arm, output in answers.items():
                writer.append(record(arm, output=output, sitting=sitting))
    fold(tmp_path)
    table = pq.read_table(tmp_path / "requests.parquet")
    rows = table.to_pylist()
    assert table.schema.metadata[b"schema_version"] == b"1"
    assert [row["exact_match"] for row in rows] == [False, True, None]
    assert [(row["n_rounds"], row["accepted_sum"], row["uncut_rounds"]) for row in rows] == [(1, 1, 1)] * 2 + [
        (0, 0, 0)
    ]
    assert [row["output_ids"] for row in rows] == [line["output_ids"] for line in sitting_lines(tmp_path)]
    assert pq.read_table(tmp_path / "rounds.parquet").to_pylist()[0]["emitted"] == 2


def test_json_is_replaced_at_once(tmp_path):
    write_json(tmp_path / "a.json", {"x": 1})
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "a.json", {"x": math.nan})
    assert json.loads((tmp_path / "a.json").read_text()) == {"x": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
