"""Faults of the stand-in for EC2: their kinds and effects. Pure; the notation is the simulator's.

A new fault is a row in FAULTS and, if needed, a new field of Effects.
"""

from typing import Final

import msgspec

from slipway_simulator.notation import Kind, Notation, bare, changed, factor, named, ratio


class Refusal(msgspec.Struct, frozen=True):
    """Calls of an action are refused with a code, at a ratio."""

    action: str
    code: str
    ratio: float


class Death(msgspec.Struct, frozen=True):
    """Pending machines die with a StateReason, at a ratio."""

    code: str
    ratio: float


class Effects(msgspec.Struct, frozen=True):
    """Combined effects of all active faults. `no_capacity` and `interrupted`: keys of capacity. `clock_seconds`: by how
    much the cloud's clock is ahead."""

    no_capacity: frozenset[str] = frozenset()
    quota_used_up: frozenset[str] = frozenset()
    full_subnets: frozenset[str] = frozenset()
    denied: frozenset[str] = frozenset()
    unshared_images: frozenset[str] = frozenset()
    identity: str = ""
    session_seconds: float | None = None
    clock_seconds: float = 0.0
    bad_images: frozenset[str] = frozenset()
    interrupted: frozenset[str] = frozenset()
    refusals: tuple[Refusal, ...] = ()
    deaths: tuple[Death, ...] = ()
    throttled: bool = False
    ignore_token: bool = False
    expired: bool = False
    lost_reply_ratio: float = 0.0
    broken_reply_ratio: float = 0.0
    torn_listing_ratio: float = 0.0
    late_seconds: float = 0.0
    latency_seconds: float = 0.0
    boot_factor: float = 1.0


def seconds(value: str) -> float:
    """Argument of at least 0."""
    number = float(value)
    if not number >= 0.0:
        raise ValueError(f"{value} is below 0")
    return number


def account(value: str) -> str:
    """Argument that is an account number."""
    if not value.isascii() or not value.isdecimal():
        raise ValueError("the account number is missing")
    return value


def _refusal(value: str) -> tuple[Refusal, ...]:
    action, _, rest = value.partition("/")
    code, _, share = rest.partition("/")
    if not action or not code:
        raise ValueError("the action or the code is missing")
    return (Refusal(action, code, ratio(share, default=1.0)),)


def _death(value: str) -> tuple[Death, ...]:
    code, _, share = value.partition("/")
    if not code:
        raise ValueError("the code is missing")
    return (Death(code, ratio(share, default=1.0)),)


