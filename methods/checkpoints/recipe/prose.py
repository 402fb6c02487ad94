"""Longer prose for `chat.py`: stories, scenes, explanations and instructions."""

from __future__ import annotations

from methods.checkpoints.recipe.chat_facts import JOBS, SCENES, TASKS, TOPICS, TREASURES
from methods.checkpoints.recipe.words import (
    ADJECTIVES,
    COLOURS,
    DAYS,
    HOURS,
    MONTHS,
    MOODS,
    PERSONAL,
    RELATIVES,
    WEATHER,
    World,
    an,
    cap,
)

Talk = tuple[str, str]


def story(w: World) -> Talk:
    name, other = w.name(), w.name()
    job, place = w.pick(list(JOBS)), w.pick(list(SCENES))
    thing = w.pick(TREASURES)
    mood = w.pick(MOODS)
    details, airs = SCENES[place]
    acts = w.some(JOBS[job], 2)
    d = w.some(details, 3)
    air = w.some(airs, 2)
    adj = w.some(ADJECTIVES, 4)
    relative, person = w.pick(RELATIVES), w.pick(PERSONAL)
    opening = w.pick(
        (
            f"{name} was {an(person)} {job} who knew every corner of the {place}.",
            f"On {an(adj[0])} morning in {w.pick(MONTHS)}, {name} the {job} came to the {place}.",
            f"The {place} {air[0]}, and {name} liked it that way.",
            f"Nobody at the {place} had seen {name} so {person} before.",
            f"Once there was {an(job)} called {name}, who worked near the {place}.",
            f"{cap(w.pick(WEATHER))} hung over the {place} when {name} {acts[0]}.",
            f"Every {w.pick(DAYS)}, {name} {acts[0]} and thought of nothing else.",
            f"It began with a sound among the {d[0]}.",
        )
    )
    found = w.pick(
        (
            f"Behind the {d[1]} lay {an(thing)}.",
            f"{cap(w.pick(HOURS))}, {an(thing)} turned up between the {d[1]}.",
            f"A {w.pick(COLOURS)} bird dropped {an(thing)} right in front of the {d[1]}.",
            f"Then {other}, {an(w.pick(PERSONAL))} {relative}, brought {an(thing)} without a word.",
            f"Under the {d[1]} somebody had hidden {an(thing)}.",
            f"While {name} {acts[1]}, {an(thing)} fell out of the {d[1]}.",
            f"There, next to the {d[1]}, was {an(adj[2])} box with {an(thing)} inside.",
        )
    )
    turns = w.some(
        (
            f"It was {w.pick(('warm', 'cold', 'heavy', 'wet', 'light'))} to the touch and {adj[2]} with age.",
            f"{other} {w.pick(('laughed', 'frowned', 'whistled', 'shook a head', 'said nothing'))} and pointed "
            f"at the {d[2]}.",
            f"{name} "
            f"{w.pick(('turned it over', 'held it up to the light', 'hid it in a pocket', 'set it on a step'))} "
            "and waited.",
            f"The {place} {air[1]}, and the {d[2]} seemed to listen.",
            f'"{w.pick(("Keep it", "Give it back", "Do not open it", "It was mine once", "Ask the old clock"))}," '
            f"said {other}.",
            f"By then the {w.pick(WEATHER)} had {w.pick(('stopped', 'grown worse', 'come back', 'moved out to sea'))}.",
            f"For {w.number(2, 9)} days nobody came to ask for it.",
            "A note on it read: "
            f'"{w.pick(("Wait for the tide", "For the next one", "Look up", "Not before spring", "Half is yours"))}."',
            f"{name} asked {other}, who {acts[1]} and shrugged.",
        ),
        w.number(4, 6),
    )
    ending = w.pick(
        (
            f"In the end {name} put the {thing} back among the {d[0]} and went home "
            f"{w.pick(('smiling', 'singing', 'in silence', 'slowly'))}.",
            f"Since that day the {thing} hangs above the door, and {other} visits every {w.pick(DAYS)}.",
            f"So the {job} gave the {thing} to {other}, and both of them felt {w.pick(PERSONAL)}.",
            f"Years later {name} still {acts[0]}, but never without the {thing}.",
            f"Nobody ever learned the truth, but the {d[2]} "
            f"{w.pick(('were cleaner', 'looked brighter', 'were never moved', 'kept still'))} after that.",
            f"And when {name} {acts[0]} again, the {thing} was gone.",
            f"{other} only said: "
            f'"{w.pick(("That will do", "At last", "Next year, then", "I knew it", "Tell no one"))}."',
        )
    )
    kind = w.pick(("story", "tale", "short story", "bedtime story"))
    ask = w.pick(
        (
            f"Tell me {an(mood)} {kind} about {an(job)} named {name} and {an(thing)}.",
            f"Write a {kind} set in the {place}. {name}, {an(job)}, should find {an(thing)}.",
            f"I would like {an(mood)} {kind} with {name} the {job}, {other} and the {place} in it.",
            f"Make up a {kind}: {an(thing)} appears in the {place}, and {name} is {an(job)}.",
            f"Can you write {an(mood)} {kind} in which {name} and {other} meet at the {place}?",
        )
    )
    return ask, " ".join([opening, found, *turns, ending])


