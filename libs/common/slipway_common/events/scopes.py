"""Keys of resources shared by launch configs (image, quota, credential) and windows of new configs and keys, used by
provisioner and weight-calculator."""

from collections.abc import Mapping
from typing import Final

FORGOTTEN_AFTER_SECONDS: Final = 8 * 86_400.0
"""Retention of an archived launch config's counts, on both sides; its last workers have ended by then."""
NEW_WINDOWS: Final[Mapping[str, int]] = {"launch": 4, "boot": 8, "claim": 64}
"""Windows of a config before its first outcome, by stage: the calculator publishes them, and until its first record
arrives the provisioner assumes them."""
NEW_SHARED_WINDOWS: Final[Mapping[tuple[str, str], int]] = {
    ("image", "boot"): NEW_WINDOWS["boot"],
    ("image", "claim"): NEW_WINDOWS["claim"],
    ("quota", "launch"): 64,
}
"""Windows of shared keys before their first outcome, by kind and stage. The others only have a health state."""


def image_key(image_revision: str) -> str:
    return f"image/{image_revision}"


def quota_key(account_id: str, region: str, instance_type: str) -> str:
    """Key of a quota. Quotas apply per family: the part of an instance type before the first dot."""
    return f"quota/{account_id}/{region}/{instance_type.split('.')[0]}"


def credential_key(account_id: str) -> str:
    return f"credential/{account_id}"
