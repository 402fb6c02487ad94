"""Round dumps as a person reads them: trees, summaries, where two runs part, and sentences for what is not there."""

import io
import json
import math
import re
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console
from tokenizers import Tokenizer

from analysis.__main__ import main
from analysis.round_compare import compare_rounds, differences
from analysis.round_dumps import Line, Selection, lines, sources
from analysis.round_tree import Words, branches, picture, quoted
from analysis.rounds import Totals, follows_first_choices, show_rounds
from methods.base import Refusal
from methods.locate import CHECKPOINTS
from methods.reference import tree as trees

TINY = CHECKPOINTS / "tiny" / "target"
IDS = Words()
VOCABULARY = 60
DEPTH = 5


def dumped(tree, path, bonus, **changes):
    """One round as a run writes it."""
    rows = int(tree.valid_n.sum())
    scores, parents = tree.scores_n.tolist()[:rows], tree.parents_n.tolist()[:rows]
    return {
        "cell_id": "c0ffee",
        "sitting": 0,
        "phase": "profile",
        "arm": "ddtree-8",
        "prompt_id": "math-1",
        "turn": 0,
        "repeat": 0,
        "round": 0,
        "root_at": 20,
        "tokens": tree.tokens_n.tolist()[:rows],
        "parents": parents,
        "depths": tree.depths_n.tolist()[:rows],
        "log_probs": [0.0, *(scores[row] - scores[parents[row]] for row in range(1, rows))],
        "path": path,
        "bonus": bonus,
        "accepted": len(path) - 1,
        "oracle_gap": None,
        "shadow_accepted": None,
        **changes,
    }


def request(budget=8, count=4, seed=0, **changes):
    """The rounds of one request: random drafts, a target that agrees with them now and then."""
    random = torch.Generator().manual_seed(seed)
    found, root, at = [], torch.tensor(7), 20
    for index in range(count):
        log_probs = torch.log_softmax(3 * torch.randn(DEPTH, VOCABULARY, generator=random), -1)
        tree = trees.build(trees.Candidates(*log_probs.topk(min(budget, VOCABULARY))), root, budget)
        choice = torch.multinomial(log_probs.exp(), 1, generator=random)[:, 0]
        choices = choice[tree.depths_n.clamp_max(DEPTH - 1)]
        walk = trees.walk(tree, trees.visibility(tree.parents_n, DEPTH), choices, DEPTH)
        path = walk.path_d[: int(walk.accepted) + 1].tolist()
        bonus = int(choices[path[-1]])
        found.append(dumped(tree, path, bonus, round=index, root_at=at, arm=f"ddtree-{budget}", **changes))
        root, at = torch.tensor(bonus), at + len(path)
    return found


def write(file, rounds):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(one, separators=(",", ":")) + "\n" for one in rounds))
    return file


def results(root, rounds, cell="c0ffee", sitting=0, target="nowhere/none"):
    """A results folder with these rounds in one sitting of one cell."""
    folder = root / "cells" / cell
    write(folder / "sittings" / str(sitting) / "rounds.jsonl", rounds)
    described = {"schema_version": 1, "cell_id": cell, "settings": {"target": target}}
    (folder / "cell.json").write_text(json.dumps(described))
    return root


def parsed(content):
    return Line(Path("rounds.jsonl"), 1, 0, json.dumps(content).encode() + b"\n").round()


def printed(call, *words, width=120, **options):
    text = io.StringIO()
    outcome = call(Console(file=text, width=width, highlight=False), *words, **options)
    return outcome, re.sub(r" +$", "", text.getvalue(), flags=re.M)


def shown(place, width=120, full=False, tokenizer=None, **choices):
    return printed(show_rounds, place, Selection(**choices), width=width, full=full, tokenizer=tokenizer)[1]


@pytest.fixture
def small():
    """Two positions: 11 or 12, then 21 or 22; the target says 12, 21, 30."""
    log_probs = torch.tensor([[0.6, 0.3], [0.8, 0.1]]).log()
    tree = trees.build(trees.Candidates(log_probs, torch.tensor([[11, 12], [21, 22]])), torch.tensor(10), 6)
    return dumped(tree, [0, 3, 4], 30, oracle_gap=1.5e-6, shadow_accepted=0)


