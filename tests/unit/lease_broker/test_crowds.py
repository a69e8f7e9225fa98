"""Rounds over many requests of which none may start: their cost, in steps instead of time, and that they end."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

import msgspec
import pytest

from slipway_lease_broker.domain.admit import Admission
from slipway_lease_broker.domain.decide import decide
from slipway_lease_broker.domain.ledger import Group, LeasePool, Request, Tenant
from slipway_lease_broker.domain.limits import in_force
from slipway_lease_broker.domain.situation import Situation
from slipway_lease_broker.domain.terms import Operation, Policy
from tests.support import lease_rows
from tests.support.lease_broker import TERMS
from tests.support.lease_rows import NOW, REQUEST
from tests.support.steps import steps

LATER: Final = NOW + timedelta(seconds=60)
FREE: Final = {"free": Operation(weight=0)}
POOL: Final = msgspec.structs.replace(lease_rows.POOL, policy=Policy(pacing="off", operations=FREE))


class Compared(Group, frozen=True, kw_only=True):
    """A group whose comparisons are steps."""

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return hash(self.name)


def waiters(number: int, **fields: Any) -> list[Request]:
    """One request of each of so many tenants."""
    fields = {"since": NOW} | fields
    return [
        msgspec.structs.replace(REQUEST, id=f"r{n}", tenant=f"t{n}", place=n, priority=n % 3, **fields)
        for n in range(number)
    ]


def backing_off(requests: Sequence[Request]) -> Situation:
    tenants = [Tenant(lease_pool_id="p", tenant=one.tenant, failures=1, backoff_until=LATER) for one in requests]
    return Situation(waiters=requests, per_queue=2, tenants=tenants)


def in_groups(requests: Sequence[Request]) -> Situation:
    """Each is the next member of a group of its own, of which one has just started."""
    groups = [
        Compared(lease_pool_id="p", name=one.tenant, size=2, spread_seconds=600, first_at=NOW, last_start_at=NOW)
        for one in requests
    ]
    members = [msgspec.structs.replace(one, group_name=one.tenant) for one in requests]
    return Situation(waiters=members, per_queue=2, groups=groups)


CROWDS: Final[dict[str, Any]] = {
    "backoff of tenants": lambda number: (POOL, backing_off(waiters(number))),
    "spread of groups": lambda number: (POOL, in_groups(waiters(number))),
    "later members, weight 0": lambda number: (
        POOL,
        Situation(waiters=waiters(number, operation="free", since=LATER), per_queue=2),
    ),
    "too many units": lambda number: (
        POOL,
        Situation(waiters=waiters(number, waiting_units=9, requested_units=9, whole=True), per_queue=2),
    ),
    "drained": lambda number: (
        msgspec.structs.replace(POOL, drained_reason="maintenance"),
        Situation(waiters=waiters(number), per_queue=2),
    ),
    "gangs": lambda number: (
        msgspec.structs.replace(POOL, limit_units=number),
        Situation(
            waiters=[msgspec.structs.replace(one, gang_id=one.id) for one in waiters(number)],
            per_queue=2,
        ),
    ),
}


@pytest.mark.parametrize("kind", CROWDS)
def test_a_decision_costs_as_much_for_each_queue_as_for_a_few(kind: str) -> None:
    """Twice as many queues, of which none may start, take little more than twice as many steps: four times before."""

    def decided(number: int) -> int:
        pool, situation = CROWDS[kind](number)
        new_id = iter(()).__next__  # nothing is granted
        return steps(lambda: decide(pool, situation, NOW, new_id=new_id, terms=TERMS))

    assert decided(400) < 2.5 * decided(200)


def test_all_of_a_crowd_are_considered() -> None:
    """Each has its reason, and the pool wakes when the first of them may start."""
    admission = Admission(POOL, in_force(POOL), backing_off(waiters(20)), NOW).run()
    assert admission.waiting == {f"r{n}": f"tenant t{n} backs off after 1 failure" for n in range(20)}
    assert set(admission.wake_times) == {LATER}


def test_a_later_member_of_weight_0_ends_no_round() -> None:
    """After a restore of the database nothing starts, and a decision that waited for it in a loop would never end."""
    restored: LeasePool = msgspec.structs.replace(POOL, incomplete_until=LATER)
    first, second = waiters(2, operation="free")
    later = msgspec.structs.replace(first, since=LATER)
    admission = Admission(restored, in_force(restored), Situation(waiters=[later, second], per_queue=2), NOW).run()
    assert [grant.request.id for grant in admission.grants] == ["r1"]
    assert "restored" in admission.waiting["r0"]
