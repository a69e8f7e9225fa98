"""`make bench-http`: requests per second of the services over HTTP, in turns with the bare answer of /livez.

One pool of a thousand simulated machines, which the benchmark registers itself and which stay silent otherwise. Four
clients with a connection each send one request after another: lists of a thousand workers, one pool, a lease acquired
and released, a claim and its end, a report of demand, a registration. Prints each rate with its part of the rate of
/livez in the same service, and exits with 1 if a request was refused. KEEP=1 writes bench/results/http.json. SECONDS is
the approximate time of the measurements.
"""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import count
from typing import Any, Final, NamedTuple

import asyncpg
import msgspec

from bench import committed
from bench.claims import report as report_claims
from bench.events import surroundings
from bench.leases.bench.http_client import HttpClient
from bench.spread import Spread, spread
from slipway_common.base.clock import utc_now
from slipway_local.demo.deployment import Deployment
from slipway_local.servers.supervisor import Supervisor, run
from slipway_provisioner.domain.registration import RegistrationKeys
from tests.support.folders import disk_folder
from tests.support.harness import until

SECONDS: Final = 20.0
ROUNDS: Final = 5
CLIENTS: Final = 4
MACHINES: Final = 1_000
POOL: Final = "linux"
LEASE_POOL: Final = "sim"
PROVISIONER: Final = "provisioner"
BROKER: Final = "lease-broker"
BARE: Final = {PROVISIONER: "/livez", BROKER: "/livez of the broker"}
UNLIMITED: Final = {"SLIPWAY_REQUESTS_PER_SECOND_MAX": "1000000"}  # all clients have one token
LIMIT: Final = 1_000_000
LONG_SECONDS: Final = 100_000.0  # longer than the run: no machine boots or ends by itself
TIMES: Final = dict.fromkeys(
    ("boot_timeout_seconds", "idle_timeout_seconds", "give_up_idle_seconds", "unresponsive_timeout_seconds"),
    LONG_SECONDS,
)
SCENARIO: Final = {
    "accounts": {"*": {"latency_seconds": 0, "latency_sigma": 0}},
    "boot_seconds_median": LONG_SECONDS,
    "boot_sigma": 0,
}
# The windows of an image that is proven: what the first machines prove is not what is measured.
PROVEN: Final = (
    f"""UPDATE provisioner.weight SET revision = {2**40}, record = record || jsonb_build_object('stages', (
        SELECT jsonb_object_agg(key, value || '{{"window": {LIMIT}}}') FROM jsonb_each(record -> 'stages')))""",
    f"""INSERT INTO provisioner.shared_window (key, stage, version, size)
    SELECT DISTINCT k.key, k.stage, {2**40}, {LIMIT}
    FROM provisioner.launch_config c CROSS JOIN LATERAL provisioner.shared_keys(c) AS k
    ON CONFLICT (key, stage) DO UPDATE SET version = excluded.version, size = excluded.size""",
    "INSERT INTO provisioner.dirty_pool (pool_id, reason) SELECT id, 'bench' FROM provisioner.worker_pool",
)
LAUNCHED: Final = """
SELECT batch_id::text AS batch_id, instance_id FROM provisioner.worker WHERE instance_id IS NOT NULL ORDER BY id"""
WEIGHED: Final = "SELECT count(*) = 1 FROM provisioner.weight"
_names = count()

Send = Callable[[HttpClient, int], Awaitable[None]]
"""Sends one request as the client of this number."""


class Work(NamedTuple):
    """Requests of one kind: of which service, with the token of each client. `most` in one measurement, of which there
    is a given number."""

    service: str
    tokens: Sequence[str]
    send: Send
    most: int | None = None


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """Requests per second; `ratio` is the median over that of /livez in the same rounds."""

    name: str
    per_second: Spread
    ratio: float


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """Results of one run; `on` describes machine and versions."""

    command: str
    on: dict[str, Any]
    rates: list[Rate]


class Refused(Exception):
    """A service refused a request."""


async def call(client: HttpClient, method: str, path: str, body: Any = None) -> Any:
    """Answer of a request. Raises Refused."""
    status, answer = await client.call(method, path, body)
    if status >= 300:
        raise Refused(f"{method} {path}: {status} {answer}")
    return answer