def test_a_small_tree(small):
    text = shown_tree(parsed(small))
    assert (
        text
        == """\
draft tree  log-prob  of path
● 10                           root
├─○ 11         −0.51    −0.51
│ ├─○ 21       −0.22    −0.73
│ └─○ 22       −2.30    −2.81
└─● 12         −1.20    −1.20  accepted
  ├─● 21       −0.22    −1.43  accepted
  │ └─★ 30                     bonus, the target's own
  └─○ 22       −2.30    −3.51
"""
    )


def shown_tree(one, words=IDS, **options):
    return printed(lambda console: console.print(picture(one, words, **options)))[1]


def test_what_is_left_out_of_a_tree_is_counted(small):
    text = shown_tree(parsed(small), shown=1)
    assert (
        text
        == """\
draft tree  log-prob  of path
● 10                           root
├─○ 11         −0.51    −0.51  … 2 more nodes below
└─● 12         −1.20    −1.20  accepted, … 1 more node below
  └─● 21       −0.22    −1.43  accepted
    └─★ 30                     bonus, the target's own
"""
    )


@given(st.integers(0, 10**6), st.integers(1, 40), st.one_of(st.none(), st.integers(0, 40)))
@settings(deadline=None, max_examples=40)
def test_a_picture_holds_every_node_once(seed, budget, most):
    one = parsed(request(budget, 1, seed)[0])
    found = branches(one, most)
    rows = [branch.row for branch in found if branch.row is not None]
    assert len(set(rows)) == len(rows) and set(one.path) <= set(rows)
    assert len(rows) + sum(branch.hidden for branch in found) == len(one.tokens)
    assert all(one.parents[row] in rows for row in rows)
    places = {row: place for place, row in enumerate(rows)}
    assert all(places[one.parents[row]] < places[row] for row in rows[1:])
    bonus = next(place for place, branch in enumerate(found) if branch.row is None)
    assert len(found[bonus].stem) == 2 * len(one.path)
    if most is None:
        assert len(rows) == len(one.tokens)


def test_tokens_read_as_text():
    words = Words(Tokenizer.from_file(str(TINY / "tokenizer.json")))
    ids = words.tokenizer.encode(" the", add_special_tokens=False).ids
    assert words.token(ids[0]).plain == f'" the" {ids[0]}'
    part = words.tokenizer.encode("𝔘", add_special_tokens=False).ids[0]
    assert re.fullmatch(r"‹.+› \d+", words.token(part).plain)  # one byte of a character
    assert words.token(10**6).plain == "1000000"  # padded vocabularies have ids without a token
    assert quoted('a\n"b"\u202e') == '"a\\n\\"b\\"\\u202e"'


