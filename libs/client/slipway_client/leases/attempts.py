"""Attempts of one job: each is a request of its own that replaces the one before and keeps its age."""

import os
from collections.abc import Callable

from msgspec.structs import replace

from slipway_api.http.lease_broker import AcquireReplaces, Lease
from slipway_client.leases.state import State, folder
from slipway_client.leases.terms import Wanted
from slipway_common.base.process import identities


class Attempt:
    """Attempt `number` (from 1) of a job. The job is identified by the caller's request id, or by the calling process,
    which is the same for a script that retries. `wanted` is the request of this attempt."""

    def __init__(
        self, broker_url: str, number: int, wanted: Wanted, *, given_id: bool, log: Callable[[str], None]
    ) -> None:
        self._state = State(folder(os.environ), broker_url, log)
        self._job = wanted.request_id if given_id else f"{wanted.lease_pool_id} {wanted.operation} {_caller()}"
        self.wanted = wanted
        if number > 1:
            before = wanted.replaces or self._state.attempted(self._job)
            if before is None:
                log(f"no lease of attempt {number - 1} is recorded on this host; waiting as a first attempt")
            request_id = f"{wanted.request_id}.{number}" if given_id else wanted.request_id
            self.wanted = replace(wanted, request_id=request_id, replaces=before)

    def granted(self, lease: Lease) -> None:
        """Record the lease that the next attempt replaces."""
        self._state.attempt(self._job, AcquireReplaces(lease_id=lease.lease_id, fencing_token=lease.fencing_token))

    def succeeded(self) -> None:
        """Forget the lease: there is no next attempt."""
        self._state.forget_attempts(self._job)


def _caller() -> str:
    """Identity of the parent process, which a later process of the same pid does not share."""
    try:
        return identities.identity(os.getppid()) or ""
    except identities.Unsupported:
        return str(os.getppid())
