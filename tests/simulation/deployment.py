"""A whole deployment in one process: handlers, loops, relays and stores of three services on one database.

The services are connected by an in-memory log, and every step is chosen at random by the seed. A crash drops the memory
of a process; its rows remain.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from itertools import count
from random import Random
from typing import Any, Final

import asyncpg.transaction
import httpx2
import msgspec
import pytest

from slipway_api.events.pool import DemandReported
from slipway_api.events.topics import (
    LAUNCH_CONFIG_SIGNAL,
    LAUNCH_CONFIG_WEIGHT,
    LEASE_LIFECYCLE,
    LEASE_REQUEST,
    POOL_DEMAND,
    TOPICS,
    Topic,
)
from slipway_common.base import ids
from slipway_common.database.postgres import Connection, Database
from slipway_common.messaging import consume, outbox
from slipway_common.messaging.consume import Consumer, Owned
from slipway_common.messaging.envelope import Envelope, encode
from slipway_common.messaging.incarnation import stop_nothing
from slipway_common.messaging.leadership import Leadership
from slipway_common.messaging.producers import Producers
from slipway_common.messaging.records import Received
from slipway_common.messaging.relay import PLACES, Publication, Relay, partition_for
from slipway_common.messaging.topic_admin import partition_counts
from slipway_lease_broker.admission import Admissions
from slipway_lease_broker.domain import declaration as lease_declaration
from slipway_lease_broker.domain import reception
from slipway_lease_broker.domain.declaration import Declaration, Declared
from slipway_lease_broker.domain.reception import Receiving, Reception
from slipway_lease_broker.domain.terms import Policy
from slipway_lease_broker.handlers.requests import LeaseCommandHandler
from slipway_lease_broker.loops.decide import DecideLoop
from slipway_lease_broker.main import restored as hold_leases
from slipway_lease_broker.store import pools as lease_pools
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_provisioner.apply.recovery import stop_until_confirmed
from slipway_provisioner.handlers.demand import record_demand
from slipway_provisioner.handlers.leases import record_leases
from slipway_provisioner.handlers.signals import record_requests
from slipway_provisioner.handlers.weights import WeightView
from slipway_provisioner.loops import contact, expire, launch, plan, reap, resolve, roll_out, sweep, terminate
from slipway_provisioner.loops.launch import Launcher
from slipway_provisioner.store import launch_stops
from slipway_simulator.scenario import Scenario
from slipway_weight_calculator.work import Calculation
from tests.simulation.cloud import Cloud
from tests.simulation.commands import Operator, declared
from tests.simulation.databases import DEPLOYMENT, SERVICES, Api, migrated
from tests.simulation.log import PARTITIONS, Log
from tests.simulation.machines import Machines
from tests.simulation.network import Network
from tests.simulation.outside import START, Untimed, as_received, connect
from tests.support.lease_broker import admissions

RENEWED: Final = dict(zip(SERVICES, (stop_until_confirmed, stop_nothing, hold_leases), strict=True))
SET_CLOCK: Final = "SELECT setval('public.simulated_clock', $1)"
SKEWED: Final = f"""
CREATE OR REPLACE FUNCTION slipway_clock() RETURNS timestamptz LANGUAGE sql VOLATILE AS $clock$
SELECT timestamptz '{START.isoformat()}' + {{skew}} * interval '1 s'
    + pg_sequence_last_value('public.simulated_clock') * interval '1 us' $clock$"""
MICROSECOND: Final = timedelta(microseconds=1)
HOLD_SECONDS: Final = 1200.0  # longest time of a lease, usually
SKEW_SECONDS: Final = 3.0  # largest difference of a database's clock from the machines'
# Counts of a demand report, from the tasks that wait and those that run, by what the queue counts.
COUNTS: Final[Mapping[str, Callable[[int, int], dict[str, Any]]]] = {
    "both": lambda waiting, running: {"pending": waiting, "claimed": running},
    "waiting": lambda waiting, running: {"pending": waiting, "claimed": None},
    "waiting_and_running": lambda waiting, running: {"pending": 0, "claimed": None, "total": waiting + running},
}
REPORT_SECONDS: Final = 10.0
STEPS_SECONDS: Final = 120.0
"""Longest time between two steps of one kind that is no downtime."""
# Steps of a round, in the order in which they follow from each other: a report, a plan, a lease, a launch, a weight.
# A machine registers, takes its task and reports that in one round.
ROUND: Final = (
    "answer",
    *("machines",) * 3,
    "report",
    POOL_DEMAND.name,
    "resolve",
    "poll",
    "expire",
    "end",
    "reap",
    "sweep",
    "roll-out",
    "plan",
    "resend-requests",
    "provisioner relay",
    LEASE_REQUEST.name,
    "decide",
    "lease-broker relay",
    LEASE_LIFECYCLE.name,
    "launch",
    "provisioner relay",
    "turn",
    "weight-calculator relay",
    "view",
    LAUNCH_CONFIG_SIGNAL.name,
)
_databases = count(1)
_apis: list["Api"] = []  # those that no deployment uses now: building one takes as long as fifty requests


class Crash(BaseException):
    """The process died here. No code under test may catch it."""


class Deployment:
    """Three services on the database `name`, and their environment. `crashing`: share of steps in which a process dies
    at a commit."""

    def __init__(
        self,
        chance: Random,
        scenario: Scenario,
        databases: dict[str, Database],
        name: str,
        api: Api,
        **pool: Any,
    ) -> None:
        self.id = DEPLOYMENT
        self.name = name
        self.chance = chance
        self.elapsed = 0.0
        self.cloud = Cloud(scenario, lambda: (START + timedelta(seconds=self.elapsed)).timestamp(), chance)
        self.log = Log(chance, lambda: self.now("lease-broker"))
        self.databases = databases
        self.skews = dict.fromkeys(SERVICES, 0.0)
        self.settings = api.settings
        self.body = declared(**pool)
        self.crashing = 0.0
        self.crash_in = 0
        self.is_calm = False
        self.deaths: Counter[str] = Counter()
        self.launches_stopped = False
        self.tasks_at: list[float] = []
        self.reported_at = -REPORT_SECONDS
        self.counts = COUNTS["both"]
        self.relays = {
            name: Relay(
                name,
                database_url="",
                kafka="",
                topic_prefix="",
                partitions=partition_counts(TOPICS, PARTITIONS),
                renewed=RENEWED[name],
            )
            for name in SERVICES
        }
        self.consumers = {
            name: [Consumer(name, topic, handle) for topic, handle in handlers.items()]
            for name, handlers in self.handlers().items()
        }
        self.publications: dict[str, Publication] = {}
        self.owned: dict[tuple[str, str, int], Owned] = {}
        self.receptions: dict[int, Reception] = {}
        self.cut_off_between = (0.0, 0.0)
        self.lost_leases, self.lost = 0.0, 0
        self.hold_seconds = HOLD_SECONDS
        for name in SERVICES:
            self.boot(name)
        self.api = api
        self.api.runtime.database = databases["provisioner"]
        self.api.app.state.providers["simulated"] = self.cloud  # of which nothing is the operator's
        self.network = Network(httpx2.ASGITransport(app=api.app, raise_app_exceptions=False))
        self.http = httpx2.AsyncClient(
            transport=self.network,
            base_url="http://p",
            trust_env=False,  # a proxy, and its certificates, would be loaded for nothing
        )
        self.machines = Machines(self.cloud, self.http, chance)
        self.operator = Operator(self.http, chance)

    def handlers(self) -> dict[str, dict[Topic, consume.Handler]]:
        return {
            "provisioner": {
                POOL_DEMAND: record_demand,
                LEASE_LIFECYCLE: self.record_most_leases,
                LAUNCH_CONFIG_SIGNAL: record_requests,
            },
            "weight-calculator": {},  # it reads whole topics
            "lease-broker": {LEASE_REQUEST: LeaseCommandHandler(self.admissions(), at_once_max=0).handle},
        }

    async def record_most_leases(self, tx: Connection, received: Sequence[Received]) -> None:
        """Record lease events, but for a share of `lost_leases`, as if they were dead letters that nobody replays."""
        kept = [one for one in received if not self.lost_leases or self.chance.random() >= self.lost_leases]
        self.lost += len(received) - len(kept)
        await record_leases(tx, kept)

    def boot(self, service: str) -> None:
        """Start a new process of a service, with nothing in memory."""
        self.owned = {key: owned for key, owned in self.owned.items() if key[0] != service}
        self.publications.pop(service, None)
        if service == "provisioner":
            self.launcher = Launcher(self.settings, {"simulated": self.cloud})
            self.viewed = dict.fromkeys(range(PARTITIONS), 0)
        elif service == "weight-calculator":
            self.calculator = Leadership(Calculation(), service, "0")
            self.read: dict[consume.Place, Owned] = {}
        else:
            self.decide = DecideLoop(self.admissions(), clock=lambda: self.elapsed)

    def admissions(self) -> Admissions:
        return admissions(receiving=self.receiving, waiter_ttl_seconds=120)

    # Steps

    def steps(self) -> list[tuple[str, str, Callable[[], Awaitable[Any]]]]:
        """All possible next steps, as (service, name, step)."""
        provisioner, _, broker = (self.databases[name] for name in SERVICES)
        settings, providers = self.settings, {"simulated": self.cloud}
        steps: list[tuple[str, str, Callable[[], Awaitable[Any]]]] = [
            (
                "provisioner",
                "plan",
                lambda: plan.plan_next(
                    provisioner, settings=settings, calculator_unavailable_seconds=lambda: 0.0, lock_seconds=60.0
                ),
            ),
            (
                "provisioner",
                "resend-requests",
                lambda: plan.resend_requests(provisioner, resend_seconds=settings.resend_seconds),
            ),
            ("provisioner", "launch", self.launch),
            ("provisioner", "resolve", self.resolve),
            ("provisioner", "expire", lambda: expire.expire_next(provisioner, settings=settings, providers=providers)),
            (
                "provisioner",
                "end",
                lambda: terminate.terminate_instances(provisioner, settings=settings, providers=providers),
            ),
            ("provisioner", "reap", lambda: reap.reap_next(provisioner, settings=settings, providers=providers)),
            (
                "provisioner",
                "sweep",
                lambda: sweep.sweep_next(
                    provisioner, settings=settings, calculator_unavailable_seconds=lambda: 0.0, providers=providers
                ),
            ),
            ("provisioner", "roll-out", lambda: roll_out.roll_out_next(provisioner)),
            ("provisioner", "view", self.view),
            ("weight-calculator", "turn", self.calculate),
            ("lease-broker", "decide", lambda: self.decide.step(broker)),
            ("", "report", self.report),
            ("", "machines", self.machines.act),
            ("provisioner", "answer", self.cloud.answer),
        ]
        if self.crashing:
            steps += [("", "repeat a report", self.machines.repeat), ("", "make up claims", self.machines.make_up)]
        if self.cloud.accepting:
            steps.append(("provisioner", "poll", lambda: resolve.poll_next(provisioner, launcher=self.launcher)))
        for name in SERVICES:
            if name == "lease-broker" and self.cut_off:
                continue
            steps.append((name, f"{name} relay", partial(self.relay, name)))
            for consumer in self.consumers[name]:
                for partition in range(PARTITIONS):
                    at = self.owned.get((name, consumer.topic.name, partition), Owned(0, 0)).next_offset
                    if at < self.log.end(consumer.topic.name, partition):
                        steps.append((name, consumer.topic.name, partial(self.consume, consumer, partition)))
        return steps

    async def step(self) -> None:
        """Execute one random step, in which its process may die."""
        service, _, act = self.chance.choice(self.steps())
        await self.survives(service, act)

    async def survives(self, service: str, act: Callable[[], Awaitable[Any]]) -> bool:
        """Execute a step, in which a process of `service` may die at a commit; False if it did."""
        if service and self.chance.random() < self.crashing:
            self.crash_in = self.chance.choice((1, 1, 1, 2, 3))
        try:
            await act()
        except Crash:
            await self.kill(service)
            return False
        finally:
            self.crash_in = 0
        self.receive()
        return True

    async def everything(self) -> None:
        """Execute all steps once, in random order."""
        steps = self.steps()
        self.chance.shuffle(steps)
        for _, _, act in steps:
            await act()
            self.receive()

    async def round(self) -> None:
        """Execute all steps in the order in which they follow from each other."""
        for name in ROUND:
            for _, found, act in self.steps():
                if found == name:
                    await act()
                    self.receive()

    async def kill(self, service: str) -> None:
        """Kill a service's process and start a new one."""
        self.deaths[service] += 1
        if service == "provisioner":
            calls = list(self.launcher.calls)
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            self.cloud.forget_caller()
        self.boot(service)

    async def pass_time(self, seconds: float) -> None:
        """Advance the clock; due tasks arrive."""
        self.elapsed += seconds
        await self.databases["provisioner"].execute(SET_CLOCK, timedelta(seconds=self.elapsed) // MICROSECOND)
        self.cloud.apply_calls()
        while self.tasks_at and self.tasks_at[0] <= self.elapsed:
            self.cloud.pending.append(f"task-{self.tasks_at.pop(0):.3f}")

    async def launch(self) -> None:
        """Start calls, each of which waits for its answer, or ends here if its account is dead."""
        before = set(self.launcher.calls)
        await self.launcher.launch_next(self.databases["provisioner"])
        await self.cloud.called(self.launcher.calls - before)

    async def resolve(self) -> None:
        """Run in a task whose calls the cloud answers at once, since no other step runs meanwhile."""

        def named(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> "asyncio.Task[Any]":
            return asyncio.Task(coroutine, loop=loop, **(options | {"name": "resolve"}))

        loop = asyncio.get_running_loop()
        loop.set_task_factory(named)
        try:
            await resolve.resolve_next(self.databases["provisioner"], launcher=self.launcher)
        finally:
            loop.set_task_factory(None)

    # The log

    async def relay(self, service: str) -> None:
        async with self.databases[service].acquire() as db:
            if service not in self.publications:
                current = await self.log.compare(db, self.relays[service])
                self.publications[service] = Publication(
                    self.relays[service],
                    current.source(service),
                    Producers(self.producer),
                    places=[(row["topic"], row["partition"]) for row in await db.fetch(PLACES)],
                    clock=lambda: self.elapsed,
                    together_seconds=None,
                )
            await self.publications[service].round(db)

    async def producer(self) -> Log:
        return self.log

    async def consume(self, consumer: Consumer, partition: int) -> None:
        """Consume some records of a partition, sometimes including records applied before."""
        key = (consumer.service, consumer.topic.name, partition)
        async with self.databases[consumer.service].acquire() as db:
            if key not in self.owned:
                self.owned[key], _ = await consume.claim(db, consumer.topic.name, partition, "cluster")
            owned = self.owned[key]
            back = min(owned.next_offset, self.chance.choice((0, 0, 0, 2)))
            limit = back + self.chance.randint(1, 30)
            records = self.log.read(consumer.topic.name, partition, owned.next_offset - back, limit)
            if len(records) > back:
                self.owned[key] = await consume.apply(db, consumer, owned, records)

    async def calculate(self) -> None:
        """Run a turn of the calculator with none or some records, sometimes including records applied before."""
        database, leadership = self.databases["weight-calculator"], self.calculator
        if not leadership.epoch:
            await leadership.bid(database)
            places = [(topic.name, partition) for topic in leadership.work.topics for partition in range(PARTITIONS)]
            positions = await leadership.take_over(database, places, "cluster")
            self.read = {place: owned for place, (owned, _) in positions.items()}
        portions = []
        for topic in leadership.work.topics:
            for partition in range(PARTITIONS):
                owned = self.read[topic.name, partition]
                back = min(owned.next_offset, self.chance.choice((0, 0, 0, 2)))
                limit = back + (30 if self.is_calm else self.chance.choice((0, 0, 1, 30)))
                records = self.log.read(topic.name, partition, owned.next_offset - back, limit)
                if len(records) > back:
                    portions.append(consume.Portion(topic, partition, owned, records))
        await leadership.turn(database, portions)
        self.read |= {(p.topic.name, p.partition): Owned(p.owned.epoch, p.end) for p in portions}

    def unread(self) -> bool:
        """True if a consumer has not applied all records of a partition that it owns."""
        found = [((topic, partition), owned) for (_, topic, partition), owned in self.owned.items()]
        found += self.read.items()
        return any(owned.next_offset < self.log.end(topic, partition) for (topic, partition), owned in found)

    async def view(self) -> None:
        """Apply published weights to the provisioner's view, from the beginning after each start."""
        for partition, offset in self.viewed.items():
            records = self.log.read(LAUNCH_CONFIG_WEIGHT.name, partition, offset, 50)
            if records:
                await WeightView().apply(self.databases["provisioner"], [as_received(record) for record in records])
                self.viewed[partition] = offset + len(records)

    @property
    def cut_off(self) -> bool:
        """True while the lease-broker is cut off from Kafka."""
        begin, end = self.cut_off_between
        return begin <= self.elapsed < end

    def receive(self) -> None:
        """Record until when the lease-broker has read the requests of each partition."""
        if self.cut_off:
            return
        now = self.now("lease-broker")
        for (service, topic, partition), owned in self.owned.items():
            if service == "lease-broker" and owned.next_offset >= self.log.end(topic, partition):
                known = self.receptions.get(partition)
                self.receptions[partition] = reception.continued(known and reception.set_back(known, now, now), now)

    def receiving(self, lease_pool_id: str) -> Receiving:
        """Downtimes of the lease-broker's ways in."""
        partition = partition_for(lease_pool_id, PARTITIONS)
        known, late = self.receptions.get(partition), self.now("lease-broker") - timedelta(seconds=STEPS_SECONDS)
        reads = ("lease-broker", LEASE_REQUEST.name, partition) in self.owned
        if not reads or known is None or known.received_until < late:
            return Receiving(kafka=None, reads=reads)
        return Receiving(kafka=known.downtimes)

    def now(self, service: str) -> datetime:
        """Clock of a service's database."""
        return START + timedelta(seconds=self.elapsed + self.skews[service])

    async def set_clock(self, service: str, ahead_seconds: float) -> None:
        """Set the clock of a service's database so far ahead of the clock of machines and queue."""
        self.skews[service] = ahead_seconds
        await self.databases[service].execute(SKEWED.format(skew=ahead_seconds))

    async def turn_clocks(self, seconds: float) -> None:
        """Turn the clocks of all databases, as when one server's clock is set."""
        for service in SERVICES:
            await self.set_clock(service, self.skews[service] + seconds)

    # Queue

    async def report(self) -> None:
        """Append a demand report of the queue every 10 s, sometimes twice."""
        if self.elapsed - self.reported_at < REPORT_SECONDS:
            return
        self.reported_at = self.elapsed
        at = START + timedelta(seconds=self.elapsed)
        waiting, running = len(self.cloud.pending), self.cloud.claimed
        event = DemandReported(pool_id="linux", source="q", observed_at=at, **self.counts(waiting, running))
        envelope = Envelope(id=ids.new_id(), type=event.type, source="/queue", subject="linux/q", time=at)
        row = {
            "key": b"linux/q",
            "value": msgspec.json.encode(event),
            "headers": encode(envelope),
            "timestamp": int(at.timestamp() * 1000),
        }
        for _ in range(self.chance.choice((1, 1, 2))):
            self.log.append(POOL_DEMAND.name, self.chance.randrange(PARTITIONS), row)

    # Commands

    async def command(self) -> None:
        """Set or lift a launch stop, or let the operator give a command, which may die at a commit."""
        if not self.launches_stopped and self.chance.random() < 0.75:
            await self.survives("provisioner", self.operator.command)
            return
        async with self.databases["provisioner"].acquire() as db, db.transaction():
            if self.launches_stopped:
                await launch_stops.lift(db, "all", "")
            else:
                await launch_stops.put(db, "all", "", reason="drill", by="op", until=None)
        self.launches_stopped = not self.launches_stopped

    async def calm_down(self) -> None:
        """End all faults, launch stops, pauses and roll-outs; the calculator reads all records from now on."""
        self.is_calm = True
        self.crashing = self.log.lost_acknowledgements = 0.0
        self.cut_off_between = (0.0, 0.0)
        self.cloud.world.faults = ()
        async with self.databases["provisioner"].acquire() as db, db.transaction():
            await launch_stops.lift(db, "all", "")
        self.launches_stopped = False
        await self.operator.calm_down()

    async def declare(self, limit: int) -> None:
        """Declare the lease pool with a limit, and the worker pool."""
        async with self.databases["lease-broker"].acquire() as db, db.transaction():
            wanted = [
                Declared(
                    id="sim-a",
                    owner="test",
                    limit_units=limit,
                    hold_seconds=self.hold_seconds,
                    ttl_seconds=300,
                    reserve_seconds=180,
                    policy=Policy(pacing="off"),
                )
            ]
            whole = Declaration(owners=frozenset({"test"}), pools=wanted)
            changes = lease_declaration.compare(await lease_pools.declared(db), whole)
            changed = [made for made in changes if made.result != "unchanged"]
            await lease_pools.declare(db, [made.after for made in changed])
            await outbox.enqueue(db, lease_declaration.limit_events(changed, "test"))
        await self.operator.declare(self.body)


@contextlib.asynccontextmanager
async def deployment_on(
    server: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch, seed: int, scenario: Scenario, **pool: Any
) -> AsyncIterator[Deployment]:
    """All three services on a new database; IDs, secrets and every choice are derived from the seed."""
    chance = Random(seed)
    name = f"simulation_{next(_databases)}"
    url = await server.create_database(name, template=await migrated(server))
    databases: dict[str, Database] = {}
    for service in SERVICES:
        databases[service] = await connect(url, service)
    api = _apis.pop() if _apis else Api()
    deployment = Deployment(chance, scenario, databases, name, api, **pool)
    for service in SERVICES:
        await deployment.set_clock(service, min(SKEW_SECONDS, max(-SKEW_SECONDS, round(chance.uniform(-4, 4), 3))))
        await deployment.relay(service)  # nothing starts on a database that was not compared with the log
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
    for module in (contact, launch, reap, resolve):
        monkeypatch.setattr(module, "monotonic_seconds", lambda: deployment.elapsed)
    monkeypatch.setattr(launch, "asyncio", Untimed)
    monkeypatch.setattr(reception, "DOWNTIME_SECONDS", STEPS_SECONDS)
    monkeypatch.setattr(expire, "REGULAR_PASS_SECONDS", STEPS_SECONDS)
    _crash_at_commits(deployment, monkeypatch)
    try:
        yield deployment
    finally:
        for call in deployment.launcher.calls:
            call.cancel()
        await asyncio.gather(*deployment.launcher.calls, return_exceptions=True)
        for one in databases.values():
            one.terminate()
        await server.drop_database(name)
        _apis.append(api)


def _crash_at_commits(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kill the process at its `crash_in`-th next commit, after or before the commit takes effect."""
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