def test_the_cells_own_tokenizer_is_used_and_another_can_be_named(tmp_path):
    tokenizer = Tokenizer.from_file(str(TINY / "tokenizer.json"))
    rounds = request(count=1)
    expected = quoted(tokenizer.decode([rounds[0]["bonus"]], skip_special_tokens=False))
    own = results(tmp_path / "own", rounds, target="builtin:tiny/target")
    assert f"★ {expected}" in shown(own)
    assert f"★ {expected}" in shown(own / "cells" / "c0ffee" / "sittings" / "0" / "rounds.jsonl")
    none = results(tmp_path / "none", rounds)
    assert f"★ {rounds[0]['bonus']}" in shown(none)
    assert f"★ {expected}" in shown(none, tokenizer=TINY)
    with pytest.raises(Refusal, match=r"folder with a tokenizer\.json is"):
        shown(none, tokenizer=tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(Refusal, match="cannot be read"):
        shown(none, tokenizer=tmp_path)


def test_the_chosen_rounds_are_printed(tmp_path):
    place = results(tmp_path, request(8, 6) + request(16, 6) + request(16, 6, prompt_id="math-2", phase="warmup"))
    assert titles(shown(place)) == [f"ddtree-8 · math-1 · round {k}" for k in range(3)]
    assert "… 15 more rounds: choose with --prompt" in shown(place)
    two = [f"ddtree-{b} · math-1 · round 4" for b in (8, 16)]
    assert titles(shown(place, rounds=(4, 4))) == [*two, "ddtree-16 · math-2 · warmup · round 4"]
    chosen = shown(place, prompt="math-1", arms=("ddtree-16",), rounds=(4, math.inf))
    assert titles(chosen) == ["ddtree-16 · math-1 · round 4", "ddtree-16 · math-1 · round 5"]
    assert "2 rounds of 1 arm" in chosen
    assert titles(shown(place, phase="warmup"))[0] == "ddtree-16 · math-2 · warmup · round 0"


def titles(text):
    return [line for line in text.splitlines() if re.search(r" · round \d+$", line)]


def test_a_wide_tree_is_printed_in_full_when_asked(tmp_path):
    place = write(tmp_path / "rounds.jsonl", request(50, 1))
    short, long = shown(place), shown(place, full=True)
    assert "more nodes below" in short and "more node" not in long
    assert len(re.findall("[○●] ", long)) == 51 > len(re.findall("[○●] ", short))
    assert max(map(len, shown(place, width=60).splitlines())) <= 60


def test_the_summary_counts_what_the_rounds_did(small, tmp_path):
    chain = trees.chain(torch.tensor([1, 2, 3]), torch.tensor([-0.1, -0.2, -0.3]), torch.tensor(0))
    taken = dumped(chain, [0, 1, 2], 9, round=1, arm="ddtree-8", oracle_gap=2.5e-5, shadow_accepted=2)
    nothing = dumped(chain, [0], 9, round=2, arm="ddtree-8", shadow_accepted=None)
    place = write(tmp_path / "rounds.jsonl", [small, taken, nothing])
    text = shown(place)
    row = next(line for line in text.splitlines() if re.match("ddtree-8 +1 +3", line))
    assert row.split(maxsplit=5)[1:5] == ["1", "3", "4.0", "1.33"]  # requests, rounds, nodes, accepted
    assert "1.00 (tree 2.00)" in row and row.split()[-4:] == ["50", "%", "33", "%"]
    depths = text[text.index("nodes, mean") :].splitlines()
    assert depths[0].split()[2:] == ["1.3", "2.0", "0.7"] and depths[1].split()[2:] == ["67", "67", "0"]
    assert "the oracle looked at 2 rounds; its largest gap, 2.5e-05, is in math-1, round 1" in text
    assert "not DFlash's own acceptance, whose rounds start elsewhere" in " ".join(text.split())


def test_without_shadow_and_oracle_nothing_is_said_of_them(tmp_path):
    text = shown(write(tmp_path / "rounds.jsonl", request()))
    assert "linear draft" not in text and "oracle" not in text


def test_rounds_without_a_draft(tmp_path):
    """AR's: printed when asked for; beside other arms they only take part in the sums."""
    alone = [dumped(trees.root_only(torch.tensor(4)), [0], 5, arm="autoregressive", round=index) for index in range(3)]
    file = write(tmp_path / "rounds.jsonl", alone + request(count=1))
    assert titles(shown(file)) == ["ddtree-8 · math-1 · round 0"] and "… 3 more rounds" in shown(file)
    assert re.search(r"autoregressive +1 +3 +0\.0 +0\.00", shown(file))
    text = shown(file, arms=("autoregressive",))
    assert "0 nodes to depth 0, accepted 0" in text and "└─★ 5" in text and "at depth" not in text


@given(st.integers(0, 10**6))
@settings(deadline=None, max_examples=30)
def test_first_choices_are_the_linear_draft(seed):
    """A path of first choices is the top-1 chain, whose every token is the best at its position."""
    total = Totals()
    for one in map(parsed, request(30, 3, seed)):
        spine = [0]
        while any(parent == spine[-1] for parent in one.parents[1:]):
            spine.append(next(row for row in range(1, len(one.tokens)) if one.parents[row] == spine[-1]))
        assert follows_first_choices(one) == (list(one.path) == spine[: len(one.path)])
        total.add(one)
    assert total.rounds == 3 and total.nodes == 90 == sum(total.nodes_at.values())
    assert total.accepted == sum(total.accepted_at.values())


def test_cells_are_told_apart(tmp_path):
    results(tmp_path, request())
    results(tmp_path, request(cell_id="facade"), cell="facade")
    text = shown(tmp_path)
    assert "cell c0ffee · ddtree-8 · math-1 · round 0" in text
    assert "cell c0ffee · 4 rounds of 1 arm" in text and "cell facade · 4 rounds of 1 arm" in text


def test_unbounded_and_missing_numbers(small):
    small["log_probs"][1], small["log_probs"][3], small["oracle_gap"] = -1e308, None, 1e308
    text = shown_tree(parsed(small))
    assert re.search(r"11 +−∞ +−∞", text) and re.search(r"12 +– +–", text)
    assert parsed(small).oracle_gap == math.inf
    assert parsed({**small, "oracle_gap": 10**400}).oracle_gap == math.inf


def test_a_line_being_written_is_passed_over(tmp_path):
    file = write(tmp_path / "rounds.jsonl", request(count=3))
    torn = file.read_bytes()[:-40]
    file.write_bytes(torn)
    assert [line.head()["round"] for line in lines(file)] == [0, 1]
    assert "2 rounds of 1 arm" in shown(file)
    file.write_bytes(b"")
    with pytest.raises(Refusal, match="holds no round yet"):
        shown(file)


def test_reading_one_round_leaves_the_others_trees_unparsed(tmp_path, monkeypatch):
    file = write(tmp_path / "rounds.jsonl", request(count=30))
    parse, longest = json.loads, []
    monkeypatch.setattr("analysis.round_dumps.json.loads", lambda raw: longest.append(len(raw)) or parse(raw))
    shown(file, rounds=(17, 17))
    assert sorted(longest)[-2] < sorted(longest)[-1] / 2


def test_the_order_of_the_keys_does_not_matter(small, tmp_path):
    turned = dict(reversed(small.items()))
    assert parsed(turned) == parsed(small)
    assert shown(write(tmp_path / "rounds.jsonl", [turned])) == shown(write(tmp_path / "other.jsonl", [small]))


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"parents": [0, 0, 2, 0, 3, 1, 3]}, "row 2 has parent 2"),
        ({"depths": [0, 1, 3, 1, 2, 2, 2]}, "row 2 is not one deeper than its parent"),
        ({"path": [0, 4]}, "not as accepted"),
        ({"path": [0, 4], "accepted": 1}, "row 4 does not continue its path"),
        ({"path": [0, 99], "accepted": 1}, "row 99 does not continue its path"),
        ({"log_probs": [0.0]}, "its rows differ in length"),
        ({"log_probs": None}, "'log_probs' are not numbers"),
        ({"tokens": [1.5]}, "'tokens' is not whole"),
        ({"tokens": []}, "'tokens' is not whole"),
        ({"bonus": None}, "bonus or accepted is not whole"),
        ({"oracle_gap": "big"}, "'oracle_gap' is 'big'"),
        ({"shadow_accepted": 1.5}, "'shadow_accepted' is 1.5"),
        ({"arm": None}, "'arm' is None"),
        ({"accepted": 10**400}, "not as accepted"),
        ({"round": -1}, "'round' is -1"),
    ],
)
def test_a_line_that_is_no_round_is_named(small, tmp_path, change, fault):
    file = write(tmp_path / "rounds.jsonl", [small, {**small, **change}])
    with pytest.raises(Refusal, match=rf"rounds\.jsonl, line 2 is not a dumped round \(.*{re.escape(fault)}"):
        shown(file)


