"""Lease as a context manager, for synchronous and asynchronous programs:

    with lease("aws-ci", hold_seconds=1200) as held: ...
    async with lease("aws-ci", hold_seconds=1200) as held: ...

It is renewed in the background and released once at the end of the block, also by an exception, Ctrl-C, SIGTERM or
SIGHUP.
"""

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from types import FrameType, TracebackType
from typing import Any, Final, Generic, TypeVar

from slipway_api.http.lease_broker import AcquireGroup, Lease
from slipway_client.leases.admission import FAIL_OPEN_VARIABLE, UNAVAILABLE_SECONDS, Admission, FailOpen
from slipway_client.leases.environment import switched_off
from slipway_client.leases.errors import LeaseLost
from slipway_client.leases.host import holder, this_host
from slipway_client.leases.log import log
from slipway_client.leases.session import Session
from slipway_client.leases.terms import Wanted, parse_handle
from slipway_client.transport.failed import SERVICES
from slipway_client.transport.http import token_of
from slipway_common.base.clock import monotonic_seconds
from slipway_common.base.ids import new_id

Raised = tuple[type[BaseException] | None, BaseException | None, TracebackType | None]
Event = TypeVar("Event", threading.Event, asyncio.Event)
# Signals that end a process without running any `finally`; SIGINT raises an exception already.
ENDING: Final = (signal.SIGTERM, signal.SIGHUP)


class Held(Generic[Event]):
    """Lease held by the block. `lost` is set while another holder may have its units: because the lease could not be
    renewed in time, until a renewal shows that it was kept, or for good because the broker has ended it. The end of its
    hold is no loss.

    `lease_id` is empty and `fencing_token` 0 if the block runs without a lease: as its fail-open mode allows, or by
    SLIPWAY_LEASE=off.
    """

    lost: Event

    def __init__(self, lease: Lease | None, lost: Event) -> None:
        self.lease_id = lease.lease_id if lease else ""
        self.fencing_token = lease.fencing_token if lease else 0
        self.lost = lost
        self.reason = ""

    def check(self) -> None:
        """Raise LeaseLost if another holder may have the units: call it before what a second holder would corrupt."""
        if self.lost.is_set():
            raise LeaseLost(f"lease {self.lease_id} is lost: {self.reason}")


def lease(
    lease_pool: str,
    *,
    operation: str = "install",
    units: int = 1,
    tenant: str = "",
    priority: int = 0,
    hold_seconds: float | None = None,
    max_wait_seconds: float = 1800.0,
    fail_open: str = "",
    unavailable_seconds: float = UNAVAILABLE_SECONDS,
    on_loss: str = "continue",
    request_id: str = "",
    replaces: str = "",
    group: AcquireGroup | None = None,
    join: bool = False,
    url: str = "",
    token: str = "",
    log: Callable[[str], None] = log,
) -> "Leasing":
    """Lease of `lease_pool` for one block.

    `request_id` makes retries the same request, also after a crash. Of another process with this id the request is
    refused, until the lease was not renewed for three quarters of its TTL; with `join` both hold it, and the last
    release counts. `replaces` is the lease of the previous attempt, as LEASE_ID:FENCING_TOKEN.

    `fail_open` [default: SLIPWAY_LEASE_FAIL_OPEN, or safe] is the behaviour without a lease: `always` enters the block
    in the end, whatever the cause; safe, optimistic and pessimistic apply once the broker is unavailable for
    `unavailable_seconds`. With `on_loss="continue"` a block whose lease was lost goes on, and counts as an unleased
    launch until its hold ends; with `raise` it has failed. `url` and `token` default to the environment variables of
    the `slipway` command. `log` gets lines for people.

    Entering raises NotAdmitted after `max_wait_seconds`, Unreachable, or Refused; in mode `always` none of them.
    Leaving raises LeaseLost with `on_loss="raise"`, when the lease was lost and nothing else was raised. Raises
    ValueError for an unknown word.
    """
    if on_loss not in ("continue", "raise"):
        raise ValueError(f"on_loss is {on_loss!r}: expected 'continue' or 'raise'")
    wanted = Wanted(
        lease_pool_id=lease_pool,
        request_id=request_id or new_id(),
        operation=operation,
        units=units,
        tenant=tenant or None,
        priority=priority,
        hold_seconds=hold_seconds,
        group=group,
        holder=holder(),
        join=join,
        replaces=parse_handle(replaces) if replaces else None,
    )
    environment = os.environ
    mode = FailOpen(fail_open or environment.get(FAIL_OPEN_VARIABLE) or FailOpen.SAFE)

    def new_session() -> Session:
        admission = Admission(
            begun_at=monotonic_seconds(),
            max_wait_seconds=max_wait_seconds,
            fail_open=mode,
            unavailable_seconds=unavailable_seconds,
        )
        where = url or environment.get("SLIPWAY_LEASE_BROKER_URL") or SERVICES["lease-broker"]
        host = this_host(where, lambda: token or token_of(environment), mode, log)
        return Session(host, wanted, admission, fenced=on_loss == "raise")

    return Leasing(None if switched_off(environment) else new_session, raises=on_loss == "raise")


