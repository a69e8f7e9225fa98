"""Signals from external sources: the configs they reach, whether they are accepted, and their effect. Pure.

A signal on a launch config reaches all revisions of that name; one on "name@hash" reaches that revision.

A config's health is multiplied by the lowest factor of any live signal, so signals never add up and never raise a
weight above what outcomes allow. `down` trips the config until it expires or its source clears it; `capacity_hint` caps
the launch window. `recovered` clears the earlier signals of its source on the target and has tripped configs probed at
once: outcomes decide. It is stored, without an effect on the weight, for as long as any signal that it clears could
last, so that such a signal may also arrive after it. A signal on a worker counts for its config while the worker boots,
and trips nothing by itself. Pause and resume requests and interruptions of a worker are handled by the provisioner.
"""

from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from typing import Final

import msgspec

from slipway_api.events.signal import SignalRaised
from slipway_api.events.signal_kinds import CAPS, KINDS, TTL_SECONDS_MAX
from slipway_api.events.worker import Notice, WorkerNoticed
from slipway_api.percent import encoded
from slipway_common.base.redaction import redacted
from slipway_common.base.signal_rules import (
    DEFAULT_RULES,
    Rules,
    is_for_provisioner,
    over_share,
    refusal,
    share_holder,
)
from slipway_weight_calculator.domain.rows import Config

REASONS: Final = ("target", "kind", "source", "ttl", "expired", "future", "value", "unreached", "newer", "share")

# Kind and value of the signal that a notice is. Kinds differ, since a signal replaces those of its kind: a
# recommendation must not raise the weight that an interruption has lowered.
NOTICES: Final[Mapping[Notice, tuple[str, float | None]]] = {
    Notice.INTERRUPTION: ("spot_interruption", None),
    Notice.REBALANCE: ("degraded", 0.75),
}


