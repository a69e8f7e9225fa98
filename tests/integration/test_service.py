"""Service framework: starts without its servers, reports what it waits for, and shuts down gracefully."""

import asyncio
import contextlib
import json
import re
import signal
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
from aiokafka.errors import InvalidReplicationFactorError

from slipway_api.events.alert import START_SECONDS, AlertRaised, AlertResolved
from slipway_api.events.topics import SERVICE_HEARTBEAT, WORKER_LIFECYCLE
from slipway_common.database import postgres
from slipway_common.database.process_alerts import StartNotice
from slipway_common.messaging import topic_admin
from slipway_common.service import Service, ServiceSettings
from slipway_local.servers.kafka import EmbeddedKafka
from slipway_local.servers.ports import free_ports
from slipway_local.servers.postgres import EmbeddedPostgres
from tests.support import harness, readers
from tests.support.harness import PARTITIONS, PATIENCE_SECONDS, SERVICE, Place, publisher, read_all, report, until
from tests.support.processes import Process

REFUSED = 20  # requests
LOST = re.compile("DatabaseUnavailable|ConnectionDoesNotExist|CannotConnectNow|AdminShutdown")
UNOWNED = 'slipway_unowned_partitions{topic="slipway.worker.lifecycle.v1"} 0.0'


async def test_starts_without_servers_and_drains(servers: tuple[EmbeddedKafka, EmbeddedPostgres]) -> None:
    """Live at once; ready when database, broker and topics are available; stopped by SIGTERM."""
    kafka, postgres = servers
    name, (port, door) = harness.new_name(), free_ports(2)
    process = Process("service", postgres.url(name), f"127.0.0.1:{door}", f"{name}.", str(port))
    try:
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_SECONDS) as http:

            async def waits_for(text: str) -> None:
                await until(lambda: answers(http, "/readyz", 503, text), f"not ready because of {text}")

            await until(lambda: answers(http, "/livez", 200), "live")
            await waits_for("the database is unavailable")
            async with harness.new_place(servers, name) as place:
                await waits_for("the broker is unavailable")
                await until(lambda: process.printed("effects 0"), "loops do not wait for the broker")
                await topic_admin.create(kafka.bootstrap, prefix=place.prefix, partitions=PARTITIONS)
                opened = await asyncio.start_server(partial(forward, kafka.bootstrap), "127.0.0.1", door)
                await until(lambda: answers(http, "/readyz", 200), "ready")
                async with publisher(place) as publish:
                    await publish.send(report("w1", "a"))
                await until(lambda: process.printed("effects 1"))

                async def known() -> Any:
                    """Status, once the process knows that it has committed, and the broker has returned end offsets."""
                    answer = (await http.get("/status", headers=readers.HEADERS)).json()
                    return {row["lag"] for row in answer["partitions"]} == {0} and answer["ready"] and answer

                status = await until(known)
                assert (status["reasons"], status["service"]) == ([], SERVICE)
                assert [row["partition"] for row in status["partitions"] if row["owned"]] == list(range(PARTITIONS))
                assert sum(row["end_offset"] for row in status["partitions"]) == 1
                await until(lambda: answers(http, "/metrics", 200, UNOWNED), "the gauge shows that all are owned")
                await until(lambda: heartbeats(place))
                process.terminate()
                await until(lambda: process.exit_code is not None, "it has shut down")
                assert process.exit_code == -signal.SIGTERM  # the server raises it again after the shutdown
                assert process.printed("stopped")
                opened.close()
    finally:
        process.kill()