async def live(client: HttpClient, _: int) -> None:
    """Request /livez, whose answer is no JSON."""
    with suppress(msgspec.DecodeError):
        await client.call("GET", "/livez", None)


def requesting(method: str, path: str, body: Callable[[], Any] = lambda: None) -> Send:
    """Sender of one request."""

    async def send(client: HttpClient, _: int) -> None:
        await call(client, method, path, body())

    return send


async def lease(client: HttpClient, _: int) -> None:
    """Acquire a lease and release it."""
    await client.release(await client.acquire(LEASE_POOL, f"bench-{next(_names)}"))


@asynccontextmanager
async def connected(deployment: Deployment, service: str, tokens: Sequence[str]) -> AsyncIterator[list[HttpClient]]:
    """A client of a service for each token."""
    async with AsyncExitStack() as stack:
        port = deployment.ports[service]
        yield [await stack.enter_async_context(HttpClient(port, token)) for token in tokens]


async def per_second(clients: Sequence[HttpClient], send: Send, seconds: float, most: int | None = None) -> float:
    """Requests per second of clients that send one after another, for some seconds or `most` requests."""
    began, numbers = time.monotonic(), count()
    done = 0

    async def work(number: int, client: HttpClient) -> None:
        nonlocal done
        while next(numbers) < most if most is not None else time.monotonic() < began + seconds:
            await send(client, number)
            done += 1

    await asyncio.gather(*(work(number, client) for number, client in enumerate(clients)))
    return done / (time.monotonic() - began)


def declaration() -> dict[str, Any]:
    """One pool in one account, whose lease pool limits nothing."""
    day_seconds = 86_400.0
    times = {"hold_seconds": day_seconds, "ttl_seconds": day_seconds, "reserve_seconds": day_seconds}
    account = {"id": "sim", "provider": "simulated", "region": "r", "credential": "none", "identity": "sim"}
    place = {"account": "sim", "zone": "a", "instance_type": "m5.large", "image": "linux-1"}
    return {
        "version": 1,
        "lease_pools": [{"id": "sim", "limit": LIMIT, "pacing": "off", **times}],
        "accounts": [{**account, "lease_pool": "sim"}],
        "worker_pools": [
            {"id": POOL, "mode": "enforce", "max_capacity": MACHINES, "launch_configs": [{"name": "linux-a", **place}]}
        ],
    }


@asynccontextmanager
async def deployed(supervisor: Supervisor) -> AsyncIterator[tuple[Deployment, list[tuple[str, str]]]]:
    """The whole system with all machines launched; batch and instance of each."""
    with disk_folder("slipway-bench-") as folder:
        deployment = Deployment(
            supervisor, folder, speed=1.0, seconds=TIMES, environment=dict.fromkeys((PROVISIONER, BROKER), UNLIMITED)
        )
        try:
            await deployment.start()
            await deployment.call("POST", "simulator", "/scenario", SCENARIO)
            body = declaration()
            pools = {"documents": [{"owner": "bench", "lease_pools": body.pop("lease_pools")}]}
            await deployment.call("PUT", "lease-broker", "/lease-pools", pools)
            await deployment.call("PUT", "provisioner", "/declaration", body | {"metadata": {"owner": "bench"}})
            await deployment.call("PUT", "provisioner", f"/pools/{POOL}/demand", demand())
            yield deployment, await _launched(deployment)
        finally:
            await supervisor.stop()
            await deployment.remove()


def demand() -> dict[str, Any]:
    """A report of as many waiting tasks as there are machines."""
    at = utc_now().isoformat()
    return {"source": "bench", "pending": MACHINES, "claimed": 0, "observed_at": at, "valid_for_seconds": 3600.0}


async def _launched(deployment: Deployment) -> list[tuple[str, str]]:
    db = await asyncpg.connect(deployment.database_url)
    try:

        async def weighed() -> bool:
            return bool(await db.fetchval(WEIGHED))

        await until(weighed, "the launch config has a weight", seconds=60.0)
        for statement in PROVEN:
            await db.execute(statement)
        found: list[tuple[str, str]] = []

        async def launched() -> bool:
            found[:] = [(row["batch_id"], row["instance_id"]) for row in await db.fetch(LAUNCHED)]
            return len(found) == MACHINES

        await until(launched, "all machines are launched", seconds=120.0)
        return found
    finally:
        await db.close()


