"""Callers of the lease-broker's API: authentication, scopes and the check of the caller's clock."""

from collections.abc import Callable
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Annotated, Final

import msgspec
from fastapi import Depends, Request

from slipway_common.base.clock import utc_now
from slipway_common.base.ids import LEASE_TOKEN, hash_secret
from slipway_common.database.postgres import Database
from slipway_common.declaration.changes import ForeignOwner
from slipway_common.web import access
from slipway_common.web.access import Needs, NeedsCaller
from slipway_common.web.limits import Counted, address_of, limits_of
from slipway_common.web.problem import Problem
from slipway_common.web.runtime import database, reports_database
from slipway_common.web.tokens import Token, secret_of
from slipway_lease_broker.domain.holders import holder_of
from slipway_lease_broker.domain.ledger import Lease
from slipway_lease_broker.http.call import BoundLease, Call
from slipway_lease_broker.store import leases, pools

FUTURE_SECONDS_MAX: Final = 60.0
LEASE_TOKEN_SCHEME: Final = access.bearer_scheme(
    "leaseToken", "Token bound to a lease, for the command that runs under it"
)
CLOCKS: Final[dict[str, Callable[[str], datetime]]] = {
    "Slipway-Sent-At": datetime.fromisoformat,
    "Date": parsedate_to_datetime,
}


class NeedsCall(NeedsCaller):
    """Access by a token with one of these scopes. Gives the authenticated call. Raises Problems: 401, 403 and 429 like
    its base, 422 for a request time in the future, 503 while starting."""

    connections = staticmethod(database)

    async def __call__(self, request: Request) -> Call:
        return called(request, self.caller(request), await self.connections(request))


class NeedsOperator(NeedsCall):
    """Access by a token with a scope, or with that scope for the owner of the lease pool that the path names."""

    async def __call__(self, request: Request) -> Call:
        call = await super().__call__(request)
        if not call.caller.allowed:
            async with call.database.acquire() as db:
                found = await pools.declared(db, [request.path_params["lease_pool_id"]])
            for pool in found:  # the route says that there is none
                call.caller.permit(owner=pool.owner)
        return call


class NeedsHold(NeedsCall):
    """Access of a holder of leases, whose calls have the connections of reports."""

    connections = staticmethod(reports_database)


class NeedsLease(NeedsHold):
    """Access by a token with one of these scopes, or by the token that is bound to the lease of the path. Without a
    lease in the path the route compares the lease. What is `limited` asks for units, for which the lease's owner needs
    a valid token as well. Raises Problem 401 for an unknown token, also of a lease that ended a while ago, and 403 for
    that of another lease, and without such an owner."""

    def __init__(self, *scopes: str, limited: bool = True) -> None:
        super().__init__(*scopes, limited=limited)
        self.schemes = {**self.schemes, **LEASE_TOKEN_SCHEME}
        by_lease: list[dict[str, list[str]]] = [{name: []} for name in LEASE_TOKEN_SCHEME]
        self.security = [*self.security, *by_lease]

    async def __call__(self, request: Request) -> Call:
        secret = secret_of(request.headers)
        if not secret.startswith(LEASE_TOKEN):
            return await super().__call__(request)
        lease_id = secret.removeprefix(LEASE_TOKEN).rpartition(".")[0]
        caller = access.Caller(Token(name="", sha256="", scopes=[]), self.scopes)
        nobody = called(request, caller, await self.connections(request))
        digest = hash_secret(secret)
        async with limits_of(request).looking_up(digest, address_of(request)):
            found, now = await leases.named(nobody.database, [lease_id]), await pools.clock(nobody.database)
            holder = holder_of(found[0], digest, now) if found else None
            if holder is None:
                detail = "the lease has ended, was taken over by another process, or has a newer token"
                raise Problem(401, "unknown-token", "Unknown token of a lease", detail)
        lease = found[0]
        if request.path_params.get("lease_id", lease.id) != lease.id:
            raise other_lease()
        if request.path_params.get("lease_pool_id", lease.lease_pool_id) != lease.lease_pool_id:
            raise other_lease()
        if self.limited:
            limits_of(request).take(Counted.TOKEN, LEASE_TOKEN + lease.id)
            self._check_owner(request, lease)
        scopes = [scope.format(lease_pool_id=lease.lease_pool_id) for scope in self.scopes]
        caller = access.Caller(Token(name=lease.owner, sha256="", scopes=scopes), self.scopes)
        return msgspec.structs.replace(nobody, caller=caller, bound=BoundLease(lease, holder))

    def _check_owner(self, request: Request, lease: Lease) -> None:
        """Raise Problem 403 unless the owner of a lease could still acquire it: who revokes a token expects that
        nothing is acquired in its name."""
        token = request.app.state.tokens.valid(lease.owner)
        if token is None:
            detail = (
                f"none is named {lease.owner}: it was revoked or removed, has expired, or the lease was acquired over "
                "Kafka; the token of the lease only renews and releases it; use a valid token for more"
            )
            raise Problem(403, "owner-without-token", "The owner of the lease has no valid token", detail)
        access.Caller(token, self.scopes).permit(lease_pool_id=lease.lease_pool_id)


