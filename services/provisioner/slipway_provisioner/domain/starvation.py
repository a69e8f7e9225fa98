"""Starved pools: they may launch and need workers, and for long none has registered. Pure.

A launch stop, a freeze, a pause and mode observe starve no pool: a person has decided so.
"""

from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from slipway_api.events.alert import Alert, AlertIdentity, AlertRaised, AlertResolved, alert_identity
from slipway_api.limits import NOTE
from slipway_common.base.text import duration_text
from slipway_provisioner.domain.reasons import Code

REGISTRATIONS: Final = 1.5
"""Part of the time that a registration may take after which a pool is starved: longer than one failed boot."""


class Shortage(msgspec.Struct, frozen=True, kw_only=True):
    """A pool that may be starved. Workers have been missing for `missing_seconds` without a registration, and one may
    take `registration_seconds`; `starting` workers have not registered. `details` are those of the newest decision.
    `starved`: an alert says so."""

    pool_id: str
    starved: bool
    missing_seconds: float
    registration_seconds: float
    starting: int
    details: Mapping[str, Any]

    def is_starved(self, after_seconds: float) -> bool:
        """True if workers have been missing for so long, and for longer than a registration takes."""
        return self.missing_seconds >= max(after_seconds, REGISTRATIONS * self.registration_seconds)


def raised(shortage: Shortage, now: datetime) -> Alert:
    """Alert on a starved pool. It is a notice if its cause has a page of its own."""
    details = shortage.details
    wanted, serving = details.get("wanted", 0), details.get("serving", 0)
    cause, explained = _cause(shortage)
    lasts = duration_text(shortage.missing_seconds)
    return AlertRaised(
        **_identity(shortage.pool_id),
        summary=f"pool {shortage.pool_id} is starved: no worker has registered for {lasts}",
        effect=f"{details.get('tasks', 0)} tasks want {wanted} workers, of which {serving} serve or start",
        doing="launches as soon as a launch config may",
        command=f"slipway why {shortage.pool_id}",
        since=now - timedelta(seconds=shortage.missing_seconds),
        cause=NOTE.cut(cause),
        severity="notice" if explained else "page",
    )


def resolved(pool_id: str) -> Alert:
    """Resolution of the alert on a starved pool."""
    summary = f"a worker of pool {pool_id} has registered, none is missing, or the pool may launch nothing"
    return AlertResolved(**_identity(pool_id), summary=summary)


def _cause(shortage: Shortage) -> tuple[str, bool]:
    """Cause of a shortage, and True if it has an alert of its own."""
    details = shortage.details
    reason, code = str(details.get("reason", "")), details.get("code")
    if code == Code.NO_ROOM:
        return reason, details.get("stuck", 0) > 0
    if code == Code.LIMITED:
        return reason, True
    explained = bool(details.get("alerted"))
    if code == Code.NO_CONFIG:
        notes = details.get("configs", {}).values()
        found = Counter(note["reason"] for note in notes if note.get("reason"))
        return (found.most_common(1)[0][0] if found else reason), explained
    if shortage.starting:
        return f"{shortage.starting} starting, none of which has registered", explained
    return reason, explained


def _identity(pool_id: str) -> AlertIdentity:
    return alert_identity("provisioner", "pool-starved", "pool", pool_id)
