"""Phrases that the screen, the narration, `slipway why` and `slipway doctor` share. Pure."""

import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from slipway_client.view import moments

if TYPE_CHECKING:
    from slipway_api.http.lease_pools import LeasePool
    from slipway_api.http.provisioner.decisions import Decision
    from slipway_api.http.provisioner.launch_configs import LaunchConfig, StageLevel
    from slipway_api.http.provisioner.pools import LaunchStop, Pool


RESTORE: Final = "restore"  # scope of the launch stop until a restore is confirmed
HEALTHY, TRIPPED, PROBING = "healthy", "tripped", "probing"  # health states on the wire
STAGES: Final = ("launch", "boot", "claim")
CODES: Final = re.compile(r" \([^()]*\)")
SHARED_KEY: Final = re.compile(r"^(?:capacity|quota|credential) \S+: ")
MODES: Final = {
    "observe": "in mode observe: Slipway decides and records, and launches nothing",
    "canary": "in mode canary: Slipway launches one worker at a time",
}


def count(number: int, noun: str, plural: str = "") -> str:
    """A number and its noun: 1 unit, 2 units."""
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"


def either(names: Sequence[str]) -> str:
    """Names in a sentence: a, b and c."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def trip_cause(reason: str | None) -> str:
    """The cause in the reason of a weight record, without the subject and its state in front."""
    text = reason or ""
    return text.partition(" tripped: ")[2] or text or "no reason given"


def own_cause(reason: str | None) -> str:
    """The cause of a trip beside the thing itself: without codes, and without the key of what it shares with others,
    whose kind the errors repeat."""
    return SHARED_KEY.sub("", brief(trip_cause(reason)))


def brief(text: str) -> str:
    """A sentence without the codes that it quotes in brackets."""
    return CODES.sub("", text)


def next_probe(cause: str, seconds: float | None) -> str:
    """The cause of a trip with the time of the next probe; `seconds` is None where no probe is scheduled."""
    if seconds is None:
        return cause
    return f"{cause}; next probe " + (f"in {moments.spelled(seconds)}" if seconds > 0 else "is due")


def stopped(verb: str, by: str | None, until: datetime | None, reason: str | None, now: datetime) -> str:
    """An operator's act: "paused by ann until 17:30:00: maintenance"."""
    words = verb + (f" by {by}" if by else "")
    words += f" until {moments.clock(until, now)}" if until else ""
    return words + (f": {reason}" if reason else "")


def paused(row: "Pool", now: datetime) -> str:
    """The pause of a pool."""
    return stopped("paused", row.paused_by, row.paused_until, row.paused_reason, now)


def frozen(row: "Pool", now: datetime) -> str:
    """The freeze of a pool."""
    return stopped("frozen", row.frozen_by, None, row.frozen_reason, now)


def stops_everything(scope: str) -> bool:
    """True for a launch stop on everything, by a person or until a restore is confirmed."""
    return scope in {"all", RESTORE}


def where(scope: str, scope_id: str) -> str:
    """The scope of a launch stop."""
    return "everywhere" if stops_everything(scope) else f"in {scope} {scope_id}"


def launch_stop(row: "LaunchStop", now: datetime) -> str:
    """A launch stop with its scope."""
    return stopped(f"launching is stopped {where(row.scope, row.scope_id)}", row.by, row.until, row.reason, now)


def start_launching(row: "LaunchStop") -> str:
    """The command that lifts a launch stop."""
    if row.scope == RESTORE:
        return "slipway doctor --after-restore; then slipway db confirm"
    option = "" if row.scope == "all" else f" --{row.scope} {row.scope_id}"
    return f"slipway start-launching{option} --reason …"


def is_tripped(config: "LaunchConfig") -> bool:
    """True if an active config launches nothing but probes."""
    return config.state == "active" and config.health_state != HEALTHY


def is_fallback(config: "LaunchConfig") -> bool:
    """True for an active revision that only launches what the current one of its name does not."""
    return config.state == "active" and not config.current


def unproven(config: "LaunchConfig") -> str:
    """Progress of a current revision that is not proven; empty for any other."""
    if config.state != "active" or is_fallback(config) or config.proven:
        return ""
    return f"{config.succeeded_starts} of {count(config.needed_starts, 'start')} succeeded"


