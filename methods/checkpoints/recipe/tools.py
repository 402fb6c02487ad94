"""Tool calls: tools made on the fly from a verb, a noun and a handful of parameters, a request in words, and the
JSON calls that answer it.

No tool is written by hand: names, parameters, their order, wording, enumerations and nested objects are drawn
anew for every conversation, so that the model has to read the schemas and copy the values from the request.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from methods.checkpoints.recipe.conversation import Conversation, assistant, system, user
from methods.checkpoints.recipe.words import COLOURS, DAYS, World, cap, series

Json = dict[str, Any]

_pools: Json = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))

DOMAINS: dict[str, tuple[list[str], list[str], list[str]]] = _pools["domains"]
"""Verbs, nouns and the kinds of parameter that go together."""
ENUMS: dict[str, tuple[list[str], list[str]]] = _pools["enums"]
"""The values of an enumeration, and how a request gives one."""
QUALIFIERS: list[str] = _pools["qualifiers"]
STREETS: list[str] = _pools["streets"]
WAYS: list[str] = _pools["ways"]
TOPICS: list[str] = _pools["topics"]
TITLES: list[str] = _pools["titles"]
NOTES_A: list[str] = _pools["notes_a"]
NOTES_B: list[str] = _pools["notes_b"]


@dataclass
class Parameter:
    """One parameter of a tool, the value that the request gives it and the words that say so."""

    name: str
    schema: Json
    value: Any
    phrase: str
    base: str


def _describe(w: World, thing: str) -> Json:
    """A worded description, or none."""
    if w.chance(0.5):
        return {}
    lead = w.pick(
        ("The", "Which", "Its", "Chosen", "Preferred", "Exact", "Given", "Agreed", "Current", "Known", "Desired")
    )
    tail = w.pick(
        (
            "",
            "",
            " to use",
            " in full",
            " as given",
            " for this",
            " if known",
            " on file",
            " wanted",
            " here",
            " needed",
        )
    )
    return {"description": f"{lead} {thing.replace('_', ' ')}{tail}"}


def _named(w: World, base: str) -> str:
    return f"{w.pick(QUALIFIERS)}_{base}" if w.chance(0.3) else base


def _enum(w: World) -> Parameter:
    base = w.pick(list(ENUMS))
    values, phrases = ENUMS[base]
    options = w.some(values, w.number(3, len(values)))
    value = w.pick(options)
    name = _named(w, base)
    return Parameter(
        name, {"type": "string", "enum": options, **_describe(w, name)}, value, w.pick(phrases).format(value), base
    )


def _integer(w: World) -> Parameter:
    base, low, high, phrases = w.pick(
        (
            ("quantity", 2, 60, ("a quantity of {}", "{} units")),
            ("guests", 2, 30, ("for {} guests", "with {} guests")),
            ("limit", 3, 90, ("at most {} results", "limited to {} results")),
            ("duration_minutes", 10, 240, ("lasting {} minutes", "for {} minutes")),
            ("nights", 1, 14, ("for {} nights", "staying {} nights")),
            ("pages", 2, 400, ("covering {} pages", "with {} pages")),
            ("budget", 20, 900, ("with a budget of {}", "spending up to {}")),
            ("distance_km", 2, 300, ("within {} km", "no further than {} km")),
            ("copies", 2, 50, ("in {} copies", "making {} copies")),
            ("temperature", 5, 30, ("at {} degrees", "set to {} degrees")),
        )
    )
    value = w.number(low, high)
    name = _named(w, base)
    schema: Json = {"type": "integer", **_describe(w, name)}
    if w.chance(0.4):
        schema["minimum"] = w.pick((0, 1))
    return Parameter(name, schema, value, w.pick(phrases).format(value), base)


def _text(w: World) -> Parameter:
    base, value, phrases = w.pick(
        (
            ("city", w.invented(), ("in {}", "in the city of {}", "near {}")),
            ("title", f"{cap(w.pick(TOPICS))} {w.pick(TITLES)}", ("titled '{}'", "with the title '{}'")),
            ("code", w.code(), ("under code {}", "with the code {}", "using reference {}")),
            ("owner", w.full_name(), ("owned by {}", "in the name of {}", "for {}")),
            ("date", f"2026-{w.number(1, 12):02}-{w.number(1, 28):02}", ("on {}", "dated {}", "for {}")),
            ("start_time", f"{w.number(7, 20):02}:{w.pick(('00', '15', '30', '45'))}", ("at {}", "starting at {}")),
            ("note", f"{w.pick(NOTES_A)} {w.pick(NOTES_B)}", ("with the note '{}'", "adding '{}'")),
            ("topic", w.pick(TOPICS), ("about {}", "on the topic of {}")),
            ("department", w.pick(TOPICS), ("for the {} department", "on behalf of the {} department")),
        )
    )
    name = _named(w, base)
    return Parameter(name, {"type": "string", **_describe(w, name)}, value, w.pick(phrases).format(value), base)


def _flag(w: World) -> Parameter:
    base, yes, no = w.pick(
        (
            ("notify", "with a notification", "without any notification"),
            ("gift_wrap", "gift wrapped", "not gift wrapped"),
            ("private", "kept private", "visible to everyone"),
            ("repeat", "repeating", "just once"),
            ("insured", "with insurance", "without insurance"),
            ("draft", "as a draft", "not as a draft"),
        )
    )
    value = w.chance(0.5)
    return Parameter(base, {"type": "boolean", **_describe(w, base)}, value, yes if value else no, base)


def _list(w: World) -> Parameter:
    base, pool, phrase = w.pick(
        (
            ("tags", TOPICS, "tagged {}"),
            ("attendees", (), "with {} attending"),
            ("days", tuple(d.lower() for d in DAYS), "on the days {}"),
            ("colours", COLOURS, "in the colours {}"),
            ("topics", TOPICS, "covering {}"),
        )
    )
    count = w.number(2, 4)
    values = w.some(pool, count) if pool else [w.name() for _ in range(count)]
    schema = {"type": "array", "items": {"type": "string"}, **_describe(w, base)}
    return Parameter(base, schema, values, phrase.format(series(values)), base)


@dataclass
class Field:
    """A field of a nested object: possible names, its JSON type and its value."""

    names: tuple[str, ...]
    kind: str
    value: Any
    name: str = ""


def _object(w: World, fields: list[Field]) -> tuple[Json, Json]:
    """Schema and value of an object whose fields get names, an order, descriptions and requirements of their own."""
    for field in fields:
        field.name = w.pick(field.names)
    fields = w.some(fields, len(fields))
    schema: Json = {"type": "object", "properties": {f.name: {"type": f.kind, **_describe(w, f.name)} for f in fields}}
    required = [f.name for f in fields if w.chance(0.7)]
    if required:
        schema["required"] = required
    return schema, {f.name: f.value for f in fields}


def _nested(w: World) -> Parameter:
    kind = w.number(0, 3)
    base = ("address", "contact", w.pick(("limits", "price_range")), "dimensions")[kind]
    if kind == 0:
        name = w.pick(("address", "destination", "location", "pickup_point", "site", "place"))
        street, number, city = f"{w.pick(STREETS)} {w.pick(WAYS)}", w.number(1, 199), w.invented()
        fields = [
            Field(("street", "street_name", "road", "line"), "string", street),
            Field(("number", "house", "house_number", "door"), "integer", number),
            Field(("city", "town", "place_name", "municipality"), "string", city),
        ]
        phrase = w.pick((f"to {number} {street} in {city}", f"at {number} {street}, {city}"))
        if w.chance(0.4):
            floor = w.number(1, 20)
            fields.append(Field(("floor", "level", "storey"), "integer", floor))
            phrase += f", floor {floor}"
    elif kind == 1:
        name = w.pick(("contact", "recipient", "customer", "organiser", "person", "client", "applicant"))
        person = w.name()
        mail = f"{person.lower()}@{w.word()}.{w.pick(('org', 'com', 'net'))}"
        fields = [
            Field(("name", "full_name", "who", "first_name"), "string", person),
            Field(("email", "mail", "email_address", "reply_to"), "string", mail),
        ]
        rest = ""
        if w.chance(0.5):
            phone = f"555-{w.number(1000, 9999)}"
            fields.append(Field(("phone", "telephone", "phone_number", "mobile"), "string", phone))
            rest = f", phone {phone}"
        phrase = w.pick((f"for {person} ({mail}{rest})", f"with {person} at {mail}{rest} as the contact"))
    elif kind == 2:
        name = w.pick((base, "range", "window", "bounds", "interval"))
        low = w.number(1, 80)
        high = low + w.number(5, 120)
        fields = [
            Field(("min", "low", "from", "minimum", "lower", "at_least"), "integer", low),
            Field(("max", "high", "to", "maximum", "upper", "at_most"), "integer", high),
        ]
        phrase = w.pick((f"between {low} and {high}", f"from {low} up to {high}"))
    else:
        name = w.pick(("dimensions", "package", "box", "measures", "outer_size"))
        wide, high, deep = (w.number(4, 120) for _ in range(3))
        fields = [
            Field(("width", "width_cm", "w", "across"), "integer", wide),
            Field(("height", "height_cm", "h", "tall"), "integer", high),
            Field(("depth", "depth_cm", "d", "length"), "integer", deep),
        ]
        phrase = w.pick((f"{wide} wide, {high} high and {deep} deep", f"measuring {wide} by {high} by {deep}"))
    schema, value = _object(w, fields)
    return Parameter(name, {**schema, **_describe(w, name)}, value, phrase, base)


def _rows(w: World) -> Parameter:
    """An array of objects: lines of an order."""
    name = w.pick(("items", "lines", "parts", "products", "goods", "positions"))
    key = w.pick(("name", "product", "item", "article", "what", "label"))
    count = w.pick(("count", "quantity", "amount", "number", "pieces", "how_many"))
    rows, words = [], []
    for _ in range(w.number(2, 3)):
        one, _ = w.item()
        number = w.number(1, 40)
        thing = w.pick((one, f"{w.pick(COLOURS)} {one}"))
        rows.append({key: thing, count: number})
        words.append(f"{number} of the item '{thing}'" if w.chance(0.3) else f"{number} x {thing}")
    properties = {key: {"type": "string", **_describe(w, key)}, count: {"type": "integer", **_describe(w, count)}}
    schema: Json = {"type": "array", "items": {"type": "object", "properties": properties}, **_describe(w, name)}
    return Parameter(name, schema, rows, f"with {series(words)}", "items")


KINDS: tuple[Callable[[World], Parameter], ...] = (_enum, _integer, _text, _text, _flag, _list, _nested, _nested, _rows)


@dataclass
class Tool:
    """A tool with the arguments that one request gives it."""

    verb: str
    noun: str
    schema: Json
    arguments: Json
    phrases: list[str]

    @property
    def call(self) -> Json:
        return {"name": self.schema["function"]["name"], "arguments": self.arguments}


def _tool(w: World) -> Tool:
    """A tool of this world: training and held-out requests never share a verb with its noun."""
    while True:
        verbs, nouns, allowed = w.pick(tuple(DOMAINS.values()))
        verb, noun = w.pick(verbs), w.pick(nouns)
        if w.ours("tool", verb, noun):
            break
    chosen: dict[str, Parameter] = {}
    count = w.pick((2, 3, 3, 4, 4, 5))
    while len(chosen) < count:
        parameter = w.pick(KINDS)(w)
        if parameter.base in allowed and all(parameter.base != p.base for p in chosen.values()):
            chosen[parameter.name] = parameter
    given = {n: p for n, p in chosen.items() if w.chance(0.9)} or dict(chosen)
    required = [n for n in given if w.chance(0.75)] or list(given)[:1]
    parameters = {
        "type": "object",
        "properties": {n: p.schema for n, p in chosen.items()},
        "required": required,
    }
    description = w.pick(
        (
            "{V} {a} {n}",
            "{V} {a} {n} for the {t} desk",
            "Use this to {v} {a} {n}",
            "{V} one {n} of the {t} service",
            "{V} {a} {n} in the {t} system",
            "{V} {a} {n} kept under {t}",
        )
    ).format(V=cap(verb), v=verb, n=noun, a="an" if noun[0] in "aeiou" else "a", t=w.pick(TOPICS))
    function = {"name": f"{verb}_{noun}", "description": description, "parameters": parameters}
    order = list(given.values())
    phrases = [p.phrase for p in w.some(order, len(order))]
    return Tool(verb, noun, {"type": "function", "function": function}, {n: p.value for n, p in given.items()}, phrases)


def _request(w: World, tool: Tool) -> str:
    article = w.pick(("the", "an" if tool.noun[0] in "aeiou" else "a"))
    return f"{tool.verb} {article} {tool.noun} {', '.join(tool.phrases)}"


def _preamble(w: World, tools: list[Tool]) -> str:
    jobs = [f"{t.verb} the {t.noun}" for t in tools]
    if len(tools) == 1:
        details = f" with {w.pick(('these', 'the given', 'your'))} details"
        return w.pick(
            (
                "I will {}{}.",
                "Sure, I can {}{}.",
                "Let me {} for you{}.",
                "Of course. I will {} now{}.",
                "To {}, I call:",
            )
        ).format(jobs[0], details)
    lead = w.pick(("I will do this in order:", "There are {n} steps here:", "Sure, I will", "First I"))
    lead = lead.format(n=len(tools))
    return f"{lead} {w.pick((' and then ', ', then ')).join(jobs)}."


def make(w: World) -> Conversation:
    """One request answered with one to three calls; `answer` is the expected call, or an array of several."""
    count = w.pick((1, 1, 1, 2, 2))
    used: list[Tool] = []
    while len(used) < count:
        tool = _tool(w)
        if all(tool.call["name"] != t.call["name"] for t in used):
            used.append(tool)
    if count == 1 and len(json.dumps(used[0].call)) < 150:
        return make(w)
    offered = [t.schema for t in used]
    for _ in range(w.pick((0, 1, 1) if count > 1 else (0, 1, 2))):
        other = _tool(w)
        if all(other.call["name"] != t["function"]["name"] for t in offered):
            offered.append(other.schema)
    offered = w.some(offered, len(offered))
    asks = [_request(w, t) for t in used]
    lead = w.pick(("Please ", "Could you ", "I need you to ", "", "Can you ", "Today, please ", "For me, "))
    text = cap(lead + w.pick((". Then ", "; after that ", ". Next, ", ", and then ")).join(asks))
    text += "?" if lead.startswith(("Could", "Can")) else "."
    calls = [t.call for t in used]
    lines = [_preamble(w, used)]
    lines += [f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>" for call in calls]
    messages = [user(text), assistant("\n".join(lines))]
    if w.chance(0.15):
        messages.insert(0, system(f"You are the assistant of the {w.invented()} {w.pick(TOPICS)} office."))
    answer = json.dumps(calls[0] if count == 1 else calls, ensure_ascii=False)
    return Conversation("tool_calls", messages, offered, answer)
