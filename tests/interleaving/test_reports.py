"""Two sessions on workers: reports, claims, and the ends of both."""

import asyncio
from pathlib import Path
from typing import Any, Final

import slipway_provisioner
from slipway_api.events.worker import WorkerClaimed, WorkerStopping
from slipway_provisioner.domain.workers import Worker
from slipway_provisioner.store import deadlines
from slipway_provisioner.store import terminations as stored
from tests.support.interleaving import gone
from tests.support.provisioner import Provisioner, administrator, after, in_transaction, report, stopped_at
from tests.support.statements import Covered

WAITS: Final = """
SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY(pg_blocking_pids(pid)))"""
locking: Final = Covered(slipway_provisioner)


async def running(provisioner: Provisioner, pending: int = 1) -> list[tuple[Worker, str]]:
    """Registered workers and their tokens."""
    pairs = []
    for worker in await provisioner.starting(pending):
        answer = await provisioner.register(worker.instance_id or "", worker.batch_id)
        pairs.append((worker, answer.json()["token"]))
    return pairs


async def send_report(provisioner: Provisioner, token: str, path: str, **body: Any) -> int:
    async with provisioner.client(token=token) as client:
        answer = await client.post(f"/workers/{path}", json={"at": after(0).isoformat()} | body)
        status: int = answer.status_code
        return status


@locking("store.demand.SAVE", "store.demand.CLOSE", "store.workers.LOCK_OWN")
async def test_a_claim_that_is_reported_twice_at_once(provisioner: Provisioner) -> None:
    """A claim that is reported twice concurrently is one claim and one event; so is its end, and that of the worker."""
    ((worker, token),) = await running(provisioner)
    await provisioner.events()
    claim = {"path": f"{worker.id}/claimed", "task_id": "t", "source": "q"}
    assert await asyncio.gather(*(send_report(provisioner, token, **claim) for _ in range(3))) == [200] * 3
    assert len(await provisioner.published(WorkerClaimed)) == 1
    end = {"path": f"{worker.id}/idle", "at": after(1).isoformat()}
    assert await asyncio.gather(*(send_report(provisioner, token, **end) for _ in range(3))) == [200] * 3
    assert len(await provisioner.events()) == 1
    assert await provisioner.database.fetchval("SELECT count(*) FROM claim WHERE ended_at IS NOT NULL") == 1
    await send_report(provisioner, token, f"{worker.id}/claimed", task_id="u", source="q", at=after(2).isoformat())
    ends = await asyncio.gather(*(send_report(provisioner, token, f"{worker.id}/stopped") for _ in range(3)))
    assert sorted(ends) == [200, 410, 410]
    assert await provisioner.database.fetchval("SELECT count(*) FROM claim WHERE ended_at IS NULL") == 0


@locking("store.workers.LOCK_OWN")
async def test_a_token_is_compared_before_the_lock_and_under_it(provisioner: Provisioner) -> None:
    """Another token waits for no lock; that of the worker is refused if it was replaced during the wait."""
    ((worker, token),) = await running(provisioner)
    async with provisioner.database.acquire() as db, asyncio.TaskGroup() as group, db.transaction():
        await db.execute("UPDATE worker SET token_sha256 = 'other' WHERE id = $1::uuid", worker.id)
        assert await send_report(provisioner, "slipway-worker-another", f"{worker.id}/heartbeat") == 403
        waiting = group.create_task(send_report(provisioner, token, f"{worker.id}/heartbeat"))
        while not await db.fetchval(WAITS):
            await asyncio.sleep(0)
    assert await waiting == 403


@locking("store.demand.PLACES_LOCK")
async def test_new_sources_of_a_token_at_once(provisioner: Provisioner, tmp_path: Path) -> None:
    """Together they are no more than the token may have; an end makes room, and known ones always report."""
    await provisioner.starting(1)
    async with administrator(provisioner, tmp_path, ["demand:write:linux"]) as client:

        async def put(source: str, seconds: float = 0) -> int:
            body = {"source": source, "pending": 1, "claimed": 0, "observed_at": after(seconds).isoformat()}
            return (await client.put("/pools/linux/demand", json=body)).status_code

        assert sorted(await asyncio.gather(*(put(f"s{n}") for n in range(8)))) == [200] * 5 + [409] * 3
        rows = await provisioner.database.fetch("SELECT source FROM demand WHERE source LIKE 's%' ORDER BY source")
        assert await put(rows[0]["source"], 1) == 200
        assert await put("new") == 409
        assert (await client.delete(f"/pools/linux/demand/{rows[0]['source']}")).is_success
        assert await put("new") == 200


@locking("store.demand.FORGET")
async def test_old_claims_are_forgotten_beside_other_reports(provisioner: Provisioner) -> None:
    """Of a worker that reports several claims concurrently, each of which ends the one before: a thousand are left."""
    (worker,) = await provisioner.starting(1)
    token = (await provisioner.register(worker.instance_id or "", worker.batch_id)).json()["token"]
    await provisioner.end_claims(worker.id, 1100)
    claims = (
        send_report(
            provisioner, token, f"{worker.id}/claimed", task_id=f"t{n}", source="q", at=after(2 + n).isoformat()
        )
        for n in range(3)
    )
    assert await asyncio.gather(*claims) == [200] * 3
    numbers = await provisioner.database.fetchrow("SELECT count(ended_at), count(*) - count(ended_at) FROM claim")
    assert tuple(numbers or ()) == (1000, 1)


