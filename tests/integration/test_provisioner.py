"""The provisioner's handlers, loops and routes on a real database: calls, leases, machines and demand reports."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx2
import msgspec
import pytest
import uvicorn

from slipway_common.base.clock import monotonic_seconds
from slipway_common.base.errors import BadEvent
from slipway_common.events.alert import Alert, AlertRaised, AlertResolved
from slipway_common.events.launch_config import LaunchConfigPaused, LaunchConfigResumed, LaunchConfigState
from slipway_common.events.lease import (
    LeaseCancelRequested,
    LeaseConfirmed,
    LeaseConfirmRequested,
    LeaseExpired,
    LeaseLost,
    LeaseReleased,
    LeaseReleaseRequested,
    LeaseRenewRequested,
    LeaseRequested,
    LeaseUnleasedReported,
)
from slipway_common.events.service import ServiceHeartbeat
from slipway_common.events.signal import SignalRaised
from slipway_common.events.worker import (
    Outcome,
    Result,
    Scope,
    Stage,
    WorkerDelayed,
    WorkerLaunched,
    WorkerLaunchFailed,
    WorkerLost,
    WorkerRequested,
    WorkerStopped,
    WorkerStopping,
)
from slipway_local.servers.ports import free_ports
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_provisioner.apply import termination
from slipway_provisioner.domain import planning
from slipway_provisioner.domain.cloud import Account
from slipway_provisioner.domain.pool import Observed
from slipway_provisioner.domain.registration import batch_secret
from slipway_provisioner.domain.workers import Worker
from slipway_provisioner.handlers.heartbeats import HeartbeatView
from slipway_provisioner.loops import unleased
from slipway_provisioner.providers.port import OutcomeUnknown, ProviderSettings, Refused
from slipway_provisioner.providers.simulated import ERRORS, Simulated
from slipway_provisioner.store import accounts, configs, launch_stops, leases, pauses, pools
from slipway_simulator.main import served
from slipway_simulator.settings import Settings as SimulatorSettings
from tests.support.harness import PATIENCE_SECONDS
from tests.support.providers import provider_settings
from tests.support.provisioner import (
    KEY,
    Provisioner,
    ReplyLost,
    administrator,
    after,
    declared,
    in_transaction,
    provisioner_on,
    received,
    report,
    revision_id,
    weight,
)


def refused(scope: Scope, code: str, *, retry: float | None = None) -> Refused:
    return Refused(Outcome(Stage.LAUNCH, Result.FAILED, scope, "", code), "no", retry_after_seconds=retry)


async def batch_states(provisioner: Provisioner) -> list[str]:
    rows = await provisioner.database.fetch("SELECT state FROM launch_batch ORDER BY id")
    return [row["state"] for row in rows]


async def failures(provisioner: Provisioner) -> dict[str, int]:
    return dict(
        await provisioner.database.fetch("SELECT stage, failures FROM launch_config_outcomes WHERE failures > 0")
    )


# Calls. The call deadline is 5 s, the visibility delay 10 s.


async def test_a_lost_reply_is_looked_up_by_its_tag(provisioner: Provisioner) -> None:
    """The look-up waits for the call deadline and the visibility delay, then binds the instances and creates none."""
    provisioner.cloud.script.append(ReplyLost)
    await provisioner.admitted(2)
    await provisioner.launch()
    await provisioner.set_clock(15)
    await provisioner.resolve()
    assert await provisioner.states() == {"launching": 2}
    await provisioner.set_clock(16)
    await provisioner.resolve()
    assert [w.instance_id for w in await provisioner.workers()] == ["i-0001", "i-0002"]
    assert [event.looked_up for event in await provisioner.published(WorkerLaunched)] == [True, True]
    assert (len(provisioner.cloud.calls), await batch_states(provisioner)) == (1, ["known"])


async def test_a_call_without_effect_is_put_back(provisioner: Provisioner) -> None:
    """Its intents request admission again; the next call has a new request, batch and token."""
    provisioner.cloud.script.append(OutcomeUnknown("connection refused"))
    (request,) = await provisioner.requested()
    await provisioner.leases(provisioner.granted(request))
    await provisioner.launch()
    await provisioner.set_clock(16)
    await provisioner.resolve()
    events = await provisioner.events()
    assert [e.reason for e in events if isinstance(e, WorkerDelayed)] == ["looked up: the call had no effect"]
    assert [e.units for e in events if isinstance(e, LeaseReleaseRequested)] == [1]
    assert await failures(provisioner) == {}
    await provisioner.resend_requests()
    (again,) = await provisioner.published(LeaseRequested)
    assert again.request_id != request.request_id
    await provisioner.leases(provisioner.granted(again))
    await provisioner.launch()
    first, second = provisioner.cloud.calls
    assert len({first.token, second.token}) == len({first.batch_id, second.batch_id}) == 2
    assert await provisioner.states() == {"starting": 1}


async def test_a_call_that_was_not_sent_in_time(provisioner: Provisioner) -> None:
    """It is put back, unless another replica has repeated it meanwhile, which makes its outcome uncertain."""
    (grant,) = await provisioner.admitted()
    async with provisioner.database.acquire() as db:
        started = await provisioner.launcher._start(db, grant.lease_id)
    assert started is not None
    late = monotonic_seconds() - provisioner.settings.send_within_seconds - 1
    await provisioner.database.execute("UPDATE launch_batch SET repeats = 1")
    await provisioner.launcher._call(provisioner.database, *started, began=late)
    assert (await provisioner.states(), await batch_states(provisioner)) == ({"launching": 1}, ["calling"])
    await provisioner.database.execute("UPDATE launch_batch SET repeats = 0")
    await provisioner.launcher._call(provisioner.database, *started, began=late)
    assert (await provisioner.states(), await batch_states(provisioner)) == ({"requested": 1}, ["known"])
    assert provisioner.cloud.calls == []


async def test_a_call_is_repeated_with_its_token_where_that_is_safe(provisioner: Provisioner) -> None:
    """The repeated call has the same body, tags, token and user data, also after a restart with another URL, and the
    provider gives the same reply."""
    provisioner.cloud.honours = True
    provisioner.cloud.script.append(ReplyLost)
    await provisioner.admitted(2)
    incarnation = await provisioner.database.fetchval("SELECT id FROM incarnation")
    await provisioner.launch()
    await provisioner.database.execute("UPDATE incarnation SET id = 'renewed'")
    moved = {"register_url": "http://elsewhere:7301"}
    provisioner.launcher.terms = msgspec.structs.replace(provisioner.launcher.terms, **moved)
    committed = await provisioner.database.fetchval("SELECT body::text FROM launch_batch")
    await provisioner.set_clock(16)
    await provisioner.resolve()
    first, second = provisioner.cloud.calls
    assert first == second
    told = msgspec.json.decode(first.user_data)
    assert told["secret"] == batch_secret(KEY, first.batch_id)
    assert told["register_url"] in committed
    assert told["secret"] not in committed
    kept = await provisioner.database.fetchval("SELECT body ? 'user_data' FROM launch_batch")
    assert kept is False, "no call is repeated once its outcome is known"
    assert first.incarnation == incarnation
    assert await provisioner.states() == {"starting": 2}
    assert len(provisioner.cloud.live) == 2


COMMAND: Final[dict[str, Any]] = {"reason": "test", "by": "test", "until": None}


async def drain(provisioner: Provisioner, lease_id: str) -> None:
    await provisioner.declare(declared("zone-b"))


async def stop_launching(provisioner: Provisioner, lease_id: str) -> None:
    await in_transaction(provisioner, lambda db: launch_stops.put(db, "all", "", **COMMAND))


async def stop_launching_in_the_account(provisioner: Provisioner, lease_id: str) -> None:
    await in_transaction(provisioner, lambda db: launch_stops.put(db, "account", "sim-a", **COMMAND))


async def pause_pool(provisioner: Provisioner, lease_id: str) -> None:
    await in_transaction(provisioner, lambda db: pauses.pause(db, "linux", **COMMAND))


async def freeze_pool(provisioner: Provisioner, lease_id: str) -> None:
    await in_transaction(provisioner, lambda db: pauses.freeze(db, "linux", reason="test", by="test"))


async def pause_config(provisioner: Provisioner, lease_id: str) -> None:
    await in_transaction(provisioner, lambda db: configs.pause(db, "zone-a", command=True, **COMMAND))


async def lose_the_lease(provisioner: Provisioner, lease_id: str) -> None:
    await provisioner.leases(
        LeaseLost(lease_pool_id="sim-a", lease_id=lease_id, request_id="", units=2, counted_until=after(60))
    )


async def outlive_the_lease(provisioner: Provisioner, lease_id: str) -> None:
    """Leave no time for a call: its reserve deadline is 180 s, the call takes up to 5 s, clocks differ by up to 5 s."""
    await provisioner.set_clock(170)


async def ask_workers_to_stop(provisioner: Provisioner, lease_id: str) -> None:
    for worker in await provisioner.workers():
        stop = partial(termination.terminate, worker_id=worker.id, reason="test", by="test")
        await in_transaction(provisioner, stop)


async def start_without_launching(provisioner: Provisioner, lease_id: str) -> None:
    provisioner.launcher.settings = provisioner.settings.model_copy(update={"launching": False})


@pytest.mark.parametrize("created", [True, False])
@pytest.mark.parametrize(
    "forbid",
    [
        drain,
        stop_launching,
        stop_launching_in_the_account,
        pause_pool,
        freeze_pool,
        pause_config,
        lose_the_lease,
        outlive_the_lease,
        ask_workers_to_stop,
        start_without_launching,
    ],
)
async def test_a_call_that_may_not_start_is_not_repeated(
    provisioner: Provisioner, forbid: Callable[[Provisioner, str], Awaitable[None]], created: bool
) -> None:
    """It is looked up, since its repetition could be the call that takes effect."""
    provisioner.cloud.honours = True
    provisioner.cloud.script.append(ReplyLost if created else OutcomeUnknown("no reply"))
    (grant,) = await provisioner.admitted(2)
    await provisioner.launch()
    await provisioner.set_clock(16)
    await forbid(provisioner, grant.lease_id)
    await provisioner.resolve()
    assert len(provisioner.cloud.calls) == 1
    assert (await batch_states(provisioner), len(provisioner.cloud.live)) == (["known"], 2 if created else 0)


@pytest.mark.parametrize("scope", [Scope.LIMITER, Scope.CREDENTIAL])
async def test_a_rejected_repetition_proves_nothing(provisioner: Provisioner, scope: Scope) -> None:
    """The first call stays unknown; it is repeated later, and no new call is made meanwhile."""
    provisioner.cloud.honours = True
    provisioner.cloud.script.extend([ReplyLost, refused(scope, "GoAway", retry=1)])
    await provisioner.admitted()
    await provisioner.launch()
    await provisioner.set_clock(16)
    await provisioner.resolve()
    assert (await provisioner.states(), await batch_states(provisioner)) == ({"launching": 1}, ["calling"])
    await provisioner.set_clock(40)
    await provisioner.resolve()
    assert await provisioner.states() == {"starting": 1}
    assert len({call.token for call in provisioner.cloud.calls}) == 1


async def test_a_stopped_worker_in_a_repeated_reply(provisioner: Provisioner) -> None:
    """An instance whose worker registered, worked and ended before the repeated reply is not bound again."""
    provisioner.cloud.honours = True
    provisioner.cloud.script.append(ReplyLost)
    await provisioner.admitted(2)
    await provisioner.launch()
    (batch_id,) = {worker.batch_id for worker in await provisioner.workers()}
    answer = (await provisioner.register("i-0001", batch_id)).json()
    async with provisioner.client(token=answer["token"]) as client:
        await client.post(f"/workers/{answer['worker_id']}/stopped", json={"at": after(9).isoformat()})
    await provisioner.set_clock(16)
    await provisioner.resolve()
    found = {worker.instance_id: worker.state.value for worker in await provisioner.workers()}
    assert found == {"i-0001": "stopped", "i-0002": "starting"}


async def test_a_provider_that_hangs_does_not_block_other_batches(provisioner: Provisioner) -> None:
    """Look-ups run concurrently, and one that fails is retried later."""
    provisioner.cloud.script.extend([ReplyLost, ReplyLost])
    await provisioner.admitted(2, "zone-a", "zone-b")
    await provisioner.launch()
    await provisioner.set_clock(16)
    broken = next(worker.batch_id for worker in await provisioner.workers())
    listing = provisioner.cloud.instances

    async def instances(account: Any, *, batch_id: str | None = None) -> Any:
        if batch_id == broken:
            raise KeyError("a reply that nobody expected")
        return await listing(account, batch_id=batch_id)

    provisioner.cloud.instances = instances  # type: ignore[method-assign]
    await provisioner.resolve()
    assert await provisioner.states() == {"launching": 1, "starting": 1}


async def test_a_throttled_call_is_no_evidence(provisioner: Provisioner) -> None:
    """The lease is released with the evidence, the intent is delayed, and no outcome is recorded for the config."""
    provisioner.cloud.script.append(refused(Scope.LIMITER, "RequestLimitExceeded", retry=7))
    await provisioner.admitted(2)
    await provisioner.events()
    await provisioner.launch()
    events = await provisioner.events()
    (release,) = [event for event in events if isinstance(event, LeaseReleaseRequested)]
    assert (release.units, release.throttled, release.retry_after_seconds) == (2, True, 7)
    delays = [event for event in events if isinstance(event, WorkerDelayed)]
    assert ([event.reason for event in delays], await failures(provisioner)) == (["throttled"] * 2, {})
    assert not any(getattr(event, "outcome", None) for event in events)
    await provisioner.resend_requests()
    assert await provisioner.published(LeaseRequested) == []
    await provisioner.set_clock(7)
    await provisioner.resend_requests()
    assert [event.units for event in await provisioner.published(LeaseRequested)] == [2]


#          code, scope, scope key, classified
REFUSALS: Final = [
    ("InsufficientCapacity", Scope.CAPACITY, "sim-a/sim-1/zone-a/m5.large/on-demand", True),
    ("QuotaExceeded", Scope.QUOTA, "sim-a/sim-1/m5", True),
    ("ImageNotFound", Scope.IMAGE, "linux-1", True),
    ("AuthFailure", Scope.CREDENTIAL, "sim-a", True),
    ("InvalidRequest", Scope.CONFIG, "zone-a", True),
    ("NobodyKnows", Scope.CONFIG, "zone-a", False),
]


@pytest.mark.parametrize(("code", "scope", "key", "classified"), REFUSALS)
async def test_refusals(provisioner: Provisioner, code: str, scope: Scope, key: str, classified: bool) -> None:
    """A definite failure ends the intent, counts against the window whatever its scope, and releases its unit."""
    await provisioner.admitted()
    await provisioner.events()
    account = await accounts.get(provisioner.database, "sim-a")
    body = {"id": "zone-a", "zone": "zone-a", "instance_type": "m5.large", "image": "linux-1", "settings": {}}
    outcome = provisioner.cloud.failure(account, body, code, ERRORS.get(code))
    provisioner.cloud.script.append(Refused(outcome, "no"))
    await provisioner.launch()
    _confirm, release, failed = await provisioner.events()
    assert isinstance(failed, WorkerLaunchFailed)
    assert failed.outcome == Outcome(Stage.LAUNCH, Result.FAILED, scope, key, code, classified)
    assert (release.result, release.throttled) == ("launch_failed", False)
    assert (await failures(provisioner), await provisioner.states()) == ({"launch": 1}, {"stopped": 1})
    await provisioner.plan()
    assert await provisioner.states() == {"stopped": 1, "requested": 1}


async def test_partial_capacity(provisioner: Provisioner) -> None:
    """The launched instances are bound, and the rest counts as refused for lack of capacity."""
    provisioner.cloud.script.append(1)
    await provisioner.admitted(3)
    await provisioner.events()
    await provisioner.launch()
    events = await provisioner.events()
    assert [event.instance_id for event in events if isinstance(event, WorkerLaunched)] == ["i-0001"]
    failed = [event.outcome for event in events if isinstance(event, WorkerLaunchFailed)]
    lacking = (Scope.CAPACITY, "sim-a/sim-1/zone-a/m5.large/on-demand", "PartialCapacity")
    assert [(outcome.scope, outcome.scope_key, outcome.code) for outcome in failed] == [lacking] * 2
    assert [event.units for event in events if isinstance(event, LeaseReleaseRequested)] == [2]


async def test_a_call_that_is_not_sent_in_time_is_put_back(postgres: EmbeddedPostgres) -> None:
    """A process that was suspended after its start statement must not make the call."""
    async with provisioner_on(postgres, send_within_seconds=-1) as provisioner:
        await provisioner.admitted()
        assert await provisioner.launcher.launch_next(provisioner.database)
        await asyncio.gather(*provisioner.launcher.calls)
        assert (provisioner.cloud.calls, await batch_states(provisioner)) == ([], ["known"])
        events = await provisioner.events()
        assert [event.reason for event in events if isinstance(event, WorkerDelayed)] == ["not sent in time"]
        assert [event.units for event in events if isinstance(event, LeaseReleaseRequested)] == [1]


async def test_a_provisioner_that_may_not_launch(postgres: EmbeddedPostgres) -> None:
    """It decides and records, but launches nothing."""
    async with provisioner_on(postgres, launching=False) as provisioner:
        await provisioner.admitted()
        await provisioner.launch()
        assert (await provisioner.states(), provisioner.cloud.calls) == ({"requested": 1}, [])


# Leases


async def test_little_left_of_a_lease(provisioner: Provisioner) -> None:
    """A lease with less time left than call timeout and clock skew is renewed first, with one request, and then
    used."""
    (request,) = await provisioner.requested()
    await provisioner.leases(provisioner.granted(request, expires_at=after(16)))
    await provisioner.set_clock(6)
    await provisioner.launch()
    await provisioner.launch()
    assert provisioner.cloud.calls == []
    assert len(await provisioner.published(LeaseRenewRequested)) == 1
    await provisioner.leases(
        LeaseConfirmed(lease_pool_id="sim-a", lease_id="lease-1", fencing_token=1, expires_at=after(100))
    )
    await provisioner.launch()
    assert await provisioner.states() == {"starting": 1}


def ended(kind: str) -> Any:
    ids: dict[str, Any] = {"lease_pool_id": "sim-a", "lease_id": "lease-1", "request_id": "r", "units": 2}
    if kind == "expired":
        return LeaseExpired(**ids)
    if kind == "lost":
        return LeaseLost(counted_until=after(70), **ids)
    return LeaseReleased(remaining=0, reason="hold", **ids)


@pytest.mark.parametrize("kind", ["expired", "lost", "hold"])
async def test_intents_whose_lease_ends_request_again(provisioner: Provisioner, kind: str) -> None:
    """They request admission under a new request, and nothing is released for the ended lease."""
    (grant,) = await provisioner.admitted(2)
    await provisioner.leases(ended(kind))
    await provisioner.launch()
    await provisioner.resend_requests()
    events = await provisioner.events()
    assert [type(event) for event in events] == [WorkerDelayed, WorkerDelayed, LeaseRequested]
    assert events[-1].request_id != grant.request_id
    assert (events[-1].units, provisioner.cloud.calls) == (2, [])


async def test_a_lease_that_ends_under_a_call(provisioner: Provisioner) -> None:
    """The call continues and is recorded; nothing is released for the ended lease."""
    (worker,) = await provisioner.starting()
    await provisioner.leases(ended("lost"))
    assert (await provisioner.register("i-0001", worker.batch_id)).status_code == 200
    assert await provisioner.published(LeaseReleaseRequested) == []


async def test_unrequested_units_are_released(provisioner: Provisioner) -> None:
    """Units of unknown requests and beyond the waiting intents are released in the transaction of the grant, once."""
    (request,) = await provisioner.requested(2)
    stranger = LeaseRequested(lease_pool_id="sim-a", request_id="not even a uuid", units=3, tenant="other")
    more = provisioner.granted(request, units=5)
    await provisioner.leases(provisioner.granted(stranger), more, more)
    assert [(e.units, e.result) for e in await provisioner.published(LeaseReleaseRequested)] == [
        (3, "surplus"),
        (3, "surplus"),
    ]
    assert [worker.lease_id for worker in await provisioner.workers()] == [more.lease_id] * 2


async def test_leases_of_other_owners_are_ignored(provisioner: Provisioner) -> None:
    """Leases of other owners in the same lease pool are neither stored nor released."""
    (request,) = await provisioner.requested(2)
    theirs = LeaseRequested(lease_pool_id="sim-a", request_id="an install", units=3, tenant="other")
    ours = provisioner.granted(request, owner="/slipway/provisioner")
    await provisioner.leases(provisioner.granted(theirs, owner="ann"), ours)
    assert await provisioner.published(LeaseReleaseRequested) == []
    assert await provisioner.database.fetchval("SELECT count(*) FROM lease") == 1


async def test_a_partial_grant_takes_the_lowest_ids(provisioner: Provisioner) -> None:
    """The other intents keep waiting under the same request, which is resent."""
    (request,) = await provisioner.requested(3)
    await provisioner.leases(provisioner.granted(request, units=2))
    assert [worker.lease_id for worker in await provisioner.workers()] == ["lease-1", "lease-1", None]
    await provisioner.set_clock(30)
    await provisioner.resend_requests()
    assert await provisioner.published(LeaseRequested) == []
    await provisioner.set_clock(31)
    await provisioner.resend_requests()
    (again,) = await provisioner.published(LeaseRequested)
    assert (again.request_id, again.units) == (request.request_id, 1)
    await provisioner.leases(provisioner.granted(request, units=1))
    assert await provisioner.database.fetchval("SELECT count(*) FROM lease_request") == 0


async def test_leases_of_a_paused_config_do_not_block_others(provisioner: Provisioner) -> None:
    """Leases of a paused config, however many, do not delay calls of other configs."""
    await provisioner.declare(declared("zone-a", "zone-b"))
    paused = [
        LeaseRequested(lease_pool_id="sim-a", request_id=request_id, units=1, tenant="linux")
        for request_id in await separate_requests(provisioner, 40)
    ]
    for request in paused:
        await provisioner.leases(provisioner.granted(request))
    await provisioner.database.execute("UPDATE launch_config_name SET paused = true WHERE name = 'zone-a'")
    await provisioner.launch()
    assert {call.config["id"] for call in provisioner.cloud.calls} == {revision_id("zone-b")}


async def separate_requests(provisioner: Provisioner, number: int) -> list[str]:
    """Create this number of intents, each with a request of its own; returns the request ids."""
    ids: list[str] = []
    for n in range(1, number + 1):
        await provisioner.demand(report(n, at=n / 1000))
        await provisioner.plan()
        ids += [request.request_id for request in await provisioner.published(LeaseRequested)]
    return ids


# Machines


async def test_boot_timeout(provisioner: Provisioner) -> None:
    """The worker fails its boot stage, is terminated and confirmed gone; its unit is released and it is replaced."""
    (worker,) = await provisioner.starting()
    await provisioner.set_clock(901)
    (launched,) = await provisioner.published(WorkerLaunched)
    await provisioner.expire()
    (stopping,) = await provisioner.published(WorkerStopping)
    assert stopping.outcome == Outcome(Stage.BOOT, Result.FAILED, Scope.IMAGE, "linux-1", "boot_timeout")
    for event in (launched, stopping):
        assert (event.instance_id, event.console) == ("i-0001", f"/var/log/{worker.batch_id}/i-0001")
    assert await failures(provisioner) == {"boot": 1}
    await provisioner.terminate_instances()
    assert provisioner.cloud.terminated == ["i-0001"]
    await provisioner.reap()
    events = await provisioner.events()
    assert [type(event) for event in events] == [LeaseReleaseRequested, WorkerStopped]
    assert (await provisioner.worker()).reason == "did not register in time"
    answer = await provisioner.register("i-0001", worker.batch_id)
    assert (answer.status_code, answer.json()["type"]) == (410, "urn:slipway:problem:worker-gone")


async def running(provisioner: Provisioner, pending: int = 1) -> list[tuple[Worker, httpx2.AsyncClient]]:
    """Registered workers and clients with their tokens."""
    pairs = []
    for worker in await provisioner.starting(pending):
        answer = (await provisioner.register(worker.instance_id or "", worker.batch_id)).json()
        client = provisioner.client(token=answer["token"])
        client.base_url = httpx2.URL(f"http://provisioner/workers/{worker.id}")
        pairs.append((worker, client))
    await provisioner.events()
    return pairs


CLAIM_FAILED: Final = Outcome(Stage.CLAIM, Result.FAILED, Scope.IMAGE, "linux-1", "never_claimed")


@pytest.mark.parametrize(
    ("pending_at", "outcome"),
    [(0, CLAIM_FAILED), (9, Outcome(Stage.CLAIM, Result.FAILED, Scope.NOTHING, "", "never_claimed"))],
)
async def test_idle_despite_demand(provisioner: Provisioner, pending_at: float, outcome: Outcome) -> None:
    """A worker that stays idle while tasks are pending is replaced; this is evidence only if they were pending
    throughout."""
    await running(provisioner)
    if pending_at:
        await provisioner.demand(report(0, 1, at=1))
    await provisioner.demand(report(1, 1, at=pending_at or 1, valid_for_seconds=900))
    await provisioner.set_clock(300)
    await provisioner.expire()
    assert await provisioner.published(WorkerStopping) == []
    await provisioner.set_clock(310)
    await provisioner.expire()
    (stopping,) = await provisioner.published(WorkerStopping)
    assert (stopping.reason, stopping.outcome) == ("idle while tasks wait", outcome)
    await provisioner.plan()
    assert await provisioner.states() == {"stopping": 1, "requested": 2}


async def test_idle_without_demand(provisioner: Provisioner) -> None:
    """A worker is not given up without pending tasks, and one that has worked is no failed start."""
    ((_, client),) = await running(provisioner)
    await provisioner.demand(report(0, 1, at=1, valid_for_seconds=900))
    await client.post("/claimed", json={"task_id": "t", "source": "q", "at": after(2).isoformat()})
    await client.post("/idle", json={"at": after(3).isoformat()})
    await provisioner.set_clock(400)
    await provisioner.expire()
    assert await provisioner.published(WorkerStopping) == []
    await provisioner.demand(report(5, 0, at=10, valid_for_seconds=900))
    await provisioner.expire()
    (stopping,) = await provisioner.published(WorkerStopping)
    assert stopping.outcome is None


async def test_unresponsive(provisioner: Provisioner) -> None:
    """A worker without contact is stopped as unresponsive; a heartbeat counts as contact."""
    (_, alive), (_, _) = await running(provisioner, 2)
    await provisioner.demand(report(0, 2, at=1, valid_for_seconds=5000))
    await provisioner.set_clock(600)
    assert (await alive.post("/heartbeat")).json() == {"terminate": False, "reason": "", "has_task": False}
    await provisioner.set_clock(901)
    await provisioner.expire()
    assert [event.reason for event in await provisioner.published(WorkerStopping)] == ["unresponsive"]


async def test_stopping_an_idle_worker(provisioner: Provisioner) -> None:
    """A surplus idle worker learns with its next request that it must stop, and is terminated after the grace
    period."""
    pairs = await running(provisioner, 2)
    await provisioner.demand(report(0, at=1))
    await provisioner.plan()
    assert await provisioner.published(WorkerStopping) == []
    await provisioner.set_clock(121)
    await provisioner.plan()
    assert len(await provisioner.published(WorkerStopping)) == 2
    answer = (await pairs[0][1].get("/should-terminate")).json()
    assert (answer["terminate"], answer["reason"]) == (True, "more workers than wanted")
    assert (await pairs[0][1].post("/stopped", json={"at": after(121).isoformat()})).status_code == 200
    await provisioner.terminate_instances()
    assert provisioner.cloud.terminated == []
    await provisioner.set_clock(242)
    await provisioner.terminate_instances()
    assert provisioner.cloud.terminated == ["i-0002"]


async def claimed_while_stopping(provisioner: Provisioner) -> httpx2.AsyncClient:
    """An idle worker that is asked to stop at 121 s, and claims a task at this moment."""
    ((_, client),) = await running(provisioner)
    await provisioner.demand(report(0, at=1))
    await provisioner.set_clock(121)
    await provisioner.plan()
    answer = await client.post("/claimed", json={"task_id": "t", "source": "q", "at": after(121).isoformat()})
    assert answer.json() == {"terminate": True, "reason": "more workers than wanted", "counted": True}
    await provisioner.set_clock(1000)
    await provisioner.terminate_instances()
    assert provisioner.cloud.terminated == []
    return client


async def test_a_task_claimed_at_the_moment_of_a_stop_is_finished(provisioner: Provisioner) -> None:
    """The grace period of a worker that was asked to stop as idle begins after the task that it claimed meanwhile."""
    client = await claimed_while_stopping(provisioner)
    await client.post("/idle", json={"at": after(1000).isoformat()})
    await provisioner.set_clock(1119)
    await provisioner.terminate_instances()
    assert provisioner.cloud.terminated == []
    await provisioner.set_clock(1121)
    await provisioner.terminate_instances()
    assert provisioner.cloud.terminated == ["i-0001"]


async def test_a_worker_that_finishes_a_task_and_becomes_unresponsive(provisioner: Provisioner) -> None:
    """It has the grace period from then on, as any other one without contact."""
    await claimed_while_stopping(provisioner)
    await provisioner.set_clock(1022)
    await provisioner.expire()
    assert (await provisioner.worker()).reason == "unresponsive"
    await provisioner.set_clock(1143)
    await provisioner.terminate_instances()
    assert provisioner.cloud.terminated == ["i-0001"]


async def test_a_worker_that_finishes_a_task_and_is_terminated(provisioner: Provisioner, tmp_path: Path) -> None:
    """A person's command gives it the grace period, once."""
    await claimed_while_stopping(provisioner)
    worker = await provisioner.worker()
    async with administrator(provisioner, tmp_path) as client:
        for at in (1000, 1100):
            await provisioner.set_clock(at)
            answer = await client.post(f"/workers/{worker.id}/terminate", json={"reason": "drill"})
            assert (answer.status_code, answer.json()["reason"]) == (200, "terminated by admin: drill")
    await provisioner.set_clock(1121)
    await provisioner.terminate_instances()
    assert provisioner.cloud.terminated == ["i-0001"]


