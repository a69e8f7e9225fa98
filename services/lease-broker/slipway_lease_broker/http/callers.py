"""Who calls, and what every call of the lease-broker has to fulfil before anything is read of it."""

from collections.abc import Callable
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Annotated, Final

import msgspec
from fastapi import Depends, Request

from slipway_common.access import Credentials, Token, identify, permit
from slipway_common.clock import utc_now
from slipway_common.postgres import Pool
from slipway_common.problem import Problem
from slipway_common.runtime import Runtime
from slipway_lease_broker.http.desk import Desk

FUTURE_SECONDS_MAX: Final = 60.0
CLOCKS: Final[dict[str, Callable[[str], datetime]]] = {
    "Slipway-Sent-At": datetime.fromisoformat,
    "Date": parsedate_to_datetime,
}


class Call(msgspec.Struct, frozen=True):
    """One request with a known token, and what its route works on."""

    token: Token
    database: Pool
    desk: Desk
    runtime: Runtime

    @property
    def name(self) -> str:
        """The owner of what is acquired."""
        return self.token.name

    @property
    def admin(self) -> bool:
        """Whether it may act on leases of others."""
        return "admin" in self.token.scopes

    def may_write(self, lease_pool_id: str) -> None:
        """A Problem 403 unless it may hold leases of this pool."""
        permit(self.token, f"leases:write:{lease_pool_id}")


async def call(request: Request, credentials: Credentials) -> Call:
    """FastAPI dependency. Raises Problems: 401 without a known token, 422 from the future, 503 while starting."""
    token = identify(request, credentials)
    timely(request)
    state = request.app.state
    if state.runtime.pool is None:
        raise Problem(503, "starting", "The service is starting", "try again in a moment")
    return Call(token, state.runtime.pool, state.desk, state.runtime)


async def operator(call: Annotated[Call, Depends(call)]) -> Call:
    """FastAPI dependency: somebody who may change lease pools."""
    permit(call.token, "lease-pools:write")
    return call


def timely(request: Request) -> None:
    """A Problem 422 for a request that says it was sent in the future: its sender would misjudge every deadline."""
    for name, read in CLOCKS.items():
        said = request.headers.get(name)
        if said is None:
            continue
        try:
            ahead_seconds = (read(said) - utc_now()).total_seconds()
        except (ValueError, TypeError, OverflowError):
            raise Problem(
                422,
                "invalid-clock",
                "The time of the request cannot be read",
                f"{name}: {said[:100]!r} is no time with a zone; correct it or leave the header out",
            ) from None
        clock_ahead(name, ahead_seconds)


def clock_ahead(name: str, ahead_seconds: float) -> None:
    """A Problem 422 for a time that lies too far in the future."""
    if ahead_seconds > FUTURE_SECONDS_MAX:
        raise Problem(
            422,
            "clock-ahead",
            "The request comes from the future",
            f"{name} is {ahead_seconds:.0f} s ahead of this broker, at most {FUTURE_SECONDS_MAX:.0f} are accepted; "
            "set the clock of the host that sent it",
            ahead_seconds=round(ahead_seconds, 1),
        )


Caller = Annotated[Call, Depends(call)]
Operator = Annotated[Call, Depends(operator)]
