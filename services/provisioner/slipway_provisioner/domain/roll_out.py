"""Roll-outs: how one revision of a launch config replaces another, proves itself, and how that one drains. Pure.

Of one name, the current revision launches. While it is not proven, at most one other revision, the fallback, launches
what the current one does not (natural) or a share of all launches (rolling). All others drain or are archived.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, Literal

import msgspec

Strategy = Literal["natural", "rolling", "now"]
DRAIN_SECONDS_MIN: Final = 3600.0
"""Shortest default of the time in which a replaced revision should drain."""
ALERT_SHARE: Final = 0.8
"""Share of the drain time after which workers that are left raise an alert."""
STARTS_TO_PROVE: Final[Mapping[str, int]] = {"natural": 5, "rolling": 20}
"""Successful starts that prove a revision, by the strategy with which it replaces another."""
SHARES: Final = ((5, 0.1), (10, 0.25), (20, 0.5))
"""Share of its launch config's launches that a revision gets in a rolling replacement, until that many boots."""


class Revision(msgspec.Struct, frozen=True, kw_only=True):
    """One revision of a launch config: `state` is active, draining or archived."""

    id: str
    state: str
    current: bool
    proven: bool


class Steps(msgspec.Struct, frozen=True, kw_only=True):
    """Consequences of a replacement for the other revisions of the name: the fallback, if any, and those that drain."""

    fallback_id: str | None
    drain_ids: tuple[str, ...]


class Drain(msgspec.Struct, frozen=True, kw_only=True):
    """Drain of one revision, in the columns of its row. Without `drain_seconds` the default applies."""

    id: str
    state_reason: str
    state_by: str
    replaced_by: str = ""
    drain_seconds: float | None = None
    drain_terminate: bool = False


def replace(revisions: Sequence[Revision], target_id: str, strategy: Strategy) -> Steps:
    """Steps for the other revisions of a name whose current revision becomes `target_id`, which may be a new one.

    A proven target needs no fallback. Otherwise the fallback is the revision most likely to work: the current one if it
    is proven, else a fallback that is proven, else the current one.
    """
    others = [revision for revision in revisions if revision.id != target_id and revision.state == "active"]
    target_proven = any(revision.id == target_id and revision.proven for revision in revisions)
    fallback = None
    if strategy != "now" and not target_proven:
        fallback = max(others, key=lambda revision: (revision.proven, revision.current), default=None)
    return Steps(
        fallback_id=fallback.id if fallback is not None else None,
        drain_ids=tuple(revision.id for revision in others if revision is not fallback),
    )


def needed_starts(strategy: str, maxima: Collection[int | None]) -> int:
    """Successful starts that prove a revision; no more than it can have at the same time under the given maxima."""
    cap = min(maximum for maximum in (*maxima, STARTS_TO_PROVE.get(strategy, 5)) if maximum is not None)
    return max(1, cap)


def succeeded_starts(record: Mapping[str, Any] | None, claim_evidence: str) -> int:
    """Successful starts of a revision by its weight record: boots, and first claims where workers report them."""
    if record is None:
        return 0
    stages = ("boot", "claim") if claim_evidence == "hook" else ("boot",)
    return min(int(record["stages"].get(stage, {}).get("succeeded", 0)) for stage in stages)


def is_proven(record: Mapping[str, Any] | None, claim_evidence: str, needed: int) -> bool:
    """True if a revision is healthy and has had enough successful starts."""
    healthy = record is not None and record["state"] == "healthy"
    return healthy and succeeded_starts(record, claim_evidence) >= needed


def share(strategy: str, booted: int, *, current: bool) -> float:
    """Share of a name's launches that a revision gets, by the boots of the current one; 1 but for rolling."""
    if strategy != "rolling":
        return 1.0
    of_current = next((share for boots, share in SHARES if booted < boots), SHARES[-1][1])
    return of_current if current else 1 - of_current


def alert_at(drain_from: datetime, drain_until: datetime) -> datetime:
    """Time at which workers that are left of a draining revision raise an alert."""
    return drain_from + timedelta(seconds=ALERT_SHARE * (drain_until - drain_from).total_seconds())


def leaves_at_once(replaced_by: str, *, terminate: bool) -> bool:
    """True if idle and starting workers of a draining revision stop at once, because it was replaced by `now`."""
    return terminate and replaced_by not in STARTS_TO_PROVE
