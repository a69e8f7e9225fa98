"""Ports of the scheduler: callers hold a ProviderLease while their CLI uses the processes of the lease; a Runner starts
the processes."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Protocol, Self

import msgspec

from slipway_terraform.domain.reattach import Reattach
from slipway_terraform.domain.specs import ProviderSpec


class ProviderLease(Protocol):
    """The right to use one process of each requested provider, until the end of its `async with` block.

    A lease holds one concurrency slot of each of its processes; none of them is stopped before the lease ends.
    """

    @property
    def env(self) -> Mapping[str, str]:
        """Environment of the CLI: TF_REATTACH_PROVIDERS, or nothing where the CLI starts its own plugins."""
        ...

    def invocation(self) -> AbstractAsyncContextManager[None]:
        """One run of the CLI, which counts towards the processes' invocations. Runs of one lease take turns.

        Raises ProviderCrashed before the run if a process has exited, and OutcomeUnknown in place of the run's own
        error if a process exited during it.
        """
        ...

    def taint(self, reason: str) -> None:
        """Replace the processes: they take no new leases and stop when their last one ends. For interrupted runs."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


class ProviderScheduler(Protocol):
    """Source of leases on provider processes."""

    async def acquire(self, specs: Sequence[ProviderSpec], *, owner: str, deadline: float) -> ProviderLease:
        """Lease a process of every spec, all or none. Callers wait in the order of their arrival.

        `owner` names the workspace: one that comes back with another configuration of a provider has had its
        credentials rotated, and the process of the former configuration is retired with its last owner. An empty owner
        retires nothing. `deadline` is a time of the event loop's clock (`loop.time()`).

        Raises QueueTimeout, QueueFull, SchedulerClosed, ProviderStartError, HandshakeTimeout, ProviderIncompatible.
        """
        ...

    async def aclose(self, drain_seconds: float) -> None:
        """Refuse new callers, wait at most `drain_seconds` for leases to end, and stop every process."""
        ...


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """Resource usage of a process: resident memory now, and CPU time since its start."""

    memory_bytes: int
    cpu_seconds: float


class Plugin(Protocol):
    """A running plugin."""

    @property
    def reattach(self) -> Reattach: ...

    def is_alive(self) -> bool:
        """False once the process has exited, even before `exited` returns."""
        ...

    async def exited(self) -> str:
        """Wait until the process has exited and nothing of it is left; returns how it ended, with redacted output."""
        ...

    async def stop(self) -> None:
        """End the process: by asking it, then by signals. Returns once nothing of it is left, or after a time if it is
        still alive because the kernel does not end it. May be repeated."""
        ...

    async def healthy(self) -> bool:
        """True if the plugin answers in time."""
        ...

    async def replaced_on_disk(self) -> bool:
        """True if its binary on disk was replaced since its start."""
        ...

    def sample(self) -> Sample: ...


class Runner(Protocol):
    """Starter of plugins."""

    async def start(self, spec: ProviderSpec) -> Plugin:
        """Start a plugin and wait for its handshake. Whatever is raised, also by a cancellation, no process is left.

        Raises ProviderStartError, HandshakeTimeout, ProviderIncompatible.
        """
        ...

    async def aclose(self) -> None:
        """Remove what the runner itself has made. All plugins have exited before."""
        ...