def scene(w: World) -> Talk:
    place, hour, weather = w.pick(list(SCENES)), w.pick(HOURS), w.pick(WEATHER)
    details, airs = SCENES[place]
    d, air, adj = w.some(details, 5), w.some(airs, 3), w.some(ADJECTIVES, 4)
    sentences = w.some(
        (
            f"{cap(d[0])} {w.pick(('stand', 'lie', 'wait', 'gleam'))} in the "
            f"{w.pick(('half light', 'shade', 'corner', 'open'))}, {adj[0]} and {adj[1]}.",
            f"Somewhere {w.pick(('a door', 'a bell', 'a voice', 'a cart'))} "
            f"{w.pick(('can be heard', 'breaks the silence', 'answers another'))}.",
            f"The {weather} {w.pick(('softens', 'hides', 'sharpens', 'colours'))} the {d[1]}.",
            f"{w.pick(('A child', 'An old man', 'A woman in ' + w.pick(COLOURS), 'A dog'))} passes the {d[2]} "
            "without a look.",
            f"Nothing moves but the {d[3]}.",
            f"{cap(w.pick(COLOURS))} {w.pick(('paint', 'light', 'cloth', 'glass'))} catches the eye between the "
            f"{d[4]}.",
            f"You could count the {d[1]}, if you had the time.",
            f"It smells of {w.pick(('rain', 'smoke', 'oil', 'bread', 'wet stone', 'dust', 'leaves'))} and of "
            f"something {adj[2]}.",
            f"The {d[2]} look {adj[3]}, as if nobody had touched them since {w.pick(MONTHS)}.",
        ),
        w.number(5, 7),
    )
    opening = w.pick(
        (
            f"{cap(hour)} the {place} is {w.pick(('another', 'a different', 'a slower', 'a kinder'))} world.",
            f"{cap(weather)} and {w.pick(('silence', 'cold air', 'pale light', 'voices'))}: that is the {place} "
            f"{hour}.",
            f"The {place} {air[0]}.",
            f"You notice the {d[0]} first.",
        )
    )
    ending = w.pick(
        (
            "Then the first lamp goes on.",
            "Soon the people will come.",
            f"By {w.pick(DAYS)} all this will be forgotten.",
            "It is easy to stay too long.",
            f"Only the {d[3]} know how long it has been so.",
            "And then it is over.",
        )
    )
    ask = w.pick(
        (
            f"Describe a {place} {hour} in {weather}.",
            f"Paint me a picture in words: the {place}, {hour}, {weather}.",
            f"Write a short description of the {place} {hour}. Mention the {weather}.",
            f"How does a {place} feel {hour} when there is {weather}?",
        )
    )
    return ask, " ".join([opening, *sentences, ending])


