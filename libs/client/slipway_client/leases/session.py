"""One lease from request to release, in motion. Performs what asking.py and holding.py decide."""

import asyncio
import contextlib
import os
from collections.abc import Callable, Coroutine
from math import isfinite
from random import Random
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from slipway_client import moments
from slipway_client.leases import asking, errors, holding, pace
from slipway_client.leases.asking import Asking
from slipway_client.leases.broker import Broker, Ended
from slipway_client.leases.errors import NotAdmitted, Refused, Unreachable
from slipway_client.leases.holding import Holding, Over
from slipway_client.leases.state import Spooled, State, folder
from slipway_client.leases.terms import Lease, Start, Waiting, Wanted
from slipway_client.worker.core import Silence, longer
from slipway_client.worker.http import NoAnswer
from slipway_common.clock import monotonic_seconds, utc_now
from slipway_common.ids import new_id

RELEASE_SECONDS: Final = 10.0
"""How long giving back, or no longer waiting, is tried: within what who ends us by force usually allows."""
LAST_TRY_SECONDS: Final = 1.0
"""What is owed to the broker but holds nobody's units is tried for so long at the end."""
# What the pool's hold is taken for where neither caller nor broker has said: the declaration's default.
HOLD_SECONDS: Final = 1200.0
# Refusals of a replaced lease that only cost the credit for having waited.
NOT_REPLACEABLE: Final = frozenset({"unknown-lease", "wrong-owner", "stale-token", "lease-ended"})


class Unleased(msgspec.Struct, frozen=True):
    """What holds nothing: the broker was silent, and the caller has chosen to start all the same."""

    start: Start


