"""Several planners of one process: they plan several pools at once, wait for no lock for long, and leave connections to
others."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest

import slipway_provisioner
from slipway_common.database.postgres import Connection
from slipway_provisioner.apply.plan import cancel
from slipway_provisioner.domain import planning
from slipway_provisioner.domain.planning import Plan
from slipway_provisioner.domain.pool import Observed
from slipway_provisioner.loops.plan import LAUNCHING_SECONDS, LOCK_SECONDS, Planner, wake_waiting
from slipway_provisioner.store import marks, pools, waiting
from tests.support.harness import until, until_ended_or_waiting
from tests.support.provisioner import Provisioner, after, declared, in_transaction, report, stopped_at
from tests.support.statements import Covered

locking: Final = Covered(slipway_provisioner)
POOLS: Final = [f"pool-{number}" for number in range(8)]
IN_FLIGHT: Final = "SELECT count(*) FROM worker WHERE state = 'requested'"
RECORDING: Final = "SELECT count(*) FROM pg_locks WHERE relation = 'decision'::regclass AND NOT granted"
READ_WHOLE: Final = """
SELECT relname FROM pg_stat_xact_user_tables
WHERE relname IN ('shared_usage', 'dirty_pool', 'pool_balance', 'demand') AND seq_scan > 0"""
ORDER: Final = "SELECT pool_id FROM dirty_pool WHERE due_at <= slipway_clock() ORDER BY due_at, id"


def pools_with(*shared: str) -> dict[str, Any]:
    """Pools that have nothing in common but their account, and the image of those in `shared`."""
    body = declared("zone-a")
    config = body["worker_pools"][0]["launch_configs"][0]
    body["worker_pools"] = [
        body["worker_pools"][0]
        | {
            "id": pool_id,
            "launch_configs": [
                config
                | {
                    "name": pool_id,
                    "zone": pool_id,
                    "instance_type": f"{pool_id}.large",
                    "image": "shared" if pool_id in shared else pool_id,
                }
            ],
        }
        for pool_id in POOLS
    ]
    return body


published: Final = asyncio.Event()


async def demanded(provisioner: Provisioner, *shared: str, lock_seconds: float = LOCK_SECONDS) -> Planner:
    """Every pool asks for a worker; the planner plans them."""
    await provisioner.declare(pools_with(*shared))
    await provisioner.trust()
    await provisioner.database.execute("DELETE FROM dirty_pool")
    for pool_id in POOLS:
        await provisioner.demand(report(1, pool_id=pool_id))
    return planner_of(provisioner, lock_seconds)


def planner_of(provisioner: Provisioner, lock_seconds: float = LOCK_SECONDS) -> Planner:
    return Planner(
        settings=provisioner.settings,
        calculator_unavailable_seconds=lambda: 0.0,
        publish=published.set,
        lock_seconds=lock_seconds,
    )


async def test_several_pools_at_once_on_half_of_the_connections(provisioner: Provisioner) -> None:
    """Planners that wait in their transactions hold half of the connections, and the others are free."""
    planner, database = await demanded(provisioner, lock_seconds=60), provisioner.database
    half = database.get_max_size() // 2
    async with database.acquire() as blocker, blocker.transaction():
        await blocker.execute("LOCK TABLE decision IN SHARE MODE")
        step = provisioner.start(planner.step(database))
        await until(lambda: recording(provisioner, half), f"{half} planners wait")
        async with asyncio.timeout(5):
            free = [await database.acquire() for _ in range(half - 1)]
        for each in free:
            await database.release(each)
        assert await provisioner.database.fetchval(RECORDING) == half
    await step
    while await planner.step(database):
        pass
    assert await provisioner.states() == {"requested": len(POOLS)}


class Followed:
    """A connection whose first read is followed by a commit of another session."""

    def __init__(self, tx: Connection, commit: Callable[[], Awaitable[Any]]) -> None:
        self._tx = tx
        self._commits = [commit]

    def __getattr__(self, name: str) -> Any:
        async def read(*arguments: Any) -> Any:
            found = await getattr(self._tx, name)(*arguments)
            while self._commits:
                await self._commits.pop()()
            return found

        return read


async def test_a_worker_that_ends_while_its_pool_is_observed(provisioner: Provisioner) -> None:
    """It is missing from the fleet and from the demand, or from neither, so that nobody replaces it."""
    (worker,) = await provisioner.starting()
    token = (await provisioner.register(worker.instance_id or "", worker.batch_id)).json()["token"]
    client = provisioner.client(token=token)
    claimed = {"task_id": "t", "source": "q", "at": after(1).isoformat()}
    await client.post(f"/workers/{worker.id}/claimed", json=claimed)
    await provisioner.demand(report(0, 1, at=2))

    async def end() -> None:
        await client.post(f"/workers/{worker.id}/stopped", json={"at": after(3).isoformat()})

    async with provisioner.database.acquire() as db, db.transaction():
        observed = await provisioner.observe(Followed(db, end))
    assert await provisioner.states() == {"stopped": 1}
    assert planning.plan(observed, now=after(4)).launches == []


async def recording(provisioner: Provisioner, planners: int) -> bool:
    return bool(await provisioner.database.fetchval(RECORDING) == planners)


@locking("store.marks.REQUEUE")
async def test_planners_that_wait_for_a_lock_give_way(provisioner: Provisioner) -> None:
    """While a key is locked by another session, its pools stay dirty behind the others, which are all planned, although
    there are as many of them as planners."""
    database = provisioner.database
    shared = POOLS[: database.get_max_size() // 2]
    planner = await demanded(provisioner, *shared)
    async with database.acquire() as other, other.transaction():
        await other.execute("SELECT FROM shared_window WHERE key LIKE 'image/%shared' FOR UPDATE")
        step = provisioner.start(planner.step(database))
        await until(lambda: planned(provisioner, len(POOLS) - len(shared)), "the others are planned", seconds=20)
        assert {row["pool_id"] for row in await database.fetch(ORDER)} == {*shared}
    await step
    while await planner.step(database):
        pass
    assert await provisioner.states() == {"requested": len(POOLS)}
    assert not await database.fetch(ORDER)


async def planned(provisioner: Provisioner, pools: int) -> bool:
    return (await provisioner.states()).get("requested", 0) == pools


@locking("store.marks.REQUEUE", "store.functions.CLAIM_DIRTY")
async def test_a_pool_is_put_behind_others_while_it_is_planned(provisioner: Provisioner) -> None:
    """Neither waits for the other's marks, and none is lost."""
    await demanded(provisioner)
    async with stopped_at(provisioner, "outbox", provisioner.plan_step()) as planning:
        await provisioner.demand(report(2, pool_id=POOLS[0], at=1))
        await in_transaction(provisioner, lambda db: marks.requeue(db, POOLS[0]))
    await planning
    assert [row["pool_id"] for row in await provisioner.database.fetch(ORDER)] == [*POOLS[1:], POOLS[0]]
    await provisioner.plan()
    assert await provisioner.states() == {"requested": len(POOLS) + 1}


