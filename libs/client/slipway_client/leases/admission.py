"""Client side of admission: the next step towards a lease. Pure: `now` (monotonic seconds) and chance are arguments.

A broker that answers decides alone, unless the fail-open mode is `always`. While it is unavailable, the mode says when
a caller starts without a lease: never, at once, or at the last pace known to be safe.

In mode `always` a caller starts in the end, with or without a lease: at a random instant within a span of its cause, so
that many callers with one cause make no burst.
"""

from enum import StrEnum
from math import inf
from typing import Final

import msgspec
from msgspec.structs import replace

from slipway_api.http.lease_broker import QueuedRequest
from slipway_client.transport.backoff import Backoff, asked_pause_seconds, next_backoff

POLL_SECONDS: Final = 25.0
"""Long poll of one request: below the idle timeouts of proxies and load balancers."""
EARLY_SECONDS: Final = 1.0
UNAVAILABLE_SECONDS: Final = 10.0
"""A broker that is upgraded answers again within this; a shorter time would start unleased at every upgrade."""


FIRST_ANSWER_SECONDS: Final = 1.0
"""Shortest time for the first answer, also with a maximum wait of 0."""
SPREAD_SECONDS: Final = 30.0
"""Shortest time over which callers start that would otherwise start together."""
SPREAD_SHARE: Final = 0.1  # of the maximum wait, where that is longer


FAIL_OPEN_VARIABLE: Final = "SLIPWAY_LEASE_FAIL_OPEN"


class FailOpen(StrEnum):
    """Behaviour without a lease: `always` whatever the cause, the others while the broker is unavailable."""

    ALWAYS, SAFE, OPTIMISTIC, PESSIMISTIC = "always", "safe", "optimistic", "pessimistic"


class Cause(StrEnum):
    """Cause of a start without a lease, by the instant that it leads to."""

    UNAVAILABLE = "unavailable"  # no answer yet
    FULL = "full"  # or paced: its turn comes as others end or start
    PAUSED = "paused"  # on purpose: the pool is drained, its tenant backs off, its provider sent a Retry-After
    REFUSED = "refused"  # waiting does not help: somebody has to mend a token, an address, a declaration


PAUSES: Final = frozenset({"drained", "limit-zero", "backoff", "blocked", "restored"})
"""Codes of waiting requests that count as PAUSED; all others, also unknown ones, as FULL."""


class Admission(msgspec.Struct, frozen=True, kw_only=True):
    """A request that is not granted yet. `pause_until`: no request to the broker before that. `start_at`: when the
    local pace lets it start unleased, while the broker is unavailable. `chance` in [0, 1) is drawn once for a request;
    it gives `unleased_at`, the instant of a start without a lease by `cause` in mode `always`."""

    begun_at: float
    max_wait_seconds: float
    fail_open: FailOpen = FailOpen.SAFE
    unavailable_seconds: float = UNAVAILABLE_SECONDS
    requested: bool = False
    waiting: QueuedRequest | None = None
    pause_until: float = 0.0
    backoff: Backoff = Backoff()
    start_at: float | None = None
    chance: float = 0.0
    cause: Cause = Cause.UNAVAILABLE
    unleased_at: float | None = None

    @property
    def end(self) -> float:
        """End of the maximum wait."""
        return self.begun_at + self.max_wait_seconds


class Request(msgspec.Struct, frozen=True):
    """Request a lease from the broker, which may hold the answer back for `wait_seconds`."""

    wait_seconds: float


class TakePlace(msgspec.Struct, frozen=True):
    """Take a place in the local pace."""


class StartUnleased(msgspec.Struct, frozen=True):
    """Start without a lease, and record the start."""


class GiveUp(msgspec.Struct, frozen=True):
    """The wait is over; `unavailable`: the broker did not answer."""

    unavailable: bool


class Wait(msgspec.Struct, frozen=True):
    """Do nothing until `until`."""

    until: float


def next_step(admission: Admission, now: float) -> Request | TakePlace | StartUnleased | GiveUp | Wait:
    """Next step. The first request does not wait, so that its answer shows position and ETA at once."""
    until, unavailable_at = decided_at(admission), _unavailable_at(admission)
    if starts_at(admission) <= now:
        return StartUnleased()
    if admission.start_at is None and unavailable_at is not None and unavailable_at <= now:
        return TakePlace()
    if admission.requested and until <= now:
        return GiveUp(unavailable=admission.backoff.since is not None)
    pause_until = max(admission.pause_until, admission.backoff.retry_at)
    if pause_until > now:
        others = (until if admission.requested else None, unavailable_at)
        return Wait(min([pause_until, *(at for at in others if at is not None and at > now)]))
    return Request(
        min(POLL_SECONDS, max(0.0, until - now)) if admission.requested and not admission.backoff.failures else 0.0
    )


def decided_at(admission: Admission) -> float:
    """Time at which the caller goes on without an answer: it starts without a lease, or its wait is over."""
    starting_at = starts_at(admission)
    return starting_at if admission.fail_open is FailOpen.ALWAYS else min(admission.end, starting_at)


