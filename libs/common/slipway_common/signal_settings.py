"""Settings of the services that act on signals: they read one file of who may say what."""

from pathlib import Path

from pydantic import field_validator

from slipway_common.service import ServiceSettings
from slipway_common.signal_rules import DEFAULT_RULES, Rules, rules_of
from slipway_common.strict_yaml import Invalid, Problem, read


class SignalSettings(ServiceSettings):
    """Read when the service starts."""

    signal_sources_file: Path | None = None
    """Who may raise which signals, and how much of a pool each may close; unset: anybody may, half of it
    together."""

    @field_validator("signal_sources_file")
    @classmethod
    def _sound(cls, path: Path | None) -> Path | None:
        """Said when the service starts, not when the first signal comes."""
        _rules(path)
        return path

    def signal_rules(self) -> Rules:
        return _rules(self.signal_sources_file)


def _rules(path: Path | None) -> Rules:
    """What a file says of sources; raises ValueError with the place of what is wrong."""
    if path is None:
        return DEFAULT_RULES
    try:
        document = read(path.read_text(encoding="utf-8"))
        if document.problems:
            raise Invalid(document.problems)
        return rules_of(document.value)
    except Invalid as error:
        first: Problem = error.problems[0]
        where = f"{path}:{first.line}" if first.line else str(path)
        raise ValueError(f"{where}: {': '.join(part for part in (first.path, first.reason) if part)}") from error
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}; name a file that can be read") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
