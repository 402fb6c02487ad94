"""What the arms answered, side by side: `python -m analysis show CELL PROMPT`.

Each round's accepted tokens have one of two colours in turn, its bonus token is underlined in the same colour: long
runs of one colour are what speculation won. The tokens come from the target's own tokenizer; where that is not on
this machine, the stored text is shown without colours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from analysis.records import Arm, Cell, Record, find_cells, records
from methods.base import Refusal

if TYPE_CHECKING:
    from tokenizers import Tokenizer

COLOURS = ("cyan", "yellow")
BONUS = "underline"
_NARROWEST = 44  # columns of text below which arms go to the next row
_LONGEST_PROMPT = 2400  # characters


def show(console: Console, cell_id: str, prompt_id: str, results: str | Path) -> None:
    """Print one prompt and every arm's answer to it.

    Args:
        console: where to.
        cell_id: a cell's id or the beginning of one, unique under `results`.
        prompt_id: a prompt of that cell.
        results: a results folder, or one above several.

    Raises:
        Refusal: no such cell or prompt; it names those that exist.
    """
    cell = find_cell(find_cells(results), cell_id)
    answers = answers_to(cell, prompt_id)
    tokenizer = tokenizer_of(str(cell.settings.get("target", "")))
    prompt = next(iter(answers.values()))
    title = f"{prompt_id} · {prompt['category']} · {prompt['n_input']} tokens"
    console.print(Panel(_shortened(prompt["prompt_text"]), title=title, title_align="left", border_style="dim"))
    panels = [_panel(arm, answers[arm.name], tokenizer) for arm in cell.arms if arm.name in answers]
    per_row = max(1, min(len(panels), console.width // _NARROWEST))
    grid = Table.grid(expand=True)
    for _ in range(per_row):
        grid.add_column(ratio=1)
    for start in range(0, len(panels), per_row):
        grid.add_row(*panels[start : start + per_row])
    console.print(grid)
    console.print(_legend() if tokenizer else Text("The target's tokenizer is not here: answers without rounds."))


def find_cell(cells: Sequence[Cell], cell_id: str) -> Cell:
    """The cell whose id is or begins with `cell_id`; a `Refusal` where none or several do."""
    matches = [cell for cell in cells if cell.cell_id == cell_id]
    matches = matches or [cell for cell in cells if cell.cell_id.startswith(cell_id)]
    if len(matches) == 1:
        return matches[0]
    if matches and len({cell.cell_id for cell in matches}) == 1:
        folders = ", ".join(cell.results for cell in matches)
        raise Refusal(f"cell {cell_id!r} is in more than one folder: name one of {folders} with --results.")
    known = ", ".join(dict.fromkeys(cell.cell_id for cell in matches or cells))
    fault = "could be any of several" if matches else "does not exist"
    raise Refusal(f"cell {cell_id!r} {fault}: {known} {'match' if matches else 'are there'}.")


def answers_to(cell: Cell, prompt_id: str) -> dict[str, Record]:
    """The first timed record of each arm for a prompt."""
    timed = [record for record in records(cell) if record["phase"] == "timed" and record["turn"] == 0]
    found: dict[str, Record] = {}
    for record in timed:
        if record["prompt_id"] == prompt_id:
            found.setdefault(record["arm"], record)
    if not found:
        known = ", ".join(dict.fromkeys(record["prompt_id"] for record in timed)) or "none yet"
        raise Refusal(f"prompt {prompt_id!r} has no answer in cell {cell.cell_id}: there are {known}.")
    return found


def tokenizer_of(target: str) -> Tokenizer | None:
    """The tokenizer of a target's folder or of the hub's local cache; None where it is not on this machine."""
    from huggingface_hub import try_to_load_from_cache
    from tokenizers import Tokenizer

    from methods.locate import BUILTIN, resolve

    try:
        if target.startswith(BUILTIN) or Path(target).expanduser().is_dir():
            file = str(resolve(target) / "tokenizer.json")
        else:
            cached = try_to_load_from_cache(target, "tokenizer.json")
            if not isinstance(cached, str):
                return None
            file = cached
        return Tokenizer.from_file(file)
    except Exception:  # whatever keeps it from being read, the stored text serves
        return None


def coloured(record: Record, tokenizer: Tokenizer) -> Text:
    """An answer with its rounds: the first token, which the prefill gave, in bold, then round by round."""
    text = Text()
    for piece, style in zip(_pieces(record["output_ids"], tokenizer), _styles(record["rounds"]), strict=True):
        text.append(piece, style)
    return text


def _styles(rounds: Sequence[Sequence[Any]]) -> Iterator[str]:
    """One style a token."""
    yield "bold"
    for index, (accepted, emitted, _) in enumerate(rounds):
        colour = COLOURS[index % len(COLOURS)]
        for place in range(emitted):
            yield colour if place < accepted else f"{colour} {BONUS}"


def _pieces(ids: Sequence[int], tokenizer: Tokenizer) -> Iterator[str]:
    """Each token's text; a character of several tokens stands with the last of them."""
    from tokenizers.decoders import DecodeStream

    stream = DecodeStream(skip_special_tokens=False)
    for token in ids:
        yield stream.step(tokenizer, token) or ""


def _panel(arm: Arm, record: Record, tokenizer: Tokenizer | None) -> Panel:
    answer = coloured(record, tokenizer) if tokenizer else Text(record["text"])
    rounds = record["rounds"]
    uncut = [accepted for accepted, _, cut in rounds if not cut]
    facts = [f"{record['n_output']} tokens in {len(rounds)} rounds, ended by {record['finish_reason']}"]
    if uncut:
        facts.append(f"acceptance length {1 + sum(uncut) / len(uncut):.2f}")
    note = Text("\n" + ", ".join(facts) + "\n" + lossless(record), style="dim")
    if arm.status in ("invalid", "failed"):
        note.append(f"\narm {arm.status}: {arm.reason or 'no reason recorded'}", "red")
    return Panel(Group(answer, note), title=arm.name, title_align="left")


def lossless(record: Record) -> str:
    """What the gate found for one answer, in words."""
    if record["true_violations"] is None:
        return "not checked against the target"
    if record["true_violations"]:
        return f"INVALID: {record['true_violations']} tokens the target would not have chosen"
    same = {True: "the same tokens as AR", False: "other tokens than AR", None: "no AR answer beside it"}
    found = f"lossless: {same[record['exact_match']]}"
    if record["near_ties"]:
        found += f", near ties: {record['near_ties']}, the first at token {record['first_divergence']}"
    return found


def _legend() -> Text:
    first, second = COLOURS
    return Text.assemble(
        "one round's ",
        ("accepted tokens", first),
        " and ",
        ("bonus", f"{first} {BONUS}"),
        ", the next round's ",
        ("accepted tokens", second),
        " and ",
        ("bonus", f"{second} {BONUS}"),
    )


def _shortened(text: str) -> Text:
    if len(text) <= _LONGEST_PROMPT:
        return Text(text)
    half = _LONGEST_PROMPT // 2
    left_out = f"\n[… {len(text) - 2 * half} characters …]\n"
    return Text.assemble(text[:half], (left_out, "dim"), text[-half:])
