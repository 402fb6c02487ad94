"""Classics for `classics.py` about text, pairs of lists and lookups, with what all classics share."""

from __future__ import annotations

from methods.checkpoints.recipe.words import World

Classic = tuple[str, str, list[str], list[str], str, tuple[object, ...]]


"""Name, task in words, source lines, notes, an example call, and the key that holds it out or not."""


TEXTS = ("text", "line", "sentence", "phrase", "s", "word", "message")


LISTS = ("items", "values", "numbers", "data", "seq", "row", "elements")


COUNTERS = ("i", "n", "k", "index", "pos")


def hint(w: World, name: str, parameters: str, returns: str) -> str:
    """A `def` line with or without annotations; parameters come as 'a: int, b: str'."""
    if w.chance(0.55):
        return f"def {name}({parameters}) -> {returns}:"
    return f"def {name}({', '.join(p.split(':')[0] for p in parameters.split(', '))}):"


def numbers(w: World, count: int = 5, low: int = 0, high: int = 60) -> str:
    return "[" + ", ".join(str(w.number(low, high)) for _ in range(count)) + "]"


def cipher(w: World) -> Classic:
    text, k, c = w.pick(TEXTS), w.number(1, 25), w.pick(("c", "ch", "letter"))
    name = w.pick(("shift_letters", "caesar", "encode", "rotate_text"))
    source = [
        hint(w, name, f"{text}: str", "str"),
        "    out = []",
        f"    for {c} in {text}:",
        f"        if {c}.islower():",
        f"            out.append(chr((ord({c}) - 97 + {k}) % 26 + 97))",
        "        else:",
        f"            out.append({c})",
        '    return "".join(out)',
    ]
    return (
        name,
        f"moves each small letter of {text} by {k} places in the alphabet and leaves the rest alone",
        source,
        ["`ord` and `chr` turn letters into numbers and back", "the remainder by 26 wraps around the end"],
        f'{name}("{w.word()}")',
        ("cipher", text, k),
    )


def run_length(w: World) -> Classic:
    text, c = w.pick(TEXTS), w.pick(("c", "ch", "symbol"))
    name = w.pick(("run_lengths", "compress", "encode_runs", "count_runs"))
    source = [
        hint(w, name, f"{text}: str", "list[tuple[str, int]]"),
        "    runs = []",
        f"    for {c} in {text}:",
        f"        if runs and runs[-1][0] == {c}:",
        f"            runs[-1] = ({c}, runs[-1][1] + 1)",
        "        else:",
        f"            runs.append(({c}, 1))",
        "    return runs",
    ]
    return (
        name,
        f"turns {text} into a list of pairs of a character and the length of its run",
        source,
        ["the last run grows while the character repeats", "a new character opens a new run"],
        f'{name}("{"".join(w.pick("abc") * w.number(1, 4) for _ in range(3))}")',
        ("runs", text, c),
    )


def text_tool(w: World) -> Classic:
    text = w.pick(TEXTS)
    kind, letters = w.number(0, 4), "".join(sorted(w.some("aeioulmnrst", w.number(2, 4))))
    if kind == 0:
        name, task = (
            w.pick(("count_letters", "count_chars", "letter_count")),
            f"counts how many of the letters {', '.join(letters)} appear in {text}",
        )
        body = [
            "    count = 0",
            f"    for char in {text}.lower():",
            f'        if char in "{letters}":',
            "            count += 1",
            "    return count",
        ]
        ret, notes = "int", ["the text is put in lower case first", "each fitting letter adds one"]
    elif kind == 1:
        name, task = (
            w.pick(("is_palindrome", "same_backwards", "mirrors")),
            f"tells whether {text} reads the same in both directions, ignoring case and spaces",
        )
        body = [f'    cleaned = {text}.lower().replace(" ", "")', "    return cleaned == cleaned[::-1]"]
        ret, notes = "bool", ["spaces and capitals are removed", "a slice with step -1 reverses the text"]
    elif kind == 2:
        sep, eq = w.pick((";", ",", "&", "|")), w.pick(("=", ":", "->"))
        name, task = (
            w.pick(("parse_pairs", "read_options", "to_dict")),
            f"turns a {text} such as 'a{eq}1{sep}b{eq}2' into a dictionary",
        )
        body = [
            "    pairs = {}",
            f'    for part in {text}.split("{sep}"):',
            f'        key, _, value = part.partition("{eq}")',
            "        pairs[key.strip()] = value.strip()",
            "    return pairs",
        ]
        ret, notes = "dict[str, str]", [f"the text is split at '{sep}'", "spaces around keys and values are removed"]
        return (
            name,
            task,
            [hint(w, name, f"{text}: str", ret), *body],
            notes,
            f'{name}("{w.word()}{eq}{w.number(1, 9)}")',
            ("pairs", sep, eq, text),
        )
    elif kind == 3:
        name, task = (
            w.pick(("word_counts", "count_words", "frequencies")),
            f"counts how often each word occurs in {text}",
        )
        body = [
            "    counts = {}",
            f"    for word in {text}.split():",
            f'        word = word.strip("{w.pick((".,!", ".,", "?!.", ";:,"))}")',
            "        counts[word] = counts.get(word, 0) + 1",
            "    return counts",
        ]
        ret, notes = "dict[str, int]", ["marks at the ends of words are removed", "`get` starts every word at 0"]
    else:
        width = w.number(10, 60)
        name, task = (
            w.pick(("wrap", "fold_text", "break_lines")),
            f"breaks {text} into lines of at most {width} characters without cutting words",
        )
        body = [
            '    lines = [""]',
            f"    for word in {text}.split():",
            f"        if len(lines[-1]) + len(word) + 1 > {width}:",
            '            lines.append("")',
            '        lines[-1] = (lines[-1] + " " + word).strip()',
            "    return lines",
        ]
        ret, notes = "list[str]", ["a word that does not fit opens a new line", "the last line is the one being filled"]
        return (
            name,
            task,
            [hint(w, name, f"{text}: str", ret), *body],
            notes,
            f'{name}("{w.word()} {w.word()}")',
            ("wrap", width, text),
        )
    return (
        name,
        task,
        [hint(w, name, f"{text}: str", ret), *body],
        notes,
        f'{name}("{w.word()} {w.word()}")',
        ("text", kind, text, letters if not kind else name),
    )


