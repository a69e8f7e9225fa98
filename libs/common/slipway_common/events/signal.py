"""Signals from external sources: opinions on health, and pause requests. Values only."""

from typing import ClassVar

import msgspec

from slipway_common.events.time import Time


class SignalRaised(msgspec.Struct, frozen=True, kw_only=True):
    """A signal about a target; it expires after `ttl_seconds`.

    `target_kind` is worker, config, pool, zone, account or image; `kind` is degraded, down, recovered, capacity_hint,
    spot_interruption, pause_request or resume_request."""

    type: ClassVar[str] = "io.slipway.signal.raised.v1"
    source: str
    target_kind: str
    target_id: str
    kind: str
    reason: str
    observed_at: Time
    ttl_seconds: float = 900.0
    value: float | None = None
