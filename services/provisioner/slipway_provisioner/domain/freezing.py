"""Freezing a pool for a bad image instead of probing the image indefinitely. Pure."""

from typing import Any, Final

from slipway_common.events.scopes import image_key
from slipway_provisioner.domain.pool import Observed, Shared

BY: Final = "provisioner"  # `frozen_by` of a pool that was frozen for a bad image


def bad_image(observed: Observed) -> Shared | None:
    """The image of an active config that must freeze the pool now, with the stage of most new failures. None if
    there is none, or the pool is frozen or deleted."""
    pool = observed.pool
    if pool.on_bad_image != "freeze" or pool.frozen or pool.deleted:
        return None
    images = {image_key(config.image_revision) for config in observed.configs if config.active}
    bad = [known for known in observed.shared if known.key in images and new_failures(known) >= pool.freeze_after]
    return max(bad, key=new_failures, default=None)


def new_failures(known: Shared) -> int:
    """Consecutive unconfirmed starts since the pool was last unfrozen. A count below `forgiven` means that a success
    came between, so nothing of it is forgiven; the stored `forgiven` is deleted when such a count arrives."""
    return known.unconfirmed - known.forgiven if known.unconfirmed >= known.forgiven else known.unconfirmed


def description(known: Shared) -> str:
    """Text for people, for example `10 consecutive starts of image/ami-1 failed or timed out (boot)`."""
    count = new_failures(known)
    more = "more " if known.unconfirmed > count else ""
    starts = "start" if count == 1 else "consecutive starts"
    return f"{count} {more}{starts} of {known.key} failed or timed out ({known.stage})"


def alert(pool_id: str) -> dict[str, Any]:
    """Identifying fields of the alert on a pool that was frozen for an image, raised or resolved."""
    return {"dedup_key": f"provisioner/image-frozen/{pool_id}", "subject_id": pool_id, "kind": "image-frozen"}
