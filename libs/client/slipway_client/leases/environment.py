"""Environment that switches leases off, and that of a command under a lease. Pure."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from slipway_api.http.lease_broker import Lease

LEASE_ID: Final = "SLIPWAY_LEASE_ID"
FENCING_TOKEN: Final = "SLIPWAY_FENCING_TOKEN"  # noqa: S105 (a number that grows, no secret)
LEASE_POOL: Final = "SLIPWAY_LEASE_POOL"
TOKEN: Final = "SLIPWAY_TOKEN"  # noqa: S105 (the name of a variable)
# Variables with secrets, or with the files that hold them. A command is often somebody else's code, with its own logs.
SECRETS: Final = frozenset(
    f"SLIPWAY_{name}{suffix}"
    for name in (
        "TOKEN",
        "REGISTRATION_KEYS",
        "STATE_KEYS",
        "DATABASE_URL",
        "KAFKA_PASSWORD",
        "KAFKA_KEY",
        "KAFKA_OAUTH_CLIENT_SECRET",
        "TLS_KEY",
    )
    for suffix in ("", "_FILE")
)


SWITCH: Final = "SLIPWAY_LEASE"
OFF: Final = frozenset({"off", "false", "0"})


def switched_off(environment: Mapping[str, str]) -> bool:
    """True if SLIPWAY_LEASE switches leases off: by `off`, `false` or `0`, in any case."""
    return environment.get(SWITCH, "").strip().lower() in OFF


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without Slipway's secrets."""
    return {name: value for name, value in environment.items() if name not in SECRETS}


def of_command(
    environment: Mapping[str, str], lease_pool_id: str, lease: "Lease | None" = None, token: str = ""
) -> dict[str, str]:
    """Environment with the variables of a lease, if there is one, and of the token bound to it. Those of an outer lease
    are removed."""
    variables = {name: value for name, value in environment.items() if name not in {LEASE_ID, FENCING_TOKEN}}
    variables[LEASE_POOL] = lease_pool_id
    if lease is not None:
        variables |= {LEASE_ID: lease.lease_id, FENCING_TOKEN: str(lease.fencing_token)}
    if token:
        variables[TOKEN] = token
    return variables
