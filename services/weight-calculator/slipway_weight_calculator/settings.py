"""Settings of the weight-calculator; read once, in main.py."""

from slipway_common.service import ServiceSettings
from slipway_weight_calculator.domain.policy import Policy


class Settings(ServiceSettings):
    """Durations are in seconds."""

    port: int = 7302
    half_life_seconds: float = 600.0
    """After this long without new outcomes an old one counts half. Longer remembers outages better and recovers later;
    an hour suits spot capacity."""
    probe_initial_seconds: float = 15.0
    """The first probe of a closed config comes within this time; each failed one doubles it."""
    probe_max_seconds: float = 600.0
    """No further apart than this; also the longest time for which the end of an outage can go unnoticed."""
    pool_probe_seconds: float = 30.0
    """While all configs of a pool are closed, one of them is probed this often."""
    refresh_seconds: float = 60.0
    """How long a weight may fade by time alone before it is computed again."""
    republish_seconds: float = 600.0
    """How often an unchanged weight is published again."""

    def policy(self) -> Policy:
        return Policy(
            half_life_seconds=self.half_life_seconds,
            probe_initial_seconds=self.probe_initial_seconds,
            probe_max_seconds=self.probe_max_seconds,
            pool_probe_seconds=self.pool_probe_seconds,
        )
