"""slipway.yaml: what people declare. Accounts, lease pools, and worker pools with their launch configs.

Decides whether a declaration is sound as a whole: a sound one is applied atomically, any other not at all. Does not
know what is applied already, nor any provider's settings.
"""

import json
import re
from collections.abc import Iterable, Iterator
from fractions import Fraction
from math import isfinite
from typing import Annotated, Any, Final, Literal, get_args

import msgspec
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    JsonValue,
    PlainSerializer,
    PlainValidator,
    Tag,
    ValidationError,
    WithJsonSchema,
    model_validator,
)

from slipway_common.ids import stable_id
from slipway_common.strict_yaml import Document, Invalid, Path, Problem, path_text, read

__all__ = [
    "Account",
    "Declaration",
    "Invalid",
    "LaunchConfig",
    "LeasePool",
    "Problem",
    "WorkerPool",
    "config_id",
    "json_schema",
    "load",
    "parse",
    "scaled",
]

ID_PATTERN: Final = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
NAME_PATTERN: Final = r"^[!-~]{1,200}$"
# Bounded digits: "1e999999999" would be computed for minutes.
RATIO_PATTERN: Final = r"^[0-9]{1,9}(\.[0-9]{1,9}|/[0-9]{1,9})?$"
PATTERN_MEANS: Final = {
    ID_PATTERN: "is not an id: lower-case letters, digits and inner hyphens, at most 63",
    NAME_PATTERN: "is not a name: 1 to 200 visible ASCII characters without spaces",
}
SETTINGS_BYTES_MAX: Final = 16_384
# Of a field that takes either; in no path that people read.
WORD, MAPPING = ALTERNATIVES = "<word>", "<mapping>"


def _ratio(given: object) -> Fraction:
    # A float's shortest text is what was written: 0.07 stays seven hundredths.
    text = str(given) if isinstance(given, str | int | float | Fraction) and not isinstance(given, bool) else ""
    if not re.fullmatch(RATIO_PATTERN, text) or re.search(r"/0+$", text):
        raise ValueError('is not an exact ratio: write "1", "0.25" or "1/3"')
    return Fraction(text)


def _plain(settings: dict[str, JsonValue]) -> dict[str, JsonValue]:
    for value in _leaves(settings):
        if isinstance(value, float) and not isfinite(value):
            raise ValueError("holds a number that is not finite")
        if isinstance(value, int) and abs(value) >= 1 << 63:
            raise ValueError("holds a number of more than 64 bits")
        if isinstance(value, str) and ("\x00" in value or not _is_utf8(value)):
            raise ValueError("holds text that cannot be stored")
    if (size := len(msgspec.json.encode(settings))) > SETTINGS_BYTES_MAX:
        raise ValueError(f"has {size:,} bytes as JSON; at most {SETTINGS_BYTES_MAX:,}")
    return settings


Id = Annotated[str, Field(pattern=ID_PATTERN)]
Name = Annotated[str, Field(pattern=NAME_PATTERN)]
Count = Annotated[int, Field(strict=True, ge=0, le=1_000_000)]
AtLeastOne = Annotated[int, Field(strict=True, ge=1, le=1_000_000)]
Positive = Annotated[float, Field(strict=True, gt=0, le=1_000_000, allow_inf_nan=False)]
Seconds = Annotated[float, Field(strict=True, gt=0, le=31_536_000, allow_inf_nan=False)]
Ratio = Annotated[
    Fraction,
    PlainValidator(_ratio),
    PlainSerializer(str, return_type=str),
    WithJsonSchema({"anyOf": [{"type": "string", "pattern": RATIO_PATTERN}, {"type": "number", "minimum": 0}]}),
]
Settings = Annotated[dict[Name, JsonValue], AfterValidator(_plain)]


