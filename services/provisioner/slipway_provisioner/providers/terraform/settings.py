"""Settings of workers made by Terraform modules: those of an account, and those of a launch config. Pure."""

import re
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeVar

import msgspec

from slipway_api.events.worker import Scope
from slipway_provisioner.providers.launch_settings import misspelt_setting

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_MODULE: Final = re.compile(r"[A-Za-z0-9][\w.-]{0,99}")
_SOURCE: Final = re.compile(r"[\w.-]+/[\w-]+/[\w-]+")
VISIBILITY_SECONDS_MAX: Final = 3600.0
RUN_SECONDS_MAX: Final = 6 * 3600.0
WORKER: Final = "worker"
"""Variable of every module: an object with the id, the tags and the user data of its worker, and its launch config."""
SCOPES: Final = frozenset({Scope.CAPACITY, Scope.QUOTA, Scope.IMAGE, Scope.CREDENTIAL, Scope.LIMITER, Scope.CONFIG})

Struct = TypeVar("Struct", bound=msgspec.Struct)


class Module(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Module by its folder in the account's `modules_folder`, and the SHA-256 of its files."""

    module: str
    digest: str


class Plugin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Installed provider plugin: its fully qualified source, its version, and its executable with its SHA-256.
    `mode`: debug for plugins that require TLS."""

    source: str
    version: str
    binary: str
    digest: str
    mode: Literal["cookie", "debug"] = "cookie"
    arguments: tuple[str, ...] = ()


class TerraformAccount(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of an account. `tool` is the path of terraform or tofu, `configuration` the provider block without
    secrets, `lookup` the module that finds resources by their tags. `errors` adds codes with scopes, `queue_url` is
    for the workers. At most `workspaces_max` workers exist. A new resource is found after `visibility_seconds`."""

    tool: str
    plugins: tuple[Plugin, ...]
    modules_folder: str
    lookup: Module
    configuration: dict[str, Any] = {}
    errors: dict[str, str] = {}
    workspaces_max: int | None = None
    visibility_seconds: float = 30.0
    queue_url: str = ""


class ProviderVersion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Provider of a launch config, which the account must have as a plugin."""

    source: str
    version: str


class Outputs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Names of the module's outputs."""

    instance_id: str = "instance_id"
    address: str = ""


class TerraformLaunch(msgspec.Struct, frozen=True):
    """Settings of a launch config that the provider uses; the others are for the agent."""

    module: str
    digest: str
    provider: ProviderVersion
    variables: dict[str, Any] = {}
    outputs: Outputs = Outputs()
    apply_seconds: float = 1800.0


LAUNCH_FIELDS: Final = (
    f"write {' and '.join(ProviderVersion.__struct_fields__)} into provider, "
    f"{' or '.join(Outputs.__struct_fields__)} into outputs; the "
    f"settings are {', '.join(TerraformLaunch.__struct_fields__)}, and those of the agent"
)


def account_settings(settings: Mapping[str, Any]) -> TerraformAccount:
    """Settings of an account that were checked when they were declared. Raises msgspec.ValidationError."""
    return msgspec.convert(dict(settings), TerraformAccount)


def launch_settings(settings: Mapping[str, Any]) -> TerraformLaunch:
    """Settings of a launch config that were checked when they were declared. Raises msgspec.ValidationError."""
    return msgspec.convert(dict(settings), TerraformLaunch)


def account_problem(settings: Mapping[str, Any]) -> str:
    """Problem with the settings of an account and its remedy; empty if they are usable."""
    try:
        declared = account_settings(settings)
    except msgspec.ValidationError as error:
        return f"{error}; the settings are {', '.join(TerraformAccount.__struct_fields__)}"
    for name, path in (("tool", declared.tool), ("modules_folder", declared.modules_folder)):
        if not path.startswith("/"):
            return f"{name} is {path!r}; write an absolute path"
    if not declared.plugins:
        return "plugins is empty; write the provider's source, version, binary and digest"
    for plugin in declared.plugins:
        if not _SOURCE.fullmatch(plugin.source):
            return f"source {plugin.source!r} is not fully qualified; write HOST/NAMESPACE/TYPE"
        if not plugin.binary.startswith("/"):
            return f"binary of {plugin.source} is {plugin.binary!r}; write an absolute path"
        if not _DIGEST.fullmatch(plugin.digest):
            return f"digest of {plugin.source} is not a SHA-256 in hexadecimal; write what `sha256sum` prints"
    if not 0 <= declared.visibility_seconds <= VISIBILITY_SECONDS_MAX:
        return f"visibility_seconds is {declared.visibility_seconds:g}; write 0 to {VISIBILITY_SECONDS_MAX:g}"
    if declared.workspaces_max is not None and declared.workspaces_max < 1:
        return f"workspaces_max is {declared.workspaces_max}; write how many workers fit, 1 or more"
    for code, scope in declared.errors.items():
        if scope not in SCOPES:
            return f"errors: {code} has scope {scope!r}; write one of {', '.join(sorted(SCOPES))}"
    return _module_problem(declared.lookup.module, declared.lookup.digest, "lookup: ")


def credential_problem(credential: Mapping[str, Any]) -> str:
    """Problem with a reference to a credential and its remedy; empty if it is usable."""
    if credential and not credential.keys() & {"environment", "file"}:
        (kind,) = credential.keys() & {"web_identity", "role"}
        return f"{kind} is not for this provider; write environment or file, and a role into the configuration"
    return ""


def launch_problem(account: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """Problem with the settings of a launch config in an account and its remedy; empty if they are usable."""
    try:
        declared = launch_settings(settings)
    except msgspec.ValidationError as error:
        return f"{error}; {LAUNCH_FIELDS}"
    if problem := misspelt_setting(settings, TerraformLaunch.__struct_fields__):
        return problem
    if WORKER in declared.variables:
        return f"variable {WORKER} is set by Slipway; rename yours"
    if not 1 <= declared.apply_seconds <= RUN_SECONDS_MAX:
        return f"apply_seconds is {declared.apply_seconds:g}; write 1 to {RUN_SECONDS_MAX:g}"
    known = [(plugin.source, plugin.version) for plugin in account_settings(account).plugins]
    if (wanted := (declared.provider.source, declared.provider.version)) not in known:
        listed = ", ".join(map(" ".join, known))
        return f"provider {' '.join(wanted)} is not among the plugins of the account: {listed}; add it there"
    return _module_problem(declared.module, declared.digest)


def _module_problem(module: str, digest: str, place: str = "") -> str:
    if not _MODULE.fullmatch(module):
        return f"{place}module is {module!r}; write the name of a folder in modules_folder"
    if not _DIGEST.fullmatch(digest):
        return f"{place}digest is not a SHA-256 in hexadecimal; the guide on Terraform says how to compute it"
    return ""
