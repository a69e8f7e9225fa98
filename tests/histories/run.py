"""`make histories`: checks the lease-broker as an n-semaphore with fencing while its clients and itself are stopped and
killed, its database is restarted, its answers are dropped and its clients' clocks jump.

N is the number of histories (FULL=1: 200), SEED seeds all randomness. Histories are played in rounds on one real
system, each in lease pools of its own, and judged one by one by the checker. On a broken copy (MUTANT=name) every
history has to be caught.
"""

import asyncio
import itertools
import math
import os
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec
import structlog

from slipway_common.base.clock import monotonic_seconds
from slipway_local.demo.program import keep
from slipway_local.servers.kafka import EmbeddedKafka
from slipway_local.servers.ports import free_ports
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_local.servers.supervisor import Service, Supervisor, http_ready, run
from tests.histories.bus import Bus
from tests.histories.checker import Kind, Violation, check
from tests.histories.clients import Plan
from tests.histories.history import Call, History, Lease
from tests.histories.journal import calls
from tests.histories.play import (
    BATCH_AFTER,
    COMMITTED_AFTER,
    DECIDED_AFTER,
    HELD_POOLS,
    HELD_SECONDS,
    HOLDER,
    SKEW_SECONDS,
    TERMS,
    Play,
    until,
)
from tests.histories.system import PARTITIONS, System
from tests.support.folders import temporary_folder

HISTORIES: Final = 20
HISTORIES_FULL: Final = 200
AT_A_TIME: Final = 10
TELLING: Final = 5  # with this many histories each kind of answer and fault usually occurs
ROUNDS_MORE: Final = 3  # at most, if one has not
FAULTS_SECONDS: Final = 3.0  # of a round: faults start within this time
AFTERMATH_SECONDS: Final = 0.5
TAKE_SECONDS: Final = 60.0
DROPPED: Final = 0.08
# Groups of clients, each in a process; the last replaces the one that is killed.
STOPPED, KILLED, NEXT = GROUPS = ("stopped", "killed", "next")
SHOWN: Final = 5


class Judged(msgspec.Struct, frozen=True):
    name: str
    violations: Sequence[Violation]
    counts: Mapping[str, int]