def called(request: Request, caller: access.Caller, database: Database) -> Call:
    """The call of a caller. Raises Problem 422 for a request time in the future."""
    timely(request)
    state = request.app.state
    return Call(caller, database, state.admissions, state.group_commit, state.known_leases, state.runtime)


def foreign_owner(error: ForeignOwner) -> Problem:
    """Problem for what another owner has declared."""
    detail = f"{error}; use a token with the scope {OPERATE}, or {OPERATE}:{error.owner or 'OWNER'}"
    return Problem(403, "foreign-owner", "The token is for the things of other owners", detail)


def other_lease() -> Problem:
    """Problem for what the token of a lease does not reach."""
    detail = "it renews and releases its own lease, and repeats the request of it; for all else use another token"
    return Problem(403, "lease-token", "The token of a lease reaches its own lease only", detail)


def timely(request: Request) -> None:
    """Raise a Problem 422 for a request sent in the future by its own headers: such a client would misjudge every
    deadline."""
    for name, read in CLOCKS.items():
        header = request.headers.get(name)
        if header is None:
            continue
        try:
            ahead_seconds = (read(header) - utc_now()).total_seconds()
        except (ValueError, TypeError, OverflowError):
            raise Problem(
                422,
                "invalid-clock",
                "Invalid request time",
                f"{name}: {header[:100]!r} is not a time with a time zone; correct it or omit the header",
            ) from None
        clock_ahead(name, ahead_seconds)


def clock_ahead(name: str, ahead_seconds: float) -> None:
    """Raise a Problem 422 for a time that is too far in the future."""
    if ahead_seconds > FUTURE_SECONDS_MAX:
        raise Problem(
            422,
            "clock-ahead",
            "Request time is in the future",
            f"{name} is {ahead_seconds:.0f} s ahead of the lease-broker (at most {FUTURE_SECONDS_MAX:.0f} s accepted); "
            "correct the clock of the host that sent the request",
            ahead_seconds=round(ahead_seconds, 1),
        )


HOLD: Final = "leases:write:{lease_pool_id}"
Caller = Annotated[Call, Depends(NeedsHold(HOLD))]
Holder = Annotated[Call, Depends(NeedsHold(HOLD, limited=False))]
"""Caller that confirms or gives up what it has: never refused for too many requests."""
HolderOrCaller = Annotated[Call, Depends(NeedsLease(HOLD))]
"""Caller that may hold leases, or the command that runs under this one."""
HolderOrCommand = Annotated[Call, Depends(NeedsLease(HOLD, limited=False))]
"""Holder of a lease, or the command that runs under it: never refused for too many requests."""
OPERATE: Final = "lease-pools:write"
OF_OWNER: Final = f"{OPERATE}:{{owner}}"
Operator = Annotated[Call, Depends(NeedsOperator(OPERATE, OF_OWNER))]
Declarer = Annotated[access.Caller, Depends(NeedsCaller(OPERATE, OF_OWNER))]
"""Caller that declares lease pools, which the route compares with its owners."""
Reader = Annotated[access.Caller, Depends(NeedsCaller("read", HOLD))]
"""Caller that may read what it asks for, or hold leases of its pool, which the route has to look up."""
READ_OR_HOLD: Final = Depends(Needs("read", HOLD))
