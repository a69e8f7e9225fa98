"""Columns and values of the tables, and lists of SQL literals for statements in text."""

from collections.abc import Collection, Iterable
from typing import Any, Final

from sqlalchemy import Column, Computed, Text, text

from slipway_api.events.lifecycle import State

FALSE: Final = text("false")
TRUE: Final = text("true")
ZERO: Final = text("0")
ONE: Final = text("1")
EMPTY_LIST: Final = text("'[]'")
EMPTY_OBJECT: Final = text("'{}'")


def states(members: Collection[State]) -> str:
    """Worker states as a list of SQL literals, for statements in text."""
    return literals(state for state in State if state in members)


def literals(values: Iterable[str]) -> str:
    return ", ".join(f"'{value}'" for value in values)


def required(name: str, type_: Any, *constraints: Any, **options: Any) -> Column[Any]:
    return Column(name, type_, *constraints, nullable=False, **options)


def empty_text(name: str) -> Column[str]:
    """Text column, empty by default."""
    return required(name, Text, server_default=text("''"))


def computed(name: str, expression: str) -> Column[str]:
    """Text column that the database derives from others of the row."""
    return required(name, Text, Computed(expression, persisted=True))