def two_lists(w: World) -> Classic:
    a, b = w.pick((("left", "right"), ("first", "second"), ("a", "b"), ("xs", "ys")))
    kind = w.number(0, 2)
    if kind == 0:
        name, task = (
            w.pick(("merge_sorted", "merge", "combine_sorted")),
            f"merges the sorted lists {a} and {b} into one sorted list",
        )
        body = [
            "    out = []",
            "    i = j = 0",
            f"    while i < len({a}) and j < len({b}):",
            f"        if {a}[i] <= {b}[j]:",
            f"            out.append({a}[i])",
            "            i += 1",
            "        else:",
            f"            out.append({b}[j])",
            "            j += 1",
            f"    return out + {a}[i:] + {b}[j:]",
        ]
        notes = ["the smaller head is taken each time", "what is left over is added at the end"]
    elif kind == 1:
        _, test = w.pick((("both", "in"), ("only the first", "not in")))
        name = w.pick(("common", "shared")) if test == "in" else w.pick(("difference", "missing"))
        where = f"both {a} and {b}" if test == "in" else f"{a} but not in {b}"
        task = f"returns the elements that are in {where}, in order and without repeats"
        body = [
            "    out = []",
            f"    for value in {a}:",
            f"        if value {test} {b} and value not in out:",
            "            out.append(value)",
            "    return out",
        ]
        notes = ["the order of the first list is kept", "values already found are skipped"]
    else:
        op, said = w.pick((("+", "sums"), ("-", "differences"), ("*", "products")))
        name, task = (
            w.pick(("pairwise", "combine", "zip_with")),
            f"returns the {said} of the elements of {a} and {b} at the same position",
        )
        body = [f"    return [x {op} y for x, y in zip({a}, {b})]"]
        notes = ["`zip` stops at the shorter list", "every pair gives one number"]
        return (
            name,
            task,
            [hint(w, name, f"{a}: list, {b}: list", "list"), *body],
            notes,
            f"{name}({numbers(w, 3)}, {numbers(w, 3)})",
            ("zip", op, a, name),
        )
    return (
        name,
        task,
        [hint(w, name, f"{a}: list, {b}: list", "list"), *body],
        notes,
        f"{name}([1, 4, 6], [2, 4, {w.number(7, 20)}])",
        ("merge", kind, a, name),
    )


def convert(w: World) -> Classic:
    src, dst, factor = w.pick(
        (
            ("km", "miles", "0.621"),
            ("kg", "pounds", "2.205"),
            ("litres", "gallons", "0.264"),
            ("inches", "cm", "2.54"),
            ("hours", "minutes", "60"),
            ("metres", "feet", "3.281"),
            ("weeks", "days", "7"),
        )
    )
    places = w.number(0, 3)
    name = f"{src}_to_{dst}"
    low = w.chance(0.5)
    guard = [f"    if {src} < 0:", f'        raise ValueError("{src} must not be negative")'] if low else []
    source = [hint(w, name, f"{src}: float", "float"), *guard, f"    return round({src} * {factor}, {places})"]
    task = f"converts {src} to {dst}, rounded to {places} places" + (", and refuses negative input" if low else "")
    return (
        name,
        task,
        source,
        [f"one of the {src} is {factor} {dst}", f"the result has {places} places"],
        f"{name}({w.number(1, 90)})",
        ("convert", src, places, low),
    )


def grade(w: World) -> Classic:
    x = w.pick(("score", "points", "value", "level", "speed"))
    cuts = sorted(w.some(range(10, 100, 5), w.number(2, 3)), reverse=True)
    words = w.some(
        ("high", "good", "fair", "low", "poor", "weak", "top", "fine", "slow", "fast", "rare"), len(cuts) + 1
    )
    name = w.pick((f"rate_{x}", f"label_{x}", f"{x}_class"))
    source = [hint(w, name, f"{x}: int", "str")]
    for cut, word in zip(cuts, words, strict=False):
        source += [f"    if {x} >= {cut}:", f'        return "{word}"']
    source.append(f'    return "{words[-1]}"')
    said = ", ".join(f"'{word}' from {cut} up" for cut, word in zip(cuts, words, strict=False))
    return (
        name,
        f"returns {said} and '{words[-1]}' below that for {x}",
        source,
        ["the bounds are tested from the top", "the last line catches the rest"],
        f"{name}({w.number(1, 110)})",
        ("grade", *cuts),
    )
