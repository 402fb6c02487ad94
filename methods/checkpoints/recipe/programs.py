"""Small Python programs from a grammar, with requests to write, complete, explain or rewrite them.

A program is a pipeline (keep some elements, change them, gather the rest) over numbers, words or records, in one
of several styles, or a renamed and re-parameterised classic from `classics.py`, or a small class. Names,
constants, annotations, docstrings, guards and examples vary; every example's result comes from running the code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from methods.checkpoints.recipe import classics
from methods.checkpoints.recipe.conversation import Conversation, assistant, user
from methods.checkpoints.recipe.pipelines import (
    RESULTS,
    Program,
    docstring,
    pipeline,
)
from methods.checkpoints.recipe.words import World, an, cap, series

RECORD_LISTS = [
    "orders",
    "books",
    "users",
    "trips",
    "songs",
    "rooms",
    "items",
    "players",
    "tasks",
    "films",
    "plants",
    "events",
    "cars",
    "pets",
]
FIELDS = [
    "price",
    "age",
    "size",
    "score",
    "weight",
    "year",
    "length",
    "rating",
    "stock",
    "level",
    "depth",
    "volume",
    "distance",
    "height",
]
LABELS = ["name", "title", "city", "owner", "colour", "kind", "team", "author", "genre", "label", "country", "status"]


def _records(w: World) -> Program:
    many = w.pick(RECORD_LISTS)
    x = w.pick((many.rstrip("s"), many[0], "row", "entry"))
    num, label = w.pick(FIELDS), w.pick(LABELS)
    acc, k = w.pick(RESULTS), w.number(2, 90)
    sign, words = w.pick(((">", "above"), ("<", "below"), (">=", "at least"), ("!=", "other than")))
    test = f'{x}["{num}"] {sign} {k}'
    kind = w.number(0, 4)
    if kind == 0:
        name = f"group_{many}_by_{label}"
        what = f"groups the {many} with {an(num)} {words} {k} by their {label}"
        body = [
            f"    {acc} = {{}}",
            f"    for {x} in {many}:",
            f"        if {test}:",
            f'            {acc}.setdefault({x}["{label}"], []).append({x}["{num}"])',
            f"    return {acc}",
        ]
        ret = "dict[str, list[int]]"
    elif kind == 1:
        name = f"total_{num}_per_{label}"
        what = f"adds up the {num} of all {many} per {label}, leaving out those not {words} {k}"
        body = [
            f"    {acc} = {{}}",
            f"    for {x} in {many}:",
            f"        if not {test}:",
            "            continue",
            f'        key = {x}["{label}"]',
            f'        {acc}[key] = {acc}.get(key, 0) + {x}["{num}"]',
            f"    return {acc}",
        ]
        ret = "dict[str, int]"
    elif kind == 2:
        name = f"average_{num}"
        what = f"computes the average {num} of the {many} whose {num} is {words} {k}"
        body = [
            f'    {acc} = [{x}["{num}"] for {x} in {many} if {test}]',
            f"    if not {acc}:",
            "        return 0.0",
            f"    return sum({acc}) / len({acc})",
        ]
        ret = "float"
    elif kind == 3:
        name = f"{label}s_by_{num}"
        what = f"returns every {label} of the {many} with {an(num)} {words} {k}, sorted by {num}"
        order = w.pick(("", ", reverse=True"))
        what += ", largest first" if order else ""
        body = [
            f"    {acc} = [{x} for {x} in {many} if {test}]",
            f'    {acc}.sort(key=lambda {x}: {x}["{num}"]{order})',
            f'    return [{x}["{label}"] for {x} in {acc}]',
        ]
        ret = "list[str]"
    else:
        name = f"best_{x}_by_{num}"
        what = f"finds the {label} of the entry in {many} with the {w.pick(('largest', 'highest'))} {num} {words} {k}"
        body = [
            "    best = None",
            f"    for {x} in {many}:",
            f"        if {test}:",
            f'            if best is None or {x}["{num}"] > best["{num}"]:',
            f"                best = {x}",
            f'    return best["{label}"] if best else ""',
        ]
        ret = "str"
    head = f"def {name}({many}: list[dict]) -> {ret}:" if w.chance(0.6) else f"def {name}({many}):"
    source = [head, *docstring(w, f"this {what}"), *body]
    rows = ", ".join(f'{{"{label}": "{w.word()}", "{num}": {w.number(1, 120)}}}' for _ in range(w.number(2, 3)))
    notes = [
        f"`{many}` is a list of dictionaries",
        f"the test looks at the field `{num}` and compares it with {k}",
        f"the field `{label}` names each entry" if kind != 2 else "an empty selection gives 0.0",
        f"it {what.split(',')[0]}",
    ]
    task = w.pick((what, f"{what}; {many} is a list of dictionaries"))
    return Program(task, name, source, notes, ("records", kind, num, label, sign, k % 10), what, f"{name}([{rows}])")


def _class(w: World) -> Program:
    thing = cap(w.pick(RECORD_LISTS).rstrip("s")) + w.pick(("Box", "List", "Log", "Store", "Counter", "Shelf", "Queue"))
    label, num = w.pick(LABELS), w.pick(FIELDS)
    many = w.pick(("items", "entries", "rows", "records", "parts"))
    limit = w.number(3, 50)
    has_limit = w.chance(0.4)
    source = [f"class {thing}:"]
    if w.chance(0.6):
        source.append(f'    """Keeps {num} values under {an(label)}."""')
    init = f"    def __init__(self, limit: int = {limit}) -> None:" if has_limit else "    def __init__(self) -> None:"
    source += [init, f"        self.{many} = {{}}", *(["        self.limit = limit"] if has_limit else []), ""]
    add = w.pick(("add", "put", "store", "insert"))
    source += [f"    def {add}(self, {label}: str, {num}: int) -> None:"]
    if has_limit:
        source += [
            f"        if len(self.{many}) >= self.limit:",
            f'            raise ValueError("the {thing.lower()} is full")',
        ]
    source += [f"        self.{many}[{label}] = {num}"]
    options = [
        (
            "total",
            f"the sum of all {num} values",
            ["    def total(self) -> int:", f"        return sum(self.{many}.values())"],
        ),
        (
            "largest",
            f"the {label} with the largest {num}",
            ["    def largest(self) -> str:", f"        return max(self.{many}, key=self.{many}.get)"],
        ),
        (
            "remove",
            f"removal of one {label}",
            [f"    def remove(self, {label}: str) -> None:", f"        self.{many}.pop({label}, None)"],
        ),
        (
            "has",
            f"a test for {an(label)}",
            [f"    def has(self, {label}: str) -> bool:", f"        return {label} in self.{many}"],
        ),
        (
            "above",
            f"the list of every {label} above a bound",
            [
                "    def above(self, bound: int) -> list[str]:",
                f"        return [key for key, value in self.{many}.items() if value > bound]",
            ],
        ),
        ("__len__", "its length", ["    def __len__(self) -> int:", f"        return len(self.{many})"]),
    ]
    chosen = w.some(options, w.number(1, 3))
    for _, _, lines in chosen:
        source += ["", *lines]
    wants = series([words for _, words, _ in chosen])
    full = f", refuses more than {limit} of them by default" if has_limit else ""
    task = f"stores {an(num)} for each {label}{full}, and offers {wants}"
    notes = [f"the values live in the dictionary `{many}`", f"`{add}` sets the {num} of {an(label)}"]
    notes += [f"`{n}` gives {words}" for n, words, _ in chosen]
    return Program(task, thing, source, notes, ("class", label, num, *[n for n, _, _ in chosen]), task)


def _classic(w: World) -> Program:
    name, task, source, notes, call, key = classics.make(w)
    return Program(task, name, source, notes, key, task, call)


BUILDERS: tuple[Callable[[World], Program], ...] = (
    pipeline,
    pipeline,
    pipeline,
    _records,
    _class,
    _classic,
    _classic,
)


def program(w: World) -> Program:
    """A program whose combination of parts belongs to this world."""
    while True:
        p = w.pick(BUILDERS)(w)
        if w.ours(*p.key):
            return p


def run(source: list[str], call: str) -> str | None:
    """The repr of a call's value, or None if it raises."""
    scope: dict[str, Any] = {}
    try:
        exec("\n".join(source), scope)
        return repr(eval(call, scope))
    except Exception:
        return None


