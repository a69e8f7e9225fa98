"""Status code and body of each call of the Boskos API, by a table. A refused call changes nothing."""

import asyncio
import json
from typing import Any, Final

import msgspec
import pytest

from slipway_common.database import postgres
from slipway_lease_broker.boskos.app import ROUTES
from tests.contract.boskos.slot_broker import SlotBroker
from tests.support.harness import PATIENCE_SECONDS
from tests.support.lease_broker import SERVICE

NOW: Final = "2026-01-01T12:00:00Z"  # the clock is stopped
LONG: Final = "x" * 201


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """After the calls of `given`, which succeed, `call` is answered with `status` and, as JSON, `answer`, or a text
    that contains `answer`; None: an empty body."""

    name: str
    given: tuple[str, ...] = ()
    call: str
    body: Any = None
    status: int = 200
    answer: Any = None


def car(number: int, state: str, owner: str = "", **userdata: str) -> dict[str, Any]:
    return {
        "type": "car",
        "name": f"car-{number}",
        "state": state,
        "owner": owner,
        "lastupdate": NOW,
        "userdata": userdata,
    }


def acquire(state: str = "free", dest: str = "leased", owner: str = "ann", type_: str = "car", more: str = "") -> str:
    return f"POST /acquire?type={type_}&state={state}&dest={dest}&owner={owner}{more}"


def by_state(names: str, state: str = "free", dest: str = "leased", owner: str = "ann") -> str:
    return f"POST /acquirebystate?state={state}&dest={dest}&owner={owner}&names={names}"


def release(name: str = "car-1", dest: str = "free", owner: str = "ann") -> str:
    return f"POST /release?name={name}&dest={dest}&owner={owner}"


def update(name: str = "car-1", owner: str = "ann", state: str = "leased") -> str:
    return f"POST /update?name={name}&owner={owner}&state={state}"


def reset(state: str = "leased", dest: str = "dirty", expire: str = "-1s", type_: str = "car") -> str:
    return f"POST /reset?type={type_}&state={state}&dest={dest}&expire={expire}"


HELD: Final = (acquire(),)
UNKNOWN: Final = 'resource type "bus" does not exist'

ACQUIRE: Final = [
    Case(name="free to leased", call=acquire(), answer=car(1, "leased", "ann")),
    Case(name="free to busy", call=acquire(dest="busy"), answer=car(1, "busy", "ann")),
    Case(name="to a state of one's own", call=acquire(dest="polishing"), answer=car(1, "polishing", "ann")),
    Case(name="the next one", given=HELD, call=acquire(owner="ben"), answer=car(2, "leased", "ben")),
    Case(
        name="of another state",
        call=acquire("dirty", "cleaning", "cid", "van"),
        answer=car(1, "cleaning", "cid") | {"type": "van", "name": "van-1"},
    ),
    Case(name="with a request id", call=acquire(more="&request_id=r1"), answer=car(1, "leased", "ann")),
    Case(name="an empty request id is none", call=acquire(more="&request_id="), answer=car(1, "leased", "ann")),
    Case(
        name="none is free",
        given=(acquire(), acquire()),
        call=acquire(),
        status=404,
        answer="no car is free and not owned",
    ),
    Case(name="none in that state", call=acquire("dirty", "cleaning"), status=404, answer="no car is dirty"),
    Case(
        name="the state matches, somebody owns it",
        given=(acquire("dirty", "dirty", "cid", "van"),),
        call=acquire("dirty", "cleaning", "ben", "van"),
        status=404,
        answer="no van is dirty",
    ),
    Case(name="unknown type", call=acquire(type_="bus"), status=404, answer=UNKNOWN),
    Case(
        name="a lease pool without slots is no type",
        call=acquire(type_="bike"),
        status=404,
        answer='resource type "bike" does not exist',
    ),
    Case(name="no type", call="POST /acquire?state=free&dest=leased&owner=ann", status=400, answer="type must be set"),
    Case(name="no state", call="POST /acquire?type=car&dest=leased&owner=ann", status=400, answer="state must be set"),
    Case(name="no dest", call="POST /acquire?type=car&state=free&owner=ann", status=400, answer="dest must be set"),
    Case(name="no owner", call="POST /acquire?type=car&state=free&dest=leased", status=400, answer="owner must be set"),
    Case(name="an empty owner", call=acquire(owner=""), status=400, answer="owner must be set"),
    Case(name="nothing at all", call="POST /acquire", status=400, answer="type, state, dest, owner must be set"),
    Case(name="400 before 404", call=acquire(type_="bus", owner=""), status=400, answer="owner must be set"),
    Case(name="405 before 400", call="GET /acquire", status=405, answer="/acquire supports POST only"),
    Case(
        name="an oversize owner", call=acquire(owner=LONG), status=400, answer="owner has 201 characters; at most 200"
    ),
    Case(
        name="an oversize request id",
        call=acquire(more=f"&request_id={LONG}"),
        status=400,
        answer="request_id has 201 characters; at most 200",
    ),
    Case(name="NUL in a state", call=acquire(dest="a%00b"), status=400, answer="dest has a NUL character"),
]

