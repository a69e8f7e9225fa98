"""`make bench-apply POOLS=2000`: time of a declaration, and what others wait for it.

Applies a declaration of POOLS pools with three launch configs each through the reader of the `slipway` command and a
real provisioner over HTTP, then changes one pool, alone and in the whole declaration, and compares it without a change.
Beside it, other processes ping the service and plan and start other pools all the time. The yardstick, in the same
round, is a plain bulk INSERT of as many rows. Prints the figures, then the claims; exits with 1 if one is false. KEEP=1
writes bench/results/apply.json.
"""

import asyncio
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import asyncpg
import httpx2
import msgspec

from bench import apply_beside, committed
from bench.claims import report as report_claims
from bench.events import surroundings
from bench.spread import Spread, spread
from slipway_api.http.provisioner.declaration import DeclarationResult
from slipway_api.http.provisioner.pools import PoolDetails
from slipway_client.cli.declarations import Declarations
from slipway_client.transport.http import Api, path
from slipway_common.base.ids import hash_secret, new_secret
from slipway_common.database import migrate, postgres
from slipway_common.messaging import topic_admin
from slipway_local.servers.kafka import EmbeddedKafka
from slipway_local.servers.ports import free_ports
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_local.servers.supervisor import Service, Supervisor, http_ready, run
from tests.support.folders import disk_folder
from tests.support.harness import until
from tests.support.provisioner import KEY

POOLS: Final = 2_000
ROUNDS: Final = 2
REPEATS: Final = 3
CONFIGS: Final = 3
ACCOUNTS: Final = 20
POOLS_PER_IMAGE: Final = 10
PARTITIONS: Final = 4
QUIET_SECONDS: Final = 1.0
FIRST_CLAIM, ONE_CLAIM, DIFF_CLAIM = 16.0, 0.4, 1.0
"""Times of the plain INSERT of all rows, in the same run. Two thirds of a first apply are Python: it took 7.6 times as
long where the INSERT took .46 s, and 12 to 13.3 times where PostgreSQL had a faster machine, .33 s, on equal code."""
WAIT_CLAIM: Final = 7.0
"""Times of the longest plan beside nothing, in the same run."""
PHASES: Final = ("nothing", "first apply", "one pool", "whole file", "diff")


class Longest(msgspec.Struct, frozen=True):
    """Longest plan, start and ping of each round during a phase, in milliseconds."""

    plan: Spread
    start: Spread
    ping: Spread


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds by step. `first` is all of a first apply: reading the file, its dry run and its changes. `ratio`: median
    of the first apply's changes over that of the plain INSERT; `one_ratio`: of one pool over one plain commit."""

    command: str
    on: dict[str, Any]
    pools: int
    read: Spread
    first_dry_run: Spread
    first_changes: Spread
    first: Spread
    one_pool: Spread
    whole_file: Spread
    diff: Spread
    plain_insert: Spread
    plain_commit: Spread
    ratio: float
    one_ratio: float
    longest: dict[str, Longest]


