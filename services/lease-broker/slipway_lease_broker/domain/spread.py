"""Members of a group start apart from each other, each at its own offset. Pure.

Ten jobs that one event created would meet in one minute. Of a group of `size` whose starts are spread over
`spread_seconds`, member k is due at the first one's arrival + k × spread / size, and starts spread / size or more after
the group's last start, in whatever order they came. Offsets follow from the place alone, so that the same group
starts the same way every time.
"""

from datetime import datetime, timedelta

from slipway_common.events.lease import LeaseGroup


def group_key(group: LeaseGroup) -> str:
    """What makes two members one group: its name and its terms. Whoever takes a name with other terms is another
    group, and moves nobody's start."""
    return f"{group.name} ({group.size} in {group.spread_seconds:g} s)"


def step(size: int, spread_seconds: float) -> timedelta:
    """Between two starts of a group. Both are above zero."""
    return timedelta(seconds=spread_seconds / size)


def due_at(first_at: datetime, member: int, step: timedelta) -> datetime:
    """When member k ≥ 0 is due: its own number, or how many of its group came before it. Those beyond the size that was
    announced keep the distance all the same."""
    return first_at + member * step


def free_at(due_at: datetime, last_start_at: datetime | None, step: timedelta) -> datetime:
    """When a member may start, as far as its group is concerned."""
    return due_at if last_start_at is None else max(due_at, last_start_at + step)
