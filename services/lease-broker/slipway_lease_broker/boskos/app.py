"""The API of Boskos and of ci-tools' lease proxy as an ASGI application: paths, methods, parameters, status codes and
bodies. What a call does stands in calls.py.

Checked in this order: the method, who calls, the parameters, whether what they name exists, whose it is, its state. A
success is exactly 200, since clients take anything else for a failure; nothing is ever answered with 429.
"""

import asyncio
import base64
import binascii
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import asyncpg
import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from slipway_common.access import Tokens, allows
from slipway_common.clock import monotonic_seconds
from slipway_common.postgres import Pool, is_infrastructure
from slipway_common.runtime import Runtime
from slipway_common.telemetry import logger
from slipway_lease_broker.boskos.calls import Caller, Calls, NotNow, Refused, Wanted, leased
from slipway_lease_broker.domain.facts import TEXT_CHARACTERS_MAX, UNITS_MAX
from slipway_lease_broker.domain.slots import FREE, Slot, go_seconds

LOG = logger(__name__)

ANYBODY: Final = "boskos"  # as events and history name callers without a token
BODY_BYTES_MAX: Final = 1_000_000
LOOK_SECONDS: Final = 1.0  # of a lease proxy's caller, who waits on the line
FENCED_BY: Final = "Slipway-Fencing-Token"

NOT_STARTED: Final = "the lease-broker is starting, try again in a moment"
UNAVAILABLE: Final = "the database cannot be reached; nothing was changed, try again"
UNSTORABLE: Final = (asyncpg.CharacterNotInRepertoireError, asyncpg.UntranslatableCharacterError)


class Names(msgspec.Struct):
    """Body of a release over the lease proxy."""

    names: list[str]


class Ask(msgspec.Struct, frozen=True):
    """One call on its way: `given` are its parameters, each once."""

    request: Request
    given: Mapping[str, str]
    caller: Caller
    database: Pool

    def text(self, *names: str) -> list[str]:
        """Required parameters."""
        if missing := [name for name in names if not self.given.get(name)]:
            raise Refused(400, f"{', '.join(missing)} must be set; needed are {', '.join(names)}")
        return [_storable(name, self.given[name]) for name in names]

    async def body(self) -> bytes:
        read = b""
        async for part in self.request.stream():
            read += part
            if len(read) > BODY_BYTES_MAX:
                raise Refused(400, f"the body has more than {BODY_BYTES_MAX} bytes")
        return read


