"""Entries of long documents for `documents.py`: people, objects, decisions, days and parts, fact by fact."""

from __future__ import annotations

from dataclasses import dataclass

from methods.checkpoints.recipe.chat_facts import JOBS, SCENES, TREASURES
from methods.checkpoints.recipe.words import ADJECTIVES, COLOURS, DAYS, MONTHS, PLACES, SURNAMES, World, an, cap


@dataclass
class Fact:
    """One aspect of an entry: the question's words for it, its sentence in the document, and the value asked for."""

    asked: str
    sentence: str
    value: str


@dataclass
class Entry:
    """A part of a document about one subject; `fields` entries are written as lines."""

    subject: str
    facts: list[Fact]
    fields: bool = False


def person(w: World) -> Entry:
    name = w.full_name()
    first = name.split()[0]
    job, place, town = w.pick(list(JOBS)), w.pick(PLACES), w.invented()
    year, room, code, thing = str(w.number(1951, 2024)), str(w.number(2, 399)), w.code(), w.pick(TREASURES)
    day, mentor = w.pick(DAYS), w.full_name()
    facts = [
        Fact(
            "the work",
            w.pick(
                (
                    f"{first} works as {an(job)} at the {place}.",
                    f"At the {place}, {first} is the {job} on duty.",
                    f"Trained as {an(job)}, {first} now serves the {place}.",
                )
            ),
            job,
        ),
        Fact(
            "the arrival",
            w.pick(
                (
                    f"The move from {town} took place in {year}.",
                    f"{first} came here from {town} in {year}.",
                    f"In {year}, {first} left {town} for good.",
                )
            ),
            year,
        ),
        Fact(
            "the room",
            w.pick(
                (
                    f"Letters go to room {room}, next to the {w.pick(SCENES['museum'][0])}.",
                    f"You will find {first} in room {room} most mornings.",
                    f"Since {w.pick(MONTHS)} the office has been room {room}.",
                )
            ),
            room,
        ),
        Fact(
            "the locker",
            w.pick(
                (
                    f"The locker bears the code {code} and holds {an(thing)}.",
                    f"Locker {code} belongs to {first}, with {an(thing)} inside.",
                )
            ),
            code,
        ),
        Fact(
            "the teacher",
            w.pick(
                (
                    f"Everything about the trade was learnt from {mentor}.",
                    f"{mentor} taught {first} the trade over {w.number(2, 11)} winters.",
                )
            ),
            mentor,
        ),
        Fact(
            "the free day",
            w.pick(
                (f"{first} does not work on {day}, except in {w.pick(MONTHS)}.", f"On {day} somebody else stands in.")
            ),
            day,
        ),
    ]
    return Entry(name, mix(w, facts))


def treasure(w: World) -> Entry:
    code = w.code()
    thing = w.pick(TREASURES)
    subject = f"{thing} {code}"
    town, donor, price = w.invented(), w.full_name(), str(w.number(3, 980))
    shelf, year = f"{w.pick('ABCDEFGH')}{w.number(1, 60)}", str(w.number(1702, 1990))
    facts = [
        Fact(
            "the origin",
            w.pick(
                (
                    f"It was made in {town} by {an(w.pick(list(JOBS)))}.",
                    f"A workshop in {town} produced it.",
                    f"It comes from {town}, on the {w.pick(COLOURS)} coast.",
                )
            ),
            town,
        ),
        Fact(
            "the year",
            w.pick(
                (
                    f"A mark on the back gives the year {year}.",
                    f"It has been dated to {year}, give or take a little.",
                    f"The oldest paper that mentions it is from {year}.",
                )
            ),
            year,
        ),
        Fact(
            "the giver",
            w.pick(
                (
                    f"{donor} gave it to the house one {w.pick(DAYS)}.",
                    f"It was a present of {donor}, {an(w.pick(list(JOBS)))}.",
                    f"We owe it to {donor}.",
                )
            ),
            donor,
        ),
        Fact(
            "the shelf",
            w.pick(
                (
                    f"It rests on shelf {shelf} behind the {w.pick(SCENES['workshop'][0])}.",
                    f"Look for it on shelf {shelf}.",
                    f"After cleaning it went back to shelf {shelf}.",
                )
            ),
            shelf,
        ),
        Fact(
            "the value",
            w.pick(
                (
                    f"An expert put its value at {price} crowns.",
                    f"It is insured for {price} crowns.",
                    f"At the last sale {price} crowns were offered for it.",
                )
            ),
            price,
        ),
        Fact(
            "the state",
            w.pick(
                (
                    f"One corner is {w.pick(ADJECTIVES)} and the lid is {w.pick(COLOURS)}.",
                    f"It looks {w.pick(ADJECTIVES)}, though a part is missing.",
                )
            ),
            "its state",
        ),
    ]
    return Entry(subject, mix(w, facts))


