r"""Answers in LaTeX boxes, after `####` and as tool calls; `test_workloads` has those of the built-in prompts."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads import Message, Prompt, answers, mathematics

ASKS = "What is it?\nPlease reason step by step, and put your final answer within \\boxed{}."


def boxed(answer: str) -> Prompt:
    return Prompt("a", "math500", (Message("user", ASKS),), answer=answer)


@pytest.mark.parametrize(
    ("expected", "given"),
    [
        (r"\frac{1}{2}", r"\dfrac12"),
        (r"\frac{1}{2}", "0.5"),
        (r"\frac{1}{2}", ".5"),
        (r"-\frac{1}{2}", "-1/2"),
        (r"\frac{-1}{2}", r"-\tfrac{1}{2}"),
        (r"5\frac{1}{2}", "5.5"),
        (r"\frac{\sqrt{3}}{2}", r"\frac{\sqrt3}2"),
        (r"\frac{1}{\sqrt{2}}", r"\dfrac 1{\sqrt 2}"),
        (r"2\sqrt{3}", r"2 \sqrt3"),
        ("1,000,000", "1000000"),
        ("10{,}000", r"10\,000"),
        ("1234", r"1,\!234"),
        ("12", "12.0"),
        ("12", "x = 12"),
        ("12", r"\$12"),
        ("12", r"12\%"),
        (r"12\%", "12"),
        (r"10\text{ cm}", "10"),
        ("10", r"10 \text{ cm}^2"),
        ("10", r"10\text{ square feet}"),
        ("10", "10 square feet"),
        (r"90^\circ", "90"),
        (r"90^{\circ}", r"90 \text{ degrees}"),
        (r"36\pi \text{ cm}^3", r"36 \pi"),
        ("(3, -2)", r"\left( 3, -2 \right)"),
        (r"\left(\frac{1}{2}, 3\right)", "(0.5,3)"),
        ("(-\\infty, 2]", r"x \in (-\infty,2]"),
        ("1, -2", "-2,1"),
        ("1, -2", "x=-2, x=1"),
        (r"1 \text{ and } 2", "2, 1"),
        (r"\{1,2\}", r"\{ 2, 1 \}"),
        (r"\text{Evelyn}", "evelyn"),
        (r"\text{(C)}", "C"),
        (r"\textbf{(C)}", "(C)"),
        ("y = 2x + 3", "2x+3"),
        ("x^2 + 7x + 10", "x^{2}+7x+10"),
        (r"x \le 5", r"x\leq5"),
        (r"1011_2", "1011_{2}"),
        (r"\begin{pmatrix} 1 \\ \frac12 \end{pmatrix}", r"\begin{pmatrix}1\\\frac{1}{2}\end{pmatrix}"),
        (r"2 \cdot 3", r"2\times3"),
        ("073", "73"),
        (r"3 - 4i", "3-4i"),
    ],
)
def test_the_same_mathematics(expected, given):
    assert mathematics.same(expected, given) and mathematics.same(given, expected)


@pytest.mark.parametrize(
    ("expected", "given"),
    [
        (r"\frac{1}{2}", r"\frac{2}{1}"),
        (r"\frac{84}{2}", "2"),
        ("12", "-12"),
        ("12", "1.2"),
        ("12", "112"),
        ("12", r"12\sqrt{2}"),
        ("12", r"\sqrt{12}"),
        ("12", "12x"),
        ("12", "12 i"),
        ("5", "5 pi"),
        (r"5\frac{1}{2}", r"\frac{5}{2}"),
        ("0.333", r"\frac{1}{3}"),
        ("0.5", r"50\%"),
        ("(3, -2)", "(-2, 3)"),
        ("(3, -2)", "(3, -2]"),
        ("(1, 2)", "1, 2, 3"),
        ("1, 1", "1, 2"),
        ("1", "1, 2"),
        (r"\text{Evelyn}", "Evan"),
        ("x", "X"),
        ("1011_2", "1011"),
        ("1/0", "0"),
        ("", "1"),
        ("12", ""),
    ],
)
def test_other_mathematics(expected, given):
    assert not mathematics.same(expected, given) and not mathematics.same(given, expected)


@given(st.integers(-999, 999), st.integers(1, 99), st.sampled_from([r"\frac{%d}{%d}", r"\dfrac{%d}{%d}", "%d/%d"]))
def test_fractions_are_read_as_they_are_written(above, below, form):
    assert mathematics.value(mathematics.normal(form % (above, below))) == Fraction(above, below)


@given(st.text(alphabet="0123456789,.-()[]{}\\fractexsqrpi ^_=", max_size=30), st.text(max_size=12))
def test_any_text_is_like_itself_and_never_breaks_the_judge(one, other):
    assert mathematics.same(one, one)
    assert mathematics.same(one, other) == mathematics.same(other, one)
    mathematics.boxed(one)


@pytest.mark.parametrize(
    ("text", "box"),
    [
        (r"so \boxed{\frac{1}{\sqrt{2}}}.", r"\frac{1}{\sqrt{2}}"),
        (r"\boxed{1} or rather \boxed {2}", "2"),
        (r"$\boxed 7$.", "7"),
        (r"\fbox{x}", "x"),
        (r"\boxed{\text{open", None),
        (r"\boxed", None),
        ("none", None),
    ],
)
def test_the_last_box(text, box):
    assert mathematics.boxed(text) == box


def test_prompts_that_ask_for_a_box():
    assert answers.correct(boxed(r"\frac{3}{4}"), r"Thus $\boxed{\dfrac{3}{4}}$.")
    assert not answers.correct(boxed(r"\frac{3}{4}"), r"Thus \frac{3}{4}.")
    assert answers.correct(boxed("70"), "The answer is 70.")  # a number counts without a box too
    assert answers.correct(boxed("70"), r"It is 3 + 67 = \boxed{070}, in 2 steps.")
    assert not answers.correct(boxed("2"), r"\boxed{\frac{84}{2}}")
    assert not answers.correct(boxed("42"), r"\boxed{3\sqrt{42}}")
    assert not answers.correct(boxed(r"\text{Evelyn}"), 'It says "Evelyn".')


def test_gsm8k_answers_with_their_workings():
    long = "He makes 9 * 2 = <<9*2=18>>18 dollars.\n#### 1,018"
    plain = Prompt("a", "gsm8k", (Message("user", "How many?"),), answer=long)
    assert answers.correct(plain, "So 18 + 1000 = 1018") and not answers.correct(plain, "18")
    assert answers.correct(boxed(long), r"\boxed{\$1{,}018}") and answers.correct(plain, long)


def test_what_was_thought_is_no_answer():
    assert not answers.correct(boxed("7"), r"<think>Perhaps \boxed{7}</think> It is \boxed{8}.")
    assert answers.correct(boxed("7"), r"<think>Perhaps \boxed{8}</think> It is \boxed{7}.")
    assert not answers.correct(boxed("7"), "<think>7</think>")
