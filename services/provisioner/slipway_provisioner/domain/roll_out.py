"""Roll-outs: how one revision of a launch config replaces another, proves itself, and how that one drains. Pure.

Of one name, the current revision launches. While it is not proven, at most one other revision, the fallback, launches
what the current one does not (natural, rollback) or a share of all launches (rolling). All others drain or are
archived. If the image of a proven one goes bad, what it replaced is the fallback again, as long as it drains.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, Literal

import msgspec

from slipway_api.events.alert import Alert, AlertRaised, alert_identity

Strategy = Literal["natural", "rolling", "now"]
Replacement = Strategy | Literal["rollback"]
"""Strategy of a replacement; that of a rollback is its own unless another one is asked for."""
ALERT_SHARE: Final = 0.8
"""Share of the drain time after which workers that are left raise an alert."""
STARTS_TO_PROVE: Final[Mapping[str, int]] = {"natural": 5, "rollback": 5, "rolling": 20}
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


def replace(revisions: Sequence[Revision], target_id: str, strategy: Replacement, *, terminate: bool = False) -> Steps:
    """Steps for the other revisions of a name whose current revision becomes `target_id`, which may be a new one.

    A proven target needs no fallback. Otherwise the fallback is the revision most likely to work: the current one if it
    is proven, else a fallback that is proven, else the current one. What a rollback leaves is not to launch: then only
    a fallback that is proven stays.
    """
    others = [
        revision
        for revision in revisions
        if revision.id != target_id and may_drain(revision.state, strategy, terminate=terminate)
    ]
    target_proven = any(revision.id == target_id and revision.proven for revision in revisions)
    fallback = None
    if strategy != "now" and not target_proven:
        kept = [one for one in others if strategy != "rollback" or (one.proven and not one.current)]
        fallback = max(kept, key=lambda revision: (revision.proven, revision.current), default=None)
    return Steps(
        fallback_id=fallback.id if fallback is not None else None,
        drain_ids=tuple(revision.id for revision in others if revision is not fallback),
    )


def may_drain(state: str, strategy: str, *, terminate: bool) -> bool:
    """True if a replacement drains a revision in this state: an active one, and one that drains already if all must
    leave at once, since it may have the same leaked secret."""
    return state == "active" or (state == "draining" and leaves_at_once(strategy, terminate=terminate))


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


def has_bad_image(record: Mapping[str, Any] | None) -> bool:
    """True if a revision is tripped by its image, or by its own boots or claims: another revision may do better."""
    if record is None or record["state"] == "healthy":
        return False
    by, stage = record.get("tripped_by", ""), record.get("tripped_stage")
    return by == "image" or (by == "" and stage in ("boot", "claim"))


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """State of one revision in a roll-out. `maxima` are those of its pool and its name. `starts_before` are the starts
    that had succeeded when it last had to prove itself again. `live` counts its workers, `stoppable` those that a
    deadline ends: not asked to stop, or only as idle ones; `without_task` those not asked to stop that have no task."""

    pool_id: str
    name: str
    id: str
    state: str
    current: bool
    replaced_by: str
    proven: bool
    starts_before: int = 0
    record: Mapping[str, Any] | None
    claim_evidence: str
    maxima: Sequence[int | None]
    drain_from: datetime | None
    drain_until: datetime | None
    drain_terminate: bool
    drain_alerted: bool
    live: int
    stoppable: int
    without_task: int


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Steps of a roll-out that are due now, by revision. `reinstate`: a draining revision becomes the fallback again,
    and the current one has to prove itself again. `stop` are revisions whose workers are asked to stop, at the deadline
    also those with a task (True)."""

    prove: Sequence[Progress] = ()
    reinstate: Sequence[Progress] = ()
    drain: Sequence[Progress] = ()
    archive: Sequence[Progress] = ()
    alert: Sequence[Progress] = ()
    resolve: Sequence[Progress] = ()
    stop: Sequence[tuple[Progress, bool]] = ()

    def __bool__(self) -> bool:
        return any((self.prove, self.reinstate, self.drain, self.archive, self.alert, self.resolve, self.stop))


