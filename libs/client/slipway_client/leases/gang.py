"""Gang leases: leases of several pools, all or none, granted by the broker in one transaction."""

import asyncio
import contextlib

from slipway_api.http.lease_broker import Lease, QueuedRequest
from slipway_client.leases.admitting import Admitting, Unleased
from slipway_client.leases.errors import Refused
from slipway_client.leases.unleased import LAST_TRY_SECONDS
from slipway_client.transport.exchange import NoAnswer
from slipway_common.base.text import listed


class GangRequest(Admitting[list[Lease]]):
    """Request for all leases of a gang. None is held unless all are granted."""

    async def _send(self, wait_seconds: float, until: float) -> list[Lease] | QueuedRequest:
        return await self._host.broker.acquire_gang(self._gang, wait_seconds, within_seconds=until - self._asked_at)

    async def _start_unleased(self) -> list[Lease] | Unleased:
        """Record a start without a lease in each pool, and report it; returns the leases as which it was charged, for
        the caller to release: of some pools only, if the broker did not take all reports. Each has the id of the gang's
        request, which then waits no longer."""
        unleased, entries = self._unleased(), self._spooled()
        self._host.log(f"starting without leases ({unleased.cause})")
        if self._is_refused:
            for entry in entries:
                self._host.state.record_uncharged(entry)
            return unleased
        for entry in entries:
            self._host.state.spool(entry)
        leases: list[Lease] = []
        with contextlib.suppress(TimeoutError, NoAnswer):
            async with asyncio.timeout(LAST_TRY_SECONDS):
                for entry in entries:
                    with contextlib.suppress(Refused):  # of this pool; a later process reports it again
                        lease = await self._host.broker.report_unleased(entry.lease_pool_id, entry.start)
                        self._host.state.reported(entry)
                        if lease is not None:
                            leases.append(lease)
        if 0 < len(leases) < len(entries):
            self._host.log(f"the start counts in {listed([lease.lease_pool_id for lease in leases])} only, so far")
        return leases or unleased
