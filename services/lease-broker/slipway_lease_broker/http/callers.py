"""Callers of the lease-broker's API: authentication, scopes and the check of the caller's clock."""

from collections.abc import Callable
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Annotated, Final

from fastapi import Depends, Request

from slipway_common.base.clock import utc_now
from slipway_common.web import access
from slipway_common.web.access import Credentials, Needs, NeedsCaller
from slipway_common.web.problem import Problem
from slipway_lease_broker.http.call import Call

FUTURE_SECONDS_MAX: Final = 60.0
CLOCKS: Final[dict[str, Callable[[str], datetime]]] = {
    "Slipway-Sent-At": datetime.fromisoformat,
    "Date": parsedate_to_datetime,
}


class NeedsCall(NeedsCaller):
    """Access by a token with one of these scopes. Gives the authenticated call. Raises Problems: 401 and 403 like its
    base, 422 for a request time in the future, 503 while starting."""

    async def __call__(self, request: Request, credentials: Credentials) -> Call:
        caller = self.caller(request, credentials)
        timely(request)
        state = request.app.state
        if state.runtime.database is None:
            raise Problem(503, "starting", "The service is starting", "retry in a moment")
        return Call(
            caller, state.runtime.database, state.admissions, state.group_commit, state.known_leases, state.runtime
        )


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
Caller = Annotated[Call, Depends(NeedsCall(HOLD))]
Operator = Annotated[Call, Depends(NeedsCall("lease-pools:write"))]
Reader = Annotated[access.Caller, Depends(NeedsCaller("read", HOLD))]
"""Caller that may read what it asks for, or hold leases of its pool, which the route has to look up."""
READ_OR_HOLD: Final = Depends(Needs("read", HOLD))
