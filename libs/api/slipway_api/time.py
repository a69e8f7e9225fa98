"""Timestamps on the wire."""

from datetime import UTC, datetime
from typing import Annotated, Final

import msgspec

Time = Annotated[datetime, msgspec.Meta(tz=True)]
"""A time with its offset; one without is ambiguous and refused at decoding."""
FIRST: Final = datetime.min.replace(tzinfo=UTC)
LAST: Final = datetime.max.replace(tzinfo=UTC)


def out_of_range(at: datetime) -> bool:
    """True for a time whose UTC has a year that no timestamp has, and for the first and the last time, which the
    database takes for endless: the first is the zero value of some languages."""
    try:
        return not FIRST < at.astimezone(UTC) < LAST
    except OverflowError:
        return True
