"""The events of every topic: frozen values, no clock and no I/O."""

from datetime import datetime
from typing import Annotated

import msgspec

# A time without a zone means another instant to each reader: it is refused at decoding.
Time = Annotated[datetime, msgspec.Meta(tz=True)]
