"""Steps of a word problem and the ways to write them down, for `math_problems.py`."""

from __future__ import annotations

from dataclasses import dataclass

from methods.checkpoints.recipe.words import World, cap


@dataclass
class Step:
    """One operation: why it is done, the two operands, the sign and the result."""

    why: str
    left: int
    sign: str
    right: int
    unit: str

    @property
    def result(self) -> int:
        if self.sign == "+":
            return self.left + self.right
        if self.sign == "-":
            return self.left - self.right
        return self.left * self.right if self.sign == "×" else self.left // self.right

    @property
    def equation(self) -> str:
        return f"{self.left} {self.sign} {self.right} = {self.result}"

    @property
    def check(self) -> str:
        inverse = {"+": "-", "-": "+", "×": "/", "/": "×"}[self.sign]
        return f"{self.result} {inverse} {self.right} = {self.left}"


@dataclass
class Problem:
    """A problem's text, its steps and the sentence that states the result (with {} for the number)."""

    text: str
    steps: list[Step]
    closing: str
    key: tuple[object, ...]

    @property
    def result(self) -> int:
        return self.steps[-1].result


ORDINALS = ("First", "Then", "After that", "Finally")


def _prose(w: World, p: Problem) -> str:
    lead = w.pick(("", "Let us go step by step. ", "Here is the way. ", "We work it out in order. "))
    parts = []
    for i, step in enumerate(p.steps):
        first = "We" if len(p.steps) == 1 else f"{ORDINALS[i]} we"
        parts.append(
            w.pick(
                (
                    f"{first} {step.why}: {step.equation} {step.unit}.",
                    f"{first} {step.why}, which gives {step.equation}.",
                    f"{first} {step.why}. {step.left} {step.sign} {step.right} is {step.result}, "
                    f"that is, {step.result} {step.unit}.",
                )
            )
        )
    return lead + " ".join(parts)


def _numbered(w: World, p: Problem) -> str:
    word = w.pick(("Step {}: ", "{}. ", "({}) "))
    lead = w.pick(("Given the numbers in the problem, we need ", "The problem takes "))
    lead += f"{len(p.steps)} step{'s' * (len(p.steps) > 1)}.\n"
    return lead + "\n".join(f"{word.format(i + 1)}{cap(s.why)}. {s.equation} {s.unit}." for i, s in enumerate(p.steps))


def _table(w: World, p: Problem) -> str:
    lines = [f"- {cap(s.why)}:\n  {s.equation}" for s in p.steps]
    return w.pick(("Plan and sums:\n", "What to do, line by line:\n", "Working:\n")) + "\n".join(lines)


def solution(w: World, p: Problem) -> str:
    """A worked answer in one of several styles, ending in `Answer: N`."""
    body = w.pick((_prose, _prose, _numbered, _table))(w, p)
    if len(p.steps) == 1 or w.chance(0.4):
        first = p.steps[0]
        body = (
            w.pick(
                (
                    f"We know two numbers at the start, {first.left} and {first.right}.",
                    f"The first sum needs {first.left} and {first.right}.",
                    f"What we are told: {first.left} and {first.right}, among the {first.unit}.",
                    f"Look at {first.left} and {first.right} first.",
                )
            )
            + "\n"
            + body
        )
    last = p.steps[-1]
    lines = [body]
    if len(p.steps) == 1 or w.chance(0.55):
        lead = w.pick(("Check", "To check", "A quick check", "Checking the last sum"))
        lines.append(f"{lead}: {last.check}, {w.pick(('as it should be', 'so it fits', 'which is right'))}.")
    lines.append(p.closing.format(p.result))
    lines.append(f"Answer: {p.result}")
    return "\n".join(lines)
