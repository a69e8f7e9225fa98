"""Worker lifecycle events. Values only: no clock, no I/O.

Each event carries the ids that consumers aggregate by (pool, config, account, image revision), so no consumer needs
another service's tables.
"""

from enum import StrEnum
from typing import ClassVar

import msgspec

from slipway_api.limits import Key, Name, Note
from slipway_api.time import Time


class Stage(StrEnum):
    """Stages of a worker's start. A value from a newer sender decodes as UNKNOWN and has no effect."""

    LAUNCH, BOOT, CLAIM = "launch", "boot", "claim"
    UNKNOWN = "unknown"

    @classmethod
    def _missing_(cls, value: object) -> "Stage":
        return cls.UNKNOWN


class Result(StrEnum):
    """Result of a stage. A value from a newer sender decodes as UNKNOWN and has no effect."""

    OK, FAILED = "ok", "failed"
    UNKNOWN = "unknown"

    @classmethod
    def _missing_(cls, value: object) -> "Result":
        return cls.UNKNOWN


class Scope(StrEnum):
    """Resource that an error is attributed to. A value from a newer sender decodes as UNKNOWN and has no effect."""

    CONFIG, CAPACITY, QUOTA, IMAGE = "config", "capacity", "quota", "image"
    CREDENTIAL, LIMITER, NOTHING = "credential", "limiter", "nothing"
    UNKNOWN = "unknown"

    @classmethod
    def _missing_(cls, value: object) -> "Scope":
        return cls.UNKNOWN


class Notice(StrEnum):
    """Notice of a provider about a machine: it interrupts the machine (`interruption`), or recommends replacing it
    (`rebalance`). A value from a newer sender decodes as UNKNOWN and has no effect."""

    INTERRUPTION, REBALANCE = "interruption", "rebalance"
    UNKNOWN = "unknown"

    @classmethod
    def _missing_(cls, value: object) -> "Notice":
        return cls.UNKNOWN


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """Outcome of a stage of a start, and the resource it is attributed to.

    `scope_key` identifies the resource: "account/region/family" (each percent-encoded) for a quota, the capacity key of
    the launch config for capacity, an image revision, an account. `code` is the provider's error code, for people.
    `classified` is false for a definite failure with an unknown code; `sample` is then the provider's message,
    redacted.
    """

    stage: Stage
    result: Result
    scope: Scope = Scope.NOTHING
    scope_key: Key = ""
    code: Name = ""
    classified: bool = True
    sample: Note = ""


class WorkerEvent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Fields of every worker event. `probe_permit` is the number of the permit that a probe uses."""

    worker_id: Name
    pool_id: Name
    launch_config_id: Name
    account_id: Name
    image_revision: Name
    probe_permit: int | None = None


class WorkerRequested(WorkerEvent, frozen=True, kw_only=True):
    """Intent and lease request are committed; the provider was not called yet."""

    type: ClassVar[str] = "io.slipway.worker.requested.v1"
    decision_id: Name


class WorkerDelayed(WorkerEvent, frozen=True, kw_only=True):
    """Worker waits for admission again: throttled, lease lost, or a lookup showed that a call had no effect.

    Ends no stage and does not count for the config; every other refusal is WorkerLaunchFailed.
    """

    type: ClassVar[str] = "io.slipway.worker.delayed.v1"
    reason: Note


class WorkerLaunched(WorkerEvent, frozen=True, kw_only=True):
    """Instance launched. `looked_up` if the reply was lost and the instance was found by its batch tag.

    `console` is the path or URL of the machine's console log, if its provider keeps one. `leaving` if the worker was
    asked to stop meanwhile, so its boot is not awaited.
    """

    type: ClassVar[str] = "io.slipway.worker.launched.v1"
    instance_id: Name
    batch_id: Name
    looked_up: bool = False
    outcome: Outcome
    console: Note = ""
    leaving: bool = False


class WorkerLaunchFailed(WorkerEvent, frozen=True, kw_only=True):
    """The provider definitely refused the launch. Never published for a call of unknown outcome."""

    type: ClassVar[str] = "io.slipway.worker.launch_failed.v1"
    batch_id: Name
    outcome: Outcome


class WorkerRegistered(WorkerEvent, frozen=True, kw_only=True):
    """The worker registered with its batch secret."""

    type: ClassVar[str] = "io.slipway.worker.registered.v1"
    instance_id: Name
    boot_seconds: float
    outcome: Outcome


class WorkerClaimed(WorkerEvent, frozen=True, kw_only=True):
    """The worker claimed a task. `outcome` is set only on its first claim, which ends the claim stage."""

    type: ClassVar[str] = "io.slipway.worker.claimed.v1"
    task_id: Name
    source: Name
    outcome: Outcome | None = None


class WorkerIdle(WorkerEvent, frozen=True, kw_only=True):
    """The worker has no task."""

    type: ClassVar[str] = "io.slipway.worker.idle.v1"


class WorkerErrorReported(WorkerEvent, frozen=True, kw_only=True):
    """Error reported by the worker; changes no state."""

    type: ClassVar[str] = "io.slipway.worker.error_reported.v1"
    kind: Name
    detail: Note


class WorkerNoticed(WorkerEvent, frozen=True, kw_only=True):
    """The provider interrupts the worker's machine, or recommends replacing it; published once for each notice.

    `capacity_key` is the id of the capacity that the machine was launched from, which loses weight by it. `ends_at`:
    when the provider terminates the machine, if it is known. Ends no stage; the worker stops, if it was not asked to.
    """

    type: ClassVar[str] = "io.slipway.worker.noticed.v1"
    kind: Notice
    capacity_key: Key
    reason: Note
    ends_at: Time | None = None


class WorkerStopping(WorkerEvent, frozen=True, kw_only=True):
    """The worker was asked to stop. `outcome` is set if that ends the boot or claim stage.

    `console` as in WorkerLaunched, if it ends a stage.
    """

    type: ClassVar[str] = "io.slipway.worker.stopping.v1"
    reason: Note
    outcome: Outcome | None = None
    instance_id: Name = ""
    console: Note = ""


class WorkerStopped(WorkerEvent, frozen=True, kw_only=True):
    """The worker is confirmed gone, or was `cancelled` before the provider was called."""

    type: ClassVar[str] = "io.slipway.worker.stopped.v1"
    reason: Note
    cancelled: bool = False


class WorkerLost(WorkerEvent, frozen=True, kw_only=True):
    """The worker's instance disappeared without a request to stop it. `outcome` ends its current stage."""

    type: ClassVar[str] = "io.slipway.worker.lost.v1"
    reason: Note
    outcome: Outcome | None = None
    instance_id: Name = ""
