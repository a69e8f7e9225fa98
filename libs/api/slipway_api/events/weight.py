"""Weight records: the complete health state of one launch config, since their topic is compacted."""

from typing import ClassVar, Final

import msgspec

from slipway_api.limits import Key, Name, Note, Word
from slipway_api.time import Time

BOUNDLESS: Final = 1_000_000  # the window of a shared key that has a health state only
HEALTHY, TRIPPED, PROBING = "healthy", "tripped", "probing"


class StageHealth(msgspec.Struct, frozen=True, kw_only=True):
    """Evidence and window of one stage of one config.

    `successes` and `failures` are decayed masses; `succeeded` and `failed` count the outcomes charged to the config
    over its life, those of launches also the failures for lack of capacity, which are charged to the capacity. `late`
    starts take longer than is likely, and count as failures until they end. `failures_folded` counts every failed
    outcome of the stage that this record includes, whatever its scope, over the config's life: the provisioner
    subtracts it from its own count. `window` limits the unconfirmed starts in flight.
    """

    probability: float
    successes: float
    failures: float
    window: int
    failures_folded: int
    late: int = 0
    succeeded: int = 0
    failed: int = 0


class SharedWindow(msgspec.Struct, frozen=True, kw_only=True):
    """Window and health of a key that configs share: an image revision, a quota, a credential or a capacity, by stage.

    `kind` is image, quota, credential or capacity, `id` the image revision, the quota as "account/region/family" (each
    percent-encoded), the account, or the capacity as its provider names it; `stage` is launch, boot or claim. It is
    repeated in the record of every config in its scope: the highest `version` of a (kind, id, stage) is the newest.
    `window` is BOUNDLESS where nothing is counted: such a key only has a health state. `state` is "healthy" or
    "tripped"; a tripped key trips every config in its scope, for `reason`. `unconfirmed` counts starts that failed or
    are late since the last success. `probability` is a factor of the launch probability of the configs: that the
    capacity is available, 1 for the other kinds.
    """

    kind: Word
    id: Key
    stage: Word
    version: int
    window: int
    state: Name = HEALTHY
    unconfirmed: int = 0
    reason: Note = ""
    probability: float = 1.0


class WeightChanged(msgspec.Struct, frozen=True, kw_only=True):
    """Health state, weight, windows and probe permit of a launch config.

    `launch_config_id` is one revision, as "name@hash"; `name` is that of the launch config. `state` is "healthy",
    "tripped" (launches nothing) or "probing" (tripped, and a probe is permitted or running). `tripped_stage`,
    `tripped_by` and `tripped_by_id` name the cause: `tripped_by` is the kind of a shared window with its id, "signal",
    or empty for the config's own failures. `probe_permit` is the newest permit issued, None before the first trip; each
    permit allows one launch, and only while `probe_ready` is true. `stages` maps launch, boot and claim. `signals` are
    the first signals in effect, as text. `offsets` maps "topic/partition" to the offset after the newest event of the
    config that this record includes. The version of the record is the envelope's revision.
    """

    type: ClassVar[str] = "io.slipway.weight.changed.v1"
    launch_config_id: Name
    name: Name
    pool_id: Name
    config_revision: int
    weight: float
    health: float
    stages: dict[Name, StageHealth]
    state: Name
    tripped_stage: Name | None = None
    tripped_by: Name = ""
    tripped_by_id: Key = ""
    tripped_since: Time | None = None
    probe_permit: int | None = None
    probe_ready: bool = False
    next_probe_at: Time | None = None
    reason: Note
    profile: Name = "on-demand"
    shared: tuple[SharedWindow, ...] = ()
    signals: tuple[Note, ...] = ()
    offsets: dict[Name, int] = msgspec.field(default_factory=dict)
