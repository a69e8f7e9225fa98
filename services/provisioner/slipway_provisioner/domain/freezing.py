"""Freezing a pool for a bad image instead of probing the image indefinitely. Pure."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import msgspec

from slipway_api.events.alert import AlertIdentity, AlertRaised, AlertResolved, alert_identity
from slipway_provisioner.domain.pool import Observed, Shared
from slipway_provisioner.domain.roll_out import may_return
from slipway_provisioner.domain.windows import trip_reason

BY: Final = "provisioner"  # `frozen_by` of a pool that was frozen for a bad image


class UnconfirmedStart(msgspec.Struct, frozen=True, kw_only=True):
    """A start of the image that failed, or is still `booting`."""

    worker_id: str
    instance_id: str | None
    account_id: str
    booting: bool
    reason: str

    def __str__(self) -> str:
        state = "still booting" if self.booting else self.reason
        return f"worker {self.worker_id}, instance {self.instance_id or 'none'} of {self.account_id}: {state}"


def bad_image(observed: Observed) -> Shared | None:
    """The image of an active config that must freeze the pool now, with the stage of most new failures. None if
    there is none, the pool is frozen or deleted, or another revision can launch, or can once the bad image has tripped:
    a freeze would stop that one too."""
    pool = observed.pool
    if pool.on_bad_image != "freeze" or pool.frozen or pool.deleted:
        return None
    active = [config for config in observed.configs if config.active]
    images = {config.image_key for config in active}
    bad = [known for known in observed.shared if known.key in images and new_failures(known) >= pool.freeze_after]
    shared, bad_images = {known.share: known for known in observed.shared}, {known.key for known in bad}
    launching = {config.name for config in active if config.current}
    for config in observed.configs:
        at_hand = not config.current and (
            config.active or (config.name in launching and may_return(config.state, config.replaced_by))
        )
        can_launch = not config.stopped and not trip_reason(config, shared)
        if at_hand and can_launch and config.image_key not in bad_images:
            return None
    return max(bad, key=new_failures, default=None)


def new_failures(known: Shared) -> int:
    """Consecutive unconfirmed starts since the pool was last unfrozen. A count below `forgiven` means that a success
    came between, so none of it is forgiven; the stored `forgiven` is deleted when such a count arrives."""
    return known.unconfirmed - known.forgiven if known.unconfirmed >= known.forgiven else known.unconfirmed


def description(known: Shared) -> str:
    """Text for people, for example `10 consecutive starts of image ami-1 failed or timed out (boot)`."""
    count = new_failures(known)
    more = "more " if known.unconfirmed > count else ""
    starts = "start" if count == 1 else "consecutive starts"
    return f"{count} {more}{starts} of {known.key} failed or timed out ({known.stage})"


def raised(
    pool_id: str, image: Shared, *, tasks: int, starts: Sequence[UnconfirmedStart], now: datetime
) -> AlertRaised:
    """Alert on a pool that has just been frozen; `tasks` need a worker, `starts` are the evidence.

    If the image has tripped, its own alert is the page and this one a notice, unless the pool was unfrozen before.
    """
    return AlertRaised(
        **_identity(pool_id),
        summary=f"pool {pool_id} is frozen: {description(image)}",
        effect=f"{tasks} {'task gets' if tasks == 1 else 'tasks get'} no new worker",
        doing="launches nothing and cancels waiting launches; running workers are not affected",
        command=f"slipway pool unfreeze {pool_id} --reason …",
        since=now,
        cause=image.reason or str(image.key),
        severity="notice" if image.tripped and not image.forgiven else "page",
        evidence=tuple(str(start) for start in starts),
    )


def resolved(pool_id: str, summary: str) -> AlertResolved:
    """Resolution of the alert on a frozen pool."""
    return AlertResolved(**_identity(pool_id), summary=summary)


def _identity(pool_id: str) -> AlertIdentity:
    return alert_identity("provisioner", "image-frozen", "pool", pool_id)