class Round:
    """Histories that share the system for a while, with its faults."""

    def __init__(self, system: System, bus: Bus, number: int, names: Sequence[str], seed: str) -> None:
        self.system = system
        self.bus = bus
        self.number = number
        self.seed = f"{seed}/{number}"
        self.rng = Random(self.seed)
        self.plays = [Play(name, f"{seed}/{name}", system, bus) for name in names]
        self.faults: list[str] = []

    async def play(self) -> list[Judged]:
        held = [TERMS | {"id": pool, "limit": 1} for pool in HELD_POOLS]
        await self.system.declare([*held, *(pool for play in self.plays for pool in play.declared())])
        clients = {group: self._clients(group) for group in GROUPS}
        await self.system.supervisor.start(clients[STOPPED], clients[KILLED])
        self._drop(DROPPED)
        over = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for play in self.plays:
                group.create_task(play.play(over))
            await self._in_every_history()
            await asyncio.gather(*self._faults(clients))
            await asyncio.sleep(AFTERMATH_SECONDS)
            over.set()
            await asyncio.gather(*(service.stop() for service in clients.values()))
        self._drop(0.0)
        for port in self.system.ports:
            await truly(partial(http_ready, port))
        await asyncio.gather(*(play.settle() for play in self.plays))
        quiet_at = monotonic_seconds()
        await asyncio.gather(*(play.take_all(TAKE_SECONDS) for play in self.plays))
        noted = [call for group in GROUPS for call in self._noted(group)]
        histories = [(play.name, play.history(quiet_at, noted)) for play in self.plays]
        for name, history in histories:
            (self.system.folder / f"{name}.history.jsonl").write_bytes(b"\n".join(lines(history)))
        return [judge(name, history) for name, history in histories]

    def _drop(self, share: float) -> None:
        for proxy in self.system.proxies:
            proxy.share = share

    def _clients(self, group: str) -> Service:
        plan = Plan(
            workers=[worker for play in self.plays for worker in play.workers(group)],
            ports=self.system.proxy_ports,
            resource=self.system.resource_port,
            seed=f"{self.seed}/{group}",
            skew_seconds=SKEW_SECONDS,
        )
        path = self.system.folder / f"{self._name(group)}.plan"
        path.write_bytes(msgspec.json.encode(plan))
        argv: list[str | Path] = [sys.executable, "-m", "tests.histories.clients", path, self._journal(group)]
        return Service(
            self._name(group), argv, env=dict(os.environ), log=self.system.folder / f"{self._name(group)}.log"
        )

    def _name(self, group: str) -> str:
        return f"clients-{group}-{self.number}"

    def _journal(self, group: str) -> Path:
        return self.system.folder / f"{self._name(group)}.journal"

    def _noted(self, group: str) -> list[Call]:
        journal = self._journal(group)
        return calls(journal.read_bytes().splitlines(keepends=True)) if journal.exists() else []

    def _faults(self, clients: Mapping[str, Service]) -> Sequence[Coroutine[Any, Any, None]]:
        """The faults of a round, each at some instant."""
        system, rng = self.system, self.rng

        async def soon(what: str, does: Callable[[], Awaitable[None]], after: float) -> None:
            await asyncio.sleep(after)
            await does()
            self.faults.append(what)

        async def kill_clients() -> None:
            await clients[KILLED].kill()
            await system.supervisor.start(clients[NEXT])

        first, second = rng.sample(system.brokers, 2)
        stopped_seconds, asleep_seconds = rng.uniform(0.5, 1.5), rng.uniform(0.5, 1.5)
        faults: dict[str, Callable[[], Awaitable[None]]] = {
            "broker killed": lambda: system.kill(first),
            "broker stopped": lambda: system.suspend(second, stopped_seconds),
            "database restarted": system.restart_postgres,
            "clients stopped": lambda: system.suspend(clients[STOPPED].name, asleep_seconds),
            "clients killed": kill_clients,
        }
        return [soon(what, does, rng.uniform(0, FAULTS_SECONDS)) for what, does in faults.items()]

    async def _in_every_history(self) -> None:
        """A batch that waits for a lock, then a slow replica. Each affects all histories of the round at once, since a
        broker handles batches and decisions one after another."""
        holding = await self._holding(lambda play: play.crossed)
        began = monotonic_seconds()
        await asyncio.gather(
            self.system.hold_pools(HELD_POOLS, HELD_SECONDS),
            self._send(holding, began + BATCH_AFTER),
            *(play.cross(lease, began) for play, lease in holding),
        )
        holding = await self._holding(lambda play: play.late)
        began = monotonic_seconds()
        slowly = self.system.decide_slowly(
            [play.late for play, _ in holding], decided_after=DECIDED_AFTER, committed_after=COMMITTED_AFTER
        )
        await asyncio.gather(slowly, *(play.renew_late(lease, began) for play, lease in holding))

    async def _holding(self, pool: Callable[[Play], str]) -> list[tuple[Play, Lease]]:
        """The histories that got a lease of that pool."""
        leases = await asyncio.gather(*(play.acquire(pool(play)) for play in self.plays))
        return [(play, lease) for play, lease in zip(self.plays, leases, strict=True) if lease is not None]

    async def _send(self, holding: Sequence[tuple[Play, Lease]], at: float) -> None:
        await until(at)
        await self.bus.send(*(command for play, lease in holding for command in play.batch(lease)), source=HOLDER)


async def truly(condition: Callable[[], Awaitable[bool]]) -> None:
    while not await condition():
        await asyncio.sleep(0.02)


def lines(history: History) -> list[bytes]:
    """The records in order of time, for people who examine a run."""
    records: list[tuple[float, Any]] = [(call.invoked, call) for call in history.calls]
    records += [(each.at, each) for each in history.ended]
    records += [(each.at, each) for each in history.writes]
    return [msgspec.json.encode(each) for _, each in sorted(records, key=lambda each: each[0])]


def judge(name: str, history: History) -> Judged:
    counts = Counter(f"{call.does} {call.answer}" for call in history.calls)
    counts.update(f"lease {each.reason}" for each in history.ended)
    counts.update(f"write {'accepted' if write.accepted else 'refused'}" for write in history.writes)
    return Judged(name, check(history), counts)


