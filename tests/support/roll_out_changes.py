"""Time of the tests of roll-outs, and changes of what they have made."""

from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import msgspec

T = TypeVar("T", bound=msgspec.Struct)
NOW: Final = datetime(2030, 1, 1, tzinfo=UTC)


def changed(given_value: T, **changes: Any) -> T:
    return msgspec.structs.replace(given_value, **changes)
