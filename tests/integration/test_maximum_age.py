"""Maximum age: workers drain once they have reached it, and are replaced as far as they are needed."""

from collections.abc import AsyncIterator
from typing import Any, Final

import httpx2
import pytest

from slipway_api.events.alert import AlertRaised, AlertResolved
from slipway_api.events.lease import LeaseRequested
from slipway_api.events.worker import WorkerStopping
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_provisioner.store import ageing, tables
from tests.support.plans import rows_read
from tests.support.provisioner import Provisioner, after, declared, provisioner_on, report

HOUR: Final = 3600.0
DEADLINES: Final = {"maximum_age_seconds": HOUR, "drain_seconds": HOUR, "unresponsive_seconds": 9 * HOUR}
POOL: Final[dict[str, Any]] = {"deadlines": DEADLINES, "max_capacity": 1}
Machine = httpx2.AsyncClient


@pytest.fixture
async def provisioner(postgres: EmbeddedPostgres) -> AsyncIterator[Provisioner]:
    async with provisioner_on(postgres, unresponsive_timeout_seconds=9 * HOUR) as made:
        yield made


def now(seconds: float) -> str:
    return after(seconds).isoformat()


async def launch(provisioner: Provisioner) -> int:
    """Decide, start what is needed, and register it; returns the number of launched workers."""
    await provisioner.plan()
    requests = [event for event in await provisioner.events() if isinstance(event, LeaseRequested)]
    lasting: dict[str, Any] = {"expires_at": after(99 * HOUR), "hold_until": after(99 * HOUR)}
    await provisioner.leases(*(provisioner.granted(request, **lasting) for request in requests))
    await provisioner.launch()
    return sum(request.units for request in requests)


async def running(
    provisioner: Provisioner, tasks: int = 1, body: dict[str, Any] | None = None, **pool: Any
) -> list[Machine]:
    """Registered workers, one for each task, launched at the start."""
    usual: dict[str, Any] = {"deadlines": DEADLINES, "max_capacity": tasks}
    await provisioner.declare(body or declared(**(usual | pool)))
    await provisioner.trust()
    await provisioner.demand(report(tasks, valid_for_seconds=24 * HOUR))
    await launch(provisioner)
    machines = []
    for worker in await provisioner.workers():
        answer = (await provisioner.register(worker.instance_id or "", worker.batch_id)).json()
        client = provisioner.client(token=answer["token"])
        client.base_url = httpx2.URL(f"http://provisioner/workers/{worker.id}")
        machines.append(client)
    await provisioner.demand(report(0, tasks, at=1, valid_for_seconds=24 * HOUR))
    return machines


async def claim(machine: Machine, task: str, at: float) -> dict[str, Any]:
    answer: dict[str, Any] = (
        await machine.post("/claimed", json={"task_id": task, "source": "q", "at": now(at)})
    ).json()
    return answer


async def idle(machine: Machine, at: float) -> dict[str, Any]:
    answer: dict[str, Any] = (await machine.post("/idle", json={"at": now(at)})).json()
    return answer


async def at(provisioner: Provisioner, seconds: float) -> None:
    """Let the time come, and all loops act on it."""
    await provisioner.set_clock(seconds)
    await provisioner.sweep_now()
    await provisioner.plan()
    await provisioner.expire()


async def stops(provisioner: Provisioner) -> list[str]:
    return [event.reason for event in await provisioner.published(WorkerStopping)]


async def test_an_idle_worker_is_replaced(provisioner: Provisioner) -> None:
    """Without a second machine beside it: the pool is at its maximum, and never above."""
    await running(provisioner)
    await at(provisioner, 0.89 * HOUR)
    assert await stops(provisioner) == []
    await at(provisioner, HOUR)
    assert await stops(provisioner) == ["has reached its maximum age"]
    assert await launch(provisioner) == 0
    await provisioner.set_clock(HOUR + 200)
    await provisioner.terminate_instances()
    await provisioner.reap()
    assert await launch(provisioner) == 1


