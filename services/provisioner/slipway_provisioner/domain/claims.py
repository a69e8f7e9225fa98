"""Claims of one worker: the tasks that it runs and ran, as it reports them. Pure.

Reports may come late, repeated and out of order. The claims that they leave depend on the set of reports alone: a claim
is identified by the time that its worker gave it, in the worker's own words, and its earliest end stands.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

CLAMP: Final = timedelta(minutes=2)
"""Longest time before the receipt of a report that a worker's time is believed; an earlier one is clamped to it."""
JITTER: Final = timedelta(milliseconds=1)
"""Difference between two times that an agent derives from one instant of its monotonic clock."""


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A task on a worker. `claimed_at`: time of the claim as the worker wrote it; `reported_at`: the same time;
    `started_at` and `ended_at`: clamped to receipt. `counted`: it fits the worker's task slots."""

    source: str
    task_id: str
    claimed_at: str
    reported_at: datetime
    started_at: datetime
    ended_at: datetime | None = None
    counted: bool = True

    @property
    def key(self) -> tuple[str, str, str]:
        return self.source, self.task_id, self.claimed_at

    def follows(self, other: "Claim") -> bool:
        """True if a claim that is later by its worker's times is later.

        The worker's clock may have been set back between the two. So one from ahead of its receipt proves nothing about
        one that counts from later on, and none does about one from so long ago that it was clamped, which may have
        begun when it was received.
        """
        if other.reported_at < other.started_at:
            return self.started_at >= other.started_at + CLAMP
        return self.reported_at <= self.started_at or self.started_at >= other.started_at


class End(msgspec.Struct, frozen=True, kw_only=True):
    """Report that a task has ended: at `reported_at` by the worker, which is `at` once clamped to receipt. A field of
    the claim that the worker has left out is empty."""

    at: datetime
    reported_at: datetime
    source: str = ""
    task_id: str = ""
    claimed_at: str = ""

    def names(self, claim: Claim) -> bool:
        """True if the report names no other claim."""
        return all(not own or own == its for own, its in zip(self.key, claim.key, strict=True))

    @property
    def key(self) -> tuple[str, str, str]:
        return self.source, self.task_id, self.claimed_at


def with_claim(claims: Sequence[Claim], claim: Claim, task_slots: int) -> list[Claim]:
    """The claims after a report of one; a repeated report changes nothing."""
    known = any(each.key == claim.key for each in claims)
    return _settled(claims if known else [*claims, claim], task_slots)


def with_end(claims: Sequence[Claim], end: End, task_slots: int) -> list[Claim]:
    """The claims after a report that a task has ended: the earliest end of the claim that it names stands.

    A report without the time of a claim ends the open claim that it names, if there is one alone and it is older than
    the end. One that fits no claim, or several, changes nothing.
    """
    named = [each for each in claims if end.names(each)] if end.claimed_at else _endable(claims, end)
    if len(named) != 1 or is_ambiguous(claims, end):
        return list(claims)
    # Compared by the worker's own times: the clock that clamped the start may have been set back since.
    ended_at = end.at if end.reported_at >= named[0].reported_at else named[0].started_at
    ended = msgspec.structs.replace(named[0], ended_at=min(named[0].ended_at or ended_at, ended_at))
    return _settled([ended if each is named[0] else each for each in claims], task_slots)


def is_ambiguous(claims: Sequence[Claim], end: End) -> bool:
    """True if an end does not say which of several open claims has ended."""
    return not end.claimed_at and len(_open(claims, end)) > 1


def open_claims(claims: Sequence[Claim]) -> list[Claim]:
    """The claims whose tasks run."""
    return [each for each in claims if each.ended_at is None]


def _open(claims: Sequence[Claim], end: End) -> list[Claim]:
    return [each for each in open_claims(claims) if end.names(each)]


def _endable(claims: Sequence[Claim], end: End) -> list[Claim]:
    """Open claims that an end without the time of its claim may mean: a repeat is no later than the next claim."""
    return [each for each in _open(claims, end) if end.reported_at - each.reported_at > JITTER]


def _settled(claims: Sequence[Claim], task_slots: int) -> list[Claim]:
    """End each claim that a later one proves to have ended: with one slot any, else one of the same task. Count those
    that fit the slots, earliest first."""
    ended: list[Claim] = []
    later: dict[tuple[str, str] | None, list[Claim]] = {}
    for claim in sorted(claims, key=lambda each: (each.reported_at, each.key), reverse=True):
        slot = None if task_slots == 1 else (claim.source, claim.task_id)
        successors = later.setdefault(slot, [])
        next_start = next((each.started_at for each in reversed(successors) if each.follows(claim)), None)
        ends = [at for at in (claim.ended_at, next_start) if at is not None]
        ended.append(msgspec.structs.replace(claim, ended_at=min(ends, default=None)))
        successors.append(claim)
    settled: list[Claim] = []
    running: list[Claim] = []
    for claim in reversed(ended):
        running = [each for each in running if each.ended_at is None or each.ended_at > claim.started_at]
        settled.append(msgspec.structs.replace(claim, counted=len(running) < task_slots))
        running += [settled[-1]] if settled[-1].counted else []
    return settled
