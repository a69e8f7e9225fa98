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
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import FrameType
from typing import Any, Final, Generic, TypeVar

from slipway_api.http.lease_broker import AcquireGroup, Lease
from slipway_client.leases.admission import FAIL_OPEN_VARIABLE, UNAVAILABLE_SECONDS, Admission, FailOpen
from slipway_client.leases.admitting import Unleased
from slipway_client.leases.errors import LeaseLost
from slipway_client.leases.holder import holder
from slipway_client.leases.host import this_host
from slipway_client.leases.log import log
from slipway_client.leases.session import Session
from slipway_client.leases.terms import Wanted, parse_handle
from slipway_client.transport.failed import SERVICES
from slipway_client.transport.http import token_of
from slipway_client.transport.switch import switched_off
from slipway_common.base.clock import monotonic_seconds
from slipway_common.base.ids import new_id

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
        self._thread: _BackgroundSession | None = None
        self._session: Session | None = None
        self._watching: asyncio.Task[None] | None = None
        self._held: Held[Any] | None = None

    def __enter__(self) -> Held[threading.Event]:
        held = Held(None, threading.Event())
        if self._new_session is not None:
            with contextlib.ExitStack() as stack:
                stack.enter_context(_ends_by_unwinding())
                self._thread = _BackgroundSession(self._new_session)
                held = self._thread.acquired()
                self._cleanup = stack.pop_all()
        self._held = held
        return held

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._cleanup:
            if self._thread is not None:
                self._thread.release("failed" if kind else "done")
        self._check(kind)

    async def __aenter__(self) -> Held[asyncio.Event]:
        held = Held(None, asyncio.Event())
        if self._new_session is not None:
            with contextlib.ExitStack() as stack:
                stack.enter_context(_ends_by_unwinding())
                session = self._session = self._new_session()
                try:
                    held = _held(await session.acquire(), asyncio.Event())
                except BaseException:
                    await session.withdraw()
                    await session.release("cancelled")
                    raise
                self._watching = asyncio.create_task(_watch(session, held))
                self._cleanup = stack.pop_all()
        self._held = held
        return held

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._cleanup:
            if self._session is not None and self._watching is not None:
                self._watching.cancel()
                await asyncio.gather(self._watching, return_exceptions=True)
                await self._session.release("failed" if kind else "done")
        self._check(kind)

    def _check(self, kind: type[BaseException] | None) -> None:
        if self._raises and kind is None and self._held is not None:
            self._held.check()


class _BackgroundSession:
    """Lease session in a thread with its own event loop, for synchronous blocks."""

    def __init__(self, new_session: Callable[[], Session]) -> None:
        self._new_session = new_session
        self._acquired: Future[Held[threading.Event]] = Future()
        self._result = "cancelled"
        self._loop = asyncio.new_event_loop()
        self._leave = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="slipway-lease", daemon=True)
        self._thread.start()

    def acquired(self) -> Held[threading.Event]:
        """Wait for admission. An exception meanwhile, such as Ctrl-C, withdraws the request."""
        try:
            return self._acquired.result()
        except BaseException:
            self.release("cancelled")
            raise

    def release(self, result: str) -> None:
        """Release the lease, and wait until that is done."""
        self._result = result
        with contextlib.suppress(RuntimeError):  # the thread has ended by itself
            self._loop.call_soon_threadsafe(self._leave.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._live())
        finally:
            self._loop.close()

    async def _live(self) -> None:
        try:
            session = self._new_session()
        except BaseException as error:
            self._acquired.set_exception(error)
            return
        acquiring = asyncio.create_task(session.acquire())
        leaving = asyncio.create_task(self._leave.wait())
        watching: asyncio.Task[None] | None = None
        try:
            await asyncio.wait({acquiring, leaving}, return_when=asyncio.FIRST_COMPLETED)
            acquiring.cancel()
            (admission,) = await asyncio.gather(acquiring, return_exceptions=True)
            if isinstance(admission, BaseException):
                self._acquired.set_exception(admission)
                return
            held = _held(admission, threading.Event())
            watching = asyncio.create_task(_watch(session, held))
            self._acquired.set_result(held)
            await leaving
        finally:
            if watching is not None:
                watching.cancel()
            leaving.cancel()
            await asyncio.gather(leaving, *([watching] if watching else []), return_exceptions=True)
            await session.withdraw()
            await session.release(self._result)


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


def _held(admission: Lease | Unleased, lost: Event) -> Held[Event]:
    return Held(admission if isinstance(admission, Lease) else None, lost)


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
