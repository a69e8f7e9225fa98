"""When a bad image stops a whole pool, instead of being probed for ever. Pure."""

from typing import Any, Final

from slipway_common.scopes import image_key
from slipway_provisioner.domain.pool import Observed, Shared

BY: Final = "provisioner"  # who freezes for a bad image


def bad_image(observed: Observed) -> Shared | None:
    """The image of an active config that freezes the pool now, by the stage of which most starts came to nothing; None
    while the pool may go on, or has stopped already."""
    pool = observed.pool
    if pool.on_bad_image != "freeze" or pool.frozen or pool.deleted:
        return None
    images = {image_key(config.image_revision) for config in observed.configs if config.active}
    bad = [known for known in observed.shared if known.key in images and news(known) >= pool.freeze_after]
    return max(bad, key=news, default=None)


def news(known: Shared) -> int:
    """Unconfirmed starts in a row that nobody has looked past. Fewer than were forgiven are of another row: a success
    came between. Whoever sees fewer forgets what was forgiven, or that row would have to be longer than this one."""
    return known.unconfirmed - known.forgiven if known.unconfirmed >= known.forgiven else known.unconfirmed


def words(known: Shared) -> str:
    """Why, for people."""
    more = " more" if known.unconfirmed > news(known) else ""
    return f"{news(known)}{more} starts of {known.key} in a row came to nothing ({known.stage})"


def alert(pool_id: str) -> dict[str, Any]:
    """How the alert of a pool that was frozen for an image is named, raised or resolved."""
    return {"dedup_key": f"provisioner/image-frozen/{pool_id}", "subject_id": pool_id, "kind": "image-frozen"}
