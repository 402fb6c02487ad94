"""Parts of a workload: halves and caps that the ids and categories of the prompts decide, and nothing else."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

import workloads
from methods.base import Refusal
from workloads import Message, Prompt, Workload
from workloads.splits import part, part_name

CATEGORIES = ("chat", "code", "math")
sets = st.lists(st.tuples(st.integers(0, 999), st.sampled_from(CATEGORIES)), min_size=2, unique_by=lambda p: p[0])


def workload(prompts: list[tuple[int, str]]) -> Workload:
    return Workload("w", tuple(Prompt(f"p{i}", category, (Message("user", f"{i}?"),)) for i, category in prompts))


def ids(whole: Workload, split: str = "all", limit: int | None = None) -> list[str]:
    """The ids of a part; none where nothing is left."""
    try:
        return [prompt.id for prompt in part(whole, split, limit).prompts]
    except Refusal:
        return []


@given(sets)
def test_dev_and_test_are_the_whole_and_halve_every_category(prompts):
    whole = workload(prompts)
    dev, test = ids(whole, "dev"), ids(whole, "test")
    assert not set(dev) & set(test) and {*dev, *test} == set(ids(whole))
    for chosen in (dev, test):  # in the order of the whole
        assert chosen == [prompt for prompt in ids(whole) if prompt in chosen]
    for category in CATEGORIES:
        mine = {p.id for p in whole.prompts if p.category == category}
        assert len(mine & set(dev)) == len(mine) // 2


@given(sets, st.randoms())
def test_a_split_does_not_depend_on_the_order(prompts, dice):
    shuffled = list(prompts)
    dice.shuffle(shuffled)
    assert set(ids(workload(prompts), "dev")) == set(ids(workload(shuffled), "dev"))


@given(sets, st.integers(1000, 1999), st.sampled_from(CATEGORIES))
def test_a_prompt_added_moves_at_most_one_other_of_its_own_category(prompts, new, category):
    before, after = workload(prompts), workload([*prompts, (new, category)])
    moved = set(ids(before, "dev")) ^ (set(ids(after, "dev")) - {f"p{new}"})
    assert len(moved) <= 1 and all(after.find(prompt).category == category for prompt in moved)


@given(sets, st.integers(1, 60), st.sampled_from(["all", "dev", "test"]))
def test_a_cap_takes_the_categories_in_turn_and_grows(prompts, limit, split):
    whole = workload(prompts)
    half, some, more = ids(whole, split), ids(whole, split, limit), ids(whole, split, limit + 1)
    assert len(some) == min(limit, len(half)) and set(some) <= set(more) <= set(half)
    sizes = Counter(whole.find(prompt).category for prompt in some)
    left = {whole.find(prompt).category for prompt in set(half) - set(some)}
    assert all(sizes[category] >= max(sizes.values()) - 1 for category in left)


def test_parts_carry_names_of_their_own():
    whole = workload([(i, CATEGORIES[i % 3]) for i in range(30)])
    assert part(whole).name == "w" and part(whole).prompts == whole.prompts
    assert part(whole, "dev", 6).name == "w:dev:limit=6" and part(whole, limit=6).name == "w:limit=6"
    assert part_name("gsm8k", "test", None, "context=4096") == "gsm8k:test:context=4096"


def test_golden_parts():
    """Published numbers name a split: a change here changes what they were measured on."""
    whole = workload([(i, CATEGORIES[i % 3]) for i in range(12)])
    assert ids(whole, "dev") == ["p0", "p3", "p4", "p7", "p8", "p11"]
    assert ids(whole, "all", 4) == ["p0", "p6", "p7", "p11"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"split": "train"}, "workload.split=train is not accepted: all, dev or test is"),
        ({"limit": 0}, "workload.limit=0 is not accepted"),
        ({"split": "dev"}, "no category of w has two prompts"),
    ],
)
def test_refusals(options, said):
    with pytest.raises(Refusal, match=said):
        part(workload([(1, "chat"), (2, "code")]), **options)


def test_the_built_in_workloads_have_halves():
    for name in ("chat", "full", "smoke"):
        whole = workloads.load(name)
        assert len(ids(whole, "dev")) + len(ids(whole, "test")) == len(whole.prompts)
        assert part(whole, "dev").categories and part(whole, "dev", 3).warmup == whole.warmup
