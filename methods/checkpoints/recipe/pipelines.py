"""Pipelines for `programs.py`: keep some elements of a list, change them, gather the rest."""

from __future__ import annotations

from dataclasses import dataclass, field

from methods.checkpoints.recipe.words import World, cap

NUMBER_LISTS = [
    "numbers",
    "values",
    "scores",
    "prices",
    "readings",
    "samples",
    "heights",
    "counts",
    "weights",
    "points",
    "ages",
    "temps",
    "costs",
    "marks",
]


WORD_LISTS = [
    "words",
    "names",
    "lines",
    "titles",
    "labels",
    "keys",
    "tokens",
    "cities",
    "fruits",
    "tags",
    "entries",
    "parts",
    "codes",
    "messages",
]


LOOPS = {"numbers": "number", "values": "value", "scores": "score", "prices": "price", "words": "word", "names": "name"}


RESULTS = ["result", "total", "out", "found", "answer", "acc", "kept", "output", "collected"]


@dataclass
class Program:
    """A function or class: the request in words, its source and what its parts do, in order."""

    task: str
    name: str
    source: list[str]
    notes: list[str]
    key: tuple[object, ...]
    doc: str
    call: str = ""
    other: list[str] = field(default_factory=list)
    """The same function in another style, for requests to rewrite it."""


def number_test(w: World, x: str) -> tuple[str, str]:
    """Words for a condition on numbers and its expression."""
    k = w.number(2, 60)
    d = w.number(2, 9)
    return w.pick(
        (
            ("that are even", f"{x} % 2 == 0"),
            ("that are odd", f"{x} % 2 == 1"),
            ("that are positive", f"{x} > 0"),
            ("that are negative", f"{x} < 0"),
            (f"greater than {k}", f"{x} > {k}"),
            (f"smaller than {k}", f"{x} < {k}"),
            (f"at least {k}", f"{x} >= {k}"),
            (f"that are divisible by {d}", f"{x} % {d} == 0"),
            (f"that are not divisible by {d}", f"{x} % {d} != 0"),
            (f"between {k} and {k + 10 * d}", f"{k} <= {x} <= {k + 10 * d}"),
            (f"different from {k}", f"{x} != {k}"),
            (f"ending in the digit {d}", f"{x} % 10 == {d}"),
        )
    )


def number_map(w: World, x: str) -> tuple[str, str]:
    k = w.number(2, 20)
    return w.pick(
        (
            ("", x),
            ("squared", f"{x} ** 2"),
            ("doubled", f"{x} * 2"),
            (f"increased by {k}", f"{x} + {k}"),
            (f"reduced by {k}", f"{x} - {k}"),
            (f"multiplied by {k}", f"{x} * {k}"),
            ("turned into absolute values", f"abs({x})"),
            (f"taken modulo {k}", f"{x} % {k}"),
            (f"divided by {k} without remainder", f"{x} // {k}"),
            ("negated", f"-{x}"),
            ("cubed", f"{x} ** 3"),
        )
    )


def word_test(w: World, x: str) -> tuple[str, str]:
    c = w.pick("abcdefghilmnoprstuw")
    k = w.number(2, 8)
    return w.pick(
        (
            (f"starting with '{c}'", f'{x}.startswith("{c}")'),
            (f"ending with '{c}'", f'{x}.endswith("{c}")'),
            (f"containing '{c}'", f'"{c}" in {x}'),
            (f"without the letter '{c}'", f'"{c}" not in {x}'),
            (f"longer than {k} characters", f"len({x}) > {k}"),
            (f"shorter than {k} characters", f"len({x}) < {k}"),
            (f"of exactly {k} characters", f"len({x}) == {k}"),
            ("in lower case", f"{x}.islower()"),
            ("made of digits", f"{x}.isdigit()"),
            ("that are not empty", x),
            ("that read the same backwards", f"{x} == {x}[::-1]"),
        )
    )


def word_map(w: World, x: str) -> tuple[str, str]:
    k = w.number(2, 5)
    s = w.pick("-_*#+")
    return w.pick(
        (
            ("", x),
            ("in upper case", f"{x}.upper()"),
            ("in lower case", f"{x}.lower()"),
            ("reversed", f"{x}[::-1]"),
            ("stripped of spaces", f"{x}.strip()"),
            ("with a capital letter", f"{x}.capitalize()"),
            (f"cut to {k} characters", f"{x}[:{k}]"),
            (f"with '{s}' in front", f'"{s}" + {x}'),
            (f"repeated {k + 1} times", f"{x} * {k + 1}"),
            (f"without the first {k} characters", f"{x}[{k}:]"),
        )
    )


@dataclass
class Gather:
    """How a pipeline ends: words, the return type, and the code for a loop and for one expression."""

    words: str
    returns: str
    start: str
    update: str
    expression: str
    after: str = ""