def minutes(w: World) -> Entry:
    matter = w.pick(("repair", "purchase", "sale", "cleaning", "painting", "renaming", "lighting"))
    subject = f"{matter} of the {w.invented()} {w.pick(PLACES)}"
    who, amount, votes = w.full_name(), str(w.number(40, 990)), str(w.number(4, 19))
    date, keeper = w.date(), w.full_name()
    facts = [
        Fact(
            "the proposal",
            w.pick(
                (
                    f"{who} brought the matter up again.",
                    f"The proposal came from {who}.",
                    f"It was {who} who asked for a decision.",
                )
            ),
            who,
        ),
        Fact(
            "the cost",
            w.pick(
                (
                    f"The cost must not exceed {amount} crowns.",
                    f"A sum of {amount} crowns was set aside.",
                    f"The lowest of {w.number(2, 6)} offers was {amount} crowns.",
                )
            ),
            amount,
        ),
        Fact(
            "the votes",
            w.pick(
                (
                    f"{votes} members voted in favour and {w.number(0, 3)} against.",
                    f"With {votes} votes the matter was settled.",
                )
            ),
            votes,
        ),
        Fact(
            "the date",
            w.pick(
                (
                    f"The work is to be finished by {date}.",
                    f"{date} was fixed as the last day.",
                    f"A first report is due on {date}.",
                )
            ),
            date,
        ),
        Fact(
            "the person in charge",
            w.pick(
                (
                    f"{keeper} will keep an eye on it.",
                    f"The keys stay with {keeper}.",
                    f"Questions should be sent to {keeper}.",
                )
            ),
            keeper,
        ),
        Fact(
            "the mood",
            w.pick(
                (
                    f"The talk was long and rather {w.pick(ADJECTIVES)}.",
                    f"Some thought the whole idea {w.pick(ADJECTIVES)}.",
                )
            ),
            "the mood",
        ),
    ]
    return Entry(subject, mix(w, facts))


def diary(w: World) -> Entry:
    subject = f"{w.date()} in {w.invented()}"
    friend, thing, coins, km = w.full_name(), w.pick(TREASURES), str(w.number(2, 95)), str(w.number(3, 88))
    place = w.pick(list(SCENES))
    food = w.pick(
        ("bean stew", "fried fish", "plum cake", "onion soup", "flat bread", "cold rice", "goat cheese", "baked pears")
    )
    facts = [
        Fact(
            "the people met",
            w.pick(
                (
                    f"I met {friend}, who {w.pick(list(JOBS.values()))[0]}.",
                    f"By chance I ran into {friend}.",
                    f"{friend} showed me the way.",
                )
            ),
            friend,
        ),
        Fact(
            "the purchase",
            w.pick((f"For {coins} coins I bought {an(thing)}.", f"I could not resist {an(thing)} at {coins} coins.")),
            thing,
        ),
        Fact(
            "the distance",
            w.pick(
                (
                    f"We covered {km} km on foot.",
                    f"After {km} km my boots gave up.",
                    f"The map says {km} km, my legs say more.",
                )
            ),
            km,
        ),
        Fact(
            "the place seen",
            w.pick(
                (
                    f"The {place} {w.pick(SCENES[place][1])}.",
                    f"I spent {w.number(10, 300)} minutes in the {place} with {friend.split()[0]}.",
                )
            ),
            place,
        ),
        Fact(
            "the meal",
            w.pick(
                (f"There was {food} for supper.", f"I ate {food} with strangers.", f"The inn had nothing but {food}.")
            ),
            food,
        ),
        Fact(
            "the weather",
            w.pick(
                (
                    f"The morning was {w.pick(('wet', 'clear', 'icy', 'foggy', 'mild'))}.",
                    f"It rained from {w.clock()} until dark.",
                )
            ),
            "the weather",
        ),
    ]
    return Entry(subject, mix(w, facts))


