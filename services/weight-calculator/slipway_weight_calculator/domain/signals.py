"""Opinions from outside: whom a signal reaches, whether it may have an effect, and how it counts. Pure.

The rule: a config's health is multiplied by the lowest factor that any live signal gives it, so opinions never add up
and never lift a weight above what outcomes allow. `down` closes the config until it expires or its source takes it
back; `capacity_hint` caps the launch window. `recovered` takes back what its source has said of the target and has
closed configs probed at once: outcomes decide. It is kept, without a weight, for as long as anything that it takes back
could count, so that this may also come after it. What is said of a worker counts for its config while it boots, and
closes nothing by itself. Pause and resume requests, and that a worker is interrupted, are the provisioner's.
"""

from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from typing import Final

import msgspec

from slipway_common.events.signal import SignalRaised
from slipway_common.redaction import redacted
from slipway_common.signal_rules import DEFAULT_RULES, TTL_SECONDS_MAX, Rules, is_provisioners, refusal
from slipway_weight_calculator.domain.rows import Config

REASONS: Final = ("target", "kind", "source", "ttl", "expired", "future", "value", "unreached", "newer", "share")
DEGRADED: Final = 0.5  # the factor of a signal that names none


class Signal(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An opinion in effect, until `until`, for the configs that it reached when it came at `since`."""

    source: str
    kind: str
    target_kind: str
    target_id: str
    reason: str
    value: float
    since: float
    until: float
    configs: tuple[str, ...]
    observed_at: float = 0.0

    @property
    def key(self) -> str:
        """Names may hold any character, so they are not just joined."""
        return msgspec.json.encode((self.source, self.kind, self.target_kind, self.target_id)).decode()

    def event(self) -> SignalRaised:
        """As it was said."""
        observed_at = datetime.fromtimestamp(self.observed_at, UTC)
        return SignalRaised(
            source=self.source,
            kind=self.kind,
            target_kind=self.target_kind,
            target_id=self.target_id,
            reason=self.reason,
            observed_at=observed_at,
            ttl_seconds=self.until - self.observed_at,
            value=self.value,
        )


def reached(event: SignalRaised, configs: Mapping[str, Config], booting: str = "") -> frozenset[str]:
    """Ids of the configs that a signal speaks of; archived ones are over. `booting` is the config of the worker that it
    names, while that boots."""
    match: dict[str, Iterable[str]] = {
        "config": (c.id for c in configs.values() if c.id == event.target_id),
        "pool": (c.id for c in configs.values() if c.declared.pool_id == event.target_id),
        "zone": (
            c.id
            for c in configs.values()
            if event.target_id in (c.declared.zone, f"{c.declared.region}/{c.declared.zone}")
        ),
        "account": (c.id for c in configs.values() if c.declared.account_id == event.target_id),
        "image": (c.id for c in configs.values() if c.declared.image_revision == event.target_id),
        "worker": (c.id for c in configs.values() if c.id == booting),
    }
    return frozenset(c for c in match.get(event.target_kind, ()) if not configs[c].archived_at)


def problem(
    event: SignalRaised,
    configs_reached: Collection[str],
    configs: Mapping[str, Config],
    held: Mapping[str, Signal],
    now: float,
    rules: Rules = DEFAULT_RULES,
) -> str:
    """Why a signal heard at `now` has no effect: the kind of reason (one of REASONS), a colon, and words. Empty if it
    has one, or is the provisioner's."""
    if wrong := refusal(event, now, rules):
        return wrong
    if is_provisioners(event):
        # Which workers there are, the provisioner alone knows.
        return "" if configs_reached or event.target_kind == "worker" else _unreached(event)
    if event.value is not None and (wrong := _value_problem(event.kind, event.value)):
        return wrong
    if event.kind == "capacity_hint" and event.value is None:
        return "value: a capacity_hint needs one, the starts that there is room for"
    if not configs_reached and event.target_kind == "worker":
        return f"unreached: worker {event.target_id!r} does not boot, and only then counts for its config"
    if not configs_reached:
        return _unreached(event)
    _, signal = kept(event, configs_reached, now)
    if any(_is_newer(known, signal) for known in held.values()):
        return f"newer: {event.source!r} has said something newer of {event.target_kind} {event.target_id!r}"
    return _share_problem(event, configs_reached, configs, held, now, rules) if signal.kind == "down" else ""


def _unreached(event: SignalRaised) -> str:
    if event.target_kind == "config":
        return f"unreached: there is no launch config {event.target_id!r}"
    return f"unreached: no launch config is of {event.target_kind} {event.target_id!r}"


def _is_newer(known: Signal, signal: Signal) -> bool:
    """Whether a source has said later of the same target the same, or that it has recovered; in whatever order they
    come, a `recovered` takes back what was observed at its very instant, too."""
    if (known.source, known.target_kind, known.target_id) != (signal.source, signal.target_kind, signal.target_id):
        return False
    if known.kind == signal.kind:
        return known.observed_at > signal.observed_at
    return known.kind == "recovered" and known.observed_at >= signal.observed_at


def _value_problem(kind: str, value: float) -> str:
    if kind == "capacity_hint":
        return "" if 0 <= value < 1e9 else f"value: {value:g} is not a number of starts"
    return "" if 0 <= value <= 1 else f"value: {value:g} is not between 0 and 1"


def _share_problem(
    event: SignalRaised,
    configs_reached: Collection[str],
    configs: Mapping[str, Config],
    held: Mapping[str, Signal],
    now: float,
    rules: Rules,
) -> str:
    """One source that is wrong must not stop a whole pool. Those that no rule names have one share together: over Kafka
    a name costs nothing."""
    closed = {*configs_reached}
    for signal in held.values():
        same = signal.source == event.source or not rules.sources.keys() & {signal.source, event.source}
        if same and signal.kind == "down" and signal.until > now:
            closed.update(signal.configs)
    for pool_id in sorted({configs[config_id].declared.pool_id for config_id in configs_reached}):
        if over := _over_share(event.source, pool_id, configs, closed, rules):
            return f"share: {event.source!r} would close {over}"
    return ""


def beyond_share(
    pool_id: str, configs: Mapping[str, Config], held: Mapping[str, Signal], rules: Rules
) -> list[tuple[str, str]]:
    """Keys of what is said of a pool that its configs, as they are declared now, leave no room for any more, the newest
    first; and why, as `problem` says it."""
    found, sources = [], dict[str, list[Signal]]()
    for signal in sorted(held.values(), key=lambda s: (s.since, s.key)):
        if signal.kind == "down":
            sources.setdefault(signal.source if signal.source in rules.sources else "", []).append(signal)
    for said in sources.values():
        while said and (
            over := _over_share(said[-1].source, pool_id, configs, {c for s in said for c in s.configs}, rules)
        ):
            signal = said.pop()
            found.append((signal.key, f"share: by now {signal.source!r} would close {over}"))
    return found


def _over_share(
    source_name: str, pool_id: str, configs: Mapping[str, Config], closed: Collection[str], rules: Rules
) -> str:
    """By how much a source closes more than its share: neither of what is active in a pool now, nor of what may be
    again, may it close more. Empty if it does not."""
    source = rules.sources.get(source_name, rules.unnamed)
    max_share = source.max_share if source is not None else 0.0
    declared = [c for c in configs.values() if c.declared.pool_id == pool_id and not c.archived_at]
    for word, those in (("active", {c.id for c in declared if c.active}), ("declared", {c.id for c in declared})):
        count = len(those.intersection(closed))
        if count > max_share * len(those):
            return f"{count} of {len(those)} {word} configs of pool {pool_id!r}; at most {max_share:.0%}"
    return ""


def kept(event: SignalRaised, configs_reached: Collection[str], now: float) -> tuple[str, Signal]:
    """The signal as it counts, and its key: the newest word of a source on a target replaces the one before."""
    # One machine that is down says little about where it stands.
    kind = "degraded" if event.target_kind == "worker" and event.kind == "down" else event.kind
    value = {"down": 0.0, "recovered": 1.0, "capacity_hint": event.value or 0.0}.get(kind, DEGRADED)
    if kind in ("degraded", "spot_interruption") and event.value is not None:
        value = event.value
    observed_at = event.observed_at.timestamp()
    # What a `recovered` takes back may hold longer than it says of itself, and may still be under way.
    holds_seconds = TTL_SECONDS_MAX if kind == "recovered" else event.ttl_seconds
    signal = Signal(
        event.source,
        kind,
        event.target_kind,
        event.target_id,
        redacted(event.reason),
        value,
        now,
        observed_at + holds_seconds,
        tuple(sorted(configs_reached)),
        observed_at,
    )
    return signal.key, signal


def lifted(event: SignalRaised, held: Mapping[str, Signal]) -> list[str]:
    """Keys of what a `recovered` takes back: what the same source has said before of the same target."""
    said, at = (event.source, event.target_kind, event.target_id), event.observed_at.timestamp()
    return [key for key, s in held.items() if (s.source, s.target_kind, s.target_id) == said and s.observed_at <= at]


def factor(said: Iterable[Signal]) -> float:
    """What a config's health is multiplied by."""
    return min((signal.value for signal in said if signal.kind != "capacity_hint"), default=1.0)


def is_down(said: Iterable[Signal]) -> Signal | None:
    return next((signal for signal in said if signal.kind == "down"), None)


def launch_room(said: Iterable[Signal]) -> float | None:
    """The smallest room that a capacity hint leaves; one start stays, or nothing would show that the hint is wrong."""
    rooms = [max(1.0, signal.value) for signal in said if signal.kind == "capacity_hint"]
    return min(rooms, default=None)
