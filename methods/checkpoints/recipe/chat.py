"""Chat: stories, scenes, explanations, advice, lists, comparisons, notes, rewriting and summaries.

The prose has real entropy: openings, connectives, order, details and endings are drawn from pools that depend on
what the prompt names, and none is used twice in an answer, so that greedy answers neither loop nor come out alike.
"""

from __future__ import annotations

from collections.abc import Callable

from methods.checkpoints.recipe.chat_facts import FEELINGS, IDEAS, JOBS, SCENES, THINGS, TREASURES
from methods.checkpoints.recipe.conversation import Conversation, assistant, system, user
from methods.checkpoints.recipe.prose import Talk, explain, howto, scene, story
from methods.checkpoints.recipe.words import (
    AIRS,
    COLOURS,
    DAYS,
    HOURS,
    MONTHS,
    PERSONAL,
    RELATIVES,
    WEATHER,
    World,
    an,
    cap,
)


def _ideas(w: World) -> Talk:
    theme = w.pick(list(IDEAS))
    count = w.number(5, 7)
    ideas, adj = w.some(IDEAS[theme], count), w.some(PERSONAL, count)
    who = w.pick(
        ("children", "two people", "my " + w.pick(RELATIVES), "a group", "beginners", "someone " + w.pick(PERSONAL))
    )
    tails = w.some(
        (
            "good for {who}",
            "for {a} people",
            "best {h}",
            "takes about {n} minutes",
            "needs a little planning",
            "even if you are {a}",
            "works in {x} too",
            "nice with {m}",
            "my favourite",
            "ask {m} to join",
        ),
        count,
    )
    lines = []
    for i, idea in enumerate(ideas):
        tail = tails[i].format(
            who=who, a=adj[i], h=w.pick(HOURS), n=w.number(10, 90), x=w.pick(WEATHER), m="your " + w.pick(RELATIVES)
        )
        lines.append(f"{cap(idea)} ({tail})" if w.chance(0.5) else f"{cap(idea)}: {tail}")
    bullet = w.pick(("- ", "* ", ""))
    body = "\n".join(f"{bullet or f'{i}. '}{line}" for i, line in enumerate(lines, 1))
    lead = w.pick(
        (
            f"Here are {count} ideas for {theme}:",
            f"For {theme} I would suggest:",
            f"{count} thoughts, in no special order:",
            "How about these?",
        )
    )
    ask = w.pick(
        (
            f"Give me {count} ideas for {theme} with {who}.",
            f"I need {count} ideas for {theme}. They are for {who}.",
            f"Suggest {count} things for {theme}, for {who}.",
        )
    )
    return ask, f"{lead}\n{body}"


def _compare(w: World) -> Talk:
    a, b = w.some(list(THINGS), 2)
    points = w.some(list(THINGS[a]), w.number(3, 4))
    name = w.name()
    words = {"price": "money", "comfort": "comfort", "work": "effort", "weather": "weather"}
    parts = []
    for point in points:
        parts.append(
            w.pick(
                (
                    f"As for {words[point]}, {a} is {THINGS[a][point]}, while {b} is {THINGS[b][point]}.",
                    f"{cap(a)} is {THINGS[a][point]}; {b}, on the other hand, is {THINGS[b][point]}.",
                    f"When it comes to {words[point]}, {b} is {THINGS[b][point]} and {a} is {THINGS[a][point]}.",
                    f"{cap(b)} is {THINGS[b][point]}, which cannot be said of {a}: it is {THINGS[a][point]}.",
                )
            )
        )
    winner = w.pick((a, b))
    ending = w.pick(
        (
            f"For {name} I would take {winner}.",
            f"If in doubt, choose {winner}.",
            f"On the whole {winner} suits {name} better.",
            "It depends on what matters most.",
        )
    )
    opening = w.pick(
        (
            "Both have their place.",
            f"That depends on what {name} needs.",
            f"{cap(a)} and {b} differ in {w.pick(('a few', 'three', 'several'))} ways.",
            "Let us compare them.",
        )
    )
    ask = w.pick(
        (
            f"Should {name} get {a} or {b}?",
            f"Compare {a} with {b} for {name}.",
            f"{name} cannot decide between {a} and {b}. What do you think?",
        )
    )
    return ask, " ".join([opening, *parts, ending])


