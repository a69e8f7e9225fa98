"""One example of every event type, from one scenario: a worker runs a task while zone-b has no capacity.

Consumers use the examples as fixtures, so they do not change: ids and sequence numbers count up in the order of
EXAMPLES, and a new example goes to its end.
"""

from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from slipway_api.events import alert, launch_config, lease, pool, service, signal, weight, worker
from slipway_api.events.topics import TOPIC_OF
from slipway_api.events.worker import Outcome, Result, Scope, Stage
from slipway_common.messaging.envelope import Envelope, encode

Fields = dict[str, Any]

AT: Final = datetime(2026, 1, 5, 9, 30, tzinfo=UTC)
ID: Final = "019b8d5f-{:04x}-7000-8000-{:012x}"
INCARNATION: Final = ID.format(1, 1)
DECISION: Final = ID.format(2, 1)
BATCH: Final = ID.format(2, 2)
REQUEST: Final = ID.format(2, 3)
LEASE: Final = ID.format(2, 4)
TRACEPARENT: Final = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

WORKER: Final[Fields] = {
    "worker_id": ID.format(2, 5),
    "pool_id": "linux",
    "launch_config_id": "linux-zone-a@5be1f7",
    "account_id": "sim-a",
    "image_revision": "linux-1",
}
IN_ZONE_B: Final[Fields] = {**WORKER, "worker_id": ID.format(2, 6), "launch_config_id": "linux-zone-b@3f2c9a"}
NO_CAPACITY: Final = Outcome(
    Stage.LAUNCH, Result.FAILED, Scope.CAPACITY, scope_key="m5/zone-b/on-demand", code="InsufficientCapacity"
)
POOL: Final[Fields] = {
    "pool_id": "linux",
    "min_capacity": 0,
    "max_capacity": 120,
    "scaling_ratio": "1",
    "mode": "enforce",
    "paused": False,
    "frozen": False,
}
PAUSED_POOL: Final[Fields] = {**POOL, "paused": True}
FROZEN_POOL: Final[Fields] = {**POOL, "frozen": True}
CONFIG: Final[Fields] = {
    "launch_config_id": "linux-zone-b@3f2c9a",
    "name": "linux-zone-b",
    "pool_id": "linux",
    "account_id": "sim-a",
    "region": "sim-1",
    "zone": "zone-b",
    "instance_type": "m5",
    "image_revision": "linux-1",
    "base_weight": 1.0,
    "price_factor": 1.0,
}
ACTIVE: Final[Fields] = {**CONFIG, "state": "active"}
FOR_LEASE: Final[Fields] = {"lease_pool_id": "sim-a", "lease_id": LEASE}
FOR_REQUEST: Final[Fields] = {"lease_pool_id": "sim-a", "request_id": REQUEST}
ALERT: Final[Fields] = {
    "dedup_key": "lease-broker/sequence-gap/slipway.lease.request.v1/7",
    "subject_kind": "partition",
    "subject_id": "slipway.lease.request.v1/7",
    "kind": "sequence-gap",
    "summary": "lease-broker misses records of slipway.lease.request.v1/7",
    "effect": "events may have been lost",
    "doing": "went on behind the gap and recorded it",
    "command": "SELECT * FROM gap WHERE topic = 'slipway.lease.request.v1'",
}


def _after(seconds: float) -> datetime:
    return AT + timedelta(seconds=seconds)