class Round:
    """One database with its own provisioner; the seconds of each step, and the samples of the work beside."""

    def __init__(self, url: str, service_url: str, token: str, folder: Path, pools: int) -> None:
        self.database_url = url
        self.api = Api({"provisioner": service_url}, token, timeout_seconds=60)
        self.folder = folder
        self.pools = pools
        self.seconds: dict[str, list[float]] = {}
        self.spans: dict[str, list[tuple[float, float]]] = {}

    async def measure(self) -> None:
        """Take all steps."""
        await self._quiet()
        await self._first_apply()
        await self._plain()
        await self._settle()
        await self._one_pool()
        await self._whole_file()
        await self._diff()

    def longest(self, samples: Sequence[tuple[str, float, float]], phase: str) -> dict[str, float]:
        """Longest sample of each kind that overlaps a phase, in milliseconds."""
        found = {"plan": 0.0, "start": 0.0, "ping": 0.0}
        for kind, at, ms in samples:
            if any(at < end and at + ms / 1000 > begin for begin, end in self.spans[phase]):
                found[kind] = max(found[kind], ms)
        return found

    async def _quiet(self) -> None:
        async def wait() -> None:
            await asyncio.sleep(QUIET_SECONDS)

        await self._timed("nothing", "nothing", wait)

    async def _first_apply(self) -> None:
        began = time.monotonic()
        self.read = await asyncio.to_thread(self._read, "first")
        self.seconds["read"] = [time.monotonic() - began]
        dry = await self._timed("first_dry_run", "first apply", partial(self._put, self.read, dry_run=True))
        await self._timed("first_changes", "first apply", partial(self._put, self.read, confirm=dry.digest))
        self.seconds["first"] = [time.monotonic() - began]

    async def _plain(self) -> None:
        """INSERT as many rows as pools and launch configs, with as much text, in one transaction; then one each."""
        (document,) = self.read.documents.values()
        texts = [line.decode() for line in document.lines for _ in range(1 + CONFIGS)]
        connection = await asyncpg.connect(self.database_url)
        try:
            await connection.execute("CREATE TABLE plain (id bigint PRIMARY KEY, body jsonb)")
            insert = "INSERT INTO plain SELECT * FROM unnest($1::bigint[], $2::jsonb[])"
            rows = partial(connection.execute, insert, list(range(len(texts))), texts)
            await self._timed("plain_insert", "", rows)
            for number in range(20):
                one = partial(connection.execute, insert, [len(texts) + number], texts[-1:])
                await self._timed("plain_commit", "", one)
        finally:
            await connection.close()

    async def _settle(self) -> None:
        """Wait until the events are published. The first plans of the new pools, a minute of work, are dropped, and the
        tables analyzed, as autovacuum does within a minute of so large a change."""
        session = await postgres.session(self.database_url, "provisioner")
        try:
            await session.execute("DELETE FROM dirty_pool WHERE pool_id LIKE 'team/%'")
            published = partial(session.fetchval, "SELECT NOT EXISTS (SELECT FROM outbox)")
            await until(published, "all events are published")
        finally:
            await session.close()
        session = await asyncpg.connect(self.database_url)
        try:
            await session.execute("VACUUM ANALYZE")
        finally:
            await session.close()

    async def _one_pool(self) -> None:
        for number in range(REPEATS * 4):
            where = path("pools", f"team/{number}")
            declared = (await asyncio.to_thread(self.api.get, PoolDetails, "provisioner", where)).declared
            assert declared is not None
            declared["launch_configs"][0]["image"] = f"changed-{number}"
            put = partial(asyncio.to_thread, self.api.put, DeclarationResult, "provisioner", where, declared)
            await self._timed("one_pool", "one pool", put)

    async def _whole_file(self) -> None:
        await asyncio.to_thread(self._put_now, self._read("first"))  # undoes the changes of single pools
        for number in range(REPEATS):
            body = self._read(f"whole-{number}")
            await self._timed("whole_file", "whole file", partial(self._put, body))

    async def _diff(self) -> None:
        body = self._read(f"whole-{REPEATS - 1}")
        for _ in range(REPEATS):
            answer = await self._timed("diff", "diff", partial(self._put, body, dry_run=True))
            if answer.items:
                raise AssertionError(f"the deployment differs from its file: {answer.items[:3]}")

    def _read(self, image: str) -> Declarations:
        """Read the declaration as the command does; its last pool has this image."""
        file = self.folder / "bench.yaml"
        file.write_text(text(self.pools, image))
        declared = Declarations()
        declared.read([file], 1.0)
        return declared

    async def _put(self, declared: Declarations, **how: Any) -> DeclarationResult:
        return await asyncio.to_thread(self._put_now, declared, **how)

    def _put_now(self, declared: Declarations, **how: Any) -> DeclarationResult:
        return self.api.put(DeclarationResult, "provisioner", "/declaration", declared.lines, **how)

    async def _timed(self, name: str, phase: str, step: Callable[[], Any]) -> Any:
        began = time.monotonic()
        answer = await step()
        ended = time.monotonic()
        self.seconds.setdefault(name, []).append(ended - began)
        if phase:
            self.spans.setdefault(phase, []).append((began, ended))
        return answer


