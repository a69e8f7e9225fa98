"""Settings of the weight-calculator; read once, in main.py."""

from collections.abc import Mapping

from pydantic import Field

from slipway_common.signal_settings import SignalSettings
from slipway_weight_calculator.domain.policy import PROFILES, Policy, faster


class Settings(SignalSettings):
    """Durations are in seconds."""

    port: int = 7302
    speed: float = Field(1.0, gt=0)
    """Divisor of all times in the policy profiles; for demos."""
    refresh_seconds: float = 60.0
    """Interval at which weights that change by time alone, or with their siblings, are computed again."""
    republish_seconds: float = 600.0
    """Interval at which an unchanged weight is published again."""

    def policies(self) -> Mapping[str, Policy]:
        return {name: faster(policy, self.speed) for name, policy in PROFILES.items()}
