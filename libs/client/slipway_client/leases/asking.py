"""What to do next to be admitted. Pure: `now` (monotonic seconds) and chance are arguments.

A broker that answers decides alone, however long it takes. Only one that is silent is done without, as the caller has
chosen beforehand: never, at once, or at the pace that was last known to be safe.
"""

from enum import StrEnum
from typing import Final

import msgspec
from msgspec.structs import replace

from slipway_client.leases.terms import Waiting
from slipway_client.worker.core import Silence, longer

POLL_SECONDS: Final = 25.0
"""Of one question: below what proxies and load balancers cut off."""
EARLY_SECONDS: Final = 1.0
SILENT_SECONDS: Final = 10.0
"""A broker that is replaced answers again within this; waiting less would start unleased at every upgrade."""


class FailOpen(StrEnum):
    """What to do while the broker is silent."""

    SAFE, OPTIMISTIC, PESSIMISTIC = "safe", "optimistic", "pessimistic"


class Asking(msgspec.Struct, frozen=True, kw_only=True):
    """A request that is not granted yet. `pause_until`: the broker has asked to be left alone until then. `start_at`:
    when the local pace lets it start unleased, once the broker is silent."""

    begun_at: float
    max_wait_seconds: float
    fail_open: FailOpen = FailOpen.SAFE
    silent_seconds: float = SILENT_SECONDS
    asked: bool = False
    waiting: Waiting | None = None
    pause_until: float = 0.0
    silence: Silence = Silence()
    start_at: float | None = None


class Ask(msgspec.Struct, frozen=True):
    """Ask the broker, which may take so long to answer."""

    wait_seconds: float


class Pace(msgspec.Struct, frozen=True):
    """Find out when the local pace lets this one start."""


class StartUnleased(msgspec.Struct, frozen=True):
    """Start without a lease, and write it down to be charged later."""


class GiveUp(msgspec.Struct, frozen=True):
    """The wait is over; `silent`: because nobody answered."""

    silent: bool


class Rest(msgspec.Struct, frozen=True):
    """Nothing before `until`."""

    until: float


def next_step(asking: Asking, now: float) -> Ask | Pace | StartUnleased | GiveUp | Rest:
    """The one thing to do now. The first question is a short one: it tells place and outlook at once."""
    end = asking.begun_at + asking.max_wait_seconds
    silent_at = _silent_at(asking)
    if silent_at is not None and silent_at <= now:
        if asking.fail_open is FailOpen.OPTIMISTIC:
            return StartUnleased()
        if asking.start_at is None:
            return Pace()
        if asking.start_at <= now and asking.start_at <= end:
            return StartUnleased()
    if asking.asked and end <= now:
        return GiveUp(silent=asking.silence.since is not None)
    pause_until = max(asking.pause_until, asking.silence.retry_at)
    if pause_until > now:
        others = (end if asking.asked else None, silent_at, asking.start_at)
        return Rest(min([pause_until, *(at for at in others if at is not None and at > now)]))
    return Ask(min(POLL_SECONDS, max(0.0, end - now)) if asking.asked and not asking.silence.failures else 0.0)


def _silent_at(asking: Asking) -> float | None:
    """From when on the broker is done without; None: while it answers, and in pessimistic mode."""
    if asking.silence.since is None or asking.fail_open is FailOpen.PESSIMISTIC:
        return None
    return asking.silence.since + (0.0 if asking.fail_open is FailOpen.OPTIMISTIC else asking.silent_seconds)


def waits(asking: Asking, waiting: Waiting, *, asked_at: float, wait_seconds: float, now: float) -> Asking:
    """The broker has put the request into its queue. One that answers sooner than it was allowed to take, as one does
    that is being replaced, is not asked again at once; nor late, since who is not there when its turn comes is passed
    over."""
    early = wait_seconds > 0 and now - asked_at < wait_seconds / 2
    pause_until = now + min(EARLY_SECONDS, waiting.retry_after_seconds) if early else now
    return replace(asking, asked=True, waiting=waiting, pause_until=pause_until, silence=Silence(), start_at=None)


def unheard(asking: Asking, *, asked_at: float, now: float, chance: float) -> Asking:
    """Nobody has answered a question of `asked_at`: the silence began there."""
    silence = longer(asking.silence, now, chance)
    since = asked_at if asking.silence.since is None else asking.silence.since
    return replace(asking, asked=True, silence=replace(silence, since=since))


def paced(asking: Asking, start_at: float) -> Asking:
    """The local pace has a place for it; infinite: none at all."""
    return replace(asking, start_at=start_at)
