"""Spread starts of a group: each member starts at its own offset. Pure.

Ten jobs created by one event would otherwise start in the same minute. In a group of `size` whose starts are spread
over `spread_seconds`, member k is due at the arrival of the first member + k × spread / size, and starts at least
spread / size after the group's last start, in whatever order they arrive. Offsets depend on the member number only, so
that the same group starts the same way every time.
"""

import hashlib
from datetime import datetime, timedelta
from typing import Final

from slipway_api.events.lease import LeaseGroup
from slipway_lease_broker.domain.sender import Sender

HASH_CHARACTERS: Final = 8


def group_key(group: LeaseGroup, sender: Sender) -> str:
    """The identity of a group: its name with its terms, and the token of its members. Requests that use the same name
    with other terms, or with another token, are another group and do not affect its starts. The token is hashed, since
    the key is part of an index of long texts; services, whose requests come over Kafka, share their groups."""
    of_token = "" if sender.over_kafka else f" {hashlib.sha256(sender.name.encode()).hexdigest()[:HASH_CHARACTERS]}"
    return f"{group.name} ({group.size} in {group.spread_seconds:g} s){of_token}"


def step(size: int, spread_seconds: float) -> timedelta:
    """Time between two starts of a group. Both arguments are above zero."""
    return timedelta(seconds=spread_seconds / size)


def due_at(first_at: datetime, member: int, step: timedelta) -> datetime:
    """The time at which member k ≥ 0 is due: its own number, or the number of members that arrived before it. Members
    beyond the announced size continue at the same distance."""
    return first_at + member * step


def free_at(due_at: datetime, last_start_at: datetime | None, step: timedelta) -> datetime:
    """The time at which a member may start, as far as its group is concerned."""
    return due_at if last_start_at is None else max(due_at, last_start_at + step)
