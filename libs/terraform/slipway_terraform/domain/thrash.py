"""Thrash: replacements of plugins that are still needed, per run of the CLI. Pure.

Sharing saves nothing once most runs wait for a start. Counts are halved every five minutes, so that they describe the
recent past; a ratio needs at least RUNS_MIN runs.
"""

from typing import Final

import msgspec

from slipway_terraform.domain.generations import Reason

HALF_LIFE_SECONDS: Final = 300.0
RUNS_MIN: Final = 20.0
ALERT_ABOVE: Final = 0.5
WANTED: Final = frozenset(Reason) - {Reason.IDLE, Reason.ROTATED, Reason.CLOSED}
"""Reasons to replace a plugin that somebody may still need."""


class Thrash(msgspec.Struct, frozen=True, kw_only=True):
    """Recent replacements and runs, as of the time `at`, in seconds."""

    replacements: float = 0.0
    runs: float = 0.0
    at: float = 0.0

    @property
    def ratio(self) -> float:
        """Replacements per run; 0 if there were too few runs."""
        return self.replacements / self.runs if self.runs >= RUNS_MIN else 0.0

    @property
    def alerts(self) -> bool:
        return self.ratio > ALERT_ABOVE


def after(thrash: Thrash, *, replacements: int = 0, runs: int = 0, now: float) -> Thrash:
    """Thrash after these replacements and runs."""
    left = 0.5 ** ((now - thrash.at) / HALF_LIFE_SECONDS)
    return Thrash(replacements=thrash.replacements * left + replacements, runs=thrash.runs * left + runs, at=now)
