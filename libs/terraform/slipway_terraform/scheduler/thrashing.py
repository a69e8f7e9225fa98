"""Thrash of a scheduler: measured as a metric, and logged when it begins."""

import logging
from typing import Final

from slipway_terraform import metrics
from slipway_terraform.domain.policy import Policy
from slipway_terraform.domain.thrash import ALERT_ABOVE, Thrash, after

LOG: Final = logging.getLogger(__name__)


class ThrashAlert:
    """Replacements and runs of one scheduler."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._thrash = Thrash()

    def count(self, *, replacements: int = 0, runs: int = 0, now: float) -> None:
        """Add what has happened at `now`, a time of the scheduler's clock in seconds."""
        before, self._thrash = self._thrash, after(self._thrash, replacements=replacements, runs=runs, now=now)
        metrics.THRASH.set(self._thrash.ratio)
        if self._thrash.alerts and not before.alerts:
            LOG.warning(
                "thrash: %.2f plugins replaced per run, above %.1f; raise max_processes (now %d), or run fewer "
                "configurations on this scheduler",
                self._thrash.ratio,
                ALERT_ABOVE,
                self._policy.max_processes,
            )
