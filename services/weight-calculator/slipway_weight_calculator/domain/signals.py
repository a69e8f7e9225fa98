"""Opinions from outside: whom a signal reaches, whether it may have an effect, and how it counts. Pure.

The rule: a config's health is multiplied by the lowest factor that any live signal gives it, so opinions never add up
and never lift a weight above what outcomes allow. `down` closes the config until it expires or its source takes it
back; `capacity_hint` caps the launch window. `recovered` takes back what its source has said of the target and has
closed configs probed at once: outcomes decide. What is said of a worker counts for its config while it boots, and
closes nothing by itself. Pause and resume requests, and that a worker is interrupted, are the provisioner's.
"""

from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Final

import msgspec

from slipway_common.events.signal import SignalRaised
from slipway_common.redaction import redacted
from slipway_weight_calculator.domain.rows import Config

TARGETS: Final = ("worker", "config", "pool", "zone", "account", "image")
OPINIONS: Final = ("degraded", "down", "recovered", "capacity_hint", "spot_interruption")
REQUESTS: Final = ("pause_request", "resume_request")
REASONS: Final = (
    "target", "kind", "source", "ttl", "expired", "future", "value", "unreached", "newer", "share",
)  # fmt: skip
DEGRADED: Final = 0.5  # the factor of a signal that names none
FUTURE_SECONDS_MAX: Final = 60.0
TTL_SECONDS_MAX: Final = 86_400.0


