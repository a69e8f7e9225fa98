"""A limit that follows what the cloud bears. Pure.

Additive increase, multiplicative decrease, by what clouds say and nothing else: a refusal of too many calls, the calls
that are left. How long an operation takes is no evidence: a slow installation is no queue.

    throttled            limit × 0.9, at most once per window, once a third of the last leases say so
    still throttled      limit × 0.75, when leases granted after a cut say so as well
    little quota left    no rise within a window
    used, not throttled  + 1 per window, since nobody knows what a limit bears that was not used
    silence              nothing

A bucket refuses a call now and then long before it is used up, which is why a few throttled leases cut nothing. Fewer
calls are refused when starts follow each other evenly, which is why they are paced by how long leases are really held,
once that is known. `make adaptive` measures all of this.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from slipway_lease_broker.domain.pacing import Pacing, default_pacing

CUT: Final = 0.9
CUT_AGAIN: Final = 0.75
AGAIN_WINDOWS: Final = 2  # a cut within so many windows of another one follows up on it
TOLERATED: Final = 0.35  # share of leases that were throttled in some call
LOW_QUOTA: Final = 0.1  # of the most that was seen left
QUOTA_WINDOWS: Final = 12  # for so many windows at least, and twice as many at most, the most is remembered
SMOOTHING: Final = 0.05  # weight of one lease in the share of throttled ones, and in the mean time that they are held
HEADROOM: Final = 1.05  # starts per lease that ends: the limit fills up again, though slowly


class AdaptiveTerms(msgspec.Struct, frozen=True, kw_only=True):
    """Units. `window_seconds` is the pool's hold: as long as what a change admits or keeps out takes effect."""

    floor: int
    ceiling: int
    window_seconds: float


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What one release said of the cloud. `granted_at` is its lease's grant; a `late` one came after the hold had ended
    its lease, and says nothing of how long leases are held."""

    granted_at: datetime
    throttled: bool = False
    quota_remaining: int | None = None
    late: bool = False


class Adaptive(msgspec.Struct, frozen=True, kw_only=True):
    """Of one lease pool. The limit in force is `units`; the rest says when it may change again."""

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


def began(limit_units: int, terms: AdaptiveTerms, now: datetime) -> Adaptive:
    """At the declared limit, within the bounds."""
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
    """The state after `evidence` at `now`, and why the limit changed; "" when it did not.

    `saturated`: more is wanted than the limit has, and it is in use. A `pinned` limit stays, whatever is said.
    """
    for one in evidence:
        state = _noted(state, terms, one, now)
    if pinned:
        return state, ""
    bounded = min(max(state.limit, terms.floor), terms.ceiling)
    if bounded != state.limit:
        why = f"limit {state.units} → {int(bounded)}: the bounds are {terms.floor} to {terms.ceiling}"
        return msgspec.structs.replace(state, limit=bounded, changed_at=now), why
    if any(one.throttled for one in evidence):
        return _cut(state, terms, now)
    if not saturated or state.limit >= terms.ceiling or now < rises_at(state, terms):
        return state, ""
    higher = min(float(terms.ceiling), state.limit + 1)
    why = f"limit {state.units} → {int(higher)}: all in use, and bearable for {terms.window_seconds:g} s"
    return msgspec.structs.replace(state, limit=higher, changed_at=now), why


def rises_at(state: Adaptive, terms: AdaptiveTerms) -> datetime:
    """Before this the limit does not rise: for whoever has to look again by then."""
    return max(state.changed_at, state.quota_low_at or state.changed_at) + timedelta(seconds=terms.window_seconds)


def even_pacing(state: Adaptive, terms: AdaptiveTerms) -> Pacing:
    """Starts about as fast as leases end, never faster than by default."""
    default = default_pacing(state.units, terms.window_seconds)
    if state.held_seconds is None:
        return default
    return Pacing(max(default.interval_seconds, state.held_seconds / (HEADROOM * max(1, state.units))))


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
        f"limit {state.units} → {after.units}: {100 * state.throttled:.0f} % of the last leases were throttled",
    )


def _noted(state: Adaptive, terms: AdaptiveTerms, one: Evidence, now: datetime) -> Adaptive:
    if not one.late:
        held = (now - one.granted_at).total_seconds()
        mean = held if state.held_seconds is None else state.held_seconds + (held - state.held_seconds) * SMOOTHING
        state = msgspec.structs.replace(state, held_seconds=mean)
    if state.cut_at is None or one.granted_at >= state.cut_at:  # those before, the cut has answered
        share = state.throttled + (one.throttled - state.throttled) * SMOOTHING
        state = msgspec.structs.replace(state, throttled=share)
    return state if one.quota_remaining is None else _quota_noted(state, terms, one.quota_remaining, now)


def _quota_noted(state: Adaptive, terms: AdaptiveTerms, remaining: int, now: datetime) -> Adaptive:
    """What counts as little is a share of the most seen lately: of the most ever, one absurd reading would make every
    later one little, and the limit would never rise again."""
    since, most, before = state.quota_since or now, state.quota_most, state.quota_most_before
    period = timedelta(seconds=QUOTA_WINDOWS * terms.window_seconds)
    if now >= since + period:
        since, most, before = now, 0, most if now < since + 2 * period else 0
    most = max(most, remaining)
    low_at = now if remaining < LOW_QUOTA * max(most, before) else state.quota_low_at
    return msgspec.structs.replace(
        state, quota_most=most, quota_most_before=before, quota_since=since, quota_low_at=low_at
    )
