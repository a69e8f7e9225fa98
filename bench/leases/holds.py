"""`make leases-model`: holders of leases from grant to the end of the hold, on clocks that drift, with late timers.

Client and lease-broker are the product's own code: `slipway_client.leases.holding` decides, the broker's domain grants,
caps and ends. HOLD and TTL are seconds, N holds are tried, from SEED. Exits with 1 if a lease was lost, or renewed more
than three times in a TTL.
"""

import os
import sys
from collections.abc import Mapping
from math import inf, nextafter
from random import Random
from typing import Final

import msgspec

from bench.leases.claims import Verdict
from slipway_api.http.lease_broker import Lease
from slipway_client.leases import holding
from slipway_client.leases.admission import Wait
from slipway_client.leases.holding import LeaseEnd, Renew
from tests.support.held_lease import Ended, HeldLease

HOLD_SECONDS: Final = 1200.0
TTL_SECONDS: Final = 300.0
HOLDS: Final = 10_000
DRIFT_MAX: Final = 0.02


class Circumstances(msgspec.Struct, frozen=True, kw_only=True):
    """One hold. `drift`: by which part the holder's clock is fast. Most seconds of a round trip and of a timer's
    lateness, which are drawn for each. The holder is suspended at `suspended_at` for `suspended_seconds`, in which its
    clock runs on unless it `stops`."""

    ttl_seconds: float
    hold_seconds: float
    pool_hold_seconds: float = 86_400.0
    drift: float = 0.0
    round_trip_seconds: float = 0.0
    lateness_seconds: float = 0.0
    suspended_at: float = inf
    suspended_seconds: float = 0.0
    stops: bool = False


class Held(msgspec.Struct, frozen=True):
    """How a hold ended, and how many renewals the broker received."""

    end: LeaseEnd
    renewals: int


class Holder:
    """A holder between its own clock and the broker's, whose seconds are those of the run."""

    def __init__(self, given: Circumstances, chance: Random) -> None:
        self._given = given
        self._chance = chance
        self.at = 0.0

    def clock(self) -> float:
        """The holder's clock now."""
        given = self._given
        stood = max(0.0, min(self.at - given.suspended_at, given.suspended_seconds)) if given.stops else 0.0
        return (self.at - stood) * (1 + given.drift)

    def sleep_until(self, clock: float) -> None:
        """Wake up once the holder's clock shows `clock`, as late as timers may be."""
        self.pass_seconds((clock - self.clock()) / (1 + self._given.drift))
        while self.clock() < clock:  # by rounding
            self.at = nextafter(self.at, inf)
        self.pass_seconds(self._chance.uniform(0.0, self._given.lateness_seconds))

    def pass_seconds(self, seconds: float) -> None:
        """Let time pass; a holder that is suspended meanwhile goes on when it may."""
        given, before = self._given, self.at
        self.at += seconds
        if before <= given.suspended_at < self.at:
            end = given.suspended_at + given.suspended_seconds
            self.at = self.at + given.suspended_seconds if given.stops else max(self.at, end)

    def trip(self) -> tuple[float, float]:
        """Seconds of one round trip: until the broker has the request, and until the answer is here."""
        seconds = self._chance.uniform(0.0, self._given.round_trip_seconds)
        there = self._chance.uniform(0.0, seconds)
        return there, seconds - there


def hold(given: Circumstances, chance: Random) -> Held:
    """Hold a lease until its end, as a session does: fenced, so that an end of trust is a loss."""
    broker = HeldLease(
        pool_hold_seconds=given.pool_hold_seconds, ttl_seconds=given.ttl_seconds, hold_seconds=given.hold_seconds
    )
    holder, renewals = Holder(given, chance), 0
    _, back = holder.trip()
    state = holding.granted(_read(broker.answer(0.0)), 0.0)
    holder.pass_seconds(back)
    while True:
        match holding.next_step(state, holder.clock(), fenced=True):
            case Wait(until):
                holder.sleep_until(until)
            case Renew():
                renewals += 1
                asked_at, (there, back) = holder.clock(), holder.trip()
                try:
                    answer = broker.renew(holder.at + there)
                except Ended as ended:
                    return Held(holding.ended(ended.reason), renewals)
                holder.pass_seconds(there + back)
                if holder.clock() < state.trusted_until:  # a session waits no longer for it
                    state = holding.granted(_read(answer), asked_at)
            case LeaseEnd() as end:
                return Held(end, renewals)


def _read(body: object) -> Lease:
    return msgspec.convert(body, Lease)


def circumstances(environment: Mapping[str, str], chance: Random) -> Circumstances:
    """One hold of the run: drift up to 2 %, round trips and timers late by up to a quarter of the TTL together, and a
    suspension over the end in one of ten."""
    hold_seconds = float(environment.get("HOLD") or HOLD_SECONDS)
    ttl_seconds = float(environment.get("TTL") or TTL_SECONDS)
    late = ttl_seconds / 4
    is_suspended = chance.random() < 0.1
    return Circumstances(
        ttl_seconds=ttl_seconds,
        hold_seconds=hold_seconds,
        drift=chance.uniform(-DRIFT_MAX, DRIFT_MAX),
        round_trip_seconds=chance.uniform(0.0, late) / 2,
        lateness_seconds=chance.uniform(0.0, late) / 2,
        suspended_at=chance.uniform(0.0, hold_seconds) if is_suspended else inf,
        suspended_seconds=hold_seconds * 2,
    )


def renewals_max(given: Circumstances) -> int:
    """Three in a TTL, by a clock that may be fast."""
    return int(given.hold_seconds * (1 + DRIFT_MAX) * holding.RENEWALS_PER_TTL / given.ttl_seconds)


def main() -> int:
    chance = Random(os.environ.get("SEED") or "1")
    number = int(os.environ.get("N") or HOLDS)
    lost = most = allowed = 0
    for _ in range(number):
        given = circumstances(os.environ, chance)
        held = hold(given, chance)
        lost += held.end.lost
        most, allowed = max(most, held.renewals), renewals_max(given)
    verdicts = [
        Verdict(not lost, f"lost {lost} of {number:,}"),
        Verdict(most <= allowed, f"renewals ≤ {max(most, allowed)}"),
    ]
    print("; ".join(map(str, verdicts)))
    return 0 if all(verdict.holds for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