ACQUIRE_BY_STATE: Final = [
    Case(name="one", call=by_state("car-2"), answer=[car(2, "leased", "ann")]),
    Case(
        name="two, in their order",
        call=by_state("car-2,car-1", dest="busy"),
        answer=[car(2, "busy", "ann"), car(1, "busy", "ann")],
    ),
    Case(
        name="of two types",
        given=(acquire("dirty", "x", "cid", "van"), release("van-1", "free", "cid")),
        call=by_state("car-1,van-1"),
        answer=[car(1, "leased", "ann"), car(1, "leased", "ann") | {"type": "van", "name": "van-1"}],
    ),
    Case(name="a name twice", call=by_state("car-1,car-1,"), answer=[car(1, "leased", "ann")]),
    Case(name="without a lease", call=by_state("car-1", dest="polishing"), answer=[car(1, "polishing", "ann")]),
    Case(name="one of them is owned", given=HELD, call=by_state("car-1,car-2"), status=404, answer="owned: car-1"),
    Case(name="one of them is in another state", call=by_state("car-1,van-1"), status=404, answer="or owned: van-1"),
    Case(
        name="one of them does not exist",
        call=by_state("car-1,car-9"),
        status=404,
        answer="resources not found: car-9; none was acquired",
    ),
    Case(name="no names", call=by_state(""), status=400, answer="names must be set"),
    Case(name="only commas", call=by_state(",,"), status=400, answer="names must be set"),
    Case(
        name="no state",
        call="POST /acquirebystate?dest=leased&owner=ann&names=car-1",
        status=400,
        answer="state must be set",
    ),
    Case(
        name="no dest",
        call="POST /acquirebystate?state=free&owner=ann&names=car-1",
        status=400,
        answer="dest must be set",
    ),
    Case(
        name="no owner",
        call="POST /acquirebystate?state=free&dest=leased&names=car-1",
        status=400,
        answer="owner must be set",
    ),
    Case(name="405", call="PUT /acquirebystate", status=405, answer="POST only"),
]

RELEASE: Final = [
    Case(name="released", given=HELD, call=release()),
    Case(name="into any state", given=HELD, call=release(dest="dirty")),
    Case(
        name="wrong owner",
        given=HELD,
        call=release(owner="ben"),
        status=401,
        answer='resource "car-1" is owned by "ann", not by "ben"',
    ),
    Case(name="free already", given=(acquire(), release()), call=release(), status=401, answer='owned by ""'),
    Case(name="never owned", call=release(), status=401, answer='owned by ""'),
    Case(name="unknown name", call=release("car-9"), status=404, answer='resource "car-9" does not exist'),
    Case(name="404 before 401", call=release("car-9", owner="ben"), status=404, answer="does not exist"),
    Case(name="no name", call="POST /release?dest=free&owner=ann", status=400, answer="name must be set"),
    Case(name="no dest", given=HELD, call="POST /release?name=car-1&owner=ann", status=400, answer="dest must be set"),
    Case(
        name="no owner", given=HELD, call="POST /release?name=car-1&dest=free", status=400, answer="owner must be set"
    ),
    Case(name="400 before 404", call=release("car-9", owner=""), status=400, answer="owner must be set"),
    Case(name="400 before 401", given=HELD, call=release(dest="", owner="ben"), status=400, answer="dest must be set"),
    Case(name="405", given=HELD, call=release().replace("POST", "GET"), status=405, answer="POST only"),
]

