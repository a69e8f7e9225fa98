"""Errors of the HTTP APIs (RFC 9457)."""

from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from slipway_api.http.declaration import Change

PREFIX: Final = "urn:slipway:problem:"
TOO_MANY_REQUESTS: Final = "too-many-requests"
"""Code of the refusal of a caller that sends too many requests: it is repeated after `retry_after_seconds`."""


class InvalidPart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A part of a request or of a declaration that is not valid."""

    reason: str
    where: str = ""
    """Place in the request: `query` or `body` and the names of fields, with slashes between them."""
    document: str = ""
    """Owner of the declaration that has the part."""
    path: str = ""
    """Place in the declaration."""


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An error (RFC 9457). A refused request has changed nothing. Fields after `request_id` depend on `type`."""

    type: str
    """`urn:slipway:problem:` and the code of the problem, which is stable. Clients meet codes that are new to them."""
    title: str
    status: int
    """Status of the answer."""
    detail: str
    """Text for people: the part that is wrong, and the remedy."""
    request_id: str = ""
    """Id of this occurrence, by which the log of the service names it."""
    errors: list[InvalidPart] | UnsetType = UNSET
    """Parts of the request or the declaration that are not valid; of a request the first one alone."""
    needed: str | UnsetType = UNSET
    """Scope that the token lacks."""
    reason: str | UnsetType = UNSET
    """Reason why a lease has ended."""
    reasons: list[str] | UnsetType = UNSET
    """Categories of reasons why signals are refused."""
    units_max: int | UnsetType = UNSET
    """Most units that a request can ever get."""
    holder: str | UnsetType = UNSET
    """Process that uses the id of the request."""
    since: str | UnsetType = UNSET
    """Time since which it does."""
    holders: list[str] | UnsetType = UNSET
    """Processes that hold the lease, one of which has to be named."""
    fields: list[str] | UnsetType = UNSET
    """Fields in which a request differs from the earlier one with its id."""
    names: list[str] | UnsetType = UNSET
    """Names that the request gives to the wrong place."""
    ids: list[str] | UnsetType = UNSET
    """Ids that the request gives twice."""
    ahead_seconds: float | UnsetType = UNSET
    """Seconds by which the clock of the caller is ahead."""
    revision: int | UnsetType = UNSET
    """Revision that the object has."""
    kind: str | UnsetType = UNSET
    """Kind of the object that another owner has declared."""
    id: str | UnsetType = UNSET
    """Id of the object."""
    owner: str | UnsetType = UNSET
    """Owner of the declaration that was refused."""
    declared_by: str | UnsetType = UNSET
    """Owner of the object."""
    digest: str | UnsetType = UNSET
    """Digest of the changes, by which a repeated request confirms them."""
    dangers: list[str] | UnsetType = UNSET
    """Effects that need the confirmation."""
    items: list[Change] | UnsetType = UNSET
    """The changes; the first ones of many."""
    more: int | UnsetType = UNSET
    """Number of the changes that are not listed."""
    retry_after_seconds: int | UnsetType = UNSET
    """Seconds after which the request may be repeated, as in the header Retry-After."""

    @property
    def code(self) -> str:
        """Last part of `type`."""
        return self.type.removeprefix(PREFIX)
