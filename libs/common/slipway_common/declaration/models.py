"""Schema and validation of slipway.yaml: accounts, lease pools, and worker pools with their launch configs.

A declaration is validated as a whole; a valid one is applied atomically, an invalid one not at all. Knows neither the
applied state nor the settings of any provider.
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

from slipway_common.base.ids import stable_id
from slipway_common.declaration.strict_yaml import Document, DocumentProblem, Invalid, Path, path_text, read

__all__ = [
    "Account",
    "Declaration",
    "DocumentProblem",
    "Invalid",
    "LaunchConfig",
    "LeasePool",
    "WorkerPool",
    "config_id",
    "json_schema",
    "load",
    "parse",
    "scaled",
]

ID_PATTERN: Final = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
NAME_PATTERN: Final = r"^[!-~]{1,200}$"
# Bounded digits: "1e999999999" would take minutes to compute.
RATIO_PATTERN: Final = r"^[0-9]{1,9}(\.[0-9]{1,9}|/[0-9]{1,9})?$"
PATTERN_MEANS: Final = {
    ID_PATTERN: "is not a valid id: use at most 63 lower-case letters, digits and inner hyphens",
    NAME_PATTERN: "is not a valid name: use 1 to 200 visible ASCII characters without spaces",
}
SETTINGS_BYTES_MAX: Final = 16_384
# Tags of a field that accepts either; removed from displayed paths.
WORD, MAPPING = ALTERNATIVES = "<word>", "<mapping>"


def _ratio(given: object) -> Fraction:
    # The shortest text of a float is what was written: 0.07 stays seven hundredths.
    text = str(given) if isinstance(given, str | int | float | Fraction) and not isinstance(given, bool) else ""
    if not re.fullmatch(RATIO_PATTERN, text) or re.search(r"/0+$", text):
        raise ValueError('is not an exact ratio: write "1", "0.25" or "1/3"')
    return Fraction(text)


def _plain(settings: dict[str, JsonValue]) -> dict[str, JsonValue]:
    for value in _leaves(settings):
        if isinstance(value, float) and not isfinite(value):
            raise ValueError("contains a number that is not finite")
        if isinstance(value, int) and abs(value) >= 1 << 63:
            raise ValueError("contains a number of more than 64 bits")
        if isinstance(value, str) and ("\x00" in value or not _is_utf8(value)):
            raise ValueError("contains text that cannot be stored")
    if (size := len(msgspec.json.encode(settings))) > SETTINGS_BYTES_MAX:
        raise ValueError(f"has {size:,} bytes as JSON; the maximum is {SETTINGS_BYTES_MAX:,}")
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
    """Weight and reservation of an operation."""

    weight: Annotated[int, Field(strict=True, ge=0, le=1000)] = Field(
        1, description="Weight of one unit against the limit; 0 is granted at once."
    )
    reserved_units: Count = Field(0, description="Units reserved for this operation.")
    max_wait_seconds: Seconds | None = Field(
        None, description="Maximum wait; after it the operation is granted even above the limit, and counted."
    )


class LeasePacing(_Declared):
    """Pacing: at most one unit starts per interval, after a burst."""

    interval_seconds: Seconds
    burst: AtLeastOne = 1


def _pacing_kind(given: object) -> str:
    return WORD if isinstance(given, str) else MAPPING


Pacing = Annotated[
    Annotated[LeasePacing, Tag(MAPPING)] | Annotated[Literal["off"], Tag(WORD)], Discriminator(_pacing_kind)
]


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
        None, description="Rate of starts [default: one unit per hold_seconds / (2 × current limit)]."
    )
    operations: dict[Name, LeaseOperation] = Field(default_factory=dict, max_length=100)
    tenants: dict[Name, Positive] = Field(
        default_factory=dict, max_length=10_000, description="Fair-share weight per tenant [default: 1]."
    )
    ageing_seconds: Seconds = Field(300.0, description="Waiting time that equals one step of priority.")
    backoff: LeaseBackoff | None = Field(
        default_factory=LeaseBackoff, description="Backoff of a tenant after failed leases; null disables it."
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


class Account(_Declared):
    """Provider account: a cloud account, project or subscription in one region, as throttled by the provider."""

    id: Id
    provider: Id = Field(description="Name of the provider adapter, for example simulated.")
    region: Name
    credential: Name = Field(description="Reference to a secret, never the secret itself; none if not needed.")
    identity: Name = Field(description="Identity the provider must report; otherwise no worker is marked lost.")
    lease_pool: Id = Field(description="Id of the lease pool that admits launches in this account.")
    settings: Settings = Field(default_factory=dict, description="Settings of the provider adapter.")


Profile = Literal["on-demand", "spot", "bare-metal"]


class Evidence(_Declared):
    """Evidence that confirms a start, so that an image without the Slipway agent is not considered bad."""

    boot: Literal["register", "provider_running"] = Field(
        default="register",
        description="register: the worker registers; provider_running: the provider reports it as running.",
    )
    claim: Literal["hook", "queue", "none"] = Field(
        default="hook",
        description="hook: the worker reports its claims; queue: the queue counts claimed tasks; none: not checked.",
    )


class LaunchConfig(_Declared):
    """One way to launch a worker. Its body (account, zone, instance_type, image, settings) is immutable."""

    id: Id | None = Field(None, description="Id [default: a stable hash of the body].")
    account: Id
    zone: Name
    instance_type: Name
    image: Name = Field(description="Image revision; boot failures count against it.")
    base_weight: Positive = Field(1.0, description="Share of launches at equal health, before price_factor.")
    price_factor: Positive = Field(1.0, description="Multiplier of base_weight; higher for cheaper configs.")
    profile: Profile | None = Field(None, description="Health profile [default: that of the pool].")
    settings: Settings = Field(
        default_factory=dict, description="Settings passed to the provider adapter and the machine."
    )


class WorkerPool(_Declared):
    """Worker pool: a named fleet."""

    id: Id
    min_capacity: Count = 0
    max_capacity: Count
    scaling_ratio: Ratio = Field(Fraction(1), description='Workers per task as an exact ratio: "1", "0.25" or "1/3".')
    mode: Literal["observe", "canary", "enforce"] = Field(
        "enforce", description="observe records decisions but launches nothing; canary keeps one worker at a time."
    )
    profile: Profile = Field("on-demand", description="Health profile: spot and bare-metal remember outages longer.")
    evidence: Evidence = Field(default_factory=Evidence)
    on_bad_image: Literal["probe", "freeze"] = Field(
        "probe", description="probe: keep trying with one start at a time; freeze: stop the pool until it is unfrozen."
    )
    freeze_after: AtLeastOne = Field(
        10, description="Consecutive starts of an image without a success that freeze the pool."
    )
    launch_configs: tuple[LaunchConfig, ...] = Field(min_length=1, max_length=1000)

    @model_validator(mode="after")
    def _ordered(self) -> "WorkerPool":
        if self.min_capacity > self.max_capacity:
            raise ValueError(f"min_capacity {self.min_capacity} is above max_capacity {self.max_capacity}")
        return self


class Declaration(_Declared):
    """Complete content of slipway.yaml. All sections are required, since whatever is not declared is removed."""

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
    """Load a declaration from YAML; raises Invalid with all problems found, each with its line."""
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
    """Parse a declaration from a decoded JSON body; raises Invalid without lines."""
    try:
        return Declaration.model_validate(body)
    except ValidationError as error:
        raise Invalid(list(_problems(error, Document(body, {}, [])))) from error


def json_schema() -> dict[str, Any]:
    """JSON Schema of slipway.yaml, for editors. Constraints across entries, such as references, are not included."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:slipway:schema:slipway.yaml",
        **Declaration.model_json_schema(),
        "title": "slipway.yaml",
    }


