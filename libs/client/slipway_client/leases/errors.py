"""Lease errors and their exit codes, which are stable."""

from typing import TYPE_CHECKING, Final

from slipway_client.transport.failed import Failed

if TYPE_CHECKING:
    from slipway_api.http.lease_broker import QueuedRequest
NOT_ADMITTED: Final = 75  # sysexits' EX_TEMPFAIL: try again later
UNREACHABLE: Final = 69  # EX_UNAVAILABLE
LOST: Final = 76  # EX_PROTOCOL: the lease is no longer held
REFUSED: Final = 77  # EX_NOPERM
WRONG: Final = 78  # EX_CONFIG
NOT_STARTED: Final = 125  # of `run`, as of `timeout` and `docker run`: no other code of its own can be the command's

# Refusals of an unleased start that are final for every caller.
UNCHARGEABLE_SLUGS: Final = frozenset({"invalid-request", "unknown-lease-pool"})
LOST_SLUGS: Final = frozenset({"stale-token", "lease-ended"})


class LeaseError(Failed):
    """Base of lease errors; the text is for people."""


class NotAdmitted(LeaseError):
    """The broker granted nothing within the wait. `waiting` is its last answer."""

    exit_code = NOT_ADMITTED
    waiting: "QueuedRequest | None" = None


class Unreachable(LeaseError):
    """The broker did not answer."""

    exit_code = UNREACHABLE


class NotStarted(LeaseError):
    """`run` did not start its command."""

    exit_code = NOT_STARTED


class LeaseLost(LeaseError):
    """The lease ended before its holder released it: another holder may have its units."""

    exit_code = LOST


class Refused(LeaseError):
    """The broker refused the request permanently. `reason`: the reason for which a lease has ended."""

    def __init__(self, text: str, slug: str = "", status: int = 0, *, reason: str = "") -> None:
        super().__init__(text, slug, status)
        self.reason = reason
        self.exit_code = exit_code(status, slug)


def exit_code(status: int, slug: str) -> int:
    """Exit code for a refusal by HTTP status and slug; status 0: no answer."""
    if slug in LOST_SLUGS:
        return LOST
    if status in {401, 403}:
        return REFUSED
    return UNREACHABLE if not status or status >= 500 else WRONG