async def works(deployment: Deployment, launched: Sequence[tuple[str, str]], rounds: int) -> dict[str, Work]:
    """Kinds of requests by name, each measured in so many rounds, with a few machines registered for them."""
    registrations = iter(launched)
    registered: list[tuple[str, str]] = []

    async def register(client: HttpClient, _: int) -> None:
        batch, instance = next(registrations)
        secret = RegistrationKeys(deployment.registration_keys).secret(batch)
        body = {"batch_id": batch, "secret": secret, "instance_id": instance}
        answer = await call(client, "POST", "/workers/register", body)
        registered.append((answer["worker_id"], answer["token"]))

    async def claim(agent: HttpClient, number: int) -> None:
        path = f"/workers/{registered[number][0]}"
        task = {"task_id": f"task-{next(_names)}", "source": "bench"}
        at = utc_now().isoformat()
        await call(agent, "POST", f"{path}/claimed", {**task, "at": at})
        await call(agent, "POST", f"{path}/idle", {**task, "claimed_at": at, "at": utc_now().isoformat()})

    ours = [deployment.token] * CLIENTS
    async with connected(deployment, PROVISIONER, ours) as clients:
        for number, client in enumerate(clients):
            await register(client, number)
    agents = [token for _, token in registered]
    return {
        BARE[PROVISIONER]: Work(PROVISIONER, ours, live),
        "list of 1,000 workers": Work(PROVISIONER, ours, requesting("GET", "/workers?limit=1000")),
        "one pool": Work(PROVISIONER, ours, requesting("GET", f"/pools/{POOL}")),
        "report of demand": Work(PROVISIONER, ours, requesting("PUT", f"/pools/{POOL}/demand", demand)),
        "claim and its end": Work(PROVISIONER, agents, claim),
        "registration": Work(PROVISIONER, ours, register, MACHINES // rounds - CLIENTS),
        BARE[BROKER]: Work(BROKER, ours, live),
        "acquire and release": Work(BROKER, ours, lease),
    }


async def measured(deployment: Deployment, work: Work, seconds: float) -> float:
    """Requests per second of one kind."""
    async with connected(deployment, work.service, work.tokens) as clients:
        return await per_second(clients, work.send, seconds, work.most)


async def measure(supervisor: Supervisor) -> int:
    """Run all measurements on a new deployment."""
    seconds = float(os.environ.get("SECONDS", SECONDS))
    before = os.getloadavg()[0]
    print(f"starting everything, and launching {MACHINES:,} machines …", flush=True)
    async with deployed(supervisor) as (deployment, launched):
        known = await works(deployment, launched, ROUNDS)
        print("requests …", flush=True)
        rates: dict[str, list[float]] = {name: [] for name in known}
        for _ in range(ROUNDS):
            for name, work in known.items():
                rates[name].append(await measured(deployment, work, seconds / ROUNDS / len(known)))
    results = Results(
        command=f"make bench-http SECONDS={seconds:g}",
        on=surroundings(before),
        rates=_rates(rates, {name: BARE[work.service] for name, work in known.items()}),
    )
    committed.write_json(os.environ, "http.json", results)
    return report(results)


def report(results: Results) -> int:
    """Print the rates; a refused request has ended the run before."""
    print(f"\nminimum / median / maximum on {results.on}")
    for rate in results.rates:
        print(f"{rate.name:<22} {rate.per_second} requests/s; ÷ /livez {rate.ratio}")
    return report_claims({f"{len(results.rates)} kinds of requests, none refused": True})


def _rates(rates: Mapping[str, Sequence[float]], bare: Mapping[str, str]) -> list[Rate]:
    found = {name: spread(values) for name, values in rates.items()}
    return [
        Rate(name=name, per_second=each, ratio=round(each.median / found[bare[name]].median, 4))
        for name, each in found.items()
    ]


if __name__ == "__main__":
    sys.exit(run(measure))
