"""Timestamps of events."""

from datetime import datetime
from typing import Annotated

import msgspec

# A time without a zone is ambiguous and refused at decoding.
Time = Annotated[datetime, msgspec.Meta(tz=True)]
