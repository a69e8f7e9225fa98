"""`make bench-leases`: performance of the lease-broker.

Measures leases acquired and released per second over HTTP and over Kafka; the same with many leases held and many
requests waiting; the time from a release to the next grant; the time until a broker that was killed grants again. Every
commit is durable. Prints each figure with its yardstick from the same run, then the claims; exits with 1 if one is
false. KEEP=1 writes bench/results/leases.json. SECONDS is the approximate time of the measurements.
"""

import asyncio
import gc
import logging
import os
import sys
from typing import Any, Final

import msgspec
import structlog

from bench import committed
from bench.claims import report as report_claims
from bench.events import surroundings
from bench.leases.bench import handover, prefill
from bench.leases.bench.handover import Handover
from bench.leases.bench.kafka_client import KafkaClient, connect, release, request
from bench.leases.bench.pairs import KafkaPool, Pairs, measured, over_http, pairs
from bench.leases.bench.system import SERVICE, System, commits_per_second
from bench.leases.side import CLIENTS, FREE, LANES, WORKING
from bench.spread import Spread, spread
from slipway_api.events.lease import LeaseGranted
from slipway_common.base.clock import monotonic_seconds
from slipway_local.servers.kafka import EmbeddedKafka
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_local.servers.supervisor import Supervisor, run
from tests.support.folders import disk_folder
from tests.support.harness import until

SECONDS: Final = 20.0
ROUNDS: Final = 3
HELD: Final = (50, 7_500)
WAITING: Final = (1_000, 50_000)
CROWD: Final = 1_000
"""Lease pools with waiters beside the one that is measured, as many waiters as in the last of WAITING."""
RESTART_WAITERS: Final = 10_000
DUE: Final = "SELECT count(*) FROM lease_pools WHERE dirty OR wake_at <= slipway_clock()"
DECIDED_SECONDS: Final = 180.0

# To yardsticks of the same run: pairs to commits of one row by as many sessions, slow handovers to one commit or to one
# record over Kafka, and the CPU time of a pair beside many to that of one beside few.
KAFKA_CLAIM: Final = 0.1
HTTP_CLAIM: Final = 0.018
HTTP_P99_CLAIM: Final = 125.0
KAFKA_P99_CLAIM: Final = 82.0
HELD_CLAIM: Final = 0.8
SIZE_CLAIM: Final = 1.3


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """Pairs per second over Kafka by leases held or waiting; `ratio`: median at the most over the fewest."""

    numbers: tuple[int, ...]
    pairs_per_second: tuple[Spread, ...]
    cpu_ms_per_pair: tuple[Spread, ...]
    ratio: float

    @property
    def growth(self) -> float:
        """CPU time of a pair at the most over that at the fewest."""
        return round(self.cpu_ms_per_pair[-1].median / self.cpu_ms_per_pair[0].median, 2)


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """Results of one run; `on` describes machine and versions, `commits_per_second` is the yardstick by sessions."""

    command: str
    on: dict[str, Any]
    commits_per_second: dict[int, float]
    pairs: list[Pairs]
    held: Sizes
    waiting: Sizes
    crowd: Sizes
    http_handover: Handover
    kafka_handover: Handover
    restart_waiters: int
    restart_seconds: float


