"""Events of which the notes, the texts for people, are cut to their limits. Pure.

A service composes notes from lists and from foreign text, of any length: an event must not fail for that. Ids and names
are never cut, since others look up by them.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, Final

import msgspec
from msgspec import inspect

from slipway_api.limits import NOTE, Note

NOTES_MAX: Final = 20  # of one field: together they are far below the limit of a record
NOTE_TYPE: Final = inspect.type_info(Note)
_type_of: Final[Callable[[type], inspect.Type]] = cache(inspect.type_info)


def fitted(event: Any) -> Any:
    """The event with its notes cut. Raises msgspec.ValidationError if another text of it is too long."""
    kind = type(event)
    return msgspec.convert(_cut(msgspec.to_builtins(event), _type_of(kind)), kind)


def _cut(data: Any, kind: inspect.Type) -> Any:
    """JSON data with the notes cut that its type names."""
    match kind:
        case _ if kind == NOTE_TYPE:
            return NOTE.cut(data) if isinstance(data, str) else data
        case inspect.StructType() if isinstance(data, dict):
            types = {field.encode_name: field.type for field in kind.fields}
            return {name: _cut(value, types[name]) for name, value in data.items()}
        case inspect.VarTupleType() if isinstance(data, list | tuple):
            items = list(data)
            if kind.item_type == NOTE_TYPE and len(items) > NOTES_MAX:
                items[NOTES_MAX - 1 :] = [f"and {len(items) - NOTES_MAX + 1:,} more"]
            return [_cut(item, kind.item_type) for item in items]
        case inspect.UnionType():
            for one in kind.types:
                data = _cut(data, one)
    return data
