"""What the calculator concludes of one launch config. The whole state: its topic is compacted."""

from typing import ClassVar, Final

import msgspec

from slipway_common.events import Time

BOUNDLESS: Final = 1_000_000  # the window of what is only open or closed


class StageHealth(msgspec.Struct, frozen=True, kw_only=True):
    """One stage of one config: evidence, window and gate.

    `successes` and `failures` are decayed masses; `succeeded` and `failed` count what was charged to the config over
    its life. `late` starts are under way for longer than is likely, and count as failures until they end.
    `failures_folded` counts every failed outcome of the stage that this record has seen, whatever its scope, over
    the config's life: the provisioner subtracts it from its own count. `window` is a level of unconfirmed starts.
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
    """What a config shares with others: an image revision's boots and claims, a quota's or a credential's launches.

    `key` is "image/revision", "quota/account/region/family" or "credential/account"; `stage` is launch, boot or claim.
    Repeated in the record of every config in its scope: the highest `version` of a (key, stage) is the newest.
    `window` is BOUNDLESS where nothing is counted: such a key is only open or closed.
    `state` is "open" or "closed"; while closed each config of the scope is closed by it. `unconfirmed` counts starts
    that failed or are late since the last success.
    """

    key: str
    stage: str
    version: int
    window: int
    state: str = "open"
    unconfirmed: int = 0
    reason: str = ""


class WeightChanged(msgspec.Struct, frozen=True, kw_only=True):
    """`state` is "open" or "closed"; a closed config launches only probes, one per `probe_permit` number.

    `closed_stage` and `closed_by` say which gate closes it: `closed_by` is the key of a shared window, "signal", or
    empty for the config's own. `probe_permit` is the newest permit issued, None before the first closure; while closed
    it may be spent only when `probe_ready` is true. `stages` maps launch, boot and claim. `signals` are the opinions
    from outside that count now, in words. `offsets` maps "topic/partition" to the position behind the newest event
    that this record has seen of the config. The version of the record is the envelope's revision.
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
    closed_by: str = ""
    closed_since: Time | None = None
    probe_permit: int | None = None
    probe_ready: bool = False
    next_probe_at: Time | None = None
    reason: str
    profile: str = "on-demand"
    shared: tuple[SharedWindow, ...] = ()
    signals: tuple[str, ...] = ()
    offsets: dict[str, int] = msgspec.field(default_factory=dict)