@given(st.binary(max_size=80), st.integers(0, 400), st.integers(0, 60))
@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damage_is_a_sentence(small, tmp_path, garbage, at, gone):
    whole = json.dumps(small).encode()
    damaged = (whole[:at] + garbage + whole[at + gone :]).replace(b"\n", b"")
    file = tmp_path / "rounds.jsonl"
    file.write_bytes(damaged + b"\n")
    try:
        shown(file)
    except Refusal as refusal:
        assert len(str(refusal).splitlines()) == 1


def test_a_run_is_identical_to_itself_whatever_its_log_probs(tmp_path):
    a = results(tmp_path / "a", request() + request(16))
    moved = [{**one, "log_probs": [p + 1e-6 * (p < 0) for p in one["log_probs"]]} for one in request() + request(16)]
    b = results(tmp_path / "b", moved, cell="facade")
    same, text = printed(compare_rounds, a, b)
    assert same and "2 requests compared: 2 identical, 0 part." in text
    assert "8 rounds alike, log-probs within 1e-06" in text and "draft tree" not in text
    assert main(["rounds", "compare", str(a), str(b)]) == 0


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda one: one.update(root_at=one["root_at"] + 1), "root position"),
        (lambda one: one["tokens"].__setitem__(0, 59), "root token"),
        (lambda one: one["tokens"].__setitem__(8, 59), "tree tokens"),
        (lambda one: one.update(bonus=(one["bonus"] + 1) % VOCABULARY), "bonus"),
        (lambda one: [one[key].pop() for key in ("tokens", "parents", "depths", "log_probs")], "tree size"),
        (lambda one: one.update(path=[0], accepted=0), "path"),
    ],
)
def test_the_first_round_that_parts_is_found(tmp_path, change, name):
    rounds = request(count=6, seed=3)
    place = next(one["round"] for one in rounds if one["round"] > 1 and one["accepted"] and 8 not in one["path"])
    other = json.loads(json.dumps(rounds))
    for one in other[place:]:
        change(one) if one["round"] == place or name == "root position" else None
    a, b = write(tmp_path / "a.jsonl", rounds), write(tmp_path / "b.jsonl", other)
    same, text = printed(compare_rounds, a, b)
    assert not same
    assert f"ddtree-8 · math-1 · turn 0 · repeat 0 parts in round {place}\n  {name}: " in text
    assert f"{place} rounds before it alike, log-probs equal" in text
    assert text.count("draft tree") == 2 and text.count(f"round {place}\nroot at position") == 2
    assert main(["rounds", "compare", str(a), str(b)]) == 1


