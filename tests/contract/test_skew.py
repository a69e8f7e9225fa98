"""Clients of a later or an earlier version than the lease-broker: fields, values of enumerations and problems that one
side does not know are kept or ignored, except where they would change what a request means.
"""

from typing import Any, TypeVar

import msgspec
import pytest

from slipway_api.http.lease_broker import Lease, LeaseDecision, LeaseRequestStatus, QueuedRequest, ReleasedLease
from slipway_api.http.lease_pools import LeasePool
from slipway_api.http.pages import Items, Page
from slipway_api.problems import PREFIX, Problem
from slipway_common.observability.metrics import counter
from tests.support.lease_broker_http import World

T = TypeVar("T", bound=msgspec.Struct)
BY_NAME = ("operations", "tenants")
NEWER = {"invented": {"by": ["a later version"]}}


def newer(answer: dict[str, Any], kind: type[T], **values: str) -> T:
    """The answer of a later version, with a field of its own everywhere and other `values`, as a client decodes it."""
    read = msgspec.json.decode(msgspec.json.encode(_with_fields(answer) | values), type=kind)
    assert {name: getattr(read, name) for name in values} == values
    return read


def _with_fields(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_fields(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {name: inner if name in BY_NAME else _with_fields(inner) for name, inner in value.items()} | NEWER


async def test_answers_of_a_later_version(world: World) -> None:
    answer = (await world.replica.acquire("held", units=2)).json()
    lease = newer(answer, Lease, state="invented", mode="invented")
    assert lease == msgspec.structs.replace(msgspec.convert(answer, Lease), state="invented", mode="invented")
    queued = (await world.replica.acquire("next")).json()
    assert newer(queued, QueuedRequest, cause="invented").position == 1
    listed: tuple[tuple[str, type[msgspec.Struct]], ...] = (
        ("/leases?mine=true", Page[Lease]),
        ("/lease-pools/sim-a", LeasePool),
        ("/lease-pools/sim-a/requests/next", LeaseRequestStatus),
        (f"/leases/{lease.id}/history", Items[LeaseDecision]),
    )
    for path, kind in listed:
        answered = await world.replica.call("GET", path)
        assert answered.status_code == 200, answered.text
        newer(answered.json(), kind)
    body = {"fencing_token": lease.fencing_token}
    released = (await world.replica.call("POST", f"/leases/{lease.id}/release", body)).json()
    assert newer(released, ReleasedLease).released_units == 2


async def test_problems_of_a_later_version(world: World) -> None:
    answer = (await world.replica.call("POST", "/leases/gone/renew", {"fencing_token": 1})).json()
    problem = newer(answer, Problem, type=f"{PREFIX}invented")
    assert (problem.code, problem.status, len(problem.request_id)) == ("invented", 404, 36)


@pytest.mark.parametrize("what", ["confirm", "renew", "heartbeat", "release"])
async def test_reports_of_a_later_holder(world: World, what: str) -> None:
    """Unknown fields are ignored and counted: the holder must be able to keep its lease, and to give it back."""
    lease = (await world.replica.acquire("held")).json()
    kind = {"confirm": "ConfirmLease", "release": "ReleaseLease"}.get(what, "RenewLease")
    unknown = counter("slipway_unknown_fields_total").labels(kind)
    before = unknown._value.get()
    body = {"fencing_token": lease["fencing_token"], **NEWER}
    answer = await world.replica.call("POST", f"/leases/{lease['lease_id']}/{what}", body)
    assert answer.status_code == 200, answer.text
    assert unknown._value.get() == before + 1


async def test_parameters_of_a_later_caller(world: World) -> None:
    """An ignored one could change what is asked for, too: here a preview would cancel the request."""
    for request_id in ("held", "next"):
        await world.replica.acquire(request_id, units=2)
    before = await world.rows()
    answer = await world.replica.call("DELETE", "/lease-pools/sim-a/requests/next?preview=true")
    refused = "query/preview: unknown parameter; leave it out; known: holder"
    assert (answer.status_code, answer.json()["detail"]) == (422, refused)
    assert await world.rows() == before


async def test_requests_of_a_later_caller(world: World) -> None:
    """An ignored field could change what is asked for. The refusal says which fields this version has."""
    before = await world.rows()
    answer = await world.replica.call("POST", "/lease-pools/sim-a/leases", {"request_id": "x", "unit": 2})
    assert (answer.status_code, answer.json()["detail"]) == (422, "body/unit: unknown field; did you mean units?")
    assert await world.rows() == before
