"""Settings of the daemon: a TOML file, and SLIPWAY_TERRAFORM_* variables, which take precedence over it.

The file names the plugin executables that may be started. Clients ask for a provider by source and version, so that no
request makes the daemon run anything else.
"""

import os
import re
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import msgspec

from slipway_terraform.domain.policy import Policy
from slipway_terraform.domain.sockets import SOCKET_BYTES_MAX
from slipway_terraform.domain.specs import Mode, ProviderSpec

PREFIX: Final = "SLIPWAY_TERRAFORM_"
SOCKET: Final = Path("/run/slipway-terraform/daemon.sock")
NO_FILE: Final = Path()
SIMILARITY_MIN: Final = 0.8
"""Similarity from which a name counts as misspelt. Those of the provisioner's settings are less alike."""
PORT_MAX: Final = 65_535
DIGEST: Final = re.compile(r"[0-9a-f]{64}")
SOURCE: Final = re.compile(r"[^/\s]+/[^/\s]+/[^/\s]+")


class InvalidSettings(ValueError):
    """Settings that cannot be used; the message names the setting and the remedy."""


class SchedulerKind(StrEnum):
    """Kind of scheduler."""

    NOOP = "noop"
    WORKSPACE = "workspace"
    SHARED = "shared"


class Executable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A plugin executable that the daemon may start, as `[[provider]]` in the file.

    `environment` is set for the plugin; `client_environment` lists the variables that a client may set beside it. A
    variable such as LD_PRELOAD would make the plugin run other code, so no client may choose freely.
    """

    source: str
    version: str
    binary: Path
    digest: str
    arguments: tuple[str, ...] = ()
    mode: Mode = Mode.COOKIE
    environment: dict[str, str] = {}
    client_environment: tuple[str, ...] = ()

    def spec(self, configuration: Mapping[str, Any], environment: Mapping[str, str], tenant: str) -> ProviderSpec:
        """Specification of a process for what a client asks for."""
        return ProviderSpec(
            source=self.source,
            version=self.version,
            binary=str(self.binary),
            digest=self.digest,
            arguments=self.arguments,
            mode=self.mode,
            configuration=configuration,
            environment={**self.environment, **environment},
            tenant=tenant,
        )


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the daemon. Durations are in seconds."""

    socket: Path = SOCKET
    """Unix socket. Its folder is made with mode 0700, must belong to the daemon's user, and serves one daemon."""
    scheduler: SchedulerKind = SchedulerKind.WORKSPACE
    """noop, workspace (a process per lease) or shared (a process per configuration)."""
    policy: Policy = Policy()
    """Limits on processes, as `[policy]` in the file."""
    provider: tuple[Executable, ...] = ()
    connections_max: int = 1024
    """Connections at a time. Each lease, and each caller that waits for one, has one."""
    requests_max: int = 32
    """Unanswered requests of one connection; further ones are refused."""
    idle_connection_seconds: float = 60.0
    """Time after which a connection without a lease and without a request is closed."""
    drain_seconds: float = 60.0
    """Time that leases have to end after SIGTERM; then their processes are stopped."""
    metrics_port: int | None = None
    """Port of the metrics on 127.0.0.1; unset: not served. 0 lets the system choose."""
    metrics_tokens_file: Path = NO_FILE
    """SHA-256 sums of the tokens that read the metrics, one a line; needed for `metrics_port`."""

    def executable(self, source: str, version: str) -> Executable | None:
        """The executable of a provider; None if none is listed."""
        return next((each for each in self.provider if (each.source, each.version) == (source, version)), None)


SETTINGS_FIELDS: Final = frozenset(Settings.__struct_fields__)
POLICY_FIELDS: Final = frozenset(Policy.__struct_fields__)
VARIABLES: Final = SETTINGS_FIELDS - {"policy", "provider"}


def load(path: Path | None, environment: Mapping[str, str] = os.environ) -> Settings:
    """Read the settings. `path` defaults to SLIPWAY_TERRAFORM_SETTINGS; without either there are only variables.

    A variable is the name of a setting, or of a limit of the policy, in capitals after SLIPWAY_TERRAFORM_. Raises
    InvalidSettings.
    """
    named = environment.get(f"{PREFIX}SETTINGS")
    file = path or (Path(named) if named else None)
    values = _read(file) if file else {}
    place = str(file)
    try:
        _refuse_unknown("[policy]", values.get("policy", {}), POLICY_FIELDS)
        _refuse_unknown("the file", values, SETTINGS_FIELDS)
        settings = msgspec.convert(values, Settings, dec_hook=_decode)
        place = f"variables {PREFIX}…"
        _refuse_misspelt(environment)
        policy = msgspec.structs.replace(settings.policy, **_variables(Policy, POLICY_FIELDS, environment))
        settings = msgspec.structs.replace(settings, policy=policy, **_variables(Settings, VARIABLES, environment))
        place = "settings"  # of the file or a variable
        _check(settings)
    except (msgspec.ValidationError, ValueError) as error:
        raise InvalidSettings(f"{place}: {error}{_choices(str(error))}") from None
    return settings


