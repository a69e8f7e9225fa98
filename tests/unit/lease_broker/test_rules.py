"""Rules of admission: what can never start, and the settings that rules read."""

from datetime import timedelta
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from slipway_api.events.lease import LeaseRequested
from slipway_common.declaration import models
from slipway_lease_broker.domain.admit import Admission
from slipway_lease_broker.domain.declaration import Declared
from slipway_lease_broker.domain.ledger import LeasePool, Request, new_request
from slipway_lease_broker.domain.limits import Limit, highest, in_force
from slipway_lease_broker.domain.pacing import Pacing
from slipway_lease_broker.domain.refusals import too_many_units
from slipway_lease_broker.domain.rules import (
    Blocks,
    Cause,
    Conditions,
    Verdict,
    never_starts,
    restore_of_database,
    stopped,
    units_of_limit,
)
from slipway_lease_broker.domain.sender import Sender
from slipway_lease_broker.domain.situation import Situation
from slipway_lease_broker.domain.terms import Backoff, Bounds, Derived, Mode, Operation, Policy
from slipway_lease_broker.http.declared import terms
from tests.support.lease_rows import NOW, POOL, REQUEST

OPERATIONS = st.builds(
    Operation,
    weight=st.integers(0, 3),
    reserved_units=st.integers(0, 2),
    max_wait_seconds=st.sampled_from([None, None, 60.0]),
)
POOLS = st.builds(
    lambda policy, limit, drained: msgspec.structs.replace(
        POOL, policy=policy, limit_units=limit, drained_reason=drained
    ),
    st.builds(
        Policy,
        mode=st.sampled_from([Mode.ENFORCE, Mode.ENFORCE, Mode.ADVISORY, Mode.SHADOW]),
        pacing=st.just("off"),
        operations=st.fixed_dictionaries({"install": OPERATIONS, "destroy": OPERATIONS}),
    ),
    st.integers(0, 6),
    st.sampled_from([None, None, None, "maintenance"]),
)


def starts(pool: LeasePool, request: Request) -> bool:
    """True if the request starts alone, with nothing held, after a day."""
    situation = Situation(waiters=[request], per_queue=2)
    return bool(Admission(pool, in_force(pool), situation, NOW + timedelta(days=1)).run().grants)


@given(POOLS, st.integers(1, 8), st.booleans())
def test_what_never_starts(pool: LeasePool, units: int, whole: bool) -> None:
    """Exactly what neither time nor released units let start; a request for the most units possible starts."""
    request = msgspec.structs.replace(REQUEST, requested_units=units, waiting_units=units, whole=whole)
    never = never_starts(pool, in_force(pool), request)
    assert starts(pool, request) is (never is None)
    if never is not None:
        assert never.reason
        assert never.units_max is not None
        assert never.units_max < units
        if never.units_max:
            assert starts(pool, msgspec.structs.replace(request, waiting_units=never.units_max))


#   limit, weight, units, whole → cause, what it blocks, most units
NEVER: Final[list[tuple[int, int, int, bool, tuple[Cause, Blocks, int] | None]]] = [
    (5, 1, 5, True, None),
    (5, 1, 6, False, None),  # it starts in parts
    (5, 1, 6, True, (Cause.TOO_MANY_UNITS, Blocks.NOTHING, 5)),
    (5, 5, 2, True, (Cause.TOO_MANY_UNITS, Blocks.NOTHING, 1)),
    (5, 6, 1, False, (Cause.TOO_MANY_UNITS, Blocks.QUEUE, 0)),  # so do all of its operation
    (0, 1, 1, False, (Cause.LIMIT_ZERO, Blocks.QUEUE, 0)),
]


@pytest.mark.parametrize(("limit", "weight", "units", "whole", "expected"), NEVER)
def test_more_than_the_limit_says_what_could_start(
    limit: int, weight: int, units: int, whole: bool, expected: tuple[Cause, Blocks, int] | None
) -> None:
    """And blocks those behind it only if none of them can."""
    pool = msgspec.structs.replace(POOL, policy=Policy(operations={"install": Operation(weight=weight)}))
    request = msgspec.structs.replace(REQUEST, requested_units=units, waiting_units=units, whole=whole)
    found = units_of_limit(Conditions(pool, Limit(limit, "declared", "as declared"), NOW), request)
    assert (found and (found.cause, found.blocks, found.units_max)) == expected


