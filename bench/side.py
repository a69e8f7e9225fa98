"""`python -m bench.side http`: what `make bench-before` compares with that of another tree, in turns.

For each name of a figure on the standard input, a line of JSON, it measures for a moment, and answers with a Figure.
SECONDS scales the time of those that may take any.
"""

import asyncio
import contextlib
import gc
import logging
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Final, NamedTuple

import structlog

from bench import calculator_replay, commands, fold, hop_latency, http, publish_latency, replay
from bench.leases import side as leases
from bench.sides import Figure, Measure, answer
from bench.spread import percentile
from slipway_common.service import GARBAGE_OBJECTS
from slipway_local.servers.kafka import EmbeddedKafka
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_local.servers.supervisor import Supervisor, run
from tests.support import harness
from tests.support.folders import disk_folder

SECONDS: Final = 20.0
COMMANDS_EACH: Final = 5


@contextlib.asynccontextmanager
async def over_http(supervisor: Supervisor, seconds: float) -> AsyncIterator[Measure]:
    """Requests per second to a whole system."""
    async with http.deployed(supervisor) as (deployment, launched):
        works = await http.works(deployment, launched, int(os.environ["ROUNDS"]))

        async def measure(name: str) -> Figure:
            return Figure(await http.measured(deployment, works[name], seconds / 20))

        yield measure


@contextlib.asynccontextmanager
async def of_the_calculator(_: Supervisor, seconds: float) -> AsyncIterator[Measure]:
    """Events per second of a calculator, and how long a weight takes."""
    gc.set_threshold(GARBAGE_OBJECTS)  # as the service does

    async def replayed(configs: int, postgres: EmbeddedPostgres) -> Figure:
        return Figure((await calculator_replay.measure(postgres, configs)).folded_per_second.median)

    async def measure(name: str) -> Figure:
        if name == "fold":
            return Figure(fold.measure(seconds / 10).folded_per_second.median)
        async with Supervisor() as supervisor:
            with disk_folder("slipway-bench-") as folder:
                postgres, kafka = EmbeddedPostgres(folder / "postgres"), EmbeddedKafka(folder / "kafka")
                await supervisor.start(postgres)
                if name in REPLAYED:
                    return await replayed(REPLAYED[name], postgres)
                await supervisor.start(kafka)
                found = await publish_latency.measure(supervisor, kafka, postgres, folder, seconds / 4)
                return Figure(found.p50, found.p99)

    yield measure


@contextlib.asynccontextmanager
async def of_events(supervisor: Supervisor, _: float) -> AsyncIterator[Measure]:
    """Events per second into rows, and how long the next event takes."""
    with disk_folder("slipway-bench-") as folder:
        servers = EmbeddedKafka(folder / "kafka"), EmbeddedPostgres(folder / "postgres")
        await supervisor.start(*servers)
        await harness.make_template(servers[1])

        async def measure(name: str) -> Figure:
            async with harness.new_place(servers) as place:
                if name == "replay":
                    return Figure((await replay.measure(place)).applied_per_second.median)
                found = await hop_latency.measure(place)
                return Figure(found.next_p50, found.next_p99)

        yield measure
        await supervisor.stop()


@contextlib.asynccontextmanager
async def of_commands(supervisor: Supervisor, _: float) -> AsyncIterator[Measure]:
    """Milliseconds of processor time of commands."""
    async with commands.deployed(supervisor) as environment:

        async def measure(name: str) -> Figure:
            command = commands.COMMANDS[name]
            taken = [await asyncio.to_thread(commands.user_ms, command, environment) for _ in range(COMMANDS_EACH)]
            return Figure(percentile(taken, 50), percentile(taken, 99))

        yield measure


class Benchmark(NamedTuple):
    """A benchmark in turns: the names of its figures, and what measures them."""

    figures: Sequence[str]
    measuring: Callable[[Supervisor, float], AbstractAsyncContextManager[Measure]]


REPLAYED: Final = {"replay of 200 configs": 200, "replay of 10,000 configs": 10_000}
BENCHMARKS: Final[Mapping[str, Benchmark]] = {
    "weights": Benchmark(("fold", *REPLAYED, "outcome → weight"), of_the_calculator),
    "events": Benchmark(("replay", "event → next event"), of_events),
    "http": Benchmark(
        (
            "list of 1,000 workers",
            "one pool",
            "report of demand",
            "claim and its end",
            "registration",
            "acquire and release",
        ),
        over_http,
    ),
    "commands": Benchmark(tuple(name for name in commands.COMMANDS if name != commands.BARE), of_commands),
    "leases": Benchmark(leases.FIGURES, leases.of_a_broker),
}


async def serve(supervisor: Supervisor, name: str) -> int:
    """Answer until the input ends."""
    async with BENCHMARKS[name].measuring(supervisor, float(os.environ.get("SECONDS", SECONDS))) as measure:
        await answer(measure)
    return 0


if __name__ == "__main__":
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # a new broker first answers with retriable errors
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    sys.exit(run(partial(serve, name=sys.argv[1])))
