"""Terraform workspaces: one per worker that is made by a module. Pure.

A workspace is a row with a phase, which names the run that it needs next. A run holds the workspace's lock under a
fencing token and saves a new state only over the one that it began with.
"""

from datetime import datetime
from enum import StrEnum
from typing import Any, Final

import msgspec

LINEAGE_CHARACTERS_MAX: Final = 100
SERIAL_MAX: Final = 2**63 - 1


class Phase(StrEnum):
    """Phase of a workspace."""

    QUEUED = "queued"  # nothing has been applied
    UNKNOWN = "unknown"  # an apply may have created resources that its state lacks: they are looked up by their tag
    READY = "ready"
    DESTROYING = "destroying"
    ORPHAN = "orphan"  # resources without a row, for which one was made to destroy them: found by their tags first
    GONE = "gone"


class Operation(StrEnum):
    """Operation of a run."""

    APPLY = "apply"
    LOOK_UP = "look_up"
    REFRESH = "refresh"
    DESTROY = "destroy"
    RECLAIM = "reclaim"


NEXT: Final = {
    Phase.QUEUED: Operation.APPLY,
    Phase.UNKNOWN: Operation.LOOK_UP,
    Phase.READY: Operation.REFRESH,
    Phase.DESTROYING: Operation.DESTROY,
    Phase.ORPHAN: Operation.RECLAIM,
}
"""Run that a workspace needs in each phase."""
ABANDONED: Final = {
    Phase.QUEUED: Phase.UNKNOWN,
    Phase.UNKNOWN: Phase.UNKNOWN,
    Phase.READY: Phase.READY,
    Phase.DESTROYING: Phase.DESTROYING,
    Phase.ORPHAN: Phase.ORPHAN,
    Phase.GONE: Phase.GONE,
}
"""Phase of a workspace whose run has lost its lock: what was not applied before may have been by that run. A refresh
creates nothing, and a destruction may be repeated."""


class Kind(StrEnum):
    """Kind of an encrypted document of a workspace."""

    INPUTS = "inputs"  # its launch call, until it is gone
    STATE = "state"
    REJECTED = "rejected"  # a state that was not saved over another one, which nobody else has


class Workspace(msgspec.Struct, frozen=True, kw_only=True):
    """Row of the table `workspace`; fields are its columns. `batch_id` and `ordinal` are those of its intent; one that
    was made for an orphan has an ordinal below 1.

    `holder` is the run that holds its lock until `locked_until`, under the fencing token `fence`. A run that has lost
    it may have effects until `effects_until`, and those of an apply end `effects_seconds` after its beginning.
    `failed_runs` counts failed runs in a row, whose last `problem` it has, and `interruptions` those by shutdowns in a
    row, of which only many count as failed runs.
    """

    id: str
    deployment: str
    incarnation: str
    account_id: str
    batch_id: str
    ordinal: int
    launch_config_id: str
    phase: Phase
    effects_seconds: float
    holder: str = ""
    fence: int = 0
    locked_until: datetime | None = None
    effects_until: datetime | None = None
    due_at: datetime | None = None
    failed_runs: int = 0
    interruptions: int = 0
    instance_id: str | None = None
    address: str = ""
    outcome: dict[str, Any] | None = None
    problem: str = ""
    created_at: datetime | None = None
    refreshed_at: datetime | None = None
    ended_at: datetime | None = None


class Version(msgspec.Struct, frozen=True):
    """Version of a Terraform state. States of one lineage are ordered by their serial numbers."""

    lineage: str
    serial: int


class NotAState(ValueError):
    """A text is no Terraform state, or not one of format 4; the message says why and contains nothing of it."""


def version_of(state: bytes) -> Version:
    """Version of a Terraform state of format 4, the only one since Terraform 0.12. Raises NotAState."""
    try:
        read = msgspec.json.decode(state)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise NotAState("it is not JSON") from None
    if not isinstance(read, dict) or read.get("version") != 4:
        raise NotAState("its format is not 4")
    lineage, serial = read.get("lineage"), read.get("serial")
    if not isinstance(lineage, str) or not 0 < len(lineage) <= LINEAGE_CHARACTERS_MAX or not lineage.isprintable():
        raise NotAState(f"it has no lineage of 1 to {LINEAGE_CHARACTERS_MAX} printable characters")
    if not isinstance(serial, int) or isinstance(serial, bool) or not 0 <= serial <= SERIAL_MAX:
        raise NotAState("it has no serial number")
    return Version(lineage, serial)


def addresses_of(state: bytes) -> list[str]:
    """Addresses of the managed resources of a state in the user's module, which is a module of the root. Raises
    NotAState."""
    version_of(state)
    found = []
    for resource in msgspec.json.decode(state).get("resources", []):
        if resource.get("mode") == "managed":
            _, _, inner = resource.get("module", "").removeprefix("module.").partition(".")
            address = ".".join(part for part in (inner, resource["type"], resource["name"]) if part)
            number = len(resource.get("instances", []))
            found.append(address if number <= 1 else f"{address} ({number})")
    return found


def empty_state(lineage: str) -> bytes:
    """First state of a workspace. Its lineage is given, so that no run can begin another one unnoticed."""
    state = {"version": 4, "serial": 0, "lineage": lineage, "outputs": {}, "resources": []}
    return msgspec.json.encode(state)


def rejection(stored: Version | None, base: Version, new: Version) -> str:
    """Reason for which a run that began with `base` must not save `new` over the `stored` state; empty if it may.

    The stored state changes only under the lock, so that another one than `base` was written by a run that took the
    lock over, or behind Slipway's back.
    """
    if stored is None:
        return "the workspace no longer has a state"
    if new.lineage != stored.lineage:
        return f"its lineage is {new.lineage}, that of the workspace is {stored.lineage}"
    if stored != base:
        return f"the stored state has serial {stored.serial}, and the run began with {base.serial}"
    if new.serial < stored.serial:
        return f"its serial is {new.serial}, and the stored state has {stored.serial}"
    return ""