def test_parents_that_differ_are_named(small):
    other = json.loads(json.dumps(small))
    row = max(row for row, depth in enumerate(small["depths"]) if depth == 2)
    other["parents"][row] = 4 - small["parents"][row]  # below the other node of depth 1
    found = differences(parsed(small), parsed(other), IDS)
    assert found == [("parents", f"row {row} is below row {small['parents'][row]} against row {other['parents'][row]}")]


def test_the_nodes_of_one_tree_only_are_marked(tmp_path):
    a, b = write(tmp_path / "a.jsonl", request(8)), write(tmp_path / "b.jsonl", request(16))
    same, text = printed(compare_rounds, a, b)  # one arm each: these are compared
    assert not same and "arms compared: ddtree-8 with ddtree-16" in text
    assert "tree size: 8 against 16 nodes, the first 8 alike" in text
    left, right = text.split("\nB  ddtree-16")
    assert left.count("only here") == 0 and right.count("only here") == 8


def test_outputs_are_compared_beyond_the_parting(tmp_path):
    rounds, shorter = request(count=4), request(count=4)
    for key in ("tokens", "parents", "depths", "log_probs"):
        del shorter[0][key][max(shorter[0]["path"]) + 1 :]
    a, b = write(tmp_path / "a.jsonl", rounds), write(tmp_path / "b.jsonl", shorter)
    n_output = 1 + sum(one["accepted"] + 1 for one in rounds)
    assert f"the outputs agree in the {n_output} tokens that both have" in printed(compare_rounds, a, b)[1]
    rounds[2]["bonus"] = (rounds[2]["bonus"] + 1) % VOCABULARY
    at = sum(one["accepted"] + 1 for one in rounds[:3])
    text = printed(compare_rounds, write(a, rounds), b)[1]
    assert f"the outputs part at token {at}: " in text


def test_the_list_of_requests_that_part(tmp_path):
    ids = [f"math-{n}" for n in range(20)]
    rounds = [one for n, name in enumerate(ids) for one in request(count=2, seed=n, prompt_id=name)]
    other = [{**one, "bonus": 59} if one["round"] else one for one in rounds[:-2]]
    a, b = results(tmp_path / "a", rounds), results(tmp_path / "b", other)
    same, text = printed(compare_rounds, a, b)
    assert not same and text.count("draft tree") == 2
    assert "19 requests compared: 0 identical, 19 part (first by bonus 19); only in A: 1." in text
    assert "… 7 more requests" in text and "math-18" not in text
    assert "math-18" in printed(compare_rounds, a, b, full=True)[1]
    text = printed(compare_rounds, a, b, prompt="math-3")[1]
    assert "1 request compared: 0 identical, 1 part." in text


