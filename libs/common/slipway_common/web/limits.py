"""Limits of callers: a bucket of requests for each token, worker, batch of machines that register, and address.

An address counts only requests without a valid credential, since a whole fleet may stand behind one. Probes, renewals
and releases of leases, and reports within a worker's task slots are never refused (docs/guides/secure.md).
"""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from enum import StrEnum
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from math import ceil
from typing import Any, Final
from weakref import WeakValueDictionary

from fastapi import FastAPI, Request
from starlette.datastructures import Headers
from starlette.responses import Response

from slipway_api.problems import TOO_MANY_REQUESTS
from slipway_common.base.buckets import Buckets, Limit
from slipway_common.base.clock import monotonic_seconds
from slipway_common.base.ids import LEASE_TOKEN, WORKER_TOKEN, hash_secret
from slipway_common.observability.metrics import counter
from slipway_common.web.problem import Problem, answer
from slipway_common.web.tokens import secret_of

LIMITED: Final = counter("slipway_requests_limited_total")
TOKEN_BURST_SECONDS: Final = 10
"""Seconds of the rate of a token that may come at once."""


class Counted(StrEnum):
    """Kinds of callers that have buckets, by their label in the metric."""

    TOKEN = "token"  # noqa: S105 # no secret
    WORKER = "worker"
    CLAIMS = "claims"
    BATCH = "batch"
    ADDRESS = "address"


LIMITS: Final = {
    # Heartbeats and polls; an agent sends one after another, every few seconds.
    Counted.WORKER: Limit(per_second=10, burst=60),
    # Claims and ends of tasks, without those within the task slots, of which as many may be in flight.
    Counted.CLAIMS: Limit(per_second=10, burst=1_000),
    # Registrations with the secret of one batch, without the first one of each machine.
    Counted.BATCH: Limit(per_second=10, burst=1_000),
    Counted.ADDRESS: Limit(per_second=5, burst=50),
}
"""All but that of a token, which is a setting."""
AT_A_TIME: Final = 2
"""Requests with one key that have a connection: one that has the lock, and one that is ready to take it."""
WITHOUT_CREDENTIAL: Final = frozenset(
    {
        "no-token",
        "unknown-token",
        "expired-token",
        "foreign-token",
        "unknown-worker",
        "bad-secret",
        "worker-token",
        "lease-token",
    }
)
"""Refusals of requests that count against their address; the last two are of tokens that no service has to look up."""
LOOK_UPS_MAX: Final = 500
"""Tokens that are looked up, or wait for it, above which an address without room has no further ones looked up."""
PROVEN_MAX: Final = 50_000
"""Tokens that are remembered as valid, of which those that were used longest ago are looked up again."""


def too_many(counted: Counted, wait_seconds: float) -> Problem:
    """Refusal of a request for which there is room after so many seconds."""
    LIMITED.labels(counted.value).inc()
    after_seconds = max(1, ceil(wait_seconds))
    detail = f"nothing was changed; repeat the request in {after_seconds} s"
    title = f"Too many requests of this {'worker' if counted is Counted.CLAIMS else counted.value}"
    return Problem(429, TOO_MANY_REQUESTS, title, detail, retry_after_seconds=after_seconds)


class Turns:
    """Turns of callers: of the requests with one key, AT_A_TIME have the connections that they need. The others would
    wait for a lock of the first one, and keep connections from everybody else meanwhile."""

    def __init__(self) -> None:
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    @contextlib.asynccontextmanager
    async def of(self, key: str) -> AsyncIterator[None]:
        """Wait for the turn of a request, and have it."""
        turn = self._turns.setdefault(key, asyncio.Semaphore(AT_A_TIME))
        async with turn:
            yield


