r"""Whether two final answers are the same mathematics, as far as their writing tells: the answers of MATH and AIME.

`\boxed{\dfrac{1}{2}}`, `0.5` and `1/2` are one number; `x = 5` is `5`; `10\text{ cm}`, `\$10` and `10\%` are `10`.
Tuples and intervals agree entry by entry and in order, bare lists and sets in any order. Nothing is calculated beyond
fractions: `2\sqrt{3}` and `\sqrt{12}` differ, which errs towards wrong.

The rules grew out of `is_equiv` of Hendrycks et al., Measuring Mathematical Problem Solving With the MATH Dataset
(2021).
"""

from __future__ import annotations

import re
from fractions import Fraction

_BOXES = re.compile(r"\\(?:boxed|fbox)\s*")
_GROUPS = (("\\{", "\\}", False), ("(", ")", True), ("(", "]", True), ("[", ")", True), ("[", "]", True))  # ordered?
_TEXT = r"\\(?:text|textbf|textit|textrm|mbox|mathrm|mathbf)\s*\{([^{}]*)\}"
_POWER = r"(?:\s*\^\s*\{?\d\}?)?"
_UNIT = re.compile(rf"(?<=[\w)}}])\s*{_TEXT}{_POWER}\s*$")
_WORDS = re.compile(rf"(?<=\d)\s+(?!pi\b)[a-zA-Z]{{2,}}(?: [a-zA-Z]+)*\.?{_POWER}$")
_NAMED = re.compile(r"^(?:[a-zA-Z]|\\[a-z]+)(?:_\{?\w\}?)?(?:\([a-z]\))?(?:=|\\in(?![a-z]))(?=[^=])")
_NUMERAL = r"(?:\d+(?:\.\d*)?|\.\d+)"
_FRACTION = re.compile(
    rf"([-+]?)(\d+(?=\\))?(?:\\frac\{{([-+]?{_NUMERAL})\}}\{{([-+]?{_NUMERAL})\}}|({_NUMERAL})/({_NUMERAL}))"
)
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_BRACES = r"\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\}"
_WRITTEN_ALIKE = (  # in this order
    (r"\\\\", ";"),  # the end of a matrix's row
    (r"\{,\}(?=\d{3})", ","),
    (r"\\[!,;:> ]|\\q?quad(?![a-z])|~", " "),
    (r"\\(?:left|right|displaystyle|big|Big|bigl|bigr)(?![a-zA-Z])\.?", ""),
    (r"\\[dtc]frac(?![a-z])", r"\\frac"),
    (r"\^\s*(?:\{\s*\\circ\s*\}|\\circ)|\\degree(?![a-z])|°", ""),
    (r"\\?[$%]|\\[()\[\]]", ""),
    (r"\\(?:cdot|times)(?![a-z])", "*"),
    (r"\\(le|ge|ne)(?![a-z])", r"\\\1q"),
    (r"[−–]", "-"),
)


def boxed(text: str) -> str | None:
    r"""What is in the last `\boxed{…}` (or `\fbox{…}`), braces balanced; without braces, the next word. None if there
    is no box, or the last one is not closed."""
    found = list(_BOXES.finditer(text))
    if not found:
        return None
    rest = text[found[-1].end() :]
    if not rest.startswith("{"):
        word = re.match(r"[^\s$]+", rest)
        return word[0].rstrip(".,") if word else None
    depth = 0
    for at, character in enumerate(rest):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return rest[1:at]
    return None


def same(expected: str, given: str) -> bool:
    """Whether two answers, as they stand in a box, say the same."""
    return _same(normal(expected), normal(given))


def normal(text: str) -> str:
    """An answer in plain writing: no units, dollars, percent signs or spacing, every fraction and root in braces."""
    for pattern, replacement in _WRITTEN_ALIKE:
        text = re.sub(pattern, replacement, text)
    text = text.strip().rstrip(".").strip()
    text = _WORDS.sub("", _UNIT.sub("", text))
    text = re.sub(_TEXT, r"\1", text)
    text = re.sub(r"\s+(?:and|or)\s+", ",", text)
    text = re.sub(r"\s+", "", text)
    text = re.sub(r"\\(frac|sqrt)(\w)", r"\\\1{\2}", text)
    text = re.sub(rf"(\\frac{_BRACES})(\w)", r"\1{\2}", text)
    text = re.sub(r"([_^])\{(\w)\}", r"\1\2", text)
    return text.casefold() if re.fullmatch(r"[a-zA-Z]{2,}", text) else re.sub(r"^\(([A-Z])\)$", r"\1", text)


def value(text: str) -> Fraction | None:
    """The rational number that a normal text is: an integer, a decimal, a fraction, a mixed number; else None."""
    if _THOUSANDS.fullmatch(text):
        text = text.replace(",", "")
    if re.fullmatch(rf"[-+]?{_NUMERAL}", text):
        return Fraction(text)
    match = _FRACTION.fullmatch(text)
    if match is None:
        return None
    sign, whole, *parts = match.groups()
    above, below = (Fraction(part) for part in parts if part is not None)
    if below == 0 or (whole and (above < 0 or below < 0)):
        return None
    size = Fraction(whole or 0) + above / below
    return -size if sign == "-" else size


def _same(expected: str, given: str) -> bool:
    expected, given = _NAMED.sub("", expected), _NAMED.sub("", given)
    if expected == given:
        return True
    left, right = value(expected), value(given)
    if left is not None or right is not None:
        return left == right
    for first, last, ordered in _GROUPS:
        if all(text.startswith(first) and text.endswith(last) for text in (expected, given)):
            wanted, found = (_entries(text[len(first) : -len(last)]) for text in (expected, given))
            return _all_same(wanted, found, ordered)
    wanted, found = _entries(expected), _entries(given)
    return len(wanted) > 1 and _all_same(wanted, found, ordered=False)


def _all_same(expected: list[str], given: list[str], ordered: bool) -> bool:
    if len(expected) != len(given):
        return False
    if ordered:
        return all(_same(one, other) for one, other in zip(expected, given, strict=True))
    left = list(given)
    for one in expected:
        match = next((other for other in left if _same(one, other)), None)
        if match is None:
            return False
        left.remove(match)
    return True


def _entries(text: str) -> list[str]:
    """A list's entries: split at commas outside any bracket."""
    entries, depth, start = [], 0, 0
    for at, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            entries.append(text[start:at])
            start = at + 1
    return [*entries, text[start:]]
