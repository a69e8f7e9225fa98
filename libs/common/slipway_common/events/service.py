"""That a service is alive. Values only."""

from datetime import datetime
from typing import ClassVar

import msgspec


class ServiceHeartbeat(msgspec.Struct, frozen=True, kw_only=True):
    type: ClassVar[str] = "io.slipway.service.heartbeat.v1"
    service: str
    instance: str
    at: datetime
    version: str