def scaled(declaration: Declaration, speed: float) -> Declaration:
    """Copy of a declaration with every duration, including those in settings, divided by `speed`."""
    return parse(_divided(declaration.model_dump(mode="json"), speed))


def config_id(pool: WorkerPool, config: LaunchConfig) -> str:
    """Declared id, or a hash of the pool and the body. Weights are excluded, so tuning them keeps the history."""
    if config.id is not None:
        return config.id
    body = config.model_dump(mode="json", include={"account", "zone", "instance_type", "image", "settings"})
    return stable_id(pool.id, msgspec.json.encode(body, order="sorted"))


class _Inconsistent(ValueError):
    def __init__(self, problems: list[tuple[Path, str]]) -> None:
        super().__init__("; ".join(reason for _, reason in problems))
        self.problems = problems


def _inconsistencies(declared: Declaration) -> Iterator[tuple[Path, str]]:
    """Errors across entries: duplicate ids and unknown references."""
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
            yield path, f"{id_!r} is already used by {path_text(before[:-1])}"


def _unknown(kind: str, id_: str, known: set[str]) -> str:
    return f"no {kind} {id_!r} is declared; declared: {', '.join(sorted(known)[:10]) or 'none'}"


def _problems(error: ValidationError, document: Document) -> Iterator[DocumentProblem]:
    errors = error.errors(include_url=False)
    for found in errors:
        where, cause = _outside_settings(found["loc"]), found.get("ctx", {}).get("error")
        if isinstance(cause, _Inconsistent):
            for path, reason in cause.problems:
                yield DocumentProblem(path_text(path), reason, document.line(path))
        # Pydantic also reports a list as too short if its entries are invalid; those are reported themselves.
        elif found["type"] != "too_short" or not any(other["loc"][:-1][: len(where)] == where for other in errors):
            yield DocumentProblem(path_text(where), _reason(found), document.line(where))


def _reason(found: Any) -> str:
    context, shown = found.get("ctx", {}), _shown(found["input"])
    match found["type"]:
        case "missing":
            return "is missing"
        case "extra_forbidden":
            return f"unknown field; known: {', '.join(_fields(found['loc'][:-1]))}"
        case "too_short":
            return f"must have at least {context['min_length']} entry"
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
    """Path without anything inside settings, which may be deeply nested, and without the tags of alternatives."""
    path = tuple(part for part in path if part not in ALTERNATIVES)
    return path[: path.index("settings") + 1] if "settings" in path else path


def _shown(value: object) -> str:
    """Short text of a value; mappings and lists are only named."""
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "…"


def _fields(path: Path) -> list[str]:
    """Field names allowed at `path`."""
    model: type[BaseModel] = Declaration
    for part in path:  # list indexes and mapping keys do not change the model
        if isinstance(part, str) and part in model.model_fields:
            model = _model_in(model.model_fields[part].annotation) or model
    return list(model.model_fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Model contained in an annotation: directly, in a list, in a mapping or in a union."""
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
    """All scalar values in `value`, including keys."""
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
