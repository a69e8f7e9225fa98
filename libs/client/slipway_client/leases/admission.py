"""Client side of admission: the next step towards a lease. Pure: `now` (monotonic seconds) and chance are arguments.

A broker that answers decides alone, however long it takes. Only while it is unavailable may a caller start without a
lease, as its fail-open mode says: never, at once, or at the last pace known to be safe.
"""

from enum import StrEnum
from typing import Final

import msgspec
from msgspec.structs import replace

from slipway_client.leases.terms import Waiting
from slipway_client.transport.backoff import Backoff, next_backoff

POLL_SECONDS: Final = 25.0
"""Long poll of one request: below the idle timeouts of proxies and load balancers."""
EARLY_SECONDS: Final = 1.0
UNAVAILABLE_SECONDS: Final = 10.0
"""A broker that is upgraded answers again within this; a shorter time would start unleased at every upgrade."""


class FailOpen(StrEnum):
    """Behaviour while the broker is unavailable."""

    SAFE, OPTIMISTIC, PESSIMISTIC = "safe", "optimistic", "pessimistic"


class Admission(msgspec.Struct, frozen=True, kw_only=True):
    """A request that is not granted yet. `pause_until`: no request to the broker before that. `start_at`: when the
    local pace lets it start unleased, while the broker is unavailable."""

    begun_at: float
    max_wait_seconds: float
    fail_open: FailOpen = FailOpen.SAFE
    unavailable_seconds: float = UNAVAILABLE_SECONDS
    requested: bool = False
    waiting: Waiting | None = None
    pause_until: float = 0.0
    backoff: Backoff = Backoff()
    start_at: float | None = None


class Request(msgspec.Struct, frozen=True):
    """Request a lease from the broker, which may hold the answer back for `wait_seconds`."""

    wait_seconds: float


class TakePlace(msgspec.Struct, frozen=True):
    """Take a place in the local pace."""


class StartUnleased(msgspec.Struct, frozen=True):
    """Start without a lease, and spool the start to be charged later."""


class GiveUp(msgspec.Struct, frozen=True):
    """The wait is over; `unavailable`: the broker did not answer."""

    unavailable: bool


class Wait(msgspec.Struct, frozen=True):
    """Do nothing until `until`."""

    until: float


def next_step(admission: Admission, now: float) -> Request | TakePlace | StartUnleased | GiveUp | Wait:
    """Next step. The first request does not wait, so that its answer shows position and ETA at once."""
    end = admission.begun_at + admission.max_wait_seconds
    unavailable_at = _unavailable_at(admission)
    if unavailable_at is not None and unavailable_at <= now:
        if admission.fail_open is FailOpen.OPTIMISTIC:
            return StartUnleased()
        if admission.start_at is None:
            return TakePlace()
        if admission.start_at <= now and admission.start_at <= end:
            return StartUnleased()
    if admission.requested and end <= now:
        return GiveUp(unavailable=admission.backoff.since is not None)
    pause_until = max(admission.pause_until, admission.backoff.retry_at)
    if pause_until > now:
        others = (end if admission.requested else None, unavailable_at, admission.start_at)
        return Wait(min([pause_until, *(at for at in others if at is not None and at > now)]))
    return Request(
        min(POLL_SECONDS, max(0.0, end - now)) if admission.requested and not admission.backoff.failures else 0.0
    )


def _unavailable_at(admission: Admission) -> float | None:
    """Time from which on the caller may start without the broker; None while it answers, and in pessimistic mode."""
    if admission.backoff.since is None or admission.fail_open is FailOpen.PESSIMISTIC:
        return None
    return admission.backoff.since + (
        0.0 if admission.fail_open is FailOpen.OPTIMISTIC else admission.unavailable_seconds
    )


def waits(admission: Admission, waiting: Waiting, *, asked_at: float, wait_seconds: float, now: float) -> Admission:
    """Apply an answer that the request is queued. After an early answer, as from a broker that shuts down, the next
    request waits a little; not for long, since a request without a waiting client is skipped at its turn."""
    early = wait_seconds > 0 and now - asked_at < wait_seconds / 2
    pause_until = now + min(EARLY_SECONDS, waiting.retry_after_seconds) if early else now
    return replace(
        admission, requested=True, waiting=waiting, pause_until=pause_until, backoff=Backoff(), start_at=None
    )


def unanswered(admission: Admission, *, asked_at: float, now: float, chance: float) -> Admission:
    """Apply a request sent at `asked_at` that was not answered: the broker counts as unavailable since then."""
    backoff = next_backoff(admission.backoff, now, chance)
    since = asked_at if admission.backoff.since is None else admission.backoff.since
    return replace(admission, requested=True, backoff=replace(backoff, since=since))


def paced(admission: Admission, start_at: float) -> Admission:
    """Apply a place in the local pace; infinite: there is none."""
    return replace(admission, start_at=start_at)
