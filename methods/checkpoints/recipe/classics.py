"""Well-known small functions with their names, constants and details drawn anew: the second half of `programs.py`."""

from __future__ import annotations

from collections.abc import Callable

from methods.checkpoints.recipe.classics_text import (
    COUNTERS,
    LISTS,
    Classic,
    cipher,
    convert,
    grade,
    hint,
    numbers,
    run_length,
    text_tool,
    two_lists,
)
from methods.checkpoints.recipe.words import World


def _recurrence(w: World) -> Classic:
    a, b, p, q = w.number(0, 5), w.number(1, 7), w.number(1, 4), w.number(1, 3)
    n = w.pick(("n", "count", "length", "steps"))
    name = w.pick(("sequence", "terms", "series_terms", "recurrence"))
    nxt = f"{p} * y + {q} * x" if p > 1 else (f"y + {q} * x" if q > 1 else "x + y")
    source = [
        hint(w, name, f"{n}: int", "list[int]"),
        "    out = []",
        f"    x, y = {a}, {b}",
        f"    for _ in range({n}):",
        "        out.append(x)",
        f"        x, y = y, {nxt}",
        "    return out",
    ]
    task = f"returns the first {n} terms of the sequence that starts with {a} and {b} and continues with {nxt}"
    return (
        name,
        task,
        source,
        ["`x` and `y` hold two neighbouring terms", "each turn of the loop moves both by one"],
        f"{name}({w.number(4, 7)})",
        ("recurrence", a, b, p, q),
    )


def _prime(w: World) -> Classic:
    n, d = w.pick(("n", "number", "value")), w.pick(("d", "i", "divisor", "k"))
    name = w.pick(("is_prime", "check_prime", "has_no_divisor"))
    if w.chance(0.5):
        source = [
            hint(w, name, f"{n}: int", "bool"),
            f"    if {n} < 2:",
            "        return False",
            f"    {d} = 2",
            f"    while {d} * {d} <= {n}:",
            f"        if {n} % {d} == 0:",
            "            return False",
            f"        {d} += 1",
            "    return True",
        ]
        return (
            name,
            f"tells whether {n} is a prime number",
            source,
            ["numbers below 2 are not prime", f"`{d}` only runs up to the root of `{n}`"],
            f"{name}({w.number(2, 99)})",
            ("prime", n, d),
        )
    limit = w.pick(("limit", "top", "end"))
    name = w.pick(("primes_up_to", "list_primes", "primes_below"))
    source = [
        hint(w, name, f"{limit}: int", "list[int]"),
        "    primes = []",
        f"    for {n} in range(2, {limit} + 1):",
        f"        if all({n} % {d} for {d} in primes):",
        f"            primes.append({n})",
        "    return primes",
    ]
    return (
        name,
        f"lists all primes up to {limit}",
        source,
        ["a number is prime if no smaller prime divides it", "found primes are kept in a list"],
        f"{name}({w.number(5, 30)})",
        ("primes", n, d, limit),
    )


def _gcd(w: World) -> Classic:
    a, b = w.pick((("a", "b"), ("x", "y"), ("first", "second"), ("m", "n")))
    name = w.pick(("gcd", "common_divisor", "greatest_common_divisor"))
    least = w.chance(0.4)
    source = [
        hint(w, name, f"{a}: int, {b}: int", "int"),
        f"    while {b}:",
        f"        {a}, {b} = {b}, {a} % {b}",
        f"    return {a}",
    ]
    if least:
        lcm = w.pick(("lcm", "common_multiple"))
        source += ["", "", hint(w, lcm, f"{a}: int, {b}: int", "int"), f"    return {a} * {b} // {name}({a}, {b})"]
        return (
            lcm,
            f"computes the least common multiple of {a} and {b} with a helper for the common divisor",
            source,
            ["the helper uses Euclid's method", "the product divided by the divisor is the multiple"],
            f"{lcm}({w.number(2, 40)}, {w.number(2, 40)})",
            ("lcm", a, name),
        )
    return (
        name,
        f"computes the greatest common divisor of {a} and {b}",
        source,
        ["it replaces the larger number by the remainder", f"when `{b}` is 0 the answer is `{a}`"],
        f"{name}({w.number(6, 90)}, {w.number(6, 90)})",
        ("gcd", a, name),
    )


