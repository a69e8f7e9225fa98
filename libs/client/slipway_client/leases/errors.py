"""Why there is no lease, or none any more; each with the exit code that the commands end with for ever."""

from typing import TYPE_CHECKING, Final

from slipway_client.http import Failed

if TYPE_CHECKING:
    from slipway_client.leases.terms import Waiting

NOT_ADMITTED: Final = 75  # sysexits' EX_TEMPFAIL: try again later
UNREACHABLE: Final = 69  # EX_UNAVAILABLE
LOST: Final = 76  # EX_PROTOCOL: what was held is not held any more
REFUSED: Final = 77  # EX_NOPERM
WRONG: Final = 78  # EX_CONFIG

# The same start told again, by whomever and whenever, would be refused like this again.
UNCHARGEABLE_SLUGS: Final = frozenset({"invalid-request", "unknown-lease-pool"})
LOST_SLUGS: Final = frozenset({"stale-token", "lease-ended"})


class LeaseError(Failed):
    """Raised instead of returning a lease; the text is for people."""


class NotAdmitted(LeaseError):
    """The broker answered, but granted nothing within the wait. `waiting` is the last that it said."""

    exit_code = NOT_ADMITTED
    waiting: "Waiting | None" = None


class Unreachable(LeaseError):
    """The broker did not answer."""

    exit_code = UNREACHABLE


class LeaseLost(LeaseError):
    """The lease ended before its holder gave it back: somebody else may hold its units."""

    exit_code = LOST


class Refused(LeaseError):
    """The broker said no, for good: the same question would be refused again. `reason`: why a lease has ended."""

    def __init__(self, text: str, slug: str = "", status: int = 0, *, reason: str = "") -> None:
        super().__init__(text, slug, status)
        self.reason = reason
        self.exit_code = exit_code(status, slug)


def exit_code(status: int, slug: str) -> int:
    """Of a refusal by HTTP status and slug; status 0: nobody answered."""
    if slug in LOST_SLUGS:
        return LOST
    if status in {401, 403}:
        return REFUSED
    return UNREACHABLE if not status or status >= 500 else WRONG
