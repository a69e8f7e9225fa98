"""Workers for people: their states, timelines, launch batches, leases and errors, and console output."""

import msgspec

from slipway_api.http.provisioner.decisions import DecisionSummary
from slipway_api.time import Time


class Worker(msgspec.Struct, frozen=True, kw_only=True):
    """One instance of a launch config, from the committed intent until it is gone.

    `probe_permit` is that of a probe. `instance_id` is null before the provider has answered. `idle_since` is null
    while it has a task. `drain_until`: it has reached its maximum age, and leaves after its task or at that time.
    `leave_after_task`: it is surplus. `termination_refusals` counts how often its provider has refused to terminate its
    instance since `termination_refused_at`; `stuck_at`: since when it counts as stuck. `notice` is the last one of its
    provider about its machine: rebalance or interruption, empty without any. `task_slots` are the tasks that it runs at
    once. `failed_at`: when a stage of its start failed. `reason`: why it waits, stops or has stopped.
    """

    id: str
    pool_id: str
    launch_config_id: str
    account_id: str
    image_revision: str
    state: str
    decision_id: str
    probe_permit: int | None
    request_id: str | None
    lease_id: str | None
    batch_id: str | None
    instance_id: str | None
    requested_at: Time
    launched_at: Time | None
    registered_at: Time | None
    first_claimed_at: Time | None
    idle_since: Time | None
    last_seen_at: Time | None
    stopping_at: Time | None
    drain_until: Time | None
    leave_after_task: bool
    termination_refusals: int
    termination_refused_at: Time | None
    stuck_at: Time | None
    notice: str
    task_slots: int
    ended_at: Time | None
    failed_at: Time | None
    reason: str


class TimelineEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An event in the life of a worker, with its detail or reason."""

    at: Time
    what: str
    detail: str


class LaunchBatch(msgspec.Struct, frozen=True, kw_only=True):
    """One launch call of a provider for `units` workers.

    `state` is calling or known. An attempt to resolve an unknown outcome lasts at most `timeout_seconds`; there were
    `repeats` of the call. The newest call that may have taken effect was made at `called_at`, may do so for
    `called_seconds`, and is listed `visibility_seconds` later. `repeatable`: the call may be made again with its token.
    `handle`: it was accepted, and is polled at `poll_at`. `price`: exact price of a machine per hour, as text; null if
    it is unknown.
    """

    id: str
    launch_config_id: str
    pool_id: str
    account_id: str
    lease_id: str
    units: int
    timeout_seconds: float
    visibility_seconds: float
    repeatable: bool
    state: str
    outcome: str
    repeats: int
    started_at: Time | None
    call_deadline: Time | None
    called_at: Time | None
    called_seconds: float
    handle: str
    poll_at: Time | None
    price: str | None


class WorkerLease(msgspec.Struct, frozen=True, kw_only=True):
    """Lease under which a worker was launched, as the provisioner knows it. `units` are those not yet released."""

    id: str
    request_id: str
    lease_pool_id: str
    launch_config_id: str
    fencing_token: int
    units: int
    state: str
    expires_at: Time
    hold_until: Time
    renewed_at: Time


class WorkerWorkspace(msgspec.Struct, frozen=True, kw_only=True):
    """Terraform workspace of a worker. `run` is the run that holds its lock until `locked_until`; null without one.

    `failed_runs` have failed in a row, the last one with `problem`. `resources` are addresses in its state as of
    `saved_at`; null for callers without the scope workers:state. `state_problem`: why they cannot be read.
    """

    id: str
    phase: str
    run: str | None
    locked_until: Time | None
    next_run_at: Time | None
    failed_runs: int
    problem: str
    saved_at: Time | None
    refreshed_at: Time | None
    resources: list[str] | None
    rejected_states: int
    state_problem: str


class WorkerDetails(Worker, frozen=True, kw_only=True):
    """A worker with its timeline, the decision and the launch batch that it is from, its lease and its workspace; null
    for what it does not have, or what was deleted."""

    timeline: list[TimelineEntry]
    decision: DecisionSummary | None
    batch: LaunchBatch | None
    lease: WorkerLease | None
    workspace: WorkerWorkspace | None


class WorkerError(msgspec.Struct, frozen=True, kw_only=True):
    """An error that a worker has reported, with a redacted sample."""

    id: int
    at: Time
    worker_id: str
    pool_id: str
    launch_config_id: str
    image_revision: str
    code: str
    sample: str


class ErrorTotal(msgspec.Struct, frozen=True, kw_only=True):
    """Number of errors of one code in an hour (UTC)."""

    hour: Time
    pool_id: str
    launch_config_id: str
    code: str
    number: int


class ConsoleOutput(msgspec.Struct, frozen=True, kw_only=True):
    """Console output of a machine of an image revision that failed to register, for `reason`: its last lines, redacted,
    or the `problem` for which there are none, after some `attempts`. `settled_at` is null while it is being fetched."""

    image_revision: str
    account_id: str
    pool_id: str
    launch_config_id: str
    batch_id: str
    worker_id: str
    instance_id: str
    reason: str
    attempts: int
    requested_at: Time
    settled_at: Time | None
    resolved_at: Time | None
    lines: list[str]
    problem: str
