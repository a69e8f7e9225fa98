"""GET /status: the same on every service, and fast during every outage."""

import asyncio
import contextlib
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import httpx2
import msgspec
import pytest

import slipway_provisioner
from slipway_api.events.topics import WORKER_LIFECYCLE
from slipway_common.base.ids import hash_secret
from slipway_common.messaging.consume import Consumer, Owned
from slipway_common.service import VERSION, Service, ServiceSettings
from slipway_common.web.runtime import Runtime
from slipway_common.web.status import Status
from tests.support.harness import PATIENCE_SECONDS, SERVICE, record_words, until
from tests.support.provisioner import Provisioner, after, report
from tests.support.readers import HEADERS, TOKENS_FILE
from tests.support.recorded import STOPPED_PARTITION

FIELDS = {
    "service",
    "version",
    "instance",
    "ready",
    "reasons",
    "now",
    "database_now",
    "schema_revision",
    "partitions",
    "dead_letters",
    "outbox_oldest_seconds",
    "database_tls",
    "stopped_partitions",
    "leadership",
}

Answer = TypeVar("Answer")
MIGRATIONS = Path(slipway_provisioner.__file__).parent / "migrations/versions"
NEWEST = max(file.name[:4] for file in MIGRATIONS.glob("0*.py"))


async def in_time(asked: Coroutine[Any, Any, Answer]) -> Answer:
    """Status, even if a server hangs."""
    task = asyncio.create_task(asked)
    await asyncio.wait({task}, timeout=PATIENCE_SECONDS)
    assert task.done() or not task.cancel(), "it waits for a server that hangs"
    return task.result()


async def status_of(client: httpx2.AsyncClient) -> dict[str, Any]:
    answer = await in_time(client.get("/status"))
    assert answer.status_code == 200
    status: dict[str, Any] = answer.json()
    assert set(status) == FIELDS
    return status