def starts_at(admission: Admission) -> float:
    """Time at which the caller starts without a lease, unless an answer changes it; infinite: never."""
    place = inf if admission.start_at is None or admission.start_at > admission.end else admission.start_at
    match admission.fail_open:
        case FailOpen.PESSIMISTIC:
            return inf
        case FailOpen.OPTIMISTIC:
            return inf if admission.backoff.since is None else admission.backoff.since
        case FailOpen.SAFE:
            return place
    return _drawn_at(admission) if place == inf else place


def _drawn_at(admission: Admission) -> float:
    """Instant drawn for the cause; without any answer yet, as for an outage since the beginning."""
    if admission.unleased_at is not None:
        return admission.unleased_at
    return _drawn(span(admission, Cause.UNAVAILABLE, admission.begun_at + FIRST_ANSWER_SECONDS), admission.chance)


def _drawn(between: tuple[float, float], chance: float) -> float:
    begin, end = between
    return begin + chance * (end - begin)


def span(admission: Admission, cause: Cause, since: float) -> tuple[float, float]:
    """Times between which callers with one cause, known `since`, start without a lease.

    A cause that becomes known when most of its span is over, or with a maximum wait that is hardly longer than a first
    answer takes, opens a span of its own: callers whose instant has passed would otherwise start together.
    """
    spread_seconds = max(SPREAD_SECONDS, SPREAD_SHARE * admission.max_wait_seconds)
    match cause:
        case Cause.REFUSED:
            return since, since + SPREAD_SECONDS
        case Cause.PAUSED:
            begin = max(admission.end, since)
            return begin, begin + spread_seconds
    half_seconds = admission.max_wait_seconds / 2
    begin = max(admission.begun_at + half_seconds, since)
    narrowest_seconds = max(half_seconds / 2, FIRST_ANSWER_SECONDS / 4)
    return begin, (admission.end if admission.end - begin > narrowest_seconds else begin + spread_seconds)


def _with_cause(admission: Admission, cause: Cause, now: float) -> Admission:
    """Apply a cause. An instant that the span of the new cause contains stays, so that changes do not move it."""
    if cause is admission.cause:
        return admission
    begin, end = span(admission, cause, now)
    before = _drawn_at(admission)
    unleased_at = before if begin <= before <= end else _drawn((begin, end), admission.chance)
    return replace(admission, cause=cause, unleased_at=unleased_at)


def _unavailable_at(admission: Admission) -> float | None:
    """Time from which on the caller may take a place in the local pace; None while the broker answers, and for a caller
    that takes none."""
    paces = admission.fail_open is FailOpen.SAFE or (
        admission.fail_open is FailOpen.ALWAYS and admission.cause in {Cause.UNAVAILABLE, Cause.FULL}
    )
    since = admission.backoff.since
    return since + admission.unavailable_seconds if paces and since is not None else None


def waits(
    admission: Admission, waiting: QueuedRequest, *, asked_at: float, wait_seconds: float, now: float
) -> Admission:
    """Apply an answer that the request is queued. After an early answer, as from a broker that shuts down, the next
    request waits a little; not for long, since a request without a waiting client is skipped at its turn."""
    early = wait_seconds > 0 and now - asked_at < wait_seconds / 2
    pause_until = now + min(EARLY_SECONDS, waiting.retry_after_seconds) if early else now
    answered = replace(
        admission, requested=True, waiting=waiting, pause_until=pause_until, backoff=Backoff(), start_at=None
    )
    return _with_cause(answered, Cause.PAUSED if waiting.cause in PAUSES else Cause.FULL, now)


def unanswered(
    admission: Admission, *, asked_at: float, now: float, chance: float, misdirected: bool = False
) -> Admission:
    """Apply a request sent at `asked_at` that was not answered: the broker counts as unavailable since then. Until it
    answers again, the cause that it gave last counts. `misdirected`: the address or its certificate is wrong."""
    backoff = next_backoff(admission.backoff, now, chance)
    since = asked_at if admission.backoff.since is None else admission.backoff.since
    unanswered = replace(admission, requested=True, backoff=replace(backoff, since=since))
    return _with_cause(unanswered, Cause.REFUSED, now) if misdirected and admission.waiting is None else unanswered


def limited(admission: Admission, retry_after_seconds: float, *, now: float, chance: float) -> Admission:
    """Apply the answer that this caller sends too many requests. The broker is available, so that it decides as while
    the request waits."""
    answered = replace(admission, requested=True, backoff=Backoff(), start_at=None)
    pause_seconds = max(EARLY_SECONDS, retry_after_seconds)
    paused = replace(answered, pause_until=now + asked_pause_seconds(pause_seconds, chance))
    return paused if admission.waiting is not None else _with_cause(paused, Cause.FULL, now)


def refused(admission: Admission, now: float) -> Admission:
    """Apply a final refusal: no request follows."""
    return replace(_with_cause(admission, Cause.REFUSED, now), requested=True, pause_until=inf, start_at=None)


def paced(admission: Admission, start_at: float) -> Admission:
    """Apply a place in the local pace; infinite: there is none."""
    return replace(admission, start_at=start_at)
