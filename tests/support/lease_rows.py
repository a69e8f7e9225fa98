"""A lease pool and a request of one unit in it, as rows for tests of rules: change the fields that a case is about."""

from datetime import UTC, datetime
from typing import Final

from slipway_lease_broker.domain.ledger import LeasePool, Request

NOW: Final = datetime(2026, 1, 1, 12, tzinfo=UTC)
POOL: Final = LeasePool(id="p", limit_units=4, hold_seconds=1200, ttl_seconds=300, reserve_seconds=180)
REQUEST: Final = Request(
    id="r",
    lease_pool_id="p",
    tenant="t",
    operation="install",
    requested_units=1,
    waiting_units=1,
    requested_at=NOW,
    last_requested_at=NOW,
    since=NOW,
)
