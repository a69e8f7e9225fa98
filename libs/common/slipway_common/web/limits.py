"""Limits of callers: a bucket of requests for each token, worker, batch of machines that register, and address.

An address counts only requests without a valid credential, since a whole fleet may stand behind one. Probes, renewals
and releases of leases, and reports within a worker's task slots are never refused (docs/guides/secure.md).
"""

import asyncio
import contextlib
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
    {"no-token", "unknown-token", "expired-token", "foreign-token", "unknown-worker", "bad-secret"}
)
"""Refusals of requests that count against their address."""


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

    def refused(self, problem: Problem, address: str) -> Problem:
        """The answer to a refused request, which counts against its address if it lacked a valid credential."""
        if problem.slug not in WITHOUT_CREDENTIAL:
            return problem
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
        refused = limits_of(request).refused(problem, request.client.host if request.client is not None else "")
        # A holder that renews or releases learns that its lease has ended, even if its address is limited.
        is_of_lease = f" {LEASE_TOKEN}" in request.headers.get("authorization", "")
        return answer(problem if is_of_lease else refused)


def limits_of(request: Request) -> CallerLimits:
    """Limits of the callers of a service."""
    limits: CallerLimits = request.app.state.limits
    return limits


class LimitedCallers:
    """Middleware that refuses requests without room before they are routed: those of a worker, and those of an address
    that lack a valid credential. Tokens of workers and leases are no such lack, since only the database knows them."""

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
    token = None if secret.startswith((WORKER_TOKEN, LEASE_TOKEN)) else state.tokens.find(secret)
    return secret.startswith((WORKER_TOKEN, LEASE_TOKEN)) or (token is not None and not token.expired)
