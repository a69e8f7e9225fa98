"""Attackers: several kinds of requests at fixed rates from 127.0.0.2 to 127.0.0.9, for some seconds.

The first argument names a file with their plan, the second one that gets what came of it; both are JSON.
"""

import asyncio
import contextlib
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random
from typing import Final

import msgspec

from slipway_common.base.clock import monotonic_seconds, utc_now

ADDRESSES: Final = tuple(f"127.0.0.{number}" for number in range(2, 10))
ANSWER_SECONDS: Final = 20.0
HALF_SECONDS_MAX: Final = 15.0
REPORTERS: Final = 60
"""Clients that report as one worker."""
LARGE_BYTES: Final = 900_000
TOKEN: Final = "stranger-" + "x" * 34


class Plan(msgspec.Struct, frozen=True):
    """Whom to attack, and with what: ports, tokens and the id of a worker."""

    provisioner_port: int
    broker_port: int
    worker_id: str
    worker_token: str
    monitor_token: str
    seed: int
    seconds: float
    half_requests: int


class Done(msgspec.Struct):
    """Counts of requests sent and of their outcomes."""

    sent: int = 0
    seconds: float = 0.0
    statuses: dict[str, int] = {}
    half_requests: int = 0
    half_seconds_max: float = 0.0


class Kind(msgspec.Struct, frozen=True):
    """Requests of one kind: the rate of all, and how many clients send them, each one after another."""

    per_second: float
    clients: int
    request: Callable[[Plan, Random], bytes]
    of_broker: bool = False


def request(method: str, path: str, token: str = "", body: bytes = b"") -> bytes:
    authorization = f"Authorization: Bearer {token}\r\n" if token else ""
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{authorization}Content-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def made_up_source(plan: Plan, rng: Random) -> bytes:
    at = utc_now().isoformat()
    report = {"source": f"made-up-{rng.random()}", "pending": 0, "claimed": 0, "observed_at": at}
    return request("PUT", "/pools/builds/demand", plan.monitor_token, msgspec.json.encode(report))


def made_up_machine(_: Plan, rng: Random) -> bytes:
    machine = {"batch_id": f"{rng.getrandbits(128):032x}", "secret": "x" * 64, "instance_id": "i-1"}
    return request("POST", "/workers/register", body=msgspec.json.encode(machine))


def made_up_worker(plan: Plan, rng: Random) -> bytes:
    return request("POST", f"/workers/{plan.worker_id}/heartbeat", f"slipway-worker-{rng.random()}")


KINDS: Final = {
    "no token": Kind(50, 5, lambda plan, rng: request("GET", "/pools")),
    "unknown token": Kind(50, 5, lambda plan, rng: request("GET", "/workers", TOKEN)),
    "token of another worker": Kind(20, 5, made_up_worker),
    "one worker": Kind(
        150, REPORTERS, lambda plan, rng: request("POST", f"/workers/{plan.worker_id}/heartbeat", plan.worker_token)
    ),
    "made-up sources": Kind(20, 5, made_up_source),
    "made-up machines": Kind(20, 5, made_up_machine),
    "large bodies": Kind(
        8, 4, lambda plan, rng: request("POST", "/stop-launching", body=b"[" + b"0," * (LARGE_BYTES // 2) + b"0]")
    ),
    "leases without a token": Kind(
        30, 5, lambda plan, rng: request("POST", "/lease-pools/acc/leases", body=b"{}"), of_broker=True
    ),
}


class Attackers:
    """All kinds of attackers of one plan."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._rng = Random(plan.seed)
        self._statuses: Counter[str] = Counter()
        self._sent = 0
        self._open: set[asyncio.Task[None]] = set()

    async def run(self) -> Done:
        """Attack, and wait for the end of half requests."""
        began = monotonic_seconds()
        halves = [asyncio.create_task(self._half(number)) for number in range(self._plan.half_requests)]
        kinds = [asyncio.create_task(self._repeat(kind)) for kind in KINDS.values() for _ in range(kind.clients)]
        await asyncio.sleep(self._plan.seconds)
        seconds = monotonic_seconds() - began
        for task in (*kinds, *self._open):
            task.cancel()
        await asyncio.gather(*kinds, *self._open, return_exceptions=True)
        left_open = await asyncio.gather(*halves)
        return Done(self._sent, seconds, dict(self._statuses), len(halves), max(left_open, default=0.0))

    async def _repeat(self, kind: Kind) -> None:
        """Send as one of the clients of a kind, at its time whether or not the request before was answered."""
        interval_seconds = kind.clients / kind.per_second
        due = monotonic_seconds() + self._rng.random() * interval_seconds
        while True:
            await asyncio.sleep(max(0.0, due - monotonic_seconds()))
            task = asyncio.create_task(self._send(kind))
            self._open.add(task)
            task.add_done_callback(self._open.discard)
            due += interval_seconds

    async def _send(self, kind: Kind) -> None:
        content = kind.request(self._plan, self._rng)
        try:
            async with asyncio.timeout(ANSWER_SECONDS), self._connection(of_broker=kind.of_broker) as (reader, writer):
                self._sent += 1
                writer.write(content)
                status = (await reader.readline())[9:12].decode()
        except (OSError, TimeoutError):
            status = "none"
        self._statuses[status] += 1

    async def _half(self, number: int) -> float:
        """Send the beginning of a request, of each second one a header and a part of its body; returns the seconds
        after which the connection was closed, at most HALF_SECONDS_MAX."""
        whole = request("PUT", "/pools/builds/demand", self._plan.monitor_token, b"x" * 900)
        began = monotonic_seconds()
        async with self._connection() as (reader, writer):
            end = len(whole) - 899 if number % 2 else self._rng.randrange(80)
            writer.write(whole[:end])
            with contextlib.suppress(TimeoutError, OSError):
                async with asyncio.timeout(HALF_SECONDS_MAX):
                    while await reader.read(4096):
                        pass
        return monotonic_seconds() - began

    @contextlib.asynccontextmanager
    async def _connection(
        self, *, of_broker: bool = False
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        port = self._plan.broker_port if of_broker else self._plan.provisioner_port
        address = self._rng.choice(ADDRESSES)
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
        try:
            yield reader, writer
        finally:
            writer.transport.abort()


async def main() -> None:
    plan = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Plan)
    Path(sys.argv[2]).write_bytes(msgspec.json.encode(await Attackers(plan).run()))


if __name__ == "__main__":
    asyncio.run(main())
