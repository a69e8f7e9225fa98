"""Types of timestamps in HTTP bodies and queries: text with an offset, stored as UTC."""

import contextlib
from datetime import UTC, datetime
from typing import Annotated, Any, Final

from pydantic import AfterValidator, AwareDatetime, BeforeValidator, Field, TypeAdapter

CHARACTERS_MAX: Final = 64
FIRST: Final = datetime.min.replace(tzinfo=UTC)
LAST: Final = datetime.max.replace(tzinfo=UTC)


def in_utc(at: datetime) -> datetime:
    """The same time in UTC. Raises ValueError where UTC would need a year that no timestamp has, and for the first and
    the last time, which the database takes for endless: the first is the zero value of some languages."""
    with contextlib.suppress(OverflowError):
        if FIRST < (utc := at.astimezone(UTC)) < LAST:
            return utc
    raise ValueError("must be within the years 1 to 9999 (UTC), without their first and last moment")


def _written(value: Any) -> Any:
    """A timestamp that is no number. Raises ValueError: a number does not say its unit."""
    if isinstance(value, int | float) or (
        isinstance(value, str) and value.strip().lstrip("+-").replace(".", "").isdigit()
    ):
        raise ValueError('must be a timestamp such as "2026-01-05T09:59:58Z", not a number')
    return value


Moment = Annotated[AwareDatetime, BeforeValidator(_written), AfterValidator(in_utc)]
_MOMENT: Final = TypeAdapter[datetime](Moment)


def parsed(text: str) -> datetime:
    """The time that a text says, in UTC. Raises ValueError."""
    return _MOMENT.validate_python(text)


def _checked(text: str) -> str:
    parsed(text)
    return text


MomentText = Annotated[
    str,
    Field(min_length=1, max_length=CHARACTERS_MAX, json_schema_extra={"format": "date-time"}),
    AfterValidator(_checked),
]
"""A timestamp in the words of its sender, to be compared with them."""