class Leasing:
    """Context manager returned by `lease`, for `with` or `async with`; not reusable."""

    def __init__(self, new_session: Callable[[], Session] | None, *, raises: bool) -> None:
        self._new_session = new_session
        self._raises = raises
        self._cleanup = contextlib.ExitStack()
        self._cleanup_async = contextlib.AsyncExitStack()
        self._held: Held[Any] | None = None

    def __enter__(self) -> Held[threading.Event]:
        held = Held(None, threading.Event())
        if self._new_session is not None:
            with contextlib.ExitStack() as stack:
                stack.enter_context(_ends_by_unwinding())
                held = stack.enter_context(_in_background(self._new_session))
                self._cleanup = stack.pop_all()
        self._held = held
        return held

    def __exit__(self, *raised: *Raised) -> None:
        self._cleanup.__exit__(*raised)
        self._check(raised[0])

    async def __aenter__(self) -> Held[asyncio.Event]:
        held = Held(None, asyncio.Event())
        if self._new_session is not None:
            async with contextlib.AsyncExitStack() as stack:
                stack.enter_context(_ends_by_unwinding())
                held = await stack.enter_async_context(_held_by(self._new_session, asyncio.Event()))
                self._cleanup_async = stack.pop_all()
        self._held = held
        return held

    async def __aexit__(self, *raised: *Raised) -> None:
        await self._cleanup_async.__aexit__(*raised)
        self._check(raised[0])

    def _check(self, kind: type[BaseException] | None) -> None:
        if self._raises and kind is None and self._held is not None:
            self._held.check()


@contextlib.asynccontextmanager
async def _held_by(new_session: Callable[[], Session], lost: Event) -> AsyncIterator[Held[Event]]:
    """Lease of an asynchronous block, renewed while that runs."""
    session, result, watching = new_session(), "cancelled", set[asyncio.Task[None]]()
    try:
        admission = await session.acquire()
        held = Held(admission if isinstance(admission, Lease) else None, lost)
        watching.add(asyncio.create_task(_watch(session, held)))
        result = "failed"
        yield held
        result = "done"
    finally:
        for task in watching:
            task.cancel()
        await asyncio.gather(*watching, return_exceptions=True)
        await session.withdraw()
        await session.release(result)


@contextlib.contextmanager
def _in_background(new_session: Callable[[], Session]) -> Iterator[Held[threading.Event]]:
    """Lease of a synchronous block, in a thread with an event loop of its own. An exception, also before the admission,
    such as Ctrl-C, ends it there too; what it waits for at its end is done when the block has ended."""
    acquired: Future[Held[threading.Event]] = Future()
    loop, ended = asyncio.new_event_loop(), asyncio.Event()

    async def hold() -> None:
        try:
            async with _held_by(new_session, threading.Event()) as held:
                acquired.set_result(held)
                await ended.wait()
        except BaseException as error:
            if not acquired.done():
                acquired.set_exception(error)
            elif not isinstance(error, asyncio.CancelledError):
                raise

    def run() -> None:
        with contextlib.closing(loop):
            loop.run_until_complete(holding)

    holding = loop.create_task(hold())
    thread = threading.Thread(target=run, name="slipway-lease", daemon=True)
    thread.start()
    end: Callable[[], object] = holding.cancel
    try:
        yield acquired.result()
        end = ended.set
    finally:
        with contextlib.suppress(RuntimeError):  # the thread has ended by itself
            loop.call_soon_threadsafe(end)
        thread.join()


async def _watch(session: Session, held: Held[Any]) -> None:
    """Renew the lease, and keep `held.lost` true. A block that started without a lease has none to lose."""

    def trust(trusted: bool) -> None:
        if held.lease_id:
            held.reason = "not renewed in time"
            (held.lost.clear if trusted else held.lost.set)()

    over = await session.hold(trust)
    if held.lease_id and over.lost:
        held.reason = over.reason
        held.lost.set()


@contextlib.contextmanager
def _ends_by_unwinding() -> Iterator[None]:
    """Make SIGTERM and SIGHUP raise SystemExit while a lease is held, so that it is released. Signals that the program
    handles or ignores stay as they are."""
    changed: list[signal.Signals] = []

    def leave(signum: int, _: FrameType | None) -> None:
        sys.exit(128 + signum)

    if threading.current_thread() is threading.main_thread():
        for signum in ENDING:
            if signal.getsignal(signum) is signal.SIG_DFL:
                signal.signal(signum, leave)
                changed.append(signum)
    try:
        yield
    finally:
        for signum in changed:
            if signal.getsignal(signum) is leave:
                signal.signal(signum, signal.SIG_DFL)
