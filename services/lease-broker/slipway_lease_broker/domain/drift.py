"""Comparison of a lease pool's counters with its rows. Pure. They must never differ: with a wrong counter a decision
grants too much, or leaves units unused forever."""

from datetime import datetime
from typing import Final

import msgspec

from slipway_lease_broker.domain.ledger import Entry, LeasePool

COUNTERS: Final = ("held", "held_units", "waiting_units", "waiting_requests", "waiting_by")


class Counted(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of a lease pool, computed from its rows."""

    held: dict[str, int]
    held_units: int
    waiting_units: int
    waiting_requests: int
    waiting_by: dict[str, int]


def repaired(pool: LeasePool, counted: Counted, now: datetime) -> tuple[LeasePool, Entry | None]:
    """The pool with the counters of its rows, and a history entry if they differed."""
    wrong = [
        f"{name} was {getattr(pool, name)}, rows give {getattr(counted, name)}"
        for name in COUNTERS
        if getattr(pool, name) != getattr(counted, name)
    ]
    if not wrong:
        return pool, None
    entry = Entry(lease_pool_id=pool.id, at=now, kind="repaired", reason="; ".join(wrong))
    return msgspec.structs.replace(pool, **msgspec.structs.asdict(counted)), entry
