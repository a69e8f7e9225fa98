"""One lease from request to release. Performs the decisions of admission.py and holding.py."""

import asyncio
import contextlib
import os
from collections.abc import Callable, Coroutine
from math import isfinite
from random import Random
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from slipway_client.leases import admission, errors, holding, pace
from slipway_client.leases.admission import Admission
from slipway_client.leases.broker import Broker, LeaseEnded
from slipway_client.leases.errors import NotAdmitted, Refused, Unreachable
from slipway_client.leases.holding import Holding, LeaseEnd
from slipway_client.leases.state import Spooled, State, folder
from slipway_client.leases.terms import Lease, Start, Waiting, Wanted
from slipway_client.transport.backoff import Backoff, next_backoff
from slipway_client.transport.exchange import NoAnswer
from slipway_client.view import moments
from slipway_common.base.clock import monotonic_seconds, utc_now
from slipway_common.base.ids import new_id

RELEASE_SECONDS: Final = 10.0
"""How long a release is retried: within the usual grace period before SIGKILL."""
LAST_TRY_SECONDS: Final = 1.0
"""How long reports that hold no units are retried at the end."""
# Hold assumed if neither the caller nor the broker has given one: the declaration's default.
HOLD_SECONDS: Final = 1200.0
# Refusals of a replaced lease after which the request is repeated without it, losing its place in the queue.
NOT_REPLACEABLE: Final = frozenset({"unknown-lease", "wrong-owner", "stale-token", "lease-ended"})


class Unleased(msgspec.Struct, frozen=True):
    """A start without a lease, as the fail-open mode allows while the broker is unavailable."""

    start: Start