class Session:
    """`patience` says how long to wait and what to do about a silent broker; `say` tells people, a line at a time. A
    session that `comes_back` leaves its request in the queue when its wait is over: its id finds it again."""

    def __init__(
        self,
        broker: Broker,
        wanted: Wanted,
        patience: Asking,
        state: State,
        rng: Random,
        say: Callable[[str], None],
        *,
        comes_back: bool = False,
    ) -> None:
        self._broker = broker
        self._wanted = wanted
        self._asking = patience
        self._state = state
        self._rng = rng
        self._say = say
        self._comes_back = comes_back
        self._holding: Holding | None = None
        self._over: Over | None = None
        self._beside: set[asyncio.Task[None]] = set()
        self._sent = False
        self._own_start: Spooled | None = None  # until it is charged
        self._unaccepted: set[str] = set()  # starts of others that this token may not tell of
        self._learned = False

    # Admission

    async def acquire(self) -> Lease | Unleased:
        """Wait until there is a lease, or none is needed. Raises NotAdmitted, Unreachable and Refused."""
        while True:
            match asking.next_step(self._asking, monotonic_seconds()):
                case asking.Ask(wait_seconds):
                    if (lease := await self._ask(wait_seconds)) is not None:
                        return lease
                case asking.Rest(until):
                    await asyncio.sleep(max(0.0, until - monotonic_seconds()))
                case asking.Pace():
                    self._pace()
                case asking.StartUnleased():
                    return self._start_unleased()
                case asking.GiveUp(silent):
                    if not self._comes_back:
                        await self.withdraw()
                    self._sent = False
                    raise self._too_long(silent=silent)

    async def withdraw(self) -> None:
        """Stop waiting, and keep nothing that was granted meanwhile. Nothing if nothing was asked."""
        if self._holding is None:
            await self._cancel()

    async def _cancel(self) -> None:
        if self._sent:
            self._sent = False
            with contextlib.suppress(NoAnswer, Refused):  # an answer that nobody takes ends by the reserve deadline
                await self._broker.cancel(self._wanted)

    async def _ask(self, wait_seconds: float) -> Lease | None:
        with contextlib.suppress(NoAnswer):  # first, so that nothing is granted beside what has started already
            await self._tell_unleased()
        asked_at = monotonic_seconds()
        self._sent = True
        try:
            answer = await self._broker.acquire(self._wanted, wait_seconds)
        except NoAnswer as error:
            if self._asking.silence.since is None:
                self._say(f"the lease-broker does not answer ({error}); will go on asking")
            now = monotonic_seconds()
            self._asking = asking.unheard(self._asking, asked_at=asked_at, now=now, chance=self._rng.random())
            return None
        except Refused as refused:
            if self._wanted.replaces is None or refused.slug not in NOT_REPLACEABLE:
                self._sent = False  # what was refused has changed nothing
                raise
            self._say(f"the lease of the attempt before cannot be replaced ({refused}); asking anew")
            self._wanted = replace(self._wanted, replaces=None)
            return None
        self._learn()
        if isinstance(answer, Lease):
            self._holding = holding.granted(answer, asked_at)
            if wait_seconds > 0:
                # It was true at some time of a long wait; of a short answer we know better how much is left.
                return await self._ask(0.0) or answer
            return answer
        self._tell(answer)
        now = monotonic_seconds()
        self._asking = asking.waits(self._asking, answer, asked_at=asked_at, wait_seconds=wait_seconds, now=now)
        return None

    def _pace(self) -> None:
        hold_seconds = self._wanted.hold_seconds or HOLD_SECONDS
        chance = self._rng.random()
        seconds = self._state.slot(self._wanted.lease_pool_id, self._wanted.units, hold_seconds, chance)
        self._asking = asking.paced(self._asking, monotonic_seconds() + seconds)
        when = f"in {moments.about(seconds)}" if isfinite(seconds) else "never, since nothing may start in this pool"
        self._say(f"the lease-broker is silent; this starts without a lease {when}, unless it answers before")

    def _start_unleased(self) -> Unleased:
        wanted, started_at = self._wanted, utc_now().isoformat()
        # An id of its own: the broker may have the request, although nobody has heard so.
        start = Start(request_id=new_id(), operation=wanted.operation, units=wanted.units, started_at=started_at)
        self._own_start = Spooled(lease_pool_id=wanted.lease_pool_id, start=start)
        self._state.spool(self._own_start)
        self._say("starting without a lease: the lease-broker is silent; it will be told")
        self._begin_beside(self.report_unleased())
        return Unleased(start)

    def _too_long(self, *, silent: bool) -> Exception:
        waited = moments.about(self._asking.max_wait_seconds)
        pool = self._wanted.lease_pool_id
        if silent:
            return Unreachable(
                f"the lease-broker at {self._broker.url} has not answered within {waited}\n"
                "Is it running? --lease-broker or SLIPWAY_LEASE_BROKER_URL says where it is."
            )
        outlook = _outlook(self._asking.waiting) if self._asking.waiting else ""
        error = NotAdmitted(f"no lease of {pool} within {waited}{f'; {outlook}' if outlook else ''}")
        error.waiting = self._asking.waiting
        return error

    def _tell(self, waiting: Waiting) -> None:
        before = self._asking.waiting
        if before is None or before.position != waiting.position:
            self._say(f"waiting for a lease of {self._wanted.lease_pool_id}: {_outlook(waiting)}")

    # Holding

    async def hold(self) -> Over:
        """Renew until the lease ends, which it may do by being lost."""
        assert self._holding is not None
        while self._over is None:
            match holding.next_step(self._holding, monotonic_seconds()):
                case holding.Rest(until):
                    await asyncio.sleep(max(0.0, until - monotonic_seconds()))
                case holding.Renew():
                    await self._renew(self._holding)
                case over:
                    self._over = over
        return self._over

    async def _renew(self, held: Holding) -> None:
        asked_at = monotonic_seconds()
        try:
            async with asyncio.timeout(max(0.0, held.trusted_until - asked_at)):
                self._holding = holding.granted(await self._broker.renew(held.lease), asked_at)
        except Ended as ended:
            self._over = holding.ended(ended.reason)
        except Refused as refused:  # its token was revoked: nobody renews this lease any more
            self._over = Over(str(refused), lost=True)
        except NoAnswer as error:
            if held.silence.since is None:
                self._say(f"the lease-broker does not answer ({error}); will go on renewing")
            self._holding = holding.unheard(held, monotonic_seconds(), self._rng.random())
        except TimeoutError:
            pass  # next_step says what that means

    async def release(self, result: str, *, throttled: bool = False) -> None:
        """Give the lease back, unless it was lost; once, however often this is called. After its hold that tells how it
        went. What is left to tell is tried a last time, and first if that may still become a lease."""
        if self._own_start is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_TRY_SECONDS):
                    await self.report_unleased()
        if self._own_start is not None:  # whoever tells of it gives it back at once
            self._own_start = replace(self._own_start, result=result)
            self._state.spool(self._own_start)
        held, self._holding = self._holding, None
        if held is not None and (self._over is None or not (self._over.told and self._over.lost)):
            await self._release(held.lease, result, throttled=throttled)
        await self._last_try()

    async def _last_try(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_TRY_SECONDS):
                while self._beside:  # what is charged only now begins to cancel its request
                    await asyncio.wait(self._beside)
        for task in list(self._beside):
            task.cancel()
        self._beside.clear()

    async def _release(self, lease: Lease, result: str, *, throttled: bool) -> None:
        silence, end = Silence(), monotonic_seconds() + RELEASE_SECONDS
        while True:
            try:
                return await self._broker.release(lease, result, throttled=throttled)
            except (Ended, Refused):
                return None  # it holds nothing
            except NoAnswer as error:
                silence = longer(silence, monotonic_seconds(), self._rng.random())
                if silence.retry_at > end:
                    self._say(f"the lease could not be given back ({error}); it ends by its ttl")
                    return None
                await asyncio.sleep(silence.retry_at - monotonic_seconds())

    # Beside

    def _learn(self) -> None:
        """The broker answers: see how the pool is, for when it does not, and tell what was started meanwhile."""
        if not self._learned:
            self._learned = True
            self._begin_beside(self._see_pace())
            self._begin_beside(self.report_unleased())

    def _begin_beside(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)

    async def _see_pace(self) -> None:
        pool = self._wanted.lease_pool_id
        with contextlib.suppress(NoAnswer, Refused, KeyError, ValueError, TypeError):
            if (row := await self._broker.lease_pool(pool)) is not None:
                self._state.learn(pool, pace.seen(row, self._state.pace(pool)))

    async def report_unleased(self) -> None:
        """Tell of every start that nobody has been told of; goes on until somebody listens."""
        silence = Silence()
        while True:
            try:
                return await self._tell_unleased()
            except NoAnswer:
                silence = longer(silence, monotonic_seconds(), self._rng.random())
                await asyncio.sleep(max(0.0, silence.retry_at - monotonic_seconds()))

    async def _tell_unleased(self) -> None:
        for entry in self._untold():
            try:
                await self._charge(entry)
            except Refused as refused:
                self._say(f"an unleased start in {entry.lease_pool_id} was not accepted: {refused}")
                if refused.slug not in errors.UNCHARGEABLE_SLUGS:
                    self._unaccepted.add(entry.start.request_id)
                    continue  # kept for a process with another token, or for a host whose clock is set
            self._state.told(entry)

    def _untold(self) -> list[Spooled]:
        """Also our own start that another process has told of: only the answer says what there is to give back."""
        entries, own = self._state.spooled(), self._own_start
        entries = entries if own is None or own in entries else [*entries, own]
        return [entry for entry in entries if entry.start.request_id not in self._unaccepted]

    async def _charge(self, entry: Spooled) -> None:
        """Have a start charged. Our own becomes a lease that is given back like any other, and waits no more; one that
        has ended meanwhile is given back at once."""
        asked_at = monotonic_seconds()
        lease = await self._broker.report_unleased(entry.lease_pool_id, entry.start)
        own, result = self._own_start, entry.result
        if own is not None and own.start == entry.start:
            # In one step, so that a release meanwhile finds one of them; the request in the queue is cancelled after.
            self._own_start, result = None, own.result
            if lease is not None and not result:
                self._holding = holding.granted(lease, asked_at)
            self._begin_beside(self._cancel())
        if lease is not None and result:
            with contextlib.suppress(Ended):
                await self._broker.release(lease, result)


def _outlook(waiting: Waiting) -> str:
    """Place, time and reason, as far as they are known."""
    parts = [
        f"position {waiting.position}" if waiting.position else "",
        f"about {moments.about(waiting.eta_seconds)}" if waiting.eta_seconds is not None else "",
        waiting.reason or "",
    ]
    return ", ".join(part for part in parts if part) or "no outlook"


def open_session(
    url: str, token: str, wanted: Wanted, patience: Asking, say: Callable[[str], None], *, comes_back: bool = False
) -> Session:
    """For the lease-broker at `url`, with this host's state. Raises Refused for what is no address."""
    state = State(folder(os.environ), url, say)
    rng = Random()  # noqa: S311 (spreads repetitions)
    return Session(Broker(url, token), wanted, patience, state, rng, say, comes_back=comes_back)