async def measure(supervisor: Supervisor) -> int:
    """Run all measurements on embedded servers."""
    seconds = float(os.environ.get("SECONDS", SECONDS))
    before = os.getloadavg()[0]
    with disk_folder("slipway-bench-") as folder:
        kafka, server = EmbeddedKafka(folder / "kafka"), EmbeddedPostgres(folder / "postgres")
        print("starting Apache Kafka, PostgreSQL and a lease-broker …", flush=True)
        await supervisor.start(kafka, server)
        system = System(supervisor, folder, kafka, server)
        await system.start()
        version = await system.database.fetchval("SHOW server_version")
        await system.declare(
            {"http": 1_000, "kafka": 10_000, "restart": 1, "crowd": 10_000}
            | {f"held-{number}": number + FREE for number in HELD}
            | {f"waiting-{number}": WORKING for number in WAITING}
            | {f"{way}-handover-{lane}": 1 for way in ("http", "kafka") for lane in range(LANES)}
        )
        print("commits …", flush=True)
        url = server.url()
        commits: dict[int, float] = {
            clients: round(await commits_per_second(url, clients, seconds / 40)) for clients in (1, CLIENTS)
        }
        gc.collect()
        gc.freeze()  # a full garbage collection in this process would look like a slow broker
        async with connect(kafka.bootstrap) as client:
            print("pairs …", flush=True)
            found = await _pairs(system, client, seconds / 20, commits[CLIENTS])
            print("many held, many waiting …", flush=True)
            held, waiting = await _sizes(system, client, seconds / 30)
            print("release → next grant …", flush=True)
            await asyncio.to_thread(os.sync)  # commits wait while the system writes what earlier loads have left
            hop_ms, commit_ms = await handover.plain(client), 1000 / commits[1]
            lanes = range(LANES)
            http_ms = await asyncio.gather(
                *(handover.over_http(system, f"http-handover-{n}", seconds / 5) for n in lanes)
            )
            kafka_ms = await asyncio.gather(
                *(handover.over_kafka(client, f"kafka-handover-{n}", seconds / 5) for n in lanes)
            )
            print(f"{CROWD:,} lease pools with waiters …", flush=True)
            crowd = await _crowd(system, client, seconds / 30)
            print(f"restart with {RESTART_WAITERS:,} waiters …", flush=True)
            restart = await _restart(supervisor, system, client)
        await system.database.close()
        await supervisor.stop()
    results = Results(
        command=f"make bench-leases SECONDS={seconds:g}",
        on=surroundings(before) | {"postgres": version},
        commits_per_second=commits,
        pairs=found,
        held=held,
        waiting=waiting,
        crowd=crowd,
        http_handover=handover.handover(http_ms, commit_ms),
        kafka_handover=handover.handover(kafka_ms, hop_ms),
        restart_waiters=RESTART_WAITERS,
        restart_seconds=round(restart, 2),
    )
    committed.write_json(os.environ, "leases.json", results)
    return report(results)


async def _pairs(system: System, client: KafkaClient, seconds: float, commits: float) -> list[Pairs]:
    """Measure both ways in rounds, so that a slow minute of the machine does not affect one of them alone."""
    pool = KafkaPool(client, "kafka")
    works = {
        "HTTP": [over_http(system, "http") for _ in range(CLIENTS)],
        "Kafka": [pool.client() for _ in range(CLIENTS)],
    }
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in works}
    for _ in range(ROUNDS):
        for way, working in works.items():
            found[way].append(await measured(system, seconds, working))
    return [pairs(way, CLIENTS, rates, commits) for way, rates in found.items()]


async def _sizes(system: System, client: KafkaClient, seconds: float) -> tuple[Sizes, Sizes]:
    held = {number: KafkaPool(client, f"held-{number}") for number in HELD}
    waiting = {number: KafkaPool(client, f"waiting-{number}") for number in WAITING}
    for number in HELD:
        await prefill.hold(system.database, f"held-{number}", number)
    for number in WAITING:
        await prefill.wait(system.database, f"waiting-{number}", number + WORKING)
    await system.database.execute(prefill.ANALYZE)
    found: dict[str, list[tuple[float, float]]] = {}
    for _ in range(ROUNDS):
        for number, pool in held.items():
            one = await measured(system, seconds, [pool.client() for _ in range(2)])
            found.setdefault(f"held-{number}", []).append(one)
        for number, pool in waiting.items():
            found.setdefault(f"waiting-{number}", []).append(await measured(system, seconds, [pool.refill()]))
    return _sized("held", HELD, found), _sized("waiting", WAITING, found)