def gathers(kind: str, acc: str, sep: str) -> tuple[Gather, ...]:
    """The endings of a pipeline over `int` or `str`; {e} is the element, {c} the comprehension."""
    both = (
        Gather("a list", f"list[{kind}]", "[]", f"{acc}.append({{e}})", "[{c}]"),
        Gather("a set", f"set[{kind}]", "set()", f"{acc}.add({{e}})", "{{{c}}}"),
        Gather("the number", "int", "0", f"{acc} += 1", "sum(1 {for_})"),
        Gather("a sorted list", f"list[{kind}]", "[]", f"{acc}.append({{e}})", "sorted({c})", f"sorted({acc})"),
        Gather("a reversed list", f"list[{kind}]", "[]", f"{acc}.insert(0, {{e}})", "[{c}][::-1]"),
        Gather("a dictionary of counts", f"dict[{kind}, int]", "{}", f"{acc}[{{e}}] = {acc}.get({{e}}, 0) + 1", ""),
    )
    if kind == "int":
        return (
            *both,
            Gather("the sum", "int", "0", f"{acc} += {{e}}", "sum({c})"),
            Gather("the product", "int", "1", f"{acc} *= {{e}}", "math.prod({c})"),
            Gather("the largest positive value", "int", "0", f"{acc} = max({acc}, {{e}})", "max([0, *[{c}]])"),
            Gather("the running totals", "list[int]", "[]", f"{acc}.append({{e}} + ({acc}[-1] if {acc} else 0))", ""),
        )
    return (
        *both,
        Gather("one string", "str", "[]", f"{acc}.append({{e}})", f'"{sep}".join({{c}})', f'"{sep}".join({acc})'),
        Gather(
            "the longest",
            "str",
            '""',
            f"{acc} = {{e}} if len({{e}}) > len({acc}) else {acc}",
            'max({par}, key=len, default="")',
        ),
        Gather("the total length", "int", "0", f"{acc} += len({{e}})", "sum(len(t) for t in [{c}])"),
    )


def identifier(w: World, parts: list[str]) -> str:
    return "_".join(p for p in parts if p).lower().replace(" ", "_")


def docstring(w: World, text: str) -> list[str]:
    return [f'    """{cap(text)}."""'] if w.chance(0.6) else []


def sample_list(w: World, kind: str) -> str:
    if kind == "int":
        return "[" + ", ".join(str(w.number(-9, 70)) for _ in range(w.number(3, 6))) + "]"
    return "[" + ", ".join(f'"{w.word()}"' for _ in range(w.number(2, 4))) + "]"


def pipeline(w: World) -> Program:
    kind = w.pick(("int", "str"))
    many = w.pick(NUMBER_LISTS if kind == "int" else WORD_LISTS)
    x = w.pick((LOOPS.get(many, many[0]), many[0], "x", "item", many.rstrip("s"))) if w.chance(0.9) else "each"
    acc = w.pick(RESULTS)
    test_words, test = (number_test if kind == "int" else word_test)(w, x)
    map_words, expr = (number_map if kind == "int" else word_map)(w, x)
    sep = w.pick((",", " ", "-", "; ", "/"))
    gather = w.pick(gathers(kind, acc, sep))
    verb = w.pick(("get", "collect", "find", "make", "pick", "select", "compute"))
    name = identifier(w, [verb, w.pick(("", "good", "chosen", "kept", "some", "wanted", "filtered", "final")), many])
    hint = w.chance(0.6)
    head = f"def {name}({many}: list[{kind}]) -> {gather.returns}:" if hint else f"def {name}({many}):"
    tail = f", {map_words}" if map_words else ""
    what = f"{w.pick(('returns', 'gives back'))} {gather.words} of the {many} {test_words}{tail}"
    if gather.words == "one string":
        what += f", joined by '{sep}'"
    doc = docstring(w, what.replace("returns", "return").replace("gives", "give"))
    notes: list[str] = []
    guard = [
        f"    if not {many}:",
        f"        return {gather.start if not gather.after.startswith(chr(34)) else chr(34) * 2}",
    ]
    use_guard = w.chance(0.2)
    lead = [head, *doc, *(guard if use_guard else [])]
    if use_guard:
        notes.append(f"an empty `{many}` is answered at once")
    if w.chance(0.3):
        skip = [f"        if not ({test}):", "            continue", f"        {gather.update.format(e=expr)}"]
    else:
        skip = [f"        if {test}:", f"            {gather.update.format(e=expr)}"]
    loop = [f"    {acc} = {gather.start}", f"    for {x} in {many}:", *skip, f"    return {gather.after or acc}"]
    loop_notes = [
        f"`{acc}` starts as `{gather.start}`",
        f"the loop goes through `{many}` one by one",
        f"only {many} {test_words} are kept",
        f"each of them is {map_words}"
        if map_words and not map_words.startswith(("in ", "with"))
        else f"`{expr}` is used",
        f"at the end it returns {gather.words}",
    ]
    source = [*lead, *loop]
    other: list[str] = []
    if gather.expression:
        c = f"{expr} for {x} in {many} if {test}"
        value = gather.expression.format(c=c, for_=c[len(expr) + 1 :], par=f"({c})")
        if "math.prod" in value:
            value, imports = value, ["import math", "", ""]
        else:
            imports = []
        one = [*imports, *lead, f"    return {value}"]
        source, other = (one, source) if w.chance(0.45) else (source, one)
    if source[-1] != loop[-1] or len(source) < 6:
        loop_notes = [f"the expression visits every element of `{many}`", *loop_notes[2:]]
    call = f"{name}({sample_list(w, kind)})"
    task = w.pick(
        (
            f"takes a list of {'numbers' if kind == 'int' else 'strings'} called {many} and {what}",
            f"{what}",
            f"goes through {many} and {what}",
        )
    )
    return Program(task, name, source, notes + loop_notes, ("pipe", test, expr, gather.words), what, call, other)
