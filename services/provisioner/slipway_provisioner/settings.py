"""Settings of the provisioner; durations in seconds. Read once, in main.py."""

from collections.abc import Mapping
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from slipway_common.base.process.users import ChildUser
from slipway_common.base.settings import Secret, current_value
from slipway_common.base.tls import client_context
from slipway_common.declaration.fields import Money, Place, Provider
from slipway_common.declaration.files import read_file
from slipway_common.declaration.strict_yaml import Invalid, read
from slipway_common.declaration.user_data import URL_PATTERN
from slipway_common.observability.telemetry import logger
from slipway_common.signal_settings import SignalSettings
from slipway_provisioner.domain.deadlines import DefaultDeadlines, defaults
from slipway_provisioner.domain.encryption import BadKeys, KeyRing, keys_by_id
from slipway_provisioner.domain.limits import Tariff
from slipway_provisioner.domain.operator import OperatorSettings, operator_settings
from slipway_provisioner.domain.prices import MachineKind, Prices
from slipway_provisioner.domain.registration import RegistrationKeys

LOG = logger(__name__)

AUTHORITIES_CHARACTERS_MAX = 4_096


class Settings(SignalSettings):
    """Settings of the provisioner. A demo divides the first group, the product times, by its speed."""

    port: int = 7301
    register_url: Annotated[str, Field(pattern=f"^$|{URL_PATTERN}")] = ""
    """URL at which machines reach this service, at most 200 characters [default: its own host and port]."""
    register_ca_file: Path | None = None
    """Authorities, in PEM, that machines trust in addition, for a private authority; user data carry them as `ca`."""
    registration_keys: Annotated[str, Secret()]
    """Keys of batch registration secrets, one a line: the base64 of 32 random bytes. The first one derives, all verify.
    The file of SLIPWAY_REGISTRATION_KEYS_FILE is read again when it changes: to rotate, put a new key first, and remove
    the old one after the longest registration deadline."""
    providers: str = ""
    """Providers that declarations may use, by name and with commas between them [default: those that run no commands].
    As a mapping in YAML, usually in the file of SLIPWAY_PROVIDERS_FILE, it also has each provider's `entries` (files,
    executables and endpoints) and `credentials`, which declarations name."""
    child_user: str = ""
    """User of this host as whom commands and modules of providers run. The service is then started as root, or with the
    right to become that user [default: the user of this service, who reads its files and passwords]."""
    commands_as_service: bool = False
    """True: commands and modules may run as the user of this service. Without it and `child_user`, it does not start
    with a provider in `providers` that runs some."""
    state_keys: Annotated[str, Secret()] = ""
    """Keys that encrypt the states of Terraform workspaces, one a line: the base64 of 32 random bytes. The first one
    encrypts, all decrypt; the file of SLIPWAY_STATE_KEYS_FILE is read again when it changes [default: none, and no
    workspace is made]."""

    call_timeout_seconds: float = 60.0
    """Timeout of a provider call, after which its outcome is unknown. Longer: slower recovery from a lost reply."""
    accepted_timeout_seconds: float = 3600.0
    """Time in which a launch that its provider has accepted must end; afterwards its instances are looked up."""
    poll_seconds: float = 5.0
    """Interval between two polls of an accepted launch."""
    visibility_seconds: float = 10.0
    """Longest time until a provider lists a new instance; earlier, "not found" proves nothing."""
    boot_timeout_seconds: float = 900.0
    """Registration slower than this is a boot failure. This time and the three below are defaults of `deadlines`."""
    identity_grace_seconds: float = 600.0
    """The identity document of a machine enrols it within its registration deadline and this time, which it may take
    until the lost reply of a launch is resolved and the deadline begins."""
    idle_timeout_seconds: float = 120.0
    """A surplus worker that has been idle for this long is stopped."""
    give_up_idle_seconds: float = 300.0
    """A worker that has been idle for this long while tasks are pending is stopped and replaced, also if it has never
    claimed one."""
    stale_demand_seconds: float = 3600.0
    """A source of demand that no longer reports protects idle workers for this long after its last report was valid;
    then it is dropped."""
    unresponsive_timeout_seconds: float = 900.0
    """A registered worker without contact for this long is stopped, and terminated after the grace period."""
    stop_grace_seconds: float = 120.0
    """Grace period in which a stopping worker may end by itself before its instance is terminated. If it claimed a task
    when it was asked to stop as an idle one, the period begins after that task."""
    stuck_after_seconds: float = 600.0
    """A worker whose provider refuses to terminate it for this long is stuck: a few of them are replaced."""
    starved_after_seconds: float = 600.0
    """A pool that may launch and needs workers for this long, and for half as long again as a registration may take,
    without a registration, raises an alert."""
    sources_max: Annotated[int, Field(ge=1)] = 5
    """Sources of demand that a token may have in a pool at a time over HTTP."""
    clock_skew_seconds: float = 5.0
    """Clock skew allowed between services; subtracted from every lease deadline."""
    unreachable_after_seconds: float = 120.0
    """An account whose calls are unanswered for this long is unreachable: others launch in its place."""
    throttled_after_seconds: float = 60.0
    """An account that has throttled calls for this long raises a notice, until it has throttled none for as long."""
    resend_seconds: float = 30.0
    """Interval after which an unanswered lease request is resent."""
    reap_seconds: float = 60.0
    """Interval between two passes of the instance reaper over an account."""
    console_retry_seconds: float = 60.0
    """Time after which the console output of a machine that never registered is asked for again, if its provider had
    none; it doubles with each attempt."""
    account_check_seconds: float = 3600.0
    """Interval between two checks of an account: identity, permissions, quotas, subnets and images."""
    sweep_seconds: float = 600.0
    """Interval at which every pool is planned and its counters are verified, at the latest."""
    unavailable_attempt_seconds: float = 30.0
    """Interval of single attempts in a pool whose windows are full while the weight-calculator is unavailable."""
    weight_half_life_seconds: float = 600.0
    """Half-life of the last weights while the weight-calculator is unavailable, equal to that of its evidence."""
    hour_seconds: float = 3600.0
    """Length of the hour of `launches_per_hour` and of prices. Only a demo shortens it."""
    day_seconds: float = 86_400.0
    """Length of the day of `spend_per_day`. Only a demo shortens it."""

    prices_file: Path | None = None
    """Prices of machines, read at start: a list `prices` of provider, region, instance_type, lifecycle [on-demand] and
    per_hour, in one currency. A launch without a price is refused where spend is limited."""
    unavailable_after_seconds: float = 30.0
    """A service without a heartbeat for this long is unavailable. Not a product time: heartbeats take real seconds."""
    broker_unavailable_mode: Literal["wait", "safe"] = "wait"
    """Launches while the lease-broker is unavailable: `wait` for it, or `safe`: start unleased at its last granted
    pace, each reported and charged later."""
    lease_broker_url: str = ""
    """URL of the lease-broker. While it answers there it is only cut off from Kafka, and nothing starts unleased
    [default: it is not asked]."""
    accounts_listed_at_once: Annotated[int, Field(ge=1)] = 2
    """Accounts that the instance reaper of one replica lists at the same time."""
    terraform_folder: str = ""
    """Folder of this process for runs of Terraform, with a short path [default: slipway-terraform-PORT in the system's
    temporary folder]. A process that starts with the folder of a killed one releases its locks at once."""
    terraform_runs_max: Annotated[int, Field(ge=1)] = 4
    """Largest number of concurrent runs of Terraform of one replica. A run takes about a core for seconds."""
    terraform_shares_plugins: bool = False
    """True: one plugin process serves all workspaces of an account; else each workspace has its own."""
    terraform_sweep_share: Annotated[float, Field(ge=0, le=1)] = 0.01
    """Share of a core for refreshing Terraform workspaces and listing accounts, in turn, once an hour at most.
    0: none, except listings of accounts that have not been listed yet, or not since a restore."""
    calls_in_flight_max: int = 64
    """Largest number of concurrent provider calls of one replica."""
    starts_at_once: Annotated[int, Field(ge=1)] = 4
    """Calls that one replica commits at the same time, each with a connection to the database."""
    send_within_seconds: float = 2.0
    """A committed call that is not sent within this time (monotonic clock) returns to the admission queue."""
    launching: bool = True
    """False: decide and record, but launch nothing (for a drill)."""

    @field_validator("providers")
    @classmethod
    def _readable_providers(cls, text: str) -> str:
        _operator_settings(text)
        return text

    def operator_settings(self) -> OperatorSettings | None:
        """Providers that may be declared, with the operator's settings; None: those that run no commands."""
        return _operator_settings(self.providers)

    @field_validator("child_user")
    @classmethod
    def _usable_user(cls, name: str) -> str:
        if name:
            ChildUser.named(name)
        return name

    def user_of_children(self) -> ChildUser | None:
        """User as whom commands and modules run; None: that of this service."""
        return ChildUser.named(self.child_user) if self.child_user else None

    @field_validator("state_keys")
    @classmethod
    def _usable(cls, lines: str) -> str:
        KeyRing(lines)  # the message of a ValueError names the line alone
        return lines

    @field_validator("registration_keys")
    @classmethod
    def _usable_keys(cls, lines: str) -> str:
        _registration_keys(lines)
        return lines

    def registration(self) -> RegistrationKeys:
        """Keys of the file as it is now. One that has become unusable changes nothing."""
        try:
            return _registration_keys(current_value("registration_keys", self.registration_keys))
        except BadKeys as error:
            LOG.error("the file of registration keys is not used as it is", problem=str(error))
            return _registration_keys(self.registration_keys)

    def state_key_ring(self) -> KeyRing:
        """State keys, which follow their file."""
        return StateKeys(self.state_keys)

    def deadlines(self) -> DefaultDeadlines:
        """Deadlines by profile, of workers that declare none."""
        return defaults(
            {
                "registration_seconds": self.boot_timeout_seconds,
                "first_claim_seconds": self.give_up_idle_seconds,
                "idle_seconds": self.idle_timeout_seconds,
                "idle_despite_demand_seconds": self.give_up_idle_seconds,
                "unresponsive_seconds": self.unresponsive_timeout_seconds,
            }
        )

    @model_validator(mode="after")
    def _is_reached_by_tls(self) -> Self:
        """Report at start-up that machines could not register."""
        if self.tls_certificate_file is not None and not self.url_for_machines.startswith("https://"):
            raise ValueError("SLIPWAY_REGISTER_URL must begin with https://, since SLIPWAY_TLS_CERTIFICATE_FILE is set")
        self.authorities_for_machines()
        return self

    @property
    def url_for_machines(self) -> str:
        """URL at which machines reach this service."""
        scheme = "http" if self.tls_certificate_file is None else "https"
        return self.register_url or f"{scheme}://{self.host}:{self.port}"

    def authorities_for_machines(self) -> str:
        """Certificates of the authorities that machines trust in addition, in PEM; raises ValueError."""
        if self.register_ca_file is None:
            return ""
        client_context(ca_file=self.register_ca_file)
        found = self.register_ca_file.read_text(encoding="ascii")
        if len(found) > AUTHORITIES_CHARACTERS_MAX:
            raise ValueError(
                f"{self.register_ca_file} has {len(found):,} characters, and user data have room for "
                f"{AUTHORITIES_CHARACTERS_MAX:,}; leave out what is no certificate of an authority"
            )
        return found

    @field_validator("prices_file")
    @classmethod
    def _readable(cls, path: Path | None) -> Path | None:
        """Report errors at start-up rather than at the first launch."""
        _prices(path)
        return path

    def tariff(self) -> Tariff:
        """Prices, and the hour and day of limits."""
        return Tariff(prices=_prices(self.prices_file), hour_seconds=self.hour_seconds, day_seconds=self.day_seconds)


