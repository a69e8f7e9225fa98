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

from slipway_client.leases import admission, holding, pace
from slipway_client.leases.admission import Admission, Cause, FailOpen
from slipway_client.leases.broker import Broker, LeaseEnded
from slipway_client.leases.errors import NotAdmitted, Refused, Unreachable
from slipway_client.leases.holding import Holding, LeaseEnd
from slipway_client.leases.state import Spooled, State, folder
from slipway_client.leases.terms import Lease, Start, Waiting, Wanted
from slipway_client.leases.unleased import LAST_TRY_SECONDS, UnleasedStarts
from slipway_client.transport.backoff import Backoff, next_backoff
from slipway_client.transport.exchange import MISDIRECTED, NoAnswer
from slipway_client.transport.http import Failed
from slipway_client.view import moments
from slipway_common.base.clock import monotonic_seconds, utc_now

RELEASE_SECONDS: Final = 10.0
"""How long a release is retried: within the usual grace period before SIGKILL."""
TOKEN_SECONDS: Final = 10.0
"""Longest time for which the token of its lease delays a command."""
UNEXPECTED: Final = "unexpected"
"""Cause of a start without a lease after an error that this program does not expect."""
# Hold assumed if neither the caller nor the broker has given one: the declaration's default.
HOLD_SECONDS: Final = 1200.0
# Refusals of a replaced lease after which the request is repeated without it, losing its place in the queue.
NOT_REPLACEABLE: Final = frozenset({"unknown-lease", "wrong-owner", "stale-token", "lease-ended"})


