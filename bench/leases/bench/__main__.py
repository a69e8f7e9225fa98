"""`make bench-leases`: what the lease-broker takes. Leases granted and given back over HTTP and over Kafka; the same
with many held and many waiting; how soon a unit that is given back is granted again; how soon a broker that was killed
grants.

Every commit is durable. Prints each figure with its yardstick of the same run and the verdict last, keeps them in
bench/results/leases.json, and ends with 1 when a claim does not hold. SECONDS is about how long it measures.
"""

import asyncio
import gc
import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog

from bench.events import surroundings
from bench.leases.bench import handover, sizes
from bench.leases.bench.bus import Bus, ask, bus, release
from bench.leases.bench.handover import Handover
from bench.leases.bench.pairs import Askers, Pairs, measured, over_http, pairs
from bench.leases.bench.system import SERVICE, System, commits_per_second
from bench.spread import Spread, spread
from bench.verdict import verdict
from slipway_common.clock import monotonic_seconds
from slipway_common.events.lease import LeaseGranted
from slipway_local.guard import guard
from slipway_local.kafka import EmbeddedKafka
from slipway_local.postgres import EmbeddedPostgres
from slipway_local.supervisor import Supervisor, run

RESULTS: Final = Path(__file__).parents[2] / "results/leases.json"
SECONDS: Final = 20.0
ROUNDS: Final = 3
CLIENTS: Final = (1, 8, 32)
LANES: Final = 4  # lease pools of one unit that change hands at the same time
HELD: Final = (50, 7_500)
WAITING: Final = (10, 20_000)
FREE: Final = 400  # units beside those that are held
WORKING: Final = 100  # units of the pools with waiters
RESTART_WAITERS: Final = 10_000

KAFKA_CLAIM: Final = 3_000
HTTP_CLAIM: Final = 400
HELD_CLAIM: Final = 0.8
HTTP_MS_CLAIM: Final = 25.0
KAFKA_MS_CLAIM: Final = 60.0


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """Pairs a second over Kafka beside so many held or waiting; `ratio` is of the medians of most and fewest."""

    numbers: tuple[int, ...]
    pairs_per_second: tuple[Spread, ...]
    ratio: float


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """One run. `on` is what the figures depend on; `commits_per_second` are the yardstick, by sessions."""

    command: str
    on: dict[str, Any]
    commits_per_second: dict[int, float]
    pairs: list[Pairs]
    held: Sizes
    waiting: Sizes
    http_handover: Handover
    kafka_handover: Handover
    restart_waiters: int
    restart_seconds: float


async def measure(supervisor: Supervisor) -> int:
    """All on servers of their own."""
    seconds = float(os.environ.get("SECONDS", SECONDS))
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="slipway-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        guard().remove(folder)
        kafka, server = EmbeddedKafka(folder / "kafka"), EmbeddedPostgres(folder / "postgres")
        print("starting Apache Kafka, PostgreSQL and a lease-broker …", flush=True)
        await supervisor.start(kafka, server)
        system = System(supervisor, folder, kafka, server)
        await system.start()
        version = await system.pool.fetchval("SHOW server_version")
        await system.declare(
            {"http": 1_000, "kafka": 10_000, "restart": 1}
            | {f"held-{number}": number + FREE for number in HELD}
            | {f"waiting-{number}": WORKING for number in WAITING}
            | {f"{way}-turns-{lane}": 1 for way in ("http", "kafka") for lane in range(LANES)}
        )
        print("commits …", flush=True)
        url = server.url()
        commits: dict[int, float] = {
            clients: round(await commits_per_second(url, clients, seconds / 40)) for clients in CLIENTS
        }
        gc.collect()
        gc.freeze()  # a full collection here would be measured as if the broker had been slow
        async with bus(kafka.bootstrap) as kafka_bus:
            print("pairs …", flush=True)
            found = await _pairs(system, kafka_bus, seconds / 28, commits)
            print("many held, many waiting …", flush=True)
            held, waiting = await _sizes(system, kafka_bus, seconds / 30)
            print("release → next grant …", flush=True)
            hop_ms, commit_ms = await handover.plain(kafka_bus), 1000 / commits[CLIENTS[0]]
            turns = range(LANES)
            told = await asyncio.gather(*(handover.over_http(system, f"http-turns-{n}", seconds / 5) for n in turns))
            heard = await asyncio.gather(
                *(handover.over_kafka(kafka_bus, f"kafka-turns-{n}", seconds / 5) for n in turns)
            )
            print(f"restart with {RESTART_WAITERS:,} waiters …", flush=True)
            restart = await _restart(supervisor, system, kafka_bus)
        await system.pool.close()
        await supervisor.stop()
    # Of the last minute: a machine that others use gives other figures.
    load = f"{before:.1f} before, {os.getloadavg()[0]:.1f} after"
    results = Results(
        command=f"make bench-leases SECONDS={seconds:g}",
        on=surroundings() | {"postgres": version, "load": load},
        commits_per_second=commits,
        pairs=found,
        held=held,
        waiting=waiting,
        http_handover=handover.handover(told, commit_ms),
        kafka_handover=handover.handover(heard, hop_ms),
        restart_waiters=RESTART_WAITERS,
        restart_seconds=round(restart, 2),
    )
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=2) + b"\n")
    return tell(results)


