"""Members of a group start apart from each other, each at its own offset. Pure.

Ten jobs that one event created would meet in one minute. Of a group of `size` whose starts are spread over
`spread_seconds`, member k may start at the first start + k × spread / size, and nobody within spread / size of the
group's last start, in whatever order they came. The offsets follow from the place alone, so that the same group
starts the same way every time.
"""

from datetime import datetime, timedelta

import msgspec


class Group(msgspec.Struct, frozen=True):
    """`size` and `spread_seconds` are above zero."""

    name: str
    size: int
    spread_seconds: float

    @property
    def step(self) -> timedelta:
        return timedelta(seconds=self.spread_seconds / self.size)


class Started(msgspec.Struct, frozen=True):
    """When the first and the last member so far started."""

    first_at: datetime
    last_at: datetime


def free_at(group: Group, member: int, started: Started | None, now: datetime) -> datetime:
    """When member k ≥ 0 (its own number, or how many of its group asked before it) may start; `now` if at once."""
    if started is None:
        return now
    return max(now, started.first_at + member * group.step, started.last_at + group.step)


def after_start(started: Started | None, now: datetime) -> Started:
    return Started(now, now) if started is None else Started(started.first_at, now)


def is_over(group: Group, started: Started, now: datetime) -> bool:
    """Whether nobody has to wait for this group's starts any more: the next one of its name begins anew."""
    return now >= started.last_at + timedelta(seconds=group.spread_seconds)