def text(pools: int, image: str) -> str:
    """A declaration as people write it: a pool has a launch config in each of three zones."""
    lines = ["version: 1", "accounts:"]
    lines += [
        f"  - {{id: account-{number}, provider: simulated, region: r, credential: none, identity: i, lease_pool: all}}"
        for number in range(ACCOUNTS)
    ]
    lines.append("worker_pools:")
    for number in range(pools):
        lines += [f"  - id: team/{number}", "    max_capacity: 100", "    launch_configs:"]
        lines += [
            f"      - {{account: account-{number % ACCOUNTS}, zone: zone-{zone}, instance_type: m5.large, "
            f"image: linux-{image if number == pools - 1 else number // POOLS_PER_IMAGE}, settings: {{disk_gb: 40}}}}"
            for zone in "abc"[:CONFIGS]
        ]
    return "\n".join(lines) + "\n"


async def measure(supervisor: Supervisor) -> int:
    """Measure several rounds on embedded servers."""
    pools = int(os.environ.get("POOLS", POOLS))
    before = os.getloadavg()[0]
    with disk_folder("slipway-bench-") as folder:
        server, kafka = EmbeddedPostgres(folder / "postgres"), EmbeddedKafka(folder / "kafka")
        print("starting Apache Kafka and PostgreSQL …", flush=True)
        await supervisor.start(server, kafka)
        seconds: dict[str, list[float]] = {}
        longest: dict[str, list[dict[str, float]]] = {phase: [] for phase in PHASES}
        for number in range(1, ROUNDS + 1):
            print(f"round {number} of {ROUNDS} …", flush=True)
            (folder / str(number)).mkdir()
            one, samples = await _round(supervisor, server, kafka, folder / str(number), pools)
            for step, values in one.seconds.items():
                seconds.setdefault(step, []).extend(values)
            for phase in PHASES:
                longest[phase].append(one.longest(samples, phase))
        await supervisor.stop()
    spreads = {step: spread(values) for step, values in seconds.items() if step != "nothing"}
    results = Results(
        command=f"make bench-apply POOLS={pools}",
        on=surroundings(before) | {"rounds": ROUNDS},
        pools=pools,
        **spreads,
        ratio=round(spreads["first_changes"].median / spreads["plain_insert"].median, 1),
        one_ratio=round(spreads["one_pool"].median / spreads["plain_commit"].median, 1),
        longest={
            phase: Longest(*(spread([each[kind] for each in rounds]) for kind in ("plan", "start", "ping")))
            for phase, rounds in longest.items()
        },
    )
    committed.write_json(os.environ, "apply.json", results)
    return report(results)


def report(results: Results) -> int:
    """Print the figures, then the claims."""
    print(f"\nminimum / median / maximum in seconds of {results.pools} pools on {results.on}")
    for name, value in (
        ("first apply", f"{results.first}: reads {results.read}, dry run {results.first_dry_run}, "),
        ("", f"changes {results.first_changes} = {results.ratio} × a plain INSERT ({results.plain_insert})"),
        ("one pool", f"{results.one_pool} = {results.one_ratio} × a plain commit ({results.plain_commit})"),
        ("whole file", f"{results.whole_file} with one change"),
        ("diff", f"{results.diff}"),
    ):
        print(f"{name:<12} {value}")
    print("longest plan, start and ping beside in milliseconds: minimum / median / maximum of the rounds")
    for phase, waits in results.longest.items():
        print(f"{phase:<12} plan {waits.plan}, start {waits.start}, ping {waits.ping}")
    claims = {}
    for what, taken, most in (
        ("first apply", results.first, FIRST_CLAIM),
        ("one changed pool", results.one_pool, ONE_CLAIM),
        ("diff", results.diff, DIFF_CLAIM),
    ):
        times = taken.median / results.plain_insert.median
        claims[f"{what} {times:.2g} × a plain INSERT ≤ {most:g}"] = times <= most
    during = [waits for phase, waits in results.longest.items() if phase != "nothing"]
    longest = max(each.median for waits in during for each in (waits.plan, waits.start))
    times = longest / results.longest["nothing"].plan.median
    claims[f"longest plan or start beside {times:.2g} × that beside nothing ≤ {WAIT_CLAIM:g}"] = times <= WAIT_CLAIM
    return report_claims(claims)


