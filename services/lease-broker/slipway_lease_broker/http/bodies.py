"""Request bodies and parameters with their bounds. All values accepted here can be stored."""

from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from slipway_common.declaration.models import LeasePacing
from slipway_common.web.moment import Moment
from slipway_common.web.text import Name, NameOrEmpty, Reason
from slipway_lease_broker.domain.commands import SPREAD_SECONDS_MAX, UNITS_MAX
from slipway_lease_broker.domain.ledger import UnleasedBy

WAIT_SECONDS_MAX: Final = 60.0

Units = Annotated[int, Field(strict=True, ge=1, le=UNITS_MAX)]
Token = Annotated[int, Field(strict=True, ge=1, le=2**63 - 1)]
Seconds = Annotated[float, Field(strict=True, gt=0, le=31_536_000, allow_inf_nan=False)]
WaitSeconds = Annotated[
    float, Field(strict=True, ge=0, le=WAIT_SECONDS_MAX, allow_inf_nan=False, description="Answer 202 after this time.")
]


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Replaced(Body):
    """The lease of an earlier attempt. It ends when the new request arrives, which inherits its age."""

    lease_id: Name
    fencing_token: Token


class GroupBody(Body):
    """A group of requests with spread starts: no two start within spread_seconds / size."""

    name: Name
    size: Annotated[int, Field(strict=True, ge=1, le=100_000)]
    spread_seconds: Annotated[Seconds, Field(le=SPREAD_SECONDS_MAX)]
    member: Annotated[int, Field(strict=True, ge=0, le=100_000)] | None = None

    @model_validator(mode="after")
    def _has_member(self) -> Self:
        if self.member is not None and self.member >= self.size:
            raise ValueError(f"member {self.member} of {self.size}: members count from 0")
        return self


class Acquire(Body):
    request_id: Annotated[Name, Field(description="Idempotency key: the same id is the same request.")]
    units: Units = 1
    operation: Name = "install"
    tenant: Name | None = Field(None, description="Fair-share tenant [default: token name]")
    priority: Annotated[int, Field(strict=True, ge=0, le=9)] = 0
    wait_seconds: WaitSeconds = 0.0
    hold_seconds: Seconds | None = Field(None, description="Shortens the hold of the pool.")
    confirm: bool = Field(True, strict=True, description="Confirm the grant on receipt.")
    holder: Name | None = Field(None, description="Name of this process, shown to people: host:pid:random")
    join: bool = Field(False, strict=True, description="Hold the lease together with its present holders.")
    replaces: Replaced | None = None
    group: GroupBody | None = None

    @model_validator(mode="after")
    def _has_holder(self) -> Self:
        if self.join and self.holder is None:
            raise ValueError("join needs the name of the holder that joins")
        return self


class Prolong(Body):
    fencing_token: Token


class Renew(Prolong):
    progress: Reason | None = Field(None, description="Any text that changes while the work progresses.")


class Bind(Prolong):
    holder: Name | None = Field(None, description="Holder that the token is for; needed if the lease has several.")


class Release(Prolong):
    holder: Name | None = Field(None, description="As in the request for the lease.")
    units: Units | None = Field(
        None, description="Units to release [default: all]. A repeated call releases as many again."
    )
    remaining: Annotated[int, Field(strict=True, ge=0, le=UNITS_MAX)] | None = Field(
        None, description="Units to keep, instead of units. A repeated call changes nothing."
    )
    result: Reason = "done"
    throttled: bool = Field(False, strict=True, description="The provider throttled the operation.")
    retry_after_seconds: Annotated[float, Field(strict=True, ge=0, le=86_400, allow_inf_nan=False)] | None = None
    quota_remaining: Annotated[int, Field(strict=True, ge=0, le=2**31 - 1)] | None = None

    @model_validator(mode="after")
    def _has_one_amount(self) -> Self:
        if self.units is not None and self.remaining is not None:
            raise ValueError("units and remaining exclude each other")
        return self


class WithReason(Body):
    reason: Reason


class TermsChange(WithReason):
    """Changes to the terms of a lease pool; omitted terms stay."""

    revision: Annotated[int, Field(strict=True, ge=1)] | None = Field(
        None, description="Refuse the change unless the pool has this revision."
    )
    limit: Annotated[int, Field(strict=True, ge=0, le=UNITS_MAX)] | None = None
    hold_seconds: Seconds | None = None
    ttl_seconds: Seconds | None = None
    pacing: LeasePacing | Literal["off"] | None = Field(None, description="null: default pacing.")
    operation: Name | None = Field(None, description="Operation whose pacing changes [default: that of the pool].")
    mode: Literal["shadow", "advisory", "enforce"] | None = None
    pinned: Annotated[bool, Field(strict=True)] | None = Field(
        None, description="Pin the limit: only operators change it."
    )
    confirm: NameOrEmpty = Field("", description="Digest of a dangerous change.")

    @model_validator(mode="after")
    def _names_an_operation_with_its_pacing(self) -> Self:
        if self.operation is not None and "pacing" not in self.model_fields_set:
            raise ValueError("operation names what pacing changes: give both")
        return self

    def terms(self) -> dict[str, Any]:
        """The given terms, named as in a declaration; those of `operation` as of the pool."""
        given = self.model_dump(
            mode="json", include=self.model_fields_set - {"reason", "revision", "pinned", "operation", "confirm"}
        )
        return {name: value for name, value in given.items() if value is not None or name == "pacing"}


class Reported(Body):
    """Units that a derived limit follows for `ttl_seconds`."""

    units: Annotated[int, Field(strict=True, ge=0, le=UNITS_MAX)]
    ttl_seconds: Seconds


class StartBody(Body):
    """An operation that was started without a lease, or whose lease ended while it ran."""

    request_id: Name
    operation: Name = "install"
    units: Units = 1
    started_at: Moment
    hold_seconds: Seconds | None = Field(None, description="Shortens the hold of the pool.")
    cause: UnleasedBy = Field(
        UnleasedBy.UNAVAILABLE,
        description="unavailable: the lease-broker did not answer; max_wait: the request still waited; "
        "lost: the lease ended while the operation ran.",
    )


class Starts(Body):
    starts: Annotated[list[StartBody], Field(min_length=1, max_length=1_000)]


class Member(Body):
    """One lease of a gang."""

    pool: Name
    units: Units = 1
    hold_seconds: Seconds | None = None


class GangBody(Body):
    request_id: Name
    tenant: Name | None = None
    operation: Name = "install"
    wait_seconds: WaitSeconds = 0.0
    members: Annotated[list[Member], Field(min_length=1, max_length=100)]
