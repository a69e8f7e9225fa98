"""Starts without a lease, recorded on this host until the broker has charged them."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from slipway_api.http.lease_broker import Lease
from slipway_client.leases import errors
from slipway_client.leases.broker import LeaseEnded
from slipway_client.leases.errors import Refused
from slipway_client.leases.host import Host
from slipway_client.leases.state import Spooled
from slipway_client.transport.exchange import retried
from slipway_common.base.clock import monotonic_seconds

LAST_TRY_SECONDS: Final = 1.0
"""How long reports that hold no units are retried at the end."""


class UnleasedStarts:
    """Starts of this host that no broker has charged yet: those of earlier processes, and our own, if there is one.
    `on_charged` gets the lease as which our own was charged, and the time of the report.
    """

    def __init__(self, host: Host, on_charged: Callable[[Lease, float], None]) -> None:
        self._host = host
        self._on_charged = on_charged
        self._own: Spooled | None = None  # until it is charged
        self._unaccepted: set[str] = set()  # starts that were refused

    def record(self, own: Spooled) -> None:
        """Record our own start."""
        self._own = own
        self._host.state.spool(own)

    async def report(self) -> None:
        """Report all starts, retrying until the broker answers."""
        await retried(self.report_once, self._host.rng)

    async def report_last(self) -> None:
        """Report our own start a last time, if that is still to be done."""
        if self._own is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_TRY_SECONDS):
                    await self.report()

    def end(self, result: str) -> None:
        """Record the result of our own start: the process that reports it releases it at once."""
        if self._own is not None:
            self.record(replace(self._own, result=result))

    async def report_once(self) -> None:
        """Report all starts. Raises NoAnswer."""
        for entry in self._unreported():
            try:
                await self._charge(entry)
            except Refused as refused:
                self._host.log(f"unleased start in {entry.lease_pool_id} was not accepted: {refused}")
                self._unaccepted.add(entry.key)
                if refused.slug not in errors.UNCHARGEABLE_SLUGS:
                    continue  # kept for a process with another token, or until the host's clock is corrected
                self._host.state.record_uncharged(replace(entry, refused=refused.slug))
            self._host.state.reported(entry)

    def _unreported(self) -> list[Spooled]:
        """Spooled launches, and our own even if another process reported it: the answer has the lease to release."""
        entries, own = self._host.state.spooled(), self._own
        entries = entries if own is None or own in entries else [*entries, own]
        return [entry for entry in entries if entry.key not in self._unaccepted]

    async def _charge(self, entry: Spooled) -> None:
        """Report one start. Our own becomes a lease like any other; one that has ended is released at once."""
        asked_at = monotonic_seconds()
        lease = await self._host.broker.report_unleased(entry.lease_pool_id, entry.start)
        own, result = self._own, entry.result
        if own is not None and own.start == entry.start:
            # Without an await between, so that a concurrent release finds either the start or the lease.
            self._own, result = None, own.result
            if lease is not None and not result:
                self._on_charged(lease, asked_at)
        if lease is not None and result:
            with contextlib.suppress(LeaseEnded):
                await self._host.broker.release(lease, result)