def test_a_pool_that_an_operator_or_a_restore_stops_says_so() -> None:
    """Nothing starts, in the one until the operator lets it, in the other until a known time."""
    until = NOW + timedelta(seconds=9)
    limit = Limit(0, "drained", "drained: maintenance")
    assert stopped(limit) == Verdict(0, limit.reason, Cause.DRAINED, Blocks.QUEUE, units_max=0)
    given = Conditions(msgspec.structs.replace(POOL, incomplete_until=until), limit, NOW)
    reason = "the database was restored; leases that it lacks have to end first"
    assert restore_of_database(given, REQUEST) == Verdict(0, reason, Cause.RESTORED, Blocks.ALL, until)
    assert restore_of_database(msgspec.structs.replace(given, now=until), REQUEST) is None


HEAVY, OTHERS = {"install": Operation(weight=3)}, {"destroy": Operation(reserved_units=3)}
TOO_MANY = [
    (10, {}, 11, "11 units, more than the limit of 10 allows", "at most 10 units"),
    (10, HEAVY, 5, "5 units of weight 3, more than the limit of 10 allows", "at most 3 units"),
    (
        10,
        OTHERS,
        9,
        "9 units, more than the limit of 10 allows with 3 reserved for other operations",
        "at most 7 units",
    ),
    (
        6,
        HEAVY | OTHERS,
        2,
        "2 units of weight 3, more than the limit of 6 allows with 3 reserved for other operations",
        "at most 1 unit",
    ),
    (3, OTHERS, 1, "1 unit, more than the limit of 3 allows with 3 reserved for other operations", None),
    (2, HEAVY, 1, "1 unit of weight 3, more than the limit of 2 allows", None),
]


@pytest.mark.parametrize(("limit", "operations", "units", "too_many", "most"), TOO_MANY)
def test_too_many_units(
    limit: int, operations: dict[str, Operation], units: int, too_many: str, most: str | None
) -> None:
    """The reason names what makes the units too many, and the refusal the most that are possible, if any are."""
    pool = msgspec.structs.replace(POOL, limit_units=limit, policy=Policy(operations=operations))
    command = LeaseRequested(
        lease_pool_id="p", request_id="r", units=units, tenant="t", operation="install", whole=True
    )
    never = never_starts(pool, highest(pool), new_request(command, NOW, sender=Sender()))
    assert never is not None
    assert never.reason == f"requests {too_many}: as declared"
    fewer = f"request {most} of operation install, or " if most else ""
    detail = f"lease pool p: {never.reason}; {fewer}change the terms of the pool"
    assert too_many_units(command, never).detail == detail


def test_a_policy_has_every_setting_of_a_declared_pool() -> None:
    """Or else a column of its own, by the same name and with the same default: any other setting would be lost."""
    columns = {"id", "limit"} | set(Declared.__struct_fields__) - {
        "limit_units",
        "policy",
        "owner",
        "revision",
        "archived",
    }
    assert columns.isdisjoint(Policy.__struct_fields__)
    assert set(models.LeasePool.model_fields) == columns | set(Policy.__struct_fields__)
    assert terms(models.LeasePool.model_validate({"id": "p", "limit": 1})).policy == Policy()


@pytest.mark.parametrize(
    ("declared", "part"),
    [
        (models.LeaseOperation, Operation),
        (models.LeasePacing, Pacing),
        (models.LeaseBackoff, Backoff),
        (models.LeaseAdaptive, Bounds),
        (models.LeaseDerived, Derived),
    ],
)
def test_parts_of_a_policy_are_declared_alike(declared: type[BaseModel], part: type[msgspec.Struct]) -> None:
    def defaults(fields: Any) -> dict[str, Any]:
        return {name: default for name, required, default in fields if not required}

    kept = [(field.name, field.required, field.default) for field in msgspec.structs.fields(part)]
    given = [(name, field.is_required(), field.default) for name, field in declared.model_fields.items()]
    assert [name for name, _, _ in kept] == [name for name, _, _ in given]
    assert defaults(kept) == defaults(given)
