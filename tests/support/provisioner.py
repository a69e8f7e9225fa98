"""Provisioner without Kafka for tests: real handlers, loops, routes and store on a real database whose clock the test
sets, and a scripted provider."""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any, Final, TypeVar

import httpx2
import msgspec
from fastapi import FastAPI

from slipway_api.events.lease import LeaseGranted, LeaseRequested
from slipway_api.events.pool import DemandReported
from slipway_api.events.topics import DECODERS, TOPIC_OF
from slipway_api.events.weight import StageHealth, WeightChanged
from slipway_api.http.declaration import Change
from slipway_common.base.ids import hash_secret, new_id
from slipway_common.database.postgres import Connection, Database
from slipway_common.declaration.identity import canonical_body
from slipway_common.declaration.models import LaunchConfig
from slipway_common.messaging.records import Received
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_provisioner.apply.declaration import apply
from slipway_provisioner.apply.reading import Declared, DeclaredReader
from slipway_provisioner.domain.deadlines import NO_DEFAULTS, DefaultDeadlines
from slipway_provisioner.domain.declaration import Applied, Request, Times
from slipway_provisioner.domain.limits import Tariff
from slipway_provisioner.domain.pool import Observed
from slipway_provisioner.domain.registration import RegistrationKeys
from slipway_provisioner.domain.workers import Worker
from slipway_provisioner.handlers.demand import record_demand
from slipway_provisioner.handlers.leases import record_leases
from slipway_provisioner.handlers.signals import record_requests
from slipway_provisioner.handlers.weights import WeightView
from slipway_provisioner.loops import consoles, expire, plan, reap, resolve, roll_out, sweep, terminate, unleased
from slipway_provisioner.loops.launch import Launcher
from slipway_provisioner.main import build
from slipway_provisioner.providers.port import Provider
from slipway_provisioner.settings import Settings
from slipway_provisioner.store import declarations, pools, usage, workers
from slipway_provisioner.store.retention import RETENTION
from tests.support import harness, readers
from tests.support.cloud import START, Cloud
from tests.support.databases import connected, empty_database
from tests.support.harness import PATIENCE_SECONDS
from tests.support.retention import prune_all
from tests.support.typed_answers import checking

SERVICE: Final = "provisioner"
KEY: Final = "cmVnaXN0cmF0aW9uIGtleSBvZiB0aGUgdGVzdHMuLi4="
PASSED: Final = """
INSERT INTO deadline_pass (at) VALUES (slipway_clock()) ON CONFLICT (id) DO UPDATE SET at = slipway_clock()"""
TIMES: Final = Times(call_timeout_seconds=5, accepted_timeout_seconds=1200, clock_skew_seconds=5)

Event = TypeVar("Event")