def _choices(problem: str) -> str:
    """Usable values, for a problem with a setting that has a list of them."""
    if "Invalid enum value" not in problem:
        return ""
    return f"; write {', '.join(SchedulerKind if 'scheduler' in problem.lower() else Mode)}"


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidSettings(f"{file}: {error.strerror}; name a readable file with --settings") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidSettings(f"{file}: not TOML: {error}") from None


def _decode(kind: type[Any], value: Any) -> Any:
    """Decode a path, the only type that msgspec does not know."""
    if kind is Path and isinstance(value, str):
        return Path(value)
    raise TypeError(f"expected a string, got {type(value).__name__}")


def _refuse_unknown(place: str, values: object, known: frozenset[str]) -> None:
    if isinstance(values, dict) and (unknown := sorted(values.keys() - known)):
        raise ValueError(f"{place} cannot set {', '.join(unknown)}; the settings are {', '.join(sorted(known))}")


def _refuse_misspelt(environment: Mapping[str, str]) -> None:
    """Refuse variables whose names resemble that of a setting. Others may be a provisioner's. Raises ValueError."""
    names = sorted(name.upper() for name in VARIABLES | POLICY_FIELDS | {"settings"})
    for variable in sorted(environment):
        name = variable.removeprefix(PREFIX)
        if name != variable and name not in names and (like := get_close_matches(name, names, 1, SIMILARITY_MIN)):
            raise ValueError(f"{name} is not a setting; rename it to {like[0]}, or unset it")


def _variables(kind: type[msgspec.Struct], names: frozenset[str], environment: Mapping[str, str]) -> dict[str, Any]:
    """Values of the variables that are set, by the name of their field. Raises ValueError."""
    values = {}
    for field in msgspec.structs.fields(kind):
        text = environment.get(PREFIX + field.name.upper())
        if field.name in names and text is not None:
            try:
                values[field.name] = msgspec.convert(text, field.type, strict=False, dec_hook=_decode)
            except msgspec.ValidationError as error:
                raise ValueError(f"{field.name.upper()}: {error}") from None
    return values


def _check(settings: Settings) -> None:
    """Check what types do not express. Raises ValueError."""
    length = len(os.fsencode(settings.socket))
    if not settings.socket.is_absolute() or length > SOCKET_BYTES_MAX:
        expected = f"expected an absolute path of at most {SOCKET_BYTES_MAX} bytes, found {length}"
        raise ValueError(f"socket {settings.socket}: {expected}; set `socket` to another path")
    for name in ("connections_max", "requests_max"):
        if getattr(settings, name) < 1:
            raise ValueError(f"{name} must be at least 1")
    if not 0 < settings.idle_connection_seconds < float("inf"):
        raise ValueError("idle_connection_seconds must be a time in seconds, above 0")
    if not 0 <= settings.drain_seconds < float("inf"):
        raise ValueError("drain_seconds must be a time in seconds, of at least 0")
    if settings.metrics_port is not None and not 0 <= settings.metrics_port <= PORT_MAX:
        raise ValueError(f"metrics_port must be 0 to {PORT_MAX}")
    if settings.metrics_port is not None and not settings.metrics_tokens_file.is_absolute():
        raise ValueError("metrics_port needs metrics_tokens_file, the absolute path of a file with the sums of tokens")
    if not settings.provider:
        raise ValueError(
            "no provider is listed, so that each request would be refused; add a [[provider]] with source, version, "
            "binary and digest to the file, as the guide on the Terraform daemon shows"
        )
    seen: set[tuple[str, str]] = set()
    for each in settings.provider:
        name = f"provider {each.source} {each.version}"
        if not SOURCE.fullmatch(each.source):
            raise ValueError(f"{name}: source must be HOST/NAMESPACE/TYPE, as registry.terraform.io/hashicorp/aws")
        if not each.binary.is_absolute():
            raise ValueError(f"{name}: binary {each.binary} must be an absolute path")
        if not DIGEST.fullmatch(each.digest):
            raise ValueError(f"{name}: digest must be the executable's SHA-256 sum in lower-case hex (sha256sum)")
        if (each.source, each.version) in seen:
            raise ValueError(f"{name} is listed twice; keep one")
        seen.add((each.source, each.version))