class Source(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a source may say: target kinds, patterns of target ids, and the share of a pool that it may close."""

    targets: tuple[str, ...] = TARGETS
    ids: tuple[str, ...] = ("*",)
    kinds: tuple[str, ...] = (*OPINIONS, *REQUESTS)
    max_share: float = 0.5


class Rules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`sources` by name; one that is not named gets `unnamed`, or nothing at all if that is None."""

    sources: Mapping[str, Source] = {}
    unnamed: Source | None = Source()


DEFAULT_RULES: Final = Rules()


def rules_of(given: object) -> Rules:
    """Who may say what, as a file says it: `sources` by name, and `unnamed`. Raises ValueError with what is wrong."""
    if not isinstance(given, dict):
        raise ValueError("is no mapping with sources and unnamed")
    if unknown := sorted(str(name) for name in given if name not in Rules.__struct_fields__):
        raise ValueError(f"{unknown[0]}: unknown; there is {', '.join(Rules.__struct_fields__)}")
    sources = given.get("sources", {})
    if not isinstance(sources, dict):
        raise ValueError("sources: is no mapping of names to what they may say")
    unnamed = given.get("unnamed", {})
    return Rules(
        sources={str(name): _source(f"sources.{name}", body) for name, body in sources.items()},
        unnamed=None if unnamed is None else _source("unnamed", unnamed),
    )


def _source(where: str, given: object) -> Source:
    try:
        source = msgspec.convert({} if given is None else given, Source)
    except msgspec.ValidationError as error:
        known = f"; there is {', '.join(Source.__struct_fields__)}" if "unknown field" in str(error) else ""
        raise ValueError(f"{where}: {error}{known}") from error
    for field, words in (("targets", TARGETS), ("kinds", (*OPINIONS, *REQUESTS))):
        if unknown := [word for word in getattr(source, field) if word not in words]:
            raise ValueError(f"{where}.{field}: unknown {unknown[0]!r}; there is {', '.join(words)}")
    if not 0 <= source.max_share <= 1:
        raise ValueError(f"{where}.max_share: is {source.max_share:g}; write a share of a pool between 0 and 1")
    return source


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


def is_ours(event: SignalRaised, configs_reached: Collection[str]) -> bool:
    """Whether a sound signal is for us to act on."""
    if event.target_kind == "worker":
        return event.kind in OPINIONS and event.kind != "spot_interruption" and bool(configs_reached)
    return event.kind in OPINIONS


def problem(
    event: SignalRaised, configs_reached: Collection[str], configs: Mapping[str, Config], held: Mapping[str, Signal],
    now: float, rules: Rules = DEFAULT_RULES,
) -> str:  # fmt: skip
    """Why a signal heard at `now` has no effect: the kind of reason (one of REASONS), a colon, and words. Empty if it
    has one, or is the provisioner's."""
    source, observed_at = rules.sources.get(event.source, rules.unnamed), event.observed_at.timestamp()
    if event.target_kind not in TARGETS:
        return f"target: unknown target kind {event.target_kind!r}; known: {', '.join(TARGETS)}"
    if event.kind not in (*OPINIONS, *REQUESTS):
        return f"kind: unknown kind {event.kind!r}; known: {', '.join((*OPINIONS, *REQUESTS))}"
    if source is None or event.target_kind not in source.targets or event.kind not in source.kinds:
        return f"source: {event.source!r} may not say {event.kind} of a {event.target_kind}"
    if not any(fnmatchcase(event.target_id, pattern) for pattern in source.ids):
        return f"source: {event.source!r} may not speak of {event.target_id!r}"
    if not 0 < event.ttl_seconds <= TTL_SECONDS_MAX:
        return f"ttl: ttl_seconds {event.ttl_seconds:g} is not above 0 and at most {TTL_SECONDS_MAX:g}"
    if (until := observed_at + event.ttl_seconds) <= now:
        return f"expired: its time was over {now - until:.0f} s ago"
    if observed_at > now + FUTURE_SECONDS_MAX:
        return "future: observed_at is in the future"
    if not is_ours(event, configs_reached):
        return ""
    if event.value is not None and (wrong := _value_problem(event.kind, event.value)):
        return wrong
    if event.kind == "capacity_hint" and event.value is None:
        return "value: a capacity_hint needs one, the starts that there is room for"
    if not configs_reached:
        return f"unreached: no launch config is of {event.target_kind} {event.target_id!r}"
    _, signal = kept(event, configs_reached, now)
    if (known := held.get(signal.key)) is not None and known.observed_at > observed_at:
        return f"newer: {event.source!r} has said something newer of {event.target_kind} {event.target_id!r}"
    return _share_problem(event, configs_reached, configs, held, now, source) if signal.kind == "down" else ""


def _value_problem(kind: str, value: float) -> str:
    if kind == "capacity_hint":
        return "" if 0 <= value < 1e9 else f"value: {value:g} is not a number of starts"
    return "" if 0 <= value <= 1 else f"value: {value:g} is not between 0 and 1"


def _share_problem(
    event: SignalRaised, configs_reached: Collection[str], configs: Mapping[str, Config], held: Mapping[str, Signal],
    now: float, source: Source,
) -> str:  # fmt: skip
    """One source that is wrong must not stop a whole pool: neither what is active in it now, nor what may be again."""
    closed = {*configs_reached}
    for signal in held.values():
        if signal.source == event.source and signal.kind == "down" and signal.until > now:
            closed.update(signal.configs)
    for pool_id in sorted({configs[config_id].declared.pool_id for config_id in configs_reached}):
        declared = [c for c in configs.values() if c.declared.pool_id == pool_id and not c.archived_at]
        for word, those in (("active", {c.id for c in declared if c.active}), ("declared", {c.id for c in declared})):
            if len(those & closed) > source.max_share * len(those):
                return (
                    f"share: {event.source!r} would close {len(those & closed)} of {len(those)} {word} configs of pool "
                    f"{pool_id!r}; at most {source.max_share:.0%}"
                )
    return ""


def kept(event: SignalRaised, configs_reached: Collection[str], now: float) -> tuple[str, Signal]:
    """The signal as it counts, and its key: the newest word of a source on a target replaces the one before."""
    # One machine that is down says little about where it stands.
    kind = "degraded" if event.target_kind == "worker" and event.kind == "down" else event.kind
    value = {"down": 0.0, "capacity_hint": event.value or 0.0}.get(kind, DEGRADED)
    if kind in ("degraded", "spot_interruption") and event.value is not None:
        value = event.value
    observed_at = event.observed_at.timestamp()
    signal = Signal(
        event.source, kind, event.target_kind, event.target_id, redacted(event.reason), value, now,
        observed_at + event.ttl_seconds, tuple(sorted(configs_reached)), observed_at,
    )  # fmt: skip
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
