"""Type of timestamps in HTTP bodies and queries: with an offset, and stored as UTC."""

from datetime import UTC, datetime
from typing import Annotated

from pydantic import AfterValidator, AwareDatetime


def in_utc(at: datetime) -> datetime:
    """The same time in UTC. Raises ValueError where UTC would need a year that no timestamp has."""
    try:
        return at.astimezone(UTC)
    except OverflowError:
        raise ValueError("must be within the years 1 to 9999 (UTC)") from None


Moment = Annotated[AwareDatetime, AfterValidator(in_utc)]
