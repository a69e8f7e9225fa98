"""Keys of resources shared by launch configs (image, quota, credential), used by provisioner and weight-calculator."""

from typing import Final

FORGOTTEN_AFTER_SECONDS: Final = 8 * 86_400.0
"""Retention of an archived launch config's counts, on both sides; its last workers have ended by then."""


def image_key(image_revision: str) -> str:
    return f"image/{image_revision}"


def quota_key(account_id: str, region: str, instance_type: str) -> str:
    """Key of a quota. Quotas apply per family: the part of an instance type before the first dot."""
    return f"quota/{account_id}/{region}/{instance_type.split('.')[0]}"


def credential_key(account_id: str) -> str:
    return f"credential/{account_id}"
