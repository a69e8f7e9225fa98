"""Lease pools in virtual time: requests, grants and releases by second, by a real broker with a clock set by the
test."""

from collections.abc import Callable
from typing import Any

from slipway_api.events.lease import LeaseGranted, LeaseLimitChanged, LeaseReleaseRequested, LeaseRequested
from slipway_lease_broker.domain.declaration import Declared
from slipway_lease_broker.domain.terms import Policy
from tests.support.lease_broker import START, Broker, confirm

POOL = "sim-a"


def paced(limit: int, **policy: Any) -> Declared:
    """Terms of a pool with which a lease outlives the test unless its hold ends it."""
    fields: dict[str, Any] = {name: policy.pop(name) for name in ("hold_seconds",) if name in policy}
    seconds = {"hold_seconds": 1200.0, "ttl_seconds": 1e6, "reserve_seconds": 1e6} | fields
    return Declared(id=POOL, limit_units=limit, policy=Policy(**policy), **seconds)


def acquire_request(request_id: str, tenant: str = "linux", **more: Any) -> LeaseRequested:
    """A request for a lease of one unit."""
    fields: dict[str, Any] = {"lease_pool_id": POOL, "request_id": request_id, "tenant": tenant, "units": 1}
    return LeaseRequested(**(fields | more))


def release(grant: LeaseGranted, result: str = "done", **more: Any) -> LeaseReleaseRequested:
    return LeaseReleaseRequested(
        lease_pool_id=POOL,
        lease_id=grant.lease_id,
        fencing_token=grant.fencing_token,
        units=grant.units,
        result=result,
        **more,
    )


class Virtual:
    """A broker in virtual time. `granted` are (second, grant), in order; `limits` are (second, change of the limit in
    force)."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.now = 0.0
        self.granted: list[tuple[float, LeaseGranted]] = []
        self.limits: list[tuple[float, LeaseLimitChanged]] = []

    async def send(self, *commands: Any) -> list[LeaseGranted]:
        """Send these commands and decide; returns the grants, which are confirmed at once."""
        await self.broker.send(*commands)
        return await self.decide()

    async def decide(self) -> list[LeaseGranted]:
        await self.broker.decide()
        events = await self.broker.events()
        grants = [event for event in events if isinstance(event, LeaseGranted)]
        self.limits += [(self.now, event) for event in events if isinstance(event, LeaseLimitChanged)]
        if grants:
            await self.broker.send(*(confirm(grant) for grant in grants))
        self.granted += [(self.now, grant) for grant in grants]
        return grants

    async def at(self, seconds: float) -> list[LeaseGranted]:
        self.now = seconds
        await self.broker.set_clock(seconds)
        return await self.decide()

    async def until(self, seconds: float, done: Callable[[], bool] = lambda: False) -> None:
        """Advance from one time-driven decision to the next until that second."""
        while not done() and (due := await self._due()) is not None and due <= seconds:
            await self.at(max(due, self.now))
        if not done():
            await self.at(seconds)

    async def _due(self) -> float | None:
        query = "SELECT extract(epoch FROM wake_at - $2)::float8 FROM lease_pools WHERE id = $1"
        due: float | None = await self.broker.pool.fetchval(query, POOL, START)
        return due

    def names(self) -> list[str]:
        return [grant.request_id for _, grant in self.granted]
