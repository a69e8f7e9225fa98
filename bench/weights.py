"""`make bench-weights`: performance of the weight-calculator.

Measures folding in its core, replay through its turns at 200 and 10,000 configs, a turn and an event with 60 configs
and with 6,000, which share 9,800 keys, and the latency from an outcome to the published weight. Prints each
figure with its yardstick from the same run, then the claims; exits with 1 if one is false. KEEP=1 writes
bench/results/weights.json. SECONDS is the approximate time of the measurements.
"""

import gc
import logging
import os
import sys
from typing import Any, Final

import asyncpg
import msgspec
import structlog

from bench import calculator_replay, calculator_size, committed, fold, publish_latency
from bench.calculator_replay import CalculatorReplay
from bench.calculator_size import CalculatorSize
from bench.claims import report as report_claims
from bench.events import surroundings
from bench.fold import Fold
from bench.publish_latency import PublishLatency
from slipway_common.service import GARBAGE_OBJECTS
from slipway_local.servers.kafka import EmbeddedKafka
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_local.servers.supervisor import Supervisor, run
from tests.support.folders import disk_folder

SECONDS: Final = 20.0
FEW, MANY = 200, 10_000
FOLD_CLAIM: Final = 0.05
"""Least share of the rate at which one value a configuration is replaced, and nothing else is done."""
REPLAY_CLAIM: Final = {FEW: 0.7, MANY: 0.5}
"""Least share of the rate at which the same records are consumed and decoded only. Of many configs a turn changes each
one a few times, and computes its trips, alerts and record anew."""
IDLE_CLAIM, EVENT_CLAIM = 1.5, 1.3
"""Most that a turn with nothing due, and an event, may cost with 6,000 configs, over those with 60."""
LATENCY_CLAIM, HOPS_CLAIM = 150.0, 2.0
"""Milliseconds that a weight may take by intention, which is computed and published in turns, and slow hops of Kafka
beside these."""


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """Results of one run; `on` describes the machine and the versions measured."""

    command: str
    on: dict[str, Any]
    fold: Fold
    replays: list[CalculatorReplay]
    size: CalculatorSize
    publish_latency: PublishLatency


async def measure(supervisor: Supervisor) -> int:
    """Run all measurements on embedded servers; the replay runs before the Kafka broker is started."""
    seconds = float(os.environ.get("SECONDS", SECONDS))
    before = os.getloadavg()[0]
    print("folding …", flush=True)
    folded = fold.measure(seconds / 10)
    with disk_folder("slipway-bench-") as folder:
        postgres, kafka = EmbeddedPostgres(folder / "postgres"), EmbeddedKafka(folder / "kafka")
        await supervisor.start(postgres)
        server = await asyncpg.connect(postgres.url())
        version = await server.fetchval("SHOW server_version")
        await server.close()
        replayed = []
        for number in (FEW, MANY):
            print(f"replaying {calculator_replay.EVENTS} events of {number} configs …", flush=True)
            replayed.append(await calculator_replay.measure(postgres, number))
        print("turns of few and of many configs …", flush=True)
        size = await calculator_size.measure(postgres)
        print("starting Apache Kafka and a calculator …", flush=True)
        await supervisor.start(kafka)
        latency = await publish_latency.measure(supervisor, kafka, postgres, folder, seconds / 2)
        await supervisor.stop()
    results = Results(
        command=f"make bench-weights SECONDS={seconds:g}",
        on=surroundings(before) | {"postgres": version},
        fold=folded,
        replays=replayed,
        size=size,
        publish_latency=latency,
    )
    committed.write_json(os.environ, "weights.json", results)
    return report(results)


def report(results: Results) -> int:
    """Print the figures and the claims; return 1 if a claim is false."""
    folded, latency = results.fold, results.publish_latency
    print(
        f"\nminimum / median / maximum on {results.on}\n"
        f"fold     {folded.folded_per_second} events/s in the core, {folded.configs} configs\n"
        f"         one value replaced per event: {folded.yardstick_per_second}; ratio {folded.ratio}"
    )
    for replayed in results.replays:
        print(
            f"replay   {replayed.folded_per_second} events/s folded and committed, {replayed.configs} configs\n"
            f"         consumed and decoded only: {replayed.read_per_second}; ratio {replayed.ratio}; "
            f"all work done: {replayed.applied_per_second}"
        )
    size = results.size
    few, many = (f"{configs:,} configs, {keys:,} keys" for configs, keys in zip(size.configs, size.keys, strict=True))
    print(
        f"turn     {few}: {size.idle_ms[0]} ms with nothing due, {size.event_ms[0]} ms per event\n"
        f"         {many}: {size.idle_ms[1]} and {size.event_ms[1]} ms; ratios {size.idle_ratio} and {size.event_ratio}"
    )
    print(
        f"publish  outcome → weight p50 {latency.p50} ms, p99 {latency.p99} ms ({latency.latency}) "
        f"at {latency.per_second}/s\n"
        f"         plain append → read p50 {latency.plain_p50} ms, p99 {latency.plain_p99} ms; ratio {latency.ratio}"
    )
    share = 1 / folded.ratio
    claims = {f"fold {share:.2f} of replacing a value an event ≥ {FOLD_CLAIM:g}": share >= FOLD_CLAIM}
    for replayed in results.replays:
        claim = REPLAY_CLAIM[replayed.configs]
        name = f"replay of {replayed.configs:,} configs {replayed.ratio:g} of decoding alone ≥ {claim:g}"
        claims[name] = replayed.ratio >= claim
    claims[f"nothing due with {many} {size.idle_ratio:g} × ≤ {IDLE_CLAIM:g} ×"] = size.idle_ratio <= IDLE_CLAIM
    claims[f"an event {size.event_ratio:g} × ≤ {EVENT_CLAIM:g} ×"] = size.event_ratio <= EVENT_CLAIM
    bound = LATENCY_CLAIM + HOPS_CLAIM * latency.plain_p99
    name = f"outcome → weight p99 {latency.p99:g} ≤ {LATENCY_CLAIM:g} ms + {HOPS_CLAIM:g} × the p99 of an append"
    claims[name] = latency.p99 <= bound
    return report_claims(claims)


if __name__ == "__main__":
    gc.set_threshold(GARBAGE_OBJECTS)  # as the service does
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # a new broker first answers with retriable errors
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    sys.exit(run(measure))
