"""ASGI application for the APIs of Boskos and of the ci-tools lease proxy: paths, methods, parameters, status codes and
bodies. The effects of the calls are in calls.py.

Checks run in this order: method, caller, parameters, existence of the named slots, their owner, their state. A success
is exactly 200, since clients treat any other status as a failure. No call is answered with 429.
"""

import asyncio
import base64
import binascii
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import asyncpg
import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from slipway_api.http.boskos import Metric, Names, Resource
from slipway_api.limits import NAME
from slipway_common.base.clock import monotonic_seconds
from slipway_common.database import outage
from slipway_common.database.postgres import Database, is_infrastructure
from slipway_common.observability.telemetry import logger
from slipway_common.web.access import allows
from slipway_common.web.runtime import Runtime
from slipway_common.web.tokens import Tokens
from slipway_lease_broker.boskos.calls import Caller, Calls, NotAvailable, Refused, Wanted, leased
from slipway_lease_broker.domain.commands import UNITS_MAX
from slipway_lease_broker.domain.slots import FREE, Slot, go_seconds
from slipway_lease_broker.domain.terms import BrokerTerms

LOG = logger(__name__)

ANONYMOUS: Final = "boskos"  # name of callers without a token in events and history
BODY_BYTES_MAX: Final = 1_000_000
POLL_SECONDS: Final = 1.0  # for a waiting call of the lease proxy
FENCED_BY: Final = "Slipway-Fencing-Token"

NOT_STARTED: Final = "the lease-broker is starting, retry in a moment"
UNAVAILABLE: Final = "the database is unavailable; nothing was changed, retry"
UNSTORABLE: Final = (asyncpg.CharacterNotInRepertoireError, asyncpg.UntranslatableCharacterError)


class BoskosCall(msgspec.Struct, frozen=True):
    """A call in progress. `required` are the values of its route's required parameters, in order; `given` are all
    parameters, one value each."""

    request: Request
    given: Mapping[str, str]
    required: Sequence[str]
    caller: Caller
    database: Database

    async def body(self) -> bytes:
        read = b""
        async for part in self.request.stream():
            read += part
            if len(read) > BODY_BYTES_MAX:
                raise Refused(400, f"the body has more than {BODY_BYTES_MAX} bytes")
        return read


