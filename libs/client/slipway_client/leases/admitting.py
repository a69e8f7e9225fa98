"""Wait of one request for admission. Performs the decisions of admission.py."""

import asyncio
from abc import ABC, abstractmethod
from math import isfinite
from random import Random
from typing import Final, Generic, TypeVar

import msgspec
from msgspec.structs import replace

from slipway_api.http.lease_broker import AcquireGang, QueuedRequest, UnleasedStart
from slipway_client.leases import admission
from slipway_client.leases.admission import Admission, Cause, FailOpen
from slipway_client.leases.errors import NotAdmitted, Refused, Unreachable
from slipway_client.leases.host import Host
from slipway_client.leases.state import Spooled
from slipway_client.transport.exchange import MISDIRECTED, NoAnswer
from slipway_client.view import moments
from slipway_common.base.clock import monotonic_seconds, utc_now
from slipway_common.base.text import listed

UNEXPECTED: Final = "unexpected"
"""Cause of a start without a lease after an error that this program does not expect."""
# Hold assumed if neither the caller nor the broker has given one: the declaration's default.
HOLD_SECONDS: Final = 1200.0

Granted = TypeVar("Granted")


class Unleased(msgspec.Struct, frozen=True):
    """A start without a lease, as the fail-open mode allows. `cause`: code of the reason, as of a waiting request or a
    refusal; `unavailable` without an answer."""

    cause: str


