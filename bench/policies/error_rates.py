"""Weighting rule of Taskcluster's RFC 191. Pure.

The rule weights a launch config by the share of non-failures among its events of the last hour. A config without
events counts as healthy, and if every share is zero, all count as healthy.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final

EVENTS_SECONDS: Final = 3600.0


class ErrorRates:
    """Events of the last hour, and the weights that follow. Configs are indexes of `base_weights`."""

    def __init__(self, base_weights: Sequence[float]) -> None:
        self.base_weights = base_weights
        self.events: deque[tuple[float, int, bool]] = deque()  # time, config, True for a failure; in order of time
        self.well = [0] * len(base_weights)
        self.failed = [0] * len(base_weights)

    def add(self, at: float, config: int, *, failures: int = 0, others: int = 0) -> None:
        self.events.extend([(at, config, True)] * failures + [(at, config, False)] * others)
        self.failed[config] += failures
        self.well[config] += others

    def weights(self, since: float) -> Sequence[float]:
        """Weights by the events after `since`; earlier events are dropped."""
        while self.events and self.events[0][0] <= since:
            _, config, has_failed = self.events.popleft()
            (self.failed if has_failed else self.well)[config] -= 1
        found = [
            base * (well / (well + failed) if well + failed else 1.0)
            for base, well, failed in zip(self.base_weights, self.well, self.failed, strict=True)
        ]
        return found if any(found) else self.base_weights
