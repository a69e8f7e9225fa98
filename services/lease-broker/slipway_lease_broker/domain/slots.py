"""Named slots of a lease pool: the units of an account that have names of their own, which Boskos calls resources.
Values and rules; pure. A slot that goes from free to busy or leased is held under a lease of its pool; all other states
are words that its users have agreed on, such as dirty and cleaning."""

import re
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Final, Literal

import msgspec

from slipway_lease_broker.domain.ledger import Lease

FREE: Final = "free"
LEASED: Final = "leased"
HELD: Final = frozenset({"busy", LEASED})

UNIT_SECONDS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
PART: Final = re.compile(rf"([0-9]+\.?[0-9]*|\.[0-9]+)({'|'.join(UNIT_SECONDS)})", re.ASCII)
# Go counts nanoseconds in 64 bits.
DURATION_SECONDS_MAX: Final = (2**63 - 1) / 1e9


class Slot(msgspec.Struct, frozen=True, kw_only=True):
    """One slot. It is available in its state while nobody owns it."""

    name: str
    lease_pool_id: str
    state: str
    owner: str = ""
    updated_at: datetime
    userdata: dict[str, str] = {}
    request_id: str | None = None  # that its owner acquired it with
    lease_id: str | None = None  # that it is held under
    fencing_token: int | None = None  # of the last lease


def is_grant(state: str, dest: str) -> bool:
    """Whether going from `state` to `dest` takes a lease."""
    return state == FREE and dest in HELD


def taken(
    slot: Slot, dest: str, owner: str, now: datetime, *, request_id: str | None = None, lease: Lease | None = None
) -> Slot:
    return msgspec.structs.replace(
        slot,
        state=dest,
        owner=owner,
        updated_at=now,
        request_id=request_id,
        lease_id=None if lease is None else lease.id,
        fencing_token=slot.fencing_token if lease is None else lease.fencing_token,
    )


def given_back(slot: Slot, dest: str, now: datetime) -> Slot:
    """Without an owner; its data stay."""
    return msgspec.structs.replace(slot, state=dest, owner="", updated_at=now, request_id=None, lease_id=None)


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
    """What a list of slots says of one lease pool: names, and the state in which those begin that are new."""

    lease_pool_id: str
    state: str
    names: tuple[str, ...]


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What a list changes in one lease pool; `limit_units` is None where the limit stays."""

    lease_pool_id: str
    change: Literal["created", "updated", "restored", "unchanged"] = "unchanged"
    limit_units: int | None = None
    added: tuple[Slot, ...] = ()
    removed: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()  # not listed any more, but somebody owns them


def compare(listed: Listed, current: Sequence[Slot], now: datetime) -> Change:
    """What a list adds and removes. A slot that somebody owns is not removed; one that exists stays as it is."""
    names = {slot.name for slot in current}
    unlisted = [slot for slot in current if slot.name not in set(listed.names)]
    return Change(
        lease_pool_id=listed.lease_pool_id,
        added=tuple(
            Slot(name=name, lease_pool_id=listed.lease_pool_id, state=listed.state, updated_at=now)
            for name in listed.names
            if name not in names
        ),
        removed=tuple(slot.name for slot in unlisted if not slot.owner),
        kept=tuple(slot.name for slot in unlisted if slot.owner),
    )


def limit_after(limit_units: int | None, slots_before: int, change: Change) -> int | None:
    """The limit that a pool gets with the list; None: it stays. A new one, without a limit, gets one unit for each
    slot; that of a known one follows its slots until people set it to something else."""
    after = slots_before + len(change.added) - len(change.removed)
    follows = limit_units is None or (slots_before > 0 and limit_units == slots_before)
    return after if follows and limit_units != after else None


def elsewhere(listed: Collection[Listed], known: Collection[Slot]) -> list[tuple[str, str, str]]:
    """(name, its lease pool, where it is listed) of slots that exist in another lease pool than the list has them."""
    wanted = {name: entry.lease_pool_id for entry in listed for name in entry.names}
    return sorted(
        (slot.name, slot.lease_pool_id, wanted[slot.name])
        for slot in known
        if wanted.get(slot.name, slot.lease_pool_id) != slot.lease_pool_id
    )