def verdict(revisions: Sequence[Progress], now: datetime) -> Verdict:
    """Due steps for the revisions of one name: a proven one ends its fallback, and a draining one ends, unless the
    image of the current one has gone bad."""
    active = [revision for revision in revisions if revision.state == "active"]
    current = next((revision for revision in active if revision.current), None)
    fallbacks = [revision for revision in active if not revision.current]
    reinstate = _reinstated(current, revisions) if not fallbacks else []
    draining = [revision for revision in revisions if revision.state == "draining" and revision not in reinstate]
    strategy = fallbacks[0].replaced_by if fallbacks else ""
    prove = current is not None and not current.proven and _has_proven(current, strategy)
    return Verdict(
        prove=[current] if current is not None and prove else [],
        reinstate=reinstate,
        drain=fallbacks if current is None or prove or current.proven else [],
        archive=[revision for revision in draining if not revision.live],
        alert=[revision for revision in draining if revision.live and _is_alert_due(revision, now)],
        resolve=[revision for revision in active if revision.drain_alerted],
        stop=[(revision, overdue) for revision in draining for overdue in _stops(revision, now)],
    )


def _has_proven(current: Progress, strategy: str) -> bool:
    needed = current.starts_before + needed_starts(strategy, current.maxima)
    return is_proven(current.record, current.claim_evidence, needed)


def _reinstated(current: Progress | None, revisions: Sequence[Progress]) -> list[Progress]:
    """Revision that is the fallback again since the image of the current one has gone bad: of those that drain and are
    healthy the one most likely to work, the newest of several. Empty if there is none."""
    if current is None or not has_bad_image(current.record):
        return []
    at_hand = [
        revision
        for revision in revisions
        if may_return(revision.state, revision.replaced_by)
        and (revision.record is None or revision.record["state"] == "healthy")
    ]
    return sorted(at_hand, key=lambda revision: (revision.proven, revision.drain_from))[-1:]


def may_return(state: str, replaced_by: str) -> bool:
    """True if a revision that drains may launch again: nobody has left it for a reason of its own, as by a rollback
    or after a leak."""
    return state == "draining" and replaced_by in ("natural", "rolling")


def _is_alert_due(revision: Progress, now: datetime) -> bool:
    if revision.drain_alerted or revision.drain_from is None or revision.drain_until is None:
        return False
    return now >= alert_at(revision.drain_from, revision.drain_until)


def _stops(revision: Progress, now: datetime) -> list[bool]:
    """Stop of the workers of a draining revision: at the deadline of all, of those replaced at once without a task."""
    if revision.drain_terminate and revision.drain_until is not None and now >= revision.drain_until:
        return [True] if revision.stoppable else []
    at_once = leaves_at_once(revision.replaced_by, terminate=revision.drain_terminate)
    return [False] if at_once and revision.without_task else []


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


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """Standing of a revision for its workers. `state` is active, paused, draining or archived."""

    id: str
    name: str
    current_id: str
    state: str
    drain_until: datetime | None

    def leave_reason(self, *, has_task: bool) -> str:
        """Reason for a worker to leave after its task; empty if it may stay. One without a task waits for the plan,
        which stops a part of them at a time."""
        return draining_reason(self.id) if has_task and self.state in ("draining", "archived") else ""


def draining_reason(config_id: str) -> str:
    """Reason of a worker that stops since its revision drains."""
    return f"{config_id} drains"


def overdue(kind: type[Alert], revision: Progress) -> Alert:
    """Alert on a revision whose drain takes long, or its resolution."""
    left = f"{revision.live} {'worker is' if revision.live == 1 else 'workers are'} left"
    until = revision.drain_until.isoformat(timespec="seconds") if revision.drain_until is not None else ""
    raised = kind is AlertRaised
    return kind(
        **alert_identity("provisioner", "drain-overdue", "config", revision.id),
        summary=f"{revision.id} drains slowly: {left}" if raised else f"{revision.id} no longer drains",
        effect="they still run the replaced revision" if raised else "",
        doing=f"asks them to stop at {until}" if revision.drain_terminate else "waits until their tasks end",
        command=f"slipway worker ls --pool {revision.pool_id} --state running",
        severity="notice",
    )