class Unleased(msgspec.Struct, frozen=True):
    """A start without a lease, as the fail-open mode allows. `cause`: code of the reason, as of a waiting request or a
    refusal; `unavailable` without an answer."""

    cause: str


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
        self._is_held = asyncio.Event()
        self._problem = ""  # of the refusal, or of an address that is wrong
        self._starts = UnleasedStarts(broker, state, rng, log, self._hold)
        self._answered = False

    # Admission

    async def acquire(self) -> Lease | Unleased:
        """Wait for a lease, or until a start without one is allowed. Raises NotAdmitted, Unreachable and Refused; in
        mode `always` nothing, since the caller starts whatever fails."""
        while True:
            try:
                return await self._admitted()
            except Exception as error:
                if self._admission.fail_open is not FailOpen.ALWAYS:
                    raise
                if self._problem == UNEXPECTED:
                    return Unleased(UNEXPECTED)
                self._admission, self._problem = admission.refused(self._admission, monotonic_seconds()), UNEXPECTED
                self._log(f"{type(error).__name__}: {error}. {_start(self._admission)}")

    async def _admitted(self) -> Lease | Unleased:
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
                    raise _wait_over(
                        self._admission, self._wanted.lease_pool_id, self._broker.url, unavailable=unavailable
                    )

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
        answer, asked_at = await self._request(wait_seconds)
        if answer is None:
            return None
        self._on_first_answer()
        if isinstance(answer, Lease):
            self._hold(answer, asked_at)
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

    async def _request(self, wait_seconds: float) -> tuple[Lease | Waiting | None, float]:
        """Request the lease; returns the answer, if there is one, and the time of the request. A caller that has to
        start does not wait for one."""
        asked_at, until = monotonic_seconds(), admission.decided_at(self._admission)
        is_patient = self._admission.fail_open is not FailOpen.ALWAYS
        try:
            async with asyncio.timeout(None if is_patient else until - asked_at):
                with contextlib.suppress(NoAnswer):  # first, so that they count before anything is granted
                    await self._starts.report_once()
                asked_at, self._sent = monotonic_seconds(), True
                within_seconds = until - asked_at
                return await self._broker.acquire(self._wanted, wait_seconds, within_seconds=within_seconds), asked_at
        except TimeoutError:
            pass
        except NoAnswer as error:
            self._unanswered(error, asked_at)
        except Refused as refused:
            if self._wanted.replaces is None or refused.slug not in NOT_REPLACEABLE:
                self._refused(refused)
            else:
                self._log(f"cannot replace the lease of the previous attempt ({refused}); requesting a new one")
                self._wanted = replace(self._wanted, replaces=None)
        return None, asked_at

    def _hold(self, lease: Lease, asked_at: float) -> None:
        self._holding = holding.granted(lease, asked_at)
        self._is_held.set()

    def _unanswered(self, error: NoAnswer, asked_at: float) -> None:
        now, before = monotonic_seconds(), self._admission
        self._admission = admission.unanswered(
            before,
            asked_at=asked_at,
            now=now,
            chance=self._rng.random(),
            misdirected=error.problem in MISDIRECTED,
        )
        if before.backoff.since is None:
            self._log(f"lease-broker unavailable, retrying: {error}")
        if self._admission.cause is Cause.REFUSED and before.cause is not Cause.REFUSED:
            self._problem = error.problem
            if before.fail_open is FailOpen.ALWAYS:
                self._log(f"Check the address {self._broker.url} and its certificate. {_start(self._admission)}")

    def _refused(self, refused: Refused) -> None:
        """Apply a final refusal. Raises it, unless the fail-open mode is `always`."""
        self._sent = False  # a refused request has changed nothing
        if self._admission.fail_open is not FailOpen.ALWAYS:
            raise refused
        self._admission = admission.refused(self._admission, monotonic_seconds())
        self._problem = refused.slug or "refused"
        self._log(f"{refused}\n{_start(self._admission)}")

    def _pace(self) -> None:
        hold_seconds = self._wanted.hold_seconds or HOLD_SECONDS
        chance = self._rng.random()
        seconds = self._state.slot(self._wanted.lease_pool_id, self._wanted.units, hold_seconds, chance)
        self._admission = admission.paced(self._admission, monotonic_seconds() + seconds)
        if isfinite(admission.starts_at(self._admission)):
            left_seconds = admission.starts_at(self._admission) - monotonic_seconds()
            self._log(
                f"lease-broker unavailable; starting without a lease in {moments.about(left_seconds)} unless it answers"
            )
        else:
            why = (
                f"its next start at the last known pace is in {moments.about(seconds)}, after the maximum wait"
                if isfinite(seconds)
                else "this pool granted none when last seen"
            )
            self._log(f"lease-broker unavailable; not starting unless it answers, since {why}")

    def _start_unleased(self) -> Unleased:
        """Record the start by its cause. It has the id of its request: the broker may have received that, and even
        granted a lease, although no answer has arrived."""
        wanted, waiting = self._wanted, self._admission.waiting
        start = Start(
            request_id=wanted.request_id,
            operation=wanted.operation,
            units=wanted.units,
            started_at=utc_now().isoformat(),
            hold_seconds=wanted.hold_seconds,
            cause="unavailable" if waiting is None else "max_wait",
        )
        self._sent = False  # nothing is left to cancel: the start takes the place of the request
        if self._admission.cause is Cause.REFUSED:
            entry = Spooled(lease_pool_id=wanted.lease_pool_id, start=replace(start, cause=self._problem))
            count = self._state.record_uncharged(entry)
            self._log(f"starting without a lease; start {count} of this host that is charged to no lease pool")
            return Unleased(self._problem)
        if waiting is None or self._admission.backoff.since is not None:
            self._log("lease-broker unavailable; starting without a lease, which will be reported to it later")
        else:
            self._log(f"no lease of {wanted.lease_pool_id} yet ({_outlook(waiting)}); starting without one")
        self._start_uncounted(start)
        return Unleased("unavailable" if waiting is None else waiting.cause or "full")

    def _start_uncounted(self, start: Start) -> None:
        """Report our own work without a lease, now or as soon as the broker answers, so that it counts."""
        self._starts.record(Spooled(lease_pool_id=self._wanted.lease_pool_id, start=start))
        self._start_background(self._starts.report())

    def _log_position(self, waiting: Waiting) -> None:
        before = self._admission.waiting
        if before is None or before.position != waiting.position:
            self._log(f"waiting for a lease of {self._wanted.lease_pool_id}: {_outlook(waiting)}")

    async def settle(self) -> Lease | None:
        """Try a last time to report a start without a lease, for a caller that does not hold it; returns the lease as
        which it was charged, for the caller to release."""
        await self._starts.report_last()
        await self._last_try()
        return None if self._holding is None else self._holding.lease

    # Holding

    async def lease_token(self) -> str:
        """Token bound to the lease, for its command; empty if it cannot be had, or our broker needs none."""
        assert self._holding is not None
        if not self._broker.authorized:
            return ""
        try:
            async with asyncio.timeout(TOKEN_SECONDS):
                return await self._broker.lease_token(self._holding.lease, self._wanted.holder)
        except (NoAnswer, Refused, LeaseEnded, TimeoutError) as error:
            self._log(f"the command gets no token, since none was issued for its lease: {str(error) or 'no answer'}")
            return ""

    async def hold(self, on_trust: Callable[[bool], None] = lambda trusted: None) -> LeaseEnd:
        """Renew the lease until it ends; that of a start without one, once the broker has charged it. `on_trust` gets
        False once another holder may have its units, and True if it was renewed after that."""
        await self._is_held.wait()
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
        Pending reports are tried a last time, an own unleased start first since it may still become a lease."""
        await self._starts.report_last()
        self._starts.end(result)
        held, self._holding = self._holding, None
        if held is not None:
            await self._release(held.lease, result, throttled=throttled)
        await self._last_try()

    async def _last_try(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_TRY_SECONDS):
                if self._background:
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
        """On the first answer: record the pool's pace for an outage, and report unleased starts."""
        if not self._answered:
            self._answered = True
            self._start_background(self._record_pace())
            self._start_background(self._starts.report())

    def _start_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _record_pace(self) -> None:
        pool = self._wanted.lease_pool_id
        with contextlib.suppress(NoAnswer, Refused, KeyError, ValueError, TypeError):
            if (row := await self._broker.lease_pool(pool)) is not None:
                self._state.learn(pool, pace.seen(row, self._wanted.operation, self._state.pace(pool)))