class App:
    """Answers on its own port. `open_to_all` lets callers in who name no token, as Boskos does."""

    def __init__(
        self,
        calls: Calls,
        runtime: Callable[[], Runtime],
        tokens: Tokens,
        *,
        open_to_all: bool,
        proxy_wait_seconds: float,
    ) -> None:
        self._calls = calls
        self._runtime = runtime
        self._tokens = tokens
        self._open_to_all = open_to_all
        self._proxy_wait_seconds = proxy_wait_seconds
        self._routes: dict[str, tuple[str, Callable[[Ask], Awaitable[Response]]]] = {
            "/acquire": ("POST", self._acquire),
            "/acquirebystate": ("POST", self._acquire_by_state),
            "/release": ("POST", self._release),
            "/update": ("POST", self._update),
            "/reset": ("POST", self._reset),
            "/metric": ("GET", self._metric),
            "/lease/acquire": ("POST", self._lease_acquire),
            "/lease/release": ("POST", self._lease_release),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        await (await self._answer(Request(scope, receive)))(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        path = request.url.path
        if path == "/healthz/ready" and (reasons := self._runtime().unready()):
            return text(503, "; ".join(reasons))
        if path not in self._routes:
            return Response()  # also /healthz
        method, call = self._routes[path]
        try:
            if request.method != method:
                raise Refused(405, f"{path} takes {method} only")
            caller = self._caller(request)
            if (database := self._runtime().pool) is None:
                raise Refused(500, NOT_STARTED)
            given = {name: request.query_params.getlist(name)[0] for name in request.query_params}
            return await call(Ask(request, given, caller, database))
        except Refused as refused:
            answer = text(refused.status, refused.text)
            if refused.status == 405:
                answer.headers["Allow"] = method
            return answer
        except UNSTORABLE as error:
            return text(400, f"a text cannot be stored: {error}")
        except Exception as error:
            if is_infrastructure(error):
                LOG.warning("call failed on infrastructure", path=path, error=repr(error))
                return text(500, UNAVAILABLE)
            LOG.exception("call failed", path=path)
            return text(500, "internal error, see the lease-broker's log")

    def _caller(self, request: Request) -> Caller:
        """By HTTP Basic: name and secret of a token. Refused when it is not known, or needed and not given."""
        given = request.headers.get("authorization")
        if given is None and self._open_to_all:
            return Caller(ANYBODY, lambda _: None)
        kind, _, credentials = (given or "").partition(" ")
        try:
            name, _, secret = base64.b64decode(credentials, validate=True).decode().partition(":")
        except (binascii.Error, ValueError):
            name = secret = ""
        token = self._tokens.find(secret) if kind.lower() == "basic" and secret else None
        if token is None or token.name != name:
            raise Refused(401, "name a token of the lease-broker by HTTP Basic: its name and its secret")
        scopes = token.scopes

        def may_write(lease_pool_id: str) -> None:
            if not allows(scopes, f"leases:write:{lease_pool_id}"):
                raise Refused(403, f"{name} needs the scope leases:write:{lease_pool_id}")

        return Caller(name, may_write)

    async def _acquire(self, ask: Ask) -> Response:
        type_, state, dest, owner = ask.text("type", "state", "dest", "owner")
        request_id = ask.given.get("request_id") or None
        wanted = Wanted(
            lease_pool_id=type_,
            state=state,
            dest=dest,
            owner=owner,
            request_id=None if request_id is None else _storable("request_id", request_id),
        )
        answer = await self._calls.acquire(ask.database, ask.caller, wanted)
        if isinstance(answer, NotNow):
            return text(404, answer.reason)
        slot = answer[0]
        token = {} if slot.lease_id is None else {FENCED_BY: str(slot.fencing_token)}
        return json(resource(slot), **token)

    async def _acquire_by_state(self, ask: Ask) -> Response:
        state, dest, owner, given = ask.text("state", "dest", "owner", "names")
        names = list(dict.fromkeys(name for name in given.split(",") if name))
        if not names:
            raise Refused(400, "names must be set: one or several, with commas between")
        found = await self._calls.acquire_by_state(
            ask.database, ask.caller, state=state, dest=dest, owner=owner, names=names
        )
        return json([resource(slot) for slot in found])

    async def _release(self, ask: Ask) -> Response:
        name, dest, owner = ask.text("name", "dest", "owner")
        await self._calls.release(ask.database, ask.caller, name=name, dest=dest, owner=owner)
        return Response()

    async def _update(self, ask: Ask) -> Response:
        name, owner, state = ask.text("name", "owner", "state")
        userdata = _userdata(await ask.body())
        await self._calls.update(ask.database, ask.caller, name=name, owner=owner, state=state, userdata=userdata)
        return Response()

    async def _reset(self, ask: Ask) -> Response:
        type_, state, dest, expire = ask.text("type", "state", "dest", "expire")
        try:
            seconds = go_seconds(expire)
        except ValueError as error:
            raise Refused(400, f"expire: {error}") from None
        owners = await self._calls.reset(
            ask.database, ask.caller, lease_pool_id=type_, state=state, dest=dest, expire_seconds=seconds
        )
        return json(owners)

    async def _metric(self, ask: Ask) -> Response:
        (type_,) = ask.text("type")
        return json(await self._calls.metric(ask.database, ask.caller, type_))

    async def _lease_acquire(self, ask: Ask) -> Response:
        """Waits on the line until all are there; 500 when that took too long. What nobody is told of stays nowhere."""
        (type_,) = ask.text("type")
        given = ask.given.get("count", "1")
        if not (given.isascii() and given.isdecimal()) or len(given) > 7 or int(given) > UNITS_MAX:
            raise Refused(400, f"count: {given[:50]!r} is not a number from 0 to {UNITS_MAX}")
        if (number := int(given)) == 0:
            return json({"names": []})
        await self._calls.check_number(ask.database, ask.caller, type_, number)
        wanted = leased(type_, ask.caller.name, number)
        try:
            return json({"names": [slot.name for slot in await self._on_the_line(ask, wanted)]})
        except BaseException:
            await asyncio.shield(self._calls.withdraw(ask.database, ask.caller, wanted))
            raise

    async def _on_the_line(self, ask: Ask, wanted: Wanted) -> Sequence[Slot]:
        until = monotonic_seconds() + self._proxy_wait_seconds
        while isinstance(answer := await self._calls.acquire(ask.database, ask.caller, wanted), NotNow):
            left_seconds = until - monotonic_seconds()
            if left_seconds <= 0 or await _hung_up(ask.request, min(LOOK_SECONDS, left_seconds)):
                raise Refused(500, f"not acquired within {self._proxy_wait_seconds:g} s: {answer.reason}")
        if await _hung_up(ask.request, 0.0):
            raise Refused(500, "nobody takes the answer")
        return answer

    async def _lease_release(self, ask: Ask) -> Response:
        """204 when all of them were released; else 500, which says which were."""
        try:
            names = msgspec.json.decode(await ask.body(), type=Names).names
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Refused(400, f'the body is not {{"names": […]}}: {error}') from None
        for name in names:
            _storable("names", name)
        released, failures = [], []
        for name in dict.fromkeys(names):
            try:
                await self._calls.release(ask.database, ask.caller, name=name, dest=FREE, owner=ask.caller.name)
                released.append(name)
            except Refused as refused:
                failures.append(refused.text)
        if failures:
            raise Refused(500, f"{'; '.join(failures)}\nReleased: {', '.join(released) or 'none'}")
        return Response(status_code=204)


async def _hung_up(request: Request, seconds: float) -> bool:
    """Whether the caller goes away within so many seconds."""
    try:
        async with asyncio.timeout(seconds):
            while (await request.receive())["type"] != "http.disconnect":
                pass
    except TimeoutError:
        return False
    return True


def _userdata(body: bytes) -> dict[str, str]:
    """User data to merge; none without a body. Refused for anything but texts by name."""
    try:
        given = msgspec.json.decode(body, type=dict[str, str] | None) if body.strip() else None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refused(400, f"the body is not a JSON object of texts: {error}") from None
    for name, value in (given or {}).items():
        if "\0" in name or "\0" in value:
            raise Refused(400, f"{name[:50]!r}: user data hold no NUL")
    return given or {}


def _storable(name: str, value: str) -> str:
    if len(value) > TEXT_CHARACTERS_MAX or "\0" in value:
        # Of names, a list.
        if name == "names" and "\0" not in value and all(len(v) <= TEXT_CHARACTERS_MAX for v in value.split(",")):
            return value
        raise Refused(400, f"{name}: at most {TEXT_CHARACTERS_MAX} characters and no NUL")
    return value


def resource(slot: Slot) -> dict[str, Any]:
    """A slot in the words of Boskos."""
    return {
        "type": slot.lease_pool_id,
        "name": slot.name,
        "state": slot.state,
        "owner": slot.owner,
        "lastupdate": slot.updated_at,
        "userdata": slot.userdata,
    }


def json(body: Mapping[str, Any] | Sequence[Any], **headers: str) -> Response:
    return Response(msgspec.json.encode(body), 200, headers, media_type="application/json")


def text(status: int, words: str) -> Response:
    headers = {"WWW-Authenticate": 'Basic realm="slipway"'} if status == 401 else {}
    return Response(words + "\n", status, headers, media_type="text/plain")