def _search(w: World) -> Classic:
    items, goal = w.pick(LISTS), w.pick(("target", "wanted", "goal", "key"))
    lo, hi, mid = w.pick((("low", "high", "mid"), ("left", "right", "middle"), ("start", "end", "centre")))
    miss = w.pick(("-1", "None", f"len({items})"))
    name = w.pick(("binary_search", "find_sorted", "locate", "search"))
    source = [
        hint(w, name, f"{items}: list, {goal}: int", "int" if miss != "None" else "int | None"),
        f"    {lo}, {hi} = 0, len({items}) - 1",
        f"    while {lo} <= {hi}:",
        f"        {mid} = ({lo} + {hi}) // 2",
        f"        if {items}[{mid}] == {goal}:",
        f"            return {mid}",
        f"        if {items}[{mid}] < {goal}:",
        f"            {lo} = {mid} + 1",
        "        else:",
        f"            {hi} = {mid} - 1",
        f"    return {miss}",
    ]
    return (
        name,
        f"finds the position of {goal} in the sorted list {items}, or returns {miss}",
        source,
        ["every turn halves the part that is left", f"`{mid}` is the element in between"],
        f"{name}({[2, 5, 9, 14, 20]}, {w.pick((5, 9, 14))})",
        ("search", items, goal, miss),
    )


def _sort(w: World) -> Classic:
    items, i, j = w.pick(LISTS), *w.pick((("i", "j"), ("a", "b"), ("p", "q")))
    down = w.chance(0.4)
    sign = "<" if down else ">"
    name = w.pick(("bubble_sort", "sort_list", "simple_sort", "order"))
    source = [
        hint(w, name, f"{items}: list", "list"),
        f"    {items} = list({items})",
        f"    for {i} in range(len({items})):",
        f"        for {j} in range(len({items}) - 1 - {i}):",
        f"            if {items}[{j}] {sign} {items}[{j} + 1]:",
        f"                {items}[{j}], {items}[{j} + 1] = {items}[{j} + 1], {items}[{j}]",
        f"    return {items}",
    ]
    return (
        name,
        f"sorts {items} {'from large to small' if down else 'from small to large'} without using sorted",
        source,
        [
            "neighbours in the wrong order change places",
            "the list is copied first, so the caller's list stays as it is",
        ],
        f"{name}({numbers(w)})",
        ("sort", items, i, down),
    )


def _matrix(w: World) -> Classic:
    m, r = w.pick(("matrix", "grid", "table", "rows")), w.pick(("row", "line", "r"))
    kind = w.number(0, 3)
    grid = "[" + ", ".join(numbers(w, 2, 0, 9) for _ in range(2)) + "]"
    if kind == 0:
        name = w.pick(("transpose", "flip_rows", "columns"))
        source = [hint(w, name, f"{m}: list", "list"), f"    return [list(column) for column in zip(*{m})]"]
        task, notes = (
            f"swaps the rows and columns of {m}",
            ["`zip` with a star walks down the columns", "each column becomes a list"],
        )
    elif kind == 1:
        name = w.pick(("row_sums", "sum_rows", "totals"))
        source = [
            hint(w, name, f"{m}: list", "list[int]"),
            "    out = []",
            f"    for {r} in {m}:",
            f"        out.append(sum({r}))",
            "    return out",
        ]
        task, notes = (
            f"returns the sum of every row of {m}",
            ["one sum per row is collected", "an empty row counts as 0"],
        )
    elif kind == 2:
        name, k = w.pick(("scale", "multiply", "grow")), w.number(2, 12)
        source = [hint(w, name, f"{m}: list", "list"), f"    return [[cell * {k} for cell in {r}] for {r} in {m}]"]
        task, notes = (
            f"multiplies each cell of {m} by {k}",
            ["the inner list handles one row", "the given table is not changed"],
        )
        return name, task, source, notes, f"{name}({grid})", ("matrix", kind, m, k)
    else:
        name, d = w.pick(("diagonal", "main_diagonal", "trace_cells")), w.pick(COUNTERS)
        source = [
            hint(w, name, f"{m}: list", "list"),
            f"    size = min(len({m}), len({m}[0]))",
            f"    return [{m}[{d}][{d}] for {d} in range(size)]",
        ]
        task, notes = (
            f"collects the cells on the main diagonal of {m}",
            ["row and column number are the same there", "a table that is not square is cut"],
        )
    return name, task, source, notes, f"{name}({grid})", ("matrix", kind, m, r)