async def _round(
    supervisor: Supervisor, server: EmbeddedPostgres, kafka: EmbeddedKafka, folder: Path, pools: int
) -> tuple[Round, list[tuple[str, float, float]]]:
    url = await server.create_database(f"apply_{folder.name}")
    await migrate.upgrade(url, "provisioner")
    await apply_beside.prepare(url)
    prefix, token = f"round-{folder.name}.", new_secret()
    await topic_admin.create(kafka.bootstrap, prefix=prefix, partitions=PARTITIONS)
    entry = {"name": "bench", "sha256": hash_secret(token), "scopes": ["admin"]}
    (folder / "tokens.yaml").write_text(f"- {msgspec.json.encode(entry).decode()}\n")
    (folder / "tokens.yaml").chmod(0o600)
    (port,) = free_ports(1)
    env = {key: value for key, value in os.environ.items() if not key.startswith("SLIPWAY_")} | {
        "SLIPWAY_KAFKA": kafka.bootstrap,
        "SLIPWAY_TOPIC_PREFIX": prefix,
        "SLIPWAY_PARTITIONS": str(PARTITIONS),
        "SLIPWAY_DATABASE_URL": url,
        "SLIPWAY_PORT": str(port),
        "SLIPWAY_TOKENS_FILE": str(folder / "tokens.yaml"),
        "SLIPWAY_REGISTRATION_KEYS": KEY,
        "SLIPWAY_SECRETS_IN_ENVIRONMENT": "yes",
        "SLIPWAY_PROVIDERS": "{simulated: {entries: {default: {url: 'http://127.0.0.1:1'}}}}",
        "SLIPWAY_LAUNCHING": "false",
    }
    name, service_url = f"provisioner-{folder.name}", f"http://127.0.0.1:{port}"
    argv = [sys.executable, "-m", "slipway_provisioner.main"]
    ready = partial(http_ready, port)
    await supervisor.start(
        Service(name, argv, env=env, log=folder / "provisioner.log", ready=ready, start_seconds=60.0)
    )
    beside = {"ping": service_url, "work": url}
    for kind, where in beside.items():
        argv = [sys.executable, "-m", "bench.apply_beside", kind, where, str(folder / kind)]
        await supervisor.start(Service(f"{kind}-{folder.name}", argv, env=env, log=folder / f"{kind}.log"))
    one = Round(url, service_url, token, folder, pools)
    async with httpx2.AsyncClient() as client:
        while not all((folder / kind).exists() and (folder / kind).stat().st_size for kind in beside):
            await client.get(f"{service_url}/livez")
    await one.measure()
    if dead := supervisor.dead():
        raise AssertionError(f"{', '.join(dead)} exited: {supervisor[dead[0]].log_tail()}")
    for part in (name, *(f"{kind}-{folder.name}" for kind in beside)):
        await supervisor.kill(part)
    lines = [line.split() for kind in beside for line in (folder / kind).read_text().splitlines()]
    return one, [(line[0], float(line[1]), float(line[2])) for line in lines if len(line) == 3]


if __name__ == "__main__":
    sys.exit(run(measure))
