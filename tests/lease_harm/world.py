"""A real broker behind a slow network, the commands of one host, and their records."""

import asyncio
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec

from slipway_common.base.clock import monotonic_seconds
from slipway_common.database import postgres
from slipway_local.servers.kafka import EmbeddedKafka
from slipway_local.servers.ports import free_ports
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_local.servers.supervisor import Supervisor
from tests.histories.actor import request
from tests.histories.system import OPERATOR, SERVICE, System
from tests.lease_harm.judge import Row, Run
from tests.lease_harm.wire import Wire

# Records when it begins, after its imports: the processes start at once, and take seconds on a busy machine.
PROGRAM: Final = """
import pathlib, sys, time
import slipway_client.leases.attempts, slipway_client.leases.run
from slipway_client.cli.main import app
pathlib.Path(sys.argv.pop(1)).write_text(str(time.time()))
app(prog_name="slipway")
"""
# Times by a clock that the command reads itself; its lease is the one in its environment.
COMMAND: Final = 'echo "$(date +%s.%N) $SLIPWAY_LEASE_ID" >"$0"; sleep 11; echo ok; date +%s.%N >>"$0"; exit "$1"'
HOLD: Final = "8s"
TERMS: Final = {
    "limit": 50,
    "hold_seconds": 60.0,
    "ttl_seconds": 8.0,
    "reserve_seconds": 8.0,
    "lock_delay_seconds": 0.0,
    "pacing": "off",
    "backoff": None,
}
STAGGER_SECONDS: Final = 0.25  # each process costs half a second of a core to start
SETTLE_SECONDS: Final = 60.0
ROWS: Final = "SELECT request_id, unleased_by, state FROM leases WHERE request_id = ANY($1::text[])"
HELD: Final = "SELECT coalesce(sum(units), 0)::int FROM leases WHERE lease_pool_id = $1 AND ended_at IS NULL"


class World(System):
    """One broker, whose clients reach it through a wire, and a host with commands under leases."""

    def __init__(self, supervisor: Supervisor, folder: Path, seed: int) -> None:
        (port,) = free_ports(1)
        kafka = EmbeddedKafka(folder / "kafka", port)
        database = EmbeddedPostgres(folder / "postgres", {"fsync": "off"})
        super().__init__(supervisor, folder, kafka, database, name="lease-harm", brokers=1, waiter_ttl_seconds=120.0)
        self.wire = Wire(self.ports[0], Random(seed))
        self.port = 0  # of the wire
        self.seed = seed

    async def open(self, pools: Mapping[str, Mapping[str, Any]]) -> None:
        """Start everything, and declare these pools with terms that differ from TERMS."""
        await self.start()
        self.port = await self.wire.start()
        await self.declare([TERMS | {"id": pool} | dict(terms) for pool, terms in pools.items()])

    def close(self) -> None:
        self.wire.cut()
        super().close()

    @property
    def broker(self) -> str:
        """Name of the broker's process."""
        return self.brokers[0]

    async def call(self, method: str, path: str, body: Any, who: str = OPERATOR) -> dict[str, Any]:
        """Call the broker, past the wire."""
        status, answer = await request(self.ports[0], method, path, body, self.secrets[who])
        if status >= 300:
            raise RuntimeError(f"{method} {path} was refused: {status} {answer}")
        return answer

    def revoke(self, owner: str) -> str:
        """Remove a token from the tokens file; returns it."""
        secret = self.secrets.pop(owner)
        self._write_tokens()
        return secret

    # Commands

    async def run_all(self, phase: str, pool: str, count: int, options: Sequence[str], secret: str) -> list[Run]:
        """Run the commands of a phase, one process each."""
        running = []
        for number in range(count):
            running.append(asyncio.create_task(self._run(phase, pool, number, options, secret)))
            await asyncio.sleep(STAGGER_SECONDS)
        return list(await asyncio.gather(*running))

    async def _run(self, phase: str, pool: str, number: int, options: Sequence[str], secret: str) -> Run:
        request_id, own_code = f"{phase}-{self.seed}-{number}", number % 3
        record, status, begun = (self.folder / f"{request_id}.{name}" for name in ("record", "status", "begun"))
        command = ("sh", "-c", COMMAND, str(record), str(own_code))
        own = ["--request-id", request_id, "--hold", HOLD, "--status-file", str(status)]
        if number % 2:  # it would get a signal at a loss, of which there is none
            own += ["--on-loss", "TERM"]
        arguments = ("run", "--pool", pool, *own, *options, "--", *command)
        process = await self._slipway(begun, *arguments, secret=secret)
        out, err = await process.communicate()
        (self.folder / f"{request_id}.log").write_bytes(err)
        lines = record.read_text().splitlines() if record.exists() else []
        started_at, _, lease_id = lines[0].partition(" ") if lines else ("", "", "")
        assert process.returncode is not None
        return Run(
            request_id=request_id,
            begun_at=float(begun.read_text()),
            exit_code=process.returncode,
            own_code=own_code,
            printed=out.decode(),
            status=msgspec.json.decode(status.read_bytes()) if status.exists() else {},
            started_at=float(started_at) if started_at else None,
            ended_at=float(lines[1]) if len(lines) > 1 else None,
            lease_id=lease_id,
        )

    async def _slipway(self, begun: Path, *arguments: str, secret: str) -> asyncio.subprocess.Process:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SLIPWAY_")}
        environment |= {
            "SLIPWAY_LEASE_BROKER_URL": f"http://127.0.0.1:{self.port}",
            "SLIPWAY_TOKEN": secret,
            "SLIPWAY_STATE_DIR": str(self.folder / "state"),
        }
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            PROGRAM,
            str(begun),
            "lease",
            *arguments,
            env=environment,
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=PIPE,
        )

    async def next_process(self, pool: str, secret: str) -> None:
        """Run one more command on the host, which reports what earlier ones could not."""
        process = await self._slipway(self.folder / "begun", "run", "--pool", pool, "--", "true", secret=secret)
        await process.communicate()

    # Evidence

    async def rows(self, runs: Sequence[Run]) -> list[Row]:
        """Leases of these commands in all pools."""
        found = await self._fetch(ROWS, [run.request_id for run in runs])
        return [
            Row(request_id=row["request_id"], unleased_by=row["unleased_by"], confirmed=row["state"] != "expired")
            for row in found
        ]

    async def held(self, pool: str) -> int:
        """Units held in a pool, once nothing is held any more, or after SETTLE_SECONDS."""
        deadline = monotonic_seconds() + SETTLE_SECONDS
        while True:
            (row,) = await self._fetch(HELD, pool)
            held: int = row[0]
            if not held or monotonic_seconds() > deadline:
                return held
            await asyncio.sleep(0.5)

    async def _fetch(self, statement: str, *arguments: Any) -> list[Any]:
        session = await postgres.session(self.database_url, SERVICE)
        try:
            return list(await session.fetch(statement, *arguments))
        finally:
            await session.close()
