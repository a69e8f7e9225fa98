"""Lists."""

from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")


class Page(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """A part of a list that grows."""

    items: list[T]
    next: str | None
    """Cursor of the page that follows; null after the last one."""


class Items(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """A whole list."""

    items: list[T]