def _fence(source: list[str]) -> str:
    return "```python\n" + "\n".join(source) + "\n```"


def _sentence(w: World, notes: list[str]) -> str:
    chosen = notes if len(notes) <= 2 else [notes[i] for i in sorted(w.some(range(len(notes)), 2))]
    return cap(w.pick((", and ", "; ")).join(chosen)) + "."


def _example(w: World, p: Program) -> str:
    value = run(p.source, p.call) if p.call else None
    if value is None or len(value) > 90 or (value[0] == "{" and ":" not in value):
        return ""
    return w.pick(
        ("\nFor example, `{c}` returns `{v}`.", "\n`{c}` gives `{v}`.", "\nCalling `{c}` yields `{v}`.")
    ).format(c=p.call, v=value)


def _write(w: World, p: Program) -> Conversation:
    kind = "class" if p.source[0].startswith("class") else "function"
    ask = w.pick(
        (
            f"Write a Python {kind} `{p.name}` that {p.task}.",
            f"I need a {kind} named {p.name}. It {p.task}.",
            f"Please give me Python code for a {kind} called `{p.name}` which {p.task}.",
            f"How would you write `{p.name}` in Python? It {p.task}.",
            f"Create the {kind} {p.name}: it {p.task}.",
        )
    )
    lead = w.pick(
        (
            f"Here is the {kind}:",
            f"This {kind} does it:",
            f"You can write `{p.name}` like this:",
            "One way to do it:",
            f"Here is `{p.name}`:",
            f"The {kind} below {p.doc.split(',')[0]}:",
        )
    )
    return Conversation(
        "code", [user(ask), assistant(f"{lead}\n{_fence(p.source)}\n{_sentence(w, p.notes)}{_example(w, p)}")]
    )