class StateKeys(KeyRing):
    """State keys of the file as it is now. One that has become unusable changes nothing."""

    def __init__(self, at_start: str) -> None:
        super().__init__(at_start)
        self._at_start = self._lines = at_start

    @property
    def _keys(self) -> Mapping[str, bytes]:
        if (lines := current_value("state_keys", self._at_start)) != self._lines:
            self._lines = lines
            try:
                self._known = keys_by_id(lines)
            except BadKeys as error:
                LOG.error("the file of state keys is not used as it is", problem=str(error))
        return self._known


@cache
def _prices(path: Path | None) -> Prices:
    """Read prices from a file, once; raises ValueError with the location of the error."""
    return {} if path is None else read_file(path, prices_of)


@cache
def _registration_keys(lines: str) -> RegistrationKeys:
    return RegistrationKeys(lines)


@cache
def _operator_settings(text: str) -> OperatorSettings | None:
    """Settings of providers in the value of `providers`. Raises ValueError with the place of the error."""
    if not text.strip():
        return None
    try:
        document = read(text)
        if document.problems:
            raise Invalid(document.problems)
    except Invalid as error:
        first = error.problems[0]
        raise ValueError(f"line {first.line}: {first.path}: {first.reason}") from None
    return operator_settings(document.value)


class _Price(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    provider: Provider
    region: Place
    instance_type: Place
    lifecycle: Literal["on-demand", "spot"] = "on-demand"
    per_hour: Money


class _PricesFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    prices: tuple[_Price, ...]


def prices_of(document: Any) -> dict[MachineKind, Decimal]:
    """Prices in the value of a prices_file. Raises ValueError if it is none, or has two for one kind of machine."""
    found: dict[MachineKind, Decimal] = {}
    for price in _PricesFile.model_validate(document).prices:
        kind = MachineKind(price.provider, price.region, price.instance_type, price.lifecycle)
        if kind in found:
            raise ValueError(f"prices: {kind} has two prices; write one")
        found[kind] = price.per_hour
    return found