class Signal(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A signal in effect from `since` to `until`, for the configs that it reached when it arrived, and those that have
    come since under the names of these."""

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
        """Unique key, JSON-encoded because names may contain any character."""
        return msgspec.json.encode((self.source, self.kind, self.target_kind, self.target_id)).decode()

    def event(self) -> SignalRaised:
        """The signal as it was raised."""
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


def of_notice(event: WorkerNoticed, at: float) -> SignalRaised | None:
    """The signal on a capacity that a provider takes a machine of it back, as of `at`; None for an unknown kind.

    The next one of its kind replaces it, so that many machines of one capacity lower its weight once.
    """
    if event.kind not in NOTICES:
        return None
    kind, value = NOTICES[event.kind]
    return SignalRaised(
        source="provisioner",
        target_kind="capacity",
        target_id=event.capacity_key,
        kind=kind,
        reason=f"worker {event.worker_id}: {event.reason}",
        observed_at=datetime.fromtimestamp(at, UTC),
        value=value,
    )


def reached(event: SignalRaised, configs: Mapping[str, Config], booting: str = "") -> frozenset[str]:
    """Ids of the configs that a signal is about, without archived ones.

    `booting` is the config of the worker that the signal names, while the worker boots.
    """
    found = (
        config
        for config in configs.values()
        if (event.target_kind == "worker" and config.id == booting)
        or is_about(event.target_kind, event.target_id, config)
    )
    return frozenset(config.id for config in found if not config.archived_at)


def is_about(target_kind: str, target_id: str, config: Config) -> bool:
    """True if the target of a signal, other than a worker, includes the config."""
    declared = config.declared
    match target_kind:
        case "config":
            return target_id in (declared.name, config.id)
        case "pool":
            return declared.pool_id == target_id
        case "zone":
            return target_id in (declared.zone, encoded(declared.region, declared.zone))
        case "account":
            return declared.account_id == target_id
        case "image":
            return target_id in (declared.image_revision, config.shared["image"].id)
        case "capacity":
            return config.shared["capacity"].id == target_id
    return False


def problem(
    event: SignalRaised,
    configs_reached: Collection[str],
    configs: Mapping[str, Config],
    live: Mapping[str, Signal],
    now: float,
    rules: Rules = DEFAULT_RULES,
) -> str:
    """Reason why a signal received at `now` has no effect: one of REASONS, a colon, and a text.

    Empty if it has an effect or is for the provisioner.
    """
    if wrong := refusal(event, now, rules):
        return wrong
    if is_for_provisioner(event):
        # Only the provisioner knows which workers exist.
        return "" if configs_reached or event.target_kind == "worker" else _unreached(event)
    if wrong := _value_problem(event.kind, event.value):
        return wrong
    if not configs_reached and event.target_kind == "worker":
        return f"unreached: worker {event.target_id!r} is not booting; a signal on a worker counts only while it boots"
    if not configs_reached:
        return _unreached(event)
    _, signal = signal_of(event, configs_reached, now)
    if any(_is_newer(known, signal) for known in live.values()):
        return f"newer: {event.source!r} has raised a newer signal on {event.target_kind} {event.target_id!r}"
    return _share_problem(event, configs_reached, configs, live, now, rules) if signal.kind == "down" else ""


def _unreached(event: SignalRaised) -> str:
    if event.target_kind == "config":
        return f"unreached: there is no launch config {event.target_id!r}"
    return f"unreached: no launch config belongs to {event.target_kind} {event.target_id!r}"


def _is_newer(known: Signal, signal: Signal) -> bool:
    """True if `known` is of the same source and target, and later, and of the same kind or `recovered`.

    Whatever their order of arrival, a `recovered` also clears signals observed at the same time.
    """
    if (known.source, known.target_kind, known.target_id) != (signal.source, signal.target_kind, signal.target_id):
        return False
    if known.kind == signal.kind:
        return known.observed_at > signal.observed_at
    return known.kind == "recovered" and known.observed_at >= signal.observed_at


def _value_problem(kind: str, value: float | None) -> str:
    if value is None:
        return f"value: a {kind} needs a value, the number of starts in flight that fit" if kind in CAPS else ""
    expected = KINDS[kind].expected(value)
    return f"value: {value:g} is not {expected}" if expected else ""


def _share_problem(
    event: SignalRaised,
    configs_reached: Collection[str],
    configs: Mapping[str, Config],
    live: Mapping[str, Signal],
    now: float,
    rules: Rules,
) -> str:
    """Reason why a source exceeds its share of a pool; empty if it does not.

    A wrong source must not stop a whole pool.
    """
    tripped, holder = {*configs_reached}, share_holder(event.source, rules)
    for signal in live.values():
        same = share_holder(signal.source, rules) == holder
        if same and signal.kind == "down" and signal.until > now:
            tripped.update(signal.configs)
    for pool_id in sorted({configs[config_id].declared.pool_id for config_id in configs_reached}):
        if over := _over_share(event.source, pool_id, configs, tripped, rules):
            return f"share: {event.source!r} would trip {over}"
    return ""


def exceeding_share(
    pool_id: str, configs: Mapping[str, Config], live: Mapping[str, Signal], rules: Rules
) -> list[tuple[str, str]]:
    """Keys of the signals that exceed their source's share of the pool as declared now, newest first, with reasons."""
    found, sources = [], dict[str, list[Signal]]()
    for signal in sorted(live.values(), key=lambda s: (s.since, s.key)):
        if signal.kind == "down":
            sources.setdefault(share_holder(signal.source, rules), []).append(signal)
    for raised in sources.values():
        while raised and (
            over := _over_share(raised[-1].source, pool_id, configs, {c for s in raised for c in s.configs}, rules)
        ):
            signal = raised.pop()
            found.append((signal.key, f"share: by now {signal.source!r} would trip {over}"))
    return found


def _over_share(
    source_name: str, pool_id: str, configs: Mapping[str, Config], tripped: Collection[str], rules: Rules
) -> str:
    """Text about a source that trips more than its share of a pool; empty if it does not.

    The share applies to the active launch configs of the pool and to all declared ones, since those may become active
    again. A launch config counts once, whatever number of its revisions is tripped.
    """
    declared = [c for c in configs.values() if c.declared.pool_id == pool_id and not c.archived_at]
    for word, those in (("active", [c for c in declared if c.active]), ("declared", declared)):
        names = {c.name for c in those}
        count = len({c.name for c in those if c.id in tripped})
        of = f"{word} launch configs of pool {pool_id!r}"
        if over := over_share(source_name, rules, count=count, total=len(names), of=of):
            return over
    return ""


def signal_of(event: SignalRaised, configs_reached: Collection[str], now: float) -> tuple[str, Signal]:
    """Key and stored form of a signal: a newer signal of a source on a target replaces the one before."""
    # A single machine that is down is weak evidence about its location.
    kind = "degraded" if event.target_kind == "worker" and event.kind == "down" else event.kind
    value = event.value if KINDS[kind].value and event.value is not None else KINDS[kind].factor
    observed_at = event.observed_at.timestamp()
    # Signals that a `recovered` clears may last longer than its own ttl, and may arrive after it.
    lasts_seconds = TTL_SECONDS_MAX if kind == "recovered" else event.ttl_seconds
    signal = Signal(
        event.source,
        kind,
        event.target_kind,
        event.target_id,
        redacted(event.reason),
        value,
        now,
        observed_at + lasts_seconds,
        tuple(sorted(configs_reached)),
        observed_at,
    )
    return signal.key, signal


def cleared(event: SignalRaised, live: Mapping[str, Signal]) -> list[str]:
    """Keys of the signals that a `recovered` clears: earlier ones of the same source on the same target."""
    of, at = (event.source, event.target_kind, event.target_id), event.observed_at.timestamp()
    return [key for key, s in live.items() if (s.source, s.target_kind, s.target_id) == of and s.observed_at <= at]


def health_factor(live: Iterable[Signal]) -> float:
    """Factor of a config's health: the lowest of its live signals."""
    return min((signal.value for signal in live if signal.kind not in CAPS), default=1.0)


def down_signal(live: Iterable[Signal]) -> Signal | None:
    """The first `down` signal, None if there is none."""
    return next((signal for signal in live if signal.kind == "down"), None)


def launch_cap(live: Iterable[Signal]) -> float | None:
    """The lowest launch window of any capacity hint; at least one start, to find out when a hint is wrong."""
    caps = [max(1.0, signal.value) for signal in live if signal.kind in CAPS]
    return min(caps, default=None)