FAULTS: Final[dict[str, Kind[Effects]]] = {
    "zone": Kind(
        "zone:NAME[:WINDOW]",
        "the zone has no capacity for any type: launches fail, existing instances keep running",
        lambda e, value: changed(e, no_capacity=e.no_capacity | named(value)),
    ),
    "capacity": Kind(
        "capacity:ZONE/TYPE[/LIFECYCLE][:WINDOW]",
        "no capacity for the type there, of one lifecycle (on-demand or spot) or of both",
        lambda e, value: changed(e, no_capacity=e.no_capacity | named(value)),
    ),
    "interruption": Kind(
        "interruption:ZONE[/TYPE][:WINDOW]",
        "spot machines there get an interruption notice, and are terminated when it expires",
        lambda e, value: changed(e, interrupted=e.interrupted | named(value)),
    ),
    "quota": Kind(
        "quota:ACCOUNT[:WINDOW]",
        "the account's vCPU quota is used up for every family",
        lambda e, value: changed(e, quota_used_up=e.quota_used_up | named(value)),
    ),
    "subnet": Kind(
        "subnet:SUBNET[:WINDOW]",
        "the subnet has no free addresses; a zone's name stands for its default subnet",
        lambda e, value: changed(e, full_subnets=e.full_subnets | named(value)),
    ),
    "deny": Kind(
        "deny:ACTION[:WINDOW]",
        "no policy allows the action, such as RunInstances, CreateTags, PassRole or GetServiceQuota",
        lambda e, value: changed(e, denied=e.denied | named(value)),
    ),
    "unshared-image": Kind(
        "unshared-image:IMAGE[:WINDOW]",
        "the image is not shared with any account",
        lambda e, value: changed(e, unshared_images=e.unshared_images | named(value)),
    ),
    "identity": Kind(
        "identity:ACCOUNT[:WINDOW]",
        "the credentials belong to this account, as far as GetCallerIdentity says",
        lambda e, value: changed(e, identity=account(value)),
    ),
    "session": Kind(
        "session:SECONDS[:WINDOW]",
        "sessions of roles that are assumed meanwhile last this long, in real time",
        lambda e, value: changed(e, session_seconds=seconds(value)),
    ),
    "clock": Kind(
        "clock:SECONDS[:WINDOW]",
        "the cloud's clock is ahead, or behind for a number below 0; from 300 on it refuses every call",
        lambda e, value: changed(e, clock_seconds=float(value)),
    ),
    "refuse": Kind(
        "refuse:ACTION/CODE[/RATIO][:WINDOW]",
        "calls of the action are refused with the code, without any effect (default ratio 1)",
        lambda e, value: changed(e, refusals=e.refusals + _refusal(value)),
    ),
    "dies": Kind(
        "dies:CODE[/RATIO][:WINDOW]",
        "machines are terminated while pending, with this StateReason (default ratio 1)",
        lambda e, value: changed(e, deaths=e.deaths + _death(value)),
    ),
    "throttle": Kind(
        "throttle[:WINDOW]",
        "every account admits only a few launch calls a minute",
        lambda e, value: changed(e, throttled=bare(value)),
    ),
    "ignore-token": Kind(
        "ignore-token[:WINDOW]",
        "a repeated token creates new instances",
        lambda e, value: changed(e, ignore_token=bare(value)),
    ),
    "expired-credential": Kind(
        "expired-credential[:WINDOW]",
        "every call is refused because its credentials have expired",
        lambda e, value: changed(e, expired=bare(value)),
    ),
    "lost-reply": Kind(
        "lost-reply[:RATIO][:WINDOW]",
        "launch and terminate calls take effect, but the connection is dropped without a reply (default ratio 0.3)",
        lambda e, value: changed(e, lost_reply_ratio=ratio(value, default=0.3)),
    ),
    "broken-reply": Kind(
        "broken-reply[:RATIO][:WINDOW]",
        "launch and terminate calls take effect, and are answered by a proxy's 502 page (default ratio 0.3)",
        lambda e, value: changed(e, broken_reply_ratio=ratio(value, default=0.3)),
    ),
    "torn-listing": Kind(
        "torn-listing[:RATIO][:WINDOW]",
        "listings have short pages, and fail after the first one (default ratio 0.3)",
        lambda e, value: changed(e, torn_listing_ratio=ratio(value, default=0.3)),
    ),
    "late-listing": Kind(
        "late-listing:SECONDS[:WINDOW]",
        "instances launched meanwhile are listed and found that much later",
        lambda e, value: changed(e, late_seconds=e.late_seconds + seconds(value)),
    ),
    "latency": Kind(
        "latency:SECONDS[:WINDOW]",
        "every call takes that much longer",
        lambda e, value: changed(e, latency_seconds=e.latency_seconds + seconds(value)),
    ),
    "bad-image": Kind(
        "bad-image:IMAGE[:WINDOW]",
        "machines launched from the image print an error as they boot, and never start their agent",
        lambda e, value: changed(e, bad_images=e.bad_images | named(value)),
    ),
    "slow-boot": Kind(
        "slow-boot:FACTOR[:WINDOW]",
        "machines boot slower by this factor",
        lambda e, value: changed(e, boot_factor=e.boot_factor * factor(value)),
    ),
}
NOTATION: Final = Notation(FAULTS, Effects())
