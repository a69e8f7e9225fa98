"""What requests may say, and within which bounds: whatever passes here can be stored."""

from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal, Self

from fastapi import Path
from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, model_validator

from slipway_common.declaration import LeasePacing
from slipway_lease_broker.domain.facts import SPREAD_SECONDS_MAX, TEXT_CHARACTERS_MAX, UNITS_MAX

WAIT_SECONDS_MAX: Final = 60.0
NO_NUL: Final = r"^[^\x00]*$"

Text = Annotated[str, Field(min_length=1, max_length=TEXT_CHARACTERS_MAX, pattern=NO_NUL)]
Units = Annotated[int, Field(strict=True, ge=1, le=UNITS_MAX)]
Token = Annotated[int, Field(strict=True, ge=1, le=2**63 - 1)]
Seconds = Annotated[float, Field(strict=True, gt=0, le=31_536_000, allow_inf_nan=False)]
WaitSeconds = Annotated[
    float, Field(strict=True, ge=0, le=WAIT_SECONDS_MAX, allow_inf_nan=False, description="Answer 202 after so long.")
]
LeasePoolId = Annotated[str, Path(max_length=TEXT_CHARACTERS_MAX, pattern=NO_NUL)]
LeaseId = Annotated[str, Path(max_length=TEXT_CHARACTERS_MAX, pattern=NO_NUL)]
RequestId = Annotated[str, Path(max_length=TEXT_CHARACTERS_MAX, pattern=NO_NUL)]


def _in_utc(at: datetime) -> datetime:
    try:
        return at.astimezone(UTC)
    except OverflowError:
        raise ValueError("lies outside the years 1 to 9999 of UTC") from None


Moment = Annotated[AwareDatetime, AfterValidator(_in_utc)]


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Replaced(Body):
    """The lease of the attempt before: it ends as the new request enters, which keeps its age."""

    lease_id: Text
    fencing_token: Token


class Group(Body):
    """Requests that start spread over a time: no two within spread_seconds / size."""

    name: Text
    size: Annotated[int, Field(strict=True, ge=1, le=100_000)]
    spread_seconds: Annotated[Seconds, Field(le=SPREAD_SECONDS_MAX)]
    member: Annotated[int, Field(strict=True, ge=0, le=100_000)] | None = None

    @model_validator(mode="after")
    def _has_member(self) -> Self:
        if self.member is not None and self.member >= self.size:
            raise ValueError(f"member {self.member} of {self.size}: they count from 0")
        return self


class Acquire(Body):
    request_id: Annotated[Text, Field(description="The same id again is the same request, also after a crash.")]
    units: Units = 1
    operation: Text = "install"
    tenant: Text | None = Field(None, description="Whose share it counts in; without one the token's name.")
    priority: Annotated[int, Field(strict=True, ge=0, le=9)] = 0
    wait_seconds: WaitSeconds = 0.0
    hold_seconds: Seconds | None = Field(None, description="At most the pool's, which counts without it.")
    confirm: bool = Field(True, strict=True, description="Whether receiving the grant confirms it.")
    replaces: Replaced | None = None
    group: Group | None = None


class Prolong(Body):
    fencing_token: Token


class Renew(Prolong):
    progress: Text | None = Field(None, description="Any text that changes while the holder gets on.")


class Release(Prolong):
    units: Units | None = Field(None, description="Without it, all. Said again, as many again are given back.")
    remaining: Annotated[int, Field(strict=True, ge=0, le=UNITS_MAX)] | None = Field(
        None, description="Instead of units, how many stay held: said again it changes nothing."
    )
    result: Text = "done"
    throttled: bool = Field(False, strict=True, description="Whether the provider throttled it.")
    retry_after_seconds: Annotated[float, Field(strict=True, ge=0, le=86_400, allow_inf_nan=False)] | None = None
    quota_remaining: Annotated[int, Field(strict=True, ge=0, le=2**31 - 1)] | None = None

    @model_validator(mode="after")
    def _says_how_many_once(self) -> Self:
        if self.units is not None and self.remaining is not None:
            raise ValueError("either units or remaining, not both")
        return self


class Because(Body):
    reason: Text


class Change(Because):
    """What is to be changed of a lease pool; all else stays."""

    revision: Annotated[int, Field(strict=True, ge=1)] | None = Field(
        None, description="Refuse the change if the pool has another one by now."
    )
    limit: Annotated[int, Field(strict=True, ge=0, le=UNITS_MAX)] | None = None
    hold_seconds: Seconds | None = None
    ttl_seconds: Seconds | None = None
    pacing: LeasePacing | Literal["off"] | None = Field(None, description="null: as without a declared pacing.")
    mode: Literal["shadow", "advisory", "enforce"] | None = None
    pinned: Annotated[bool, Field(strict=True)] | None = Field(
        None, description="Whether nothing but a person moves the limit."
    )

    def terms(self) -> dict[str, Any]:
        """Those given, in the words of a declaration."""
        given = self.model_dump(mode="json", include=self.model_fields_set - {"reason", "revision", "pinned"})
        return {name: value for name, value in given.items() if value is not None or name == "pacing"}


class Reported(Body):
    """How many units a derived limit follows, for so long."""

    units: Annotated[int, Field(strict=True, ge=0, le=UNITS_MAX)]
    ttl_seconds: Seconds


class Start(Body):
    """Something that was started without a lease while no broker answered."""

    request_id: Text
    operation: Text = "install"
    units: Units = 1
    started_at: Moment


class Starts(Body):
    starts: Annotated[list[Start], Field(min_length=1, max_length=1_000)]


class Member(Body):
    """One lease of a gang."""

    pool: Text
    units: Units = 1
    hold_seconds: Seconds | None = None


class Gang(Body):
    request_id: Text
    tenant: Text | None = None
    operation: Text = "install"
    wait_seconds: WaitSeconds = 0.0
    members: Annotated[list[Member], Field(min_length=1, max_length=100)]