EXAMPLES: Final[tuple[Any, ...]] = (
    pool.DemandReported(pool_id="linux", source="ci-queue", pending=12, claimed=3, observed_at=AT),
    pool.PoolCreated(**POOL, revision=1),
    pool.PoolUpdated(**{**POOL, "max_capacity": 160}, revision=2),
    pool.PoolPaused(**PAUSED_POOL, revision=3, reason="queue is being migrated", by="release-duty"),
    pool.PoolResumed(**POOL, revision=4, reason="queue is back", by="release-duty"),
    pool.PoolFrozen(
        **FROZEN_POOL, revision=5, reason="10 consecutive starts of image linux-1 failed (boot)", by="provisioner"
    ),
    pool.PoolUnfrozen(**POOL, revision=6, reason="image was replaced", by="release-duty"),
    pool.PoolRolledBack(**POOL, revision=7, to_revision=1, reason="image linux-2 does not boot", by="release-duty"),
    pool.PoolDeleted(**{**POOL, "max_capacity": 0}, revision=8),
    launch_config.LaunchConfigCreated(**ACTIVE, revision=1),
    launch_config.LaunchConfigUpdated(**{**ACTIVE, "price_factor": 0.8}, revision=2),
    launch_config.LaunchConfigPaused(
        **CONFIG,
        state="paused",
        revision=3,
        reason="provider announced maintenance",
        by="release-duty",
        until=_after(3600),
    ),
    launch_config.LaunchConfigResumed(**ACTIVE, revision=4, reason="the pause expired", by="provisioner"),
    launch_config.LaunchConfigDraining(
        **CONFIG,
        state="draining",
        revision=5,
        current=False,
        drain_until=_after(7200),
        reason="replaced by linux-zone-b@8d41c0",
        by="release-duty",
        terminate=True,
    ),
    launch_config.LaunchConfigArchived(**CONFIG, state="archived", revision=6, current=False),
    signal.SignalRaised(
        source="cloud-status",
        target_kind="config",
        target_id="linux-zone-b",
        kind="pause_request",
        reason="provider announced maintenance",
        observed_at=AT,
    ),
    weight.WeightChanged(
        launch_config_id="linux-zone-b@3f2c9a",
        name="linux-zone-b",
        pool_id="linux",
        config_revision=2,
        weight=0.04,
        health=0.05,
        stages={
            "launch": weight.StageHealth(probability=0.05, successes=1.5, failures=28.0, window=64, failures_folded=29),
            "boot": weight.StageHealth(probability=0.97, successes=31.0, failures=0.0, window=64, failures_folded=0),
        },
        state="tripped",
        tripped_stage="launch",
        probe_permit=3,
        probe_ready=False,
        next_probe_at=_after(60),
        reason="linux-zone-b tripped: 2 capacity errors (InsufficientCapacity)",
        shared=(weight.SharedWindow(kind="image", id="linux-1", stage="boot", version=31, window=39),),
        offsets={"slipway.worker.lifecycle.v1/7": 4211},
    ),
    worker.WorkerRequested(**WORKER, decision_id=DECISION),
    worker.WorkerDelayed(**WORKER, reason="throttled by the provider"),
    worker.WorkerLaunched(**WORKER, instance_id="i-0000002a", batch_id=BATCH, outcome=Outcome(Stage.LAUNCH, Result.OK)),
    worker.WorkerLaunchFailed(**IN_ZONE_B, probe_permit=3, batch_id=BATCH, outcome=NO_CAPACITY),
    worker.WorkerRegistered(
        **WORKER, instance_id="i-0000002a", boot_seconds=94.5, outcome=Outcome(Stage.BOOT, Result.OK)
    ),
    worker.WorkerClaimed(
        **WORKER, task_id="fV7dGq3kQ9-build", source="ci-queue", outcome=Outcome(Stage.CLAIM, Result.OK)
    ),
    worker.WorkerIdle(**WORKER),
    worker.WorkerErrorReported(**WORKER, kind="disk-full", detail="/builds has 0 bytes left"),
    worker.WorkerStopping(
        **WORKER,
        reason="not registered within 900 s",
        outcome=Outcome(Stage.BOOT, Result.FAILED, Scope.IMAGE, scope_key="linux-1", code="boot-timeout"),
    ),
    worker.WorkerStopped(**WORKER, reason="one-task worker ended"),
    worker.WorkerLost(**WORKER, reason="instance vanished from two listings"),
    lease.LeaseRequested(**FOR_REQUEST, units=4, tenant="linux"),
    lease.LeaseConfirmRequested(**FOR_LEASE, fencing_token=42),
    lease.LeaseRenewRequested(**FOR_LEASE, fencing_token=42),
    lease.LeaseCancelRequested(**FOR_REQUEST, units=1, reason="demand fell"),
    lease.LeaseReleaseRequested(
        **FOR_LEASE, fencing_token=42, units=1, result="throttled", throttled=True, retry_after_seconds=2.0
    ),
    lease.LeaseQueued(**FOR_REQUEST, units=1, position=1),
    lease.LeaseGranted(
        **FOR_LEASE,
        request_id=REQUEST,
        units=3,
        fencing_token=42,
        expires_at=_after(180),
        hold_until=_after(1200),
        waited_seconds=0.25,
    ),
    lease.LeaseConfirmed(**FOR_LEASE, fencing_token=42, expires_at=_after(300)),
    lease.LeaseReleased(**FOR_LEASE, request_id=REQUEST, units=1, remaining=2, reason="registered"),
    lease.LeaseExpired(**FOR_LEASE, request_id=REQUEST, units=3),
    lease.LeaseLost(**FOR_LEASE, request_id=REQUEST, units=2, counted_until=_after(370)),
    lease.LeaseLimitChanged(lease_pool_id="sim-a", limit=24, previous_limit=40, reason="declared by release-duty"),
    service.ServiceHeartbeat(service="lease-broker", instance="0", at=AT, version="0.1.0"),
    alert.AlertRaised(**ALERT),
    alert.AlertResolved(**ALERT),
    lease.LeaseUnleasedReported(**FOR_LEASE, request_id=REQUEST, units=1, tenant="linux", started_at=AT),
    worker.WorkerNoticed(
        **WORKER,
        kind=worker.Notice.INTERRUPTION,
        capacity_key="sim-a/sim-1/zone-a/m5/spot",
        reason="its provider will interrupt the machine at 09:32:00 UTC",
        ends_at=_after(120),
    ),
)


def example(event: Any) -> dict[str, Any]:
    """Record of `event` as JSON: topic, key, headers and data."""
    topic = TOPIC_OF[type(event)]
    number = EXAMPLES.index(event) + 1
    outside = "monitors" in topic.producers
    producer = "ci-queue" if outside else min(topic.producers)
    envelope = Envelope(
        id=ID.format(3, number),
        type=event.type,
        source=f"/{producer}" if outside else f"/slipway/{producer}",
        subject=topic.subject(event),
        time=AT,
        sequence_number=None if outside else 1000 + number,
        previous=None if outside else 999 + number,
        sequence_source="" if outside else f"/slipway/{producer}/{INCARNATION}",
        revision=None if outside else getattr(event, "revision", 1),
        traceparent=TRACEPARENT,
    )
    return {
        "topic": topic.name,
        "key": topic.key(event),
        "headers": {name: value.decode() for name, value in encode(envelope)},
        "data": msgspec.json.decode(msgspec.json.encode(event)),
    }