async def test_database_status(provisioner: Provisioner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clock, schema, dead letters, and the age of the oldest unpublished event."""
    monkeypatch.setattr("slipway_common.web.status.ANSWER_SECONDS", PATIENCE_SECONDS)
    await provisioner.declare()
    await provisioner.demand(report(1))
    await provisioner.set_clock(30)
    letter = (
        'INSERT INTO dead_letter (topic, partition, "offset", subject, state, reason, headers, record_at) '
        "VALUES ('t', 0, 0, 's', 'dead', 'r', '[]', slipway_clock())"
    )
    await provisioner.database.execute(letter)
    async with provisioner.client() as client:
        status = await status_of(client)
    assert (status["service"], status["version"], status["instance"]) == ("provisioner", VERSION, "0")
    assert status["database_now"].replace("Z", "+00:00") == after(30).isoformat()
    assert (status["schema_revision"], status["dead_letters"], status["outbox_oldest_seconds"]) == (NEWEST, 1, 30)
    assert (status["ready"], status["reasons"]) == (False, ["the broker is unavailable or lacks the topics"])


async def test_a_database_that_hangs(provisioner: Provisioner) -> None:
    """Its fields are missing, and it is queried again only once it has answered."""
    async with provisioner.client() as client:
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(provisioner.database.get_max_size()):
                await stack.enter_async_context(provisioner.database.acquire())
            for _ in range(2):
                status = await status_of(client)
                assert status["database_now"] is status["schema_revision"] is status["dead_letters"] is None
                assert "the database is unavailable" in status["reasons"]
            reading = [
                task for task in asyncio.all_tasks() if "_read_database" in repr(task) or "_quietly" in repr(task)
            ]
            assert len(reading) == 1
        await asyncio.gather(*reading)

        async def asked_again() -> bool:
            return bool((await status_of(client))["schema_revision"] == NEWEST)

        await until(asked_again)


async def test_before_the_servers_are_available() -> None:
    """A process without servers reports so, without an address or a password."""
    settings = ServiceSettings(
        database_url="postgresql://slipway:hunter2@nowhere:1/db", kafka="nowhere:2", tokens_file=TOKENS_FILE
    )
    transport = httpx2.ASGITransport(app=Service(SERVICE, settings).app())
    async with httpx2.AsyncClient(transport=transport, base_url="http://service", headers=HEADERS) as client:
        status = await status_of(client)
    assert (status["ready"], status["database_now"], status["partitions"]) == (False, None, [])
    assert not {word for word in ("hunter2", "nowhere") if word in str(status)}


class Consuming:
    """Stand-in for a subscription; its broker answers once it is up."""

    name = "p.slipway.worker.lifecycle.v1"
    consumer = Consumer(SERVICE, WORKER_LIFECYCLE, record_words)

    def __init__(self) -> None:
        self.assigned = {0: 0.0, 3: 0.0, 1: 0.0}
        self.owned = {0: Owned(1, 7), 3: Owned(2, 9)}
        self.stopped = {1: "stored position 9 of cluster x"}
        self.up = asyncio.Event()

    async def ends(self) -> dict[int, int]:
        await self.up.wait()
        return {0: 10, 1: 4, 3: 9}


async def test_positions_and_lag_with_and_without_the_broker() -> None:
    """Positions are known without the broker; end offsets, and so the lag, are not."""
    consuming: Any = Consuming()
    runtime = Runtime()
    runtime.subscriptions = [consuming]
    status = Status(runtime, service=SERVICE, version="1", instance="0")
    down = await in_time(status.read())
    consuming.up.set()

    async def all_known() -> Any:
        answer = await status.read()
        return all(row.end_offset is not None for row in answer.partitions) and answer

    up = await until(all_known, "the broker has answered in time")
    common = [
        {"topic": WORKER_LIFECYCLE.name, "partition": 0, "owned": True, "next_offset": 7},
        {"topic": WORKER_LIFECYCLE.name, "partition": 1, "owned": False, "next_offset": None},
        {"topic": WORKER_LIFECYCLE.name, "partition": 3, "owned": True, "next_offset": 9},
    ]
    assert msgspec.to_builtins(down.partitions) == [row | {"end_offset": None, "lag": None} for row in common]
    known = zip(common, ((10, 3), (4, None), (9, 0)), strict=True)
    assert msgspec.to_builtins(up.partitions) == [row | {"end_offset": end, "lag": lag} for row, (end, lag) in known]
    stopped = STOPPED_PARTITION | {
        "topic": WORKER_LIFECYCLE.name,
        "partition": 1,
        "reason": "stored position 9 of cluster x",
    }
    assert msgspec.to_builtins(up.stopped_partitions) == [stopped]


async def test_stopped_partitions_are_adopted_with_a_right(tmp_path: Path) -> None:
    """One of them, or all, by a token with the scope alone; a topic that is not consumed has a refusal of its own."""

    class Adopting(Consuming):
        async def adopt(self, partition: int, *, at_end: bool, by: str) -> int:
            del self.stopped[partition]
            return 40 if at_end else 0

    consuming: Any = Adopting()
    tokens = tmp_path / "tokens.yaml"
    entry = {"name": "ann", "sha256": hash_secret("secret"), "scopes": ["positions:write"]}
    tokens.write_bytes(msgspec.json.encode([entry]))
    settings = ServiceSettings(database_url="postgresql://nowhere", kafka="nowhere:2", tokens_file=tokens)
    service = Service(SERVICE, settings, consumes={WORKER_LIFECYCLE: record_words})
    service.runtime.subscriptions = [consuming]
    transport = httpx2.ASGITransport(app=service.app())
    of = {"topic": WORKER_LIFECYCLE.name, "at": "begin"}
    async with httpx2.AsyncClient(transport=transport, base_url="http://service") as client:
        assert (await client.post("/positions/adopt-all", json={"at": "end"})).status_code == 401
        client.headers["Authorization"] = "Bearer secret"
        refused = [
            (await client.post("/positions/adopt", json=body)).json()["detail"]
            for body in (of | {"partition": 0}, of | {"partition": 1, "topic": "nothing"})
        ]
        both = [await client.post("/positions/adopt-all", json={"at": "end"}) for _ in range(2)]
    assert refused == [
        f"{WORKER_LIFECYCLE.name}/0 is not stopped in this process",
        f"this service does not consume topic nothing, but {WORKER_LIFECYCLE.name}",
    ]
    adopted = {"topic": WORKER_LIFECYCLE.name, "partition": 1, "next_offset": 40}
    assert [answer.json()["items"] for answer in both] == [[adopted], []]
