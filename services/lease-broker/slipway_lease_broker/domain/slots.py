"""Named slots of a lease pool: units of an account with a name, called resources by Boskos. Values and rules; pure.

A slot that changes from free to busy or leased is held under a lease of its pool. All other states, such as dirty and
cleaning, are agreed on by its users.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec

from slipway_common.declaration.changes import Result
from slipway_lease_broker.domain.ledger import Lease

FREE: Final = "free"
LEASED: Final = "leased"
HELD: Final = frozenset({"busy", LEASED})

UNIT_SECONDS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
PART: Final = re.compile(rf"([0-9]+\.?[0-9]*|\.[0-9]+)({'|'.join(UNIT_SECONDS)})", re.ASCII)
# Go counts nanoseconds in 64 bits.
DURATION_SECONDS_MAX: Final = (2**63 - 1) / 1e9


class Slot(msgspec.Struct, frozen=True, kw_only=True):
    """One slot. Without an owner it is available in its state."""

    name: str
    lease_pool_id: str
    state: str
    owner: str = ""
    updated_at: datetime
    userdata: dict[str, str] = {}
    request_id: str | None = None  # request that its owner acquired it with
    acquired_by: str = ""  # token that its owner acquired it with: the owner's name is text that anybody may send
    lease_id: str | None = None  # lease that it is held under
    fencing_token: int | None = None  # of the last lease
    removed_at: datetime | None = None  # when it left the declared list while owned: it goes with its owner


def is_grant(state: str, dest: str) -> bool:
    """True if a change from `state` to `dest` needs a lease."""
    return state == FREE and dest in HELD


def taken(
    slot: Slot,
    dest: str,
    owner: str,
    now: datetime,
    *,
    acquired_by: str,
    request_id: str | None = None,
    lease: Lease | None = None,
) -> Slot:
    return msgspec.structs.replace(
        slot,
        state=dest,
        owner=owner,
        updated_at=now,
        request_id=request_id,
        acquired_by=acquired_by,
        lease_id=None if lease is None else lease.id,
        fencing_token=slot.fencing_token if lease is None else lease.fencing_token,
    )


def released(slot: Slot, dest: str, now: datetime) -> Slot:
    """The slot without an owner; its user data stay."""
    return msgspec.structs.replace(
        slot, state=dest, owner="", updated_at=now, request_id=None, acquired_by="", lease_id=None
    )


def merged(userdata: Mapping[str, str], changes: Mapping[str, str]) -> dict[str, str]:
    """User data after `changes`, in which an empty value deletes its key."""
    return {key: value for key, value in {**userdata, **changes}.items() if value or key not in changes}


def go_seconds(text: str) -> float:
    """A duration as Go writes it, such as 30m, 1h15m, 1.5s or 0, in seconds; ValueError for anything else."""
    number = text.removeprefix("-") if text.startswith("-") else text.removeprefix("+")
    parts = PART.findall(number)
    if number != "0" and (not parts or "".join(map("".join, parts)) != number):
        raise ValueError(f"{text[:50]!r} is not a duration such as 30m, 1h15m or 90s")
    seconds = sum(float(amount) * UNIT_SECONDS[unit] for amount, unit in parts)
    if seconds > DURATION_SECONDS_MAX:
        raise ValueError(f"{text[:50]!r} is longer than a duration can be")
    return -seconds if text.startswith("-") else seconds


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """The slots of one lease pool in a declared list: their names, and the initial state of new ones."""

    lease_pool_id: str
    state: str
    names: tuple[str, ...]


class SlotChange(msgspec.Struct, frozen=True, kw_only=True):
    """Changes of a declared list of slots in one lease pool; `limit_units` is None where the limit stays. `kept` slots
    are removed once they have no owner, unless they are listed again before: those are `restored`."""

    lease_pool_id: str
    result: Result = "unchanged"  # of the pool's terms
    limit_units: int | None = None
    added: tuple[Slot, ...] = ()
    removed: tuple[str, ...] = ()
    kept: tuple[Slot, ...] = ()  # no longer listed, but owned
    restored: tuple[Slot, ...] = ()


def compare(listed: Listed, current: Sequence[Slot], now: datetime) -> SlotChange:
    """Slots that a list adds and removes. An owned slot is removed later; an existing one stays as it is."""
    names, wanted = {slot.name for slot in current}, set(listed.names)
    unlisted = [slot for slot in current if slot.name not in wanted]
    return SlotChange(
        lease_pool_id=listed.lease_pool_id,
        added=tuple(
            Slot(name=name, lease_pool_id=listed.lease_pool_id, state=listed.state, updated_at=now)
            for name in listed.names
            if name not in names
        ),
        removed=tuple(slot.name for slot in unlisted if not slot.owner),
        kept=tuple(msgspec.structs.replace(slot, removed_at=slot.removed_at or now) for slot in unlisted if slot.owner),
        restored=tuple(
            msgspec.structs.replace(slot, removed_at=None)
            for slot in current
            if slot.removed_at is not None and slot.name in wanted
        ),
    )


def limit_after(limit_units: int | None, slots_before: int, change: SlotChange) -> int | None:
    """The limit of a pool after the list is applied; None: unchanged. A new pool gets one unit per slot; the limit of a
    known one follows its slots until an operator sets it to another value."""
    after = slots_before + len(change.added) - len(change.removed)  # those that are kept count until they go
    follows = limit_units is None or (slots_before > 0 and limit_units == slots_before)
    return after if follows and limit_units != after else None


def elsewhere(listed: Collection[Listed], known: Collection[Slot]) -> list[tuple[str, str, str]]:
    """(name, current lease pool, listed lease pool) of slots that are listed in another lease pool than their own."""
    wanted = {name: entry.lease_pool_id for entry in listed for name in entry.names}
    return sorted(
        (slot.name, slot.lease_pool_id, wanted[slot.name])
        for slot in known
        if wanted.get(slot.name, slot.lease_pool_id) != slot.lease_pool_id
    )
