"""Counters of a lease pool against its rows. Pure. They may never differ; a decision that believes a wrong one grants
too much, or leaves units lying for ever."""

from datetime import datetime
from typing import Final

import msgspec

from slipway_lease_broker.domain.ledger import Entry, LeasePool

COUNTERS: Final = ("held", "held_units", "waiting_units", "waiting_requests")


class Counted(msgspec.Struct, frozen=True, kw_only=True):
    """What the rows of a lease pool say."""

    held: dict[str, int]
    held_units: int
    waiting_units: int
    waiting_requests: int


def repaired(pool: LeasePool, counted: Counted, now: datetime) -> tuple[LeasePool, Entry | None]:
    """The pool as its rows say, and what to tell if that is not what it said."""
    wrong = [
        f"{name} {getattr(pool, name)}, of rows {getattr(counted, name)}"
        for name in COUNTERS
        if getattr(pool, name) != getattr(counted, name)
    ]
    if not wrong:
        return pool, None
    entry = Entry(lease_pool_id=pool.id, at=now, kind="repaired", reason="; ".join(wrong))
    return msgspec.structs.replace(pool, **msgspec.structs.asdict(counted)), entry
