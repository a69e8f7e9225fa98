"""Keys of the quota and the capacity of a launch config, also with the packages of commits that had no functions for
them: `before` runs with those."""

from typing import Any, Final

from slipway_api.events import scopes
from slipway_api.events.launch_config import LaunchConfigCreated
from slipway_api.events.scopes import Key

EARLIER: Final[Any] = scopes
"""The same module, of which an earlier commit may lack what a type checker finds in this one."""


def quota(config: LaunchConfigCreated) -> Key:
    if hasattr(EARLIER, "quota_of"):
        return scopes.quota_of(config)
    key: Key = EARLIER.quota_key(config.account_id, config.region, config.instance_type)
    return key


def capacities(config: LaunchConfigCreated) -> list[Key]:
    """The key of the capacity; none before configs shared one."""
    return [scopes.capacity_of(config)] if hasattr(EARLIER, "capacity_of") else []


def capacity_id(config: LaunchConfigCreated) -> str:
    """Id of the capacity in an outcome."""
    return next((key.id for key in capacities(config)), f"{config.instance_type}/{config.zone}/on-demand")