@locking("store.workers.LOCK", "store.workers.TOUCH")
async def test_a_heartbeat_that_waited_for_a_claim(provisioner: Provisioner) -> None:
    """It records the contact, and leaves the claim as it is."""
    ((worker, token),) = await running(provisioner)
    await provisioner.set_clock(9)
    claim = send_report(provisioner, token, f"{worker.id}/claimed", task_id="t", source="q", at=after(9).isoformat())
    async with stopped_at(provisioner, "claim", claim) as claiming:
        beating = provisioner.start(send_report(provisioner, token, f"{worker.id}/heartbeat"))
        await provisioner.until_waiting(claiming, beating)
    assert (await claiming, await beating) == (200, 200)
    seen = await provisioner.worker()
    assert (seen.idle_since, seen.first_claimed_at, seen.last_seen_at) == (None, after(9), after(9))


@locking("store.workers.LOCK")
async def test_a_claim_comes_before_giving_up(provisioner: Provisioner) -> None:
    """A worker that claimed a task while its expiry waited is busy; one that is idle again has a new idle time."""
    ((worker, token),) = await running(provisioner)
    await provisioner.set_clock(301)
    await provisioner.demand(report(5, at=0.5, valid_for_seconds=900))
    claim = send_report(provisioner, token, f"{worker.id}/claimed", task_id="t", source="q", at=after(301).isoformat())
    async with stopped_at(provisioner, "claim", claim) as claiming:
        giving_up = provisioner.start(provisioner.expire())
        await provisioner.until_waiting(claiming, giving_up)
    await asyncio.gather(claiming, giving_up)
    assert await provisioner.states() == {"running": 1}
    assert await provisioner.published(WorkerStopping) == []


@locking("store.terminations.TAKE_STOPPING", "store.workers.LOCK")
async def test_a_claim_at_the_moment_of_a_stop(provisioner: Provisioner) -> None:
    """A claim that waited for the stop of its idle worker is recorded, and the machine is not terminated: neither while
    the claim is not committed, nor while the task runs."""
    ((worker, token),) = await running(provisioner)
    await provisioner.set_clock(301)
    await provisioner.demand(report(0, at=300))
    claim = send_report(provisioner, token, f"{worker.id}/claimed", task_id="t", source="q", at=after(301).isoformat())
    async with stopped_at(provisioner, "outbox", provisioner.plan()) as planning:
        claiming = provisioner.start(claim)
        await provisioner.until_waiting(planning, claiming)
    assert (await planning, await claiming) == (None, 200)
    assert (await provisioner.worker()).is_finishing
    await provisioner.set_clock(1000)
    await provisioner.terminate_instances()
    assert provisioner.cloud.terminated == []


@locking("store.terminations.TAKE_STOPPING", "store.workers.LOCK")
async def test_a_termination_beside_a_claim(provisioner: Provisioner) -> None:
    """At the end of the grace period the machine is not terminated while its claim is not committed, nor afterwards."""
    ((worker, token),) = await running(provisioner)
    await provisioner.set_clock(301)
    await provisioner.demand(report(0, at=300))
    await provisioner.plan()
    assert await provisioner.states() == {"stopping": 1}
    await provisioner.set_clock(422)
    claim = send_report(provisioner, token, f"{worker.id}/claimed", task_id="t", source="q", at=after(421).isoformat())
    async with stopped_at(provisioner, "claim", claim) as claiming:
        await provisioner.terminate_instances()
    assert await claiming == 200
    await provisioner.terminate_instances()
    assert provisioner.cloud.terminated == []


@locking("store.deadlines.RECORD")
async def test_two_replicas_record_one_downtime(provisioner: Provisioner) -> None:
    """The pass that waited for the other follows it at once, whatever the clock was when it began to wait."""
    await provisioner.set_clock(0)
    await provisioner.jump_clock(600)
    database = provisioner.database
    async with database.acquire() as first, first.transaction():
        assert await deadlines.record_pass(first, regular_seconds=5) == 595
        second = provisioner.start(in_transaction(provisioner, lambda db: deadlines.record_pass(db, regular_seconds=5)))
        await provisioner.until_waiting(second)
    assert await second == 0
    assert await database.fetchval("SELECT count(*) FROM downtime") == 1


@locking("store.terminations.TAKE_STOPPING", "store.workers.LOCK")
async def test_workers_are_locked_in_one_order(provisioner: Provisioner) -> None:
    """Terminating instances, finding them missing and stopping workers do not deadlock."""
    everybody = await provisioner.starting(20)
    ids = [worker.id for worker in everybody]
    await provisioner.set_clock(901)
    await provisioner.expire()
    for _ in range(5):
        await asyncio.gather(
            provisioner.database.execute(stored.TAKE_STOPPING, 0, 0),
            gone(provisioner, ids[:10]),
            provisioner.database.execute(stored.TAKE_STOPPING, 0, 0),
        )
    assert await provisioner.states() == {"stopping": 10, "stopped": 10}