@locking("store.functions.MARK_SHORT")
async def test_a_launch_marks_a_pool_that_is_being_planned(provisioner: Provisioner) -> None:
    """Its plan may be cut by usage of before the launch. The others launched all that they needed."""
    await demanded(provisioner)
    async with stopped_at(provisioner, "outbox", provisioner.plan_step()) as planning:
        await provisioner.database.execute("DELETE FROM dirty_pool WHERE pool_id <> $1", POOLS[0])
        await in_transaction(provisioner, lambda db: marks.dirty_if_short(db, POOLS, reason="worker"))
    await planning
    assert [row["pool_id"] for row in await provisioner.database.fetch(ORDER)] == [POOLS[0]]


@locking("store.functions.MARK_SHORT", "store.functions.LOCKING")
async def test_no_pool_is_planned_before_the_launch_that_marks_it_commits(provisioner: Provisioner) -> None:
    """A planner that reads the usage of before the launch would leave the pool short, without a mark."""
    await demanded(provisioner)
    await provisioner.plan()
    await provisioner.database.execute("UPDATE pool_balance SET short = true WHERE pool_id = $1", POOLS[1])
    async with provisioner.database.acquire() as other, other.transaction():
        await marks.dirty_if_short(other, POOLS, reason="worker")
        await provisioner.demand(report(2, pool_id=POOLS[2], at=1))
        assert not await provisioner.plan_step()
    assert [row["pool_id"] for row in await provisioner.database.fetch(ORDER)] == [POOLS[1], POOLS[2]]


