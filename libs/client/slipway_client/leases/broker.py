"""HTTP client for the lease-broker. Each call is made once and is idempotent: callers decide about retries."""

from http import HTTPStatus
from math import inf
from typing import Final, TypeVar
from urllib.parse import urlencode

import msgspec
from msgspec.structs import replace

from slipway_api.http import lease_broker as api
from slipway_api.http.lease_pools import LeasePool
from slipway_api.problems import Problem
from slipway_client.leases.errors import LOST_SLUGS, Refused
from slipway_client.leases.terms import Wanted
from slipway_client.transport import patience
from slipway_client.transport.connections import address
from slipway_client.transport.decoding import UNREADABLE
from slipway_client.transport.exchange import OTHER_SERVICE, NoAnswer, authorization, exchange, limited
from slipway_client.transport.failed import SERVICES
from slipway_client.transport.http import ADVICE, path
from slipway_client.transport.patience import Patience
from slipway_common.base.clock import monotonic_seconds
from slipway_common.base.sanitize import printable

FIRST: Final = Patience()
# Retryable statuses. Other statuses below 500 are final.
NOT_NOW: Final = frozenset({408, 425})
# Problems that any other server returns too, such as "Not Found" at a wrong address.
NO_SUCH_ROUTE: Final = frozenset({"", "not-found", "method-not-allowed", "http"})

Answered = TypeVar("Answered", bound=msgspec.Struct)


