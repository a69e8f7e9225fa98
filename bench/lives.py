"""`make bench-lives`: what the lives of workers leave behind and ask for, by their number.

Workers live one after another in a real database: a task is reported, planned for, admitted, launched, registered,
claimed and done, then the worker idles, is stopped and terminated. Counted are the provisioner's decisions, its
transactions that write, the events that it publishes with their bytes, and the rows and bytes of its tables. A line is
fitted through the counts of each number of lives: its slope is the cost of one. Prints the slopes, then the claims;
exits with 1 if one is false. LIVES=25,50,100,200.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from statistics import linear_regression
from typing import Final

import structlog

from bench.claims import report as report_claims
from slipway_api.events.lease import LeaseRequested
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_local.servers.supervisor import Supervisor, run
from slipway_provisioner.store import workers
from tests.support.folders import disk_folder
from tests.support.harness import make_template
from tests.support.provisioner import Provisioner, after, declared, provisioner_on, report

LIVES: Final = (25, 50, 100, 200)
FIT_CLAIM: Final = 0.99
"""Least share of the variance of a count that a line explains: what a life costs does not depend on those before it."""
TASK_SECONDS: Final = 600.0
IDLE_SECONDS: Final = 400.0
EVENTS: Final = "SELECT count(*)::float8, sum(length(value))::float8 FROM outbox WHERE value IS NOT NULL"
WRITES: Final = "SELECT pg_current_xact_id()::text::float8"
TABLES: Final = """
SELECT relname, pg_total_relation_size(oid)::float8 AS bytes FROM pg_class
WHERE relkind = 'r' AND relnamespace = 'provisioner'::regnamespace AND relname NOT IN ('outbox', 'outbox_subject')"""
BOUNDED: Final = frozenset({"config_usage", "shared_usage", "dirty_pool"})
"""Tables whose rows are folded or planned away: how many there are is chance."""


async def _live(provisioner: Provisioner, number: int) -> int:
    """Play one worker from its task's report to its end; returns the number of decisions."""
    at = 1000.0 * number
    decisions = 0

    async def plan() -> None:
        nonlocal decisions
        while await provisioner.plan_step():
            decisions += 1

    await provisioner.set_clock(at)
    await provisioner.demand(report(1, 0, at=at))
    await plan()
    for request in await provisioner.published(LeaseRequested):
        grant = provisioner.granted(request, expires_at=after(at + 180), hold_until=after(at + 1200))
        await provisioner.leases(grant)
    await provisioner.launch()
    row = await provisioner.database.fetchrow(f"{workers.SELECT} WHERE state = 'starting'")
    worker = workers.from_row(row)
    await provisioner.set_clock(at + 30)
    answer = (await provisioner.register(worker.instance_id or "", worker.batch_id)).json()
    await plan()
    async with provisioner.client(token=answer["token"]) as client:
        path = f"/workers/{worker.id}"
        claim = {"task_id": f"task-{number}", "source": "q", "at": after(at + 31).isoformat()}
        (await client.post(f"{path}/claimed", json=claim)).raise_for_status()
        await provisioner.demand(report(0, 1, at=at + 32))
        await plan()
        await provisioner.set_clock(at + TASK_SECONDS / 2)
        (await client.post(f"{path}/idle", json={"at": after(at + TASK_SECONDS / 2).isoformat()})).raise_for_status()
    await provisioner.demand(report(0, 0, at=at + TASK_SECONDS / 2 + 1, valid_for_seconds=3600))
    await plan()
    await provisioner.set_clock(at + TASK_SECONDS / 2 + IDLE_SECONDS / 2)
    await provisioner.sweep_now()
    await plan()
    await provisioner.set_clock(at + TASK_SECONDS / 2 + IDLE_SECONDS)
    await provisioner.terminate_instances()
    await provisioner.reap()
    await plan()
    if set(await provisioner.states()) != {"stopped"}:
        raise AssertionError(f"workers are {await provisioner.states()} after {number} lives")
    return decisions


async def _counts(server: EmbeddedPostgres, lives: int) -> dict[str, float]:
    """Counts after a number of lives in a database of their own."""
    async with provisioner_on(server) as provisioner:
        await provisioner.declare(declared("zone-a"))
        await provisioner.trust()
        before = await provisioner.database.fetchval(WRITES)
        decisions = sum([await _live(provisioner, number) for number in range(1, lives + 1)])
        events, event_bytes = await provisioner.database.fetchrow(EVENTS)
        tables = await provisioner.database.fetch(TABLES)
        rows = 0.0
        for table in (each for each in tables if each["relname"] not in BOUNDED):
            rows += await provisioner.database.fetchval(f"SELECT count(*) FROM {table['relname']}")
        return {
            "decisions": float(decisions),
            "writing transactions": await provisioner.database.fetchval(WRITES) - before,
            "events": events,
            "bytes of events": event_bytes,
            "rows": rows,
            "bytes of tables": sum(table["bytes"] for table in tables),
        }


def fitted(lives: Sequence[int], counts: Sequence[Mapping[str, float]]) -> dict[str, tuple[float, float]]:
    """Slope of each count by the number of lives, and the share of its variance that the line explains."""
    found = {}
    for name in counts[0]:
        values = [each[name] for each in counts]
        slope, intercept = linear_regression(lives, values)
        mean = sum(values) / len(values)
        left = sum((value - intercept - slope * number) ** 2 for number, value in zip(lives, values, strict=True))
        found[name] = slope, 1 - left / max(1e-9, sum((value - mean) ** 2 for value in values))
    return found


async def measure(supervisor: Supervisor, *, lives: Sequence[int]) -> int:
    """Play all numbers of lives on an embedded server."""
    with disk_folder("slipway-bench-") as folder:
        server = EmbeddedPostgres(folder / "postgres")
        await supervisor.start(server)
        await make_template(server)
        counts = []
        for number in lives:
            print(f"{number} lives …", flush=True)
            counts.append(await _counts(server, number))
        await supervisor.stop()
    slopes = fitted(lives, counts)
    print(f"\n{'of one worker':<20}{'slope':>10}   explained")
    for what, (slope, explained) in slopes.items():
        print(f"{what:<20}{slope:>10,.1f}   {explained:.4f}")
    return report_claims(
        {
            f"{what} grow by the line, {explained:.3f} ≥ {FIT_CLAIM}": explained >= FIT_CLAIM
            for what, (_, explained) in slopes.items()
        }
    )


def main() -> int:
    given = os.environ.get("LIVES") or ",".join(map(str, LIVES))
    try:
        lives = sorted({int(number) for number in given.split(",")})
    except ValueError:
        lives = []
    if len(lives) < 3 or lives[0] < 1:
        print(f"LIVES={given}: write three numbers or more, such as 25,50,100", file=sys.stderr)
        return 2
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    return run(partial(measure, lives=lives))


if __name__ == "__main__":
    sys.exit(main())
