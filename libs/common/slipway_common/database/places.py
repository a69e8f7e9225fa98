"""Places of rows in lists: keys of the order of a list, which do not change. A page begins after one.

Their parts are checked as they are decoded, since callers send them: the database refuses other numbers and texts.
"""

from datetime import UTC, datetime
from typing import Annotated, Final, NamedTuple
from uuid import UUID

from msgspec import Meta

Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Text = Annotated[str, Meta(pattern="^[^\0]*$")]

# Before the first place in descending order.
LAST_NUMBER: Final = 2**63 - 1
LAST_ID: Final = UUID(int=2**128 - 1)
LAST_TIME: Final = datetime(9999, 1, 1, tzinfo=UTC)


class Newest(NamedTuple):
    """Place in a list of rows that are numbered as they are written, newest first."""

    number: Number


NEWEST: Final = Newest(LAST_NUMBER)