async def test_a_thousand_that_drain_leave_others_their_turn(provisioner: Provisioner) -> None:
    """A worker that reaches the maximum age behind those, which are busy for hours, drains at its age."""
    first, second = await running(provisioner, 2, max_capacity=2000)
    for machine in (first, second):
        await claim(machine, "long", 0)
    earliest, latest = sorted(worker.id for worker in await provisioner.workers())
    names = ", ".join(column.name for column in tables.worker.columns if column.computed is None)
    await provisioner.database.execute(
        f"""INSERT INTO worker ({names}) SELECT {names} FROM (
            SELECT c.* FROM worker w, generate_series(1, 1000) n, jsonb_populate_record(w, jsonb_build_object(
                'id', gen_random_uuid(), 'instance_id', 'c' || n, 'launched_at', w.launched_at - interval '1 s',
                'drain_until', w.launched_at + interval '99 h')) c WHERE w.id = $1) c""",
        earliest,
    )
    await provisioner.demand(report(0, 1002, at=2, valid_for_seconds=24 * HOUR))
    await at(provisioner, HOUR)
    until = await provisioner.database.fetchval("SELECT drain_until FROM worker WHERE id = $1", latest)
    assert until == after(2 * HOUR)


async def test_a_busy_worker_leaves_after_its_task(provisioner: Provisioner) -> None:
    """It serves until then, so that nothing is launched for it."""
    (machine,) = await running(provisioner, max_capacity=9)
    await claim(machine, "long", 0)
    await at(provisioner, HOUR)
    assert (await provisioner.states(), await launch(provisioner)) == ({"running": 1}, 0)
    assert (await machine.post("/heartbeat")).json()["terminate"] is False
    await provisioner.set_clock(1.5 * HOUR)
    assert (await idle(machine, 1.5 * HOUR))["reason"] == "has reached its maximum age"
    await provisioner.set_clock(1.5 * HOUR + 2)
    await provisioner.demand(report(1, 0, at=1.5 * HOUR + 1, valid_for_seconds=24 * HOUR))
    assert await launch(provisioner) == 1
    assert (await provisioner.states())["stopping"] == 1


async def test_tasks_that_overlap(provisioner: Provisioner) -> None:
    """A worker that is never idle hears at the end of a task that it takes no other, and ends the others in time."""
    body = declared(**POOL)
    body["worker_pools"][0]["launch_configs"][0]["task_slots"] = 2
    (machine,) = await running(provisioner, body=body)
    await claim(machine, "a", 0)
    await at(provisioner, HOUR)
    assert (await claim(machine, "b", HOUR))["terminate"] is False
    end = {"at": now(HOUR + 9), "task_id": "a", "source": "q", "claimed_at": now(0)}
    assert (await machine.post("/idle", json=end)).json()["reason"] == "has reached its maximum age"
    assert (await machine.post("/heartbeat")).json()["terminate"] is False
    assert await provisioner.states() == {"running": 1}


async def test_a_task_longer_than_the_drain_time_is_ended(provisioner: Provisioner) -> None:
    """In time for the grace period, so that the machine is gone at the maximum age and the drain time."""
    (machine,) = await running(provisioner)
    await claim(machine, "endless", 0)
    await at(provisioner, HOUR)
    grace = provisioner.settings.stop_grace_seconds
    await at(provisioner, 2 * HOUR - grace - 1)
    assert await stops(provisioner) == []
    await at(provisioner, 2 * HOUR - grace)
    assert await stops(provisioner) == ["its drain time after the maximum age has passed"]


async def test_an_age_bounds_workers_that_were_asked_to_stop(provisioner: Provisioner) -> None:
    """One that finishes a task has the same time for it as any other, also while nothing could replace it."""
    (machine,) = await running(provisioner)
    await provisioner.demand(report(0, 0, at=2, valid_for_seconds=24 * HOUR))
    await at(provisioner, 200)
    assert await provisioner.states() == {"stopping": 1}
    await claim(machine, "endless", 200)
    await provisioner.declare(declared(**POOL, mode="observe"))
    await at(provisioner, HOUR)
    worker = await provisioner.worker()
    assert (worker.drain_until, worker.is_finishing) == (after(2 * HOUR), True)
    await at(provisioner, 2 * HOUR)
    assert not (await provisioner.worker()).may_finish


