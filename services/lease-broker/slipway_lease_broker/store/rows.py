"""Conversion between Structs and columns, for statements that write a batch with UNNEST."""

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import msgspec

Row = TypeVar("Row")


def columns(rows: Sequence[Any], *names: str) -> list[list[Any]]:
    return [[getattr(row, name) for row in rows] for name in names]


def structs(records: Iterable[Any], kind: type[Row]) -> list[Row]:
    return msgspec.convert([dict(record) for record in records], list[kind])  # type: ignore[valid-type]
