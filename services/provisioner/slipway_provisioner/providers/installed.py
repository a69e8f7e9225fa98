"""Installed providers, found by entry points. A package can add one without a change here."""

from importlib.metadata import entry_points
from typing import Final

from slipway_provisioner.providers.port import Provider, ProviderSettings

GROUP: Final = "slipway.providers"


def installed(settings: ProviderSettings) -> dict[str, Provider]:
    """Every installed provider by the name that declarations use. Raises ImportError for one that cannot be loaded."""
    return {point.name: point.load()(settings) for point in entry_points(group=GROUP)}
