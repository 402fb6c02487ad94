"""From a row of a published suite to a prompt: Jinja templates over the row's columns, as the suite's YAML gives them.

A template sees the columns by name, and `row`, the row's place in the source from 0 (the place before any shuffling).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from jinja2 import StrictUndefined, Template, TemplateError, UndefinedError, meta
from jinja2.sandbox import SandboxedEnvironment

from methods.base import Refusal
from workloads.base import Message, Prompt
from workloads.sources import Row

PLACE = "row"


@dataclass(frozen=True)
class Templates:
    """How a row is asked. Either `prompt` makes the one turn, or `turns` names the column that lists them all.
    `categories` are all that there are; `answer` is left out where a suite has none that can be checked."""

    id: str
    category: str
    categories: tuple[str, ...]
    prompt: str | None = None
    turns: str | None = None
    answer: str | None = None

    @cached_property
    def columns(self) -> list[str]:
        """The columns that the templates read."""
        parts = filter(None, (self.id, self.category, self.prompt, self.answer))
        found = set().union(*(meta.find_undeclared_variables(_environment().parse(part)) for part in parts))
        return sorted((found | ({self.turns} if self.turns else set())) - {PLACE})

    def check(self, where: str) -> None:
        """Refuse a template that is not one."""
        try:
            self.columns  # noqa: B018
        except TemplateError as error:
            raise Refusal(f"{where}: a template cannot be read ({error}).") from None

    def texts(self, place: int, row: Row) -> tuple[str, ...]:
        """The user's turns."""
        if self.prompt is not None:
            return (_fill(self.prompt, place, row),)
        turns = row.values.get(self.turns or "")
        if not (isinstance(turns, list) and turns and all(isinstance(turn, str) for turn in turns)):
            raise Refusal(f"the column {self.turns!r} is not a list of texts")
        return tuple(turns)

    def name(self, place: int, row: Row) -> str:
        """The id of the row's prompt."""
        return _fill(self.id, place, row)

    def ask(self, place: int, row: Row) -> Prompt:
        """The row at this place as a prompt.

        Raises:
            Refusal: what is wrong with the row, and where it stands.
        """
        try:
            first, *later = self.texts(place, row)
            category = _fill(self.category, place, row)
            if category not in self.categories:
                raise Refusal(f"the category {category!r} is none of {', '.join(self.categories)}")
            answer = _fill(self.answer, place, row) if self.answer else None
            if answer is not None and not answer.strip():
                raise Refusal("the answer is empty")
            messages = (Message("user", first),)
            return Prompt(
                self.name(place, row), category, messages, answer=answer, follow_ups=tuple(later), where=row.where
            )
        except Refusal as reason:
            raise Refusal(f"{row.where}: {str(reason).rstrip('.')}.") from None


def _fill(template: str, place: int, row: Row) -> str:
    try:
        return _compiled(template).render(_columns(row.values), **{PLACE: place})
    except UndefinedError as error:
        raise Refusal(f"a column is missing ({error.message})") from None
    except Refusal:
        raise
    except Exception as error:  # a template may do anything that an expression can
        raise Refusal(f"the template cannot be filled ({error})") from None


def _columns(values: Mapping[str, Any]) -> dict[str, Any]:
    return {str(name): value for name, value in values.items()}


@cache
def _compiled(template: str) -> Template:
    return _environment().from_string(template)


@cache
def _environment() -> SandboxedEnvironment:
    return SandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True, finalize=_printable)


def _printable(value: Any) -> Any:
    """Text and whole numbers print as they are; whatever else a column holds is a sign of another schema."""
    if isinstance(value, StrictUndefined) or (isinstance(value, str | int) and not isinstance(value, bool)):
        return value
    kind = "empty" if value is None else f"a {type(value).__name__}"
    raise Refusal(f"a column that should be text or a whole number is {kind}")
