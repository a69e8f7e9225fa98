"""Settings of the weight-calculator; read once, in main.py."""

from collections.abc import Mapping
from pathlib import Path

from pydantic import Field, field_validator

from slipway_common.service import ServiceSettings
from slipway_common.strict_yaml import Invalid, Problem, read
from slipway_weight_calculator.domain import signals
from slipway_weight_calculator.domain.policy import PROFILES, Policy, faster


class Settings(ServiceSettings):
    """Durations are in seconds."""

    port: int = 7302
    speed: float = Field(1.0, gt=0)
    """Divides every time of the profiles that launch configs are judged by; for demos."""
    refresh_seconds: float = 60.0
    """How long a weight may fade by time alone, or move with its siblings', before it is computed again."""
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

    def policies(self) -> Mapping[str, Policy]:
        return {name: faster(policy, self.speed) for name, policy in PROFILES.items()}


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
