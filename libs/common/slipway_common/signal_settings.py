"""Settings of services that act on signals, with the rules for signal sources from a file."""

from pathlib import Path

from pydantic import field_validator

from slipway_common.declaration.strict_yaml import DocumentProblem, Invalid, read
from slipway_common.events.signal_rules import DEFAULT_RULES, Rules, rules_of
from slipway_common.service import ServiceSettings


class SignalSettings(ServiceSettings):
    """Settings read when the service starts."""

    signal_sources_file: Path | None = None
    """Rules per signal source: allowed signals, and the share of a pool that the source may trip, and may pause.
    Without a file, any source is allowed, and all together may trip half of a pool and pause half of it."""

    @field_validator("signal_sources_file")
    @classmethod
    def _validated(cls, path: Path | None) -> Path | None:
        """Report errors at start-up rather than at the first signal."""
        _rules(path)
        return path

    def signal_rules(self) -> Rules:
        return _rules(self.signal_sources_file)


def _rules(path: Path | None) -> Rules:
    """Read the rules from a file; raises ValueError with the location of the error."""
    if path is None:
        return DEFAULT_RULES
    try:
        document = read(path.read_text(encoding="utf-8"))
        if document.problems:
            raise Invalid(document.problems)
        return rules_of(document.value)
    except Invalid as error:
        first: DocumentProblem = error.problems[0]
        where = f"{path}:{first.line}" if first.line else str(path)
        raise ValueError(f"{where}: {': '.join(part for part in (first.path, first.reason) if part)}") from error
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}; name a readable file") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