UPDATE: Final = [
    Case(name="a sign of life", given=HELD, call=update()),
    Case(name="with user data", given=HELD, call=update(), body={"project": "p-1"}),
    Case(name="an empty object", given=HELD, call=update(), body={}),
    Case(name="null is no user data", given=HELD, call=update(), body=b"null"),
    Case(name="a slot without a lease", given=(acquire(dest="polishing"),), call=update(state="polishing")),
    Case(name="wrong owner", given=HELD, call=update(owner="ben"), status=401, answer='not by "ben"'),
    Case(name="nobody owns it", call=update(state="free"), status=401, answer='owned by ""'),
    Case(name="another state", given=HELD, call=update(state="busy"), status=409, answer="is leased, not busy"),
    Case(name="401 before 409", given=HELD, call=update(owner="ben", state="busy"), status=401, answer="not by"),
    Case(name="unknown name", call=update("car-9"), status=404, answer='resource "car-9" does not exist'),
    Case(name="404 before 401", call=update("car-9", owner="ben"), status=404, answer="does not exist"),
    Case(name="not JSON", given=HELD, call=update(), body=b"{", status=400, answer="not a JSON object of strings"),
    Case(name="not UTF-8", given=HELD, call=update(), body=b'{"a": "\xff"}', status=400, answer="JSON object"),
    Case(name="a number as a value", given=HELD, call=update(), body={"a": 1}, status=400, answer="object of strings"),
    Case(name="a list", given=HELD, call=update(), body=["a"], status=400, answer="object of strings"),
    Case(name="half a character", given=HELD, call=update(), body=b'{"a": "\\ud800"}', status=400, answer="JSON"),
    Case(
        name="NUL in user data", given=HELD, call=update(), body={"a": "b\0"}, status=400, answer="must not contain NUL"
    ),
    Case(
        name="more than a slot keeps",
        given=HELD,
        call=update(),
        body={"a": "x" * 65_536},
        status=400,
        answer="exceed 65536 bytes",
    ),
    Case(
        name="more than is read",
        given=HELD,
        call=update(),
        body=b" " * 1_000_001,
        status=400,
        answer="more than 1000000 bytes",
    ),
    Case(name="bad JSON before 404", call=update("car-9"), body=b"{", status=400, answer="JSON object"),
    Case(name="no name", call="POST /update?owner=ann&state=leased", status=400, answer="name must be set"),
    Case(
        name="no owner", given=HELD, call="POST /update?name=car-1&state=leased", status=400, answer="owner must be set"
    ),
    Case(name="no state", given=HELD, call="POST /update?name=car-1&owner=ann", status=400, answer="state must be set"),
    Case(name="405", call="DELETE /update", status=405, answer="POST only"),
]

RESET: Final = [
    Case(name="owned and old enough", given=HELD, call=reset(), answer={"car-1": "ann"}),
    Case(
        name="all of them",
        given=(acquire(), acquire(owner="ben")),
        call=reset(),
        answer={"car-1": "ann", "car-2": "ben"},
    ),
    Case(
        name="a slot without a lease",
        given=(acquire("dirty", "cleaning", "cid", "van"),),
        call=reset("cleaning", type_="van"),
        answer={"van-1": "cid"},
    ),
    Case(name="not old enough", given=HELD, call=reset(expire="30m"), answer={}),
    Case(name="not older than it says", given=HELD, call=reset(expire="0"), answer={}),
    Case(name="nobody owns it", given=(acquire(dest="x"), release(dest="leased")), call=reset(), answer={}),
    Case(name="another state", given=HELD, call=reset("busy"), answer={}),
    Case(name="unknown type", call=reset(type_="bus"), answer={}),
    Case(name="in several units", given=HELD, call=reset(expire="-1h15m0.5s"), answer={"car-1": "ann"}),
    Case(name="no duration", given=HELD, call=reset(expire="soon"), status=400, answer="'soon' is not a duration"),
    Case(name="a duration without a unit", given=HELD, call=reset(expire="30"), status=400, answer="'30' is not"),
    Case(name="a duration with a blank", given=HELD, call=reset(expire="1h+1m"), status=400, answer="is not a dur"),
    Case(name="a duration too long", given=HELD, call=reset(expire="9999999999h"), status=400, answer="is longer than"),
    Case(name="no type", call="POST /reset?state=leased&dest=dirty&expire=1s", status=400, answer="type must be set"),
    Case(name="no state", call="POST /reset?type=car&dest=dirty&expire=1s", status=400, answer="state must be set"),
    Case(name="no dest", call="POST /reset?type=car&state=leased&expire=1s", status=400, answer="dest must be set"),
    Case(
        name="no expire", call="POST /reset?type=car&state=leased&dest=dirty", status=400, answer="expire must be set"
    ),
    Case(name="405", call="GET /reset", status=405, answer="POST only"),
]

METRIC: Final = [
    Case(
        name="nobody owns any",
        call="GET /metric?type=car",
        answer={"type": "car", "current": {"free": 2}, "owner": {"": 2}},
    ),
    Case(
        name="some are owned",
        given=HELD,
        call="GET /metric?type=car",
        answer={"type": "car", "current": {"free": 1, "leased": 1}, "owner": {"": 1, "ann": 1}},
    ),
    Case(
        name="one owner of two",
        given=(by_state("car-1,car-2"),),
        call="GET /metric?type=car",
        answer={"type": "car", "current": {"leased": 2}, "owner": {"ann": 2}},
    ),
    Case(name="unknown type", call="GET /metric?type=bus", status=404, answer=UNKNOWN),
    Case(name="no type", call="GET /metric", status=400, answer="type must be set"),
    Case(name="405", call="POST /metric?type=car", status=405, answer="/metric supports GET only"),
    Case(name="405 before 400", call="POST /metric", status=405, answer="GET only"),
]

