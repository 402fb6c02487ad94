"""Answers side by side: every token in its round's colour, and sentences for what is not there."""

import io

import pytest
from records_fixture import ANSWER, CELL, N_OUTPUT, OTHER, answer_ids, make_results, record, tokenizer
from rich.console import Console

from analysis.__main__ import main
from analysis.records import find_cells
from analysis.show import coloured, find_cell, lossless, show
from methods.base import Refusal


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    return make_results(tmp_path_factory.mktemp("shared"))


def printed(*words, width=160):
    text = io.StringIO()
    show(Console(file=text, width=width, highlight=False), *words)
    return text.getvalue()


def spans(text):
    return [(text.plain[s.start : s.end], str(s.style)) for s in text.spans]


def test_every_round_has_its_colour():
    made = tokenizer()
    ids = [made.encode(c).ids[0] for c in "0123456789"]
    line = record("dflash", "code-1", 0, output_ids=ids, rounds=[[2, 3, ""], [0, 1, ""], [3, 4, ""], [1, 1, "length"]])
    assert spans(coloured(line, made)) == [
        ("0", "bold"),
        ("1", "cyan"),
        ("2", "cyan"),
        ("3", "cyan underline"),
        ("4", "yellow underline"),
        ("5", "cyan"),
        ("6", "cyan"),
        ("7", "cyan"),
        ("8", "cyan underline"),
        ("9", "yellow"),
    ]


def test_characters_of_several_tokens_stay_whole():
    ids = answer_ids()
    line = record("dflash", "code-1", 0, output_ids=ids, rounds=[[0, 1, ""]] * (len(ids) - 1))
    assert coloured(line, tokenizer()).plain == ANSWER
    assert len(ids) > len(ANSWER.split())


def test_the_arms_side_by_side(shared):
    text = printed(CELL, "math-2", shared)
    assert text.index("autoregressive") < text.index("dflash") < text.index("ddtree-16") < text.index("ddtree-64")
    assert "What about math-2?" in text and "math-2 · math · 3 tokens" in text
    assert f"{N_OUTPUT} tokens in 10 rounds, ended by length" in text and "length 3.00" in text
    assert "arm invalid: 1 position was not the target's choice" in " ".join(text.replace("│", " ").split())
    assert "accepted tokens and bonus" in text
    assert "ddtree-1024" not in text  # it did not get that far
    assert max(map(len, text.splitlines())) <= 160


def test_a_narrow_terminal_stacks_the_arms(shared):
    lines = printed(CELL, "code-1", shared, width=50).splitlines()
    assert max(map(len, lines)) <= 50
    assert sum(line.startswith("╭─ ") for line in lines) == 7


def test_without_the_tokenizer_the_text_serves(shared):
    text = printed(OTHER, "code-1", shared)
    assert "tokenizer is not here" in text and "naïve café" in text


def test_a_long_prompt_is_shortened(tmp_path):
    results = make_results(tmp_path)
    file = results / "cells" / OTHER / "sittings" / "0" / "requests.jsonl"
    file.write_text(file.read_text().replace("What about code-1?", "begin " + "word " * 2000 + "[end]"))
    text = printed(OTHER, "code-1", results)
    assert "begin" in text and "[end]" in text and "characters …]" in text and text.count("word") < 700


def test_what_the_gate_found():
    assert lossless(record("dflash", "code-1", 0, exact_match=True)) == "lossless: the same tokens as AR"
    near = record("dflash", "code-1", 0, exact_match=False, near_ties=2, first_divergence=5)
    assert lossless(near) == "lossless: other tokens than AR, near ties: 2, the first at token 5"
    assert lossless(record("dflash", "code-1", 0, true_violations=3)).startswith("INVALID: 3 tokens")
    assert lossless(record("dflash", "code-1", 0, true_violations=None)) == "not checked against the target"


def test_cells_by_prefix(shared, tmp_path):
    cells = find_cells(shared)
    assert find_cell(cells, "a1b").cell_id == CELL
    with pytest.raises(Refusal, match=f"could be any of several: {CELL}, {OTHER} match"):
        find_cell(cells, "a1")
    with pytest.raises(Refusal, match=f"'zz' does not exist: {CELL}, {OTHER} are there"):
        find_cell(cells, "zz")
    make_results(tmp_path / "one")
    make_results(tmp_path / "two")
    with pytest.raises(Refusal, match="in more than one folder: name one of one/results, two/results"):
        find_cell(find_cells(tmp_path), CELL)


def test_the_command_line(shared, capsys):
    assert main(["show", "a1b", "code-1", "--results", str(shared)]) == 0
    assert "ddtree-16" in capsys.readouterr().out
    assert main(["show", "a1b", "code-9", "--results", str(shared)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"prompt 'code-9' has no answer in cell {CELL}: there are code-1, code-2,")
    assert said.count("\n") == 1
