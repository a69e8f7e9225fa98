"""The limit in force of a lease pool: which one applies, when it may change by itself, and what its alerts say."""

import sys
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
import pytest

from slipway_api.events.alert import AlertRaised, AlertResolved
from slipway_lease_broker.domain.adaptive import Adaptive, Evidence
from slipway_lease_broker.domain.commands import UNITS_MAX
from slipway_lease_broker.domain.ledger import LeasePool
from slipway_lease_broker.domain.limits import (
    Limit,
    adapted,
    aged,
    allowance,
    highest,
    in_force,
    reconsider_at,
    saturated,
)
from slipway_lease_broker.domain.terms import Bounds, Derived, Policy
from tests.support.lease_rows import NOW, POOL


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def pool(**fields: Any) -> LeasePool:
    return msgspec.structs.replace(POOL, **fields)


BOUNDED: Final = Policy(adaptive=Bounds(floor=2, ceiling=9))
DERIVED: Final = Policy(derived=Derived(per_unit=0.29))
SEVEN: Final = Adaptive(limit=7.6, changed_at=NOW)
REPORTED: Final[dict[str, Any]] = {"policy": DERIVED, "derived_units": 100}
#   fields of a pool of 4 units, its limit in force
IN_FORCE: Final = [
    ({}, Limit(4, "declared", "as declared")),
    ({"policy": BOUNDED}, Limit(4, "declared", "as declared")),
    ({"policy": BOUNDED, "adaptive": SEVEN}, Limit(7, "adaptive", "adaptive")),
    ({"adaptive": SEVEN}, Limit(4, "declared", "as declared")),
    ({"policy": DERIVED}, Limit(4, "declared", "as declared")),
    (REPORTED, Limit(29, "derived", "derived: 0.29 × 100 units")),
    (REPORTED | {"derived_alerted": True}, Limit(29, "derived", "derived: 0.29 × 100 units (stale report)")),
    (REPORTED | {"derived_units": 10**9}, Limit(UNITS_MAX, "derived", "derived: 0.29 × 1000000000 units")),
    ({"derived_units": 100}, Limit(4, "declared", "as declared")),
    (REPORTED | {"pinned_reason": "test"}, Limit(4, "pinned", "pinned: test")),
    ({"pinned_reason": "test", "drained_reason": "move"}, Limit(0, "drained", "drained: move")),
    ({"drained_reason": "move", "archived": True}, Limit(0, "archived", "archived")),
]


@pytest.mark.parametrize(("fields", "limit"), IN_FORCE)
def test_limit_in_force(fields: dict[str, Any], limit: Limit) -> None:
    assert in_force(pool(**fields)) == limit


#   fields of a pool of 4 units, the highest limit possible
HIGHEST: Final = [
    ({}, 4),
    ({"policy": BOUNDED}, 9),
    ({"policy": BOUNDED, "limit_units": 12}, 12),
    ({"policy": DERIVED}, sys.maxsize),
    ({"limit_units": 0}, sys.maxsize),
]


@pytest.mark.parametrize(("fields", "units"), HIGHEST)
def test_highest_limit(fields: dict[str, Any], units: int) -> None:
    """Most that a request may ever get: the declared terms allow it at some time."""
    assert highest(pool(**fields)) == Limit(units, "declared", "as declared")


#   fields of a pool of 4 units, units and waited cost that count already, unleased_max → units and cost left
ALLOWED: Final = [
    ({}, 1, 3, None, 4, 3, 1),
    ({}, 6, 6, None, 4, 0, 0),
    ({}, 1, 3, 2, 2, 1, 1),
    ({"policy": BOUNDED, "adaptive": SEVEN}, 1, 3, None, 7, 6, 4),
    ({"drained_reason": "move"}, 1, 3, None, 4, 3, 1),  # it may hold as much again
]


@pytest.mark.parametrize(("fields", "units", "waited", "unleased_max", "most", "left", "cost"), ALLOWED)
def test_units_that_a_reporter_may_still_count(
    fields: dict[str, Any], units: int, waited: int, unleased_max: int | None, most: int, left: int, cost: int
) -> None:
    found = allowance(pool(**fields), units, waited, unleased_max=unleased_max)
    assert (found.units_max, found.units, found.waited_cost) == (most, left, cost)


#   held, waiting, in use: limit 10, of which 9 count as all
IN_USE: Final = [(9, 2, True), (9, 1, False), (8, 20, False), (10, 1, True), (11, 0, True)]


@pytest.mark.parametrize(("held", "waiting", "expected"), IN_USE)
@pytest.mark.parametrize("fields", [{"limit_units": 10}, {"adaptive": Adaptive(limit=10.9, changed_at=NOW)}])
def test_a_limit_is_saturated_if_more_is_wanted_and_it_is_in_use(
    fields: dict[str, Any], held: int, waiting: int, expected: bool
) -> None:
    assert saturated(pool(**fields, held={"install": held}, waiting_units=waiting)) is expected