def _start(refused: Admission) -> str:
    seconds = admission.starts_at(refused) - monotonic_seconds()
    return f"Starting without a lease in {moments.about(max(0.0, seconds))}."


def _wait_over(admission: Admission, lease_pool_id: str, url: str, *, unavailable: bool) -> Exception:
    waited = moments.about(admission.max_wait_seconds)
    if unavailable:
        return Unreachable(
            f"the lease-broker at {url} has not answered within {waited}\n"
            "Check that it is running, and its address in --lease-broker or SLIPWAY_LEASE_BROKER_URL."
        )
    outlook = _outlook(admission.waiting) if admission.waiting else ""
    error = NotAdmitted(f"no lease of {lease_pool_id} within {waited}{f'; {outlook}' if outlook else ''}")
    error.waiting = admission.waiting
    return error


def _outlook(waiting: Waiting) -> str:
    """Position, ETA and reason, as far as they are known."""
    parts = [
        f"position {waiting.position}" if waiting.position else "",
        f"about {moments.about(waiting.eta_seconds)}" if waiting.eta_seconds is not None else "",
        waiting.reason or "",
    ]
    return ", ".join(part for part in parts if part) or "position unknown"


def readable_token(read: Callable[[], str], fail_open: FailOpen, log: Callable[[str], None]) -> str:
    """Token that `read` returns. In mode `always` an unreadable one is logged: the broker refuses a request without it,
    which starts without a lease then."""
    try:
        return read()
    except (Failed, ValueError) as error:
        if fail_open is not FailOpen.ALWAYS:
            raise
        log(str(error))
        return ""


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
    """Open a session with the lease-broker at `url` and this host's state."""
    state = State(folder(os.environ), url, log)
    rng = Random()  # noqa: S311 (spreads repetitions)
    # Of the request id, so that a repeated request starts at the same part of its span.
    admission = replace(admission, chance=Random(wanted.request_id).random())  # noqa: S311
    return Session(Broker(url, token), wanted, admission, state, rng, log, resumable=resumable, fenced=fenced)