async def _crowd(system: System, client: KafkaClient, seconds: float) -> Sizes:
    """Pairs in one lease pool before and after many others have waiters. The first decisions of these are over by then:
    they cost what was declared, not what there is, and a pair would cost more the fewer of it are made meanwhile."""
    pool, found = KafkaPool(client, "crowd"), dict[str, list[tuple[float, float]]]()
    for number in (1, CROWD):
        if number > 1:
            await system.declare({f"crowd-{n}": 1 for n in range(number)}, owner="crowd")
            waits = (prefill.wait(system.database, f"crowd-{n}", WAITING[-1] // number) for n in range(number))
            await asyncio.gather(*waits)
            await system.database.execute(prefill.ANALYZE)

            async def decided() -> bool:
                return not await system.database.fetchval(DUE)

            await until(decided, "all lease pools are decided", seconds=DECIDED_SECONDS)
        for _ in range(ROUNDS):
            one = await measured(system, seconds, [pool.client() for _ in range(2)])
            found.setdefault(f"crowd-{number}", []).append(one)
    return _sized("crowd", (1, CROWD), found)


def _sized(what: str, numbers: tuple[int, ...], found: dict[str, list[tuple[float, float]]]) -> Sizes:
    rates, costs = (tuple(spread([one[n] for one in found[f"{what}-{number}"]]) for number in numbers) for n in (0, 1))
    # Rounds of a fraction of a second may see no lease on a busy computer: then the claim is false, and no error.
    ratio = round(rates[-1].median / rates[0].median, 2) if rates[0].median else 0.0
    return Sizes(numbers=numbers, pairs_per_second=rates, cpu_ms_per_pair=costs, ratio=ratio)


async def _restart(supervisor: Supervisor, system: System, client: KafkaClient) -> float:
    """Seconds from the restart of a killed broker to its first grant; a release is waiting in Kafka."""
    grants: asyncio.Queue[LeaseGranted] = asyncio.Queue()

    def handle(event: Any) -> None:
        if isinstance(event, LeaseGranted):
            grants.put_nowait(event)

    client.handlers["restart"] = handle
    await client.send([request("restart", "first")])
    first = await grants.get()
    await prefill.wait(system.database, "restart", RESTART_WAITERS)
    await supervisor.kill(SERVICE)
    await client.send([release(first)])
    began = monotonic_seconds()
    restarting = asyncio.create_task(supervisor.restart(SERVICE))
    await grants.get()
    took = monotonic_seconds() - began
    await restarting
    return took


def report(results: Results) -> int:
    """Print the figures and the claims; return 1 if a claim is false."""
    commits = ", ".join(f"{rate:,} by {clients}" for clients, rate in results.commits_per_second.items())
    print(f"\nminimum / median / maximum on {results.on}\ncommits   per second, of one row: {commits}")
    for found in results.pairs:
        print(
            f"{found.way:<9} {found.clients:>2} clients: {found.pairs_per_second} pairs/s, "
            f"{found.cpu_ms_per_pair} ms of CPU each; ÷ commits {found.ratio}"
        )
    for what, sized in (("held", results.held), ("waiting", results.waiting), ("pools", results.crowd)):
        for number, rate, cpu in zip(sized.numbers, sized.pairs_per_second, sized.cpu_ms_per_pair, strict=True):
            print(f"{what:<9} {number:>6,}: {rate} pairs/s, {cpu} ms of CPU each")
        print(f"{'':<9} ratio {sized.ratio}, of CPU {sized.growth}")
    for way, handed, plain in (
        ("HTTP", results.http_handover, "one commit"),
        ("Kafka", results.kafka_handover, "one record"),
    ):
        print(
            f"handover  {way}: p50 {handed.p50} ms, p99 {handed.p99} ms, {handed.samples} samples; "
            f"p50 ÷ {plain} of {handed.plain_ms} ms {handed.ratio}"
        )
    print(f"restart   with {results.restart_waiters:,} waiters: first grant after {results.restart_seconds} s")
    at_most = {found.way: found.ratio for found in results.pairs}
    http, kafka = (handed.p99 / handed.plain_ms for handed in (results.http_handover, results.kafka_handover))
    claims = {
        f"Kafka pairs {at_most['Kafka']:g} × commits ≥ {KAFKA_CLAIM:g}": at_most["Kafka"] >= KAFKA_CLAIM,
        f"HTTP pairs {at_most['HTTP']:g} × commits ≥ {HTTP_CLAIM:g}": at_most["HTTP"] >= HTTP_CLAIM,
        f"{HELD[-1]:,} held ÷ {HELD[0]} {results.held.ratio:g} ≥ {HELD_CLAIM}": results.held.ratio >= HELD_CLAIM,
        f"CPU at {WAITING[-1]:,} waiting {results.waiting.growth:g} ≤ {SIZE_CLAIM:g} × that at {WAITING[0]:,}": (
            results.waiting.growth <= SIZE_CLAIM
        ),
        f"CPU beside {CROWD:,} pools {results.crowd.growth:g} ≤ {SIZE_CLAIM:g} × that alone": (
            results.crowd.growth <= SIZE_CLAIM
        ),
        f"HTTP handover p99 {http:.0f} × a commit ≤ {HTTP_P99_CLAIM:g}": http <= HTTP_P99_CLAIM,
        f"Kafka handover p99 {kafka:.0f} × a record ≤ {KAFKA_P99_CLAIM:g}": kafka <= KAFKA_P99_CLAIM,
    }
    return report_claims(claims)


if __name__ == "__main__":
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # a new broker first answers with retriable errors
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    sys.exit(run(measure))
