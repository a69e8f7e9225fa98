"""The lease of one connection and its open invocation."""

import contextlib
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Final

from slipway_terraform.daemon.protocol import Refused
from slipway_terraform.domain.errors import TerraformError
from slipway_terraform.domain.port import ProviderLease, ProviderScheduler
from slipway_terraform.domain.specs import ProviderSpec

LOST: Final = "the client of an invocation went away"


class _RunFailed(Exception):
    """The CLI of an invocation has failed."""


class Holding:
    """At most one lease, with at most one open invocation. Every refused call changes nothing."""

    def __init__(self, scheduler: ProviderScheduler) -> None:
        self._scheduler = scheduler
        self._lease: ProviderLease | None = None
        self._end_lease = AsyncExitStack()
        self._acquiring = False
        self._beginning = 0
        self._invocation: AbstractAsyncContextManager[None] | None = None

    @property
    def holds(self) -> bool:
        return self._lease is not None

    async def acquire(self, specs: Sequence[ProviderSpec], *, owner: str, deadline: float) -> ProviderLease:
        """Acquire the lease. Raises Refused, and the errors of the scheduler."""
        if self._lease is not None or self._acquiring:
            raise Refused("LeaseHeld", "this connection has a lease; release it, or open another connection")
        self._acquiring = True
        try:
            lease = await self._scheduler.acquire(specs, owner=owner, deadline=deadline)
            self._lease = await self._end_lease.enter_async_context(lease)
        finally:
            self._acquiring = False
        return self._lease

    async def begin_invocation(self) -> None:
        """Begin an invocation, once the open one has ended. Raises Refused, and the errors of the lease."""
        invocation = self._held().invocation()
        self._beginning += 1
        try:
            await invocation.__aenter__()
        finally:
            self._beginning -= 1
        self._invocation = invocation

    async def end_invocation(self, *, failed: bool) -> None:
        """End the open invocation, whose CLI may have `failed`. Raises Refused, and OutcomeUnknown for a failed one."""
        self._held()
        if self._invocation is None:
            raise Refused("NoInvocation", "no invocation is open; begin one before each run of the CLI")
        invocation, self._invocation = self._invocation, None
        error = _RunFailed() if failed else None
        with contextlib.suppress(_RunFailed):
            await invocation.__aexit__(type(error) if error else None, error, None)

    def taint(self, reason: str) -> None:
        """Have the processes replaced. Raises Refused."""
        self._held().taint(reason)

    async def release(self) -> None:
        """End the lease. Raises Refused."""
        self._held()
        if self._invocation is not None or self._beginning:
            raise Refused("InvocationOpen", "an invocation is open; end it before the lease")
        self._lease = None
        await self._end_lease.aclose()

    async def lose(self) -> None:
        """End everything after the client went away. During an invocation the processes are tainted too, since its CLI
        may still use them or was interrupted."""
        if self._lease is not None and self._invocation is not None:
            self._lease.taint(LOST)
            with contextlib.suppress(TerraformError):
                await self.end_invocation(failed=True)
        self._lease = None
        await self._end_lease.aclose()

    def _held(self) -> ProviderLease:
        if self._lease is None:
            raise Refused("NoLease", "this connection has no lease; acquire one first")
        return self._lease
