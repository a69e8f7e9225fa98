"""Two weight-calculator processes: one leads, the other is a ready standby; when the leader is killed, the standby
takes over, and every event is folded once."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx2
import msgspec

from slipway_api.events.topics import SERVICE_HEARTBEAT, WORKER_LIFECYCLE
from slipway_common.base.clock import monotonic_seconds
from slipway_common.base.ids import hash_secret
from slipway_common.database import migrate, postgres
from slipway_common.messaging import topic_admin
from slipway_local.servers.child import Child
from slipway_local.servers.ports import free_ports
from tests.support.harness import PARTITIONS, Place, Publisher, publisher, read_all, until
from tests.support.weight_calculator import declared, failed

TOKEN = "takeover"
SERVICE = "weight-calculator"
SECONDS = 60.0


class Replica:
    """A weight-calculator process and its HTTP API."""

    def __init__(self, place: Place, folder: Path, name: str, port: int) -> None:
        tokens = folder / "tokens.yaml"
        tokens.write_bytes(msgspec.json.encode([{"name": "test", "sha256": hash_secret(TOKEN), "scopes": ["admin"]}]))
        self.name = name
        self.url = f"http://127.0.0.1:{port}"
        self.child = Child(
            name,
            [sys.executable, "-m", "slipway_weight_calculator.main"],
            log=folder / f"{name}.log",
            env={
                **os.environ,
                "SLIPWAY_KAFKA": place.kafka.bootstrap,
                "SLIPWAY_DATABASE_URL": place.url,
                "SLIPWAY_TOPIC_PREFIX": place.prefix,
                "SLIPWAY_PARTITIONS": str(PARTITIONS),
                "SLIPWAY_PORT": str(port),
                "SLIPWAY_INSTANCE": name,
                "SLIPWAY_TOKENS_FILE": str(tokens),
                "SLIPWAY_HEARTBEAT_SECONDS": "0.2",
            },
        )
        headers = {"Authorization": f"Bearer {TOKEN}"}
        self.http = httpx2.AsyncClient(base_url=self.url, headers=headers, timeout=SECONDS)

    async def leadership(self) -> str:
        """leader, standby, or empty while it is not ready."""
        try:
            status = (await self.http.get("/status")).json()
        except httpx2.HTTPError:
            return ""
        return status["leadership"]["role"] if status["ready"] else ""

    async def until_it(self, role: str) -> None:
        async def so() -> bool:
            return await self.leadership() == role

        await until(so, f"{self.name} is {role}", seconds=SECONDS)

    async def folded(self) -> dict[str, int]:
        """Failed launches counted in the published records, by config."""
        items = (await self.http.get("/weights")).json()["items"]
        return {item["launch_config_id"]: item["stages"]["launch"]["failures_folded"] for item in items}


@asynccontextmanager
async def replicas(place: Place, folder: Path, *names: str) -> AsyncIterator[list[Replica]]:
    await migrate.upgrade(place.url, SERVICE)
    await topic_admin.create(place.kafka.bootstrap, prefix=place.prefix, partitions=PARTITIONS)
    found = [Replica(place, folder, name, port) for name, port in zip(names, free_ports(len(names)), strict=True)]
    try:
        yield found
    finally:
        for replica in found:
            await replica.child.kill()
            await replica.http.aclose()


async def beats(place: Place) -> list[str]:
    """Instances in the order of their heartbeats."""
    records = await read_all(place, SERVICE_HEARTBEAT.name)
    return [msgspec.json.decode(record.value)["instance"] for record in records if record.key == SERVICE.encode()]


async def test_the_other_goes_on(place: Place, tmp_path: Path) -> None:
    """The takeover is awaited, not timed, since test machines are slow."""
    async with replicas(place, tmp_path, "a", "b") as (a, b), publisher(place) as publish:
        a.child.start()
        await a.until_it("leader")
        b.child.start()
        await b.until_it("standby")
        await publish_all(publish, *(declared(f"zone-{n}") for n in range(3)))
        await publish_all(publish, *(failed(config_id=f"zone-{n % 3}") for n in range(30)))
        await until(lambda: sees(b, 30), "the standby returns what is published", seconds=SECONDS)
        assert (await b.http.get("/readyz")).status_code == 200
        await until(lambda: beaten(place, "a"), "the leader beats", seconds=SECONDS)
        assert set(await beats(place)) == {"a"}
        letter = {"topic": WORKER_LIFECYCLE.name, "partition": 0, "offset": 0}
        refused = await b.http.post("/dead-letters/replay", json=letter)
        detail = "instance a is the leader; send the request there"
        assert (refused.status_code, refused.json()["detail"]) == (409, detail)
        assert (await a.http.post("/dead-letters/replay", json=letter)).status_code == 404

        sending = asyncio.create_task(publish_all(publish, *(failed(config_id=f"zone-{n % 3}") for n in range(200))))
        await a.child.kill()
        killed_at = monotonic_seconds()
        await b.until_it("leader")
        print(f"\ntook over {monotonic_seconds() - killed_at:.1f} s after the kill")
        await sending
        await until(lambda: sees(b, 230), "all is folded", seconds=SECONDS)
        await until(lambda: beaten(place, "b"), "the successor beats", seconds=SECONDS)
        who = await beats(place)
        assert who == sorted(who), "both have beaten at the same time"
        a.child.start()
        await a.until_it("standby")
        await check_journal(place)
        await b.child.stop()
        await a.until_it("leader")
        await until(lambda: sees(a, 230), "it returns what it has read", seconds=SECONDS)


async def publish_all(publish: Publisher, *events: Any) -> None:
    for event in events:
        await publish.send(event)


async def sees(replica: Replica, failures: int) -> bool:
    return sum((await replica.folded()).values()) == failures


async def beaten(place: Place, name: str) -> bool:
    return name in await beats(place)


async def check_journal(place: Place) -> None:
    """The ranges of the journal cover all records read, over both epochs."""
    pool = await postgres.connect(place.url, SERVICE)
    try:
        rows = await pool.fetch("SELECT * FROM journal ORDER BY seq")
    finally:
        await pool.close()
    assert [row["seq"] for row in rows] == list(range(1, len(rows) + 1))
    assert sorted({row["epoch"] for row in rows}) == [1, 2]
    taken: dict[tuple[str, int], list[list[int]]] = {}
    for row in rows:
        for topic, partition, first, end in row["taken"]:
            taken.setdefault((topic, partition), [[0, 0]]).append([first, end])
    assert all(a[1] == b[0] for ranges in taken.values() for a, b in pairwise(ranges))
    assert sum(ranges[-1][1] for (topic, _), ranges in taken.items() if topic == WORKER_LIFECYCLE.name) == 230