async def test_what_was_decided_is_published_at_once(provisioner: Provisioner) -> None:
    """No step ends, and no time passes, before the relay is woken for the first decision."""
    planner, database = await demanded(provisioner, POOLS[0]), provisioner.database
    published.clear()
    async with database.acquire() as other, other.transaction():
        await other.execute("SELECT FROM shared_window WHERE key LIKE 'image/%shared' FOR UPDATE")
        step = provisioner.start(planner.step(database))
        async with asyncio.timeout(60):
            await published.wait()
        assert not step.done()
    await step


# Pools that are planned together


async def test_pools_that_are_due_share_a_transaction(provisioner: Provisioner) -> None:
    """Each has its own decision, and the next transaction takes twice as many."""
    await demanded(provisioner, *POOLS[:2])
    assert await provisioner.plan_together(4) == 8
    assert await provisioner.states() == {"requested": 4}
    assert await provisioner.database.fetchval("SELECT count(DISTINCT xmin::text) FROM decision") == 1
    assert [row["pool_id"] for row in await provisioner.database.fetch(ORDER)] == POOLS[4:]


async def test_pools_that_are_planned_together_share_a_window(provisioner: Provisioner) -> None:
    """The later ones see what the earlier ones have taken of it."""
    await cut(provisioner, 3)
    await provisioner.plan_together(8)
    assert await provisioner.database.fetchval(IN_FLIGHT) == 3
    assert await provisioner.database.fetchval("SELECT count(*) FROM waiting_pool WHERE stage = 'boot'") == 5


async def test_marks_for_later_are_passed_over(provisioner: Provisioner) -> None:
    await demanded(provisioner)
    await provisioner.database.execute(
        "UPDATE dirty_pool SET due_at = due_at + interval '1 h' WHERE pool_id < $1", POOLS[6]
    )
    assert await provisioner.plan_together(8) == 8
    assert await provisioner.states() == {"requested": 2}
    assert not await marks.are_due(provisioner.database)


@locking("store.functions.CLAIM_DIRTY")
async def test_a_plan_that_changes_workers_shares_no_transaction(provisioner: Provisioner) -> None:
    """Its locks come in one order then. The pools from it on stay dirty, at their places, and it is planned next."""
    await demanded(provisioner)
    await provisioner.plan()
    for pool_id in POOLS:
        await provisioner.demand(report(0 if pool_id == POOLS[1] else 2, pool_id=pool_id, at=1))
    assert await provisioner.plan_together(8) == 1
    assert [row["pool_id"] for row in await provisioner.database.fetch(ORDER)] == POOLS[1:]
    assert await provisioner.plan_together(8) == 1
    assert await provisioner.states() == {"requested": len(POOLS), "stopped": 1}
    assert [row["pool_id"] for row in await provisioner.database.fetch(ORDER)] == POOLS[1:]  # its change marks it
    assert await provisioner.plan_together(8) == 8
    assert await provisioner.states() == {"requested": 2 * len(POOLS) - 2, "stopped": 1}


