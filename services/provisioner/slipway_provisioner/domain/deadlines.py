"""Deadlines of workers that are declared nowhere: those of profiles, and what contradicts them. Pure."""

from collections.abc import Mapping
from typing import Final

from slipway_common.declaration.deadlines import Deadlines, contradiction

DefaultDeadlines = Mapping[str, Deadlines]
"""Deadlines by profile."""
NO_DEFAULTS: Final[DefaultDeadlines] = {}
FACTORS: Final[Mapping[str, Mapping[str, float]]] = {
    "on-demand": {},
    "spot": {},
    "bare-metal": {"registration_seconds": 4.0, "idle_seconds": 15.0},
}
"""Defaults of profiles as multiples of the service's own settings. A bare-metal host boots in up to half an hour, the
`boot_seconds` of its health profile: it gets twice that time, and stays for as long as it takes to replace it."""
DEFAULT_PROFILE: Final = "on-demand"
DAY_SECONDS: Final = 86_400.0


def defaults(own: Deadlines) -> DefaultDeadlines:
    """Deadlines by profile, from those of this service."""
    return {
        profile: {name: seconds * factors.get(name, 1.0) for name, seconds in own.items()}
        for profile, factors in FACTORS.items()
    }


def problem(
    declared: Deadlines, of_profile: Deadlines, lifetimes: Mapping[str, float], *, day_seconds: float = DAY_SECONDS
) -> str:
    """Contradiction between the deadlines of a launch config, with its remedy; empty if there is none. `lifetimes` are
    the `lifetime_seconds` of the spend limits that hold for it, by the limit. One of a day or more counts for no less:
    a launch commits a day at most, however long the machine runs."""
    in_force = {**of_profile, **declared}
    short = {limit: seconds for limit, seconds in lifetimes.items() if seconds < day_seconds}
    if not short:
        return contradiction(in_force)
    owner, lifetime = min(short.items(), key=lambda item: item[1])
    return contradiction({**in_force, "lifetime_seconds": lifetime}, whose={"lifetime_seconds": owner})
