"""One lease, granted, capped, renewed and ended by the lease-broker's own code, with its answers over HTTP.

For tests and models of holders: a fake that grants what the broker never grants would prove nothing.
"""

from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from slipway_api.events.lease import LeaseRenewRequested
from slipway_lease_broker.domain.admit import Grant
from slipway_lease_broker.domain.commands import apply_command, confirmation
from slipway_lease_broker.domain.decide import lease_of
from slipway_lease_broker.domain.endings import apply_deadline
from slipway_lease_broker.domain.ledger import LeasePool, Ledger, Request
from slipway_lease_broker.domain.refusals import end_of
from slipway_lease_broker.domain.sender import Sender
from slipway_lease_broker.http import shown

START: Final = datetime(2026, 8, 1, 14, 3, 7, tzinfo=UTC)


class Ended(Exception):
    """The broker's answer that the lease has ended; `reason` is that of its end."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class HeldLease:
    """A lease of a pool with these terms, granted at START to a request for `hold_seconds` [default: the pool's], and
    confirmed at once. Times are seconds since START."""

    def __init__(
        self,
        *,
        pool_hold_seconds: float = 1200.0,
        ttl_seconds: float = 300.0,
        hold_seconds: float | None = None,
        lease_id: str = "l-1",
        fencing_token: int = 7,
    ) -> None:
        self._pool = LeasePool(
            id="aws-ci",
            limit_units=50,
            hold_seconds=pool_hold_seconds,
            ttl_seconds=ttl_seconds,
            reserve_seconds=min(ttl_seconds, 180.0),
            last_token=fencing_token - 1,
        )
        request = Request(
            id="r",
            lease_pool_id="aws-ci",
            tenant="ci",
            operation="install",
            requested_units=1,
            waiting_units=0,
            requested_at=START,
            last_requested_at=START,
            since=START,
            hold_seconds=hold_seconds,
            owner="ci",
        )
        self._lease = lease_of(self._pool, Grant(request, 1), START, lease_id, 1)
        self._apply(confirmation(self._lease), START)

    @property
    def hold_seconds(self) -> float:
        return (self._lease.hold_until - START).total_seconds()

    def answer(self, seconds: float) -> dict[str, Any]:
        """The lease as answered at this time."""
        body: dict[str, Any] = msgspec.to_builtins(shown.lease(self._lease, _at(seconds), self._pool.ttl_seconds))
        return body

    def renew(self, seconds: float) -> dict[str, Any]:
        """Renew the lease, unless a deadline of it has passed. Raises Ended."""
        now = _at(seconds)
        self._lease = apply_deadline(self._lease, now, timedelta(0))
        if not self._lease.live:
            raise Ended(end_of(self._lease))
        renewal = LeaseRenewRequested(
            lease_pool_id=self._pool.id, lease_id=self._lease.id, fencing_token=self._lease.fencing_token
        )
        self._apply(renewal, now)
        return self.answer(seconds)

    def _apply(self, command: Any, now: datetime) -> None:
        ledger = Ledger([self._pool], [self._lease], [])
        apply_command(ledger, command, now, Sender(name="ci"))
        self._lease = ledger.leases[self._pool.id, self._lease.id]


def _at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)