def after(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def declared(*configs: str, **changes: Any) -> dict[str, Any]:
    """Declaration of one pool "linux" with a config per zone, named like it, in the account "sim-a"."""
    account = {
        "id": "sim-a",
        "provider": "simulated",
        "region": "sim-1",
        "credential": "none",
        "identity": "sim-a",
        "lease_pool": "sim-a",
        "settings": {"url": "http://cloud"} | changes.pop("settings", {}),
    }
    launch_configs = [
        {"name": name, "account": "sim-a", "zone": name, "instance_type": "m5.large", "image": "linux-1"}
        for name in configs or ("zone-a",)
    ]
    pool = {"id": "linux", "max_capacity": 100, "launch_configs": launch_configs} | changes
    return {"version": 1, "lease_pools": [{"id": "sim-a", "limit": 24}], "accounts": [account], "worker_pools": [pool]}


def revision_id(config: str = "zone-a", *, region: str = "sim-1", **changes: Any) -> str:
    """Id of the revision of a launch config that `declared` declares, or of one with other fields."""
    usual = {"name": config, "account": "sim-a", "zone": config, "instance_type": "m5.large", "image": "linux-1"}
    body = canonical_body(LaunchConfig.model_validate(usual | changes), region)
    return f"{config}@{hashlib.sha256(body).hexdigest()[:6]}"


async def read_body(
    db: Connection, body: dict[str, Any], *, skips: bool = True, providers: Mapping[str, Provider] | None = None
) -> Declared:
    """Read a declaration as JSON; all that it declares belongs to its owner, or to "test"."""
    index = await declarations.index(db)
    reader = DeclaredReader(index, providers=providers or PROVIDERS, times=TIMES, skips=skips)
    sections = [name for name in ("lease_pools", "accounts", "worker_pools") if name in body]
    reader.document(body.get("metadata", {}).get("owner", "test"), sections)
    for section in sections:
        for entry in body[section]:
            reader.entry(section, msgspec.json.encode(entry, order="sorted"))
    return reader.finished()


async def apply_body(
    db: Connection,
    body: dict[str, Any],
    *,
    providers: Mapping[str, Provider] | None = None,
    tariff: Tariff = Tariff(),
    deadlines: DefaultDeadlines = NO_DEFAULTS,
    **request: Any,
) -> Applied:
    """Apply a declaration, with its dangers confirmed unless `confirm` is given."""
    providers = providers or PROVIDERS
    usual: dict[str, Any] = {"by": "test", "terminate": request.get("strategy") == "now"} | request
    wanted = await read_body(db, body, skips=not Request(**usual).ends_others, providers=providers)
    if "confirm" not in request:
        usual["confirm"] = (await apply(db, wanted, Request(**(usual | {"dry_run": True})), providers)).digest
    return await apply(db, wanted, Request(**usual), providers, tariff, deadlines)


def received(*events: Any, source: str = "test") -> list[Received]:
    return [
        Received(
            event=event,
            type=event.type,
            id=new_id(),
            source=source,
            subject=TOPIC_OF[type(event)].subject(event),
            time=START,
            sequence_number=n,
            revision=n + 1,
            topic=TOPIC_OF[type(event)].name,
            partition=0,
            offset=n,
        )
        for n, event in enumerate(events)
    ]


def report(
    pending: int, claimed: int | None = 0, *, at: float = 0, source: str = "q", **changes: Any
) -> DemandReported:
    usual: dict[str, Any] = {"pool_id": "linux", "source": source, "pending": pending, "claimed": claimed}
    return DemandReported(**(usual | {"observed_at": after(at)} | changes))


PROVIDERS: Final[dict[str, Provider]] = {"simulated": Cloud()}


class Provisioner:
    """Feeds events to a provisioner, runs its loops, and reads the events that it publishes."""

    def __init__(self, database: Database, provider: Provider | None = None, **settings: Any) -> None:
        self.database = database
        usual: dict[str, Any] = {
            "registration_keys": KEY,
            "call_timeout_seconds": 5.0,
            "send_within_seconds": PATIENCE_SECONDS,
            "tokens_file": readers.TOKENS_FILE,
        }
        self.settings = Settings(database_url="", kafka="", **(usual | settings))
        self.cloud = Cloud()
        self.providers: dict[str, Provider] = {"simulated": provider or self.cloud}
        self.launcher = Launcher(self.settings, self.providers)
        self.unavailable_seconds = 0.0
        self.broker_unavailable_seconds = 0.0
        self.broker_over_http = False
        self.tokens = count(1)
        self._last_outbox_id = 0
        self._started: list[asyncio.Task[Any]] = []

    # Input

    async def declare(self, body: dict[str, Any] | None = None, **request: Any) -> list[Change]:
        """Apply a declaration, with its dangers confirmed; returns its changes."""
        async with self.database.acquire() as db:
            return (await apply_body(db, body or declared(), providers=self.providers, **request)).changes

    async def demand(self, *reports: DemandReported) -> None:
        async with self.database.acquire() as db, db.transaction():
            await record_demand(db, received(*reports))

    async def leases(self, *events: Any) -> None:
        async with self.database.acquire() as db, db.transaction():
            await record_leases(db, received(*events))

    async def signals(self, *events: Any) -> None:
        async with self.database.acquire() as db, db.transaction():
            afterwards = await record_requests(db, received(*events), rules=self.settings.signal_rules())
        if afterwards is not None:
            afterwards()

    async def weights(self, *records: WeightChanged, revision: int = 1) -> None:
        updates = [msgspec.structs.replace(r, revision=revision) for r in received(*records)]
        await WeightView().apply(self.database, updates)

    # Loops

    async def plan_step(self) -> bool:
        """Plan one pool, however long its locks take."""
        return bool(await self.plan_together(1))

    async def plan_together(self, most: int) -> int:
        """Plan some pools in one transaction, however long its locks take and whether or not their calls have begun;
        returns how many the next one may take."""
        return await plan.plan_next(
            self.database,
            settings=self.settings,
            calculator_unavailable_seconds=lambda: self.unavailable_seconds,
            lock_seconds=PATIENCE_SECONDS,
            launching_seconds=0.0,
            most=most,
        )

    async def plan(self) -> None:
        for _ in range(50):
            if not await self.plan_step():
                return
        raise AssertionError("a pool stays dirty")

    async def observed(self, pool_id: str = "linux") -> Observed:
        """Input of a decision on a pool."""
        async with self.database.acquire() as db, db.transaction():
            return await self.observe(db, pool_id)

    async def observe(self, tx: Connection, pool_id: str = "linux") -> Observed:
        """Input of a decision on a pool, as a transaction reads it."""
        ((read, _),) = await pools.observe(
            tx,
            dirty=[pools.Dirty(pool_id, frozenset())],
            deadlines=self.settings.deadlines(),
            unavailable_seconds=self.unavailable_seconds,
            weight_half_life_seconds=self.settings.weight_half_life_seconds,
            attempt_seconds=self.settings.unavailable_attempt_seconds,
            tariff=self.settings.tariff(),
        )
        return read

    async def resend_requests(self) -> None:
        while await plan.resend_requests(self.database, resend_seconds=self.settings.resend_seconds):
            pass

    async def admit_unleased(self) -> bool:
        """Run one step of the loop for unleased launches."""
        return await unleased.admit_unleased(
            self.database,
            settings=self.settings,
            broker_unavailable_seconds=lambda: self.broker_unavailable_seconds,
            answers=self.broker_answers,
        )

    async def broker_answers(self, url: str) -> bool:
        """True if the broker answers over HTTP."""
        return self.broker_over_http

    async def launch(self) -> None:
        """Start all calls that may start, and wait for them."""
        more = True
        while more:
            more = await self.launcher.launch_next(self.database)
            await asyncio.gather(*self.launcher.calls)

    async def resolve(self) -> None:
        while await resolve.resolve_next(self.database, launcher=self.launcher):
            pass

    async def poll(self) -> None:
        while await resolve.poll_next(self.database, launcher=self.launcher):
            pass

    async def expire(self) -> None:
        while await expire.expire_next(self.database, settings=self.settings, providers=self.providers):
            pass

    async def terminate_instances(self) -> None:
        await terminate.terminate_instances(self.database, settings=self.settings, providers=self.providers)

    async def consoles(self) -> None:
        while await consoles.fetch_next(self.database, settings=self.settings, providers=self.providers):
            pass

    async def roll_out(self) -> None:
        """Run the roll-out loop until no step is due."""
        for _ in range(50):
            if not await roll_out.roll_out_next(self.database):
                return
        raise AssertionError("a roll-out has a step due for ever")

    async def reap(self) -> None:
        while await reap.reap_next(self.database, settings=self.settings, providers=self.providers):
            pass

    async def sweep(self) -> None:
        while await sweep.sweep_next(
            self.database,
            settings=self.settings,
            calculator_unavailable_seconds=lambda: self.unavailable_seconds,
            providers=self.providers,
        ):
            pass

    async def prune(self) -> None:
        await prune_all(self.database, RETENTION)

    async def sweep_now(self) -> None:
        """Mark every pool dirty, as a sweep does."""
        await self.database.execute("INSERT INTO dirty_pool (pool_id, reason) SELECT id, 'sweep' FROM worker_pool")

    # Common starting points of tests

    def granted(self, request: LeaseRequested, units: int | None = None, **changes: Any) -> LeaseGranted:
        """Grant of a published request."""
        token = next(self.tokens)
        usual: dict[str, Any] = {
            "lease_pool_id": request.lease_pool_id,
            "lease_id": f"lease-{token}",
            "request_id": request.request_id,
            "units": units or request.units,
            "fencing_token": token,
            "expires_at": after(180),
            "hold_until": after(1200),
            "waited_seconds": 0.0,
        }
        return LeaseGranted(**(usual | changes))

    async def trust(self) -> None:
        """Give every declared config a healthy weight record and wide windows."""
        rows = await self.database.fetch("SELECT id, pool_id FROM launch_config")
        await self.weights(*(weight(row["id"], pool_id=row["pool_id"]) for row in rows), revision=0)
        await self.database.execute("UPDATE shared_window SET size = 1000")

    async def requested(self, pending: int = 1, *configs: str) -> list[LeaseRequested]:
        """Create intents for a demand; returns their lease requests."""
        await self.declare(declared(*configs))
        await self.trust()
        await self.demand(report(pending))
        await self.plan()
        return await self.published(LeaseRequested)

    async def admitted(self, pending: int = 1, *configs: str) -> list[LeaseGranted]:
        """Create admitted intents without a call; returns their grants."""
        grants = [self.granted(request) for request in await self.requested(pending, *configs)]
        await self.leases(*grants)
        return grants

    async def starting(self, pending: int = 1) -> list[Worker]:
        """Create workers whose instances boot."""
        await self.admitted(pending)
        await self.launch()
        return await self.workers()

    # Results

    async def published(self, kind: type[Event]) -> list[Event]:
        """Events of a kind that were enqueued since the last call for any kind."""
        return [event for event in await self.events() if isinstance(event, kind)]

    async def events(self) -> list[Any]:
        rows = await self.database.fetch(
            "SELECT id, type, value FROM outbox WHERE id > $1 AND value IS NOT NULL ORDER BY id", self._last_outbox_id
        )
        self._last_outbox_id = rows[-1]["id"] if rows else self._last_outbox_id
        return [DECODERS[row["type"]].decode(row["value"]) for row in rows]

    async def workers(self) -> list[Worker]:
        return [workers.from_row(row) for row in await self.database.fetch(f"{workers.SELECT} ORDER BY id")]

    async def worker(self) -> Worker:
        (worker,) = await self.workers()
        return worker

    async def states(self) -> dict[str, int]:
        rows = await self.database.fetch("SELECT state, count(*)::int AS number FROM worker GROUP BY state")
        return {row["state"]: row["number"] for row in rows}

    async def last_reason(self, pool_id: str = "linux") -> str:
        reason: str = await self.database.fetchval(
            "SELECT reason FROM decision WHERE pool_id = $1 ORDER BY last_at DESC, id DESC LIMIT 1", pool_id
        )
        return reason

    async def set_clock(self, seconds: float) -> None:
        """Set the database's clock; passes over the deadlines went on meanwhile."""
        await self.jump_clock(seconds)
        await self.database.execute(PASSED)

    async def jump_clock(self, seconds: float) -> None:
        """Set the database's clock as after an outage, without a pass meanwhile, or as after a jump."""
        await self.database.execute("UPDATE test_clock SET at = $1", after(seconds))

    async def follow_the_host(self, *, ahead_seconds: float = 0) -> None:
        """Set the database's clock to the host's time, for providers that use it."""
        await self.database.execute("UPDATE test_clock SET at = clock_timestamp() + $1 * interval '1 s'", ahead_seconds)
        await self.database.execute(PASSED)

    # Concurrent steps

    def start(self, step: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a step concurrently with the test; it is cancelled when the test ends."""
        self._started.append(asyncio.create_task(step))
        return self._started[-1]

    async def until_waiting(self, *tasks: asyncio.Task[Any]) -> None:
        """Wait until each of these tasks waits for a lock."""
        await harness.until_waiting(self.database, *tasks)

    async def stop(self) -> None:
        for task in (*self._started, *self.launcher.calls):
            task.cancel()
        await asyncio.gather(*self._started, *self.launcher.calls, return_exceptions=True)

    # HTTP

    @cached_property
    def app(self) -> FastAPI:
        """The service's routes, made for the tests that use them."""
        service = build(self.settings)
        service.runtime.database = self.database
        app = service.app()
        app.state.providers.update(self.providers)
        return app

    @cached_property
    def _check(self) -> Callable[[httpx2.Response], Awaitable[None]]:
        return checking(self.app)

    def client(self, *, token: str = readers.TOKEN) -> httpx2.AsyncClient:
        """Client of the real routes on this database, with this token; an empty one is not sent."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        transport = httpx2.ASGITransport(app=self.app, raise_app_exceptions=False)
        hooks = {"response": [self._check]}
        return httpx2.AsyncClient(
            transport=transport, base_url="http://provisioner", headers=headers, event_hooks=hooks
        )

    async def end_claims(self, worker_id: str, number: int) -> None:
        """Store claims that have ended, one a millisecond from the start on."""
        await self.database.execute(
            """INSERT INTO claim (worker_id, source, task_id, claimed_at, pool_id, reported_at, started_at, ended_at)
            SELECT $1::uuid, 'q', n, n, 'linux', t.at, t.at, t.at FROM generate_series(1, $3::int) AS n
            CROSS JOIN LATERAL (SELECT $2::timestamptz + n * interval '1 ms' AS at) AS t""",
            worker_id,
            START,
            number,
        )

    async def register(self, instance_id: str, batch_id: str | None, **changes: Any) -> httpx2.Response:
        """Register an instance of a batch."""
        assert batch_id is not None
        body = {
            "batch_id": batch_id,
            "secret": RegistrationKeys(KEY).secret(batch_id),
            "instance_id": instance_id,
        } | changes
        async with self.client() as client:
            return await client.post("/workers/register", json=body)


def weight(config: str = "zone-a", **changes: Any) -> WeightChanged:
    """Weight record of a healthy revision, given by its id or by the name of a launch config of `declared`."""
    config_id = config if "@" in config else revision_id(config)
    stage = StageHealth(probability=0.95, successes=0, failures=0, window=64, failures_folded=0)
    usual: dict[str, Any] = {
        "launch_config_id": config_id,
        "name": config_id.partition("@")[0],
        "pool_id": "linux",
        "config_revision": 1,
        "weight": 1.0,
        "health": 0.9,
        "stages": dict.fromkeys(("launch", "boot", "claim"), stage),
        "state": "healthy",
        "reason": f"{config_id} healthy",
    }
    return WeightChanged(**(usual | changes))


@contextlib.asynccontextmanager
async def stopped_at(provisioner: Provisioner, table: str, step: Awaitable[Any]) -> AsyncIterator[asyncio.Task[Any]]:
    """Run `step` up to its first write to `table`, holding its locks, and let it continue afterwards."""
    async with provisioner.database.acquire() as blocker, blocker.transaction():
        await blocker.execute(f"LOCK TABLE {table} IN SHARE MODE")
        task = provisioner.start(awaited(step))
        await provisioner.until_waiting(task)
        yield task


@contextlib.asynccontextmanager
async def uncommitted(provisioner: Provisioner, *events: DemandReported) -> AsyncIterator[None]:
    """Record reports of demand, and hold the locks of the transaction until the end of the block."""
    async with provisioner.database.acquire() as db, db.transaction():
        await record_demand(db, received(*events))
        yield


async def awaited(step: Awaitable[Any]) -> Any:
    return await step


async def in_transaction(provisioner: Provisioner, act: Callable[[Connection], Awaitable[Any]]) -> Any:
    async with provisioner.database.acquire() as db, db.transaction():
        return await act(db)


@contextlib.asynccontextmanager
async def administrator(
    provisioner: Provisioner, folder: Path, scopes: Sequence[str] = ("admin",)
) -> AsyncIterator[httpx2.AsyncClient]:
    """Client with a token of these scopes, named "admin". The token of readers stays known."""
    path = folder / "tokens.yaml"
    entry = {"name": "admin", "sha256": hash_secret("secret"), "scopes": scopes}
    path.write_text(f"{readers.TOKENS_FILE.read_text()}- {msgspec.json.encode(entry).decode()}\n")
    provisioner.app.state.tokens.path = path
    async with provisioner.client(token="secret") as client:
        yield client


@contextlib.asynccontextmanager
async def provisioner_on(
    server: EmbeddedPostgres, provider: Provider | None = None, **settings: Any
) -> AsyncIterator[Provisioner]:
    """Provisioner on an empty database of its own."""
    async with empty_database(server, SERVICE) as url, connected(url, SERVICE, size=10) as database:
        provisioner = Provisioner(database, provider, **settings)
        try:
            yield provisioner
            await provisioner.stop()
            assert await usage.drift(provisioner.database) == 0, "counters differ from the rows that they count"
        finally:
            await provisioner.stop()