class App:
    """The ASGI application."""

    def __init__(self, calls: Calls, runtime: Runtime, tokens: Tokens, terms: BrokerTerms) -> None:
        self._calls = calls
        self._runtime = runtime
        self._tokens = tokens
        self._terms = terms

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        await (await self._answer(Request(scope, receive)))(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        path = request.url.path
        if path == "/healthz/ready" and (reasons := self._runtime.unready()):
            return text(503, "; ".join(reasons))
        if path not in ROUTES:
            return Response()  # also /healthz
        route = ROUTES[path]
        try:
            if request.method != route.method:
                raise Refused(405, f"{path} supports {route.method} only")
            caller = self._caller(request)
            if (database := self._runtime.reports_database or self._runtime.database) is None:
                raise Refused(500, NOT_STARTED)
            given = {name: request.query_params.getlist(name)[0] for name in request.query_params}
            return await route.handler(self, BoskosCall(request, given, route.values(given), caller, database))
        except Refused as refused:
            answer = text(refused.status, refused.text)
            if refused.status == 405:
                answer.headers["Allow"] = route.method
            return answer
        except UNSTORABLE as error:
            return text(400, f"a text cannot be stored: {error}")
        except Exception as error:
            if is_infrastructure(error):
                outage.warn(LOG, "call failed on infrastructure", error, path=path)
                return text(500, UNAVAILABLE)
            LOG.exception("call failed", path=path)
            return text(500, "internal error, see the lease-broker's log")

    def _caller(self, request: Request) -> Caller:
        """The caller by HTTP Basic (name and secret of a token). Raises Refused for an unknown or missing token."""
        given = request.headers.get("authorization")
        if given is None and self._terms.open_to_all:
            return Caller(ANONYMOUS, lambda _: None, lambda _: None)
        kind, _, credentials = (given or "").partition(" ")
        try:
            name, _, secret = base64.b64decode(credentials, validate=True).decode().partition(":")
        except (binascii.Error, ValueError):
            name = secret = ""
        token = self._tokens.find(secret) if kind.lower() == "basic" and secret else None
        if token is None or token.expired or token.name != name:
            raise Refused(401, "authenticate by HTTP Basic with the name and the secret of a token of the lease-broker")
        scopes = token.scopes

        def check(*wanted: str) -> None:
            if not any(allows(scopes, scope) for scope in wanted):
                raise Refused(403, f"{name} needs the scope {' or '.join(wanted)}")

        return Caller(
            name,
            lambda lease_pool_id: check(f"leases:write:{lease_pool_id}"),
            lambda lease_pool_id: check("read", f"leases:write:{lease_pool_id}"),
        )

    async def _acquire(self, call: BoskosCall) -> Response:
        """Acquire a slot of a type. With a request id, a call that is answered 404 keeps its place in the queue."""
        type_, state, dest, owner = call.required
        request_id = call.given.get("request_id") or None
        wanted = Wanted(
            lease_pool_id=type_,
            state=state,
            dest=dest,
            owner=owner,
            request_id=None if request_id is None else _storable("request_id", request_id),
        )
        answer = await self._calls.acquire(call.database, call.caller, wanted)
        if isinstance(answer, NotAvailable):
            return text(404, answer.reason)
        slot = answer[0]
        token = {} if slot.lease_id is None else {FENCED_BY: str(slot.fencing_token)}
        return json(resource(slot), **token)

    async def _acquire_by_state(self, call: BoskosCall) -> Response:
        """Acquire all of the named slots, separated by commas, or none."""
        state, dest, owner, given = call.required
        names = list(dict.fromkeys(name for name in given.split(",") if name))
        if not names:
            raise Refused(400, "names must be set: one or more names, separated by commas")
        found = await self._calls.acquire_by_state(
            call.database, call.caller, state=state, dest=dest, owner=owner, names=names
        )
        return json([resource(slot) for slot in found])

    async def _release(self, call: BoskosCall) -> Response:
        """Release a slot of the owner."""
        name, dest, owner = call.required
        await self._calls.release(call.database, call.caller, name=name, dest=dest, owner=owner)
        return Response()

    async def _update(self, call: BoskosCall) -> Response:
        """Renew a slot of the owner, and merge user data into it."""
        name, owner, state = call.required
        userdata = _userdata(await call.body())
        await self._calls.update(call.database, call.caller, name=name, owner=owner, state=state, userdata=userdata)
        return Response()

    async def _reset(self, call: BoskosCall) -> Response:
        """Release the slots whose owners have not renewed them for the time `expire`, such as 10m."""
        type_, state, dest, expire = call.required
        try:
            seconds = go_seconds(expire)
        except ValueError as error:
            raise Refused(400, f"expire: {error}") from None
        owners = await self._calls.reset(
            call.database, call.caller, lease_pool_id=type_, state=state, dest=dest, expire_seconds=seconds
        )
        return json(owners)

    async def _metric(self, call: BoskosCall) -> Response:
        """Count the slots of a type by state and owner."""
        (type_,) = call.required
        return json(await self._calls.metric(call.database, call.caller, type_))

    async def _lease_acquire(self, call: BoskosCall) -> Response:
        """Wait until all slots are acquired; 500 on a time-out. Slots whose answer nobody receives are released."""
        (type_,) = call.required
        given = call.given.get("count", "1")
        if not (given.isascii() and given.isdecimal()) or len(given) > 7 or int(given) > UNITS_MAX:
            raise Refused(400, f"count: {given[:50]!r} is not a number from 0 to {UNITS_MAX}")
        if (count := int(given)) == 0:
            return json(Names(names=[]))
        await self._calls.check_count(call.database, call.caller, type_, count)
        wanted = leased(type_, call.caller.name, count)
        try:
            return json(Names(names=[slot.name for slot in await self._wait_for_slots(call, wanted)]))
        except BaseException:
            await asyncio.shield(self._calls.withdraw(call.database, call.caller, wanted))
            raise

    async def _wait_for_slots(self, call: BoskosCall, wanted: Wanted) -> Sequence[Slot]:
        until = monotonic_seconds() + self._terms.proxy_wait_seconds
        while isinstance(answer := await self._calls.acquire(call.database, call.caller, wanted), NotAvailable):
            left_seconds = until - monotonic_seconds()
            if left_seconds <= 0 or await _is_disconnected(call.request, min(POLL_SECONDS, left_seconds)):
                raise Refused(500, f"not acquired within {self._terms.proxy_wait_seconds:g} s: {answer.reason}")
        if await _is_disconnected(call.request, 0.0):
            raise Refused(500, "the caller has disconnected")
        return answer

    async def _lease_release(self, call: BoskosCall) -> Response:
        """Release slots: 204 if all were released, else 500 with the released ones."""
        try:
            names = msgspec.json.decode(await call.body(), type=Names).names
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Refused(400, f'the body is not {{"names": […]}}: {error}') from None
        for name in names:
            _storable("names", name)
        released, failures = [], []
        for name in dict.fromkeys(names):
            try:
                await self._calls.release(call.database, call.caller, name=name, dest=FREE, owner=call.caller.name)
                released.append(name)
            except Refused as refused:
                failures.append(refused.text)
        if failures:
            raise Refused(500, f"{'; '.join(failures)}\nReleased: {', '.join(released) or 'none'}")
        return Response(status_code=204)


class Route(NamedTuple):
    """A route: its method, its handler, its parameters, and the types of its answer and body."""

    method: str
    handler: Callable[[App, BoskosCall], Awaitable[Response]]
    required: Sequence[str] = ()
    optional: Sequence[str] = ()
    answer: Any = None
    body: Any = None

    def values(self, given: Mapping[str, str]) -> list[str]:
        """Values of the required parameters. Raises Refused if one is missing or cannot be stored."""
        if missing := [name for name in self.required if not given.get(name)]:
            raise Refused(400, f"{', '.join(missing)} must be set (required: {', '.join(self.required)})")
        return [_storable(name, given[name]) for name in self.required]


ROUTES: Final = {
    "/acquire": Route("POST", App._acquire, ("type", "state", "dest", "owner"), ("request_id",), answer=Resource),
    "/acquirebystate": Route("POST", App._acquire_by_state, ("state", "dest", "owner", "names"), answer=list[Resource]),
    "/release": Route("POST", App._release, ("name", "dest", "owner")),
    "/update": Route("POST", App._update, ("name", "owner", "state"), body=dict[str, str]),
    "/reset": Route("POST", App._reset, ("type", "state", "dest", "expire"), answer=dict[str, str]),
    "/metric": Route("GET", App._metric, ("type",), answer=Metric),
    "/lease/acquire": Route("POST", App._lease_acquire, ("type",), ("count",), answer=Names),
    "/lease/release": Route("POST", App._lease_release, body=Names),
}
"""Routes by path. Any other path is answered with 200 and nothing, as Boskos does."""


async def _is_disconnected(request: Request, seconds: float) -> bool:
    """True if the caller disconnects within `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            while (await request.receive())["type"] != "http.disconnect":
                pass
    except TimeoutError:
        return False
    return True


def _userdata(body: bytes) -> dict[str, str]:
    """The user data to merge; empty without a body. Raises Refused unless it is a JSON object of strings."""
    try:
        given = msgspec.json.decode(body, type=dict[str, str] | None) if body.strip() else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(400, f"the body is not a JSON object of strings: {error}") from None
    for name, value in (given or {}).items():
        if "\0" in name or "\0" in value:
            raise Refused(400, f"{name[:50]!r}: user data must not contain NUL")
    return given or {}


def _storable(name: str, value: str) -> str:
    for one in value.split(",") if name == "names" else [value]:
        if wrong := NAME.problem(one):
            raise Refused(400, f"{name} {wrong}")
    return value


def resource(slot: Slot) -> Resource:
    """A slot as a Boskos resource."""
    return Resource(
        type=slot.lease_pool_id,
        name=slot.name,
        state=slot.state,
        owner=slot.owner,
        lastupdate=slot.updated_at,
        userdata=slot.userdata,
    )


def json(body: Resource | list[Resource] | Metric | Names | dict[str, str], **headers: str) -> Response:
    return Response(msgspec.json.encode(body), 200, headers, media_type="application/json")


def text(status: int, words: str) -> Response:
    headers = {"WWW-Authenticate": 'Basic realm="slipway"'} if status == 401 else {}
    return Response(words + "\n", status, headers, media_type="text/plain")
