"""Faults of the simulated cloud: their kinds and effects. Pure; notation.py reads them.

A fault has `Effects`; cloud.py decides the answers to calls under them. A new fault is a row in FAULTS and, if needed,
a new field of Effects.
"""

from typing import Final

import msgspec

from slipway_simulator.notation import ZONE_PREFIX, Kind, Notation, bare, changed, factor, named, ratio


class Effects(msgspec.Struct, frozen=True):
    """Combined effects of all active faults."""

    zones_out: frozenset[str] = frozenset()
    quota_used_up: frozenset[str] = frozenset()
    bad_images: frozenset[str] = frozenset()
    undying: frozenset[str] = frozenset()
    throttled: bool = False
    ignore_token: bool = False
    lost_reply_ratio: float = 0.0
    boot_factor: float = 1.0
    refused_credentials: frozenset[str] = frozenset()


ZONE: Final[Kind[Effects]] = Kind(
    "zone-NAME[:WINDOW] or zone:NAME[:WINDOW]",
    "the zone has no capacity: launches fail, existing instances keep running",
    lambda e, value: changed(e, zones_out=e.zones_out | named(value)),
)
FAULTS: Final[dict[str, Kind[Effects]]] = {
    "zone": ZONE,
    ZONE_PREFIX: ZONE,
    "lost-reply": Kind(
        "lost-reply[:RATIO][:WINDOW]",
        "create calls take effect, but the connection is dropped without a reply (default ratio 0.3)",
        lambda e, value: changed(e, lost_reply_ratio=ratio(value, default=0.3)),
    ),
    "ignore-token": Kind(
        "ignore-token[:WINDOW]",
        "a repeated token creates new instances",
        lambda e, value: changed(e, ignore_token=bare(value)),
    ),
    "quota": Kind(
        "quota:ACCOUNT[:WINDOW]",
        "the account's quota is used up for every family",
        lambda e, value: changed(e, quota_used_up=e.quota_used_up | named(value)),
    ),
    "credential": Kind(
        "credential:ACCOUNT[:WINDOW]",
        "create calls in the account are refused, since its credential is",
        lambda e, value: changed(e, refused_credentials=e.refused_credentials | named(value)),
    ),
    "throttle": Kind(
        "throttle[:WINDOW]",
        "every account admits only a few create calls a minute",
        lambda e, value: changed(e, throttled=bare(value)),
    ),
    "bad-image": Kind(
        "bad-image:IMAGE[:WINDOW]",
        "machines started from the image never register",
        lambda e, value: changed(e, bad_images=e.bad_images | named(value)),
    ),
    "no-termination": Kind(
        "no-termination:NAME[:WINDOW]",
        "terminations of the instance, or of all of the account, are refused; asked to leave, its machines hang",
        lambda e, value: changed(e, undying=e.undying | named(value)),
    ),
    "slow-boot": Kind(
        "slow-boot:FACTOR[:WINDOW]",
        "machines boot slower by this factor",
        lambda e, value: changed(e, boot_factor=e.boot_factor * factor(value)),
    ),
}
NOTATION: Final = Notation(FAULTS, Effects())
parse, parse_one, parsed, effects = NOTATION.parse, NOTATION.parse_one, NOTATION.parsed, NOTATION.effects
