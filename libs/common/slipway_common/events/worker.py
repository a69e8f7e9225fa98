"""What happened to one machine. Values only: no clock, no I/O.

Each event carries the ids that a consumer folds by (pool, config, account, image revision), so that nobody joins
against another service's tables.
"""

from enum import StrEnum
from typing import ClassVar

import msgspec


class Stage(StrEnum):
    """The three stages of a worker's start. A word from a newer sender decodes as UNKNOWN and moves nothing."""

    LAUNCH, BOOT, CLAIM = "launch", "boot", "claim"
    UNKNOWN = "unknown"

    @classmethod
    def _missing_(cls, value: object) -> "Stage":
        return cls.UNKNOWN


class Result(StrEnum):
    OK, FAILED = "ok", "failed"
    UNKNOWN = "unknown"

    @classmethod
    def _missing_(cls, value: object) -> "Result":
        return cls.UNKNOWN


class Scope(StrEnum):
    """What an error says something about. A word from a newer sender decodes as UNKNOWN and moves nothing."""

    CONFIG, CAPACITY, QUOTA, IMAGE = "config", "capacity", "quota", "image"
    CREDENTIAL, LIMITER, NOTHING = "credential", "limiter", "nothing"
    UNKNOWN = "unknown"

    @classmethod
    def _missing_(cls, value: object) -> "Scope":
        return cls.UNKNOWN


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """How a stage of a start ended, and what that says something about.

    `scope_key` names which one: "account/region/family" for a quota, "type/zone/lifecycle" for capacity, an image
    revision, an account. `code` is the provider's own word, for people. `classified` is false for a definite
    failure whose code no table knows; then `sample` is what the provider said of it, without what may be secret.
    """

    stage: Stage
    result: Result
    scope: Scope = Scope.NOTHING
    scope_key: str = ""
    code: str = ""
    classified: bool = True
    sample: str = ""


class WorkerEvent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Fields of every worker event. `probe_permit` is the numbered permit that this start spends, if it is a probe."""

    worker_id: str
    pool_id: str
    launch_config_id: str
    account_id: str
    image_revision: str
    probe_permit: int | None = None


class WorkerRequested(WorkerEvent, frozen=True, kw_only=True):
    """Intent and lease request are committed; nothing was asked of the provider yet."""

    type: ClassVar[str] = "io.slipway.worker.requested.v1"
    decision_id: str


class WorkerDelayed(WorkerEvent, frozen=True, kw_only=True):
    """Back to waiting for admission: throttled, lease lost, or a look-up proved that a call had no effect.

    Ends no stage, and says nothing about the config: every other refusal is WorkerLaunchFailed.
    """

    type: ClassVar[str] = "io.slipway.worker.delayed.v1"
    reason: str


class WorkerLaunched(WorkerEvent, frozen=True, kw_only=True):
    """The provider said yes. `looked_up` when the reply was lost and the instance was found by its batch tag.

    `console` says where the machine's own words can be read, if its provider keeps any: a path or an address.
    `leaving` if it was told to leave meanwhile: then nobody waits for it to boot.
    """

    type: ClassVar[str] = "io.slipway.worker.launched.v1"
    instance_id: str
    batch_id: str
    looked_up: bool = False
    outcome: Outcome
    console: str = ""
    leaving: bool = False


class WorkerLaunchFailed(WorkerEvent, frozen=True, kw_only=True):
    """The provider refused, for certain. An unknown reply is never this event."""

    type: ClassVar[str] = "io.slipway.worker.launch_failed.v1"
    batch_id: str
    outcome: Outcome


class WorkerRegistered(WorkerEvent, frozen=True, kw_only=True):
    """The machine reported in with its batch secret."""

    type: ClassVar[str] = "io.slipway.worker.registered.v1"
    instance_id: str
    boot_seconds: float
    outcome: Outcome


class WorkerClaimed(WorkerEvent, frozen=True, kw_only=True):
    """The worker took a task. `outcome` only on its first claim: that ends the claim stage."""

    type: ClassVar[str] = "io.slipway.worker.claimed.v1"
    task_id: str
    source: str
    outcome: Outcome | None = None


class WorkerIdle(WorkerEvent, frozen=True, kw_only=True):
    """The worker has no task."""

    type: ClassVar[str] = "io.slipway.worker.idle.v1"


class WorkerErrorReported(WorkerEvent, frozen=True, kw_only=True):
    """The worker's own words on a fault; moves no state."""

    type: ClassVar[str] = "io.slipway.worker.error_reported.v1"
    kind: str
    detail: str


class WorkerStopping(WorkerEvent, frozen=True, kw_only=True):
    """Told to leave. Ends the boot or claim stage when it never got further; else `outcome` is absent.

    `console` as in WorkerLaunched, when it ends a stage.
    """

    type: ClassVar[str] = "io.slipway.worker.stopping.v1"
    reason: str
    outcome: Outcome | None = None
    instance_id: str = ""
    console: str = ""


class WorkerStopped(WorkerEvent, frozen=True, kw_only=True):
    """Proven gone, or cancelled before anything was asked of the provider (`cancelled`)."""

    type: ClassVar[str] = "io.slipway.worker.stopped.v1"
    reason: str
    cancelled: bool = False


class WorkerLost(WorkerEvent, frozen=True, kw_only=True):
    """Its instance vanished without our doing. `outcome` ends the stage it was in."""

    type: ClassVar[str] = "io.slipway.worker.lost.v1"
    reason: str
    outcome: Outcome | None = None
    instance_id: str = ""