class LeaseEnded(Exception):
    """The lease has ended for this holder; `reason` is the broker's reason for the end."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Broker:
    """The lease-broker for one caller. Every method raises NoAnswer if there was no answer or a retryable one, and
    Refused for a refusal that is final. The timeout of a call follows `patience`."""

    def __init__(self, url: str, token: str = "", patience: Patience = FIRST) -> None:
        self.url = url.rstrip("/")
        self.authorized = bool(token)
        self._token = token
        self._patience = patience

    async def acquire(
        self, wanted: Wanted, wait_seconds: float, *, within_seconds: float = inf
    ) -> api.Lease | api.QueuedRequest:
        """Request a lease; returns it, or the place in the queue."""
        place = path("lease-pools", wanted.lease_pool_id, "leases")
        return await self._requested(api.Lease, place, wanted.body(wait_seconds), wait_seconds, within_seconds)

    async def acquire_gang(
        self, wanted: api.AcquireGang, wait_seconds: float, *, within_seconds: float = inf
    ) -> list[api.Lease] | api.QueuedRequest:
        """Request the leases of all members; returns them, or the place in their queues."""
        body = replace(wanted, wait_seconds=wait_seconds)
        answer = await self._requested(api.GrantedGang, "/lease-gangs", body, wait_seconds, within_seconds)
        return answer if isinstance(answer, api.QueuedRequest) else answer.leases

    async def cancel(self, wanted: Wanted, *, within_seconds: float = inf) -> None:
        """Cancel a request. A lease that was granted to it is released, unless others hold it."""
        url = path("lease-pools", wanted.lease_pool_id, "requests", wanted.request_id)
        url += f"?{urlencode({'holder': wanted.holder})}" if wanted.holder else ""
        await self._call("DELETE", url, within_seconds=within_seconds)

    async def renew(self, lease: api.Lease) -> api.Lease:
        """Renew a lease. Raises LeaseEnded."""
        return _read(await self._held("renew", lease, api.RenewLease(fencing_token=lease.fencing_token)), api.Lease)

    async def release(
        self, lease: api.Lease, result: str, *, throttled: bool = False, holder: str | None = None
    ) -> None:
        """Release all units of a lease, of several holders for this one; idempotent. Raises LeaseEnded."""
        token = lease.fencing_token
        body = api.ReleaseLease(fencing_token=token, result=result, throttled=throttled, holder=holder)
        await self._held("release", lease, body)

    async def lease_pool(self, lease_pool_id: str) -> LeasePool | None:
        """A lease pool, with its terms; None for an unknown one."""
        try:
            return _read((await self._call("GET", path("lease-pools", lease_pool_id)))[1], LeasePool)
        except Refused as refused:
            if refused.slug == "unknown-lease-pool":
                return None
            raise

    async def report_unleased(self, lease_pool_id: str, start: api.UnleasedStart) -> api.Lease | None:
        """Report an unleased start; returns the lease it was charged as, None if its hold is over."""
        _, answer = await self._call(
            "POST", path("lease-pools", lease_pool_id, "unleased"), api.UnleasedStarts(starts=[start])
        )
        charged = _read(answer, api.ChargedStarts).items
        return charged[0] if charged and charged[0].hold_seconds_left > 0 else None

    async def lease_token(self, lease: api.Lease, holder: str | None = None) -> str:
        """Issue a token that permits a holder no more than to hold this lease. Raises LeaseEnded."""
        body = api.BindLease(fencing_token=lease.fencing_token, holder=holder)
        return _read(await self._held("token", lease, body), api.BoundToken).token

    async def _requested(
        self, kind: type[Answered], path: str, body: object, wait_seconds: float, within_seconds: float
    ) -> Answered | api.QueuedRequest:
        status, answer = await self._call("POST", path, body, wait_seconds=wait_seconds, within_seconds=within_seconds)
        return _read(answer, api.QueuedRequest) if status == 202 else _read(answer, kind)

    async def _held(self, what: str, lease: api.Lease, body: object) -> bytes:
        try:
            return (await self._call("POST", path("leases", lease.lease_id, what), body))[1]
        except Refused as refused:
            if refused.slug in {*LOST_SLUGS, "unknown-lease"}:
                raise LeaseEnded(refused.reason or refused.slug) from refused
            raise

    async def _call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        wait_seconds: float = 0.0,
        within_seconds: float = inf,
    ) -> tuple[int, bytes]:
        """Call the broker, which may hold its answer back for `wait_seconds`. A caller that goes on without an answer
        `within_seconds` still waits as long as for a broker that was never slow."""
        try:
            address(self.url)
        except ValueError as error:  # would look like an outage
            text = f"{self.url} is not a URL such as {SERVICES['lease-broker']}"
            raise Refused(text, "not-an-address", 422) from error
        url = self.url + path
        content = b"" if body is None else msgspec.json.encode(body)
        seconds = min(self._patience.seconds, max(self._patience.least_seconds, within_seconds - wait_seconds))
        begun_at = monotonic_seconds()
        try:
            received = await exchange(
                method, url, content, headers=authorization(self._token), seconds=seconds + wait_seconds
            )
        except NoAnswer:
            if monotonic_seconds() - begun_at >= seconds + wait_seconds:
                self._patience = patience.timed_out(self._patience, seconds)
            raise
        if (took_seconds := monotonic_seconds() - begun_at - wait_seconds) > 0:  # an earlier answer was held back
            self._patience = patience.answered(self._patience, took_seconds)
        status, answered, _ = received
        if status == HTTPStatus.TOO_MANY_REQUESTS:
            raise limited(self.url, received, printable(_text(_problem(status, answered))))
        if status >= 500 or status in NOT_NOW or 300 <= status < 400:
            problem = OTHER_SERVICE if status < 400 else ""
            raise NoAnswer(f"{self.url} answered {status}", problem, received.retry_after_seconds)
        if status >= 400:
            raise _refused(method, url, status, answered)
        if answered and not answered.startswith(b"{"):
            raise NoAnswer(f"{self.url} did not answer with JSON: is it a lease-broker?", OTHER_SERVICE)
        return status, answered


def _read(answer: bytes, kind: type[Answered]) -> Answered:
    try:
        return msgspec.json.decode(answer, type=kind)
    except UNREADABLE as error:
        raise NoAnswer(f"invalid answer, expected a {kind.__name__}: {error}") from error


def _problem(status: int, answer: bytes) -> Problem:
    """The problem that was answered; an empty one if the answer is none, as that of a proxy."""
    try:
        return msgspec.json.decode(answer, type=Problem)
    except UNREADABLE:
        return Problem(type="", title="", status=status, detail="")


def _text(problem: Problem) -> str:
    return ": ".join(filter(None, (problem.title, problem.detail)))


def _refused(method: str, url: str, status: int, answer: bytes) -> Refused:
    problem = _problem(status, answer)
    slug = problem.code
    text = _text(problem)
    if slug in NO_SUCH_ROUTE:
        text = f"{method} {url} answered {status} {text}".strip() + ": is it a lease-broker?"
    lines = [text or f"{method} {url} was refused ({status})", *([ADVICE[slug]] if slug in ADVICE else [])]
    return Refused("\n".join(map(printable, lines)), slug, status, reason=problem.reason or "")