def _note(w: World) -> Talk:
    to, sender, day, thing = w.name(), w.name(), w.pick(DAYS), w.pick(TREASURES)
    place, hour = w.pick(list(SCENES)), w.clock()
    kind, ask_part, core = w.pick(
        (
            (
                "thank-you note",
                f"for the {thing}",
                (f"thank you so much for the {thing}.", f"the {thing} arrived on {day}, and I am delighted."),
            ),
            (
                "invitation",
                f"to the {place} on {day} at {hour}",
                (
                    f"would you like to come to the {place} on {day} at {hour}?",
                    f"we meet at the {place} on {day}, at {hour}, and you must be there.",
                ),
            ),
            (
                "apology",
                f"for losing the {thing}",
                (
                    f"I am sorry that I lost the {thing}.",
                    f"I have to tell you that the {thing} is gone, and it is my fault.",
                ),
            ),
            (
                "reminder",
                f"to bring the {thing} on {day}",
                (
                    f"please remember to bring the {thing} on {day}.",
                    f"do not forget the {thing} when we meet on {day}.",
                ),
            ),
            (
                "request",
                f"to lend the {thing} until {day}",
                (
                    f"could you lend me the {thing} until {day}?",
                    f"I wonder whether I may borrow the {thing} until {day}.",
                ),
            ),
        )
    )
    middles = w.some(
        (
            f"It reminded me of the {place}, where we "
            f"{w.pick(('first met', 'got lost', 'laughed so much', 'waited for hours'))}.",
            f"My {w.pick(RELATIVES)} "
            f"{w.pick(('asks about you', 'sends greetings', 'will be there too', 'still talks of your visit'))}.",
            f"Here the {w.pick(WEATHER)} "
            f"{w.pick(('has not stopped', 'is back', 'keeps us indoors', 'suits the garden'))}.",
            f"I have been {w.pick(PERSONAL)} all week, so "
            f"{w.pick(('forgive the short note', 'this will be brief', 'a reply would cheer me up'))}.",
            f"If {day} does not suit you, {w.pick(('tell me soon', 'choose another day', 'we can wait a week'))}.",
            f"I promise {w.pick(('to make up for it', 'to write more next time', 'to bring cake', 'to be on time'))}.",
        ),
        w.number(3, 4),
    )
    close = w.pick(("Warm wishes", "Yours", "With love", "Best regards", "See you soon", "Take care"))
    lead = w.pick(("Dear {}", "Hello {}", "My dear {}", "Hi {}")).format(to)
    ask = w.pick(
        (
            f"Write a short {kind} to {to} {ask_part}. Sign it {sender}.",
            f"Help me with {an(kind)} from {sender} to {to} {ask_part}.",
            f"I need {an(kind)} for {to} {ask_part}; I am {sender}.",
        )
    )
    return ask, f"{lead},\n\n{w.pick(core)} {' '.join(middles)}\n\n{close},\n{sender}"


def _turning_point(w: World) -> str:
    """What ends a bad time."""
    return w.pick(("a letter came", f"the {w.pick(WEATHER)} passed", f"{w.pick(MONTHS)} was over", "a friend called"))


def _feeling(w: World) -> Talk:
    feeling = w.pick(list(FEELINGS))
    causes, advice = FEELINGS[feeling]
    cause, tips = w.pick(causes), w.some(advice, 3)
    name, relative = w.name(), w.pick(RELATIVES)
    opening = w.pick(
        (
            f"I am glad you told me, {name}.",
            f"Thank you for writing, {name}.",
            f"Many people feel {feeling} {cause.replace('my ', 'their ')}.",
            f"That sounds familiar, {name}.",
            f"Being {feeling} is nothing to hide.",
        )
    )
    middle = w.pick(
        (
            f"You could {tips[0]}, or {tips[1]}.",
            f"What if you {tips[0]} first and then {tips[1]}?",
            f"A small start would be to {tips[0]}; some also {tips[1]}.",
        )
    )
    more = w.pick(
        (
            f"My {w.pick(PERSONAL)} advice: {tips[2]}.",
            f"And if your {relative} asks, {tips[2]} together.",
            f"On {w.pick(DAYS)} you might even {tips[2]}.",
            f"Later, {tips[2]}.",
        )
    )
    ending = w.pick(
        (
            "How does that sound?",
            f"It will look different by {w.pick(MONTHS)}.",
            "Which of these would you try?",
            "Be patient with yourself.",
            f"Tell your {relative} about it, too.",
        )
    )
    ask = w.pick(
        (
            f"Hi, I am {name}. I feel {feeling} {cause}.",
            f"My name is {name} and I am rather {feeling} {cause}. What now?",
            f"{name} here. I have been {feeling} {cause}, and my {relative} says I should write to you.",
        )
    )
    story = w.pick(
        (
            f"My {w.pick(RELATIVES)} was {feeling} for weeks once, until {_turning_point(w)}.",
            f"It often starts {w.pick(HOURS)} and is gone {w.pick(HOURS)}.",
            f"{cap(w.pick(WEATHER))} "
            f"{w.pick(('does not help', 'can make it worse', 'is no excuse, of course', 'has its part in it'))}.",
            f"A {w.pick(list(JOBS))} I know would say that it takes {w.number(2, 9)} "
            f"{w.pick(('days', 'weeks', 'walks', 'cups of tea'))}.",
        )
    )
    return ask, " ".join([opening, story, middle, more, ending])


