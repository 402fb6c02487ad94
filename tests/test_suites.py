"""Published suites: prompt forms, order, counts, categories, placeholders, and every YAML as one that can be read."""

from __future__ import annotations

import hashlib
import json
from collections import Counter

import numpy as np
import pytest
from suite_rows import FORMS, PLACEHOLDER, ROWS

import workloads
from harness.__main__ import compose
from methods.base import Refusal
from workloads import suites
from workloads.published import Published

FULL = {
    **{"gsm8k": (1319, 128), "math500": (500, 128), "aime24": (30, 30), "aime25": (30, 30), "humaneval": (164, 164)},
    **{"mbpp": (257, 128), "livecodebench": (1055, 128), "swe_bench_lite": (300, 128), "mt_bench": (80, 80)},
    **{"alpaca": (52002, 128), "spec_bench": (480, 480), "speed_bench": (880, 880)},
    **{f"speed_bench_{k}k": (1536, 1536) for k in (1, 2, 8, 16, 32)},
    **{"gsm8k_100": (100, 100), "aime25_25": (25, 25)},
}


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def small(name, rows=2, **more):
    """The suite's definition, of a source with this many rows."""
    return {**workloads.definition(name), "rows": rows, **more}


def load_small(name, path, rows=2, **more):
    return workloads.load(f"{name}_small", path, settings=small(name, rows, **more))


def turns(prompt):
    assert [message.role for message in prompt.messages] == ["user"]
    return [prompt.messages[0].content, *prompt.follow_ups]


@pytest.mark.parametrize("name", ROWS)
def test_prompts_have_the_published_form(name, tmp_path):
    workload = load_small(name, write(tmp_path / "rows.jsonl", ROWS[name]))
    text = json.dumps([turns(prompt) for prompt in workload.prompts], ensure_ascii=False)
    assert hashlib.sha256(text.encode()).hexdigest() == FORMS[name]


def test_a_form_in_full(tmp_path):
    path = write(tmp_path / "rows.jsonl", ROWS["livecodebench"])
    with_code = load_small("livecodebench", path).prompts[1]
    assert with_code.messages[0].content == (
        "You are an expert Python programmer. You will be given a question (problem specification) and will generate a "
        "correct Python program that matches the specification and passes all tests. You will NOT return anything "
        "except for the program\n\n### Question:\nGiven nums, return both.\n\n"
        "### Format: Use the following code structure:\n```python\n"
        "class Solution:\n    def both(self, nums: List[int]) -> int:\n        \n```\n\n"
        "### Answer: (use the provided format with backticks)"
    )


@pytest.mark.parametrize(
    ("name", "answers"),
    [
        ("gsm8k", ["3", "2,000"]),
        ("math500", ["\\frac{5}{6}", "6"]),
        ("aime24", ["033", "204"]),
        ("aime25", ["70", "588"]),
        ("humaneval", [None, None]),
    ],
)
def test_answers(name, answers, tmp_path):
    workload = load_small(name, write(tmp_path / "rows.jsonl", ROWS[name]))
    assert [prompt.answer for prompt in workload.prompts] == answers


@pytest.mark.parametrize(
    ("name", "ids", "categories"),
    [
        ("math500", ["test/prealgebra/1.json", "test/counting_and_probability/2.json"], None),
        ("humaneval", ["HumanEval/0", "HumanEval/1"], ["code", "code"]),
        ("livecodebench", ["livecodebench-1873_A", "livecodebench-2777"], ["code", "code"]),
        ("mt_bench", ["mt_bench-81", "mt_bench-82"], ["writing", "math"]),
        ("spec_bench", ["spec_bench-81", "spec_bench-241"], ["mt_bench", "summarization"]),
        ("speed_bench", ["q-1", "q-2"], ["coding", "rag"]),
    ],
)
def test_ids_and_categories(name, ids, categories, tmp_path):
    workload = load_small(name, write(tmp_path / "rows.jsonl", ROWS[name]))
    assert [prompt.id for prompt in workload.prompts] == ids
    assert categories is None or [prompt.category for prompt in workload.prompts] == categories


@pytest.mark.parametrize("name", FULL)
def test_the_published_number_is_asked(name):
    suite = suites.suite(name)
    assert isinstance(suite, Published)
    assert (suite.rows, suite.size) == FULL[name]


