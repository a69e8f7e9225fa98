"""Service heartbeats. Values only."""

from typing import ClassVar

import msgspec

from slipway_api.limits import Name
from slipway_api.time import Time


class ServiceHeartbeat(msgspec.Struct, frozen=True, kw_only=True):
    type: ClassVar[str] = "io.slipway.service.heartbeat.v1"
    service: Name
    instance: Name
    at: Time
    version: Name
