"""Keys of what launch configs share: both sides of a window have to mean the same thing by it."""

from typing import Final

FORGOTTEN_AFTER_SECONDS: Final = 8 * 86_400.0
"""So long after a launch config was archived both sides forget what they counted of it: its last workers have ended."""


def image_key(image_revision: str) -> str:
    return f"image/{image_revision}"


def quota_key(account_id: str, region: str, instance_type: str) -> str:
    """Quotas are counted per family: what stands before the first dot of an instance type."""
    return f"quota/{account_id}/{region}/{instance_type.split('.')[0]}"


def credential_key(account_id: str) -> str:
    return f"credential/{account_id}"