def test_one_run_that_stops_earlier(tmp_path):
    a, b = write(tmp_path / "a.jsonl", request(count=5)), write(tmp_path / "b.jsonl", request(count=3))
    same, text = printed(compare_rounds, a, b)
    assert not same and "parts in round 3\n  end: B has no such round" in text
    assert text.count("draft tree") == 1 and "B  no such round" in text


def test_a_request_counts_from_its_last_sitting(tmp_path):
    """What a killed sitting left of a request is not its answer; interleaved requests are put in order."""
    a = results(tmp_path / "a", request(count=2, seed=9))
    again = request(count=4, sitting=1) + request(count=4, sitting=1, prompt_id="math-2")
    results(tmp_path / "a", sorted(again, key=lambda one: -one["round"]), sitting=1)
    b = results(tmp_path / "b", request(count=4) + request(count=4, prompt_id="math-2"))
    same, text = printed(compare_rounds, a, b)
    assert same and "2 requests compared: 2 identical" in text


def test_cells_of_two_sweeps_are_paired_by_id(tmp_path):
    for name in ("a", "b"):
        results(tmp_path / name, request())
        results(tmp_path / name, request(seed=1, cell_id="facade"), cell="facade")
    same, text = printed(compare_rounds, tmp_path / "a", tmp_path / "b")
    assert same and "2 requests compared" in text
    other = results(tmp_path / "c", request(cell_id="decade"), cell="decade")
    with pytest.raises(Refusal, match="no request in common"):
        printed(compare_rounds, tmp_path / "a", other)
    with pytest.raises(Refusal, match="has cell c0ffee more than once"):
        printed(compare_rounds, tmp_path, tmp_path / "b")


def test_refusals_of_the_command(tmp_path, capsys):
    place = results(tmp_path / "a", request() + request(16))
    other = results(tmp_path / "b", request(32) + request(64))
    empty = results(tmp_path / "c", [])
    (empty / "cells" / "c0ffee" / "sittings" / "0" / "rounds.jsonl").unlink()
    sentences = {
        f"rounds {tmp_path / 'none'}": "does not exist: a rounds.jsonl or a results folder is needed.",
        f"rounds {empty}": "holds no round dumps: a run with dump_rounds=true writes them.",
        f"rounds {place} --prompt x": "has no round of prompt x: there are math-1.",
        f"rounds {place} --arm x --arm y": "has no round of arm x, y: there are ddtree-8, ddtree-16.",
        f"rounds {place} --phase timed": "has no round of phase timed: there are profile.",
        f"rounds {place} --round 9": "has no round 9 of what is chosen: its last round is 3.",
        f"rounds {place} --rounds 9-12": "has no rounds 9 to 12 of what is chosen: its last round is 3.",
        f"rounds {place} --rounds 9-": "has no rounds 9 to the end of what is chosen: its last round is 3.",
        f"rounds compare {place} {other}": "name one of each with --arm and --arm.",
        f"rounds compare {place} {other} --arm ddtree-8": "of arm ddtree-8: there are ddtree-32, ddtree-64.",
        f"rounds compare {place} {other} --arm a --arm b --arm c": "once for both sides, or twice",
    }
    for words, sentence in sentences.items():
        assert main(words.split()) == 2, words
        said = capsys.readouterr()
        assert sentence in said.err and said.err.count("\n") == 1 and not said.out, words


@pytest.mark.parametrize(
    "wrong", ["--round -1", "--round x", "--rounds 3", "--rounds 5-2", "--rounds -3", "--rounds a-b"]
)
def test_rounds_that_are_no_range(wrong, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["rounds", "file", *wrong.split()])
    assert stop.value.code == 2 and "Traceback" not in capsys.readouterr().err


def test_the_command_prints(tmp_path, capsys):
    place = results(tmp_path, request())
    assert main(["rounds", str(place), "--round", "1"]) == 0
    said = capsys.readouterr().out
    assert titles(re.sub(" +$", "", said, flags=re.M)) == ["ddtree-8 · math-1 · round 1"]
    assert main(["rounds", str(place), "--rounds", "1-2", "--arm", "ddtree-8", "--full"]) == 0
    assert main(["rounds", "compare", "--arm", "ddtree-8", str(place), "--full", str(place)]) == 0
    assert len(sources(place / "cells" / "c0ffee")) == len(sources(place / "cells" / "c0ffee" / "sittings" / "0")) == 1
