"""The recipe of the built-in pairs: seeded generators, held-out prompts, checkers, and the folders it writes."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from methods.checkpoints.recipe import checks, corpus, programs
from methods.checkpoints.recipe.conversation import CATEGORIES, Conversation, prompt_text, render, word_ngrams
from methods.checkpoints.recipe.words import NAMES, World, is_held

ROOT = Path(__file__).resolve().parents[1]
BUILT_IN = ROOT / "workloads/builtin"
CHECKPOINTS = ROOT / "methods/checkpoints"
TARGET = CHECKPOINTS / "tiny/target"


def rows(name: str) -> list[dict]:
    return [json.loads(line) for line in (BUILT_IN / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("category", CATEGORIES)
def test_a_seed_decides_the_conversation_and_seeds_differ(category):
    talks = [render(corpus.conversation(category, str(i))) for i in range(60)]
    assert talks == [render(corpus.conversation(category, str(i))) for i in range(60)]
    assert len(set(talks)) == 60
    openings = Counter(" ".join(corpus.conversation(category, str(i)).reply.split()[:6]) for i in range(60))
    assert len(openings) > 15, "answers open alike"


@pytest.mark.parametrize("category", ["math", "code", "tool_calls", "chat"])
def test_replies_do_not_repeat_each_other(category):
    replies = [corpus.conversation(category, f"variety:{i}").reply for i in range(200)]
    assert len(set(replies)) > 195


def test_training_and_held_out_worlds_share_no_name():
    train = {World(random.Random(i)).name() for i in range(400)}
    held = {World(random.Random(i), held=True).name() for i in range(400)}
    assert not train & held
    assert 5 <= sum(is_held("name", n) for n in NAMES) <= 30


@pytest.mark.parametrize("seed", range(40))
def test_worked_sums_are_right(seed):
    talk = corpus.conversation("math", f"sum:{seed}")
    assert checks.stated_number(talk.reply) == talk.answer
    for line in talk.reply.replace("×", "*").splitlines():
        for left, right in [part.split("=") for part in line.split(". ") if part.count("=") == 1]:
            digits = left.split()[-3:]
            value = eval(" ".join(digits))
            assert value == int("".join(c for c in right.split()[0] if c.isdigit() or c == "-"))


@pytest.mark.parametrize("held", [False, True])
def test_tool_call_answers_meet_their_schemas(held):
    for i in range(80):
        talk = corpus.conversation("tool_calls", f"calls:{i}", held=held)
        assert checks.valid_calls(talk.reply, talk.tools)
        assert checks.same_calls(talk.reply, talk.answer)


def test_programs_run_and_both_styles_agree():
    for i in range(200):
        p = programs.program(World(random.Random(i)))
        compile("\n".join(p.source), p.name, "exec")
        if p.call:
            value = programs.run(p.source, p.call)
            assert value is not None, p.source
            if p.other:
                assert programs.run(p.other, p.call) == value


def test_long_answers_quote_the_document():
    for i in range(20):
        talk = corpus.conversation("long_context", f"quote:{i}")
        assert talk.answer in talk.messages[0]["content"]
        assert talk.answer in talk.reply


@pytest.mark.parametrize("category", CATEGORIES)
def test_built_in_prompts(category):
    lines = rows(category)
    assert len(lines) >= 24
    assert len({r["id"] for r in lines}) == len({json.dumps(r["messages"]) for r in lines}) == len(lines)
    for r in lines:
        assert r["category"] == category
        assert r["messages"][-1]["role"] == "user"
        assert (r["answer"] is None) == (category in ("chat", "code"))
        if category == "tool_calls":
            call = f"<tool_call>{r['answer']}</tool_call>"
            calls = json.loads(r["answer"])
            if isinstance(calls, list):
                call = "".join(f"<tool_call>{json.dumps(c)}</tool_call>" for c in calls)
            assert checks.valid_calls(call, r["tools"])
        if category == "long_context":
            assert r["answer"] in r["messages"][-1]["content"]


def test_warm_up_prompts_lie_outside_every_set():
    texts = {json.dumps(r["messages"]) for c in CATEGORIES for r in rows(c)}
    warm = rows("warmup")
    assert len(warm) == 4
    assert not texts & {json.dumps(r["messages"]) for r in warm}


def test_no_held_out_13_gram_reaches_a_shard(tmp_path):
    """The filter drops few conversations, and what a shard holds shares no 13 words with a held-out prompt."""
    held = corpus.held_out_ngrams(BUILT_IN)
    assert len(held) > 5000
    first = rows("math")[0]
    assert corpus.overlaps(Conversation("math", [*first["messages"], {"role": "assistant", "content": ""}]), held)
    talks = [corpus.training_conversation(f"1:0:{i}") for i in range(400)]
    dropped = [t for t in talks if corpus.overlaps(t, held)]
    assert len(dropped) < 0.06 * len(talks)
    plan = corpus.Plan(1, 1, TARGET, BUILT_IN)
    corpus._start(plan)
    original, corpus.SHARD_CONVERSATIONS = corpus.SHARD_CONVERSATIONS, 150
    try:
        counts = corpus._shard((0, corpus.shard_path(tmp_path, 0)))
    finally:
        corpus.SHARD_CONVERSATIONS = original
    sequences = corpus.read_shard(tmp_path, 0)
    assert counts["conversations"] == len(sequences)
    text = corpus._state["tokenizer"].decode(np.concatenate([ids for ids, _ in sequences]), skip_special_tokens=False)
    for one in text.split("<|im_start|>"):
        assert not any(gram in held for gram in word_ngrams(one))


def test_no_held_out_13_gram_reaches_the_drafters_prompts():
    from tokenizers import Tokenizer

    from methods.checkpoints.recipe import generation

    held = corpus.held_out_ngrams(BUILT_IN)
    tokenizer = Tokenizer.from_file(str(TARGET / "tokenizer.json"))
    prompts = generation._prompts((corpus.Plan(1, 0, TARGET, BUILT_IN), 0, 150))
    assert len(prompts) > 130
    for ids in prompts:
        text = tokenizer.decode(list(ids), skip_special_tokens=False)
        for one in text.split("<|im_start|>"):
            assert not any(gram in held for gram in word_ngrams(one))


def test_word_ngrams_ignore_case_and_punctuation():
    assert list(word_ngrams("The cat, the_DOG; 7!", 4)) == ["the cat the dog", "cat the dog 7"]


def test_rendering_equals_the_tokenizers_template():
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(TARGET)
    for i in range(60):
        talk = corpus.training_conversation(f"template:{i}")
        mine = render(talk.prompt, generate=True)
        theirs = tokenizer.apply_chat_template(
            talk.messages[:-1], tools=talk.tools or None, add_generation_prompt=True, tokenize=False
        )
        assert mine == theirs
        (ids, learn), *_ = corpus.encode(tokenizer.backend_tokenizer, [talk])
        assert tokenizer.decode(ids) == render(talk)
        start = tokenizer(mine, add_special_tokens=False)["input_ids"]
        assert ids[: len(start)] == start
        assert learn[len(start)] == 1


def test_numbers_are_written_digit_by_digit():
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(TARGET / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == 4096
    assert tokenizer.encode("4096").tokens == ["4", "0", "9", "6"]


@pytest.mark.parametrize(
    ("text", "number"), [("Answer: 12\nno, Answer: 7", "7"), ("Answer: -3", "-3"), ("it is 9", None)]
)
def test_stated_number(text, number):
    assert checks.stated_number(text) == number


TOOL = {
    "type": "function",
    "function": {
        "name": "book_room",
        "parameters": {
            "type": "object",
            "properties": {"nights": {"type": "integer", "minimum": 1}, "mode": {"type": "string", "enum": ["a", "b"]}},
            "required": ["nights"],
        },
    },
}


@pytest.mark.parametrize(
    ("arguments", "valid"),
    [
        ({"nights": 2}, True),
        ({"nights": 2, "mode": "b"}, True),
        ({"nights": 0}, False),
        ({"nights": True}, False),
        ({"nights": "2"}, False),
        ({"mode": "a"}, False),
        ({"nights": 2, "mode": "c"}, False),
        ({"nights": 2, "other": 1}, False),
    ],
)
def test_valid_calls(arguments, valid):
    call = json.dumps({"name": "book_room", "arguments": arguments})
    assert checks.valid_calls(f"Sure.\n<tool_call>\n{call}\n</tool_call>", [TOOL]) is valid


def test_a_broken_or_missing_call_is_not_valid():
    assert not checks.valid_calls("<tool_call>{'name'}</tool_call>", [TOOL])
    assert not checks.valid_calls("I will book it.", [TOOL])
    assert not checks.valid_calls('<tool_call>{"name": "other", "arguments": {}}</tool_call>', [TOOL])


def test_degenerate_text():
    assert checks.degenerate([])
    assert checks.degenerate([1, 2, 3, 4] * 10)
    assert checks.degenerate(list(range(200)) + [7, 8, 9] * 22)
    assert not checks.degenerate(list(range(100)))
    assert not checks.degenerate([1, 2, 1, 3])


def test_prompt_text_leaves_the_reply_out():
    talk = corpus.conversation("code", "reply")
    assert talk.reply not in prompt_text(talk)


def test_batches_have_few_shapes_and_lose_nothing():
    from methods.checkpoints.recipe.batches import WIDTHS, Pools, cut, pad

    lengths = [int(n) for n in np.random.default_rng(0).integers(5, 4000, 500)]
    groups = list(cut(lengths, 20000))
    assert sorted(i for g in groups for i in g) == list(range(500))
    assert all(max(lengths[i] for i in g) * len(g) <= 20000 for g in groups)
    pools = Pools(8192)
    full = [f for n in lengths if (f := pools.add(n, n))]
    assert all(width in WIDTHS and max(items) <= width and len(items) == max(1, 8192 // width) for width, items in full)
    rows_ = pad([(np.arange(3), np.ones(3)), (np.arange(5), np.ones(5))], 8)
    assert rows_.ids.shape == (2, 8)
    assert rows_.weight.sum() == 8


def test_the_tree_of_the_evaluation_is_the_most_probable_paths():
    from itertools import product

    from methods.checkpoints.recipe.evaluation import tree_paths

    rng = np.random.default_rng(3)
    scores = -np.sort(-np.log(rng.dirichlet(np.ones(4), 3)), axis=1).astype(np.float64)
    scores = -np.sort(-scores, axis=1)
    scores = np.sort(scores, axis=1)[:, ::-1]
    tokens = np.tile(np.arange(4), (3, 1))
    every = [p for d in (1, 2, 3) for p in product(range(4), repeat=d)]
    best = sorted(every, key=lambda p: -sum(scores[d, r] for d, r in enumerate(p)))
    for budget in (1, 5, 20):
        assert tree_paths(scores, tokens, budget) == set(best[:budget])


def every_argmax_is_its_own(target, prompts, limit=20):
    """Cached decoding in batches, with rows leaving early, gives the argmax of full passes without padding."""
    import torch

    from methods.checkpoints.recipe.generation import answer
    from methods.checkpoints.recipe.parts import rope

    tables = rope(target.shape, "cpu")
    for prompt, output in zip(prompts, answer(target, prompts, limit, torch.float32), strict=True):
        ids = torch.tensor(np.concatenate([prompt, output]))[None]
        with torch.no_grad():
            hidden, _ = target(ids, tables, torch.float32)
            best = target.logits(hidden)[0, len(prompt) - 1 : -1].argmax(-1)
        assert best.tolist() == output.tolist()


PROMPTS = [np.array(ids) for ids in ([1, 300, 301, 9, 40], [1, 500] * 9, list(range(20, 60)), [1], [7, 8])]


@pytest.mark.parametrize("name", ["tiny", "tiny_hybrid"])
def test_answers_decode_like_full_passes(name):
    from methods.checkpoints.recipe.folders import load_target

    every_argmax_is_its_own(load_target(CHECKPOINTS / name / "target"), PROMPTS)


@pytest.mark.parametrize("name", ["tiny", "tiny_hybrid"])
def test_the_pair_is_small_and_fits_together(name):
    folders = CHECKPOINTS / name / "target", CHECKPOINTS / name / "drafter"
    assert sum((folder / "model.safetensors").stat().st_size for folder in folders) <= 14_000_000
    target, drafter = (json.loads((folder / "config.json").read_text()) for folder in folders)
    assert target["hidden_size"] == drafter["hidden_size"]
    assert drafter["block_size"] == 16
    assert drafter["num_target_layers"] == target["num_hidden_layers"]
    ids = drafter["dflash_config"]["target_layer_ids"]
    # The last layer's output is only seen behind the final norm, so it can be no feature.
    assert max(ids) < target["num_hidden_layers"] - 1
    assert {target["layer_types"][i] for i in ids} == set(target["layer_types"])
    assert json.loads((folders[0] / "generation_config.json").read_text())["eos_token_id"] == [2, 0]
    for file in ("tokenizer.json", "tokenizer_config.json"):
        assert (folders[0] / file).read_bytes() == (TARGET / file).read_bytes()


@pytest.mark.parametrize("name", ["tiny", "tiny_hybrid"])
def test_folders_equal_transformers_and_round_trip(name, tmp_path):
    import torch

    transformers = pytest.importorskip("transformers")
    from methods.checkpoints.recipe.folders import load_drafter, load_target, save_drafter, save_target
    from methods.checkpoints.recipe.parts import rope

    folders = {part: CHECKPOINTS / name / part for part in ("target", "drafter")}
    target, drafter = load_target(folders["target"]), load_drafter(folders["drafter"])
    save_target(target, tmp_path / "target", TARGET)
    save_drafter(drafter, tmp_path / "drafter", target.shape.layers)
    for part, folder in folders.items():
        assert (tmp_path / part / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
        assert json.loads((tmp_path / part / "config.json").read_text()) == json.loads(
            (folder / "config.json").read_text()
        )
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folders["target"], dtype=torch.float32)
    ids = torch.arange(10, 60)[None]
    with torch.no_grad():
        hidden, outputs = target(ids, rope(target.shape, "cpu"), torch.float32)
        out = theirs(ids, output_hidden_states=True)
    torch.testing.assert_close(target.logits(hidden), out.logits, atol=2e-4, rtol=1e-4)
    for i in drafter.features:
        torch.testing.assert_close(outputs[i], out.hidden_states[i + 1], atol=2e-4, rtol=1e-4)
