"""Word problems of one to three steps with worked answers that end in a line `Answer: N`.

Most problems are chains: a quantity that someone starts with (given, or as groups of a size), changed by one or
two events, each told in one of many ways and worked in one of several styles. Beside the chains stand families
with their own story: price and change, distance, age, area, averages, fractions, time and comparison.
"""

from __future__ import annotations

from collections.abc import Callable

from methods.checkpoints.recipe.conversation import Conversation, assistant, user
from methods.checkpoints.recipe.sums import Problem, Step, solution
from methods.checkpoints.recipe.words import DAYS, PLACES, World, an, cap


def _chain(w: World) -> Problem:
    name, (one, many), (box, boxes) = w.name(), w.item(), w.container()
    place = w.pick(PLACES)
    steps: list[Step] = []
    if w.chance(0.5):
        groups, size = w.number(2, 12), w.number(3, 30)
        sentence = w.pick(
            (
                f"{name} has {groups} {boxes} with {size} {many} in each.",
                f"At the {place}, {name} fills {groups} {boxes} with {size} {many} apiece.",
                f"There are {size} {many} in every {box}, and {name} owns {groups} {boxes}.",
                f"{name} carries {groups} {boxes} to the {place}. Each {box} holds {size} {many}.",
                f"{groups} {boxes} stand in the {place}, and {name} puts {size} {many} into each of them.",
            )
        )
        steps.append(Step(f"count the {many} in all {boxes}", groups, "×", size, many))
        key: tuple[object, ...] = ("groups", groups, size)
    else:
        start = w.number(20, 480)
        sentence = w.pick(
            (
                f"{name} starts with {start} {many}.",
                f"{name} has {start} {many} at the {place}.",
                f"On {w.pick(DAYS)} {name} counts {start} {many}.",
                f"In the {place} {name} keeps {start} {many}.",
            )
        )
        key = ("start", start)
    total = steps[0].result if steps else start
    sentences = [sentence]
    for _ in range(w.pick((1, 1, 2)) if steps else w.pick((1, 1, 2, 2))):
        step, told = _event(w, name, one, many, total)
        steps.append(step)
        sentences.append(told)
        key = (*key, step.sign, step.right)
        total = step.result
    split = steps[-1].sign == "/"
    question = (
        w.pick((f"How many {many} does each one get?", f"How many {many} are in each share?"))
        if split
        else w.pick(
            (
                f"How many {many} does {name} have now?",
                f"How many {many} are there in the end?",
                f"What is the number of {many} now?",
                f"Work out how many {many} {name} has at the end.",
            )
        )
    )
    closing = w.pick(
        (f"So each share is {{}} {many}.", f"Each one gets {{}} {many}.")
        if split
        else (f"{name} has {{}} {many} now.", f"So there are {{}} {many} in the end.", f"That leaves {name} with {{}}.")
    )
    return Problem(" ".join([*sentences, question]), steps, closing, key)


