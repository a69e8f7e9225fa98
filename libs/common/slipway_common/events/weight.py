"""What the calculator concludes of one launch config. The whole state: its topic is compacted."""

from typing import ClassVar

import msgspec

from slipway_common.events import Time


class StageHealth(msgspec.Struct, frozen=True, kw_only=True):
    """One stage of one config: evidence, window and gate.

    `failures_folded` counts every failed outcome of the stage that this record has seen, whatever its scope, over
    the config's life: the provisioner subtracts it from its own count. `window` is a level of unconfirmed starts.
    """

    probability: float
    successes: float
    failures: float
    window: int
    failures_folded: int


class WeightChanged(msgspec.Struct, frozen=True, kw_only=True):
    """`state` is "open" or "closed"; a closed config launches only probes, one per `probe_permit` number.

    `probe_permit` is the newest permit issued, None before the first closure; while closed it may be spent only
    when `probe_ready` is true. `stages` maps launch, boot and claim.
    The version of the record is the envelope's revision.
    """

    type: ClassVar[str] = "io.slipway.weight.changed.v1"
    launch_config_id: str
    pool_id: str
    config_revision: int
    weight: float
    health: float
    stages: dict[str, StageHealth]
    state: str
    closed_stage: str | None = None
    probe_permit: int | None = None
    probe_ready: bool = False
    next_probe_at: Time | None = None
    reason: str
