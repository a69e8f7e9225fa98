"""A limit that follows what the cloud bears. Pure.

Additive increase, multiplicative decrease, by what clouds say and nothing else: a refusal for too many calls, the
seconds it asks to stay away, the calls it says are left. Durations are no evidence: a slow installation is not a queue.

    throttled            limit × cut, once per window: what was admitted before the cut answers for the limit before it
    retry after n        nothing starts until then
    little quota left    no rise within a window
    silence, saturated   + 1 per window, since nobody knows what a limit bears that was not used
    silence              nothing
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

CUT: Final = 0.8
LOW_QUOTA: Final = 0.25  # of the most that was seen left


class AdaptiveTerms(msgspec.Struct, frozen=True, kw_only=True):
    """Units. `window_seconds` is the pool's hold: as long as what a change admits or keeps out takes effect."""

    floor: int
    ceiling: int
    window_seconds: float


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What one release said of the cloud. `granted_at` is its lease's grant."""

    granted_at: datetime
    throttled: bool = False
    retry_after_seconds: float | None = None
    quota_remaining: int | None = None


class Adaptive(msgspec.Struct, frozen=True, kw_only=True):
    """Of one lease pool. The limit in force is `units`; the rest says when it may change again."""

    limit: float
    changed_at: datetime
    cut_at: datetime | None = None
    blocked_until: datetime | None = None
    quota_most: int = 0  # the largest remaining quota seen
    quota_low_at: datetime | None = None

    @property
    def units(self) -> int:
        return int(self.limit)

    def blocks(self, now: datetime) -> bool:
        return self.blocked_until is not None and now < self.blocked_until


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

    `saturated`: somebody waits for a unit of the limit, or half of it is in use. While `pinned`, the limit stays;
    a cloud's Retry-After is still obeyed.
    """
    state = _noted(state, evidence, now)
    if pinned:
        return state, ""
    bounded = min(max(state.limit, terms.floor), terms.ceiling)
    if bounded != state.limit:
        why = f"limit {state.units} → {int(bounded)}: the bounds are {terms.floor} to {terms.ceiling}"
        return msgspec.structs.replace(state, limit=bounded, changed_at=now), why
    window = timedelta(seconds=terms.window_seconds)
    throttled = [one for one in evidence if one.throttled]
    if throttled:
        # A throttle of what was admitted before the last cut, within a window of it, is one the cut answered already.
        if state.cut_at is not None and now < state.cut_at + window:
            return state, ""
        lower = max(float(terms.floor), float(int(state.limit * CUT)))
        why = f"limit {state.units} → {int(lower)}: {len(throttled)} throttled" if lower < state.limit else ""
        return msgspec.structs.replace(state, limit=lower, changed_at=now, cut_at=now), why
    if not saturated or state.limit >= terms.ceiling or now < rises_at(state, terms):
        return state, ""
    higher = min(float(terms.ceiling), state.limit + 1)
    why = f"limit {state.units} → {int(higher)}: in use, and not throttled for {terms.window_seconds:g} s"
    return msgspec.structs.replace(state, limit=higher, changed_at=now), why


def rises_at(state: Adaptive, terms: AdaptiveTerms) -> datetime:
    """Before this the limit does not rise: for whoever has to look again by then."""
    window = timedelta(seconds=terms.window_seconds)
    return max(state.changed_at, state.quota_low_at or state.changed_at) + window


def _noted(state: Adaptive, evidence: Sequence[Evidence], now: datetime) -> Adaptive:
    """Remember what holds back: the latest end of a Retry-After, and when little quota was left."""
    for one in evidence:
        if one.retry_after_seconds is not None:
            until = now + timedelta(seconds=one.retry_after_seconds)
            if state.blocked_until is None or until > state.blocked_until:
                state = msgspec.structs.replace(state, blocked_until=until)
        if one.quota_remaining is not None:
            most = max(state.quota_most, one.quota_remaining)
            is_low = one.quota_remaining < LOW_QUOTA * most
            state = msgspec.structs.replace(state, quota_most=most, quota_low_at=now if is_low else state.quota_low_at)
    return state