def _event(w: World, name: str, one: str, many: str, total: int) -> tuple[Step, str]:
    """Something that happens to `total` things: its step and its sentence."""
    divisors = [d for d in range(2, 10) if total % d == 0 and total // d >= 2]
    kind = w.pick(("gain", "lose", "gain", "lose", "split" if divisors else "lose", "times" if total <= 60 else "gain"))
    friend = w.name()
    if kind == "split":
        d = w.pick(divisors)
        told = w.pick(
            (
                f"The {many} are shared equally among {d} friends.",
                f"{name} divides all the {many} evenly between {d} tables.",
                f"Then {name} packs them into {d} equal piles.",
            )
        )
        return Step(w.pick((f"share the {many} equally", f"divide the {many} by {d}")), total, "/", d, many), told
    if kind == "times":
        d = w.number(2, 6)
        told = w.pick(
            (
                f"{friend} helps, and soon there are {d} times as many.",
                f"A week later the number has become {d} times as large.",
            )
        )
        return Step("multiply the number", total, "×", d, many), told
    if kind == "gain":
        more = w.number(5, 390)
        told = w.pick(
            (
                f"{friend} brings {more} more.",
                f"Then {name} buys {more} more {many}.",
                f"{cap(w.pick(('a neighbour', 'an uncle', 'a teacher', 'a visitor')))} gives {name} another {more}.",
                f"Later {name} finds {more} {many} in a drawer.",
                f"{more} {many} arrive by post.",
            )
        )
        why = w.pick((f"add the {more} new {many}", "add what comes in", f"add {friend if friend in told else 'the'}"))
        why = why if not why.startswith("add " + friend) else f"add what {friend} brings"
        return Step(why if why != "add the" else f"add the new {many}", total, "+", more, many), told
    less = w.number(2, max(2, total - 2))
    told = w.pick(
        (
            f"{name} gives {less} of them to {friend}.",
            f"After that {less} {many} are sold.",
            f"{friend} borrows {less} {many}.",
            f"Unluckily {less} of the {many} get lost.",
            f"{name} uses up {less} {many} during the week.",
        )
    )
    why = w.pick((f"take away the {less} {many} that are gone", "subtract what goes away", f"remove {less} {many}"))
    return Step(why, total, "-", less, many), told


def _shop(w: World) -> Problem:
    name, (one, many) = w.name(), w.item()
    price, count = w.number(2, 19), w.number(2, 12)
    cost = price * count
    paid = w.pick([p for p in (20, 50, 100, 150, 200, 250, 300) if p > cost])
    text = w.pick(
        (
            f"One {one} costs {price} coins. {name} buys {count} of them and pays with {paid} coins. "
            "How much change comes back?",
            f"{name} wants {count} {many} at {price} euros each and hands over {paid} euros. What is the change?",
            f"A stall sells {many} for {price} crowns apiece. {name} takes {count} and gives the seller {paid} crowns. "
            "How many crowns are returned?",
        )
    )
    steps = [
        Step(w.pick(("find the cost", f"work out the price of {count} {many}")), count, "×", price, "coins"),
        Step("subtract the cost from the money paid", paid, "-", cost, "coins"),
    ]
    return Problem(text, steps, w.pick(("The change is {}.", f"{name} gets {{}} back.")), ("shop", price, count, paid))


def _journey(w: World) -> Problem:
    name, speed, hours = w.name(), w.number(4, 95), w.number(2, 9)
    extra = w.number(3, 120)
    vehicle = w.pick(("bus", "train", "bicycle", "boat", "van", "tram", "lorry", "horse cart"))
    ask = w.pick(
        (
            "How long is the whole way in km?",
            "How far is that in all?",
            "What is the length of the trip in km?",
            "How many km is the trip in all?",
        )
    )
    text = w.pick(
        (
            f"{name} travels by {vehicle} at {speed} km an hour for {hours} hours, then walks another {extra} "
            f"km. {ask}",
            f"A {vehicle} covers {speed} km every hour. After {hours} hours {name} still has {extra} km to go. {ask}",
        )
    )
    steps = [
        Step(w.pick(("multiply speed by time", f"find the distance of the {vehicle}")), speed, "×", hours, "km"),
        Step("add the rest of the way", speed * hours, "+", extra, "km"),
    ]
    return Problem(
        text, steps, w.pick(("The whole way is {} km.", "In all it is {} km.")), ("way", speed, hours, extra)
    )


def _age(w: World) -> Problem:
    young, old = w.name(), w.name()
    age, gap, years = w.number(4, 40), w.number(2, 38), w.number(2, 25)
    relation = w.pick(("sister", "cousin", "neighbour", "teacher", "uncle", "aunt", "coach"))
    text = w.pick(
        (
            f"{young} is {age} years old. {old}, {an(relation)}, is {gap} years older. "
            f"How old will {old} be in {years} years?",
            f"{old} is {gap} years older than {young}, who is {age} now. What will the age of {old} be "
            f"{years} years from now?",
        )
    )
    steps = [
        Step(f"find how old {old} is now", age, "+", gap, "years"),
        Step(f"add the {years} years that pass", age + gap, "+", years, "years"),
    ]
    return Problem(
        text, steps, w.pick((f"{old} will be {{}}.", f"Then {old} is {{}} years old.")), ("age", age, gap, years)
    )


def _area(w: World) -> Problem:
    name, long, wide = w.name(), w.number(4, 60), w.number(2, 12)
    thing = w.pick(("garden", "carpet", "field", "wall", "sheet of paper", "stage", "terrace", "pond"))
    if w.chance(0.5):
        text = w.pick(
            (
                f"{name} measures a {thing} that is {long} metres long and {wide} metres wide. "
                "How many metres is it around the edge?",
                f"A {thing} is {wide} metres wide and {long} metres long. {name} walks once around it. "
                "How many metres is that?",
            )
        )
        steps = [
            Step("add length and width", long, "+", wide, "metres"),
            Step("double the sum", long + wide, "×", 2, "metres"),
        ]
        return Problem(text, steps, "The way around is {} metres.", ("edge", long, wide))
    used = w.number(2, long * wide - 1)
    text = w.pick(
        (
            f"A {thing} is {long} metres long and {wide} metres wide. {name} has covered {used} square metres of it. "
            "How many square metres are left?",
            f"{name} paints a {thing} of {long} by {wide} metres and has finished {used} square metres. "
            "How much is still to do?",
        )
    )
    steps = [
        Step("find the whole area", wide, "×", long, "square metres"),
        Step("subtract the part that is done", wide * long, "-", used, "square metres"),
    ]
    return Problem(text, steps, "There are {} square metres left.", ("area", long, wide, used))


def _average(w: World) -> Problem:
    name, mean = w.name(), w.number(10, 80)
    first, second = mean + w.number(-4, 4), mean + w.number(-4, 4)
    third = 3 * mean - first - second
    unit = w.pick(("points", "pages", "degrees", "kilos", "minutes", "visitors", "steps"))
    text = w.pick(
        (
            f"{name} notes {first}, {second} and {third} {unit} on three days. What is the average?",
            f"Over three days {name} gets {first} {unit}, then {second}, then {third}. Find the mean per day.",
        )
    )
    steps = [
        Step("add the first two numbers", first, "+", second, unit),
        Step("add the third", first + second, "+", third, unit),
        Step("divide the sum by the number of days", 3 * mean, "/", 3, unit),
    ]
    return Problem(text, steps, f"The average is {{}} {unit}.", ("mean", first, second, third))


def _fraction(w: World) -> Problem:
    name, (_, many), part = w.name(), w.item(), w.number(2, 9)
    word = {2: "half", 3: "a third", 4: "a quarter", 5: "a fifth", 6: "a sixth", 7: "a seventh", 8: "an eighth"}
    share = w.number(3, 60)
    total = part * share
    said = word.get(part, "a ninth")
    text = w.pick(
        (
            f"{name} has {total} {many} and gives away {said} of them. How many {many} stay with {name}?",
            f"Of {total} {many} in the {w.pick(PLACES)}, {said} are taken by {name}. How many remain there?",
        )
    )
    steps = [
        Step(f"find {said} of {total}", total, "/", part, many),
        Step("subtract that part from the whole", total, "-", share, many),
    ]
    return Problem(text, steps, f"So {{}} {many} remain.", ("part", total, part))


def _compare(w: World) -> Problem:
    a, b, (_, many) = w.name(), w.name(), w.item()
    low, gap = w.number(6, 300), w.number(3, 180)
    verb = w.pick(("collects", "sells", "paints", "counts", "finds", "packs"))
    text = w.pick(
        (
            f"{a} {verb} {low} {many} and {b} {verb} {gap} more than {a}. How many {many} is that together?",
            f"{b} {verb} {gap} {many} more than {a}, who {verb} {low}. What is the total for both?",
        )
    )
    steps = [
        Step(f"find the number for {b}", low, "+", gap, many),
        Step("add both numbers", low, "+", low + gap, many),
    ]
    return Problem(text, steps, f"Together it is {{}} {many}.", ("compare", low, gap))


def _rate(w: World) -> Problem:
    name, (_, many) = w.name(), w.item()
    each, days, need = w.number(3, 40), w.number(2, 12), w.number(2, 90)
    total = each * days
    text = w.pick(
        (
            f"{name} makes {each} {many} a day for {days} days. {need} of them turn out badly. How many are good?",
            f"A machine in the {w.pick(PLACES)} makes {each} {many} an hour. After {days} hours {name} throws away "
            f"{min(need, total - 1)}. How many {many} can be used?",
        )
    )
    need = need if f" {need} " in text else min(need, total - 1)
    if need >= total:
        return _rate(w)
    steps = [
        Step("multiply to get the total", each, "×", days, many),
        Step("take off the bad ones", total, "-", need, many),
    ]
    return Problem(text, steps, f"So {{}} {many} are good.", ("rate", each, days, need))


def _single(w: World) -> Problem:
    name, friend, (_, many) = w.name(), w.name(), w.item()
    kind = w.number(0, 2)
    if kind == 0:
        a, b = w.number(15, 480), w.number(15, 480)
        text = w.pick(
            (
                f"{name} owns {a} {many} and {friend} owns {b}. How many {many} do they own together?",
                f"There are {a} {many} in one room and {b} in the next. {name} counts all of them. What is the total?",
            )
        )
        return Problem(
            text, [Step("add the two numbers", a, "+", b, many)], f"Together it is {{}} {many}.", ("add", a, b)
        )
    if kind == 1:
        b = w.number(10, 300)
        a = b + w.number(5, 300)
        text = w.pick(
            (
                f"{name} has {a} {many} and {friend} has {b}. How many more {many} does {name} have?",
                f"Out of {a} {many}, {name} has already sorted {b}. How many are left to sort?",
            )
        )
        return Problem(
            text, [Step("find the difference", a, "-", b, many)], f"The difference is {{}} {many}.", ("sub", a, b)
        )
    a, b = w.number(2, 12), w.number(3, 60)
    text = w.pick(
        (
            f"{name} plants {a} rows with {b} seeds in each row. How many seeds is that?",
            f"Each of {a} helpers carries {b} {many} for {name}. How many do they carry in all?",
        )
    )
    return Problem(text, [Step("multiply the two numbers", a, "×", b, many)], "In all it is {}.", ("mul", a, b))


FAMILIES: tuple[Callable[[World], Problem], ...] = (
    _chain,
    _chain,
    _chain,
    _chain,
    _shop,
    _journey,
    _age,
    _area,
    _average,
    _fraction,
    _compare,
    _rate,
    _single,
)


def problem(w: World) -> Problem:
    """A problem of this world with a result of at most four digits."""
    while True:
        p = w.pick(FAMILIES)(w)
        if w.ours(*p.key) and min(s.result for s in p.steps) >= 0 and max(s.result for s in p.steps) < 2000:
            return p


def make(w: World) -> Conversation:
    """A word problem; `answer` is the number."""
    p = problem(w)
    tail = w.pick(("", "", " Show the steps.", " Explain your working.", " Please work step by step.", " Show why."))
    return Conversation("math", [user(p.text + tail), assistant(solution(w, p))], answer=str(p.result))