async def _pairs(system: System, kafka_bus: Bus, seconds: float, commits: dict[int, float]) -> list[Pairs]:
    """In rounds, so that a slow minute of the machine does not fall on one of them alone."""
    askers = Askers(kafka_bus, "kafka")
    found: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for _ in range(ROUNDS):
        for clients in CLIENTS:
            works = {
                "HTTP": [over_http(system, "http") for _ in range(clients)],
                "Kafka": [askers.asker() for _ in range(clients)],
            }
            for way, working in works.items():
                found.setdefault((way, clients), []).append(await measured(system, seconds, working))
    return [pairs(way, clients, rates, commits[clients]) for (way, clients), rates in sorted(found.items())]


async def _sizes(system: System, kafka_bus: Bus, seconds: float) -> tuple[Sizes, Sizes]:
    held = {number: Askers(kafka_bus, f"held-{number}") for number in HELD}
    waiting = {number: Askers(kafka_bus, f"waiting-{number}") for number in WAITING}
    for number in HELD:
        await sizes.hold(system.pool, f"held-{number}", number)
    for number in WAITING:
        await sizes.wait(system.pool, f"waiting-{number}", number + WORKING)
    await system.pool.execute(sizes.ANALYZE)
    rates: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        for number, askers in held.items():
            rate, _cpu = await measured(system, seconds, [askers.asker() for _ in range(2)])
            rates.setdefault(f"held-{number}", []).append(rate)
        for number, askers in waiting.items():
            rate, _cpu = await measured(system, seconds, [askers.refill()])
            rates.setdefault(f"waiting-{number}", []).append(rate)
    return _sized("held", HELD, rates), _sized("waiting", WAITING, rates)


def _sized(what: str, numbers: tuple[int, ...], rates: dict[str, list[float]]) -> Sizes:
    found = tuple(spread(rates[f"{what}-{number}"]) for number in numbers)
    return Sizes(numbers=numbers, pairs_per_second=found, ratio=round(found[-1].median / found[0].median, 2))


async def _restart(supervisor: Supervisor, system: System, kafka_bus: Bus) -> float:
    """Seconds from the start of a broker that was killed to its first grant; what frees the unit waits for it."""
    heard: asyncio.Queue[LeaseGranted] = asyncio.Queue()

    def hear(event: Any) -> None:
        if isinstance(event, LeaseGranted):
            heard.put_nowait(event)

    kafka_bus.hears["restart"] = hear
    await kafka_bus.send([ask("restart", "first")])
    first = await heard.get()
    await sizes.wait(system.pool, "restart", RESTART_WAITERS)
    await supervisor.kill(SERVICE)
    await kafka_bus.send([release(first)])
    began = monotonic_seconds()
    restarting = asyncio.create_task(supervisor.restart(SERVICE))
    await heard.get()
    took = monotonic_seconds() - began
    await restarting
    return took


def tell(results: Results) -> int:
    """The figures, and which claims do not hold."""
    commits = ", ".join(f"{rate:,} by {clients}" for clients, rate in results.commits_per_second.items())
    print(f"\nminimum / median / maximum on {results.on}\ncommits   a second, of one row: {commits}")
    for found in results.pairs:
        print(
            f"{found.way:<9} {found.clients:>2} clients: {found.pairs_per_second} pairs/s, "
            f"{found.cpu_ms_per_pair} ms of processor each; ÷ commits {found.ratio}"
        )
    for what, sized in (("held", results.held), ("waiting", results.waiting)):
        for number, rate in zip(sized.numbers, sized.pairs_per_second, strict=True):
            print(f"{what:<9} {number:>6,}: {rate} pairs/s")
        print(f"{'':<9} ratio {sized.ratio}")
    for way, handed, plain in (
        ("HTTP", results.http_handover, "one commit"),
        ("Kafka", results.kafka_handover, "one record's way"),
    ):
        print(
            f"handover  {way}: p50 {handed.p50} ms, p99 {handed.p99} ms, {handed.samples} samples; "
            f"p50 ÷ {plain} of {handed.plain_ms} ms {handed.ratio}"
        )
    print(f"restart   with {results.restart_waiters:,} waiters: first grant after {results.restart_seconds} s")
    best = {
        way: max(found.pairs_per_second.median for found in results.pairs if found.way == way)
        for way in ("HTTP", "Kafka")
    }
    claims = {
        f"Kafka ≥ {KAFKA_CLAIM:,} pairs/s": best["Kafka"] >= KAFKA_CLAIM,
        f"HTTP ≥ {HTTP_CLAIM} pairs/s": best["HTTP"] >= HTTP_CLAIM,
        f"{HELD[-1]:,} held ÷ {HELD[0]} ≥ {HELD_CLAIM}": results.held.ratio >= HELD_CLAIM,
        f"HTTP handover p99 ≤ {HTTP_MS_CLAIM:g} ms": results.http_handover.p99 <= HTTP_MS_CLAIM,
        f"Kafka handover p99 ≤ {KAFKA_MS_CLAIM:g} ms": results.kafka_handover.p99 <= KAFKA_MS_CLAIM,
    }
    return verdict(claims)


if __name__ == "__main__":
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # a new broker asks its clients to try again
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    sys.exit(run(measure))
