"""Identities that every record keeps, checked as it is read: a record that breaks one is damaged, and named.

A round emits what it accepted and one token more, unless it was cut, and the first token comes before the rounds:
1 + Σ emitted = `n_output`. Since no round accepts fewer than 0 tokens, marginal acceptance rates fall with depth, and
the acceptance length is 1 plus their sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from methods.base import Refusal


def check_record(record: Mapping[str, Any], keys: frozenset[str], file: Path) -> None:
    """One line of requests.jsonl, which needs these keys.

    Raises:
        Refusal: a key is missing, or its rounds and its output do not agree.
    """
    if not keys <= record.keys():
        missing = ", ".join(sorted(keys - record.keys()))
        raise Refusal(f"{file} is damaged, or not of this version: a record lacks {missing}.")
    emitted = 0
    for index, (accepted, tokens, cut) in enumerate(record["rounds"]):
        emitted += tokens
        if not (0 <= accepted <= tokens if cut else 0 <= accepted == tokens - 1):
            raise _damaged(file, record, _unlike(index, accepted, tokens, cut))
    if 1 + emitted != record["n_output"] or len(record["output_ids"]) != record["n_output"]:
        ids = f" and {len(record['output_ids'])} output ids"
        raise _damaged(file, record, f"1 + {emitted} emitted tokens{ids}, yet n_output {record['n_output']}")


def check_sums(requests: pd.DataFrame, file: Path) -> None:
    """The rows of requests.parquet, as far as the sums of their rounds tell.

    Raises:
        Refusal: in a row they do not agree with its output.
    """
    numbers = {name: requests[name].to_numpy(dtype=np.int64) for name in ("n_output", "n_rounds", "uncut_rounds")}
    accepted, uncut = (requests[name].to_numpy(dtype=np.int64) for name in ("accepted_sum", "accepted_uncut_sum"))
    later, least = numbers["n_output"] - 1, accepted + numbers["uncut_rounds"]
    all_uncut = numbers["uncut_rounds"] == numbers["n_rounds"]
    sound = np.where(all_uncut, later == least, later >= least)
    sound &= (numbers["uncut_rounds"] <= numbers["n_rounds"]) & (uncut >= 0) & (uncut <= accepted)
    for index in np.flatnonzero(~sound)[:1]:
        row = requests.iloc[index]
        counts = (
            f"{row['accepted_sum']} accepted tokens in {row['n_rounds']} rounds, {row['uncut_rounds']} of them uncut"
        )
        raise _damaged(file, row, f"{counts}, yet n_output {row['n_output']}")


def check_rounds(rounds: pd.DataFrame, requests: pd.DataFrame, file: Path) -> None:
    """The rows of rounds.parquet against those of requests.parquet, which are in the same order.

    Raises:
        Refusal: rounds are missing, or they and the output of their request do not agree.
    """
    counts = requests["n_rounds"].to_numpy(dtype=np.int64)
    owner = np.repeat(np.arange(len(counts)), counts)
    starts = np.cumsum(counts) - counts
    if len(owner) != len(rounds) or (rounds["round"].to_numpy() != np.arange(len(owner)) - starts[owner]).any():
        raise Refusal(f"{file} is damaged: it does not hold the rounds of requests.parquet, one after the other.")
    accepted, emitted = (rounds[name].to_numpy(dtype=np.int64) for name in ("accepted", "emitted"))
    cut = (rounds["cut"] != "").to_numpy()
    sound = (accepted >= 0) & np.where(cut, accepted <= emitted, accepted == emitted - 1)
    for index in np.flatnonzero(~sound)[:1]:
        row = rounds.iloc[index]
        raise _damaged(file, row, _unlike(row["round"], row["accepted"], row["emitted"], row["cut"]))
    totals = 1 + np.bincount(owner, emitted, len(counts)).astype(np.int64)
    for index in np.flatnonzero(totals != requests["n_output"].to_numpy(dtype=np.int64))[:1]:
        row = requests.iloc[index]
        raise _damaged(file, row, f"1 + {totals[index] - 1} emitted tokens, yet n_output {row['n_output']}")


def _unlike(index: int, accepted: int, emitted: int, cut: str) -> str:
    said = f"cut by {cut}" if cut else "uncut"
    return f"a round, its number {index} and {said}, that accepted {accepted} and emitted {emitted} tokens"


def _damaged(file: Path, record: Any, what: str) -> Refusal:
    request = f"{record['phase']} request of {record['arm']} for {record['prompt_id']}"
    place = f"sitting {record['sitting']}, turn {record['turn']}, repeat {record['repeat']}"
    return Refusal(f"{file} is damaged: the {request} ({place}) has {what}.")