class Session:
    """Lease session. `admission` sets the wait and the fail-open mode; `log` gets lines for people. A `resumable`
    session leaves its request in the queue when its wait is over: the same request id finds it again. For a `fenced`
    one the lease is lost once another holder may have its units; any other keeps renewing it, and its work goes on."""

    def __init__(
        self,
        broker: Broker,
        wanted: Wanted,
        admission: Admission,
        state: State,
        rng: Random,
        log: Callable[[str], None],
        *,
        resumable: bool = False,
        fenced: bool = False,
    ) -> None:
        self._broker = broker
        self._wanted = wanted
        self._admission = admission
        self._state = state
        self._rng = rng
        self._log = log
        self._resumable = resumable
        self._fenced = fenced
        self._holding: Holding | None = None
        self._background: set[asyncio.Task[None]] = set()
        self._sent = False
        self._own_start: Spooled | None = None  # until it is charged
        self._unaccepted: set[str] = set()  # starts of others that this token may not report
        self._answered = False

    # Admission

    async def acquire(self) -> Lease | Unleased:
        """Wait for a lease, or until a start without one is allowed. Raises NotAdmitted, Unreachable and Refused."""
        while True:
            match admission.next_step(self._admission, monotonic_seconds()):
                case admission.Request(wait_seconds):
                    if (lease := await self._ask(wait_seconds)) is not None:
                        return lease
                case admission.Wait(until):
                    await asyncio.sleep(max(0.0, until - monotonic_seconds()))
                case admission.TakePlace():
                    self._pace()
                case admission.StartUnleased():
                    return self._start_unleased()
                case admission.GiveUp(unavailable):
                    if not self._resumable:
                        await self.withdraw()
                    self._sent = False
                    raise self._wait_over(unavailable=unavailable)

    async def withdraw(self) -> None:
        """Cancel the request, if there is one, and release a lease that was granted meanwhile."""
        if self._holding is None:
            await self._cancel()

    async def _cancel(self) -> None:
        if self._sent:
            self._sent = False
            with contextlib.suppress(NoAnswer, Refused):  # a lease that is not renewed ends with its TTL
                await self._broker.cancel(self._wanted, within_seconds=RELEASE_SECONDS)

    async def _ask(self, wait_seconds: float) -> Lease | None:
        with contextlib.suppress(NoAnswer):  # first, so that unleased launches count before anything is granted
            await self._report_pending()
        asked_at = monotonic_seconds()
        within_seconds = admission.decided_at(self._admission) - asked_at
        self._sent = True
        try:
            answer = await self._broker.acquire(self._wanted, wait_seconds, within_seconds=within_seconds)
        except NoAnswer as error:
            if self._admission.backoff.since is None:
                self._log(f"lease-broker unavailable, retrying: {error}")
            now = monotonic_seconds()
            self._admission = admission.unanswered(
                self._admission, asked_at=asked_at, now=now, chance=self._rng.random()
            )
            return None
        except Refused as refused:
            if self._wanted.replaces is None or refused.slug not in NOT_REPLACEABLE:
                self._sent = False  # a refused request has changed nothing
                raise
            self._log(f"cannot replace the lease of the previous attempt ({refused}); requesting a new one")
            self._wanted = replace(self._wanted, replaces=None)
            return None
        self._on_first_answer()
        if isinstance(answer, Lease):
            self._holding = holding.granted(answer, asked_at)
            if wait_seconds > 0:
                # The remaining time counts from the start of the long poll; a second, short request is more precise.
                return await self._ask(0.0) or answer
            return answer
        self._log_position(answer)
        now = monotonic_seconds()
        self._admission = admission.waits(
            self._admission, answer, asked_at=asked_at, wait_seconds=wait_seconds, now=now
        )
        return None

    def _pace(self) -> None:
        hold_seconds = self._wanted.hold_seconds or HOLD_SECONDS
        chance = self._rng.random()
        seconds = self._state.slot(self._wanted.lease_pool_id, self._wanted.units, hold_seconds, chance)
        self._admission = admission.paced(self._admission, monotonic_seconds() + seconds)
        if isfinite(seconds):
            self._log(
                f"lease-broker unavailable; starting without a lease in {moments.about(seconds)} unless it answers"
            )
        else:
            self._log(
                "lease-broker unavailable; not starting without a lease, since this pool granted none when last seen"
            )

    def _start_unleased(self) -> Unleased:
        wanted, started_at = self._wanted, utc_now().isoformat()
        # An id of its own: the broker may have received the request although it did not answer.
        start = Start(
            request_id=new_id(),
            operation=wanted.operation,
            units=wanted.units,
            started_at=started_at,
            hold_seconds=wanted.hold_seconds,
        )
        self._log("lease-broker unavailable; starting without a lease, which will be reported to it later")
        self._start_uncounted(start)
        return Unleased(start)

    def _start_uncounted(self, start: Start) -> None:
        """Report our own work without a lease, now or as soon as the broker answers, so that it counts."""
        self._own_start = Spooled(lease_pool_id=self._wanted.lease_pool_id, start=start)
        self._state.spool(self._own_start)
        self._start_background(self.report_unleased())

    def _wait_over(self, *, unavailable: bool) -> Exception:
        waited = moments.about(self._admission.max_wait_seconds)
        pool = self._wanted.lease_pool_id
        if unavailable:
            return Unreachable(
                f"the lease-broker at {self._broker.url} has not answered within {waited}\n"
                "Check that it is running, and its address in --lease-broker or SLIPWAY_LEASE_BROKER_URL."
            )
        outlook = _outlook(self._admission.waiting) if self._admission.waiting else ""
        error = NotAdmitted(f"no lease of {pool} within {waited}{f'; {outlook}' if outlook else ''}")
        error.waiting = self._admission.waiting
        return error

    def _log_position(self, waiting: Waiting) -> None:
        before = self._admission.waiting
        if before is None or before.position != waiting.position:
            self._log(f"waiting for a lease of {self._wanted.lease_pool_id}: {_outlook(waiting)}")

    # Holding

    async def hold(self, on_trust: Callable[[bool], None] = lambda trusted: None) -> LeaseEnd:
        """Renew the lease until it ends. `on_trust` gets False once another holder may have its units, and True if it
        was renewed after that."""
        while True:
            assert self._holding is not None
            match holding.next_step(self._holding, monotonic_seconds(), fenced=self._fenced):
                case admission.Wait(until):
                    await asyncio.sleep(max(0.0, until - monotonic_seconds()))
                case holding.Doubt():
                    self._holding = holding.doubted(self._holding)
                    self._log(
                        "the lease could not be renewed in time; another holder may have its units. "
                        "Renewing it is retried until its hold ends."
                    )
                    on_trust(False)
                case holding.Renew():
                    before = self._holding
                    if (over := await self._renew(before)) is not None:
                        return self._ended(before.lease, over)
                    if before.doubted and not self._holding.doubted:
                        self._log("the lease was renewed: nobody else had its units")
                        on_trust(True)
                case over:
                    return over

    async def _renew(self, held: Holding) -> LeaseEnd | None:
        """Renew the lease; returns its end if the broker has ended it."""
        asked_at = monotonic_seconds()
        until = held.hold_until if held.doubted else held.trusted_until
        try:
            async with asyncio.timeout(until - asked_at):
                self._holding = holding.granted(await self._broker.renew(held.lease), asked_at)
        except LeaseEnded as ended:
            return holding.ended(ended.reason)
        except (NoAnswer, Refused) as error:  # a refused token says nothing about the lease, and may be corrected
            if held.backoff.since is None:
                self._log(f"the lease could not be renewed, retrying: {error}")
            self._holding = holding.unanswered(held, monotonic_seconds(), self._rng.random())
        except TimeoutError:
            pass  # next_step decides
        return None

    def _ended(self, lease: Lease, over: LeaseEnd) -> LeaseEnd:
        """Apply an end by the broker. Work that goes on after a loss is charged until the end of its hold."""
        if over.lost:
            self._holding, self._sent = None, False  # nothing is left to release, or to cancel
        if over.uncounted and not self._fenced:
            start = Start(
                request_id=f"lost-{lease.lease_id}",  # so that the loss is charged once, however often reported
                operation=self._wanted.operation,
                units=lease.units,
                started_at=lease.granted_at,
                hold_seconds=lease.hold_seconds,
                cause="lost",
            )
            self._start_uncounted(start)
        return over

    async def release(self, result: str, *, throttled: bool = False) -> None:
        """Release the lease, unless it was lost; idempotent. After the end of its hold this only reports the result.
        Pending reports are tried a last time, an own unleased launch first since it may still become a lease."""
        if self._own_start is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_TRY_SECONDS):
                    await self.report_unleased()
        if self._own_start is not None:  # the process that reports it releases it at once
            self._own_start = replace(self._own_start, result=result)
            self._state.spool(self._own_start)
        held, self._holding = self._holding, None
        if held is not None:
            await self._release(held.lease, result, throttled=throttled)
        await self._last_try()

    async def _last_try(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_TRY_SECONDS):
                while self._background:  # a start that is charged only now adds the cancellation of its request
                    await asyncio.wait(self._background)
        for task in list(self._background):
            task.cancel()
        self._background.clear()

    async def _release(self, lease: Lease, result: str, *, throttled: bool) -> None:
        backoff, end = Backoff(), monotonic_seconds() + RELEASE_SECONDS
        while True:
            try:
                holder = self._wanted.holder
                return await self._broker.release(lease, result, throttled=throttled, holder=holder)
            except (LeaseEnded, Refused):
                return None  # nothing is held
            except NoAnswer as error:
                backoff = next_backoff(backoff, monotonic_seconds(), self._rng.random())
                if backoff.retry_at > end:
                    self._log(f"could not release the lease ({error}); it expires with its TTL")
                    return None
                await asyncio.sleep(backoff.retry_at - monotonic_seconds())

    # Background

    def _on_first_answer(self) -> None:
        """On the first answer: record the pool's pace for an outage, and report unleased launches."""
        if not self._answered:
            self._answered = True
            self._start_background(self._record_pace())
            self._start_background(self.report_unleased())

    def _start_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _record_pace(self) -> None:
        pool = self._wanted.lease_pool_id
        with contextlib.suppress(NoAnswer, Refused, KeyError, ValueError, TypeError):
            if (row := await self._broker.lease_pool(pool)) is not None:
                self._state.learn(pool, pace.seen(row, self._wanted.operation, self._state.pace(pool)))

    async def report_unleased(self) -> None:
        """Report all unleased launches, retrying until the broker answers."""
        backoff = Backoff()
        while True:
            try:
                return await self._report_pending()
            except NoAnswer:
                backoff = next_backoff(backoff, monotonic_seconds(), self._rng.random())
                await asyncio.sleep(max(0.0, backoff.retry_at - monotonic_seconds()))

    async def _report_pending(self) -> None:
        for entry in self._unreported():
            try:
                await self._charge(entry)
            except Refused as refused:
                self._log(f"unleased launch in {entry.lease_pool_id} was not accepted: {refused}")
                if refused.slug not in errors.UNCHARGEABLE_SLUGS:
                    self._unaccepted.add(entry.start.request_id)
                    continue  # kept for a process with another token, or until the host's clock is corrected
            self._state.reported(entry)

    def _unreported(self) -> list[Spooled]:
        """Spooled launches, and our own even if another process reported it: the answer has the lease to release."""
        entries, own = self._state.spooled(), self._own_start
        entries = entries if own is None or own in entries else [*entries, own]
        return [entry for entry in entries if entry.start.request_id not in self._unaccepted]

    async def _charge(self, entry: Spooled) -> None:
        """Report one unleased launch. Our own becomes a lease that is released like any other, and its request is
        cancelled; one that has ended meanwhile is released at once."""
        asked_at = monotonic_seconds()
        lease = await self._broker.report_unleased(entry.lease_pool_id, entry.start)
        own, result = self._own_start, entry.result
        if own is not None and own.start == entry.start:
            # Without an await between, so that a concurrent release finds either the start or the lease.
            self._own_start, result = None, own.result
            if lease is not None and not result:
                self._holding = holding.granted(lease, asked_at)
            self._start_background(self._cancel())
        if lease is not None and result:
            with contextlib.suppress(LeaseEnded):
                await self._broker.release(lease, result)


def _outlook(waiting: Waiting) -> str:
    """Position, ETA and reason, as far as they are known."""
    parts = [
        f"position {waiting.position}" if waiting.position else "",
        f"about {moments.about(waiting.eta_seconds)}" if waiting.eta_seconds is not None else "",
        waiting.reason or "",
    ]
    return ", ".join(part for part in parts if part) or "position unknown"


def open_session(
    url: str,
    token: str,
    wanted: Wanted,
    admission: Admission,
    log: Callable[[str], None],
    *,
    resumable: bool = False,
    fenced: bool = False,
) -> Session:
    """Open a session with the lease-broker at `url` and this host's state. Raises Refused for an invalid URL."""
    state = State(folder(os.environ), url, log)
    rng = Random()  # noqa: S311 (spreads repetitions)
    return Session(Broker(url, token), wanted, admission, state, rng, log, resumable=resumable, fenced=fenced)