class CallerLimits:
    """Buckets of one process. `token_per_second`: requests of one token, of which those of ten seconds may come at
    once."""

    def __init__(
        self,
        token_per_second: float,
        *,
        others: Mapping[Counted, Limit] = LIMITS,
        clock: Callable[[], float] = monotonic_seconds,
    ) -> None:
        token = Limit(token_per_second, max(1, ceil(token_per_second * TOKEN_BURST_SECONDS)))
        self.turns = Turns()
        self._proven: OrderedDict[str, None] = OrderedDict()
        self._look_ups = 0
        self._turn_of_limited = asyncio.Semaphore(1)
        self._clock = clock
        self._buckets = {counted: Buckets(limit) for counted, limit in {**others, Counted.TOKEN: token}.items()}

    def take(self, counted: Counted, key: str) -> None:
        """Count a request. Raises Problem 429."""
        if wait_seconds := self._buckets[counted].take(key, self._clock()):
            raise too_many(counted, wait_seconds)

    def give_back(self, counted: Counted, key: str) -> None:
        """Count a request no longer."""
        self._buckets[counted].give_back(key)

    def wait_seconds(self, counted: Counted, key: str) -> float:
        """Seconds until there is room for a request, which is not counted; 0 if there is."""
        return self._buckets[counted].wait_seconds(key, self._clock())

    @contextlib.asynccontextmanager
    async def looking_up(self, token_sha256: str, address: str) -> AsyncIterator[bool]:
        """Turn in which a token is looked up that only the database knows; it has proven valid if the block raises
        nothing. Gives False for one that has before, which waits for nobody. Others may be made up, and take from their
        address until they are known: of each one AT_A_TIME are looked up, and of all without room one. Raises Problem
        429 if too many wait, for an address without room."""
        if token_sha256 in self._proven:
            yield False
        else:
            key, addresses = network(address), self._buckets[Counted.ADDRESS]
            wait_seconds = addresses.take(key, self._clock())
            if wait_seconds and self._look_ups >= LOOK_UPS_MAX:
                raise too_many(Counted.ADDRESS, wait_seconds)
            self._look_ups += 1
            try:
                async with contextlib.AsyncExitStack() as turn:
                    await turn.enter_async_context(self.turns.of(key))
                    if wait_seconds:
                        await turn.enter_async_context(self._turn_of_limited)
                    yield True
            finally:
                self._look_ups -= 1
                if not wait_seconds:
                    addresses.give_back(key)  # a refusal takes for itself
        self.prove(token_sha256)

    def prove(self, token_sha256: str) -> None:
        """Remember that a token is valid."""
        self._proven[token_sha256] = None
        self._proven.move_to_end(token_sha256)
        if len(self._proven) > PROVEN_MAX:
            self._proven.popitem(last=False)

    def refused(self, problem: Problem, address: str, secret: str = "") -> Problem:
        """The answer to a refused request, which counts against its address if it lacked a valid credential; the secret
        that it was sent with is no longer proven."""
        if problem.slug not in WITHOUT_CREDENTIAL:
            return problem
        self._proven.pop(hash_secret(secret), None)
        try:
            self.take(Counted.ADDRESS, network(address))
        except Problem as limited:
            return limited
        return problem


@lru_cache
def network(address: str) -> str:
    """Key of an address: itself, or the /64 of an IPv6 address, all of which one host may have."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    return f"{int(parsed) >> 64:x}::/64" if isinstance(parsed, IPv6Address) else address


def install(app: FastAPI) -> None:
    """Have the callers of an app limited, by the limits of its state; called after its handlers of problems were
    installed."""
    app.add_middleware(LimitedCallers)

    @app.exception_handler(Problem)
    async def _(request: Request, problem: Problem) -> Response:
        refused = limits_of(request).refused(problem, address_of(request), secret_of(request.headers))
        # A holder that renews or releases learns that its lease has ended, even if its address is limited.
        is_of_lease = f" {LEASE_TOKEN}" in request.headers.get("authorization", "")
        return answer(problem if is_of_lease else refused)


def limits_of(request: Request) -> CallerLimits:
    """Limits of the callers of a service."""
    limits: CallerLimits = request.app.state.limits
    return limits


def address_of(request: Request) -> str:
    """Address of the client; empty if the server does not know it."""
    return request.client.host if request.client is not None else ""


class LimitedCallers:
    """Middleware that refuses requests without room before they are routed: those of a worker, and those of an address
    that lack a valid credential. The token of a worker is none on other routes than its own. Whether it is one there,
    and that of a lease, only the database knows: `CallerLimits.looking_up` limits them."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            try:
                _check(scope)
            except Problem as refusal:
                await answer(refusal)(scope, receive, send)
                return
        await self.app(scope, receive, send)


def _check(scope: Any) -> None:
    """Raise Problem 429 for a request that is refused before it is routed. The app's state has the `open_paths`, which
    need no token, and what the routes of workers count, by the last part of their paths."""
    state, path = scope["app"].state, scope["path"]
    limits: CallerLimits = state.limits
    counted: Counted | None = state.counted_of_workers.get(path.rpartition("/")[2])
    if counted is not None and (secret := secret_of(Headers(scope=scope))).startswith(WORKER_TOKEN):
        if wait_seconds := limits.wait_seconds(counted, hash_secret(secret)):
            raise too_many(counted, wait_seconds)
        return
    address = network((scope.get("client") or ("", 0))[0])
    if (wait_seconds := limits.wait_seconds(Counted.ADDRESS, address)) and not _may_be_valid(state, path, scope):
        raise too_many(Counted.ADDRESS, wait_seconds)


def _may_be_valid(state: Any, path: str, scope: Any) -> bool:
    """True for a request that needs no token, or has a valid one, as far as can be told without the database."""
    secret = secret_of(Headers(scope=scope))
    if not secret:
        return path in state.open_paths
    if secret.startswith((WORKER_TOKEN, LEASE_TOKEN)):
        return secret.startswith(LEASE_TOKEN)
    token = state.tokens.find(secret)
    return token is not None and not token.expired
