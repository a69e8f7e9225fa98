"""A whole deployment in one process: real handlers, loops, relays and stores of three services on one database, joined
by a log in memory, each step chosen by chance. A crash drops what a process remembers; the rows remain."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from random import Random
from typing import Any, Final

import asyncpg.transaction
import httpx2
import msgspec
import pytest
from aiokafka.errors import KafkaError

from slipway_common import consume, ids, migrate, outbox, postgres
from slipway_common.consume import Consumer, Owned
from slipway_common.declaration import parse
from slipway_common.envelope import Envelope, decode, encode
from slipway_common.events.pool import DemandReported
from slipway_common.owner import Owner
from slipway_common.postgres import Pool
from slipway_common.records import Received, Record
from slipway_common.relay import Relay, partition_for
from slipway_common.topic_admin import partition_counts
from slipway_common.topics import (
    DECODERS,
    LAUNCH_CONFIG_SIGNAL,
    LAUNCH_CONFIG_WEIGHT,
    LEASE_LIFECYCLE,
    LEASE_REQUEST,
    POOL_DEMAND,
    TOPICS,
    Topic,
)
from slipway_lease_broker.domain import declaration as lease_declaration
from slipway_lease_broker.domain.declaration import Declared
from slipway_lease_broker.domain.terms import Policy
from slipway_lease_broker.handlers.requests import record_requests as record_lease_requests
from slipway_lease_broker.loops.decide import DecideLoop
from slipway_lease_broker.store import pools as lease_pools
from slipway_local.postgres import EmbeddedPostgres
from slipway_provisioner.handlers.demand import record_demand
from slipway_provisioner.handlers.leases import record_leases
from slipway_provisioner.handlers.signals import record_requests
from slipway_provisioner.handlers.weights import WeightView
from slipway_provisioner.loops import expire, plan, reap, resolve, sweep
from slipway_provisioner.loops.launch import Launcher
from slipway_provisioner.main import build
from slipway_provisioner.settings import Settings
from slipway_provisioner.store import brakes, configs, declarations
from slipway_simulator.scenario import Scenario
from slipway_weight_calculator.work import Calculation
from tests.simulation.cloud import Cloud, Machine
from tests.simulation.log import PARTITIONS, Log

SERVICES: Final = ("provisioner", "weight-calculator", "lease-broker")
START: Final = datetime(2026, 1, 1, tzinfo=UTC)
# One clock in the simulation's hand; each service's database answers with its own skew.
CLOCK: Final = """
CREATE TABLE IF NOT EXISTS public.simulated_clock AS SELECT '2026-01-01 00:00+00'::timestamptz AS at;
GRANT SELECT, UPDATE ON public.simulated_clock TO PUBLIC"""
SKEWED: Final = """
CREATE OR REPLACE FUNCTION slipway_clock() RETURNS timestamptz LANGUAGE sql VOLATILE
AS 'SELECT at + {skew} * interval ''1 s'' FROM public.simulated_clock'"""
TASK_SECONDS: Final = 60.0
REPORT_SECONDS: Final = 10.0
_databases = count(1)


class Crash(BaseException):
    """The process died here. Nothing may catch it."""


class Deployment:
    """`crashing`: the share of steps in which the process dies before or after its next commit."""

    def __init__(self, chance: Random, scenario: Scenario, pools: dict[str, Pool], url: str, **pool: Any) -> None:
        self.chance = chance
        self.elapsed = 0.0
        self.cloud = Cloud(scenario, lambda: (START + timedelta(seconds=self.elapsed)).timestamp(), chance)
        self.log = Log(chance)
        self.pools = pools
        self.settings = Settings(
            database_url="", kafka="", registration_key="key", deployment="d", send_within_seconds=1e9
        )
        self.body = declared(**pool)
        self.crashing = 0.0
        self.crash_in = 0
        self.deaths: Counter[str] = Counter()
        self.braked = False
        self.tasks_at: list[float] = []
        self.reported_at = -REPORT_SECONDS
        self.relays = {
            name: Relay(
                name, database_url=url, kafka="", topic_prefix="", partitions=partition_counts(TOPICS, PARTITIONS)
            )
            for name in SERVICES
        }
        self.consumers = {
            name: [Consumer(name, topic, handle) for topic, handle in handlers.items()]
            for name, handlers in self.handlers().items()
        }
        self.owned: dict[tuple[str, str, int], Owned] = {}
        self.targets: dict[tuple[str, str, int], int] = {}
        for name in SERVICES:
            self.boot(name)
        service = build(self.settings)
        service.runtime.pool = pools["provisioner"]
        self.http = httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app=service.app(), raise_app_exceptions=False), base_url="http://p"
        )

    def handlers(self) -> dict[str, dict[Topic, consume.Handler]]:
        return {
            "provisioner": {
                POOL_DEMAND: record_demand,
                LEASE_LIFECYCLE: record_leases,
                LAUNCH_CONFIG_SIGNAL: record_requests,
            },
            "weight-calculator": {},  # it reads whole topics
            "lease-broker": {LEASE_REQUEST: record_lease_requests},
        }

    def boot(self, service: str) -> None:
        """A new process of a service: knows nothing but its rows."""
        self.owned = {key: owned for key, owned in self.owned.items() if key[0] != service}
        if service == "provisioner":
            self.launcher = Launcher(self.settings, {"simulated": self.cloud})
            self.viewed = dict.fromkeys(range(PARTITIONS), 0)
        elif service == "weight-calculator":
            self.calculator = Owner(Calculation(), service, "0")
            self.read: dict[consume.Place, Owned] = {}
        else:
            self.decide = DecideLoop(caught_up=self.caught_up, lost_linger_seconds=70, waiter_ttl_seconds=120)

    # Steps

    def steps(self) -> list[tuple[str, str, Callable[[], Awaitable[Any]]]]:
        """Everything that may happen next, as (service, name, step)."""
        provisioner, _, broker = (self.pools[name] for name in SERVICES)
        settings, providers = self.settings, {"simulated": self.cloud}
        steps: list[tuple[str, str, Callable[[], Awaitable[Any]]]] = [
            (
                "provisioner",
                "plan",
                lambda: plan.plan_next(provisioner, settings=settings, calculator_silent_seconds=lambda: 0.0),
            ),
            ("provisioner", "ask-again", lambda: plan.ask_again(provisioner, resend_seconds=settings.resend_seconds)),
            ("provisioner", "launch", self.launch),
            ("provisioner", "resolve", self.resolve),
            ("provisioner", "expire", lambda: expire.expire_next(provisioner, settings=settings, providers=providers)),
            ("provisioner", "end", lambda: expire.end_instances(provisioner, settings=settings, providers=providers)),
            ("provisioner", "reap", lambda: reap.reap_next(provisioner, settings=settings, providers=providers)),
            (
                "provisioner",
                "sweep",
                lambda: sweep.sweep_next(provisioner, settings=settings, calculator_silent_seconds=lambda: 0.0),
            ),
            ("provisioner", "view", self.view),
            ("weight-calculator", "turn", self.calculate),
            ("lease-broker", "decide", lambda: self.decide.step(broker)),
            ("", "report", self.report),
            ("", "machines", self.machines),
            ("", "answer", self.cloud.answer),
        ]
        for name in SERVICES:
            steps.append((name, "relay", partial(self.relay, name)))
            for consumer in self.consumers[name]:
                for partition in range(PARTITIONS):
                    at = self.owned.get((name, consumer.topic.name, partition), Owned(0, 0)).next_offset
                    if at < self.log.end(consumer.topic.name, partition):
                        steps.append((name, consumer.topic.name, partial(self.consume, consumer, partition)))
        return steps

    async def step(self) -> str:
        """One of them; returns its name, and whether its process died."""
        service, name, act = self.chance.choice(self.steps())
        if service and self.chance.random() < self.crashing:
            self.crash_in = self.chance.choice((1, 1, 1, 2, 3))
        try:
            await act()
        except Crash:
            await self.kill(service)
            name += " †"
        finally:
            self.crash_in = 0
        return f"{service} {name}"

    async def everything(self) -> None:
        """A round of all steps, in an order by chance."""
        steps = self.steps()
        self.chance.shuffle(steps)
        for _, _, act in steps:
            await act()

    async def kill(self, service: str) -> None:
        self.deaths[service] += 1
        if service == "provisioner":
            calls = list(self.launcher.calls)
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            self.cloud.forget_caller()
        self.boot(service)

    async def pass_time(self, seconds: float) -> None:
        self.elapsed += seconds
        now = START + timedelta(seconds=self.elapsed)
        await self.pools["provisioner"].execute("UPDATE public.simulated_clock SET at = $1", now)
        while self.tasks_at and self.tasks_at[0] <= self.elapsed:
            self.cloud.pending.append(f"task-{self.tasks_at.pop(0):.3f}")

    async def launch(self) -> None:
        await self.launcher.launch_next(self.pools["provisioner"])
        await asyncio.sleep(0)  # the calls begin

    async def resolve(self) -> None:
        """In a task that the cloud knows: its calls are answered at once, since nobody else goes on meanwhile."""

        def named(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> "asyncio.Task[Any]":
            return asyncio.Task(coroutine, loop=loop, **(options | {"name": "resolve"}))

        loop = asyncio.get_running_loop()
        loop.set_task_factory(named)
        try:
            await resolve.resolve_next(self.pools["provisioner"], launcher=self.launcher)
        finally:
            loop.set_task_factory(None)

    # The log

    async def relay(self, service: str) -> None:
        async with self.pools[service].acquire() as db:
            with contextlib.suppress(KafkaError):
                await self.relays[service].publish(db, self.log, f"/slipway/{service}/1")

    async def consume(self, consumer: Consumer, partition: int) -> None:
        """Some records of a partition, sometimes with some that it has seen."""
        key = (consumer.service, consumer.topic.name, partition)
        async with self.pools[consumer.service].acquire() as db:
            if key not in self.owned:
                self.owned[key], _ = await consume.claim(db, consumer.topic.name, partition, "cluster")
                self.targets[key] = self.log.end(consumer.topic.name, partition)
            owned = self.owned[key]
            back = min(owned.next_offset, self.chance.choice((0, 0, 0, 2)))
            limit = back + self.chance.randint(1, 30)
            records = self.log.read(consumer.topic.name, partition, owned.next_offset - back, limit)
            if len(records) > back:
                self.owned[key] = await consume.apply(db, consumer, owned, records)

    async def calculate(self) -> None:
        """A turn of the calculator: some records of some partitions, sometimes with some that it has seen, or none."""
        pool, owner = self.pools["weight-calculator"], self.calculator
        if not owner.epoch:
            await owner.bid(pool)
            places = [(topic.name, partition) for topic in owner.work.topics for partition in range(PARTITIONS)]
            positions = await owner.take_over(pool, places, "cluster")
            self.read = {place: owned for place, (owned, _) in positions.items()}
        portions = []
        for topic in owner.work.topics:
            for partition in range(PARTITIONS):
                owned = self.read[topic.name, partition]
                back = min(owned.next_offset, self.chance.choice((0, 0, 0, 2)))
                limit = back + self.chance.choice((0, 0, 1, 30))
                records = self.log.read(topic.name, partition, owned.next_offset - back, limit)
                if len(records) > back:
                    portions.append(consume.Portion(topic, partition, owned, records))
        await owner.turn(pool, portions)
        self.read |= {(p.topic.name, p.partition): Owned(p.owned.epoch, p.end) for p in portions}

    def unread(self) -> bool:
        """Whether anything of the log is not applied by somebody who consumes it."""
        found = [((topic, partition), owned) for (_, topic, partition), owned in self.owned.items()]
        found += self.read.items()
        return any(owned.next_offset < self.log.end(topic, partition) for (topic, partition), owned in found)

    async def view(self) -> None:
        """Weights, read from the beginning after each start."""
        for partition, offset in self.viewed.items():
            records = self.log.read(LAUNCH_CONFIG_WEIGHT.name, partition, offset, 50)
            if records:
                await WeightView().apply(self.pools["provisioner"], [as_received(record) for record in records])
                self.viewed[partition] = offset + len(records)

    def caught_up(self, lease_pool_id: str) -> bool:
        key = ("lease-broker", LEASE_REQUEST.name, partition_for(lease_pool_id, PARTITIONS))
        owned = self.owned.get(key)
        return owned is not None and owned.next_offset >= self.targets[key]

    # The world outside

    async def report(self) -> None:
        """The queue tells what it has, each 10 s, sometimes twice; nobody says when it is heard."""
        if self.elapsed - self.reported_at < REPORT_SECONDS:
            return
        self.reported_at = self.elapsed
        at = START + timedelta(seconds=self.elapsed)
        event = DemandReported(
            pool_id="linux", source="q", pending=len(self.cloud.pending), claimed=self.cloud.claimed, observed_at=at
        )
        envelope = Envelope(id=ids.new_id(), type=event.type, source="/queue", subject="linux/q", time=at)
        row = {
            "key": b"linux/q",
            "value": msgspec.json.encode(event),
            "headers": encode(envelope),
            "timestamp": int(at.timestamp() * 1000),
        }
        for _ in range(self.chance.choice((1, 1, 2))):
            self.log.append(POOL_DEMAND.name, self.chance.randrange(PARTITIONS), row)

    async def machines(self) -> None:
        now = self.cloud.now()
        for machine in list(self.cloud.machines.values()):
            await self.live(machine, now)

    async def live(self, machine: Machine, now: float) -> None:
        """The one thing that a machine does next."""
        if machine.refused or machine.boots_at is None or machine.boots_at > now:
            return
        if not machine.worker_id:
            said = {"instance_id": machine.instance_id} | machine.user_data
            answer = await self.http.post("/workers/register", json=said)
            if answer.status_code == 200:
                machine.worker_id, machine.token = answer.json()["worker_id"], answer.json()["token"]
                machine.asked_at = now
            else:
                machine.refused = answer.status_code < 500
        elif machine.task and not machine.claim_heard:
            machine.claim_heard = await self.say(machine, "claimed", task_id=machine.task, source="q") == 200
        elif machine.task and machine.ends_at <= now:
            if await self.say(machine, "stopped") == 200:
                self.cloud.done.append(machine.task)
                machine.task = ""
                self.cloud.end(machine.instance_id, "self")
        elif machine.told:
            if await self.say(machine, "stopped") == 200:
                self.cloud.end(machine.instance_id, "self")
        elif not machine.task and self.cloud.pending:
            machine.task, machine.ends_at = self.cloud.pending.popleft(), now + TASK_SECONDS
        elif not machine.task and machine.asked_at + 30 <= now:
            machine.asked_at = now
            headers = {"Authorization": f"Bearer {machine.token}"}
            answer = await self.http.get(f"/workers/{machine.worker_id}/should-terminate", headers=headers)
            machine.told = answer.status_code == 200 and answer.json()["terminate"]

    async def say(self, machine: Machine, what: str, **body: Any) -> int:
        at = datetime.fromtimestamp(self.cloud.now(), UTC).isoformat()
        answer = await self.http.post(
            f"/workers/{machine.worker_id}/{what}",
            json={"at": at} | body,
            headers={"Authorization": f"Bearer {machine.token}"},
        )
        if 400 <= answer.status_code < 500:
            machine.refused = True  # given up: whatever it does now, somebody will end it
        status: int = answer.status_code
        return status

    # Commands

    async def command(self) -> None:
        """Somebody pulls or releases the brake, pauses or resumes a config."""
        async with self.pools["provisioner"].acquire() as db, db.transaction():
            if self.braked or self.chance.random() < 0.5:
                if self.braked:
                    await brakes.release(db, "all", "")
                else:
                    await brakes.pull(db, "all", "", reason="drill", by="op", until=None)
                self.braked = not self.braked
            elif self.chance.random() < 0.5:
                await configs.pause(db, "zone-b", reason="drill", by="op", until=None, command=True)
            else:
                await configs.resume(db, "zone-b", reason="over", by="op")

    async def calm_down(self) -> None:
        """No more faults and commands."""
        self.crashing = self.log.lost_acknowledgements = 0.0
        self.cloud.world.faults = ()
        async with self.pools["provisioner"].acquire() as db, db.transaction():
            await brakes.release(db, "all", "")
            await configs.resume(db, "zone-b", reason="over", by="op")
        self.braked = False

    async def declare(self, limit: int) -> None:
        async with self.pools["lease-broker"].acquire() as db, db.transaction():
            wanted = [
                Declared(
                    id="sim-a",
                    limit_units=limit,
                    hold_seconds=1200,
                    ttl_seconds=300,
                    reserve_seconds=180,
                    policy=Policy(pacing="off"),
                )
            ]
            changes = lease_declaration.compare(await lease_pools.lock_declared(db), wanted)
            changed = [made for made in changes if made.change != "unchanged"]
            await lease_pools.declare(db, [made.after for made in changed])
            await outbox.enqueue(db, lease_declaration.limit_events(changed, "test"))
        async with self.pools["provisioner"].acquire() as db, db.transaction():
            times = declarations.Times(
                call_timeout_seconds=self.settings.call_timeout_seconds,
                clock_skew_seconds=self.settings.clock_skew_seconds,
            )
            await declarations.apply(db, parse(self.body), providers={"simulated": self.cloud.problem}, times=times)


def declared(*, max_capacity: int, honours_tokens: bool) -> dict[str, Any]:
    launch_configs = [
        {"id": zone, "account": "sim-a", "zone": zone, "instance_type": "m5.large", "image": "linux-1"}
        for zone in ("zone-a", "zone-b", "zone-c")
    ]
    account = {
        "id": "sim-a",
        "provider": "simulated",
        "region": "r",
        "credential": "none",
        "identity": "sim-a",
        "lease_pool": "sim-a",
        "settings": {"honours_tokens": honours_tokens},
    }
    pool = {"id": "linux", "max_capacity": max_capacity, "launch_configs": launch_configs}
    return {"version": 1, "lease_pools": [{"id": "sim-a", "limit": 8}], "accounts": [account], "worker_pools": [pool]}


def as_received(record: Record) -> Received:
    envelope = decode(record.headers, received_at=START)
    event = None if record.value is None else DECODERS[envelope.type].decode(record.value)
    return Received(
        event=event,
        type=envelope.type,
        id=envelope.id,
        source=envelope.source,
        subject=envelope.subject,
        time=envelope.time,
        number=envelope.number,
        revision=envelope.revision,
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
    )


@contextlib.asynccontextmanager
async def deployment_on(
    server: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch, seed: int, scenario: Scenario, **pool: Any
) -> AsyncIterator[Deployment]:
    """All three services on a new database; ids, secrets and every choice follow the seed."""
    chance = Random(seed)
    name = f"simulation_{next(_databases)}"
    url = await server.create_database(name)
    pools: dict[str, Pool] = {}
    for service in SERVICES:
        await migrate.upgrade(url, service)
    admin = await asyncpg.connect(url)
    await admin.execute(CLOCK)
    await admin.close()
    for service in SERVICES:
        pools[service] = await postgres.connect(url, service, size=3)
        await pools[service].execute(SKEWED.format(skew=round(chance.uniform(-2, 2), 3)))
    deployment = Deployment(chance, scenario, pools, url, **pool)
    ticks = count(1)

    class Time:
        time_ns = staticmethod(lambda: 10**6 * (10**12 + next(ticks)))

    class Secrets:
        randbits = staticmethod(chance.getrandbits)
        token_urlsafe = staticmethod(lambda size: f"{chance.getrandbits(8 * size):x}")

    monkeypatch.setattr(ids, "time", Time)
    monkeypatch.setattr(ids, "secrets", Secrets)
    monkeypatch.setattr(ids, "random_bytes", lambda size: chance.getrandbits(8 * size).to_bytes(size, "big"))
    monkeypatch.setattr(ids, "_last_ms", 0)
    monkeypatch.setattr(plan, "COALESCE_SECONDS", 0.0)
    _crash_at_commits(deployment, monkeypatch)
    try:
        yield deployment
    finally:
        for call in deployment.launcher.calls:
            call.cancel()
        await asyncio.gather(*deployment.launcher.calls, return_exceptions=True)
        for one in pools.values():
            one.terminate()
        await server.drop_database(name)


def _crash_at_commits(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next commit but `crash_in` is the last thing that the process does, or the first that it does not."""
    transaction = asyncpg.transaction.Transaction
    commit, rollback = transaction._Transaction__commit, transaction._Transaction__rollback

    async def dying(self: Any) -> None:
        if self._nested or not deployment.crash_in:
            await commit(self)
            return
        deployment.crash_in -= 1
        if deployment.crash_in:
            await commit(self)
            return
        await (rollback if deployment.chance.random() < 0.5 else commit)(self)
        raise Crash

    monkeypatch.setattr(transaction, "_Transaction__commit", dying)
