"""The provisioner on PostgreSQL and a fake provider: calls and leases."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from random import Random
from typing import Any, Final

import msgspec
import pytest

from slipway_api.events.lease import (
    LeaseConfirmed,
    LeaseExpired,
    LeaseLost,
    LeaseReleased,
    LeaseReleaseRequested,
    LeaseRenewRequested,
    LeaseRequested,
)
from slipway_api.events.worker import (
    Outcome,
    Result,
    Scope,
    Stage,
    WorkerDelayed,
    WorkerLaunched,
    WorkerLaunchFailed,
)
from slipway_common.base.clock import monotonic_seconds
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_provisioner.apply import termination
from slipway_provisioner.domain.registration import RegistrationKeys
from slipway_provisioner.loops import launch
from slipway_provisioner.loops.launch import Launcher
from slipway_provisioner.providers.port import OutcomeUnknown, Refused
from slipway_provisioner.providers.simulated import ERRORS
from slipway_provisioner.store import accounts, configs, launch_stops, leases, pauses
from tests.support.cloud import ReplyLost
from tests.support.provisioner import (
    KEY,
    Provisioner,
    after,
    declared,
    in_transaction,
    provisioner_on,
    report,
    revision_id,
)
from tests.support.running import COMMAND, failures


def refused(scope: Scope, code: str, *, retry: float | None = None) -> Refused:
    return Refused(Outcome(Stage.LAUNCH, Result.FAILED, scope, "", code), "no", retry_after_seconds=retry)


async def batch_states(provisioner: Provisioner) -> list[str]:
    rows = await provisioner.database.fetch("SELECT state FROM launch_batch ORDER BY id")
    return [row["state"] for row in rows]


@pytest.mark.parametrize(
    ("most", "steps", "calls"),
    [
        (None, [False], [3]),
        (2, [True, False], [2, 1]),
        (3, [True, False], [3]),
        (1, [True, True, True, False], [1, 1, 1]),
    ],
)
async def test_starts_look_for_more_where_there_may_be_more(
    provisioner: Provisioner, most: int | None, steps: list[bool], calls: list[int]
) -> None:
    """Where a call takes all intents of its lease, nothing is left to look for. Other loops are woken by each start."""
    await provisioner.admitted(3)
    provisioner.cloud.most = most
    woken: list[None] = []
    launcher = Launcher(provisioner.settings, provisioner.providers, wake=lambda: woken.append(None))
    assert [await launcher.launch_next(provisioner.database) for _ in steps] == steps
    await asyncio.gather(*launcher.calls)
    assert [call.count for call in provisioner.cloud.calls] == calls
    assert len(woken) == len(calls)


async def test_a_call_starts_as_soon_as_another_has_ended(postgres: EmbeddedPostgres) -> None:
    """Where no more may be in flight, nothing else would tell the loop for a second."""
    async with provisioner_on(postgres, calls_in_flight_max=1) as provisioner:
        launcher, provisioner.cloud.hold = provisioner.launcher, asyncio.Event()
        await provisioner.admitted(2, "zone-a", "zone-b")
        assert await launcher.launch_next(provisioner.database)
        waiting = asyncio.create_task(launcher.launch_next(provisioner.database))
        assert await asyncio.wait([waiting], timeout=0.05) == (set(), {waiting})
        assert len(provisioner.cloud.calls) == 1
        provisioner.cloud.hold.set()
        assert await waiting
        assert not await launcher.launch_next(provisioner.database)
        await asyncio.gather(*launcher.calls)
        assert await provisioner.states() == {"starting": 2}


@pytest.mark.parametrize(
    ("reply", "heard"),
    [
        (1, ["published"]),
        (Refused(Outcome(Stage.LAUNCH, Result.FAILED, Scope.CONFIG, "", "NoSuchType"), "no"), ["woken"]),
        (Refused(Outcome(Stage.LAUNCH, Result.FAILED, Scope.LIMITER, "", "Slower"), "no"), ["woken"]),
    ],
)
async def test_the_end_of_a_call_is_heard_of_at_once(
    provisioner: Provisioner, reply: int | Refused, heard: list[str]
) -> None:
    """Its events, and the decision that replaces a failed launch, would wait for the next second."""
    calls: list[str] = []
    launcher = Launcher(
        provisioner.settings,
        provisioner.providers,
        wake=lambda: calls.append("woken"),
        publish=lambda: calls.append("published"),
    )
    await provisioner.admitted()
    provisioner.cloud.script.append(reply)
    await launcher.launch_next(provisioner.database)
    await asyncio.gather(*launcher.calls)
    assert calls == ["woken", *heard]


async def test_starts_look_for_more_beyond_those_that_are_looked_at(
    provisioner: Provisioner, monkeypatch: pytest.MonkeyPatch
) -> None:
    await provisioner.admitted(2, "zone-a", "zone-b")
    monkeypatch.setattr(leases, "CANDIDATES_MAX", 2)
    assert await provisioner.launcher.launch_next(provisioner.database)
    assert not await provisioner.launcher.launch_next(provisioner.database)


async def test_replicas_take_others_of_many_leases(provisioner: Provisioner, monkeypatch: pytest.MonkeyPatch) -> None:
    """All in the end, whichever come first."""
    await provisioner.admitted(2, "zone-a", "zone-b")
    monkeypatch.setattr(launch, "TOGETHER_MAX", 1)
    settings, providers = provisioner.settings, provisioner.providers
    launchers = [Launcher(settings, providers, rng=Random(seed)) for seed in (0, 1)]
    assert [await launcher.launch_next(provisioner.database) for launcher in launchers] == [True, False]
    await asyncio.gather(*(call for launcher in launchers for call in launcher.calls))
    assert await provisioner.states() == {"starting": 2}


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
        ((batch, account),) = await provisioner.launcher._start(db, [grant.lease_id])
    late = monotonic_seconds() - provisioner.settings.send_within_seconds - 1
    await provisioner.database.execute("UPDATE launch_batch SET repeats = 1")
    await provisioner.launcher._call(provisioner.database, batch, account, began=late)
    assert (await provisioner.states(), await batch_states(provisioner)) == ({"launching": 1}, ["calling"])
    await provisioner.database.execute("UPDATE launch_batch SET repeats = 0")
    await provisioner.launcher._call(provisioner.database, batch, account, began=late)
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
    assert told["secret"] == RegistrationKeys(KEY).secret(first.batch_id)
    assert told["register_url"] in committed
    assert told["secret"] not in committed
    kept = await provisioner.database.fetchval("SELECT body ? 'user_data' FROM launch_batch")
    assert kept is False, "no call is repeated once its outcome is known"
    assert first.incarnation == incarnation
    assert await provisioner.states() == {"starting": 2}
    assert len(provisioner.cloud.live) == 2


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
        woken: list[None] = []
        launcher = Launcher(provisioner.settings, provisioner.providers, wake=lambda: woken.append(None))
        await launcher.launch_next(provisioner.database)
        assert (len(launcher.calls), len(woken)) == (1, 1)
        await asyncio.gather(*launcher.calls)
        assert (provisioner.cloud.calls, await batch_states(provisioner)) == ([], ["known"])
        assert len(woken) == 2  # for the release of its unit
        events = await provisioner.events()
        assert [event.reason for event in events if isinstance(event, WorkerDelayed)] == ["not sent in time"]
        assert [event.units for event in events if isinstance(event, LeaseReleaseRequested)] == [1]


async def test_a_provisioner_that_may_not_launch(postgres: EmbeddedPostgres) -> None:
    """It decides and records, but launches nothing."""
    async with provisioner_on(postgres, launching=False) as provisioner:
        await provisioner.admitted()
        await provisioner.launch()
        assert (await provisioner.states(), provisioner.cloud.calls) == ({"requested": 1}, [])


async def test_each_lease_is_renewed_in_a_third_of_its_ttl(provisioner: Provisioner) -> None:
    """Or when the clock was set back since."""
    short, long = await provisioner.admitted(2, "zone-a", "zone-b")
    for grant, ttl_seconds in ((short, 30), (long, 300)):
        await provisioner.leases(
            LeaseConfirmed(
                lease_pool_id="sim-a", lease_id=grant.lease_id, fencing_token=1, expires_at=after(ttl_seconds)
            )
        )
    for at, renewed in ((9, []), (11, [short]), (101, [long, short]), (50, [long, short])):
        await provisioner.set_clock(at)
        await provisioner.expire()
        events = await provisioner.published(LeaseRenewRequested)
        assert sorted(event.lease_id for event in events) == sorted(grant.lease_id for grant in renewed), at


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
