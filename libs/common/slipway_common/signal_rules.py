"""Who may say what in a signal, whatever it is about: one judgement for all who act on signals. Pure."""

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Final

import msgspec

from slipway_common.events.signal import SignalRaised

TARGETS: Final = ("worker", "config", "pool", "zone", "account", "image")
OPINIONS: Final = ("degraded", "down", "recovered", "capacity_hint", "spot_interruption")
REQUESTS: Final = ("pause_request", "resume_request")
WORKER_ID: Final = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
FUTURE_SECONDS_MAX: Final = 60.0
TTL_SECONDS_MAX: Final = 86_400.0


class Source(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a source may say: target kinds, patterns of target ids, and the share of a pool that it may close."""

    targets: tuple[str, ...] = TARGETS
    ids: tuple[str, ...] = ("*",)
    kinds: tuple[str, ...] = (*OPINIONS, *REQUESTS)
    max_share: float = 0.5


class Rules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`sources` by name; one that is not named gets `unnamed`, whose share all such have together, or nothing at
    all if that is None."""

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


def is_provisioners(event: SignalRaised) -> bool:
    """Whether a sound signal is the provisioner's to act on: a request, or that a machine is taken away. All others are
    the weight-calculator's."""
    return event.kind in REQUESTS or (event.kind, event.target_kind) == ("spot_interruption", "worker")


def refusal(event: SignalRaised, now: float, rules: Rules = DEFAULT_RULES) -> str:
    """Why a signal heard at `now`, in seconds since the epoch, has no effect, whatever else is known: the kind of
    reason, a colon, and words. Empty if it may have one."""
    source, observed_at = rules.sources.get(event.source, rules.unnamed), event.observed_at.timestamp()
    if event.target_kind not in TARGETS:
        return f"target: unknown target kind {event.target_kind!r}; known: {', '.join(TARGETS)}"
    if event.kind not in (*OPINIONS, *REQUESTS):
        return f"kind: unknown kind {event.kind!r}; known: {', '.join((*OPINIONS, *REQUESTS))}"
    if event.kind in REQUESTS and event.target_kind != "config":
        return f"target: a {event.kind} is of a config; of a {event.target_kind} it has no effect"
    if is_provisioners(event) and event.target_kind == "worker" and not WORKER_ID.fullmatch(event.target_id):
        return f"target: {event.target_id!r} is no worker's id; `slipway worker ls -o json` tells them, with instances"
    if source is None or event.target_kind not in source.targets or event.kind not in source.kinds:
        return f"source: {event.source!r} may not say {event.kind} of a {event.target_kind}"
    if not any(fnmatchcase(event.target_id, pattern) for pattern in source.ids):
        return f"source: {event.source!r} may not speak of {event.target_id!r}"
    if not 0 < event.ttl_seconds <= TTL_SECONDS_MAX:
        return f"ttl: ttl_seconds {event.ttl_seconds:.10g} is not above 0 and at most {TTL_SECONDS_MAX:g}"
    if (until := observed_at + event.ttl_seconds) <= now:
        return f"expired: its time was over {_spelled(now - until)} ago"
    if observed_at > now + FUTURE_SECONDS_MAX:
        return "future: observed_at is in the future"
    return ""


def _spelled(seconds: float) -> str:
    """A duration in the largest unit of which there are two or more, else in seconds."""
    units = (("d", 86_400.0), ("h", 3600.0), ("min", 60.0))
    return next((f"{seconds / long:.0f} {unit}" for unit, long in units if seconds >= 2 * long), f"{seconds:.0f} s")