LINKS = (
    "Besides, ",
    "It also helps to know that ",
    "Oddly enough, ",
    "What many forget is that ",
    "On top of that, ",
    "As a rule, ",
    "You may have noticed that ",
    "In fact, ",
    "Another point is that ",
    "People often say that ",
)


def explain(w: World) -> Talk:
    topic = w.pick(list(TOPICS))
    facts = w.some(TOPICS[topic], w.number(5, 6))
    links = w.some(LINKS, len(facts))
    audience = w.pick(("a child", "my class", "a friend", "someone new to it", "my grandfather", "a curious visitor"))
    opening = w.pick(
        (
            f"There is more to {topic} than one might think.",
            f"Let me say a few things about {topic}.",
            f"A few words on {topic}, then.",
            f"Good question, the subject of {topic} is full of surprises.",
            f"With {topic}, a few facts go a long way.",
        )
    )
    parts = [cap(f) + "." if w.chance(0.35) else f"{link}{f}." for link, f in zip(links, facts, strict=True)]
    ending = w.pick(
        (
            "If you want, I can go on.",
            f"That is most of what {audience} needs.",
            "The rest is best seen with your own eyes.",
            f"Try it out next {w.pick(DAYS)} and you will see.",
            "Is there a part you want to hear more about?",
            "So much for the start.",
        )
    )
    ask = w.pick(
        (
            f"Explain {topic} to {audience}.",
            f"What should {audience} know about {topic}?",
            f"Tell me about {topic} in a few sentences.",
            f"I have to talk about {topic} on {w.pick(DAYS)}. What can I say?",
            f"What is interesting about {topic}?",
        )
    )
    return ask, " ".join([opening, *parts, ending])


REASONS = (
    "it saves trouble later",
    "most people skip this",
    "it only takes a minute",
    "you will be glad of it",
    "it makes the rest easier",
    "otherwise you have to start again",
    "it costs nothing",
    "that is half the work",
)


def howto(w: World) -> Talk:
    task = w.pick(list(TASKS))
    steps = TASKS[task]
    chosen = [steps[i] for i in sorted(w.some(range(len(steps)), w.number(5, 6)))]
    reasons = w.some(REASONS, len(chosen))
    minutes = w.number(5, 55)
    texts = [f"{s}, because {r}" if w.chance(0.4) else s for s, r in zip(chosen, reasons, strict=True)]
    if w.chance(0.5):
        lead = w.pick(
            (f"To {task}, do this:", f"Here is how to {task}:", f"It takes about {minutes} minutes:", "Step by step:")
        )
        body = lead + "\n" + "\n".join(f"{i}. {cap(t)}." for i, t in enumerate(texts, 1))
    else:
        words = ("First, ", "Then ", "Next, ", "After that, ", "When that is done, ", "Finally, ")
        lead = w.pick(
            (
                f"It is not hard to {task}.",
                f"I would allow {minutes} minutes for this.",
                "Gladly.",
                "This works well for most people.",
            )
        )
        body = lead + " " + " ".join(f"{words[i]}{t}." for i, t in enumerate(texts))
    tail = w.pick(
        (
            "Good luck!",
            "Take your time.",
            f"After {w.number(2, 5)} tries it will feel easy.",
            "Let me know how it goes.",
            "",
        )
    )
    who = w.pick(("I", "my " + w.pick(RELATIVES), "we"))
    ask = w.pick(
        (
            f"How do I {task}?",
            f"{cap(who)} want{'s' * (who.startswith('my'))} to {task}. Any advice?",
            f"Give me short instructions to {task}.",
            f"What is the best way to {task} in {minutes} minutes?",
        )
    )
    return ask, f"{body}\n{tail}".strip()
