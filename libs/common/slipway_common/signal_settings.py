"""Settings of services that act on signals, with the rules for signal sources from a file."""

from pathlib import Path

from pydantic import field_validator

from slipway_common.base.signal_rules import DEFAULT_RULES, Rules, rules_of
from slipway_common.declaration.files import read_file
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
    return DEFAULT_RULES if path is None else read_file(path, rules_of)