OTHER: Final = [
    Case(name="the root", call="GET /"),
    Case(name="any other path", call="POST /anything?else=1", body={"a": 1}),
    Case(name="a path below", call="POST /acquire/car"),
    Case(name="alive", call="GET /healthz"),
    Case(name="not ready without Kafka", call="GET /healthz/ready", status=503, answer="the broker is unavailable"),
]

LEASE: Final = [
    Case(name="one by default", call="POST /lease/acquire?type=car", answer={"names": ["car-1"]}),
    Case(name="several", call="POST /lease/acquire?type=car&count=2", answer={"names": ["car-1", "car-2"]}),
    Case(name="none", call="POST /lease/acquire?type=car&count=0", answer={"names": []}),
    Case(name="a negative number", call="POST /lease/acquire?type=car&count=-1", status=400, answer="'-1' is not"),
    Case(name="no number", call="POST /lease/acquire?type=car&count=two", status=400, answer="'two' is not a number"),
    Case(name="no type", call="POST /lease/acquire?count=1", status=400, answer="type must be set"),
    Case(name="unknown type", call="POST /lease/acquire?type=bus", status=404, answer=UNKNOWN),
    Case(name="more than there are", call="POST /lease/acquire?type=car&count=3", status=500, answer="only 2 exist"),
    Case(name="405", call="GET /lease/acquire?type=car", status=405, answer="POST only"),
    Case(
        name="released",
        given=("POST /lease/acquire?type=car&count=2",),
        call="POST /lease/release",
        body={"names": ["car-1", "car-2"]},
        status=204,
    ),
    Case(name="nothing to release", call="POST /lease/release", body={"names": []}, status=204),
    Case(
        name="release of what is free",
        call="POST /lease/release",
        body={"names": ["car-1"]},
        status=500,
        answer="Released: none",
    ),
    Case(name="release without a body", call="POST /lease/release", status=400, answer="the body is not"),
    Case(
        name="release of something too deep",
        call="POST /lease/release",
        body=b'{"names": [], "more": ' + b"[" * 3_000 + b"]" * 3_000 + b"}",
        status=400,
        answer="the body is not",
    ),
    Case(
        name="release of no list",
        call="POST /lease/release",
        body={"names": "car-1"},
        status=400,
        answer="the body is not",
    ),
    Case(name="release 405", call="GET /lease/release", status=405, answer="POST only"),
]

TABLES: Final = {
    "acquire": ACQUIRE,
    "acquirebystate": ACQUIRE_BY_STATE,
    "release": RELEASE,
    "update": UPDATE,
    "reset": RESET,
    "metric": METRIC,
    "other": OTHER,
    "lease": LEASE,
}


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=f"{path}: {case.name}") for path, cases in TABLES.items() for case in cases]
)
async def test_call(slot_broker: SlotBroker, case: Case) -> None:
    """Status, body and rows of one case of the table."""
    await slot_broker.done(*case.given)
    before = await slot_broker.rows()
    answer = await slot_broker.call(case.call, case.body)
    assert (answer.status_code, answer.text) == (case.status, answer.text)
    if case.answer is None:
        assert answer.content == b""
    elif case.status == 200:
        assert answer.headers["content-type"] == "application/json"
        assert json.loads(answer.content) == case.answer
        decoded = msgspec.json.decode(answer.content, type=ROUTES[case.call.split()[1].partition("?")[0]].answer)
        assert json.loads(msgspec.json.encode(decoded)) == case.answer  # no field beyond the type's
    else:
        assert answer.headers["content-type"].startswith("text/plain")
        assert case.answer in answer.text
    if case.status >= 400:
        assert await slot_broker.rows() == before
    if case.status == 405:
        assert answer.headers["allow"] == ("GET" if "/metric" in case.call else "POST")


async def test_calls_take_no_connections_of_the_loops(slot_broker: SlotBroker) -> None:
    """They have those of holders of leases, and wait for no loop, as none waits for them."""
    loops = await postgres.connect(slot_broker.url, SERVICE, size=1)
    slot_broker.runtime.database, slot_broker.runtime.reports_database = loops, slot_broker.broker.pool
    try:
        async with loops.acquire(), asyncio.timeout(PATIENCE_SECONDS):
            assert (await slot_broker.call(acquire())).status_code == 200
    finally:
        await loops.close()