async def test_nothing_leaves_while_nothing_could_replace_it(provisioner: Provisioner) -> None:
    """Its mark is revoked, an alert says so, and its task gets the rest of its drain time afterwards."""
    (machine,) = await running(provisioner)
    await claim(machine, "long", 0)
    await at(provisioner, HOUR)
    await provisioner.declare(declared(**POOL, mode="observe"))
    await at(provisioner, 1.1 * HOUR)
    (raised,) = await provisioner.published(AlertRaised)
    assert (raised.kind, raised.cause) == ("maximum-age", "mode observe: launches are decided and recorded, not made")
    assert (await provisioner.worker()).drain_until is None
    await at(provisioner, 4 * HOUR)
    assert await stops(provisioner) == []
    await provisioner.declare(declared(**POOL, mode="enforce"))
    await at(provisioner, 5 * HOUR)
    events = await provisioner.events()
    assert [event.kind for event in events if isinstance(event, AlertResolved)] == ["maximum-age"]
    worker = await provisioner.worker()
    assert worker.drain_until == after(5.9 * HOUR)


async def test_obstacles_that_come_and_go(provisioner: Provisioner) -> None:
    """A task that hangs has one drain time in all, and not one after each obstacle. The next task has one of its own,
    and so has one that is claimed while its worker stays."""
    (machine,) = await running(provisioner)
    await claim(machine, "hangs", 0)
    until = []
    for start in (1.0, 2.0, 3.0):  # each time, half an hour without an obstacle and half an hour with one
        await provisioner.declare(declared(**POOL, mode="enforce"))
        await at(provisioner, start * HOUR)
        until.append((await provisioner.worker()).drain_until)
        if start == 2.0:
            await provisioner.declare(declared(**POOL, mode="observe"))
            await at(provisioner, 2.2 * HOUR)
            await claim(machine, "next", 2.2 * HOUR)
            await provisioner.demand(report(0, 1, at=2.2 * HOUR + 1, valid_for_seconds=24 * HOUR))
        await provisioner.declare(declared(**POOL, mode="observe"))
        await at(provisioner, (start + 0.5) * HOUR)
    assert until == [after(2 * HOUR), after(2.5 * HOUR), after(4 * HOUR)]
    assert await stops(provisioner) == []
    await provisioner.declare(declared(**POOL, mode="enforce"))
    for start in (4.0, 4.5):
        await at(provisioner, start * HOUR)
    assert await stops(provisioner) == ["its drain time after the maximum age has passed"]


@pytest.mark.parametrize("raised", [{"maximum_age_seconds": 9 * HOUR}, {}])
async def test_a_maximum_age_that_is_raised_or_removed(provisioner: Provisioner, raised: dict[str, float]) -> None:
    """A worker that drains by the former one is young again: it keeps its task beyond the drain time."""
    (machine,) = await running(provisioner)
    await claim(machine, "long", 0)
    await at(provisioner, HOUR)
    assert (await provisioner.worker()).drain_until == after(2 * HOUR)
    await provisioner.declare(declared(max_capacity=1, deadlines={"unresponsive_seconds": 9 * HOUR} | raised))
    await at(provisioner, 1.1 * HOUR)
    assert (await provisioner.worker()).drain_until is None
    await at(provisioner, 3 * HOUR)
    assert await provisioner.states() == {"running": 1}


async def test_credentials_that_end_force_it(provisioner: Provisioner) -> None:
    deadlines = {"credential_seconds": 3 * HOUR, "drain_seconds": HOUR, "unresponsive_seconds": 9 * HOUR}
    (machine,) = await running(provisioner, deadlines=deadlines)
    await claim(machine, "long", 0)
    await provisioner.declare(declared(**POOL | {"deadlines": deadlines}, mode="observe"))
    await at(provisioner, 2 * HOUR - 1)
    assert (await provisioner.worker()).drain_until is None
    await at(provisioner, 2 * HOUR)
    assert (await provisioner.worker()).drain_until == after(3 * HOUR)
    await at(provisioner, 3 * HOUR - provisioner.settings.stop_grace_seconds)
    assert await provisioner.states() == {"stopping": 1}


