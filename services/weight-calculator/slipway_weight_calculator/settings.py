"""Settings of the weight-calculator; read once, in main.py."""

from pathlib import Path

from pydantic import field_validator

from slipway_common.service import ServiceSettings
from slipway_common.strict_yaml import Invalid, Problem, read
from slipway_weight_calculator.domain import signals
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

    signal_sources_file: Path | None = None
    """Who may raise which signals, and how much of a pool each may close; unset: anybody may, half of it."""

    @field_validator("signal_sources_file")
    @classmethod
    def _sound(cls, path: Path | None) -> Path | None:
        """Said when the service starts, not when the first signal comes."""
        _rules(path)
        return path

    def signal_rules(self) -> signals.Rules:
        return _rules(self.signal_sources_file)

    def policy(self) -> Policy:
        return Policy(
            half_life_seconds=self.half_life_seconds,
            probe_initial_seconds=self.probe_initial_seconds,
            probe_max_seconds=self.probe_max_seconds,
            pool_probe_seconds=self.pool_probe_seconds,
        )


def _rules(path: Path | None) -> signals.Rules:
    """What a file says of sources; raises ValueError with the place of what is wrong."""
    if path is None:
        return signals.DEFAULT_RULES
    try:
        document = read(path.read_text(encoding="utf-8"))
        if document.problems:
            raise Invalid(document.problems)
        return signals.rules_of(document.value)
    except Invalid as error:
        first: Problem = error.problems[0]
        where = f"{path}:{first.line}" if first.line else str(path)
        raise ValueError(f"{where}: {': '.join(part for part in (first.path, first.reason) if part)}") from error
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}; name a file that can be read") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
