"""Lease on shared processes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import Final, Protocol, Self

from slipway_terraform import metrics
from slipway_terraform.domain.errors import OutcomeUnknown, ProviderCrashed
from slipway_terraform.domain.generations import Generation, Reason, State
from slipway_terraform.domain.port import Plugin


class Lessor(Protocol):
    """The part of a scheduler that its leases call."""

    def release(self, lease: "SharedLease") -> None: ...
    def retire(self, generation: Generation, reason: Reason) -> None: ...
    def invoked(self, *, first: bool) -> None: ...


class SharedLease:
    """The right to use these processes. `owner` is the workspace that holds it."""

    def __init__(
        self, lessor: Lessor, used: Sequence[tuple[Generation, Plugin]], *, owner: str, env: Mapping[str, str]
    ) -> None:
        self.env: Final = env
        self.owner: Final = owner
        self.generations: Final = tuple(generation for generation, _ in used)
        self.unused = True
        self.released = False
        self._lessor, self._plugins = lessor, tuple(plugin for _, plugin in used)
        self._turn = asyncio.Lock()

    @property
    def crashed(self) -> bool:
        """True if one of the processes has exited by itself."""
        return not self.released and not all(plugin.is_alive() for plugin in self._plugins)

    @contextlib.asynccontextmanager
    async def invocation(self) -> AsyncIterator[None]:
        """One run of the CLI. A run that ends by a cancellation taints the processes: the CLI was interrupted.

        Raises ProviderCrashed before the run, OutcomeUnknown in place of its error, RuntimeError after the release.
        """
        async with self._turn:
            if self.released:
                raise RuntimeError("the lease has ended; acquire another one")
            if self.crashed:
                raise ProviderCrashed("a leased plugin has exited; nothing was run: acquire another lease")
            for generation in self.generations:
                generation.invoke(first=self.unused)
            metrics.INVOCATIONS.inc()
            self._lessor.invoked(first=self.unused)
            self.unused = False
            try:
                yield
            except Exception as error:
                if self.crashed:
                    raise OutcomeUnknown(
                        "a plugin exited during the run; look up what it has created before the run is repeated"
                    ) from error
                raise
            except BaseException:
                self.taint("interrupted")
                raise

    def taint(self, reason: str) -> None:
        """Replace the processes: they stop when their last lease ends. `reason` is for the log."""
        for generation in self.generations:
            if generation.state is State.READY:
                self._lessor.retire(generation, Reason.TAINTED)

    def release(self) -> None:
        """End the lease; may be repeated."""
        if not self.released:
            self.released = True
            self._lessor.release(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()