def test_the_order_is_that_of_datasets(tmp_path):
    """`datasets.Dataset.shuffle(seed=0).select(range(128))` over 1,319 rows begins so (in datasets 5.2.0)."""
    rows = [{"question": f"What is {i} + 0?", "answer": f"#### {i}"} for i in range(1319)]
    workload = workloads.load("gsm8k", write(tmp_path / "test.jsonl", rows))
    ids = [prompt.id for prompt in workload.prompts]
    assert ids[:5] == ["gsm8k-264", "gsm8k-725", "gsm8k-996", "gsm8k-586", "gsm8k-1010"]
    assert ids == [f"gsm8k-{i}" for i in np.random.default_rng(0).permutation(1319)[:128]]
    assert workload.find("gsm8k-725").answer == "725"


def test_as_many_rows_as_are_asked_keep_their_order(tmp_path):
    path = write(tmp_path / "rows.jsonl", ROWS["gsm8k"])
    assert [p.id for p in load_small("gsm8k", path, count=2).prompts] == ["gsm8k-0", "gsm8k-1"]
    assert len(load_small("gsm8k", path, count=1).prompts) == 1


def test_spec_bench_has_its_six_categories(tmp_path):
    of_mt_bench = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
    kinds = [kind for kind in of_mt_bench for _ in range(10)]
    kinds += [k for k in ("translation", "summarization", "qa", "math_reasoning", "rag") for _ in range(80)]
    rows = [{"question_id": 81 + i, "category": kind, "turns": [f"Question {i}"]} for i, kind in enumerate(kinds)]
    workload = workloads.load("spec_bench", write(tmp_path / "question.jsonl", rows))
    assert set(Counter(prompt.category for prompt in workload.prompts).values()) == {80}
    assert workload.categories == suites.suite("spec_bench").categories


def test_a_part_may_not_bear_the_published_name(tmp_path):
    path = write(tmp_path / "rows.jsonl", ROWS["gsm8k"])
    with pytest.raises(Refusal, match=r"holds 2 rows where gsm8k has 1,319: a part of it needs a name of its own"):
        workloads.load("gsm8k", path)
    with pytest.raises(Refusal, match="skip_bad=true is not accepted with workload=gsm8k"):
        workloads.load("gsm8k", path, skip_bad=True)


def speed_rows():
    bare = {**ROWS["speed_bench"][1], "question_id": "q-3", "turns": [f"{PLACEHOLDER}\n\n{{question}}"]}
    return [*ROWS["speed_bench"], bare]


def test_placeholder_rows_are_refused_by_name(tmp_path):
    path = write(tmp_path / "rows.jsonl", speed_rows())
    with pytest.raises(
        Refusal, match=r"1 of 3 rows ship a placeholder for their text \(q-3\): prepare_data.py"
    ) as refused:
        load_small("speed_bench", path, rows=3)
    assert "workload.path" in str(refused.value) and "\n" not in str(refused.value)


def test_the_shipped_part_of_speed_bench_has_a_name_of_its_own(tmp_path):
    path = write(tmp_path / "rows.jsonl", speed_rows())
    assert [p.id for p in load_small("speed_bench_shipped", path, rows=3).prompts] == ["q-1", "q-2"]
    assert suites.suite("speed_bench_shipped").size is None


def test_the_throughput_tiers(tmp_path):
    rows = [{**ROWS["speed_bench"][0], "category": c, "question_id": c} for c in ("low_entropy", "mixed")]
    path = write(tmp_path / "rows.jsonl", rows)
    assert load_small("speed_bench_8k", path).categories == ("low_entropy", "mixed")


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("gsm8k", {"question": None}, "a column that should be text or a whole number is empty"),
        ("gsm8k", {"question": 1.5}, "is a float"),
        ("gsm8k", {"question": "  "}, None),
        ("gsm8k", {"answer": "#### "}, "the answer is empty"),
        ("humaneval", {"prompt": ["a"]}, "is a list"),
        ("math500", {"subject": "Alchemy"}, "the category 'Alchemy' is none of Algebra, "),
        ("mt_bench", {"prompt": []}, "the column 'prompt' is not a list of texts"),
        ("mt_bench", {"prompt": "one"}, "the column 'prompt' is not a list of texts"),
        ("mt_bench", {"prompt": ["a", " "]}, "the user message is empty"),
        ("spec_bench", {"turns": [3]}, "the column 'turns' is not a list of texts"),
        ("mbpp", {"prompt": "\ud800"}, "half a surrogate pair"),
        ("mbpp", {"prompt": "x" * 4_000_001}, "4,000,001 characters long: at most 4,000,000"),
    ],
)
def test_a_damaged_row_is_one_sentence_with_file_and_line(name, change, said, tmp_path):
    first, second = ROWS[name]
    path = write(tmp_path / "rows.jsonl", [first, {**second, **change}])
    if said is None:  # the words around it make it a prompt
        assert load_small(name, path)
        return
    with pytest.raises(Refusal) as refused:
        load_small(name, path)
    sentence = str(refused.value)
    assert sentence.startswith(f"{path}, line 2: ") and said in sentence and sentence.endswith(".")
    assert "\n" not in sentence