async def histories(supervisor: Supervisor, count: int, seed: int, mutant: str) -> int:
    with temporary_folder() as folder:
        (port,) = free_ports(1)
        kafka = EmbeddedKafka(folder / "kafka", port)
        # Data written by a killed server are still in memory: without a sync only a power failure loses them.
        postgres = EmbeddedPostgres(folder / "postgres", {"fsync": "off"})
        system = System(supervisor, folder, kafka, postgres, seed=str(seed))
        judged: list[Judged] = []
        faults: Counter[str] = Counter()
        rounds = math.ceil(count / AT_A_TIME)
        try:
            await system.start()
            print(f"started; SEED={seed} N={count}", flush=True)
            async with Bus(kafka.bootstrap, system.prefix, PARTITIONS).running() as bus:
                for number in itertools.count():
                    begin = len(judged)
                    left = count - begin
                    if left <= 0:  # a slow machine may need further histories until everything has happened
                        if mutant or number >= rounds + ROUNDS_MORE or not missing(judged):
                            break
                        left = count
                    names = [f"h{begin + place:03d}" for place in range(min(left, AT_A_TIME))]
                    played = Round(system, bus, number, names, str(seed))
                    judged += await played.play()
                    faults.update(played.faults)
                    for each in judged[begin:]:
                        print_result(each)
            faults["answers dropped"] = sum(proxy.dropped for proxy in system.proxies)
            return summarise(judged, faults, mutant)
        finally:
            keep(folder)
            system.close()
            await supervisor.stop()


def print_result(judged: Judged) -> None:
    for violation in judged.violations[:SHOWN]:
        print(f"  {judged.name} {violation.kind}: {violation.pool}: {violation.what}", flush=True)
    if (more := len(judged.violations) - SHOWN) > 0:
        print(f"  {judged.name} … and {more} more", flush=True)


# Without these a run proves nothing, however few its violations.
TO_HAPPEN: Final = (
    "acquire ok",
    "acquire waiting",
    "acquire unknown",
    "renew ok",
    "renew refused",
    "release ok",
    "release refused",
    "cancel ok",
    "limit ok",
    "drain ok",
    "lease lost",
    "lease expired",
    "write accepted",
    "write refused",
)


def counted(judged: Sequence[Judged]) -> Counter[str]:
    return sum((Counter(each.counts) for each in judged), Counter[str]())


def missing(judged: Sequence[Judged]) -> list[str]:
    """Answers and faults that have to happen and have not, if there are enough histories to tell."""
    counts = counted(judged)
    return [what for what in TO_HAPPEN if not counts[what]] if len(judged) >= TELLING else []


def summarise(judged: Sequence[Judged], faults: Mapping[str, int], mutant: str) -> int:
    counts = counted(judged)
    print("  " + ", ".join(f"{number} {what}" for what, number in sorted(counts.items())))
    print("  " + ", ".join(f"{number} × {what}" for what, number in sorted(faults.items())))
    caught = [each for each in judged if each.violations]
    if mutant:
        print(f"{len(caught)} of {len(judged)} caught")
        return 0 if len(caught) == len(judged) else 1
    short = missing(judged)
    for what in short:
        print(f"  PROBLEM no {what}: without it the run shows nothing")
    found = [violation for each in judged for violation in each.violations]
    twice = sum(violation.kind in (Kind.DUPLICATE_GRANT, Kind.DUPLICATE_TOKEN) for violation in found)
    print(f"{len(judged)} histories: {len(found)} violations, {twice} duplicate grants")
    return 1 if found or short else 0


def arguments(environment: Mapping[str, str]) -> tuple[int, int]:
    """The number of histories, and the seed. Raises ValueError with the valid values of an argument."""

    def number(name: str, default: int, least: int) -> int:
        text = environment.get(name) or str(default)
        if not (text.isascii() and text.isdigit() and int(text) >= least):
            raise ValueError(f"{name}={text}: a whole number, {least} or more")
        return int(text)

    full = environment.get("FULL") == "1"
    return number("N", HISTORIES_FULL if full else HISTORIES, 1), number("SEED", 1, 0)


def main() -> int:
    try:
        count, seed = arguments(os.environ)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    return run(lambda supervisor: histories(supervisor, count, seed, os.environ.get("MUTANT", "")))


if __name__ == "__main__":
    sys.exit(main())
