"""Sources of demand that no longer report: how long they count, and the alert on them. Pure."""

import shlex
from datetime import datetime, timedelta
from enum import StrEnum

import msgspec

from slipway_api.events.alert import Alert, AlertRaised, AlertResolved, alert_identity
from slipway_common.base.text import duration_text


class Freshness(StrEnum):
    """A fresh source counts. A stale one launches nothing, but protects workers. An expired one is dropped."""

    FRESH, STALE, EXPIRED = "fresh", "stale", "expired"


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """A source of a pool, and what is known about its last report.

    `overdue_seconds`: time since its last report was valid, without downtime, in which none could be received; negative
    while it is valid. `late_seconds`: age of that report when it was received. `is_last`: no other source of
    its pool is fresh. `alerted`: an alert on it was raised. `end_reason`: empty unless it has ended.
    """

    pool_id: str
    source: str
    pending: int
    claimed: int
    observed_at: datetime
    valid_for_seconds: float
    overdue_seconds: float
    late_seconds: float
    is_last: bool
    alerted: bool
    end_reason: str
    pool_deleted: bool


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """A source as it is to be stored, and the alert to publish."""

    pool_id: str
    source: str
    alerted: bool
    end_reason: str
    alert: Alert | None


def freshness(overdue_seconds: float, protected_seconds: float) -> Freshness:
    """Freshness of a source whose last report ceased to be valid `overdue_seconds` ago, of the `protected_seconds` for
    which a stale source protects workers."""
    if overdue_seconds < 0:
        return Freshness.FRESH
    return Freshness.STALE if overdue_seconds < protected_seconds else Freshness.EXPIRED


def settled(source: Source, protected_seconds: float) -> Settled | None:
    """The change that a source needs; None if it needs none.

    An alert is raised as soon as it is stale, and resolved when it reports again or has ended. It is dropped when it
    has expired, or its pool was deleted. If its report had expired when it was received, as all reports of a clock far
    behind have, the alert is also raised then. An ended source that has one is given once it reports no more.
    """
    end_reason, now = source.end_reason, freshness(source.overdue_seconds, protected_seconds)
    is_late = source.late_seconds >= source.valid_for_seconds + protected_seconds
    if end_reason:
        alerted = False
    elif source.pool_deleted:
        alerted, end_reason = False, "its pool was deleted"
    elif now is Freshness.EXPIRED and is_late:
        alerted, end_reason = True, f"dropped, since its last report {_late(source)}"
    elif now is Freshness.EXPIRED:
        alerted, overdue = False, duration_text(source.valid_for_seconds + source.overdue_seconds)
        end_reason = f"dropped, since it did not report for {overdue}"
    else:
        alerted = now is Freshness.STALE
    if (alerted, end_reason) == (source.alerted, source.end_reason):
        return None
    return Settled(
        pool_id=source.pool_id,
        source=source.source,
        alerted=alerted,
        end_reason=end_reason,
        alert=_alert(source, end_reason, protected_seconds, raised=alerted) if alerted != source.alerted else None,
    )


def _alert(source: Source, end_reason: str, protected_seconds: float, *, raised: bool) -> Alert:
    pool_id, name = source.pool_id, source.source
    is_late = source.late_seconds >= source.valid_for_seconds
    state = f"stale{f': its last report {_late(source)}' if is_late else ''}"
    over = f"no longer stale: {end_reason or 'it reports again'}"
    others = "no source of the pool is fresh" if source.is_last else "other sources of the pool are fresh"
    effect = "launch no workers and protect none" if end_reason else "launch no workers, but protect idle ones"
    doing = f"drops the source {duration_text(protected_seconds)} after it became stale, unless it reports again"
    look = shlex.join(["slipway", "demand", "ls", pool_id])
    remove = shlex.join(["slipway", "demand", "rm", pool_id, name])
    remedy = "synchronise the clock of its monitor with NTP" if is_late else f"restart its monitor, or {remove}"
    stopped = "its monitor stopped, cannot reach Slipway, or reports under another name"
    return (AlertRaised if raised else AlertResolved)(
        **alert_identity("provisioner", "demand-source-stale", "pool", pool_id, name),
        summary=f"source {name} of pool {pool_id} is {state if raised else over}",
        effect=f"its {source.pending} pending and {source.claimed} claimed tasks {effect}; {others}",
        doing="drops the source after each report, until they are valid" if end_reason else doing,
        command=f"{look}  # then {remedy}",
        since=source.observed_at + timedelta(seconds=source.valid_for_seconds),
        cause="the clock of its monitor is behind, or its reports are delayed" if is_late else stopped,
        severity="page" if source.is_last else "notice",
    )


def _late(source: Source) -> str:
    return f"was {duration_text(source.late_seconds)} old when it was received"
