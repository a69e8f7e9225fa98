"""Reports of a monitor of queues, as a program outside Slipway publishes them."""

from datetime import datetime
from typing import Any

import msgspec

from slipway_common.base.clock import utc_now
from slipway_common.base.ids import new_id
from slipway_common.events.pool import DemandReported
from slipway_common.events.topics import POOL_DEMAND
from slipway_common.messaging.envelope import Envelope, encode
from slipway_local.demo.deployment import Deployment


async def send_report(
    producer: Any,
    deployment: Deployment,
    pool_id: str,
    *,
    source: str,
    pending: int = 0,
    claimed: int,
    valid_for_seconds: float,
) -> datetime:
    """Publish the counts of a pool, and return when they were observed. `valid_for_seconds` is real time."""
    event = DemandReported(
        pool_id=pool_id,
        source=source,
        pending=pending,
        claimed=claimed,
        observed_at=utc_now(),
        valid_for_seconds=valid_for_seconds,
    )
    envelope = Envelope(id=new_id(), type=event.type, source=f"/drill/{source}", time=event.observed_at)
    await producer.send_and_wait(
        deployment.prefix + POOL_DEMAND.name,
        msgspec.json.encode(event),
        key=POOL_DEMAND.key(event).encode(),
        headers=encode(envelope),
    )
    return event.observed_at
