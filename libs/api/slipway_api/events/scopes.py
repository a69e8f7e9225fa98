"""Keys of resources shared by launch configs (image, quotas, credential, capacity) and windows of new configs and keys,
used by provisioner and weight-calculator."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from slipway_api.events.launch_config import LaunchConfigState
from slipway_api.percent import decoded, encoded

REVISION_KEPT_SECONDS: Final = 30 * 86_400.0
"""Retention of an archived revision with its health and counts. Then the provisioner deletes it, and by its tombstone
all others forget it."""
ON_DEMAND, SPOT = "on-demand", "spot"
"""Lifecycles of machines: the second are interrupted when their capacity is needed."""


KEYS_KEPT: Final = 100_000
"""Keys of which a process keeps one object each: a decision reads the same ones again and again."""
ENCODED: Final = frozenset({"quota", "capacity"})
"""Kinds of keys whose ids are `encoded` from several parts; the others are ids as declared."""


class Key(NamedTuple):
    """Kind and id of what has health: a launch config's revision, an image, a quota, a credential or a capacity.

    `id` of a quota is `encoded` from account, region and family, of that of a subnet from account, region and subnet,
    that of a capacity by its provider.
    """

    kind: str
    id: str

    @property
    def text(self) -> str:
        """The key as one text, for columns and topic keys; no two keys have the same."""
        return f"{self.kind}/{self.id if self.kind in ENCODED else encoded(self.id)}"

    @staticmethod
    @lru_cache(maxsize=KEYS_KEPT)
    def of(text: str) -> "Key":
        """Key that has this `text`."""
        kind, _, id_ = text.partition("/")
        return key(kind, id_ if kind in ENCODED else decoded(id_)[0])

    def __str__(self) -> str:
        """The key for people."""
        return f"{self.kind} {self.id}"


@lru_cache(maxsize=KEYS_KEPT)
def key(kind: str, id_: str) -> Key:
    """Key as one object, which dictionaries find by identity, without comparing texts."""
    return Key(kind, id_)


def config_key(config_id: str) -> Key:
    """Key of one revision of a launch config."""
    return key("config", config_id)


NEW_WINDOWS: Final[Mapping[str, int]] = {"launch": 4, "boot": 48, "claim": 64}
"""Windows of a config before its first outcome, by stage: the calculator publishes them, and until its first record
arrives the provisioner assumes them. The only place that states them and those of shared keys."""
NEW_SHARED_WINDOWS: Final[Mapping[tuple[str, str], int]] = {
    ("image", "boot"): 18,
    ("image", "claim"): NEW_WINDOWS["claim"],
    ("quota", "launch"): 64,
    ("capacity", "launch"): 64,
}
"""Windows of shared keys before their first outcome, by kind and stage. The others are unlimited: they only have a
health state."""


def image_key(image: str) -> Key:
    """Key of an image, by the id that its provider gives it."""
    return key("image", image)


def image_of_provider(provider: str, image_revision: str) -> str:
    """Id of an image unless its provider gives another one: two providers may call different images by one name."""
    return f"{provider}/{image_revision}"


def quota_key(account_id: str, region: str, instance_type: str, family: str = "") -> Key:
    """Key of a quota. Quotas apply per family: the part of an instance type before the first dot, unless the provider
    gives another `family`."""
    return key("quota", encoded(account_id, region, family or instance_type.split(".")[0]))


def subnet_key(account_id: str, region: str, subnet: str) -> Key:
    """Key of the quota of free addresses in a subnet."""
    return key("quota", encoded(account_id, region, "subnet", subnet))


def credential_key(account_id: str) -> Key:
    return key("credential", account_id)


def capacity_key(account_id: str, region: str, zone: str, instance_type: str, lifecycle: str = ON_DEMAND) -> Key:
    """Key of the capacity of a place, unless the provider gives another one. `lifecycle` is on-demand or spot."""
    return key("capacity", encoded(account_id, region, zone, instance_type, lifecycle))


def lifecycle_of(settings: Mapping[str, Any]) -> str:
    """Lifecycle of the machines of a launch config with these settings."""
    return SPOT if settings.get("lifecycle") == SPOT else ON_DEMAND


def capacity_of(state: LaunchConfigState) -> Key:
    """Key of the capacity that a launch config launches from."""
    if state.capacity_key:
        return key("capacity", state.capacity_key)
    return capacity_key(state.account_id, state.region, state.zone, state.instance_type)


def image_of(state: LaunchConfigState) -> Key:
    """Key of the image that the machines of a launch config boot."""
    return image_key(state.image_key or state.image_revision)


def quota_of(state: LaunchConfigState) -> Key:
    """Key of the quota that a launch config uses."""
    return quota_key(state.account_id, state.region, state.instance_type, state.quota_family)


def subnet_of(state: LaunchConfigState) -> Key | None:
    """Key of the subnet that a launch config uses; None if its provider names none."""
    return subnet_key(state.account_id, state.region, state.subnet) if state.subnet else None