def test_another_schema_is_named(tmp_path):
    path = write(tmp_path / "rows.jsonl", [{"q": "a", "answer": "#### 1"}] * 2)
    with pytest.raises(Refusal, match=r"line 1: a column is missing \('question' is undefined\)"):
        load_small("gsm8k", path)


@pytest.mark.parametrize("template", ["{{ 1 / row }}", "{{ question.nothing }}", "{{ question.__class__ }}"])
def test_a_template_that_fails_is_one_sentence(template, tmp_path):
    path = write(tmp_path / "rows.jsonl", ROWS["gsm8k"])
    with pytest.raises(Refusal, match=r"rows.jsonl, line 1: "):
        load_small("gsm8k", path, prompt=template)


# The definitions


@pytest.mark.parametrize("name", suites.names())
def test_every_definition_reads(name):
    suite = suites.suite(name)
    assert suite.name == name and suite.source and suite.licence and suite.presence
    if isinstance(suite, Published):
        assert suite.categories and suite.templates.columns
        assert all(getattr(source, "revision", None) is None or len(source.revision) == 40 for source in suite.sources)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kind": "guess"}, "kind=guess is not accepted: one of published, builtin, mix, file, sharegpt is"),
        ({"colour": 1}, "colour is not known"),
        ({"id": ...}, "id is missing"),
        ({"id": 7}, "id=7 is not accepted: a text is"),
        ({"rows": "many"}, "rows=many is not accepted: an integer is"),
        ({"count": True}, "count=True is not accepted: an integer or null is"),
        ({"count": 0}, "count=0 is not accepted: an integer of at least 1 or null is"),
        ({"categories": "math"}, "categories=math is not accepted: a list is"),
        ({"placeholder": 3}, "placeholder=3 is not accepted: a mapping is"),
        ({"prompt": "{{ question"}, "a template cannot be read"),
        ({"sources": 3}, "sources=3 is not accepted: a list of sources is"),
        ({"sources": [3]}, "kind=None is not accepted"),
        ({"sources": [{"kind": ["hub"]}]}, "is not accepted"),
        ({"turns": "prompt"}, "prompt or turns is needed, and not both"),
        ({"sources": [{"kind": "ftp"}]}, "kind=ftp is not accepted: one of hub, web, package is"),
        ({"sources": [{"kind": "hub", "split": "test"}]}, "sources: repository is missing"),
    ],
)
def test_a_wrong_definition_is_one_sentence(change, said):
    settings = {k: v for k, v in {**workloads.definition("gsm8k"), **change}.items() if v is not ...}
    with pytest.raises(Refusal, match=said) as refused:
        suites.suite("mine", settings)
    assert str(refused.value).startswith("workload/mine.yaml, suite") and "\n" not in str(refused.value)


def test_a_definition_file_is_checked(tmp_path):
    (tmp_path / "a.yaml").write_text("name: [")
    (tmp_path / "b.yaml").write_text("name: b\n")
    for name, said in (("a", "cannot be read as YAML"), ("b", "a mapping `suite` in it"), ("c", "cannot be read")):
        with pytest.raises(Refusal, match=said) as refused:
            workloads.definition(name, tmp_path)
        assert "\n" not in str(refused.value)


# From the harness


def test_a_part_of_a_suite_under_a_name_of_its_own(tmp_path):
    words = ["device=cpu", "workload=gsm8k", "workload.suite.count=64"]
    with pytest.raises(Refusal, match=r"workload\.suite differs from that of workload=gsm8k: another suite needs"):
        compose(words)
    (job,) = compose([*words, "workload.name=gsm8k_64"])
    assert job.cell.own_suite == {**workloads.definition("gsm8k"), "count": 64}
    (whole,) = compose(["device=cpu", "workload=gsm8k"])
    assert whole.cell.own_suite is None and whole.cell.cell_id != job.cell.cell_id


def test_skip_bad_is_what_a_cell_consumes():
    own = ["device=cpu", "workload=file", "workload.path=x.jsonl"]
    (strict,), (lax,) = compose(own), compose([*own, "workload.skip_bad=true"])
    assert lax.cell.skip_bad and lax.cell.cell_id != strict.cell.cell_id