BUSY: Final[dict[str, Any]] = {
    "policy": BOUNDED,
    "adaptive": msgspec.structs.replace(SEVEN, changed_at=at(-100)),
    "held": {"install": 7},
    "waiting_units": 1,
}
STALE_AT: Final[dict[str, Any]] = {"policy": DERIVED, "derived_units": 3, "derived_until": at(60)}
#   fields of a pool with a hold of 1200 s, the next time at which its limit may change
RECONSIDERED: Final = [
    (BUSY, 1100),
    (BUSY | {"adaptive": msgspec.structs.replace(SEVEN, changed_at=at(-5000))}, 0),
    (BUSY | {"adaptive": msgspec.structs.replace(SEVEN, limit=9.0, changed_at=NOW), "held": {"install": 9}}, None),
    (BUSY | {"waiting_units": 0}, None),
    (BUSY | {"pinned_reason": "test"}, None),
    (BUSY | {"adaptive": None, "held": {"install": 4}}, None),
    (BUSY | {"policy": Policy()}, None),
    (STALE_AT, 60),
    (STALE_AT | {"derived_alerted": True}, None),
    (STALE_AT | {"derived_until": None}, None),
    (STALE_AT | {"policy": Policy()}, None),
]


@pytest.mark.parametrize(("fields", "seconds"), RECONSIDERED)
def test_when_a_limit_may_change_by_itself(fields: dict[str, Any], seconds: float | None) -> None:
    assert reconsider_at(pool(**fields), NOW) == (None if seconds is None else at(seconds))


THROTTLED: Final = tuple(Evidence(granted_at=NOW, throttled=True) for _ in range(9))


def test_evidence_is_used_once() -> None:
    """It changes an adaptive limit, and is left where nothing adapts."""
    after, reason = adapted(pool(policy=BOUNDED, limit_units=8, evidence=THROTTLED), NOW)
    assert after.adaptive is not None
    assert (after.adaptive.units, after.evidence) == (7, ())
    assert reason.startswith("limit 8 → 7: ")
    again, reason = adapted(after, NOW)
    assert (again, reason) == (after, "")
    first, _ = adapted(pool(policy=BOUNDED), NOW)
    assert first.adaptive == Adaptive(limit=4.0, changed_at=NOW)


def test_a_saturated_limit_rises_and_a_pinned_one_stays() -> None:
    busy = pool(**BUSY | {"adaptive": msgspec.structs.replace(SEVEN, changed_at=at(-1200))})
    after, reason = adapted(busy, NOW)
    assert after.adaptive is not None
    assert (after.adaptive.limit, after.adaptive.changed_at) == (8.6, NOW)
    assert reason
    for idle in ({"waiting_units": 0}, {"pinned_reason": "test"}):
        after, reason = adapted(msgspec.structs.replace(busy, **idle), NOW)
        assert (after.adaptive, reason) == (busy.adaptive, "")


def test_a_limit_that_is_not_adaptive_any_more_leaves_nothing() -> None:
    for fields in ({"adaptive": SEVEN}, {"evidence": THROTTLED}):
        assert adapted(pool(**fields), NOW) == (pool(), "")
    assert adapted(pool(), NOW) == (pool(), "")


def test_a_report_that_becomes_stale_is_announced_once_and_its_renewal_too() -> None:
    fresh = pool(policy=DERIVED, derived_units=3, derived_until=at(60))
    assert aged(fresh, at(59)) == (fresh, None)
    stale, alert = aged(fresh, at(60))
    assert stale == msgspec.structs.replace(fresh, derived_alerted=True)
    assert type(alert) is AlertRaised
    assert (alert.dedup_key, alert.since, alert.severity) == ("lease-broker/lease-pool-units-stale/p", at(60), "notice")
    assert (alert.subject_kind, alert.subject_id) == ("lease-pool", "p")
    assert alert.command == "slipway lease units p 3"
    assert "3 units" in alert.effect
    assert all((alert.summary, alert.doing, alert.cause))
    assert aged(stale, at(99)) == (stale, None)
    renewed = msgspec.structs.replace(stale, derived_until=at(120))
    assert aged(renewed, at(99)) == (
        msgspec.structs.replace(renewed, derived_alerted=False),
        AlertResolved(**msgspec.structs.asdict(msgspec.structs.replace(alert, since=at(120)))),
    )


def test_a_limit_that_is_not_derived_is_never_stale() -> None:
    """Nor is one whose units were reported for good; an alert of it is resolved, without units if none are known."""
    for fields in ({"derived_until": at(-1)}, {"policy": DERIVED, "derived_until": None}):
        assert aged(pool(**fields), NOW) == (pool(**fields), None)
    _, alert = aged(pool(derived_alerted=True), NOW)
    assert type(alert) is AlertResolved
    assert alert.command == "slipway lease units p 0"