async def test_one_of_several_plans_fails(provisioner: Provisioner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of them is stored; each is planned alone then, and the others succeed."""
    planner = await demanded(provisioner)
    check = planning.check_plan

    def broken(observed: Observed, plan: Plan) -> list[str]:
        return ["it is broken"] if observed.pool.id == POOLS[1] else check(observed, plan)

    monkeypatch.setattr(planning, "check_plan", broken)
    assert await provisioner.plan_together(4) == 1
    assert await provisioner.states() == {}
    while await planner.step(provisioner.database):
        pass
    assert await provisioner.states() == {"requested": len(POOLS) - 1}
    failed = "SELECT pool_id FROM dirty_pool WHERE reason = 'failed'"
    assert await provisioner.database.fetchval(failed) == POOLS[1]


@locking("store.functions.CLAIM_DIRTY")
async def test_a_kept_plan_finds_all_by_indexes(provisioner: Provisioner) -> None:
    """Made while a table is small, it would read all of its rows for each decision once there are many."""
    await demanded(provisioner)
    await provisioner.plan()
    await provisioner.database.execute("VACUUM ANALYZE shared_usage, dirty_pool, pool_balance, demand")
    await provisioner.demand(report(2, pool_id=POOLS[0], at=1))
    async with provisioner.database.acquire() as db:
        await db.execute("SELECT pg_stat_force_next_flush()")
        async with db.transaction():
            assert await pools.claim_dirty(db, 60)
            await provisioner.observe(db, POOLS[0])
            assert not [row["relname"] for row in await db.fetch(READ_WHOLE)]


@locking("store.functions.CLAIM_DIRTY")
@pytest.mark.parametrize("begins", [True, False])
async def test_a_pool_is_planned_again_after_its_calls_have_begun(provisioner: Provisioner, begins: bool) -> None:
    """Calls need the locks of its decisions, which would leave them no room under load; a call that cannot begin holds
    none up for long."""
    await provisioner.admitted()
    planner = planner_of(provisioner)
    await provisioner.demand(report(2, at=1))
    assert not await planner.step(provisioner.database)
    assert await provisioner.states() == {"requested": 1}
    if begins:
        await provisioner.launch()
    else:
        await provisioner.set_clock(LAUNCHING_SECONDS)
    await planner.step(provisioner.database)
    assert await provisioner.states() == ({"starting": 1, "requested": 1} if begins else {"requested": 2})


@locking("store.functions.CLAIM_DIRTY")
async def test_no_pool_waits_for_a_call_of_before_the_clock_was_set_back(provisioner: Provisioner) -> None:
    """Else its launch would be of the last seconds until the clock has caught up, perhaps by hours."""
    await provisioner.set_clock(30)
    await provisioner.admitted()
    await provisioner.set_clock(0)
    await provisioner.demand(report(2, at=1))
    await planner_of(provisioner).step(provisioner.database)
    assert await provisioner.states() == {"requested": 2}


# Pools that wait for a shared window


async def cut(provisioner: Provisioner, window: int) -> None:
    """All pools share an image whose boot window has this size, and each asks for a worker."""
    await demanded(provisioner, *POOLS)
    await provisioner.database.execute("UPDATE shared_window SET size = $1 WHERE stage = 'boot'", window)


async def end_one(provisioner: Provisioner) -> None:
    """Cancel the oldest intent, which frees a unit."""
    async with provisioner.database.acquire() as db, db.transaction():
        row = await db.fetchrow("SELECT id::text, pool_id FROM worker WHERE state = 'requested' ORDER BY id LIMIT 1")
        if row is not None:
            await cancel(db, [row["id"]], "test", await pools.now(db))


@locking("store.waiting.RECORD")
async def test_no_unit_is_lost_that_is_freed_while_pools_begin_to_wait(provisioner: Provisioner) -> None:
    """A unit may become free just before a plan that it does not reach commits: then it is woken by the loop alone."""
    await cut(provisioner, 3)
    for _ in range(10):
        await asyncio.gather(*(provisioner.plan_step() for _ in range(4)), end_one(provisioner))
        await wake_waiting(provisioner.database, calculator_unavailable_seconds=lambda: 0.0)
        await provisioner.plan()
        assert await provisioner.database.fetchval(IN_FLIGHT) == 3


@locking("store.waiting.LEAVE", "store.waiting.RECORD")
async def test_a_pool_that_is_planned_while_it_stops_waiting(provisioner: Provisioner) -> None:
    """The later one counts, and neither waits for the marks of the other."""
    await cut(provisioner, 0)
    await provisioner.plan()
    await provisioner.demand(report(2, pool_id=POOLS[0], at=1))
    async with stopped_at(provisioner, "dirty_pool", provisioner.plan_step()) as planning:
        await in_transaction(provisioner, lambda db: waiting.leave(db, POOLS[1]))
        leaving = provisioner.start(in_transaction(provisioner, lambda db: waiting.leave(db, POOLS[0])))
        await until_ended_or_waiting(provisioner.database, leaving)
    await asyncio.gather(planning, leaving)
    await provisioner.plan()
    rows = await provisioner.database.fetch("SELECT DISTINCT pool_id FROM waiting_pool ORDER BY pool_id")
    assert {row["pool_id"] for row in rows} <= {POOLS[0], *POOLS[2:]}
