"""Rules that decide which signals of which sources are accepted; shared by all services that act on signals. Pure."""

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Final

import msgspec

from slipway_api.events.signal import SignalRaised
from slipway_api.events.signal_kinds import KINDS, REQUESTS, TARGETS, TTL_SECONDS_MAX
from slipway_api.limits import REASON
from slipway_common.base.redaction import redacted
from slipway_common.base.text import duration_text

WORKER_ID: Final = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
FUTURE_SECONDS_MAX: Final = 60.0


class Source(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Permissions of a source: target kinds, target id patterns, signal kinds, and the share of a pool that it may trip
    and, separately, the share that it may pause."""

    targets: tuple[str, ...] = TARGETS
    ids: tuple[str, ...] = ("*",)
    kinds: tuple[str, ...] = tuple(KINDS)
    max_share: float = 0.5


class Rules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sources by name. Others get `unnamed`, whose share they have together; if it is None, they are refused."""

    sources: Mapping[str, Source] = {}
    unnamed: Source | None = Source()


DEFAULT_RULES: Final = Rules()


def rules_of(given: object) -> Rules:
    """Convert file content with `sources` by name and `unnamed`. Raises ValueError with the reason."""
    if not isinstance(given, dict):
        raise ValueError("must be a mapping with sources and unnamed")
    if unknown := sorted(str(name) for name in given if name not in Rules.__struct_fields__):
        raise ValueError(f"{unknown[0]}: unknown field; known: {', '.join(Rules.__struct_fields__)}")
    sources = given.get("sources", {})
    if not isinstance(sources, dict):
        raise ValueError("sources: must be a mapping of source names to permissions")
    unnamed = given.get("unnamed", {})
    return Rules(
        sources={str(name): _source(f"sources.{name}", body) for name, body in sources.items()},
        unnamed=None if unnamed is None else _source("unnamed", unnamed),
    )


def _source(where: str, given: object) -> Source:
    try:
        source = msgspec.convert({} if given is None else given, Source)
    except msgspec.ValidationError as error:
        known = f"; known: {', '.join(Source.__struct_fields__)}" if "unknown field" in str(error) else ""
        raise ValueError(f"{where}: {error}{known}") from error
    for field, words in (("targets", TARGETS), ("kinds", tuple(KINDS))):
        if unknown := [word for word in getattr(source, field) if word not in words]:
            raise ValueError(f"{where}.{field}: unknown {unknown[0]!r}; known: {', '.join(words)}")
    if not 0 <= source.max_share <= 1:
        raise ValueError(f"{where}.max_share: is {source.max_share:g}; must be between 0 and 1")
    return source


def is_for_provisioner(event: SignalRaised) -> bool:
    """True if the provisioner acts on a valid signal: a request, or the interruption of a worker. The weight-calculator
    acts on all others."""
    return event.kind in REQUESTS or (event.kind, event.target_kind) == ("spot_interruption", "worker")


def share_holder(source: str, rules: Rules) -> str:
    """Name under which a source holds its share of a pool: its own if operators have named it, otherwise the empty one.
    All others hold one share together, because on Kafka a source can use any name."""
    return source if source in rules.sources else ""


def over_share(source: str, rules: Rules, *, count: int, total: int, of: str) -> str:
    """Text about a source that would stop `count` of `total` launch configs, with the words `of` for these; empty if
    its share allows it."""
    permissions = rules.sources.get(source, rules.unnamed)
    max_share = permissions.max_share if permissions is not None else 0.0
    if count and count / total > max_share:
        return f"{count} of {total} {of}; at most {max_share:.0%}"
    return ""


def redacted_signal(event: SignalRaised) -> SignalRaised:
    """The signal as it is stored and published: monitors quote what failed in its reason."""
    return msgspec.structs.replace(event, reason=redacted(event.reason, REASON.characters))


def refusal(event: SignalRaised, now: float, rules: Rules = DEFAULT_RULES) -> str:
    """Reason why a signal received at `now` (seconds since the Unix epoch) is refused; empty if it is accepted.

    A category, a colon and a text for people."""
    source, observed_at = rules.sources.get(event.source, rules.unnamed), event.observed_at.timestamp()
    if event.target_kind not in TARGETS:
        return f"target: unknown target kind {event.target_kind!r}; known: {', '.join(TARGETS)}"
    if event.kind not in KINDS:
        return f"kind: unknown kind {event.kind!r}; known: {', '.join(KINDS)}"
    if event.kind in REQUESTS and event.target_kind != "config":
        return f"target: a {event.kind} needs target kind config, not {event.target_kind}"
    if is_for_provisioner(event) and event.target_kind == "worker" and not WORKER_ID.fullmatch(event.target_id):
        return f"target: {event.target_id!r} is not a worker id; find it with `slipway worker ls -o json`"
    if source is None or event.target_kind not in source.targets or event.kind not in source.kinds:
        return f"source: {event.source!r} may not raise {event.kind} for target kind {event.target_kind!r}"
    if not any(fnmatchcase(event.target_id, pattern) for pattern in source.ids):
        return f"source: {event.source!r} may not raise signals for {event.target_id!r}"
    if not 0 < event.ttl_seconds <= TTL_SECONDS_MAX:
        return f"ttl: ttl_seconds {event.ttl_seconds:.10g} must be above 0 and at most {TTL_SECONDS_MAX:g}"
    if (until := observed_at + event.ttl_seconds) <= now:
        return f"expired: it expired {duration_text(now - until)} ago"
    if observed_at > now + FUTURE_SECONDS_MAX:
        return "future: observed_at is in the future"
    return ""
