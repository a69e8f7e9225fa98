"""Limits of callers over HTTP on a real database: who is answered 429, who never is, and who waits for nobody."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
from fastapi import FastAPI

from slipway_common.base.buckets import Limit
from slipway_common.base.clock import monotonic_seconds
from slipway_common.base.ids import new_lease_token, new_worker_token
from slipway_common.database.postgres import (
    CONNECTIONS,
    PEOPLE_CONNECTIONS,
    REPORTS_CONNECTIONS,
    Database,
    connect,
)
from slipway_common.service import Service
from slipway_common.web.limits import LIMITS, LOOK_UPS_MAX, CallerLimits
from slipway_common.web.routes import health
from slipway_common.web.runtime import Runtime
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_provisioner.main import build
from slipway_provisioner.settings import Settings
from tests.support import readers
from tests.support.harness import PATIENCE_SECONDS, WAITING, until, until_waiting
from tests.support.lease_broker import terms
from tests.support.lease_broker_http import World
from tests.support.provisioner import KEY, Provisioner, administrator, after

RATE: Final = 1.0
BURST: Final = 10
"""Requests of a token at that rate that may come at once, and of all others."""
OTHERS: Final = dict.fromkeys(LIMITS, Limit(RATE, BURST))


class Clock:
    """A clock that stands."""

    def __init__(self) -> None:
        self.seconds = monotonic_seconds()

    def __call__(self) -> float:
        return self.seconds


def limited(provisioner: Provisioner) -> Clock:
    """Limit callers by a clock that stands."""
    clock = Clock()
    provisioner.app.state.limits = CallerLimits(RATE, others=OTHERS, clock=clock)
    return clock


async def statuses(send: Callable[[], Awaitable[httpx2.Response]], number: int) -> list[int]:
    return [(await send()).status_code for _ in range(number)]


async def registered(provisioner: Provisioner, number: int = 1) -> list[tuple[str, str]]:
    """Ids and tokens of workers of one batch."""
    await provisioner.declare()
    found = []
    for each in await provisioner.starting(number):
        answer = (await provisioner.register(each.instance_id or "", each.batch_id)).json()
        found.append((answer["worker_id"], answer["token"]))
    return found


async def test_a_token_has_a_rate(provisioner: Provisioner, tmp_path: Path) -> None:
    """A request above it is refused with the time at which there is room; other tokens and probes go on."""
    clock = limited(provisioner)
    async with administrator(provisioner, tmp_path) as client:
        assert await statuses(lambda: client.get("/pools"), BURST) == [200] * BURST
        refused = await client.get("/pools")
        assert refused.status_code == 429
        assert refused.headers["content-type"] == "application/problem+json"
        assert (refused.headers["retry-after"], refused.json()["retry_after_seconds"]) == ("1", 1)
        assert await statuses(lambda: client.get("/livez"), BURST) == [200] * BURST
        async with provisioner.client() as reader:
            assert (await reader.get("/pools")).status_code == 200
        clock.seconds += 1
        assert await statuses(lambda: client.get("/pools"), 2) == [200, 429]


async def test_an_address_has_a_rate_for_strangers_alone(provisioner: Provisioner) -> None:
    """Callers with a valid credential are served from a limited address: tokens, workers, machines that register."""
    await provisioner.declare()
    first, machine = await provisioner.starting(2)
    answer = (await provisioner.register(first.instance_id or "", first.batch_id)).json()
    worker_id, token = answer["worker_id"], answer["token"]
    limited(provisioner)
    async with provisioner.client(token="") as nobody, provisioner.client(token="wrong") as stranger:
        assert await statuses(lambda: nobody.get("/pools"), BURST // 2) == [401] * (BURST // 2)
        assert await statuses(lambda: stranger.get("/pools"), BURST // 2) == [401] * (BURST // 2)
        assert [(await each.get("/pools")).status_code for each in (nobody, stranger)] == [429, 429]
        refused = await nobody.get("/no-such-route")
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert (await nobody.get("/livez")).status_code == 200
    async with provisioner.client(token=new_worker_token()) as other:
        assert (await other.post(f"/workers/{worker_id}/heartbeat")).status_code == 429
    assert (await provisioner.register("x", machine.batch_id, secret="wrong")).status_code == 429
    async with provisioner.client() as reader, provisioner.client(token=token) as worker:
        assert (await reader.get("/pools")).status_code == 200
        assert (await worker.post(f"/workers/{worker_id}/heartbeat")).status_code == 200
    assert (await provisioner.register(machine.instance_id or "", machine.batch_id)).status_code == 200


async def test_made_up_tokens_of_workers_are_looked_up_one_by_one(provisioner: Provisioner) -> None:
    """Once their address has no room, whatever their number; too many are refused without a look-up. A worker that was
    served before waits for none of them."""
    ((worker_id, token),) = await registered(provisioner)
    limited(provisioner)
    async with provisioner.client(token="wrong") as client:
        assert await statuses(lambda: client.get("/pools"), BURST) == [401] * BURST
        assert (await beat(client, worker_id, token)).status_code == 200

        async def made_up() -> int:
            return (await beat(client, worker_id, new_worker_token())).status_code

        async with until_looked_up(provisioner.database, "worker", made_up) as looked_up:
            known = asyncio.create_task(beat(client, worker_id, token))
            await until_waiting(provisioner.database, looked_up, known)
        assert (await known).status_code == 200


async def test_made_up_tokens_of_leases_are_looked_up_one_by_one(world: World) -> None:
    """Once their address has no room; a lease's token that was used before waits for none of them."""
    broker = world.replica
    lease = (await broker.acquire("r", units=1)).json()
    path, held = f"/leases/{lease['lease_id']}", {"fencing_token": lease["fencing_token"]}
    token = (await broker.call("POST", f"{path}/token", held)).json()["token"]
    broker.app.state.limits = CallerLimits(RATE, others=OTHERS, clock=Clock())
    assert await statuses(lambda: broker.call("GET", "/leases", by=""), BURST) == [401] * BURST

    async def renew(by: str) -> int:
        headers = {"Authorization": f"Bearer {by}"}
        return int((await broker.call("POST", f"{path}/renew", held, by="", **headers)).status_code)

    assert await renew(token) == 200
    async with until_looked_up(
        world.broker.pool, "leases", lambda: renew(new_lease_token(lease["lease_id"]))
    ) as looked_up:
        known = asyncio.create_task(renew(token))
        await until_waiting(world.broker.pool, looked_up, known)
    assert await known == 200


