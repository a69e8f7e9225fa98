"""Revisions of launch configs."""

from typing import Any

import msgspec

from slipway_api.events.weight import WeightChanged
from slipway_api.time import Time


class StageLevel(msgspec.Struct, frozen=True, kw_only=True):
    """Starts of a launch config in one stage: those in flight, failures that its weight record does not include yet,
    and the window that limits both together."""

    in_flight: int
    unfolded: int
    window: int


class SharedKey(msgspec.Struct, frozen=True, kw_only=True):
    """A window that launch configs share in one stage, of an image, quota, credential or capacity. `state` is healthy
    or tripped, for `reason`. `window` is the number of unconfirmed starts that it allows, of which `unconfirmed` failed
    or are late since the last success; null: it is not limited."""

    kind: str
    id: str
    stage: str
    window: int | None
    state: str
    unconfirmed: int
    reason: str


class LaunchConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A revision of a launch config with its roll-out, health, windows and workers.

    `id` is "name@hash", with the hash in `revision`. `state` is active, paused, draining or archived, for
    `state_reason`, by `state_by`. A `current` revision is the one that its name stands for. One that is not launches
    what the current one does not, until that one is `proven` by `succeeded_starts` of `needed_starts`, and is
    `replaced_by` the strategy natural, rolling, now or rollback; empty if it is not. `share` is the fraction of its
    name's launches, from 0 to 1. It drains from `drain_from` to `drain_until`, when workers that are left are
    terminated if `drain_terminate`.

    Over its life, `launched` calls were accepted, `booted` workers have registered, and `failed` starts failed in any
    stage. `live` are all of its workers: `starting`, `running` and `stopping` ones. `max_capacity` limits them; null:
    only its pool does. `stages` has the stages with a window: launch, boot and claim. `shared` are the windows that it
    shares with others.

    `weight`, from 0 on, `health`, from 0 to 1, and `reason` are from its weight record, null before the first one.
    `health_state` is healthy, tripped, or probing; `tripped_stage`, `tripped_by` and `tripped_by_id` name the cause.
    """

    id: str
    name: str
    pool_id: str
    account_id: str
    lease_pool_id: str
    region: str
    zone: str
    instance_type: str
    image_revision: str
    replaced_by: str
    drain_from: Time | None
    drain_until: Time | None
    drain_terminate: bool
    profile: str
    base_weight: float
    price_factor: float
    max_capacity: int | None
    task_slots: int
    paused_until: Time | None
    state: str
    state_reason: str
    state_by: str
    current: bool
    launched: int
    failed: int
    live: int
    starting: int
    running: int
    revision: str
    proven: bool
    succeeded_starts: int
    needed_starts: int
    share: float
    booted: int
    stopping: int
    weight: float | None
    health: float | None
    tripped_stage: str | None
    tripped_by: str | None
    tripped_by_id: str | None
    tripped_since: Time | None
    next_probe_at: Time | None
    reason: str | None
    health_state: str
    probe_ready: bool
    stages: dict[str, StageLevel]
    shared: list[SharedKey]


class LaunchFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A start that failed, with its code or reason."""

    worker_id: str
    at: Time
    reason: str


class FrequentError(msgspec.Struct, frozen=True, kw_only=True):
    """Number of errors of one code that workers have reported in the last day, and the newest sample, if one is
    stored."""

    code: str
    number: int
    sample: str | None


class LaunchConfigDetails(LaunchConfig, frozen=True, kw_only=True):
    """A revision of a launch config with its whole weight record, null before the first one, its ten newest failures,
    the most frequent errors of its workers, the deadlines in force in seconds by name, without those that never pass,
    and its settings, which are null unless the token has the scope read:settings."""

    settings: dict[str, Any] | None
    record: WeightChanged | None
    recent_failures: list[LaunchFailure]
    recent_errors: list[FrequentError]
    deadlines: dict[str, float]


class LaunchConfigPauseResult(msgspec.Struct, frozen=True, kw_only=True):
    """State of a launch config after a pause or a resume: paused or active."""

    id: str
    state: str