async def forward(bootstrap: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Proxy to the broker: clients connect here first, then to the advertised address."""
    host, port = bootstrap.split(":")
    from_broker, to_broker = await asyncio.open_connection(host, int(port))
    await asyncio.gather(copy(reader, to_broker), copy(from_broker, writer))


async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await source.read(65_536):
            target.write(data)
    target.close()


async def answers(http: httpx2.AsyncClient, path: str, status: int, text: str = "") -> bool:
    try:
        answer = await http.get(path, headers=readers.HEADERS)
    except httpx2.TransportError:
        return False
    return bool(answer.status_code == status and text in answer.text)


async def heartbeats(place: Place) -> int:
    return len(await read_all(place, SERVICE_HEARTBEAT.name))


async def test_database_outage(servers: tuple[EmbeddedKafka, EmbeddedPostgres]) -> None:
    """Without its database, a service reports so and can be stopped; it is ready again when the database is back. Its
    log has a line at the beginning of the outage and one at the end, with the number of failures, and no traceback."""
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    async with harness.new_place(servers) as place, httpx2.AsyncClient(base_url=url, timeout=PATIENCE_SECONDS) as http:
        await topic_admin.create(place.kafka.bootstrap, prefix=place.prefix, partitions=PARTITIONS)
        process = Process("service", place.url, place.kafka.bootstrap, place.prefix, str(port))
        try:
            await until(lambda: answers(http, "/readyz", 200), "ready")
            await place.postgres.kill()
            await until(lambda: answers(http, "/readyz", 503, "database"), "not ready")
            assert await answers(http, "/livez", 200)
            assert await answers(http, "/status", 200, '"database_now":null')
            for _ in range(REFUSED):
                assert await answers(http, "/audit", 503, "nothing was changed")
            await place.postgres.start()
            await until(lambda: answers(http, "/readyz", 200), "ready again")
            await until(lambda: process.printed("connected to the database again"))
            logged = [line for line in process.output.splitlines() if line.startswith("{")]
            assert process.output.count("Traceback") == 0, process.output
            (began,) = [line for line in logged if "no connection to the database, retrying: " in line]
            assert [line for line in logged if LOST.search(line)] in ([began], [])
            (ended,) = [json.loads(line) for line in logged if "connected to the database again" in line]
            assert ended["failures"] >= REFUSED
            await place.postgres.kill()
            process.terminate()
            await until(lambda: process.exit_code is not None)
            assert process.printed("stopped")
        finally:
            process.kill()
            if not place.postgres.alive:
                await place.postgres.start()


async def test_a_url_that_was_replaced_in_its_file_opens_the_next_connection(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of a pool and that of a session, as after the rotation of a password."""
    file = tmp_path / "url"
    file.write_text(place.url)
    monkeypatch.setenv("SLIPWAY_DATABASE_URL_FILE", str(file))
    monkeypatch.delenv("SLIPWAY_DATABASE_URL", raising=False)
    replaced, found = "postgresql://u:old@127.0.0.1:1/d", []
    for connect in (postgres.session, postgres.connect):
        with contextlib.suppress(OSError):
            opened = await connect(replaced, SERVICE)
            found.append(await opened.fetchval("SELECT 1"))
            await opened.close()
    assert found == [1, 1]


async def test_unowned_partition_is_alerted(place: Place) -> None:
    """A partition that stays assigned but not owned raises an alert, which is resolved afterwards."""

    class Stuck:
        name = "topic"
        waiting_seconds = 0.0

        def unowned_for_seconds(self) -> float:
            return self.waiting_seconds

    stuck: Any = Stuck()
    probe = Service(SERVICE, ServiceSettings(database_url=place.url, kafka="nowhere:1"))
    probe._began -= START_SECONDS
    probe.runtime.subscriptions = [stuck]
    for stuck.waiting_seconds in (9.0, 11.0, 15.0, 0.0, 0.0):
        await probe._watch_partitions(place.database)
    rows = await place.database.fetch("SELECT type FROM outbox ORDER BY id")
    assert [row["type"] for row in rows] == [AlertRaised.type, AlertResolved.type]


async def test_a_notice_of_the_start_lasts_as_long_as_the_process(place: Place) -> None:
    """The next process of the instance, which was started otherwise, resolves it."""
    settings = ServiceSettings(database_url=place.url, kafka="nowhere:1")
    for applies in (True, False):
        notice = StartNotice(
            "odd-start", applies=applies, summary="odd", effect="e", doing="d", command="slipway doctor"
        )
        probe = Service(SERVICE, settings, start_notices=[notice])
        probe._began -= START_SECONDS
        for _ in range(2):
            await probe._watch_partitions(place.database)
    rows = await place.database.fetch("SELECT type, value FROM outbox ORDER BY id")
    assert [row["type"] for row in rows] == [AlertRaised.type, AlertResolved.type]
    assert b'"severity":"notice"' in rows[0]["value"]


async def test_a_slow_start_is_no_page_unless_records_wait(place: Place) -> None:
    """A partition that is not owned in the first minutes has to be claimed only once there is something to read."""
    await place.create(WORKER_LIFECYCLE)
    async with harness.member(place) as joined:
        unowned = joined.subscription
        unowned.owned.clear()
        unowned.assigned = dict.fromkeys(unowned.assigned, 0.0)
        probe = Service(SERVICE, ServiceSettings(database_url=place.url, kafka="nowhere:1"))
        probe.runtime.subscriptions = [unowned]
        await probe._watch_partitions(place.database)
        assert await place.database.fetchval("SELECT count(*) FROM outbox") == 0
        async with harness.publisher(place) as publish:
            await publish.send(harness.report("w1", "here"))
        await probe._watch_partitions(place.database)
        (row,) = await place.database.fetch("SELECT type, value FROM outbox")
    assert row["type"] == AlertRaised.type
    assert b'"command":"slipway doctor' in row["value"]


@pytest.mark.parametrize(
    ("by_acl", "command"), [(False, b"slipway doctor"), (True, b"infra/kafka/acls.sh nowhere:1 '' admin.properties")]
)
async def test_unsendable_partition_is_alerted(place: Place, by_acl: bool, command: bytes) -> None:
    """A partition that cannot be sent to raises an alert, which is resolved once it can."""

    class Refused:
        seconds = 0.0

        def unsendable(self, seconds: float) -> list[tuple[str, int]]:
            return [("topic", 0)] if self.seconds > seconds else []

        def denied(self, seconds: float) -> list[str]:
            return ["topic"] if by_acl and self.seconds > seconds else []

    refused: Any = Refused()
    probe = Service(SERVICE, ServiceSettings(database_url=place.url, kafka="nowhere:1"))
    probe.runtime.relay = place.relay(WORKER_LIFECYCLE)
    for refused.seconds in (9.0, 11.0, 15.0, 0.0, 0.0):
        probe.runtime.relay.publication = refused
        await probe._watch_partitions(place.database)
    rows = await place.database.fetch("SELECT type, value FROM outbox ORDER BY id")
    assert [row["type"] for row in rows] == [AlertRaised.type, AlertResolved.type]
    assert b"cannot publish to all partitions of topic" in rows[0]["value"]
    assert command in rows[0]["value"]


async def test_heartbeats_that_wait_in_a_slow_start_are_no_page(place: Place) -> None:
    """Later they are: then nothing else may be published either."""

    class Refused:
        def unsendable(self, seconds: float) -> list[tuple[str, int]]:
            return [(SERVICE_HEARTBEAT.name, 0)]

        def denied(self, seconds: float) -> list[str]:
            return []

    refused: Any = Refused()
    probe = Service(SERVICE, ServiceSettings(database_url=place.url, kafka="nowhere:1"))
    probe.runtime.relay = place.relay(WORKER_LIFECYCLE)
    probe.runtime.relay.publication = refused
    await probe._watch_partitions(place.database)
    assert await place.database.fetchval("SELECT count(*) FROM outbox") == 0
    probe._began -= START_SECONDS
    await probe._watch_partitions(place.database)
    assert await place.database.fetchval("SELECT count(*) FROM outbox") == 1


async def test_replicas_wait_for_brokers_and_are_refused_after_a_while(
    servers: tuple[EmbeddedKafka, EmbeddedPostgres], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is created. Before, the request is repeated, since a broker may be restarting."""
    monkeypatch.setattr(topic_admin, "BROKERS_SECONDS", 0.0)
    (kafka, _), prefix = servers, f"{harness.new_name()}."
    with pytest.raises(InvalidReplicationFactorError):
        await topic_admin.create(kafka.bootstrap, prefix=prefix, partitions=1, replicas=2)
    assert await topic_admin.diff(kafka.bootstrap, prefix=prefix) == [
        f"{row.name}: missing" for row in topic_admin.wanted(prefix=prefix)
    ]
