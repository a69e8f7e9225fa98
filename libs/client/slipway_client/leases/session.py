"""One lease from request to release. Performs the decisions of holding.py."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Final

from msgspec.structs import replace

from slipway_api.http.lease_broker import AcquireGang, GangMember, Lease, QueuedRequest, UnleasedStart
from slipway_client.leases import holding, pace
from slipway_client.leases.admission import Admission, Wait
from slipway_client.leases.admitting import Admitting, Unleased, outlook
from slipway_client.leases.broker import LeaseEnded
from slipway_client.leases.errors import Refused
from slipway_client.leases.holding import Holding, LeaseEnd
from slipway_client.leases.host import Host
from slipway_client.leases.state import Spooled
from slipway_client.leases.terms import Wanted, hold_seconds
from slipway_client.leases.unleased import LAST_TRY_SECONDS, UnleasedStarts
from slipway_client.transport.exchange import NoAnswer, retried
from slipway_common.base.clock import monotonic_seconds

RELEASE_SECONDS: Final = 10.0
"""How long a release is retried: within the usual grace period before SIGKILL."""
TOKEN_SECONDS: Final = 10.0
"""Longest time for which the token of its lease delays a command."""
# Refusals of a replaced lease after which the request is repeated without it, losing its place in the queue.
NOT_REPLACEABLE: Final = frozenset({"unknown-lease", "wrong-owner", "stale-token", "lease-ended"})


class Session(Admitting[Lease]):
    """Lease session. A `resumable` one leaves its request in the queue when its wait is over: the same request id finds
    it again. For a `fenced` one the lease is lost once another holder may have its units; any other keeps renewing it,
    and its work goes on."""

    def __init__(
        self, host: Host, wanted: Wanted, admission: Admission, *, resumable: bool = False, fenced: bool = False
    ) -> None:
        member = GangMember(pool=wanted.lease_pool_id, units=wanted.units, hold_seconds=wanted.hold_seconds)
        gang = AcquireGang(request_id=wanted.request_id, operation=wanted.operation, members=[member])
        super().__init__(host, gang, admission)
        self._wanted = wanted
        self._resumable = resumable
        self._fenced = fenced
        self._holding: Holding | None = None
        self._background: set[asyncio.Task[None]] = set()
        self._sent = False
        self._is_held = asyncio.Event()
        self._unreported = UnleasedStarts(host, self._hold)
        self._answered = False

    # Admission

    async def _send(self, wait_seconds: float, until: float) -> Lease | QueuedRequest:
        with contextlib.suppress(NoAnswer):  # first, so that they count before anything is granted
            await self._unreported.report_once()
        self._asked_at, self._sent = monotonic_seconds(), True
        answer = await self._host.broker.acquire(self._wanted, wait_seconds, within_seconds=until - self._asked_at)
        self._on_first_answer()
        return answer

    async def _on_granted(self, granted: Lease, wait_seconds: float) -> Lease:
        self._hold(granted, self._asked_at)
        if wait_seconds > 0:
            # The remaining time counts from the start of the long poll; a second, short request is more precise.
            return await self._ask(0.0) or granted
        return granted

    async def _on_given_up(self) -> None:
        if not self._resumable:
            await self.withdraw()
        self._sent = False

    def _refused(self, refused: Refused) -> None:
        if self._wanted.replaces is not None and refused.slug in NOT_REPLACEABLE:
            self._host.log(f"cannot replace the lease of the previous attempt ({refused}); requesting a new one")
            self._wanted = replace(self._wanted, replaces=None)
            return
        self._sent = False  # a refused request has changed nothing
        super()._refused(refused)

    async def _start_unleased(self) -> Unleased:
        waiting, (entry,) = self._admission.waiting, self._spooled()
        self._sent = False  # nothing is left to cancel: the start takes the place of the request
        if self._is_refused:
            count = self._host.state.record_uncharged(entry)
            self._host.log(f"starting without a lease; start {count} of this host that is charged to no lease pool")
            return self._unleased()
        if waiting is None or self._admission.backoff.since is not None:
            self._host.log("lease-broker unavailable; starting without a lease, which will be reported to it later")
        else:
            self._host.log(f"no lease of {self._pools} yet ({outlook(waiting)}); starting without one")
        self._start_uncounted(entry.start)
        return self._unleased()

    async def withdraw(self) -> None:
        """Cancel the request, if there is one, and release a lease that was granted meanwhile."""
        if self._holding is None and self._sent:
            self._sent = False
            with contextlib.suppress(NoAnswer, Refused):  # a lease that is not renewed ends with its TTL
                await self._host.broker.cancel(self._wanted, within_seconds=RELEASE_SECONDS)

    def _hold(self, lease: Lease, asked_at: float) -> None:
        self._holding = holding.granted(lease, asked_at)
        self._is_held.set()

    def _start_uncounted(self, start: UnleasedStart) -> None:
        """Report our own work without a lease, now or as soon as the broker answers, so that it counts."""
        self._unreported.record(Spooled(lease_pool_id=self._wanted.lease_pool_id, start=start))
        self._start_background(self._unreported.report())

    async def acquire_to_keep(self) -> list[Lease] | Unleased:
        """Acquire a lease that the caller renews and releases. A start without one is reported a last time; returns the
        lease as which it was charged."""
        admission = await self.acquire()
        if isinstance(admission, Lease):
            return [admission]
        await self._unreported.report_last()
        await self._last_try()
        return admission if self._holding is None else [self._holding.lease]

    # Holding

    async def lease_token(self) -> str:
        """Token bound to the lease, for its command; empty if it cannot be had, or our broker needs none."""
        assert self._holding is not None
        if not self._host.broker.authorized:
            return ""
        try:
            async with asyncio.timeout(TOKEN_SECONDS):
                return await self._host.broker.lease_token(self._holding.lease, self._wanted.holder)
        except (NoAnswer, Refused, LeaseEnded, TimeoutError) as error:
            self._host.log(
                f"the command gets no token, since none was issued for its lease: {str(error) or 'no answer'}"
            )
            return ""

    async def hold(self, on_trust: Callable[[bool], None] = lambda trusted: None) -> LeaseEnd:
        """Renew the lease until it ends; that of a start without one, once the broker has charged it. `on_trust` gets
        False once another holder may have its units, and True if it was renewed after that."""
        await self._is_held.wait()
        while True:
            assert self._holding is not None
            match holding.next_step(self._holding, monotonic_seconds(), fenced=self._fenced):
                case Wait(until):
                    await asyncio.sleep(max(0.0, until - monotonic_seconds()))
                case holding.Doubt():
                    self._holding = holding.doubted(self._holding)
                    self._host.log(
                        "the lease could not be renewed in time; another holder may have its units. "
                        "Renewing it is retried until its hold ends."
                    )
                    on_trust(False)
                case holding.Renew():
                    before = self._holding
                    if (over := await self._renew(before)) is not None:
                        return self._ended(before.lease, over)
                    if before.doubted and not self._holding.doubted:
                        self._host.log("the lease was renewed: nobody else had its units")
                        on_trust(True)
                case over:
                    return over

    async def _renew(self, held: Holding) -> LeaseEnd | None:
        """Renew the lease; returns its end if the broker has ended it."""
        asked_at = monotonic_seconds()
        until = held.hold_until if held.doubted else held.trusted_until
        try:
            async with asyncio.timeout(until - asked_at):
                self._holding = holding.granted(await self._host.broker.renew(held.lease), asked_at)
        except LeaseEnded as ended:
            return holding.ended(ended.reason)
        except TimeoutError:
            pass  # next_step decides
        except Exception as error:
            # A refused token says nothing about the lease, and may be corrected. Nor does an error that nobody expects,
            # which must not end the work.
            if held.backoff.since is None:
                self._host.log(f"the lease could not be renewed, retrying: {error}")
            after_seconds = error.retry_after_seconds if isinstance(error, NoAnswer) else 0.0
            self._holding = holding.unanswered(held, monotonic_seconds(), self._host.rng.random(), after_seconds)
        return None

    def _ended(self, lease: Lease, over: LeaseEnd) -> LeaseEnd:
        """Apply an end by the broker. Work that goes on after a loss is charged until the end of its hold."""
        if over.lost:
            self._holding, self._sent = None, False  # nothing is left to release, or to cancel
        if over.uncounted and not self._fenced:
            start = UnleasedStart(
                request_id=f"lost-{lease.lease_id}",  # so that the loss is charged once, however often reported
                operation=self._wanted.operation,
                units=lease.units,
                started_at=lease.granted_at,
                hold_seconds=hold_seconds(lease),
                cause="lost",
            )
            self._start_uncounted(start)
        return over

    async def release(self, result: str, *, throttled: bool = False) -> None:
        """Release the lease, unless it was lost; idempotent. After the end of its hold this only reports the result.
        Pending reports are tried a last time, an own unleased start first since it may still become a lease."""
        await self._unreported.report_last()
        self._unreported.end(result)
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
        release = partial(self._host.broker.release, lease, result, throttled=throttled, holder=self._wanted.holder)
        try:
            with contextlib.suppress(LeaseEnded, Refused):  # nothing is held
                await retried(release, self._host.rng, until=monotonic_seconds() + RELEASE_SECONDS)
        except NoAnswer as error:
            self._host.log(f"could not release the lease ({error}); it expires with its TTL")

    # Background

    def _on_first_answer(self) -> None:
        """On the first answer: record the pool's pace for an outage, and report unleased starts."""
        if not self._answered:
            self._answered = True
            self._start_background(self._record_pace())
            self._start_background(self._unreported.report())

    def _start_background(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _record_pace(self) -> None:
        pool = self._wanted.lease_pool_id
        with contextlib.suppress(NoAnswer, Refused):
            if (row := await self._host.broker.lease_pool(pool)) is not None:
                self._host.state.learn(pool, pace.seen(row, self._wanted.operation, self._host.state.pace(pool)))
