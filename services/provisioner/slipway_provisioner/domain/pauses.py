"""Shares of the sources of signals in the pauses of a pool, and the alert on a source that asks for more. Pure."""

import shlex
from collections.abc import Mapping
from datetime import datetime
from typing import Final

import msgspec

from slipway_api.events.alert import AlertIdentity, AlertRaised, AlertResolved, alert_identity
from slipway_common.base.signal_rules import Rules, over_share, share_holder

BY_SIGNAL: Final = "signal:"
ALERT: Final = "pause-refused"


class Pausable(msgspec.Struct, frozen=True, kw_only=True):
    """A launch config and its pause. It cannot be paused unless it is `declared`."""

    name: str
    pool_id: str
    declared: bool
    paused: bool
    paused_by: str
    paused_until: datetime | None


class RefusedPause(msgspec.Struct, frozen=True, kw_only=True):
    """A pause request beyond the share that `holder` has of a pool. `until`: the end of the refused pause."""

    pool_id: str
    holder: str
    name: str
    reason: str
    until: datetime


def by_signal(source: str) -> str:
    """Author of the pauses and resumes that a source requests."""
    return f"{BY_SIGNAL}{source}"


def share_problem(source: str, name: str, configs: Mapping[str, Pausable], now: datetime, rules: Rules) -> str:
    """Reason why a source may not pause a launch config; empty if its share of the pool allows it.

    `configs` has all launch configs of the pool. Those that the source has paused count, but none that a person has:
    a wrong monitor must not stop a whole pool. A config that it has paused already counts once.
    """
    pool_id, holder = configs[name].pool_id, share_holder(source, rules)
    declared = [config for config in configs.values() if config.pool_id == pool_id and config.declared]
    paused = {config.name for config in declared if _is_held(config, holder, now, rules)} | {name}
    of = f"launch configs of pool {pool_id!r}"
    over = over_share(source, rules, count=len(paused), total=len(declared), of=of)
    return f"{source!r} would pause {over}" if over else ""


def _is_held(config: Pausable, holder: str, now: datetime, rules: Rules) -> bool:
    """True if a source of the holder pauses the config. A pause that is over counts no more, also before the config is
    resumed."""
    if not config.paused or config.paused_until is None or config.paused_until <= now:
        return False
    source = config.paused_by.removeprefix(BY_SIGNAL)
    return source != config.paused_by and share_holder(source, rules) == holder


def raised(refused: RefusedPause) -> AlertRaised:
    """Alert on a source that asks for more pauses than its share of a pool."""
    return AlertRaised(
        **_identity(refused.pool_id, refused.holder),
        summary=f"pause of launch config {refused.name} was refused: source {refused.reason}",
        effect="the request has changed nothing; earlier pauses of the source last until their end",
        doing="refuses its requests beyond the share; resolves this alert when the refused pauses would have ended",
        command=f"{shlex.join(['slipway', 'lc', 'pause', refused.name])} --reason …  # if it must be paused",
        cause="the source is wrong, or its max_share in SLIPWAY_SIGNAL_SOURCES_FILE is too low for this pool",
        severity="notice",
    )


def resolved(pool_id: str, holder: str) -> AlertResolved:
    """Resolution of the alert on a source."""
    who = f"of source {holder}" if holder else "of unnamed sources"
    return AlertResolved(
        **_identity(pool_id, holder),
        summary=f"the pauses of pool {pool_id} that were refused, {who}, would have ended",
        severity="notice",
    )


def _identity(pool_id: str, holder: str) -> AlertIdentity:
    return alert_identity("provisioner", ALERT, "pool", pool_id, *([holder] if holder else []))
