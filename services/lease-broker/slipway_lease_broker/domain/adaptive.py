"""Adaptive limits that follow the throttling of the provider. Pure.

Additive increase and multiplicative decrease, driven only by throttle evidence from the provider: refused calls and
remaining quota. The duration of an operation is no evidence, since a slow installation is not a queue.

    throttled            limit × 0.9, at most once per window, when a third of the last leases were throttled
    still throttled      limit × 0.75, when leases granted after a cut were throttled as well
    little quota left    no increase within a window
    used, not throttled  + 1 per window; a limit that is not in use gives no evidence that it could be higher
    no evidence          unchanged

A token bucket refuses single calls long before it is empty, so a few throttled leases do not cut the limit. Evenly
spaced starts are refused less often, so starts are paced by the measured duration of leases once it is known.
The constants were chosen by a benchmark: bench/results/leases-adaptive.md.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from slipway_lease_broker.domain.pacing import Pacing, default_pacing

CUT: Final = 0.9
CUT_AGAIN: Final = 0.75
AGAIN_WINDOWS: Final = 2  # a cut within this many windows after another one is a CUT_AGAIN
TOLERATED: Final = 0.35  # share of leases with a throttled call
LOW_QUOTA: Final = 0.1  # share of the largest remaining quota seen
QUOTA_WINDOWS: Final = 12  # the largest remaining quota is kept for one to two times this many windows
SMOOTHING: Final = 0.05  # weight of one lease in the share of throttled leases and in their mean duration
HEADROOM: Final = 1.05  # starts per ended lease, so that the limit slowly fills up again


class AdaptiveTerms(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds in units. `window_seconds` is the pool's hold: the time until a changed limit has its full effect."""

    floor: int
    ceiling: int
    window_seconds: float


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """Throttle evidence of one release. `granted_at` is the grant of its lease; a `late` release came after the hold
    had ended, and does not count for the duration of leases."""

    granted_at: datetime
    throttled: bool = False
    quota_remaining: int | None = None
    late: bool = False


class Adaptive(msgspec.Struct, frozen=True, kw_only=True):
    """State of an adaptive limit. The limit in force is `units`; the other fields decide when it may change again."""

    limit: float
    changed_at: datetime
    cut_at: datetime | None = None
    throttled: float = 0.0  # share of the leases granted since the last cut
    quota_most: int = 0  # the largest remaining quota seen since `quota_since`
    quota_most_before: int = 0  # and in the QUOTA_WINDOWS before that
    quota_since: datetime | None = None
    quota_low_at: datetime | None = None
    held_seconds: float | None = None  # mean time from grant to release

    @property
    def units(self) -> int:
        return int(self.limit)


def initial_adaptive(limit_units: int, terms: AdaptiveTerms, now: datetime) -> Adaptive:
    """The initial state: the declared limit, within the bounds."""
    return Adaptive(limit=float(min(max(limit_units, terms.floor), terms.ceiling)), changed_at=now)


def adapt(
    state: Adaptive,
    terms: AdaptiveTerms,
    evidence: Sequence[Evidence],
    *,
    saturated: bool,
    now: datetime,
    pinned: bool = False,
) -> tuple[Adaptive, str]:
    """The state after `evidence` at `now`, and the reason of a changed limit; "" if it did not change.

    `saturated`: more units are wanted than the limit has, and it is in use. A `pinned` limit never changes.
    """
    for one in evidence:
        state = _noted(state, terms, one, now)
    if pinned:
        return state, ""
    bounded = min(max(state.limit, terms.floor), terms.ceiling)
    if bounded != state.limit:
        reason = f"limit {state.units} → {int(bounded)}: the bounds are {terms.floor} to {terms.ceiling}"
        return msgspec.structs.replace(state, limit=bounded, changed_at=now), reason
    if any(one.throttled for one in evidence):
        return _cut(state, terms, now)
    if not saturated or state.limit >= terms.ceiling or now < rises_at(state, terms):
        return state, ""
    higher = min(float(terms.ceiling), state.limit + 1)
    reason = f"limit {state.units} → {int(higher)}: fully used without throttling for {terms.window_seconds:g} s"
    return msgspec.structs.replace(state, limit=higher, changed_at=now), reason


def rises_at(state: Adaptive, terms: AdaptiveTerms) -> datetime:
    """The earliest time at which the limit may rise."""
    return max(state.changed_at, state.quota_low_at or state.changed_at) + timedelta(seconds=terms.window_seconds)


def even_pacing(state: Adaptive, terms: AdaptiveTerms, max_interval_seconds: float) -> Pacing:
    """Pacing at about the rate at which leases end, never faster than the default, nor slower than the maximum."""
    default = default_pacing(state.units, terms.window_seconds, max_interval_seconds)
    if state.held_seconds is None:
        return default
    even_seconds = min(state.held_seconds / (HEADROOM * max(1, state.units)), max_interval_seconds)
    return Pacing(max(default.interval_seconds, even_seconds))


def _cut(state: Adaptive, terms: AdaptiveTerms, now: datetime) -> tuple[Adaptive, str]:
    window = timedelta(seconds=terms.window_seconds)
    if state.throttled < TOLERATED or (state.cut_at is not None and now < state.cut_at + window):
        return state, ""
    is_again = state.cut_at is not None and now < state.cut_at + AGAIN_WINDOWS * window
    lower = max(float(terms.floor), state.limit * (CUT_AGAIN if is_again else CUT))
    after = msgspec.structs.replace(state, limit=lower, changed_at=now, cut_at=now, throttled=0.0)
    if after.units == state.units:
        return after, ""
    return (
        after,
        f"limit {state.units} → {after.units}: {100 * state.throttled:.0f} % of recent leases were throttled",
    )


def _noted(state: Adaptive, terms: AdaptiveTerms, one: Evidence, now: datetime) -> Adaptive:
    if not one.late:
        held = (now - one.granted_at).total_seconds()
        mean = held if state.held_seconds is None else state.held_seconds + (held - state.held_seconds) * SMOOTHING
        state = msgspec.structs.replace(state, held_seconds=mean)
    if state.cut_at is None or one.granted_at >= state.cut_at:  # leases granted before the cut are covered by it
        share = state.throttled + (one.throttled - state.throttled) * SMOOTHING
        state = msgspec.structs.replace(state, throttled=share)
    return state if one.quota_remaining is None else _quota_noted(state, terms, one.quota_remaining, now)


def _quota_noted(state: Adaptive, terms: AdaptiveTerms, remaining: int, now: datetime) -> Adaptive:
    """The state after a reading of the remaining quota. Low is a share of the largest recent reading; with the largest
    ever, one absurd reading would make all later ones low, and the limit would never rise again."""
    since, most, before = state.quota_since or now, state.quota_most, state.quota_most_before
    period = timedelta(seconds=QUOTA_WINDOWS * terms.window_seconds)
    if now >= since + period:
        since, most, before = now, 0, most if now < since + 2 * period else 0
    most = max(most, remaining)
    low_at = now if remaining < LOW_QUOTA * max(most, before) else state.quota_low_at
    return msgspec.structs.replace(
        state, quota_most=most, quota_most_before=before, quota_since=since, quota_low_at=low_at
    )
