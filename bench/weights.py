"""`make bench-weights`: what the calculator takes. Folding in its core; replay through its turns, at 200 and at 10,000
configs; how soon it tells what an outcome has changed.

Prints each figure with its yardstick of the same run and the verdict last, keeps them in bench/results/weights.json,
and ends with 1 when a claim does not hold. SECONDS is about how long it measures.
"""

import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import asyncpg
import msgspec
import structlog

from bench import fold, telling, turns
from bench.events import surroundings
from bench.fold import Fold
from bench.telling import Telling
from bench.turns import Turns
from bench.verdict import verdict
from slipway_local.guard import guard
from slipway_local.kafka import EmbeddedKafka
from slipway_local.postgres import EmbeddedPostgres
from slipway_local.supervisor import Supervisor, run

RESULTS: Final = Path(__file__).parent / "results/weights.json"
SECONDS: Final = 20.0
FEW, MANY = 200, 10_000
FOLD_CLAIM: Final = 150_000
TURNS_CLAIM: Final = {FEW: 100_000, MANY: 60_000}
TELLING_CLAIM: Final = 150.0


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """One run. `on` is what the figures depend on."""

    command: str
    on: dict[str, Any]
    fold: Fold
    turns: list[Turns]
    telling: Telling


async def measure(supervisor: Supervisor) -> int:
    """All on servers of their own; the replay while there is no broker yet."""
    seconds = float(os.environ.get("SECONDS", SECONDS))
    before = os.getloadavg()[0]
    print("folding …", flush=True)
    folded = fold.measure(seconds / 10)
    with tempfile.TemporaryDirectory(prefix="slipway-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        guard().remove(folder)
        postgres, kafka = EmbeddedPostgres(folder / "postgres"), EmbeddedKafka(folder / "kafka")
        await supervisor.start(postgres)
        server = await asyncpg.connect(postgres.url())
        version = await server.fetchval("SHOW server_version")
        await server.close()
        replayed = []
        for number in (FEW, MANY):
            print(f"replaying {turns.EVENTS} events of {number} configs …", flush=True)
            replayed.append(await turns.measure(postgres, number))
        print("starting Apache Kafka and a calculator …", flush=True)
        await supervisor.start(kafka)
        told = await telling.measure(supervisor, kafka, postgres, folder, seconds / 2)
        await supervisor.stop()
    # Of the last minute: a machine that others use gives other figures.
    load = f"{before:.1f} before, {os.getloadavg()[0]:.1f} after"
    results = Results(
        command=f"make bench-weights SECONDS={seconds:g}",
        on=surroundings() | {"postgres": version, "load": load},
        fold=folded,
        turns=replayed,
        telling=told,
    )
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=2) + b"\n")
    return tell(results)


def tell(results: Results) -> int:
    """The figures, and which claims do not hold."""
    folded, told = results.fold, results.telling
    print(
        f"\nminimum / median / maximum on {results.on}\n"
        f"fold     {folded.folded_per_second} events/s in the core, {folded.configs} configs\n"
        f"         one value replaced per event: {folded.yardstick_per_second}; ratio {folded.ratio}"
    )
    for replayed in results.turns:
        print(
            f"replay   {replayed.folded_per_second} events/s folded and committed, {replayed.configs} configs\n"
            f"         consumed and decoded, with nothing done: {replayed.read_per_second}; ratio {replayed.ratio}; "
            f"all together: {replayed.applied_per_second}"
        )
    print(
        f"telling  outcome → weight p50 {told.told_p50} ms, p99 {told.told_p99} ms ({told.told}) "
        f"at {told.per_second}/s\n"
        f"         plain append → read p50 {told.plain_p50} ms, p99 {told.plain_p99} ms; ratio {told.ratio}"
    )
    claims = {f"fold ≥ {FOLD_CLAIM:,}/s": folded.folded_per_second.median >= FOLD_CLAIM}
    for replayed in results.turns:
        claim = TURNS_CLAIM[replayed.configs]
        name = f"replay of {replayed.configs:,} configs ≥ {claim:,}/s"
        claims[name] = replayed.folded_per_second.median >= claim
    claims[f"told p99 ≤ {TELLING_CLAIM:g} ms"] = told.told_p99 <= TELLING_CLAIM
    return verdict(claims)


if __name__ == "__main__":
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # a new broker asks its clients to try again
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    sys.exit(run(measure))
