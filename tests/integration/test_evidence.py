"""Evidence of a config's or an image's health: boots and claims by each pool's own evidence, and actions that are
none."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from slipway_api.events.lease import LeaseLost, LeaseReleaseRequested, LeaseRequested
from slipway_api.events.signal import SignalRaised
from slipway_api.events.topics import DECODERS
from slipway_api.events.worker import Outcome, Result, Scope, Stage, WorkerEvent, WorkerRegistered, WorkerStopping
from slipway_provisioner.domain.cloud import InstanceState
from slipway_provisioner.providers.port import OutcomeUnknown, Refused
from tests.support.cloud import ReplyLost
from tests.support.provisioner import Provisioner, administrator, after, declared, report

NEVER_CLAIMED: Final = Outcome(Stage.CLAIM, Result.FAILED, Scope.IMAGE, "linux-1", "never_claimed")


async def started(provisioner: Provisioner, pending: int = 1, **pool: Any) -> None:
    """Start workers that boot, in a pool with these settings."""
    await provisioner.declare(declared(**pool))
    await provisioner.trust()
    await provisioner.demand(report(pending))
    await provisioner.plan()
    for request in await provisioner.published(LeaseRequested):
        await provisioner.leases(provisioner.granted(request))
    await provisioner.launch()


async def running(provisioner: Provisioner, pending: int = 1, **pool: Any) -> None:
    """Start workers and register them."""
    await started(provisioner, pending, **pool)
    for worker in await provisioner.workers():
        assert (await provisioner.register(worker.instance_id or "", worker.batch_id)).is_success
    await provisioner.events()


async def report_at(provisioner: Provisioner, at: float, pending: int, claimed: int = 0, **changes: Any) -> None:
    """Report demand at a time."""
    await provisioner.set_clock(at)
    await provisioner.demand(report(pending, claimed, at=at, **changes))


# Boots


async def test_a_boot_is_confirmed_by_the_provider(provisioner: Provisioner) -> None:
    """With this boot evidence a boot succeeds once the provider reports the instance as running, without a
    registration."""
    provisioner.cloud.boots_slowly = True
    await started(provisioner, evidence={"boot": "provider_running", "claim": "none"})
    await provisioner.events()
    await provisioner.reap()
    assert await provisioner.states() == {"starting": 1}
    for id_, instance in provisioner.cloud.live.items():
        provisioner.cloud.live[id_] = msgspec.structs.replace(instance, state=InstanceState.RUNNING)
    await provisioner.set_clock(61)
    await provisioner.reap()
    released, registered = await provisioner.events()
    assert (released.type, released.result) == (LeaseReleaseRequested.type, "registered")
    assert isinstance(registered, WorkerRegistered)
    assert registered.outcome == Outcome(Stage.BOOT, Result.OK, code="provider_running")
    assert registered.boot_seconds == 61.0
    await report_at(provisioner, 100, 1, valid_for_seconds=9000)
    await provisioner.plan()
    await provisioner.set_clock(8000)
    await provisioner.expire()
    await provisioner.reap()
    assert (await provisioner.states(), await provisioner.events()) == ({"running": 1}, [])


async def test_an_agent_may_register_too(provisioner: Provisioner) -> None:
    """It gets its token, and is not stopped as unresponsive afterwards."""
    await started(provisioner, evidence={"boot": "provider_running"})
    await provisioner.set_clock(61)
    await provisioner.reap()
    worker = await provisioner.worker()
    token = (await provisioner.register(worker.instance_id or "", worker.batch_id)).json()["token"]
    async with provisioner.client(token=token) as client:
        assert (await client.post(f"/workers/{worker.id}/heartbeat")).is_success
    await provisioner.set_clock(2000)
    await provisioner.expire()
    assert await provisioner.states() == {"running": 1}


@pytest.mark.parametrize("identity", ["sim-a", "somebody else"])
async def test_insufficient_evidence_of_a_boot(provisioner: Provisioner, identity: str) -> None:
    """The provider's word where a pool requires registration, and another account's anywhere."""
    provisioner.cloud.reported_identity = identity
    await started(provisioner, evidence={"boot": "register" if identity == "sim-a" else "provider_running"})
    await provisioner.set_clock(61)
    await provisioner.reap()
    assert await provisioner.states() == {"starting": 1}


# Claims


#         evidence, claimed tasks seen (at), outcome of the stop; None: not stopped
UNCLAIMED = [
    ("hook", None, NEVER_CLAIMED),
    ("hook", 100, NEVER_CLAIMED),
    ("queue", None, NEVER_CLAIMED),
    ("queue", -10, NEVER_CLAIMED),
    ("queue", 100, None),
    ("none", None, None),
]


@pytest.mark.parametrize(("evidence", "seen", "outcome"), UNCLAIMED)
async def test_a_worker_that_never_claims(
    provisioner: Provisioner, evidence: str, seen: float | None, outcome: Outcome | None
) -> None:
    """It is given up while tasks wait if the claim evidence shows it: by its own report, or because no source of the
    pool has seen a claimed task in its time."""
    await running(provisioner, evidence={"claim": evidence})
    if seen is not None:
        await report_at(provisioner, seen, 0, 1, source="other")
        await report_at(provisioner, seen + 1, 0, source="other")
    await report_at(provisioner, 150, 1)
    await provisioner.set_clock(301)
    await provisioner.expire()
    events = await provisioner.published(WorkerStopping)
    assert [event.outcome for event in events] == ([] if outcome is None else [outcome])


#         reports as (source, at, pending), stopped, counts as evidence
PENDING = [
    ([("q", 10, 1), ("q", 290, 3)], True, True),
    ([("q", 290, 3)], True, True),  # the report at 0 is valid for 300 s
    ([("q", 200, 0), ("q", 201, 3)], False, False),  # nothing was pending for a while
    ([("q", 5, 0), ("q", 6, 3), ("q", 300, 3)], True, False),  # not at first
    ([("q", 301, 1)], False, False),  # stale in between: unknown
    ([("q", 150, 0), ("other", 150, 3)], False, False),  # alternating sources
    ([("q", 150, 0), ("other", 0, 3), ("other", 290, 3)], True, True),  # one source throughout
]


@pytest.mark.parametrize(("reports", "is_stopped", "evidence"), PENDING)
async def test_tasks_pending_all_the_time(
    provisioner: Provisioner, reports: list[tuple[str, float, int]], is_stopped: bool, evidence: bool
) -> None:
    """Some source has had pending tasks for all the idle time, as far as is known."""
    await running(provisioner)
    for source, at, pending in reports:
        await report_at(provisioner, at, pending, source=source)
    await provisioner.set_clock(307)
    await provisioner.expire()
    events = await provisioner.published(WorkerStopping)
    assert len(events) == is_stopped
    if is_stopped:
        assert events[0].outcome is not None
        assert (events[0].outcome.scope is Scope.IMAGE) == evidence


# Our own actions


async def paused(provisioner: Provisioner, folder: Path) -> None:
    await provisioner.requested(2)
    async with administrator(provisioner, folder) as client:
        assert (await client.post("/pools/linux/pause", json={"reason": "drill"})).is_success
    await provisioner.plan()


async def paused_while_booting(provisioner: Provisioner, folder: Path) -> None:
    await provisioner.starting(2)
    async with administrator(provisioner, folder) as client:
        assert (await client.post("/launch-configs/zone-a/pause", json={"reason": "drill"})).is_success
    await provisioner.plan()


async def scaled_down(provisioner: Provisioner, folder: Path) -> None:
    await running(provisioner, 2)
    await provisioner.demand(report(2, at=1))
    await provisioner.demand(report(0, at=2))
    await provisioner.set_clock(200)
    await provisioner.plan()
    assert await provisioner.states() == {"stopping": 2}


async def cancelled(provisioner: Provisioner, folder: Path) -> None:
    await provisioner.requested(3)
    await provisioner.demand(report(1, at=1))
    await provisioner.plan()
    assert await provisioner.states() == {"requested": 1, "stopped": 2}


async def archived(provisioner: Provisioner, folder: Path) -> None:
    await provisioner.requested(3)
    await provisioner.declare(declared("zone-b"))
    await provisioner.plan()


async def terminated(provisioner: Provisioner, folder: Path) -> None:
    """A worker in each state is terminated, also while its call is in flight."""
    await provisioner.starting(3)
    first, second, _ = await provisioner.workers()
    await provisioner.register(first.instance_id or "", first.batch_id)
    await provisioner.demand(report(5, at=1))
    await provisioner.plan()
    (request,) = await provisioner.published(LeaseRequested)
    await provisioner.leases(provisioner.granted(request, units=1))
    provisioner.cloud.script.append(OutcomeUnknown("no reply"))
    await provisioner.launch()
    assert await provisioner.states() == {"running": 1, "starting": 2, "launching": 1, "requested": 1}
    async with administrator(provisioner, folder) as client:
        for worker in await provisioner.workers():
            if worker.id != second.id:
                assert (await client.post(f"/workers/{worker.id}/terminate", json={"reason": "drill"})).is_success
    await provisioner.set_clock(125)
    await provisioner.resolve()
    await provisioner.terminate_instances()
    await provisioner.reap()
    assert (await provisioner.states())["stopped"] == 4


async def lease_lost(provisioner: Provisioner, folder: Path) -> None:
    (grant,) = await provisioner.admitted(2)
    lost = LeaseLost(
        lease_pool_id=grant.lease_pool_id,
        lease_id=grant.lease_id,
        request_id=grant.request_id,
        units=2,
        counted_until=after(70),
    )
    await provisioner.leases(lost)


async def timed_out(provisioner: Provisioner, folder: Path) -> None:
    await provisioner.admitted(2)
    provisioner.cloud.script.append(OutcomeUnknown("no reply"))
    await provisioner.launch()
    await provisioner.set_clock(16)
    await provisioner.resolve()
    assert await provisioner.states() == {"requested": 2}


async def reply_lost(provisioner: Provisioner, folder: Path) -> None:
    provisioner.cloud.script.append(ReplyLost)
    await provisioner.admitted(2)
    await provisioner.launch()
    await provisioner.set_clock(16)
    await provisioner.resolve()
    assert await provisioner.states() == {"starting": 2}


async def throttled(provisioner: Provisioner, folder: Path) -> None:
    limiter = Outcome(Stage.LAUNCH, Result.FAILED, Scope.LIMITER, "sim-a", "RequestLimitExceeded")
    provisioner.cloud.script.append(Refused(limiter, "slow down", retry_after_seconds=1))
    await provisioner.admitted(2)
    await provisioner.launch()
    assert await provisioner.states() == {"requested": 2}


async def interrupted(provisioner: Provisioner, folder: Path) -> None:
    await provisioner.starting()
    worker = await provisioner.worker()
    signal = SignalRaised(
        source="spot-watch",
        target_kind="worker",
        target_id=worker.id,
        kind="spot_interruption",
        reason="reclaimed",
        observed_at=after(0),
        ttl_seconds=timedelta(minutes=2).total_seconds(),
    )
    await provisioner.signals(signal)


async def unresponsive(provisioner: Provisioner, folder: Path) -> None:
    await running(provisioner)
    await provisioner.demand(report(0, at=1, valid_for_seconds=5000))
    await provisioner.set_clock(1000)
    await provisioner.expire()
    assert await provisioner.states() == {"stopping": 1}


OWN: Final[list[Callable[[Provisioner, Path], Awaitable[None]]]] = [
    paused,
    paused_while_booting,
    scaled_down,
    cancelled,
    archived,
    terminated,
    lease_lost,
    timed_out,
    reply_lost,
    throttled,
    interrupted,
    unresponsive,
]


@pytest.mark.parametrize("act", OWN, ids=lambda act: act.__name__)
async def test_our_own_actions_are_no_evidence(
    provisioner: Provisioner, tmp_path: Path, act: Callable[[Provisioner, Path], Awaitable[None]]
) -> None:
    """Pausing, scaling down, cancelling, terminating, timeouts and throttling are no evidence about a start: no stage
    fails by them, except with scope `nothing`."""
    await act(provisioner, tmp_path)
    rows = await provisioner.database.fetch("SELECT type, value FROM outbox WHERE type LIKE 'io.slipway.worker.%'")
    events: list[WorkerEvent] = [DECODERS[row["type"]].decode(row["value"]) for row in rows]
    assert len(events) > 1
    outcomes = [outcome for event in events if (outcome := getattr(event, "outcome", None)) is not None]
    assert {outcome.scope for outcome in outcomes if outcome.result is Result.FAILED} <= {Scope.NOTHING}