async def test_the_token_of_a_worker_is_none_elsewhere(provisioner: Provisioner) -> None:
    """On the routes of people it counts against its address like every other wrong one."""
    await registered(provisioner)
    limited(provisioner)
    async with provisioner.client(token=new_worker_token()) as worker:
        assert (await worker.post("/workers/no-id/heartbeat")).status_code == 404
        assert await statuses(lambda: worker.get("/pools"), BURST) == [403] * (BURST - 1) + [429]


async def test_all_machines_of_a_batch_register(provisioner: Provisioner) -> None:
    """However many boot behind one address, and however often their first answer is lost; one that goes on and on is
    refused at last."""
    await provisioner.declare()
    machines = await provisioner.starting(3)
    limited(provisioner)
    for machine in machines:
        assert (await provisioner.register(machine.instance_id or "", machine.batch_id)).status_code == 200
    (machine, *_) = machines
    again = await statuses(lambda: provisioner.register(machine.instance_id or "", machine.batch_id), BURST + 1)
    assert again == [200] * BURST + [429]


async def test_heartbeats_have_a_rate_and_reports_within_the_slots_none(provisioner: Provisioner) -> None:
    """A worker that is answered 429 was heard a moment ago. Its claims and their ends are never refused, however many;
    repeated ones are no reports within its slots."""
    ((worker_id, token),) = await registered(provisioner)
    clock = limited(provisioner)
    async with provisioner.client(token=token) as worker:
        path = f"/workers/{worker_id}"
        assert await statuses(lambda: worker.post(f"{path}/heartbeat"), BURST + 1) == [200] * BURST + [429]
        seen_at = "SELECT last_seen_at FROM worker WHERE id = $1::uuid"
        await provisioner.set_clock(60)
        before = await provisioner.database.fetchval(seen_at, worker_id)
        assert (await worker.post(f"{path}/heartbeat")).status_code == 429
        clock.seconds += 1 / RATE
        assert await statuses(lambda: worker.post(f"{path}/heartbeat"), 2) == [200, 429]
        assert await provisioner.database.fetchval(seen_at, worker_id) > before
        number = BURST
        for each in range(number):
            claim = {"task_id": f"t{each}", "source": "q", "at": after(60).isoformat()}
            assert (await worker.post(f"{path}/claimed", json=claim)).status_code == 200
            end = claim | {"claimed_at": claim["at"], "at": after(60).isoformat()}
            assert (await worker.post(f"{path}/idle", json=end)).status_code == 200
        repeated = await statuses(lambda: worker.post(f"{path}/claimed", json=claim), BURST + 1)
        assert repeated == [200] * BURST + [429]


