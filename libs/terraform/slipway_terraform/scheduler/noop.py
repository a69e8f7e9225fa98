"""Scheduler that shares nothing: the CLI starts its own plugins."""

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import Final, Self

from slipway_terraform.domain.errors import SchedulerClosed
from slipway_terraform.domain.specs import ProviderSpec


class NoOpLease:
    """A lease on nothing."""

    env: Final[Mapping[str, str]] = {}

    @contextlib.asynccontextmanager
    async def invocation(self) -> AsyncIterator[None]:
        yield

    def taint(self, reason: str) -> None:
        """Do nothing: the plugins of a run end with it."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pass


class NoOpScheduler:
    """Leases with an empty environment, at once and without limit."""

    def __init__(self) -> None:
        self._closed = False

    async def acquire(self, specs: Sequence[ProviderSpec], *, owner: str, deadline: float) -> NoOpLease:
        """Lease nothing. Raises SchedulerClosed after `aclose`."""
        if self._closed:
            raise SchedulerClosed("the scheduler is shutting down; retry on another replica")
        return NoOpLease()

    async def aclose(self, drain_seconds: float) -> None:
        self._closed = True
