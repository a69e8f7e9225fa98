"""Explanations and their causes, as values and as sentences."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import msgspec

from slipway_api.http.lease_pools import LeasePool
from slipway_api.http.provisioner.accounts import AccountDetails
from slipway_api.http.provisioner.decisions import Decision
from slipway_api.http.provisioner.declaration import RollbackPreview
from slipway_api.http.provisioner.launch_configs import LaunchConfig
from slipway_api.http.provisioner.pools import LaunchStop
from slipway_api.http.provisioner.workers import ConsoleOutput
from slipway_client.view.phrases import since

NAMED: Final = 5  # launch configs in one sentence
NAMES: Final = {
    "pool": "Pool",
    "config": "Launch config",
    "image": "Image",
    "lease-pool": "Lease pool",
    "lease": "Lease",
    "worker": "Worker",
}
NOTHING: Final = "none needed"
PROBES: Final = "Slipway probes by itself and launches again after the first success"
RECOVERS: Final = f"{NOTHING}: {PROBES}"


def printed(consoles: Sequence[ConsoleOutput]) -> list[str]:
    """Console output of a machine that never registered; why there is none; nothing if none was asked for."""
    lines = []
    for console in consoles:
        machine = f"instance {console.instance_id} of {console.account_id}"
        if console.lines:
            lines += [f"Console of {machine}, which {console.reason}:", *(f"  {line}" for line in console.lines)]
        elif console.settled_at:
            lines.append(f"Console of {machine}: {console.problem}.")
        else:
            lines.append(f"Console of {machine}: not posted by its provider yet; it is asked for again.")
    return lines


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of services around what is explained: the launch configs that it is about, the newest decision of each of
    their pools, their accounts that have problems or throttle calls, and the preview of a rollback of their pool, read
    where one of them is tripped. `lease_pools` and `launch_stops` are all that there are."""

    now: datetime
    configs: Sequence[LaunchConfig]
    launch_stops: Sequence[LaunchStop] = ()
    lease_pools: Sequence[LeasePool] = ()
    accounts: Sequence[AccountDetails] = ()
    decisions: Sequence[Decision] = ()
    rollback: RollbackPreview | None = None

    @property
    def active(self) -> list[LaunchConfig]:
        return [config for config in self.configs if config.state == "active"]

    @property
    def lease_pools_used(self) -> list[LeasePool]:
        """The lease pools that admit to the accounts of the launch configs."""
        ids = {config.lease_pool_id for config in self.configs}
        return [row for row in self.lease_pools if row.id in ids]


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """One cause of a state, with its start, if known, and its remedy."""

    text: str
    since: datetime | None = None
    remedy: str = NOTHING


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Explanation of a resource's state. `since` is None where no service stores the time. `details` are further
    sentences; one that begins with a space or an arrow belongs to the one before it."""

    kind: str
    id: str
    cause: str
    since: datetime | None
    effect: str
    remedy: str
    details: Sequence[str] = ()

    def sentences(self, now: datetime) -> list[str]:
        """Cause, since when, effect, remedy, then the details."""
        lines = [f"{NAMES[self.kind]} {self.id}: {self.cause}."]
        lines += [f"Since {since(self.since, now)}."] if self.since else []
        return [*lines, f"Effect: {self.effect}.", f"Remedy: {self.remedy}.", *self.details]


def explained(kind: str, id_: str, causes: Sequence[Cause], effect: str, details: Sequence[str]) -> Explanation:
    """Explanation by the first cause; the other causes become details."""
    first = causes[0]
    also = [f"Also: {cause.text}." + _further(cause) for cause in causes[1:]]
    return Explanation(
        kind=kind,
        id=id_,
        cause=first.text,
        since=first.since,
        effect=effect,
        remedy=first.remedy,
        details=[*also, *details],
    )


def _further(cause: Cause) -> str:
    return "" if cause.remedy.startswith(NOTHING) else f" Remedy: {cause.remedy}."