def drain(config: "LaunchConfig", now: datetime) -> str:
    """Progress of a draining revision: its workers, and what happens to them at its deadline."""
    left = f"{count(config.live, 'worker')} left" if config.live else "no workers left"
    if not config.live or not config.drain_until:
        return left
    until = config.drain_until
    after = ", then terminated" if config.drain_terminate else ""
    if until > now:
        return f"{left}, until {moments.clock(until, now)}{after}"
    over = f"{left}, {moments.spelled((now - until).total_seconds())} over the deadline"
    return over + (", being terminated" if config.drain_terminate else "")


def is_overdue(config: "LaunchConfig", now: datetime) -> bool:
    """True if a draining revision has workers after its deadline."""
    until = config.drain_until
    return bool(config.state == "draining" and config.live and until and until <= now)


def progress(config: "LaunchConfig", now: datetime) -> str:
    """Progress of a roll-out or a drain, as far as this revision takes part in one; empty otherwise."""
    if config.state == "draining":
        return drain(config, now)
    if is_fallback(config):
        if config.replaced_by == "rolling":
            return "fallback: shares the launches of the new revision"
        return "fallback: launches what the new revision does not"
    return unproven(config)


def tripped(config: "LaunchConfig", now: datetime) -> str:
    """The cause of a config's trip and its next probe."""
    at = config.next_probe_at
    seconds = max(0.0, (at - now).total_seconds()) if at else None
    return next_probe(trip_cause(config.reason), seconds)


def levels(config: "LaunchConfig") -> "Iterator[tuple[str, StageLevel, int]]":
    """Stages of a config, each with the starts in earlier ones, which will arrive there."""
    before = 0
    for name in STAGES:
        if stage := config.stages.get(name):
            yield name, stage, before
            before += stage.in_flight


def full_window(config: "LaunchConfig") -> str:
    """The first window of a config without room; empty when all have room."""
    for name, stage, before in levels(config):
        if stage.in_flight + stage.unfolded + before >= stage.window:
            parts = [f"{stage.in_flight} in flight"]
            parts += [f"{before} in earlier stages"] if before else []
            parts += [f"{count(stage.unfolded, 'failure')} not yet weighed"] if stage.unfolded else []
            return f"{name} window of {stage.window} is full ({', '.join(parts)})"
    return ""


def full_shared_window(decisions: Sequence["Decision"], config_id: str) -> str:
    """The full window that a config shares with others, by the newest decision of its pool; empty if it has room."""
    note = (decisions[0].details.configs or {}).get(config_id) if decisions else None
    is_full = note is not None and note.room == 0 and " window of " in note.limited_by
    return f"{note.limited_by} is full" if note is not None and is_full else ""


def waits(seconds: float | None) -> str | None:
    """Time for which a worker pool has had pending tasks, or age of a lease pool's oldest waiting request."""
    return None if seconds is None else moments.about(seconds)


def limit_in_force(pool: "LeasePool") -> int:
    """The limit of a lease pool, which may be derived or adaptive; the declared one before its first decision."""
    limit = pool.limit_in_force
    return pool.limit if limit is None else limit


def queue(pool: "LeasePool") -> str:
    """The use and the queue of a lease pool, with the wait of a unit that is requested now."""
    limit = limit_in_force(pool)
    full = " (full)" if pool.held >= limit else ""
    words = f"{pool.held} of {count(limit, 'unit')} held{full}"
    if not pool.waiting:
        return f"{words}, no request waits"
    oldest = pool.oldest_wait_seconds
    words += f", {count(pool.waiting, 'unit')} waiting"
    words += "" if oldest is None else f", the oldest request for {moments.about(oldest)}"
    eta = pool.eta_seconds
    return f"{words}; ETA of a new request " + ("unknown" if eta is None else f"{moments.about(eta)}")


def since(at: datetime, now: datetime) -> str:
    """A time with its age: 14:28:20, 1 min 40 s ago."""
    return f"{moments.clock(at, now)}, {moments.spelled(max(0.0, (now - at).total_seconds()))} ago"