async def test_a_retried_task(provisioner: Provisioner) -> None:
    """It is a claim of its own, as is an equal id of another source; a late repeat of the first report is none."""
    ((_, client),) = await running(provisioner)

    async def send_report(path: str, at: float, **task: str) -> None:
        assert (await client.post(path, json={"at": after(at).isoformat()} | task)).status_code == 200

    async def is_idle() -> bool:
        return (await provisioner.worker()).idle_since is not None

    await provisioner.set_clock(600)  # the machine's times are clamped, and still distinguish repeats from new tasks
    for source, at in (("q", 1), ("q", 3), ("other", 5)):
        await send_report("/claimed", at, task_id="t", source=source)
        await send_report("/claimed", at, task_id="t", source=source)
        assert not await is_idle()
        await send_report("/idle", at + 1)
        assert await is_idle()
    await provisioner.set_clock(610)
    await send_report("/claimed", 1, task_id="t", source="q")
    assert await is_idle()
    assert await provisioner.database.fetchval("SELECT count(*) FROM claim") == 3


async def test_a_failing_account_does_not_block_others(
    provisioner: Provisioner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If more instances than fit into a round cannot be terminated, the next round begins with the others."""
    await provisioner.starting(60)
    await provisioner.database.execute("UPDATE worker SET state = 'stopping', stopping_at = slipway_clock()")
    terminate, dead = provisioner.cloud.terminate, [f"i-{n:04d}" for n in range(1, 51)]

    async def end(account: Account, instance_ids: Sequence[str]) -> None:
        await terminate(account, [id_ for id_ in instance_ids if id_ not in dead])
        if not {*dead}.isdisjoint(instance_ids):
            raise KeyError("url") if "i-0001" in instance_ids else OutcomeUnknown("no reply")

    monkeypatch.setattr(provisioner.cloud, "terminate", end)
    await provisioner.terminate_instances()
    await provisioner.set_clock(61)
    await provisioner.terminate_instances()
    assert len(provisioner.cloud.terminated) == 10


async def test_a_task_that_ended_since_the_report_is_not_replaced(provisioner: Provisioner) -> None:
    """A task that ended since the report causes no launch, however late the next report is."""
    ((_, client),) = await running(provisioner)
    await provisioner.demand(report(0, 1, at=1))
    await client.post("/claimed", json={"task_id": "t", "source": "q", "at": after(0).isoformat()})
    await provisioner.set_clock(5)
    await client.post("/stopped", json={"at": after(5).isoformat()})
    await provisioner.plan()
    assert await provisioner.states() == {"stopped": 1}
    await provisioner.demand(report(1, 0, at=6))
    await provisioner.plan()
    assert await provisioner.states() == {"stopped": 1, "requested": 1}


# The instance reaper


async def test_the_reaper_terminates_orphans(provisioner: Provisioner) -> None:
    """Orphans are terminated once the batch is known and the instance is old enough."""
    provisioner.cloud.script.append(3)
    await provisioner.starting(2)
    await provisioner.reap()
    assert provisioner.cloud.terminated == []
    await provisioner.set_clock(61)
    await provisioner.reap()
    assert provisioner.cloud.terminated == ["i-0003"]
    assert await provisioner.states() == {"starting": 2}


async def test_the_reaper_leaves_batches_of_unknown_outcome(provisioner: Provisioner) -> None:
    """Instances of a batch with an unknown outcome are no orphans."""
    provisioner.cloud.script.append(ReplyLost)
    await provisioner.admitted()
    await provisioner.launch()
    await provisioner.set_clock(61)
    await provisioner.reap()
    assert provisioner.cloud.terminated == []


async def test_the_reaper_finds_missing_instances(provisioner: Provisioner) -> None:
    """A missing worker is found in one pass; its unit is released, its task counts as gone, and it is replaced."""
    pairs = await running(provisioner, 6)
    await pairs[0][1].post("/claimed", json={"task_id": "t", "source": "q", "at": after(0).isoformat()})
    del provisioner.cloud.live["i-0001"]
    await provisioner.set_clock(61)
    await provisioner.reap()
    assert await provisioner.states() == {"running": 5, "stopped": 1}
    assert [event.reason for event in await provisioner.published(WorkerLost)] == ["instance is gone"]
    assert await provisioner.database.fetchval("SELECT count(*) FROM claim WHERE ended_at IS NULL") == 0


@pytest.mark.parametrize("hidden", [2, 6])
async def test_an_implausible_listing_marks_nothing_lost(provisioner: Provisioner, hidden: int) -> None:
    """An alert is raised, and instances that the provider still has by id stay."""
    await running(provisioner, 6)
    provisioner.cloud.hidden = {f"i-000{n}" for n in range(1, hidden + 1)}
    del provisioner.cloud.live["i-0001"]
    await provisioner.set_clock(61)
    await provisioner.reap()
    events = await provisioner.events()
    (alert,) = [event for event in events if isinstance(event, AlertRaised)]
    assert alert.kind == "implausible-listing"
    assert await provisioner.states() == {"running": 5, "stopped": 1}


async def test_an_implausible_listing_raises_one_alert(provisioner: Provisioner) -> None:
    """A new reason raises it again, and the first plausible listing resolves it once."""
    await running(provisioner, 6)
    everybody = {f"i-000{n}" for n in range(1, 7)}
    story: list[tuple[set[str], list[type[Alert]]]] = [
        (set(), []),
        (everybody, [AlertRaised]),
        (everybody, []),
        ({"i-0001", "i-0002"}, [AlertRaised]),
        (set(), [AlertResolved]),
        (set(), []),
    ]
    published: list[Alert] = []
    for round_, (hidden, expected) in enumerate(story, 1):
        provisioner.cloud.hidden = hidden
        await provisioner.set_clock(61 * round_)
        await provisioner.reap()
        alerts = await provisioner.published(Alert)
        assert [type(alert) for alert in alerts] == expected, round_
        published += alerts
    assert {(alert.kind, alert.dedup_key) for alert in published} == {
        ("implausible-listing", "provisioner/implausible-listing/sim-a")
    }


async def test_credentials_of_another_account(provisioner: Provisioner) -> None:
    """With credentials of another account nothing is terminated and no worker is lost."""
    provisioner.cloud.script.append(3)
    await provisioner.starting(2)
    provisioner.cloud.reported_identity = "somebody else"
    del provisioner.cloud.live["i-0001"]
    await provisioner.set_clock(61)
    await provisioner.reap()
    assert (await provisioner.states(), provisioner.cloud.terminated) == ({"starting": 2}, [])
    assert len(await provisioner.published(AlertRaised)) == 1


# Demand, signals, weights, launch stops, time


async def test_the_newest_report_counts(provisioner: Provisioner) -> None:
    """The newest report per source counts; older and repeated ones change nothing and trigger no decision."""
    await provisioner.declare()
    await provisioner.trust()
    await provisioner.demand(report(3, at=5), report(9, at=4), report(2, at=1, source="other"))
    await provisioner.plan()
    assert await provisioner.states() == {"requested": 5}
    await provisioner.demand(report(9, at=5), report(9, at=3))
    assert await provisioner.plan_step() is False


async def test_a_stale_source(provisioner: Provisioner) -> None:
    """It launches nothing, protects serving workers, and triggers a decision when it becomes stale."""
    await running(provisioner, 2)
    await provisioner.demand(report(0, 2, at=1, valid_for_seconds=100), report(1, at=1, source="other"))
    await provisioner.plan()
    assert await provisioner.states() == {"running": 2, "requested": 1}
    await provisioner.set_clock(100)
    assert await provisioner.plan_step() is False
    await provisioner.set_clock(101)
    assert await provisioner.plan_step() is True
    await provisioner.plan()
    assert await provisioner.states() == {"running": 2, "requested": 1}
    await provisioner.set_clock(500)
    await provisioner.plan()
    assert await provisioner.states() == {"running": 2, "requested": 1}
    assert await provisioner.last_reason() == "nothing is needed"


@pytest.mark.parametrize(
    "bad",
    [
        report(1, at=61),
        report(1, pool_id="unheard-of"),
        report(-1),
        report(1, valid_for_seconds=0),
        report(1, source=""),
    ],
)
async def test_invalid_reports(provisioner: Provisioner, bad: Any) -> None:
    """Invalid reports are dead-lettered."""
    await provisioner.declare()
    with pytest.raises(BadEvent):
        await provisioner.demand(report(1), bad)
    assert await provisioner.database.fetchval("SELECT count(*) FROM demand") == 0


def signal(kind: str, source: str = "monitor", at: float = 0, ttl: float = 60) -> SignalRaised:
    return SignalRaised(
        source=source,
        target_kind="config",
        target_id="zone-a",
        kind=kind,
        reason="smoke",
        observed_at=after(at),
        ttl_seconds=ttl,
    )


async def test_pause_by_signal(provisioner: Provisioner) -> None:
    """It lasts until its TTL ends; only its own source may end it earlier."""
    await provisioner.declare(declared("zone-a", "zone-b"))
    await in_transaction(provisioner, lambda db: configs.pause(db, "zone-b", command=True, **COMMAND))
    await provisioner.events()
    await provisioner.signals(signal("pause_request"), signal("resume_request", "stranger"), signal("degraded"))
    (paused,) = await provisioner.published(LaunchConfigPaused)
    assert (paused.state, paused.by, paused.until) == ("paused", "signal:monitor", after(60))
    await provisioner.demand(report(1))
    await provisioner.plan()
    assert (await provisioner.states(), await provisioner.last_reason()) == (
        {},
        "1 needed, but no config may launch now",
    )
    await provisioner.set_clock(60)
    await provisioner.expire()
    await provisioner.plan()
    assert (await provisioner.states(), len(await provisioner.published(LaunchConfigResumed))) == ({"requested": 1}, 1)
    await provisioner.signals(signal("pause_request"))
    assert await provisioner.published(LaunchConfigPaused) == []  # its TTL had ended before it arrived


async def test_a_signal_does_not_override_a_command(provisioner: Provisioner, tmp_path: Path) -> None:
    """A monitor does not shorten the indefinite pause of an operator."""
    await provisioner.declare(declared("zone-a", "zone-b"))
    async with administrator(provisioner, tmp_path) as client:
        assert (await client.post("/launch-configs/zone-a/pause", json={"reason": "mine"})).status_code == 200
    await provisioner.signals(signal("pause_request", ttl=1), signal("resume_request"))
    await provisioner.set_clock(100)
    await provisioner.expire()
    row = await provisioner.database.fetchrow(
        "SELECT paused, paused_by, paused_until FROM launch_config_name WHERE name = 'zone-a'"
    )
    assert tuple(row) == (True, "admin", None)


async def test_probes(provisioner: Provisioner) -> None:
    """Each permit is spent once, by demand. A delayed permit is withdrawn once its successor is issued."""
    await provisioner.declare()
    await provisioner.weights(weight(state="tripped"))
    await provisioner.demand(report(5))
    await provisioner.plan()
    assert await provisioner.states() == {}
    await provisioner.weights(weight(state="probing", probe_permit=1, probe_ready=True), revision=2)
    await provisioner.plan()
    (request,) = await provisioner.published(LeaseRequested)
    assert (request.units, (await provisioner.worker()).probe_permit) == (1, 1)
    await provisioner.weights(weight(state="probing", probe_permit=1, probe_ready=True, weight=0.5), revision=3)
    await provisioner.plan()
    assert (await provisioner.states(), await provisioner.events()) == ({"requested": 1}, [])
    await provisioner.weights(weight(state="probing", probe_permit=2, probe_ready=True), revision=4)
    await provisioner.plan()
    assert await provisioner.states() == {"requested": 1, "stopped": 1}
    await provisioner.weights(weight(state="probing", probe_permit=9, probe_ready=True), revision=3)
    assert await provisioner.plan_step() is False


async def test_a_launch_stop_that_ends_by_time(provisioner: Provisioner, tmp_path: Path) -> None:
    """Waiting intents are cancelled, and the end of the stop triggers a decision."""
    await provisioner.requested(2)
    async with administrator(provisioner, tmp_path) as client:
        body = {"scope": "pool", "scope_id": "linux", "reason": "drill", "until": after(50).isoformat()}
        assert (await client.post("/stop-launching", json=body)).status_code == 200
    await provisioner.plan()
    assert (await provisioner.states(), await provisioner.last_reason()) == (
        {"stopped": 2},
        "launching is stopped: drill",
    )
    await provisioner.set_clock(50)
    await provisioner.plan()
    assert await provisioner.states() == {"stopped": 2, "requested": 2}


async def test_a_sweep_heals_a_lost_wake_up(provisioner: Provisioner) -> None:
    """A change without a dirty mark is planned within one sweep."""
    await provisioner.declare()
    await provisioner.demand(report(1))
    await provisioner.database.execute("TRUNCATE dirty_pool")
    await provisioner.set_clock(601)
    await provisioner.sweep()
    await provisioner.demand(report(1, at=600))
    await provisioner.plan()
    assert await provisioner.states() == {"requested": 1}


async def test_a_rejected_plan_stops_only_its_pool(provisioner: Provisioner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it is executed; an alert is raised once, and resolved by the next valid plan."""
    body = declared()
    body["worker_pools"].append(declared("other-a", id="other")["worker_pools"][0])
    await provisioner.declare(body)
    await provisioner.demand(report(1), report(1, pool_id="other"))
    check = planning.check_plan
    monkeypatch.setattr(planning, "check_plan", lambda o, p: ["broken"] if o.pool.id == "linux" else check(o, p))
    await provisioner.plan()
    events = await provisioner.events()
    (alert,) = [event for event in events if isinstance(event, AlertRaised)]
    assert (alert.kind, "broken" in alert.summary) == ("plan-failed", True)
    assert [event.pool_id for event in events if isinstance(event, WorkerRequested)] == ["other"]
    monkeypatch.setattr(planning, "check_plan", check)
    await provisioner.set_clock(5)
    await provisioner.plan()
    (resolved,) = await provisioner.published(AlertResolved)
    assert resolved.dedup_key == alert.dedup_key


async def test_a_pool_whose_planning_fails_does_not_stop_others(
    provisioner: Provisioner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is retried after 5 s; one alert is raised, and resolved once planning succeeds."""
    body = declared()
    body["worker_pools"].append(declared("other-a", id="other")["worker_pools"][0])
    await provisioner.declare(body)
    await provisioner.demand(report(1), report(1, pool_id="other"))
    decide = planning.plan

    def fails(observed: Observed, *, now: datetime) -> planning.Plan:
        return decide(observed, now=now) if observed.pool.id == "other" else 1 // 0  # type: ignore[return-value]

    monkeypatch.setattr(planning, "plan", fails)
    for seconds in (0, 4, 5, 11):
        await provisioner.set_clock(seconds)
        await provisioner.plan()
    events = await provisioner.events()
    assert [event.kind for event in events if isinstance(event, AlertRaised)] == ["plan-failed"]
    assert [event.pool_id for event in events if isinstance(event, WorkerRequested)] == ["other"]
    monkeypatch.setattr(planning, "plan", decide)
    await provisioner.plan()
    assert await provisioner.events() == []
    await provisioner.set_clock(16)
    await provisioner.plan()
    events = await provisioner.events()
    assert sum(isinstance(event, WorkerRequested) for event in events) == 1
    resolved = [(event.kind, event.dedup_key) for event in events if isinstance(event, AlertResolved)]
    assert resolved == [("plan-failed", "provisioner/plan-failed/linux")]
    await provisioner.sweep_now()
    await provisioner.plan()
    assert await provisioner.published(AlertResolved) == []


# Declarations


async def test_a_declaration_is_applied_whole_and_once(provisioner: Provisioner) -> None:
    """A repetition changes nothing; undeclared launch configs drain, and may be declared again."""
    assert [(c.kind, c.result) for c in await provisioner.declare(declared("zone-a", "zone-b"))] == [
        ("account", "created"),
        ("worker pool", "created"),
        ("launch config", "created"),
        ("launch config", "created"),
    ]
    first = await provisioner.events()
    assert await provisioner.declare(declared("zone-a", "zone-b")) == []
    assert await provisioner.events() == []
    (archived,) = await provisioner.declare(declared("zone-a"))
    assert (archived.id, archived.result) == ("zone-b", "archived")
    (back,) = await provisioner.declare(declared("zone-a", "zone-b"))
    assert (back.id, back.result) == ("zone-b", "reactivated")
    again = [event for event in await provisioner.events() if isinstance(event, LaunchConfigState)]
    assert [type(event).__name__ for event in (*first, *again)] == [
        "PoolCreated",
        "LaunchConfigCreated",
        "LaunchConfigCreated",
        "LaunchConfigDraining",
        "LaunchConfigUpdated",
    ]
    assert [again[0].revision, again[1].revision] == [2, 3]


@pytest.mark.parametrize(
    ("settings", "reserve_seconds", "reason"),
    [
        ({"url": None}, 180, "account sim-a: settings: url is None; write the simulator's address"),
        ({"url": "ftp://cloud"}, 180, "url is 'ftp://cloud'"),
        (
            {},
            15,
            "lease pool sim-a: reserve_seconds 15 must be above 15, which is call_timeout_seconds 5 of the provisioner "
            "+ 2 × clock_skew_seconds 5 of the provisioner",
        ),
    ],
)
async def test_a_declaration_without_time_for_a_call(
    provisioner: Provisioner, tmp_path: Path, settings: dict[str, Any], reserve_seconds: float, reason: str
) -> None:
    """It is refused with the value to write instead."""
    body = declared(settings=settings)
    body["lease_pools"][0]["reserve_seconds"] = reserve_seconds
    provisioner.app.state.providers["simulated"] = Simulated(ProviderSettings(timeout_seconds=5.0))
    async with administrator(provisioner, tmp_path) as client:
        answer = await client.put("/declaration", json=body)
    assert answer.status_code == 409
    assert reason in answer.json()["detail"]
    assert await provisioner.database.fetchval("SELECT count(*) FROM account") == 0


# HTTP


def demand_body(**changes: Any) -> dict[str, Any]:
    return {"pending": 1, "source": "q", "observed_at": after(0).isoformat()} | changes


WRITE: Final = ("demand:write:linux",)
NOBODY: Final = "00000000-0000-7000-8000-000000000000"
#        method, path, body, scopes, status, type
BAD: Final[list[tuple[str, str, Any, tuple[str, ...], int, str]]] = [
    ("PUT", "/pools/linux/demand", demand_body(), ("demand:write:other",), 403, "scope-missing"),
    ("PUT", "/pools/unheard-of/demand", demand_body(), ("admin",), 404, "unknown-pool"),
    ("PUT", "/pools/linux/demand", demand_body(observed_at=after(61).isoformat()), WRITE, 422, "demand-refused"),
    ("PUT", "/pools/linux/demand", demand_body(pending=-1), WRITE, 422, "invalid-request"),
    ("PUT", "/pools/linux/demand", demand_body(extra=1), WRITE, 422, "invalid-request"),
    ("PUT", "/pools/linux/demand", demand_body(source="x" * 2_000_000), WRITE, 413, "body-too-large"),
    ("PUT", "/declaration", declared(), WRITE, 403, "scope-missing"),
    ("PUT", "/declaration", {"version": 2}, ("admin",), 422, "invalid-declaration"),
    (
        "PUT",
        "/declaration",
        declared() | {"metadata": {"owner": "test"}, "accounts": []},
        ("admin",),
        409,
        "declaration-refused",
    ),
    ("POST", "/launch-configs/nobody/pause", {"reason": "r"}, ("admin",), 404, "unknown-config"),
    ("POST", "/launch-configs/zone-a/resume", {"reason": "r"}, ("admin",), 409, "wrong-config-state"),
    ("POST", "/launch-configs/zone-a/pause", {"reason": ""}, ("admin",), 422, "invalid-request"),
    (
        "POST",
        "/stop-launching",
        {"scope": "pool", "scope_id": "linus", "reason": "r"},
        ("admin",),
        404,
        "unknown-target",
    ),
    ("POST", "/stop-launching", {"scope": "all", "reason": "r"}, WRITE, 403, "scope-missing"),
    (
        "POST",
        "/stop-launching",
        {"scope": "all", "reason": "r", "until": after(0).isoformat()},
        ("admin",),
        422,
        "until-passed",
    ),
    ("POST", "/launch-configs/zone-a/pause", {"reason": "\0"}, ("admin",), 422, "invalid-request"),
    ("PUT", "/pools/linux/demand", demand_body(source="\0"), WRITE, 422, "invalid-request"),
    ("GET", "/pools/%00", None, ("admin",), 422, "invalid-request"),
    ("GET", "/workers?pool=%00", None, ("admin",), 422, "invalid-request"),
    ("GET", "/pools/unheard-of", None, ("admin",), 404, "unknown-pool"),
    ("GET", "/pools/unheard-of/decisions", None, ("admin",), 404, "unknown-pool"),
    ("GET", "/launch-configs?pool=unheard-of", None, ("admin",), 404, "unknown-pool"),
    ("GET", "/launch-configs/nobody", None, ("admin",), 404, "unknown-config"),
    ("GET", "/workers?pool=unheard-of", None, ("admin",), 404, "unknown-pool"),
    ("GET", "/workers?state=asleep", None, ("admin",), 422, "invalid-request"),
    ("GET", "/workers/nobody", None, ("admin",), 404, "unknown-worker"),
    ("GET", f"/workers/{NOBODY}", None, ("admin",), 404, "unknown-worker"),
    ("GET", "/decisions/none", None, ("admin",), 404, "unknown-decision"),
    ("GET", f"/decisions/{NOBODY}", None, ("admin",), 404, "unknown-decision"),
    ("POST", f"/workers/{NOBODY}/terminate", {"reason": "r"}, ("admin",), 404, "unknown-worker"),
    ("POST", "/workers/nobody/terminate", {"reason": "r"}, ("admin",), 404, "unknown-worker"),
    ("POST", "/workers/nobody/terminate", {"reason": ""}, ("admin",), 422, "invalid-request"),
    ("POST", "/workers/nobody/terminate", {"reason": "r"}, WRITE, 403, "scope-missing"),
    ("POST", "/pools/linux/pause", {"reason": "r"}, WRITE, 403, "scope-missing"),
    ("POST", "/pools/unheard-of/pause", {"reason": "r"}, ("pools:write",), 404, "unknown-pool"),
    ("POST", "/pools/linux/pause", {"reason": "r", "until": after(0).isoformat()}, ("admin",), 422, "until-passed"),
    ("POST", "/pools/linux/resume", {"reason": "r"}, ("admin",), 409, "wrong-pool-state"),
    ("POST", "/pools/unheard-of/resume", {"reason": "r"}, ("admin",), 404, "unknown-pool"),
    ("POST", "/pools/linux/freeze", {"reason": "r"}, WRITE, 403, "scope-missing"),
    ("POST", "/pools/linux/freeze", {"reason": ""}, ("admin",), 422, "invalid-request"),
    ("POST", "/pools/unheard-of/freeze", {"reason": "r"}, ("pools:write",), 404, "unknown-pool"),
    ("POST", "/pools/unheard-of/unfreeze", {"reason": "r"}, ("admin",), 404, "unknown-pool"),
    ("POST", "/pools/linux/unfreeze", {"reason": "r"}, ("admin",), 409, "wrong-pool-state"),
    ("POST", "/workers/register", {"batch_id": "x", "secret": "s", "instance_id": "i"}, (), 422, "invalid-request"),
    ("POST", "/workers/nobody/heartbeat", None, (), 403, "foreign-token"),
]
CHANGED: Final = """
SELECT (SELECT count(*) FROM demand) + (SELECT count(*) FROM launch_stop) + (SELECT count(*) FROM outbox)
    + (SELECT sum(revision) FROM launch_config) + (SELECT sum(revision) FROM worker_pool)"""


@pytest.mark.parametrize(("method", "path", "body", "scopes", "status", "kind"), BAD)
async def test_refused_requests(
    provisioner: Provisioner,
    tmp_path: Path,
    method: str,
    path: str,
    body: Any,
    scopes: tuple[str, ...],
    status: int,
    kind: str,
) -> None:
    """They return a problem with a stable type and change nothing."""
    await provisioner.declare()
    before = await provisioner.database.fetchval(CHANGED)
    async with administrator(provisioner, tmp_path, scopes) as client:
        answer = await client.request(method, path, json=body)
    assert (answer.status_code, answer.json()["type"]) == (status, f"urn:slipway:problem:{kind}")
    assert answer.headers["content-type"] == "application/problem+json"
    assert await provisioner.database.fetchval(CHANGED) == before


async def test_writes_need_a_token(provisioner: Provisioner) -> None:
    """The token must be known."""
    for token, kind in (("", "no-token"), ("guess", "unknown-token")):
        async with provisioner.client(token=token) as client:
            answer = await client.put("/pools/linux/demand", json=demand_body())
        assert (answer.status_code, answer.json()["type"]) == (401, f"urn:slipway:problem:{kind}")


async def test_registration(provisioner: Provisioner) -> None:
    """It needs the batch secret, binds each instance once, and is repeatable until the token was used."""
    first, second = await provisioner.starting(2)
    batch = first.batch_id

    async def refused_as(instance_id: str, **changes: Any) -> str:
        kind: str = (await provisioner.register(instance_id, batch, **changes)).json()["type"]
        return kind.rpartition(":")[2]

    assert await refused_as("i-0001", secret="guess") == "bad-secret"
    lost = (await provisioner.register("i-0001", batch)).json()
    again = (await provisioner.register("i-0001", batch)).json()
    assert (lost["worker_id"], lost["pool_id"]) == (again["worker_id"], "linux") == (first.id, "linux")
    async with provisioner.client(token=lost["token"]) as client:
        stale = await client.post(f"/workers/{first.id}/heartbeat")
        assert (stale.status_code, stale.json()["type"]) == (403, "urn:slipway:problem:foreign-token")
    async with provisioner.client(token=again["token"]) as client:
        foreign = await client.post(f"/workers/{second.id}/heartbeat")
        assert (foreign.status_code, foreign.json()["type"]) == (403, "urn:slipway:problem:foreign-token")
        assert (await client.post(f"/workers/{first.id}/heartbeat")).status_code == 200
    assert await refused_as("i-0001") == "already-registered"
    assert await refused_as("i-9999") == "orphan-instance"
    assert await provisioner.states() == {"running": 1, "starting": 1}


async def test_an_instance_of_another_batch(provisioner: Provisioner) -> None:
    """It is refused in this batch."""
    await provisioner.starting(1)
    await provisioner.demand(report(2, at=1))
    await provisioner.plan()
    (request,) = await provisioner.published(LeaseRequested)
    await provisioner.leases(provisioner.granted(request))
    provisioner.cloud.script.append(ReplyLost)
    await provisioner.launch()
    calling = (await provisioner.workers())[1]
    answer = await provisioner.register("i-0001", calling.batch_id)
    assert (answer.status_code, answer.json()["type"]) == (409, "urn:slipway:problem:foreign-instance")


async def test_invalid_texts_of_machines(provisioner: Provisioner) -> None:
    """They are refused as invalid and change nothing."""
    ((worker, client),) = await running(provisioner)
    before = await provisioner.worker()
    claim = {"task_id": "t\0", "source": "q", "at": after(0).isoformat()}
    for answer in (await client.post("/claimed", json=claim), await provisioner.register("\0", worker.batch_id)):
        assert (answer.status_code, answer.json()["type"]) == (422, "urn:slipway:problem:invalid-request")
    assert await provisioner.worker() == before


async def test_reports_of_a_machine(provisioner: Provisioner) -> None:
    """Reports are accepted in order and repeatedly, but not after the end; times too far off are clamped."""
    ((worker, client),) = await running(provisioner)
    await provisioner.set_clock(1000)
    at = {"at": after(1000).isoformat()}
    reports: list[tuple[str, dict[str, Any]]] = [
        ("/idle", at),
        ("/claimed", {"task_id": "t", "source": "q", "at": after(0).isoformat()}),
        ("/claimed", {"task_id": "t", "source": "q", "at": after(0).isoformat()}),
        ("/idle", {"at": after(9999).isoformat()}),
        ("/error", {"kind": "disk", "detail": "full"}),
        ("/stopped", at),
    ]
    assert [(await client.post(path, json=body)).status_code for path, body in reports] == [200] * len(reports)
    assert [type(event).__name__ for event in await provisioner.events()] == [
        "WorkerClaimed",
        "WorkerIdle",
        "WorkerErrorReported",
        "WorkerStopped",
    ]
    claim = await provisioner.database.fetchrow("SELECT started_at, ended_at FROM claim")
    assert tuple(claim) == (after(880), after(1005))
    for path, body in reports:
        answer = await client.post(path, json=body)
        assert (answer.status_code, answer.json()["type"]) == (410, "urn:slipway:problem:worker-gone")
    assert await provisioner.events() == []
    assert (await provisioner.worker()).id == worker.id


@pytest.mark.parametrize(("ended_at", "replacements"), [(20.0, 0), (19.9, 1)])
async def test_a_task_that_ends_at_the_instant_of_a_report(
    provisioner: Provisioner, ended_at: float, replacements: int
) -> None:
    """The report still has it, so that it needs no other worker, also if the database's clock is slower than the
    machine's. One that ended before the report is not in it."""
    ((_, client),) = await running(provisioner)
    await client.post("/claimed", json={"task_id": "t", "source": "q", "at": after(10).isoformat()})
    await provisioner.set_clock(17)
    await client.post("/stopped", json={"at": after(ended_at).isoformat()})
    await provisioner.demand(report(0, 1, at=20))
    await provisioner.plan()
    assert (await provisioner.states()).get("requested", 0) == replacements


async def test_a_machine_that_its_provider_takes_back(provisioner: Provisioner) -> None:
    """Its worker leaves, after its task if it has one, and no stage ends; another one starts in its place. A notice
    counts and is published once, and a recommendation not after an interruption."""
    ((worker, client),) = await running(provisioner)
    await provisioner.demand(report(1, 1, at=1))
    at = {"at": after(0).isoformat()}
    await client.post("/claimed", json=at | {"task_id": "t", "source": "q"})
    await provisioner.events()
    rebalance = at | {"kind": "rebalance", "zone_id": "euw1-az2"}
    interruption = at | {"kind": "interruption", "ends_at": after(120).isoformat()}
    reason = "its provider recommends replacing the machine in zone euw1-az2"
    for body in (rebalance, rebalance, interruption, interruption, rebalance):
        answer = await client.post("/notice", json=body)
        assert (answer.status_code, answer.json()) == (200, {"terminate": True, "reason": reason})
    events = await provisioner.events()
    assert [type(event).__name__ for event in events] == ["WorkerNoticed", "WorkerStopping", "WorkerNoticed"]
    first, stopping, second = events
    assert stopping.outcome is None
    assert [(event.kind, event.ends_at) for event in (first, second)] == [
        ("rebalance", None),
        ("interruption", after(120)),
    ]
    assert {event.capacity_key for event in (first, second)} == {"sim-a/sim-1/zone-a/m5.large/on-demand"}
    noticed = await provisioner.worker()
    assert (noticed.id, noticed.notice, noticed.is_finishing) == (worker.id, "interruption", True)
    await provisioner.plan()
    assert await provisioner.states() == {"stopping": 1, "requested": 1}
    await client.post("/stopped", json=at)
    assert (await client.post("/notice", json=interruption)).status_code == 410
    assert await provisioner.database.fetchval("SELECT sum(failures) FROM launch_config_outcomes") in (None, 0)


@pytest.mark.parametrize(
    "body",
    [
        {"kind": "", "at": "2026-01-01T12:00:00Z"},
        {"kind": "earthquake", "at": "2026-01-01T12:00:00Z"},
        {"kind": "rebalance"},
        {"kind": "interruption", "at": "2026-01-01T12:00:00Z", "ends_at": "soon"},
        {"kind": "rebalance", "at": "2026-01-01T12:00:00Z", "zone_id": "a b"},
    ],
)
async def test_a_notice_that_cannot_be_read(provisioner: Provisioner, body: dict[str, str]) -> None:
    """It is refused and changes nothing."""
    ((_, client),) = await running(provisioner)
    before = await provisioner.worker()
    assert (await client.post("/notice", json=body)).status_code == 422
    assert await provisioner.worker() == before


async def test_a_wrong_state(provisioner: Provisioner) -> None:
    """A stopping worker may finish its task but cannot report errors."""
    ((_, client),) = await running(provisioner)
    await provisioner.database.execute("UPDATE worker SET state = 'stopping'")
    answer = await client.post("/error", json={"kind": "disk"})
    assert (answer.status_code, answer.json()["type"]) == (409, "urn:slipway:problem:wrong-state")


async def test_lists(provisioner: Provisioner) -> None:
    """Lists for people contain no secrets."""
    await running(provisioner)
    async with provisioner.client() as client:
        paths = ("/pools", "/pools/linux", "/pools/linux/decisions", "/launch-configs", "/workers?state=running")
        answers = {path: (await client.get(path)).json() for path in paths}
    (listed,) = answers["/pools"]["items"]
    assert listed.items() <= answers["/pools/linux"].items()
    assert answers["/pools/linux"]["running"] == 1
    assert answers["/pools/linux/decisions"]["items"][-1]["reason"] == "1 needed"
    assert [c["id"] for c in answers["/launch-configs"]["items"]] == [revision_id()]
    (worker,) = answers["/workers?state=running"]["items"]
    assert "token_sha256" not in worker


async def test_a_dry_run_changes_nothing(provisioner: Provisioner, tmp_path: Path) -> None:
    """It lists the same differences as applying."""
    async with administrator(provisioner, tmp_path) as client:
        dry = (await client.put("/declaration?dry_run=true", json=declared())).json()
        assert await provisioner.database.fetchval("SELECT count(*) FROM account") == 0
        wet = (await client.put("/declaration", json=declared())).json()
        assert (dry["items"], dry["applied"], wet["applied"]) == (wet["items"], False, True)
        assert (await client.put("/declaration", json=declared())).json()["items"] == []


# With the simulator as the provider


@pytest.fixture
async def simulator(tmp_path: Path) -> AsyncIterator[httpx2.AsyncClient]:
    """The real simulator behind its real server."""
    (port,) = free_ports(1)
    server = uvicorn.Server(served(SimulatorSettings(port=port, ledger=tmp_path / "ledger.jsonl", kafka="")))
    serving = asyncio.create_task(server.serve())
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not server.started:
            await asyncio.sleep(0.01)
    scenario = {
        "seed": 3,
        "speed": 1000,
        "honours_tokens": False,
        "zones": {"zone-a": {}, "zone-b": {"capacity": 1}},
        "accounts": {"sim-a": {}},
    }
    url = f"http://127.0.0.1:{port}"
    async with httpx2.AsyncClient(base_url=url, trust_env=False, timeout=PATIENCE_SECONDS) as client:
        assert (await client.post("/scenario", json=scenario)).status_code == 200
        yield client
    server.should_exit = True
    await serving


@pytest.fixture
async def simulated(
    postgres: EmbeddedPostgres, simulator: httpx2.AsyncClient
) -> AsyncIterator[tuple[Provisioner, httpx2.AsyncClient]]:
    """A provisioner with the simulator as its provider, on the host's clock. Its machines never reach it."""
    adapter = Simulated(provider_settings())
    async with provisioner_on(postgres, adapter) as provisioner:
        await provisioner.follow_the_host()
        yield provisioner, simulator
        await adapter.close()


async def launched_on(provisioner: Provisioner, simulator: httpx2.AsyncClient, *configs: str, pending: int) -> None:
    await provisioner.declare(declared(*configs, settings={"url": str(simulator.base_url)}))
    await provisioner.demand(report(pending, observed_at=await pools.now(provisioner.database)))
    await provisioner.plan()
    for request in await provisioner.published(LeaseRequested):
        await provisioner.leases(provisioner.granted(request, expires_at=after(10**9)))
    await provisioner.launch()


async def test_simulated_lost_reply(simulated: tuple[Provisioner, httpx2.AsyncClient]) -> None:
    """The connection ends without a reply; the instances are found by tag, and the ledger shows one call."""
    provisioner, simulator = simulated
    await simulator.post("/faults", json={"name": "lost-reply", "arg": "1"})
    await launched_on(provisioner, simulator, "zone-a", pending=2)
    assert await provisioner.states() == {"launching": 2}
    await provisioner.follow_the_host(ahead_seconds=16)
    await provisioner.resolve()
    assert await provisioner.states() == {"starting": 2}
    state = (await simulator.get("/state")).json()
    assert (state["calls"]["total"], state["instances"]["live"]) == (1, 2)


async def test_simulated_capacity_and_images(simulated: tuple[Provisioner, httpx2.AsyncClient]) -> None:
    """Partial capacity, no capacity, and machines that vanish, as reported by the simulator."""
    provisioner, simulator = simulated
    await launched_on(provisioner, simulator, "zone-b", pending=2)
    assert await provisioner.states() == {"starting": 1, "stopped": 1}
    (failed,) = await provisioner.published(WorkerLaunchFailed)
    assert (failed.outcome.scope, failed.outcome.code) == (Scope.CAPACITY, "PartialCapacity")
    starting = next(worker for worker in await provisioner.workers() if worker.instance_id)
    await simulator.post(f"/instances/{starting.instance_id}/crash")
    await provisioner.follow_the_host(ahead_seconds=61)
    await provisioner.reap()
    assert await provisioner.states() == {"stopped": 2}
    (lost,) = await provisioner.published(WorkerLost)
    assert lost.outcome is not None
    assert lost.outcome.stage is Stage.BOOT


# While the lease-broker is unavailable


@pytest.fixture
async def safe(postgres: EmbeddedPostgres) -> AsyncIterator[Provisioner]:
    async with provisioner_on(postgres, broker_unavailable_mode="safe") as provisioner:
        yield provisioner


async def outage(provisioner: Provisioner, units: int, waiting: int) -> list[LeaseRequested]:
    """A lease pool that granted `units` now, with a hold of 1200 s, before the broker became unavailable; then intents
    wait."""
    (request,) = await provisioner.requested(units)
    await provisioner.leases(provisioner.granted(request))
    await provisioner.launch()
    await provisioner.set_clock(1)
    await provisioner.demand(report(units + waiting, at=1))
    await provisioner.plan()
    provisioner.broker_unavailable_seconds = 1.0
    return await provisioner.published(LeaseRequested)


async def test_unleased_launches_keep_the_last_pace(safe: Provisioner) -> None:
    """Four units in a hold of 1200 s: one start per 300 s, each reported to be charged, with its request cancelled."""
    (asked,) = await outage(safe, 4, 3)
    assert not await safe.admit_unleased()
    for number in (1, 2):
        await safe.set_clock(300 * number)
        assert [await safe.admit_unleased() for _ in range(3)] == [True, False, False]
        await safe.launch()
        events = await safe.events()
        (reported,) = [event for event in events if isinstance(event, LeaseUnleasedReported)]
        (left,) = [event for event in events if isinstance(event, LeaseCancelRequested)]
        assert (reported.lease_pool_id, reported.units, reported.tenant, reported.started_at) == (
            "sim-a",
            1,
            "linux",
            after(300 * number),
        )
        assert (left.request_id, left.units) == (asked.request_id, 1)
        assert not [event for event in events if isinstance(event, LeaseConfirmRequested | LeaseRenewRequested)]
        assert sum(call.count for call in safe.cloud.calls) == 4 + number
    assert await safe.database.fetchval("SELECT count(*) FROM lease WHERE state = 'unleased'") == 2


async def test_launches_wait_for_the_broker(provisioner: Provisioner, safe: Provisioner) -> None:
    """They wait in the default mode, while it is available, and where it never granted anything."""
    for waiting in (provisioner, safe):
        await outage(waiting, 4, 3)
        await waiting.set_clock(300)
    safe.broker_unavailable_seconds = 0.0
    assert not await provisioner.admit_unleased()
    assert not await safe.admit_unleased()
    await safe.database.execute("UPDATE lease SET granted_units = 0")
    safe.broker_unavailable_seconds = 1.0
    assert not await safe.admit_unleased()


async def test_nothing_starts_unleased_beside_a_broker_that_answers(safe: Provisioner) -> None:
    """It is only away from Kafka: it holds what it granted, and cannot charge what starts beside it."""
    await outage(safe, 4, 3)
    await safe.set_clock(300)
    safe.broker_over_http = True
    assert not await safe.admit_unleased()
    safe.broker_over_http = False
    assert await safe.admit_unleased()


async def test_a_broker_answers_where_it_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    """A closed port, a wrong address and no address do not answer."""
    monkeypatch.setattr(unleased, "ANSWER_SECONDS", PATIENCE_SECONDS)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        assert await unleased.broker_answers(url)
    assert not await unleased.broker_answers(url)
    assert not await unleased.broker_answers("http://[")
    assert not await unleased.broker_answers("")


async def test_an_old_heartbeat_is_not_taken_for_a_new_one(
    provisioner: Provisioner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that begins again reads the last heartbeat of each service, however old. It counts from when it was
    sent, at the earliest from the start of the process, and makes no later heartbeat forgotten."""
    now = 1000.0
    monkeypatch.setattr("slipway_provisioner.handlers.heartbeats.monotonic_seconds", lambda: now)
    view = HeartbeatView()

    async def silence(*, sent: float, at: float) -> float:
        """Read a heartbeat; both times are those of the database clock."""
        await provisioner.set_clock(at)
        beat = ServiceHeartbeat(service="lease-broker", instance="0", at=after(sent), version="1")
        (record,) = received(beat)
        await view.apply(provisioner.database, [msgspec.structs.replace(record, time=after(sent))])
        return view.unavailable_seconds("lease-broker", after_seconds=0)

    now = 1040.0
    assert await silence(sent=0, at=600) == 40.0, "nothing was expected before the start"
    assert await silence(sent=595, at=600) == 5.0
    assert await silence(sent=0, at=600) == 5.0
    now = 1050.0
    assert await silence(sent=620, at=610) == 0.0, "a clock that is ahead of the database's"
    now = 1060.0
    assert await silence(sent=0, at=620) == 10.0


async def test_an_unleased_launch_gets_a_lease_when_charged(safe: Provisioner) -> None:
    """Its token comes with the confirmation; then it is renewed and released as usual. One that is released earlier has
    no token and stays charged until its hold ends."""
    await outage(safe, 4, 3)
    for seconds in (300, 600):
        await safe.set_clock(seconds)
        await safe.admit_unleased()
    kept, early = await safe.published(LeaseUnleasedReported)
    async with safe.database.acquire() as db, db.transaction():
        await leases.release(db, early.lease_id, 1, "registered")
    for lease, token in ((kept, 71), (early, 72)):
        await safe.leases(
            LeaseConfirmed(lease_pool_id="sim-a", lease_id=lease.lease_id, fencing_token=token, expires_at=after(1500))
        )
    async with safe.database.acquire() as db, db.transaction():
        for lease in (kept, early):
            await leases.release(db, lease.lease_id, 1, "registered")
    assert [(back.lease_id, back.fencing_token) for back in await safe.published(LeaseReleaseRequested)] == [
        (kept.lease_id, 71)
    ]