async def test_renewals_and_releases_have_no_rate(world: World) -> None:
    """Neither those of the holder nor those of a lease's own token; acquiring has one."""
    broker = world.replica
    lease = (await broker.acquire("r", units=1)).json()
    broker.app.state.limits = CallerLimits(RATE, clock=Clock())
    path, held = f"/leases/{lease['lease_id']}", {"fencing_token": lease["fencing_token"]}

    async def renew() -> httpx2.Response:
        answer: httpx2.Response = await broker.call("POST", f"{path}/renew", held)
        return answer

    assert await statuses(lambda: broker.call("GET", "/leases?mine=true"), BURST + 1) == [200] * BURST + [429]
    assert (await broker.acquire("another", units=1)).status_code == 429
    assert await statuses(renew, 3 * BURST) == [200] * (3 * BURST)
    assert (await broker.call("POST", f"{path}/confirm", held)).status_code == 200
    assert (await broker.call("POST", f"{path}/release", held)).status_code == 200


async def test_the_token_of_a_lease_has_a_rate(world: World) -> None:
    """For what it asks for, also once that is refused since its owner was revoked."""
    broker = world.replica
    lease = (await broker.acquire("r", units=1)).json()
    made = await broker.call("POST", f"/leases/{lease['lease_id']}/token", {"fencing_token": lease["fencing_token"]})
    headers = {"Authorization": f"Bearer {made.json()['token']}"}

    async def repeat() -> httpx2.Response:
        answer: httpx2.Response = await broker.call(
            "POST", "/lease-pools/sim-a/leases", {"request_id": "r"}, by="", **headers
        )
        return answer

    tokens = broker.app.state.tokens
    for status in (200, 403):
        broker.app.state.limits = CallerLimits(RATE, clock=Clock())
        assert await statuses(repeat, BURST + 1) == [status] * BURST + [429]
        tokens.revoked |= {tokens.named("ann").sha256}


async def test_people_and_loops_wait_for_no_report(postgres: EmbeddedPostgres, provisioner: Provisioner) -> None:
    """While every connection of reports waits for the lock of a worker, people read, and loops have their own."""
    workers = await registered(provisioner, REPORTS_CONNECTIONS)
    async with served(postgres, provisioner) as (service, client), locked(provisioner, [id_ for id_, _ in workers]):
        beats = [asyncio.create_task(beat(client, *worker)) for worker in workers * 3]
        await until_waiting(provisioner.database, *beats[:REPORTS_CONNECTIONS])
        read = await client.get("/pools", headers={"Authorization": f"Bearer {readers.TOKEN}"})
        assert service.runtime.database is not None
        assert (read.status_code, await service.runtime.database.fetchval("SELECT 1")) == (200, 1)
        assert not any(each.done() for each in beats)
    await asyncio.gather(*beats, return_exceptions=True)


async def test_a_worker_takes_two_connections(postgres: EmbeddedPostgres, provisioner: Provisioner) -> None:
    """However many reports of a worker wait for its row, the others report, and machines register."""
    await provisioner.declare()
    machines = await provisioner.starting(3)
    workers = []
    for each in machines[:2]:
        answer = (await provisioner.register(each.instance_id or "", each.batch_id)).json()
        workers.append((answer["worker_id"], answer["token"]))
    async with served(postgres, provisioner) as (_, client), locked(provisioner, [workers[0][0]]):
        beats = [asyncio.create_task(beat(client, *workers[0])) for _ in range(5 * REPORTS_CONNECTIONS)]
        await until_waiting(provisioner.database, beats[0])
        assert (await beat(client, *workers[1])).status_code == 200
        assert not any(each.done() for each in beats)
    await asyncio.gather(*beats, return_exceptions=True)