def _slices(w: World) -> Classic:
    items, k, i = w.pick(LISTS), w.number(2, 6), w.pick(COUNTERS)
    kind = w.number(0, 3)
    if kind == 0:
        name, task = w.pick(("chunks", "split_parts", "in_groups")), f"cuts {items} into pieces of {k}"
        body = [f"    return [{items}[{i} : {i} + {k}] for {i} in range(0, len({items}), {k})]"]
        notes = [f"the range moves on by {k} each time", "the last piece may be shorter"]
    elif kind == 1:
        name, task = (
            w.pick(("moving_average", "smooth", "window_means")),
            f"returns the averages of every {k} neighbours in {items}",
        )
        body = [
            "    out = []",
            f"    for {i} in range(len({items}) - {k - 1}):",
            f"        out.append(sum({items}[{i} : {i} + {k}]) / {k})",
            "    return out",
        ]
        notes = [f"a window of {k} elements slides along", "each window gives one average"]
    elif kind == 2:
        name, task = w.pick(("rotate", "turn_left", "shift")), f"moves the first {k} elements of {items} to the end"
        body = [
            f"    if not {items}:",
            "        return []",
            f"    cut = {k} % len({items})",
            f"    return {items}[cut:] + {items}[:cut]",
        ]
        notes = ["the remainder allows for short lists", "two slices are joined the other way round"]
    else:
        name, task = (
            w.pick(("every_nth", "thin_out", "take_step")),
            f"keeps every {k}th element of {items}, starting with the first",
        )
        body = [
            "    kept = []",
            f"    for {i}, value in enumerate({items}):",
            f"        if {i} % {k} == 0:",
            "            kept.append(value)",
            "    return kept",
        ]
        notes = ["`enumerate` counts the elements", f"only positions divisible by {k} stay"]
    return (
        name,
        task,
        [hint(w, name, f"{items}: list", "list"), *body],
        notes,
        f"{name}({numbers(w, 6)})",
        ("slices", kind, items, k),
    )


def _fizz(w: World) -> Classic:
    a, b = w.some(range(2, 10), 2)
    x, y = w.some(("tick", "tock", "ping", "pong", "red", "blue", "hop", "clap", "zip", "zap"), 2)
    n, i = w.pick(("n", "limit", "count")), w.pick(COUNTERS[:3])
    name = w.pick(("counting_game", "play", "fizz", "say_numbers"))
    if n == i:
        n = "limit"
    source = [
        hint(w, name, f"{n}: int", "list[str]"),
        "    out = []",
        f"    for {i} in range(1, {n} + 1):",
        '        said = ""',
        f"        if {i} % {a} == 0:",
        f'            said += "{x}"',
        f"        if {i} % {b} == 0:",
        f'            said += "{y}"',
        f"        out.append(said or str({i}))",
        "    return out",
    ]
    return (
        name,
        f"counts from 1 to {n} and says '{x}' for multiples of {a}, '{y}' for multiples of {b}",
        source,
        ["a multiple of both gets both words", "other numbers are kept as strings"],
        f"{name}({w.number(4, 8)})",
        ("fizz", a, b),
    )


def _digits(w: World) -> Classic:
    n, base = w.pick(("n", "number", "value")), w.pick((2, 3, 5, 8, 10))
    kind = w.number(0, 2)
    if kind == 0:
        name, task = w.pick(("digit_sum", "sum_digits")), f"adds the digits of {n} in base {base}"
        body = [
            "    total = 0",
            f"    while {n} > 0:",
            f"        total += {n} % {base}",
            f"        {n} //= {base}",
            "    return total",
        ]
        ret, notes = "int", ["the remainder is the last digit", "the division drops it"]
    elif kind == 1:
        name, task = w.pick(("to_base", "digits_of", "convert")), f"writes {n} in base {base} as a list of digits"
        body = [
            "    digits = []",
            f"    while {n} > 0:",
            f"        {n}, digit = divmod({n}, {base})",
            "        digits.insert(0, digit)",
            "    return digits or [0]",
        ]
        ret, notes = "list[int]", ["`divmod` gives quotient and remainder at once", "zero needs a digit of its own"]
    else:
        step, add = w.number(2, 5), w.number(1, 9)
        name, task = (
            w.pick(("steps_to_one", "chain_length", "halvings")),
            f"counts the steps until {n} falls to 1 when it is divided by {step}, "
            f"after adding {add} if it does not divide",
        )
        body = [
            "    steps = 0",
            f"    while {n} > 1 and steps < 100:",
            f"        if {n} % {step}:",
            f"            {n} += {add}",
            f"        {n} //= {step}",
            "        steps += 1",
            "    return steps",
        ]
        ret, notes = "int", ["a bound of 100 keeps the loop finite", "the remainder decides whether to add"]
        return (
            name,
            task,
            [hint(w, name, f"{n}: int", ret), *body],
            notes,
            f"{name}({w.number(5, 300)})",
            ("digits", kind, step, add),
        )
    return (
        name,
        task,
        [hint(w, name, f"{n}: int", ret), *body],
        notes,
        f"{name}({w.number(5, 300)})",
        ("digits", kind, n, base),
    )


MAKERS: tuple[Callable[[World], Classic], ...] = (
    _recurrence,
    _prime,
    _gcd,
    _search,
    _sort,
    cipher,
    run_length,
    _matrix,
    _slices,
    _fizz,
    _digits,
    text_tool,
    text_tool,
    two_lists,
    convert,
    grade,
    _slices,
)


def make(w: World) -> Classic:
    """One classic of this draw; see `Classic` for its parts."""
    return w.pick(MAKERS)(w)
