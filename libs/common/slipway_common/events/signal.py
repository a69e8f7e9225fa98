"""An outside opinion on health, or a pause request. Values only."""

from typing import ClassVar

import msgspec

from slipway_common.events import Time


class SignalRaised(msgspec.Struct, frozen=True, kw_only=True):
    """`target_kind` is worker, config, pool, zone, account or image; `kind` is degraded, down, recovered,
    capacity_hint, spot_interruption, pause_request or resume_request. Without effect after `ttl_seconds`."""

    type: ClassVar[str] = "io.slipway.signal.raised.v1"
    source: str
    target_kind: str
    target_id: str
    kind: str
    reason: str
    observed_at: Time
    ttl_seconds: float = 900.0
    value: float | None = None