@pytest.mark.parametrize("kind", ["start", "token", "gang"])
async def test_the_lock_of_one_lease_pool_delays_no_renewal_in_another(world: World, kind: str) -> None:
    """However many single requests of a caller wait for it: the group commit has connections of its own."""
    await world.broker.declare(terms("sim-a"), terms("sim-b"))
    held, other = [(await world.replica.acquire("held", pool)).json() for pool in ("sim-a", "sim-b")]
    path, body = {
        "start": (
            "/lease-pools/sim-a/unleased",
            {"starts": [{"request_id": "r", "started_at": after(0).isoformat()}]},
        ),
        "token": (f"/leases/{held['lease_id']}/token", {"fencing_token": held["fencing_token"]}),
        "gang": ("/lease-gangs", {"request_id": "g", "members": [{"pool": "sim-a"}]}),
    }[kind]
    async with world.broker.pool.acquire() as db, db.transaction():
        await db.execute("SELECT FROM lease_pools WHERE id = 'sim-a' FOR UPDATE")
        calls = [asyncio.create_task(world.replica.call("POST", path, body)) for _ in range(3 * CONNECTIONS)]
        await until_waiting(world.broker.pool, calls[0])
        async with asyncio.timeout(PATIENCE_SECONDS / 2):
            renewal = {"fencing_token": other["fencing_token"]}
            renewed = await world.replica.call("POST", f"/leases/{other['lease_id']}/renew", renewal)
        assert renewed.status_code == 200
        assert not any(call.done() for call in calls)
    assert {answer.status_code for answer in await asyncio.gather(*calls)} == {200}


async def test_probes_take_one_connection_of_people(postgres: EmbeddedPostgres, provisioner: Provisioner) -> None:
    """They need no token and have no limit: however many there are at once, the database is asked for all of them."""
    url = postgres.url(await provisioner.database.fetchval("SELECT current_database()"))
    async with await connect(url, "provisioner", size=PEOPLE_CONNECTIONS, opened_at_once=0) as people:
        runtime = Runtime()
        runtime.database = runtime.people_database = people
        runtime.consuming = True
        app = FastAPI()
        app.state.runtime = runtime
        app.include_router(health)
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://any") as client:
            probes = await asyncio.gather(*(client.get("/readyz") for _ in range(5 * PEOPLE_CONNECTIONS)))
            assert {(probe.status_code, probe.json()["ready"]) for probe in probes} == {(200, True)}
            assert people.get_size() == 1
            assert (await client.get("/readyz")).status_code == 200


@contextlib.asynccontextmanager
async def served(
    postgres: EmbeddedPostgres, provisioner: Provisioner
) -> AsyncIterator[tuple[Service, httpx2.AsyncClient]]:
    """A whole service on the database of a provisioner, and a client of it."""
    settings = Settings(
        database_url=postgres.url(await provisioner.database.fetchval("SELECT current_database()")),
        kafka="127.0.0.1:1",
        registration_keys=KEY,
        tokens_file=readers.TOKENS_FILE,
    )
    service = build(settings)
    app = service.app()
    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(transport=transport, base_url="http://provisioner", timeout=PATIENCE_SECONDS) as client,
    ):
        await until(lambda: service.runtime.database is not None, "the service has its database")
        yield service, client


@contextlib.asynccontextmanager
async def locked(provisioner: Provisioner, worker_ids: Sequence[str]) -> AsyncIterator[None]:
    """Lock the rows of workers."""
    async with provisioner.database.acquire() as other, other.transaction():
        await other.execute("SELECT FROM worker WHERE id = ANY($1::uuid[]) FOR UPDATE", list(worker_ids))
        yield


@contextlib.asynccontextmanager
async def until_looked_up(
    database: Database, table: str, send: Callable[[], Coroutine[Any, Any, int]]
) -> AsyncIterator[asyncio.Task[int]]:
    """Send requests with made-up tokens while nothing can be read from a table: one of them waits for it, more than
    LOOK_UPS_MAX are answered. Gives the one."""
    more = 5
    async with database.acquire() as other, other.transaction():
        await other.execute(f"LOCK TABLE {table}")
        (first, *others) = [asyncio.create_task(send()) for _ in range(LOOK_UPS_MAX + more)]
        await until_waiting(database, first)
        await until(lambda: sum(each.done() for each in others) >= more, "the last ones are answered")
        assert {each.result() for each in others if each.done()} == {429}
        assert await database.fetchval(WAITING) == 1
        yield first
    assert {await each for each in others} | {await first} <= {401, 403, 429}


async def beat(client: httpx2.AsyncClient, worker_id: str, token: str) -> httpx2.Response:
    headers = {"Authorization": f"Bearer {token}"}
    answer: httpx2.Response = await client.post(f"/workers/{worker_id}/heartbeat", headers=headers)
    return answer
