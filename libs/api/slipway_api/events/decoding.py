"""Decoding of events, which refuses text that no consumer can store. Pure."""

from collections.abc import Iterable
from datetime import datetime
from itertools import chain
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec import inspect

from slipway_api.limits import Limit
from slipway_api.time import out_of_range

Event = TypeVar("Event")
BACKSLASH: Final = ord("\\")
EDGES: Final = (b"0001-", b"9999-")  # years of times that may be out of range


class EventDecoder(Generic[Event]):
    """Decoder of one type of events.

    msgspec counts characters. NUL and characters of several bytes are looked for only in data that can have any: plain
    ASCII without escapes cannot, and most data are that. So are times out of range.
    """

    def __init__(self, event: type[Event], *, times: bool = False) -> None:
        """With `times`, those that no timestamp of the database has are refused, too."""
        self._times = times
        self._decode = msgspec.json.Decoder(event).decode
        self._type = inspect.type_info(event)

    def decode(self, value: bytes) -> Event:
        """Decode JSON data. Raises msgspec.DecodeError, or UnicodeDecodeError."""
        event = self._decode(value)
        checked = not value.isascii() or BACKSLASH in value or (self._times and any(edge in value for edge in EDGES))
        if checked and (wrong := _wrong(event, self._type, "$", self._times)):
            raise msgspec.ValidationError(wrong)
        return event


def _wrong(value: Any, kind: inspect.Type, path: str, times: bool) -> str:
    """Problem of the first text in a decoded value that cannot be stored, with its path; empty if there is none. With
    `times` also of the first time."""
    parts: Iterable[tuple[Any, inspect.Type, str]] = ()
    match kind:
        case inspect.Metadata(
            type=inspect.StrType(max_length=int(characters)), extra_json_schema={"x-max-bytes": size}
        ) if isinstance(value, str):
            reason = Limit(characters, size).problem(value)
            return f"Text {reason} - at `{path}`" if reason else ""
        case inspect.DateTimeType() if times and isinstance(value, datetime) and out_of_range(value):
            return f"Time must be within the years 1 to 9999 (UTC) - at `{path}`"
        case inspect.Metadata():
            parts = ((value, kind.type, path),)
        case inspect.UnionType() if value is not None:
            parts = ((value, one, path) for one in kind.types if not isinstance(one, inspect.NoneType))
        case inspect.StructType() if isinstance(value, kind.cls):
            parts = ((getattr(value, field.name), field.type, f"{path}.{field.encode_name}") for field in kind.fields)
        case inspect.VarTupleType() | inspect.ListType() if isinstance(value, list | tuple):
            parts = ((item, kind.item_type, f"{path}[…]") for item in value)
        case inspect.DictType() if isinstance(value, dict):
            keys = ((key, kind.key_type, f"key in {path}") for key in value)
            parts = chain(keys, ((item, kind.value_type, f"{path}[…]") for item in value.values()))
    return next(filter(None, (_wrong(*part, times) for part in parts)), "")
