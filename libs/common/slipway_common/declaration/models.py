"""Content of slipway.yaml as models: accounts, lease pools, and worker pools with their launch configs.

They validate each entry by itself; `identity` has the rules across entries, and `parsing` applies both. Nothing here
knows the applied state or the settings of any provider.
"""

from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, Any, Final, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    SerializerFunctionWrapHandler,
    Tag,
    model_serializer,
    model_validator,
)

from slipway_common.declaration.deadlines import contradiction
from slipway_common.declaration.fields import (
    AtLeastOne,
    Count,
    Id,
    Money,
    Name,
    Place,
    Positive,
    Provider,
    Ratio,
    Seconds,
    Settings,
    UserData,
)
from slipway_common.declaration.user_data import SECRETS, names

ENTRIES_MAX: Final = 100_000
"""Entries of a section."""
CREDENTIAL_DEPTH_MAX: Final = 5
"""Roles in a row, each assumed with the credential of the next one, and the credential at their end."""
# Tags of a field that accepts either; removed from displayed paths.
WORD, MAPPING = ALTERNATIVES = "<word>", "<mapping>"


class _Declared(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class LeasePacing(_Declared):
    """Pacing: at most one unit of an operation starts per interval, after a burst."""

    interval_seconds: Seconds
    burst: AtLeastOne = 1


def _word_or_mapping(given: object) -> str:
    return WORD if isinstance(given, str) else MAPPING


Pacing = Annotated[
    Annotated[LeasePacing, Tag(MAPPING)] | Annotated[Literal["off"], Tag(WORD)], Discriminator(_word_or_mapping)
]


class LeaseOperation(_Declared):
    """Weight, reservation, maximum wait and pacing of an operation."""

    weight: Annotated[int, Field(strict=True, ge=0, le=1000)] = Field(
        1, description="Weight of one unit against the limit; 0 is granted at once."
    )
    reserved_units: Count = Field(0, description="Units reserved for this operation.")
    max_wait_seconds: Seconds | None = Field(
        None, description="Maximum wait; after it the operation is granted even above the limit, and counted."
    )
    pacing: Pacing | None = Field(None, description="Rate of its starts [default: that of the pool].")


class LeaseBackoff(_Declared):
    """Backoff of a tenant after failed leases; doubled by each consecutive failure."""

    seconds: Seconds = 30.0
    max_seconds: Seconds = 900.0

    @model_validator(mode="after")
    def _ordered(self) -> "LeaseBackoff":
        if self.seconds > self.max_seconds:
            raise ValueError(f"seconds {self.seconds:g} is above max_seconds {self.max_seconds:g}")
        return self


class LeaseAdaptive(_Declared):
    """Adaptive limit: adjusted by the provider's throttling, within these bounds."""

    floor: AtLeastOne
    ceiling: AtLeastOne

    @model_validator(mode="after")
    def _ordered(self) -> "LeaseAdaptive":
        if self.floor > self.ceiling:
            raise ValueError(f"floor {self.floor} is above ceiling {self.ceiling}")
        return self


class LeaseDerived(_Declared):
    """Derived limit: this many units per reported unit, for example per live conductor."""

    per_unit: Positive


class LeasePool(_Declared):
    """Lease pool: admission to accounts, at most `limit` units at a time."""

    id: Id
    limit: Count = Field(
        description="Maximum units held at once. If lowered, grants stop until usage falls; no lease is revoked."
    )
    mode: Literal["shadow", "advisory", "enforce"] = Field(
        "enforce", description="shadow grants at once and records what would have waited; advisory also returns it."
    )
    hold_seconds: Seconds = Field(
        1200.0, description="Maximum lifetime of a lease after its grant, regardless of renewals."
    )
    ttl_seconds: Seconds = Field(300.0, description="Lifetime of a confirmed lease without renewal.")
    reserve_seconds: Seconds = Field(180.0, description="Time to confirm a grant before it expires.")
    lock_delay_seconds: Annotated[float, Field(strict=True, ge=0, le=31_536_000, allow_inf_nan=False)] | None = Field(
        None, description="Time for which a lost lease stays counted [default: set by the lease-broker]."
    )
    pacing: Pacing | None = Field(
        None,
        description="Rate of starts of each operation; off: all at once [default: one unit per hold_seconds / (2 × "
        "current limit), at most max_interval_seconds; of launches the rate of their provider, if it has one].",
    )
    max_interval_seconds: Seconds = Field(30.0, description="Longest interval between starts by default.")
    operations: dict[Name, LeaseOperation] = Field(default_factory=dict, max_length=100)
    tenants: dict[Name, Positive] = Field(
        default_factory=dict, max_length=10_000, description="Fair-share weight per tenant [default: 1]."
    )
    ageing_seconds: Seconds = Field(300.0, description="Waiting time that equals one step of priority.")
    backoff: LeaseBackoff | None = Field(
        default_factory=LeaseBackoff, description="Backoff of a tenant after failed leases; null disables it."
    )
    retry_after_max_seconds: Annotated[Seconds, Field(le=3_600)] = Field(
        300.0, description="Longest pause that a Retry-After in a holder's report makes."
    )
    no_progress_seconds: Seconds | None = Field(
        None, description="A lease that reports progress ends after this time without a change of it."
    )
    adaptive: LeaseAdaptive | None = None
    derived: LeaseDerived | None = None

    @model_validator(mode="after")
    def _ordered(self) -> "LeasePool":
        for name in ("ttl_seconds", "reserve_seconds"):
            if getattr(self, name) > self.hold_seconds:
                raise ValueError(f"{name} {getattr(self, name):g} is above hold_seconds {self.hold_seconds:g}")
        reserved = sum(operation.reserved_units for operation in self.operations.values())
        if reserved > self.limit:
            raise ValueError(f"reserved_units of all operations, {reserved}, exceed limit {self.limit}")
        if self.adaptive is not None and self.derived is not None:
            raise ValueError("adaptive and derived both set the limit; declare only one")
        return self


OF_OPERATOR: Final = ("environment", "file", "web_identity")
"""Kinds of credentials that are paths and variables of the provisioner: its operator names them, in its settings."""


class Credential(_Declared):
    """Reference to a credential: exactly one of name and role. It never holds a secret, and never says where one is."""

    name: Name | None = Field(None, description="Credential of the operator's settings of the provider.")
    role: Name | None = Field(None, description="Role to assume, as the provider names it.")
    external_id: Name | None = Field(None, description="External id with which the role is assumed.")
    source: "Credential | None" = Field(
        None, description="Credential that assumes the role [default: that of the provisioner's own machine]."
    )

    @model_validator(mode="before")
    @classmethod
    def _named(cls, given: Any) -> Any:
        for kind in OF_OPERATOR:
            if isinstance(given, Mapping) and kind in given:
                raise ValueError(
                    f"{kind} is stated by the operator; write it into credentials of the provider in "
                    "SLIPWAY_PROVIDERS, and name: NAME of that credential here"
                )
        return given

    @model_validator(mode="after")
    def _one(self) -> "Credential":
        names = ("name", "role")
        given = [name for name in names if getattr(self, name) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none of them"
            raise ValueError(f"write exactly one of {', '.join(names)}, not {found}")
        for name in ("external_id", "source"):
            if self.role is None and getattr(self, name) is not None:
                raise ValueError(f"{name} belongs to role, not to {given[0]}")
        depth, source = 1, self.source
        while source is not None:
            depth, source = depth + 1, source.source
        if depth > CREDENTIAL_DEPTH_MAX:
            raise ValueError(f"has {depth} credentials in a row; the maximum is {CREDENTIAL_DEPTH_MAX}")
        return self

    @model_serializer(mode="wrap")
    def _given(self, handler: SerializerFunctionWrapHandler) -> dict[str, object]:
        return {name: value for name, value in handler(self).items() if value is not None}


class Limits(_Declared):
    """Safety limits of what launches. An account's hold for all its pools together, a pool's for all its accounts."""

    launches_per_hour: Count | None = Field(
        None, description="Machines that may launch in any hour [default: unlimited]."
    )
    spend_per_day: Money | None = Field(
        None,
        description="Estimated spend in any day, in the currency of the prices [default: unlimited]. A launch whose "
        "price is unknown is refused.",
    )
    lifetime_seconds: Seconds = Field(
        86_400.0,
        description="Longest that a machine runs: a launch commits its price for this long. Below a day it is the "
        "maximum age of workers that declare none, and no maximum age may exceed it.",
    )
    default_price: Money | None = Field(
        None, description="Price per hour of machines that prices_file of the provisioner does not list."
    )

    @model_validator(mode="after")
    def _limited(self) -> "Limits":
        if self.launches_per_hour is None and self.spend_per_day is None:
            raise ValueError("write launches_per_hour or spend_per_day, or both")
        return self


class Account(_Declared):
    """Provider account: a cloud account, project or subscription in one region, as throttled by the provider."""

    id: Id
    provider: Provider = Field(description="Name of the provider adapter, for example simulated.")
    region: Place
    credential: Annotated[
        Annotated[Credential, Tag(MAPPING)] | Annotated[Literal["none"], Tag(WORD)], Discriminator(_word_or_mapping)
    ] = Field(description="Reference to a credential, never the secret itself; none if not needed.")
    identity: Name = Field(description="Identity the provider must report; otherwise no worker is marked lost.")
    lease_pool: Id = Field(description="Id of the lease pool that admits launches in this account.")
    request_timeout_seconds: Seconds | None = Field(
        None, description="Timeout of a call, after which its outcome is unknown [default: call_timeout_seconds]."
    )
    accepted_timeout_seconds: Seconds | None = Field(
        None,
        description="Time in which an accepted launch must end before it is looked up [default: that of the "
        "provisioner].",
    )
    limits: Limits | None = Field(None, description="Safety limits of the account [default: none].")
    settings: Settings = Field(default_factory=dict, description="Settings of the provider adapter.")


Profile = Literal["on-demand", "spot", "bare-metal"]


class Evidence(_Declared):
    """Evidence that confirms a start, so that an image without the Slipway agent is not considered bad."""

    boot: Literal["register", "provider_running"] = Field(
        default="register",
        description="register: the worker registers; provider_running: the provider reports it as running, and its "
        "status checks as passed where it has any.",
    )
    claim: Literal["hook", "queue", "none"] = Field(
        default="hook",
        description="hook: the worker reports its claims; queue: the queue counts claimed tasks; none: not checked.",
    )


class Deadlines(_Declared):
    """Deadlines of workers. Those of a launch config come first, then those of its pool, then those of its profile.
    They belong to the name of a launch config: a change keeps its revisions."""

    registration_seconds: Seconds | None = Field(
        default=None,
        description="Time from launch to registration, after which the boot has failed [default: 900; bare-metal: "
        "3600].",
    )
    first_claim_seconds: Seconds | None = Field(
        default=None, description="Time from registration to the first claim while tasks are pending [default: 300]."
    )
    idle_seconds: Seconds | None = Field(
        default=None, description="Idle time after which a surplus worker is stopped [default: 120; bare-metal: 1800]."
    )
    idle_despite_demand_seconds: Seconds | None = Field(
        default=None, description="Idle time after which a worker is replaced while tasks are pending [default: 300]."
    )
    unresponsive_seconds: Seconds | None = Field(
        default=None, description="Time without contact after which a registered worker is stopped [default: 900]."
    )
    maximum_age_seconds: Seconds | None = Field(
        default=None,
        description="Age at which a worker drains, drawn once from 90 to 100 % of it [default: none, or the "
        "lifetime_seconds of a spend limit if that is below a day].",
    )
    credential_seconds: Seconds | None = Field(
        default=None,
        description="Lifetime of the credentials that a machine gets at launch: it leaves before their end even if "
        "nothing can replace it [default: unlimited].",
    )
    drain_seconds: Seconds | None = Field(
        default=None,
        description="Time in which a worker that drains, of a replaced revision or by its age, should end its task "
        "[default: the longest task of the last day, from an hour to a day].",
    )

    @model_validator(mode="after")
    def _ordered(self) -> "Deadlines":
        if problem := contradiction(self.given()):
            raise ValueError(problem)
        return self

    @model_serializer
    def given(self) -> dict[str, float]:
        """Declared deadlines, in seconds by name."""
        return {name: seconds for name, seconds in self if seconds is not None}


class LaunchConfig(_Declared):
    """One way to launch a worker. A change of its body (account, zone, instance_type, image, settings) makes a new
    revision, which replaces the one before under the same name; other fields belong to the name."""

    name: Id | None = Field(None, description="Name [default: POOL/ACCOUNT/ZONE/INSTANCE_TYPE].")
    account: Id
    zone: Place
    instance_type: Place
    image: Name = Field(description="Image revision; boot failures count against it.")
    base_weight: Positive = Field(1.0, description="Share of launches at equal health, before price_factor.")
    price_factor: Positive = Field(1.0, description="Multiplier of base_weight; higher for cheaper configs.")
    max_capacity: Count | None = Field(
        None, description="Maximum workers of this launch config, over all its revisions [default: that of the pool]."
    )
    task_slots: AtLeastOne | None = Field(
        None, description="Tasks that a worker runs at once [default: 1 / scaling_ratio of the pool, rounded up]."
    )
    profile: Profile | None = Field(None, description="Profile of health and deadlines [default: that of the pool].")
    deadlines: Deadlines = Field(
        default_factory=Deadlines, description="Deadlines of its workers [default: those of the pool]."
    )
    settings: Settings = Field(
        default_factory=dict, description="Settings passed to the provider adapter and the machine."
    )


class WorkerPool(_Declared):
    """Worker pool: a named fleet."""

    id: Id
    min_capacity: Count = 0
    max_capacity: Count
    scaling_ratio: Ratio = Field(Fraction(1), description='Workers per task as an exact ratio: "1", "0.25" or "1/3".')
    mode: Literal["observe", "canary", "enforce"] | None = Field(
        None,
        description="observe records decisions but launches nothing; canary keeps one worker at a time [default: as it "
        "is; of a new pool observe, or enforce if its accounts cost nothing, as simulated ones].",
    )
    limits: Limits | None = Field(None, description="Safety limits of the pool [default: those of its accounts only].")
    profile: Profile = Field(
        "on-demand",
        description="Profile of health and deadlines: spot and bare-metal remember outages longer; bare-metal has more "
        "time to boot.",
    )
    deadlines: Deadlines = Field(
        default_factory=Deadlines, description="Deadlines of its workers [default: those of the profile]."
    )
    evidence: Evidence = Field(default_factory=Evidence)
    on_bad_image: Literal["probe", "freeze"] = Field(
        "probe", description="probe: keep trying with one start at a time; freeze: stop the pool until it is unfrozen."
    )
    freeze_after: AtLeastOne = Field(
        10, description="Consecutive starts of an image without a success that freeze the pool."
    )
    user_data: UserData | None = Field(
        None,
        description="Template of the user data of its machines, for example for cloud-init. A change makes a new "
        "revision of every launch config. [default: {{user_data}}, the JSON that slipway-worker reads].",
    )
    launch_configs: tuple[LaunchConfig, ...] = Field(min_length=1, max_length=1000)

    @model_validator(mode="after")
    def _ordered(self) -> "WorkerPool":
        if self.min_capacity > self.max_capacity:
            raise ValueError(f"min_capacity {self.min_capacity} is above max_capacity {self.max_capacity}")
        return self

    @model_validator(mode="after")
    def _deadlines_ordered(self) -> "WorkerPool":
        for number, config in enumerate(self.launch_configs):
            if problem := contradiction(self.deadlines_of(config)):
                raise ValueError(f"launch_configs[{number}]: deadlines: {problem}")
        return self

    def deadlines_of(self, config: LaunchConfig) -> dict[str, float]:
        """Declared deadlines of one of its launch configs, by name: its own, then those of the pool."""
        return self.deadlines.given() | config.deadlines.given()

    @model_validator(mode="after")
    def _able_to_register(self) -> "WorkerPool":
        registers = self.user_data is None or SECRETS & names(self.user_data)
        if self.evidence.boot == "register" and not registers:
            raise ValueError(
                "user_data has neither {{user_data}} nor {{batch_secret}}, so no machine could register; add one, or "
                "declare evidence.boot: provider_running"
            )
        return self


class Metadata(_Declared):
    """Metadata of a declaration."""

    owner: Name | None = Field(
        default=None,
        description="Owner of all that is declared here; only its own is removed [default: the file's name].",
    )


class Declaration(_Declared):
    """Content of slipway.yaml. What its owner declared before in a section and leaves out now is removed; a section
    that is absent is not changed."""

    version: Literal[1]
    metadata: Metadata = Field(default_factory=Metadata)
    lease_pools: tuple[LeasePool, ...] | None = Field(None, max_length=ENTRIES_MAX)
    accounts: tuple[Account, ...] | None = Field(None, max_length=ENTRIES_MAX)
    worker_pools: tuple[WorkerPool, ...] | None = Field(None, max_length=ENTRIES_MAX)
