"""Fuzzing of the HTTP APIs (`make fuzz`): SEED and N, the number of requests, from the environment.

Ends with `0 of N responses 5xx`; exits with 1 for any other number, an answer that the documents do not promise, or a
refused request that has changed a row.
"""

import asyncio
import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import Final

import structlog

from slipway_local.servers.postgres import EmbeddedPostgres
from tests.fuzz.cases import operations
from tests.fuzz.run import Report, document, fuzz
from tests.fuzz.worlds import WORLDS

REQUESTS: Final = 3000
SHOWN: Final = 12


def shares(number: int) -> dict[str, int]:
    """Requests of each service, by its number of operations; at least one of each operation."""
    sizes = {service: len(operations(document(service))) for service in WORLDS}
    return {service: max(size, number * size // sum(sizes.values())) for service, size in sizes.items()}


async def run(*, seed: int, number: int) -> list[Report]:
    """Fuzz every service on a PostgreSQL of its own."""
    numbers, reports = shares(number), []
    with tempfile.TemporaryDirectory(prefix="slipway-fuzz-", ignore_cleanup_errors=True) as folder:
        server = EmbeddedPostgres(Path(folder) / "postgres", {"fsync": "off"})
        await server.start()
        try:
            for service, world_of in WORLDS.items():
                home = Path(folder, service)
                home.mkdir()
                async with world_of(server, home) as world:
                    reports.append(await fuzz(world, seed=seed, number=numbers[service]))
                print(reports[-1], flush=True)
        finally:
            await server.stop()
    return reports


def main() -> int:
    try:
        seed, number = int(os.environ.get("SEED") or 1), int(os.environ.get("N") or REQUESTS)
    except ValueError as error:
        print(f"SEED and N have to be whole numbers: {error}", file=sys.stderr)
        return 2
    logging.disable(logging.CRITICAL)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    reports = asyncio.run(run(seed=seed, number=number))
    found = [line for report in reports for line in report.found]
    for line in found[:SHOWN]:
        print(line)
    if found:
        print(f"{len(found)} answers are wrong with SEED={seed} N={number}" + f", {SHOWN} shown" * (len(found) > SHOWN))
    errors, total = sum(report.errors for report in reports), sum(report.answers.total() for report in reports)
    print(f"{errors} of {total} responses 5xx")
    return 1 if found or errors else 0


if __name__ == "__main__":
    sys.exit(main())