class Admitting(ABC, Generic[Granted]):
    """Wait of one request, until it is granted, given up, or its caller starts without. `gang` has what it requests; a
    single lease is a gang of one. A subclass sends the request, and records a start without a lease."""

    def __init__(self, host: Host, gang: AcquireGang, admission: Admission) -> None:
        self._host = host
        self._gang = gang
        # Of the request id, so that a repeated request starts at the same part of its span.
        self._admission = replace(admission, chance=Random(gang.request_id).random())  # noqa: S311
        self._problem = ""  # of the refusal, or of an address that is wrong
        self._asked_at = 0.0  # time of the newest request

    async def acquire(self) -> Granted | Unleased:
        """Wait until granted, or until a start without is allowed. Raises NotAdmitted, Unreachable and Refused; in mode
        `always` nothing, since the caller starts whatever fails."""
        while True:
            try:
                return await self._admitted()
            except Exception as error:
                if not self._always_starts:
                    raise
                if self._problem == UNEXPECTED:
                    return Unleased(UNEXPECTED)
                self._admission, self._problem = admission.refused(self._admission, monotonic_seconds()), UNEXPECTED
                self._host.log(f"{type(error).__name__}: {error}. {self._when()}")

    # What a subclass does

    @abstractmethod
    async def _send(self, wait_seconds: float, until: float) -> Granted | QueuedRequest:
        """Send the request, without retries. The caller goes on without an answer at `until`."""

    @abstractmethod
    async def _start_unleased(self) -> Granted | Unleased:
        """Record the start without a lease by its cause."""

    async def _on_granted(self, granted: Granted, wait_seconds: float) -> Granted:
        """Apply the grant of a request whose answer the broker may have held back for so long."""
        return granted

    async def _on_given_up(self) -> None:
        """Apply the end of the wait."""
        return

    # The wait

    @property
    def _always_starts(self) -> bool:
        return self._admission.fail_open is FailOpen.ALWAYS

    async def _admitted(self) -> Granted | Unleased:
        while True:
            match admission.next_step(self._admission, monotonic_seconds()):
                case admission.Request(wait_seconds):
                    if (granted := await self._ask(wait_seconds)) is not None:
                        return granted
                case admission.Wait(until):
                    await asyncio.sleep(max(0.0, until - monotonic_seconds()))
                case admission.TakePlace():
                    self._pace()
                case admission.StartUnleased():
                    return await self._start_unleased()
                case admission.GiveUp(unavailable):
                    await self._on_given_up()
                    raise self._wait_over(unavailable=unavailable)

    async def _ask(self, wait_seconds: float) -> Granted | None:
        """Request once; returns what was granted, if anything was. A caller that has to start does not wait for an
        answer."""
        self._asked_at, until = monotonic_seconds(), admission.decided_at(self._admission)
        try:
            async with asyncio.timeout(until - self._asked_at if self._always_starts else None):
                answer = await self._send(wait_seconds, until)
        except TimeoutError:
            return None
        except NoAnswer as error:
            self._unanswered(error)
            return None
        except Refused as refused:
            self._refused(refused)
            return None
        if not isinstance(answer, QueuedRequest):
            return await self._on_granted(answer, wait_seconds)
        before = self._admission.waiting
        if before is None or before.position != answer.position:
            self._host.log(f"waiting for a lease of {self._pools}: {outlook(answer)}")
        now = monotonic_seconds()
        self._admission = admission.waits(
            self._admission, answer, asked_at=self._asked_at, wait_seconds=wait_seconds, now=now
        )
        return None

    def _unanswered(self, error: NoAnswer) -> None:
        now, before = monotonic_seconds(), self._admission
        if error.is_limited:
            self._admission = admission.limited(
                before, error.retry_after_seconds, now=now, chance=self._host.rng.random()
            )
            self._host.log(f"waiting, since the lease-broker takes no more requests now: {error}")
            return
        self._admission = admission.unanswered(
            before,
            asked_at=self._asked_at,
            now=now,
            chance=self._host.rng.random(),
            misdirected=error.problem in MISDIRECTED,
        )
        if before.backoff.since is None:
            self._host.log(f"lease-broker unavailable, retrying: {error}")
        if self._admission.cause is Cause.REFUSED and before.cause is not Cause.REFUSED:
            self._problem = error.problem
            if self._always_starts:
                self._host.log(f"Check the address {self._host.broker.url} and its certificate. {self._when()}")

    def _refused(self, refused: Refused) -> None:
        """Apply a final refusal. Raises it, unless the fail-open mode is `always`."""
        if not self._always_starts:
            raise refused
        self._admission = admission.refused(self._admission, monotonic_seconds())
        self._problem = refused.slug or "refused"
        self._host.log(f"{refused}\n{self._when()}")

    def _pace(self) -> None:
        seconds = max(
            self._host.state.slot(
                member.pool, member.units, member.hold_seconds or HOLD_SECONDS, self._host.rng.random()
            )
            for member in self._gang.members
        )
        self._admission = admission.paced(self._admission, monotonic_seconds() + seconds)
        if isfinite(admission.starts_at(self._admission)):
            left_seconds = admission.starts_at(self._admission) - monotonic_seconds()
            self._host.log(
                f"lease-broker unavailable; starting without a lease in {moments.about(left_seconds)} unless it answers"
            )
        else:
            why = (
                f"its next start at the last known pace is in {moments.about(seconds)}, after the maximum wait"
                if isfinite(seconds)
                else "this pool granted none when last seen"
            )
            self._host.log(f"lease-broker unavailable; not starting unless it answers, since {why}")

    @property
    def _is_refused(self) -> bool:
        """True if no lease pool may be charged for a start without a lease."""
        return self._admission.cause is Cause.REFUSED

    def _unleased(self) -> Unleased:
        """The start without a lease, as its caller sees it."""
        waiting = self._admission.waiting
        if self._is_refused:
            return Unleased(self._problem)
        return Unleased("unavailable" if waiting is None else waiting.cause)

    def _spooled(self) -> list[Spooled]:
        """The start without a lease in each pool. It has the id of its request: the broker may have received that, and
        even granted a lease, although no answer has arrived."""
        return [
            Spooled(
                lease_pool_id=member.pool,
                start=UnleasedStart(
                    request_id=self._gang.request_id,
                    operation=self._gang.operation,
                    units=member.units,
                    started_at=utc_now(),
                    hold_seconds=member.hold_seconds,
                    cause="unavailable" if self._admission.waiting is None else "max_wait",
                ),
                refused=self._problem if self._is_refused else "",
            )
            for member in self._gang.members
        ]

    @property
    def _pools(self) -> str:
        return listed([member.pool for member in self._gang.members])

    def _when(self) -> str:
        seconds = admission.starts_at(self._admission) - monotonic_seconds()
        return f"Starting without a lease in {moments.about(max(0.0, seconds))}."

    def _wait_over(self, *, unavailable: bool) -> Exception:
        waited, waiting = moments.about(self._admission.max_wait_seconds), self._admission.waiting
        if unavailable:
            return Unreachable(
                f"the lease-broker at {self._host.broker.url} has not answered within {waited}\n"
                "Check that it is running, and its address in --lease-broker or SLIPWAY_LEASE_BROKER_URL."
            )
        error = NotAdmitted(f"no lease of {self._pools} within {waited}{f'; {outlook(waiting)}' if waiting else ''}")
        error.waiting = waiting
        return error


def outlook(waiting: QueuedRequest) -> str:
    """Position, ETA and reason, as far as they are known."""
    parts = [
        f"position {waiting.position}",
        f"about {moments.about(waiting.eta_seconds)}" if waiting.eta_seconds is not None else "",
        waiting.reason,
    ]
    return ", ".join(part for part in parts if part)