class _Declared(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class LeaseOperation(_Declared):
    """What one unit of an operation counts for, and what is kept for it."""

    weight: Annotated[int, Field(strict=True, ge=0, le=1000)] = Field(
        1, description="What one unit counts against the limit; 0 is admitted at once."
    )
    reserved_units: Count = Field(0, description="Kept free of other operations.")
    max_wait_seconds: Seconds | None = Field(
        None, description="After this wait the operation proceeds over the limit, and is counted."
    )


class LeasePacing(_Declared):
    """At most one unit starts per interval, after a burst."""

    interval_seconds: Seconds
    burst: AtLeastOne = 1


def _pacing_kind(given: object) -> str:
    return WORD if isinstance(given, str) else MAPPING


Pacing = Annotated[
    Annotated[LeasePacing, Tag(MAPPING)] | Annotated[Literal["off"], Tag(WORD)], Discriminator(_pacing_kind)
]


class LeaseBackoff(_Declared):
    """How long a tenant waits after its leases fail: doubled by each failure in a row."""

    seconds: Seconds = 30.0
    max_seconds: Seconds = 900.0

    @model_validator(mode="after")
    def _ordered(self) -> "LeaseBackoff":
        if self.seconds > self.max_seconds:
            raise ValueError(f"seconds {self.seconds:g} is above max_seconds {self.max_seconds:g}")
        return self


class LeaseAdaptive(_Declared):
    """The limit follows what the provider says of throttling, within these bounds."""

    floor: AtLeastOne
    ceiling: AtLeastOne

    @model_validator(mode="after")
    def _ordered(self) -> "LeaseAdaptive":
        if self.floor > self.ceiling:
            raise ValueError(f"floor {self.floor} is above ceiling {self.ceiling}")
        return self


class LeaseDerived(_Declared):
    """The limit is so many units for each unit reported, for example per live conductor."""

    per_unit: Positive


class LeasePool(_Declared):
    """Admission to accounts: at most `limit` units at a time."""

    id: Id
    limit: Count = Field(description="Units held at once. Lowering it drains; it never revokes.")
    mode: Literal["shadow", "advisory", "enforce"] = Field(
        "enforce", description="shadow grants at once and records what would have waited; advisory tells it as well."
    )
    hold_seconds: Seconds = Field(1200.0, description="A lease ends this long after its grant, whatever its renewals.")
    ttl_seconds: Seconds = Field(300.0, description="A confirmed lease lives this long unrenewed.")
    reserve_seconds: Seconds = Field(180.0, description="A grant that is not confirmed within this is taken back.")
    lock_delay_seconds: Annotated[float, Field(strict=True, ge=0, le=31_536_000, allow_inf_nan=False)] | None = Field(
        None, description="How long a lost lease stays counted; without it, as the lease-broker is set up."
    )
    pacing: Pacing | None = Field(
        None, description="How fast units start; without it, one per hold_seconds / (2 × limit in force)."
    )
    operations: dict[Name, LeaseOperation] = Field(default_factory=dict, max_length=100)
    tenants: dict[Name, Positive] = Field(
        default_factory=dict, max_length=10_000, description="Weight of each tenant's share; 1 for those not named."
    )
    ageing_seconds: Seconds = Field(300.0, description="One step of priority is worth this much waiting.")
    backoff: LeaseBackoff | None = Field(
        default_factory=LeaseBackoff, description="How long a tenant waits after its leases fail; null: not at all."
    )
    no_progress_seconds: Seconds | None = Field(
        None, description="A lease that tells progress ends when it has not changed for so long."
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
            raise ValueError(f"reserved_units of all operations, {reserved}, are above limit {self.limit}")
        if self.adaptive is not None and self.derived is not None:
            raise ValueError("adaptive and derived both set the limit; declare one of them")
        return self


class Account(_Declared):
    """What a provider throttles: a cloud account, project or subscription, in one region."""

    id: Id
    provider: Id = Field(description="Name of the provider adapter, for example simulated.")
    region: Name
    credential: Name = Field(description="Reference to a secret, never the secret; none where none is needed.")
    identity: Name = Field(description="Who the provider must say we are; otherwise nothing is marked lost.")
    lease_pool: Id = Field(description="Id of the lease pool that admits launches here.")
    settings: Settings = Field(default_factory=dict, description="The provider adapter's own settings.")


Profile = Literal["on-demand", "spot", "bare-metal"]


class Evidence(_Declared):
    """What confirms that a start went well, so that an image without our agent is not taken for a bad one."""

    boot: Literal["register", "provider_running"] = Field(
        default="register", description="register: the worker reports in; provider_running: the provider says it runs."
    )
    claim: Literal["hook", "queue", "none"] = Field(
        default="hook",
        description="hook: the worker reports its claims; queue: the queue's count of claimed tasks; none: not judged.",
    )


class LaunchConfig(_Declared):
    """One way to launch a worker. The body (account, zone, instance_type, image, settings) never changes."""

    id: Id | None = Field(None, description="Without one, the id is a stable hash of the body.")
    account: Id
    zone: Name
    instance_type: Name
    image: Name = Field(description="Image revision. Boot failures are charged to it.")
    base_weight: Positive = Field(1.0, description="Share at equal health, before price_factor.")
    price_factor: Positive = Field(1.0, description="Multiplies base_weight; cheaper is higher.")
    profile: Profile | None = Field(None, description="How its health is judged; without one, as its pool says.")
    settings: Settings = Field(default_factory=dict, description="Given to the provider adapter and the machine.")


class WorkerPool(_Declared):
    """A named fleet."""

    id: Id
    min_capacity: Count = 0
    max_capacity: Count
    scaling_ratio: Ratio = Field(Fraction(1), description='Workers per task, exact: "1", "0.25" or "1/3".')
    mode: Literal["observe", "canary", "enforce"] = Field(
        "enforce", description="observe decides and records, launches nothing; canary keeps one worker at a time."
    )
    profile: Profile = Field(
        "on-demand", description="How long outages are remembered: spot and bare-metal remember longer."
    )
    evidence: Evidence = Field(default_factory=Evidence)
    on_bad_image: Literal["probe", "freeze"] = Field(
        "probe", description="probe: one start at a time goes on trying; freeze: the pool stops until it is unfrozen."
    )
    freeze_after: AtLeastOne = Field(10, description="Starts of an image without one success that freeze the pool.")
    launch_configs: tuple[LaunchConfig, ...] = Field(min_length=1, max_length=1000)

    @model_validator(mode="after")
    def _ordered(self) -> "WorkerPool":
        if self.min_capacity > self.max_capacity:
            raise ValueError(f"min_capacity {self.min_capacity} is above max_capacity {self.max_capacity}")
        return self


class Declaration(_Declared):
    """The whole of slipway.yaml. No section may be left out: what is not declared is removed."""

    version: Literal[1]
    lease_pools: tuple[LeasePool, ...] = Field(max_length=1000)
    accounts: tuple[Account, ...] = Field(max_length=1000)
    worker_pools: tuple[WorkerPool, ...] = Field(max_length=10_000)

    @model_validator(mode="after")
    def _consistent(self) -> "Declaration":
        if problems := list(_inconsistencies(self)):
            raise _Inconsistent(problems)
        return self


def load(text: str) -> Declaration:
    """The declaration that a YAML text makes; raises Invalid with every problem found, each with its line."""
    document = read(text)
    try:
        declared = Declaration.model_validate(document.value)
    except ValidationError as error:
        found = {problem.path for problem in document.problems}
        problems = [problem for problem in _problems(error, document) if problem.path not in found]
        raise Invalid(sorted(document.problems + problems, key=lambda problem: problem.line or 0)) from error
    if document.problems:
        raise Invalid(document.problems)
    return declared


def parse(body: object) -> Declaration:
    """The declaration that a decoded JSON body makes; raises Invalid without lines."""
    try:
        return Declaration.model_validate(body)
    except ValidationError as error:
        raise Invalid(list(_problems(error, Document(body, {}, [])))) from error


def json_schema() -> dict[str, Any]:
    """JSON Schema of slipway.yaml, for editors. It cannot say what spans entries, such as references."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:slipway:schema:slipway.yaml",
        **Declaration.model_json_schema(),
        "title": "slipway.yaml",
    }


def scaled(declaration: Declaration, speed: float) -> Declaration:
    """The same declaration with every duration, also those in settings, divided by `speed`."""
    return parse(_divided(declaration.model_dump(mode="json"), speed))


def config_id(pool: WorkerPool, config: LaunchConfig) -> str:
    """The given id, or a hash of the pool and the body. Weights are not in it: tuning them keeps the history."""
    if config.id is not None:
        return config.id
    body = config.model_dump(mode="json", include={"account", "zone", "instance_type", "image", "settings"})
    return stable_id(pool.id, msgspec.json.encode(body, order="sorted"))


class _Inconsistent(ValueError):
    def __init__(self, problems: list[tuple[Path, str]]) -> None:
        super().__init__("; ".join(reason for _, reason in problems))
        self.problems = problems


def _inconsistencies(declared: Declaration) -> Iterator[tuple[Path, str]]:
    """What no entry shows alone: ids used twice, references to nothing."""
    for name in ("lease_pools", "accounts", "worker_pools"):
        yield from _repeated(((name, place, "id"), entry.id) for place, entry in enumerate(getattr(declared, name)))
    yield from _repeated(
        (("worker_pools", place, "launch_configs", number, "id"), config_id(pool, config))
        for place, pool in enumerate(declared.worker_pools)
        for number, config in enumerate(pool.launch_configs)
    )
    lease_pools = {pool.id for pool in declared.lease_pools}
    for place, account in enumerate(declared.accounts):
        if account.lease_pool not in lease_pools:
            yield ("accounts", place, "lease_pool"), _unknown("lease pool", account.lease_pool, lease_pools)
    accounts = {account.id for account in declared.accounts}
    for place, pool in enumerate(declared.worker_pools):
        for number, config in enumerate(pool.launch_configs):
            if config.account not in accounts:
                path = ("worker_pools", place, "launch_configs", number, "account")
                yield path, _unknown("account", config.account, accounts)


def _repeated(ids: Iterable[tuple[Path, str]]) -> Iterator[tuple[Path, str]]:
    first: dict[str, Path] = {}
    for path, id_ in ids:
        if (before := first.setdefault(id_, path)) != path:
            yield path, f"{id_!r} is used already by {path_text(before[:-1])}"


def _unknown(kind: str, id_: str, known: set[str]) -> str:
    return f"no {kind} {id_!r} is declared; there is {', '.join(sorted(known)[:10]) or 'none'}"


def _problems(error: ValidationError, document: Document) -> Iterator[Problem]:
    errors = error.errors(include_url=False)
    for found in errors:
        where, cause = _outside_settings(found["loc"]), found.get("ctx", {}).get("error")
        if isinstance(cause, _Inconsistent):
            for path, reason in cause.problems:
                yield Problem(path_text(path), reason, document.line(path))
        # A list is called too short when its entries are wrong; they are reported themselves.
        elif found["type"] != "too_short" or not any(other["loc"][:-1][: len(where)] == where for other in errors):
            yield Problem(path_text(where), _reason(found), document.line(where))


def _reason(found: Any) -> str:
    context, shown = found.get("ctx", {}), _shown(found["input"])
    match found["type"]:
        case "missing":
            return "is missing"
        case "extra_forbidden":
            return f"is not a known field; known here: {', '.join(_fields(found['loc'][:-1]))}"
        case "too_short":
            return f"needs at least {context['min_length']} entry"
        case "tuple_type":
            return f"must be a list, not {shown}"
        case "model_type" | "model_attributes_type":
            return f"must be a mapping with fields, not {shown}"
        case "string_pattern_mismatch":
            return f"{shown} {PATTERN_MEANS[context['pattern']]}"
        case "value_error":
            return f"{shown} {context['error']}" if not isinstance(found["input"], dict) else str(context["error"])
        case _:
            return f"{shown}: {found['msg'].replace('Input should', 'must')}"


def _outside_settings(path: Path) -> Path:
    """Inside settings a path may be hundreds of steps long, and names alternatives of JSON instead of fields; so do
    alternatives of ours."""
    path = tuple(part for part in path if part not in ALTERNATIVES)
    return path[: path.index("settings") + 1] if "settings" in path else path


def _shown(value: object) -> str:
    """A short text for what was given. Nested things are not spelled out: they may be deep."""
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "…"


def _fields(path: Path) -> list[str]:
    """Names of the fields that an entry at `path` may have."""
    model: type[BaseModel] = Declaration
    for part in path:  # indexes of lists and keys of mappings lead to no other kind of entry
        if isinstance(part, str) and part in model.model_fields:
            model = _model_in(model.model_fields[part].annotation) or model
    return list(model.model_fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The kind of entry that a field holds: itself, in a list, in a mapping, or as one of several."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for inner in get_args(annotation) if (model := _model_in(inner)) is not None), None)


def _divided(value: Any, speed: float) -> Any:
    if isinstance(value, list):
        return [_divided(item, speed) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        name: inner / speed if _is_duration(name) and isinstance(inner, int | float) else _divided(inner, speed)
        for name, inner in value.items()
    }


def _is_duration(name: str) -> bool:
    return name == "seconds" or name.endswith("_seconds")


def _leaves(value: JsonValue) -> Iterator[JsonValue]:
    """Every text and number in `value`, keys included."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield name
            yield from _leaves(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner)
    else:
        yield value


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
