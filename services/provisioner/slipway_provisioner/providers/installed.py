"""Installed providers, found by entry points. A package can add one without a change here."""

from importlib.metadata import EntryPoint, entry_points
from typing import Final

from slipway_provisioner.providers.port import Provider, ProviderSettings

GROUP: Final = "slipway.providers"


def installed(settings: ProviderSettings) -> dict[str, Provider]:
    """Every installed provider by the name that declarations use. Raises ImportError for one that cannot be loaded, and
    for a name that two packages use."""
    points: dict[str, EntryPoint] = {}
    for point in entry_points(group=GROUP):
        other = points.setdefault(point.name, point)
        if other is not point:
            packages = f"{_package(other)} and {_package(point)}"
            raise ImportError(f"{packages} both have a provider {point.name}; uninstall one")
    return {name: point.load()(settings) for name, point in points.items()}


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.value