CASUAL = (
    ("gonna", "going to"),
    ("can't", "cannot"),
    ("won't", "will not"),
    ("don't", "do not"),
    ("it's", "it is"),
    ("we're", "we are"),
    ("I'm", "I am"),
    ("wanna", "want to"),
    ("kids", "children"),
    ("stuff", "things"),
)


def _rewrite(w: World) -> Talk:
    name, place, thing, day = w.name(), w.pick(list(SCENES)), w.pick(TREASURES), w.pick(DAYS)
    clauses = w.some(
        (
            f"I can't find the {thing}",
            f"the kids are gonna visit the {place} on {day}",
            f"we don't have much stuff left for {name}",
            f"it's too {w.pick(AIRS)} in the {place}",
            f"I'm late because of the {w.pick(WEATHER)}",
            f"{name} won't come before {w.clock()}",
            f"we're happy about the {thing}",
            f"I wanna talk to {name} about the {thing}",
        ),
        w.number(4, 5),
    )
    text = ". ".join(cap(c) for c in clauses) + "."
    formal = text
    for short, long in CASUAL:
        formal = formal.replace(short, long).replace(cap(short), cap(long))
    lead = w.pick(("Here is a more formal version:", "In a more formal tone:", "Written out properly, it reads:"))
    tail = w.pick(
        (
            "I only changed the short forms.",
            f"Shall I add a line for {name}?",
            "The meaning is the same.",
            "It is now fit for a letter.",
        )
    )
    ask = w.pick(("Make this more formal:", "Rewrite this for a letter:", "Please write this without short forms:"))
    return f"{ask} {text}", f"{lead}\n{formal}\n{tail}"


def _summary(w: World) -> Talk:
    name, job, place = w.name(), w.pick(list(JOBS)), w.pick(list(SCENES))
    day, count, (_, many) = w.pick(DAYS), w.number(3, 90), w.item()
    event = w.pick(("sale", "concert", "reading", "fair", "race", "dinner", "exhibition"))
    cause, details = w.pick(WEATHER), SCENES[place][0]
    d = w.some(details, 2)
    aim, reach = w.number(100, 900), w.number(50, 980)
    facts = [
        f"On {day} {name}, the {job}, opened {an(event)} in the {place}.",
        f"It had been delayed by {cause}, and the {d[0]} had to be moved twice.",
        f"In all {count} {many} were given away to the guests.",
        f"The plan was to collect {aim} coins for new {d[1]}, and the final sum was {reach}.",
    ]
    extra = w.some(
        (
            "Somebody sang.",
            f"The {d[1]} were admired by all.",
            f"A {w.pick(COLOURS)} flag hung over the door.",
            f"There was soup at {w.clock()}.",
        ),
        2,
    )
    text = " ".join([facts[0], extra[0], facts[1], facts[2], extra[1], facts[3]])
    result = "more than planned" if reach > aim else "less than planned" if reach < aim else "exactly as planned"
    answer = w.pick(
        (
            f"{name}, {an(job)}, held {an(event)} at the {place} on {day}, though {cause} had delayed it. "
            f"{count} {many} went to guests, and {reach} coins came in, {result} ({aim}).",
            f"Despite {cause}, the {event} in the {place} took place on {day}. {name} the {job} gave away "
            f"{count} {many}. The sum of {reach} coins was {result}; the goal was {aim}.",
            f"The {event} of {name} the {job} brought in {reach} coins for new {d[1]}, {result}, as {aim} were "
            f"wanted. It was on {day} in the {place}, late because of {cause}, and {count} {many} were given out.",
        )
    )
    lead = w.pick(("In short: ", "Summary: ", "", "The main points: "))
    tail = w.pick(
        ("", " Details such as the food are left out.", " That is all that matters.", f" The rest concerns the {d[0]}.")
    )
    ask = w.pick(
        ("Summarise this in two or three sentences:", "What are the main points here?", "Give me the short version:")
    )
    return f"{ask}\n{text}", f"{lead}{answer}{tail}"


KINDS: tuple[Callable[[World], Talk], ...] = (
    story,
    story,
    story,
    scene,
    scene,
    explain,
    explain,
    howto,
    _ideas,
    _compare,
    _note,
    _note,
    _feeling,
    _rewrite,
    _summary,
)
PERSONAS = (
    "You are a friendly assistant.",
    "You answer briefly and kindly.",
    "You are a helpful writer.",
    "You are a patient guide.",
)


def make(w: World) -> Conversation:
    """A request for prose and its answer; there is no single right one."""
    while True:
        ask, answer = w.pick(KINDS)(w)
        if w.ours("chat", ask):
            break
    messages = [user(ask), assistant(answer)]
    if w.chance(0.12):
        messages.insert(0, system(w.pick(PERSONAS)))
    return Conversation("chat", messages)