def _complete(w: World, p: Program) -> Conversation:
    start = next((i for i, line in enumerate(p.source) if line.startswith(("def", "class"))), 0)
    cut = start + 1 + (p.source[start + 1].lstrip().startswith('"""'))
    given = p.source[:cut]
    ask = w.pick(("Complete this code so that it {t}:", "Finish the code below; it {t}:", "Fill in the body. It {t}:"))
    lead = w.pick(("The finished code:", "Completed:", "Here it is in full:", "With the body filled in:"))
    return Conversation(
        "code",
        [
            user(f"{ask.format(t=p.task)}\n{_fence(given)}"),
            assistant(f"{lead}\n{_fence(p.source)}\n{_sentence(w, p.notes)}{_example(w, p)}"),
        ],
    )


def _explain(w: World, p: Program) -> Conversation:
    ask = w.pick(
        (
            "What does this code do?",
            "Explain this code, please.",
            "Walk me through the code below.",
            "I do not follow this code. Can you help?",
        )
    )
    lead = w.pick((f"`{p.name}` {p.doc}.", f"The code {p.doc}.", f"In short, it {p.doc}."))
    if w.chance(0.5):
        body = "\n".join(f"- {cap(n)}." for n in p.notes)
    else:
        body = " ".join(
            f"{a} {n}."
            for a, n in zip(("First,", "Then", "Next,", "After that,", "Also,", "Last,"), p.notes, strict=False)
        )
    return Conversation("code", [user(f"{ask}\n{_fence(p.source)}"), assistant(f"{lead}\n{body}{_example(w, p)}")])


def _rewrite(w: World, p: Program) -> Conversation:
    to_loop = any(line.lstrip().startswith("for ") for line in p.other)
    ask = w.pick(
        ("Rewrite this with a plain loop:", "Turn this into an ordinary for loop:")
        if to_loop
        else ("Make this shorter with a comprehension:", "Rewrite this as a single expression:")
    )
    lead = w.pick(("With a loop it becomes:", "As a loop:") if to_loop else ("As one expression:", "The short form:"))
    answer = f"{lead}\n{_fence(p.other)}\nBoth versions do the same: `{p.name}` {p.doc}."
    return Conversation("code", [user(f"{ask}\n{_fence(p.source)}"), assistant(answer)])


def make(w: World) -> Conversation:
    """A request about one small program and its answer."""
    p = program(w)
    kind = w.rng.random()
    if kind < 0.13 and p.other:
        return _rewrite(w, p)
    if kind < 0.25:
        return _explain(w, p)
    return _complete(w, p) if kind < 0.45 else _write(w, p)
