"""`make bench-events`: the cost of an event. Decoding; latency from one event to the next; replay of a backlog.

Prints the figures, writes them to bench/results/events.json with KEEP=1, and exits with 1 if the claim about decoding
is false.
"""

import logging
import os
import platform
import sys
from importlib.metadata import version
from typing import Any, Final

import msgspec
import structlog

from bench import committed, decode, hop_latency, replay
from bench.decode import Decoding
from bench.hop_latency import HopLatency
from bench.replay import Replay
from slipway_local.servers.jars import kafka_version, locked_jars
from slipway_local.servers.kafka import EmbeddedKafka
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_local.servers.supervisor import Supervisor, run
from tests.support import harness
from tests.support.folders import disk_folder

LIBRARIES: Final = ("msgspec", "aiokafka", "faststream", "asyncpg")


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """Results of one run; `on` describes the machine and the versions measured."""

    command: str
    on: dict[str, Any]
    decode: Decoding
    hop: HopLatency
    replay: Replay


async def measure(supervisor: Supervisor) -> int:
    """Run all three measurements on embedded servers."""
    before = os.getloadavg()[0]
    print("decoding …", flush=True)
    decoding = decode.measure()
    with disk_folder("slipway-bench-") as folder:
        servers = EmbeddedKafka(folder / "kafka"), EmbeddedPostgres(folder / "postgres")
        print("starting Apache Kafka and PostgreSQL …", flush=True)
        await supervisor.start(*servers)
        await harness.make_template(servers[1])
        print(f"one hop, {hop_latency.PER_SECOND} events a second for {hop_latency.SECONDS} s …", flush=True)
        async with harness.new_place(servers) as place:
            hopping = await hop_latency.measure(place)
            postgres = await place.database.fetchval("SHOW server_version")
        print(f"replaying {replay.EVENTS} events {replay.ROUNDS} times …", flush=True)
        async with harness.new_place(servers) as place:
            replayed = await replay.measure(place)
        await supervisor.stop()
    on = surroundings(before) | {"postgres": postgres}
    results = Results(command="make bench-events", on=on, decode=decoding, hop=hopping, replay=replayed)
    committed.write_json(os.environ, "events.json", results)
    return report(results)


def surroundings(before: float) -> dict[str, Any]:
    """Versions, core count and load averages, `before` the benchmark and now, as every benchmark records them: other
    work on the machine changes the figures."""
    return {
        "python": platform.python_version(),
        **{name: version(name) for name in LIBRARIES},
        "kafka": kafka_version(locked_jars()),
        "cores": os.cpu_count(),
        "load": f"{before:.1f} before, {os.getloadavg()[0]:.1f} after",
    }


def report(results: Results) -> int:
    """Print the figures; return 1 if the claim about decoding is false."""
    decoding, hopping, replayed = results.decode, results.hop, results.replay
    holds = decoding.event_ratio <= decode.CLAIM
    worst = max(decoding.event_ratio_by_type, key=lambda name: decoding.event_ratio_by_type[name])
    print(
        f"\nminimum / median / maximum on {results.on}\n"
        f"decode   event {decoding.event} µs, json.loads {decoding.json_loads} µs, "
        f"headers and event {decoding.record} µs\n"
        f"         event ÷ json.loads = {decoding.event_ratio} ({'≤' if holds else 'ABOVE'} {decode.CLAIM}; "
        f"highest for {worst}: {decoding.event_ratio_by_type[worst]}), "
        f"headers and event ÷ json.loads = {decoding.record_ratio}\n"
        f"hop      event → committed p50 {hopping.committed_p50} ms → next event read p50 {hopping.next_p50} ms, "
        f"p99 {hopping.next_p99} ms ({hopping.next}) at {hopping.per_second}/s\n"
        f"         plain append → read p50 {hopping.plain_p50} ms, p99 {hopping.plain_p99} ms; ratio {hopping.ratio}\n"
        f"replay   {replayed.applied_per_second} events/s into rows, bare reading {replayed.read_per_second}; "
        f"ratio {replayed.ratio}"
    )
    return 0 if holds else 1


if __name__ == "__main__":
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # a new broker first answers with retriable errors
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    sys.exit(run(measure))