@pytest.mark.parametrize(("age", "drain"), [(0.5, 1), (3, 3), (30, 24)])
async def test_the_default_drain_time_is_the_longest_task(provisioner: Provisioner, age: float, drain: float) -> None:
    """From an hour to a day: one that a worker claims and never ends makes no drain endless."""
    deadlines = {"maximum_age_seconds": age * HOUR, "unresponsive_seconds": 99 * HOUR}
    (machine,) = await running(provisioner, deadlines=deadlines)
    await claim(machine, "long", 0)
    await at(provisioner, age * HOUR)
    until = (await provisioner.worker()).drain_until
    assert until is not None
    assert abs((until - after((age + drain) * HOUR)).total_seconds()) < 10


async def test_the_default_drain_time_reads_no_day_of_claims(provisioner: Provisioner) -> None:
    """It is read under the lock of its pool, of which a thousand workers may have ended a million tasks."""
    await running(provisioner)
    worker = await provisioner.worker()
    await provisioner.end_claims(worker.id, 50_000)
    await provisioner.database.execute("UPDATE claim SET started_at = started_at - interval '2 h' WHERE task_id = '7'")
    await provisioner.database.execute("ANALYZE claim")
    async with provisioner.database.acquire() as db:
        assert await ageing.drain_seconds(db, "linux") == 2 * HOUR
        assert (await rows_read(db, ageing.DRAIN_SECONDS.text, "linux")).total() < 100


async def test_a_part_leaves_at_a_time(provisioner: Provisioner) -> None:
    """Machines of one burst: a quarter of those that are wanted, until the maximum age itself."""
    machines = await running(provisioner, 8)
    for number, machine in enumerate(machines):
        await claim(machine, f"t{number}", 0)
    leaving = "SELECT count(*) FROM worker WHERE drain_until IS NOT NULL"
    await at(provisioner, 0.9999 * HOUR)
    assert await provisioner.database.fetchval(leaving) == 2
    await at(provisioner, HOUR)
    assert await provisioner.database.fetchval(leaving) == 8


async def test_the_lifetime_of_a_spend_limit(provisioner: Provisioner) -> None:
    """It is the maximum age of machines that declare none; of a day or more it is none."""
    deadlines = {"unresponsive_seconds": 999 * HOUR}
    limits = {"spend_per_day": "1000", "default_price": "0.1", "lifetime_seconds": HOUR}
    await running(provisioner, limits=limits, deadlines=deadlines)
    await at(provisioner, HOUR)
    assert await stops(provisioner) == ["has reached its maximum age"]


async def test_the_default_lifetime_of_a_spend_limit(provisioner: Provisioner) -> None:
    deadlines = {"unresponsive_seconds": 999 * HOUR}
    (machine,) = await running(
        provisioner, limits={"spend_per_day": "1000", "default_price": "0.1"}, deadlines=deadlines
    )
    await claim(machine, "t", 0)
    await at(provisioner, 23 * HOUR)
    assert (await provisioner.worker()).drain_until is None


async def test_downtime_makes_no_worker_older(provisioner: Provisioner) -> None:
    await running(provisioner)
    await provisioner.set_clock(1)
    await provisioner.jump_clock(HOUR)
    await provisioner.expire()
    await provisioner.sweep_now()
    await provisioner.plan()
    assert await stops(provisioner) == []


async def test_the_pool_is_looked_at_when_a_worker_reaches_its_age(provisioner: Provisioner) -> None:
    """Nothing else happens in it."""
    await running(provisioner)
    await provisioner.plan()
    due = [row["due_at"] for row in await provisioner.database.fetch("SELECT due_at FROM dirty_pool")]
    assert any(after(0.9 * HOUR) <= each <= after(HOUR) for each in due)
