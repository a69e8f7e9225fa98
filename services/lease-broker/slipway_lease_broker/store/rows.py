"""Conversion of records to Structs."""

from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

Row = TypeVar("Row")


def structs(records: Iterable[Any], kind: type[Row]) -> list[Row]:
    return msgspec.convert([dict(record) for record in records], list[kind])  # type: ignore[valid-type]