def part(w: World) -> Entry:
    code = w.code()
    one, _ = w.item()
    subject = f"{w.pick(COLOURS)} {one} {code}"
    values = {
        "stock": str(w.number(0, 900)),
        "supplier": f"{w.invented()} {w.pick(('Works', 'Brothers', 'Supply', 'and Sons', 'Trading'))}",
        "unit price": f"{w.number(1, 60)}.{w.number(10, 99)}",
        "location": f"hall {w.number(1, 9)}, row {w.number(1, 40)}",
        "last order": f"{w.date()} {w.number(2019, 2025)}",
        "keeper": w.full_name(),
        "weight in grams": str(w.number(3, 2000)),
    }
    keys = w.some(list(values), w.number(4, 6))
    return Entry(subject, [Fact(f"the {key}", f"{cap(key)}: {values[key]}", values[key]) for key in keys], fields=True)


LEADS = (
    "As far as we know, ",
    "By all accounts, ",
    "According to {n}, ",
    "As {n} wrote, ",
    "In the words of {n}, ",
    "To be exact, ",
    "Strange to say, ",
    "On {d}, a clerk added: ",
    "It is said that ",
    "{n} confirms that ",
    "One should add that ",
    "Unlike before, ",
    "As everyone in {t} knows, ",
    "Oddly, ",
    "No doubt ",
    "A letter from {t} says that ",
    "Around {h}, word came that ",
    "For the record, ",
    "{n} insists that ",
)


TAILS = (
    ", or so {n} claims",
    ", as a note of {d} shows",
    ", much to the surprise of {n}",
    ", which {n} did not expect",
    ", and nobody objects",
    ", as in {t}",
    ", at least until {m}",
    ", whatever {n} may say",
    ", to be on the safe side",
    ", and that is that",
)


OPENERS = frozenset(
    [
        "A",
        "All",
        "An",
        "At",
        "After",
        "By",
        "Everything",
        "For",
        "In",
        "It",
        "Letters",
        "Look",
        "Locker",
        "On",
        "One",
        "Questions",
        "Since",
        "Some",
        "The",
        "There",
        "To",
        "Trained",
        "We",
        "With",
        "You",
    ]
)


def vary(w: World, sentence: str) -> str:
    """The sentence, often with a phrase before or behind it, so that documents do not repeat each other."""
    words = {"n": w.pick(SURNAMES), "d": w.pick(DAYS), "t": w.invented(), "m": w.pick(MONTHS), "h": w.clock()}
    if w.chance(0.4):
        first = sentence.split()[0]
        plain = sentence[:1].lower() + sentence[1:] if first in OPENERS else sentence
        sentence = cap(w.pick(LEADS).format(**words) + plain)
    if w.chance(0.3):
        sentence = sentence[:-1] + w.pick(TAILS).format(**words) + "."
    return sentence


def mix(w: World, facts: list[Fact]) -> list[Fact]:
    chosen = w.some(facts, w.number(3, 5))
    for fact in chosen:
        fact.sentence = vary(w, fact.sentence)
    return chosen
