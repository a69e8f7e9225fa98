"""`slipway events tail` and `slipway doctor` on a real broker, as processes of their own."""

import asyncio
import contextlib
import json
import os
import shlex
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import timedelta
from typing import Any

import pytest

from slipway_api.events.alert import AlertRaised
from slipway_api.events.service import ServiceHeartbeat
from slipway_api.events.topics import ALERT, WORKER_LIFECYCLE
from slipway_api.events.worker import Outcome, Result, Scope, Stage, WorkerLaunchFailed
from slipway_common.base.clock import utc_now
from slipway_common.messaging import topic_admin
from tests.support.harness import PARTITIONS, Place, Publisher, publisher, report, until
from tests.support.recorded import LISTED_ALERT, SERVICES, Services, changed, environment, served

COMMAND = (sys.executable, "-c", "from slipway_client.cli.main import app; app(prog_name='slipway')")
SECONDS = 60.0
LAST_WORKER = "01981c6e-8f7a-7d53-9c55-2b7f3f9a12cd"


@pytest.fixture
async def events(place: Place) -> AsyncIterator[Publisher]:
    await place.create(WORKER_LIFECYCLE, ALERT)
    async with publisher(place) as publishing:
        yield publishing


@contextlib.asynccontextmanager
async def slipway(place: Place, *arguments: str, url: str = "http://127.0.0.1:1") -> AsyncIterator[Process]:
    where = environment(url, kafka=place.kafka.bootstrap, prefix=place.prefix)
    process = await asyncio.create_subprocess_exec(
        *COMMAND, *arguments, env=dict(os.environ) | where, stdout=PIPE, stderr=PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def run_command(
    place: Place, *arguments: str, url: str = "http://127.0.0.1:1"
) -> tuple[int | None, list[str], str]:
    """Exit code, lines of stdout, and stderr of a command."""
    async with slipway(place, *arguments, url=url) as process:
        out, err = await asyncio.wait_for(process.communicate(), SECONDS)
    return process.returncode, out.decode().splitlines(), err.decode()


def tail(place: Place, *arguments: str) -> Any:
    return run_command(
        place, "events", "tail", "--topic", "worker.lifecycle", "--topic", "alert", "--no-follow", *arguments
    )


def ago(seconds: float) -> Any:
    return utc_now() - timedelta(seconds=seconds)


async def test_events_are_merged_by_time_over_partitions_and_topics(place: Place, events: Publisher) -> None:
    """Events print in the order of their time, however they were written."""
    alert = AlertRaised(dedup_key="k", subject_kind="account", subject_id="sim-a", kind="odd", summary="it is odd")
    for seconds, partition in ((1, 3), (9, 0), (5, 2), (7, 1)):
        await events.send(report(f"w-{seconds}", "x"), partition=partition, time=ago(seconds))
    await events.send(alert, time=ago(3))
    code, lines, errors = await tail(place)
    assert (code, errors) == (0, "")
    assert [line.split()[2] for line in lines] == ["w-9", "w-7", "w-5", "raised", "w-1"]
    assert [line.split()[2] for line in (await tail(place, "-n", "2"))[1]] == ["raised", "w-1"]


async def test_programs_get_cloud_events(place: Place, events: Publisher) -> None:
    """With the envelope and the place of the record; also for unreadable records and unknown types."""
    refused = Outcome(Stage.LAUNCH, Result.FAILED, Scope.CAPACITY, "", "InsufficientCapacity")
    failed = WorkerLaunchFailed(
        worker_id=LAST_WORKER,
        pool_id="linux",
        launch_config_id="zone-b",
        account_id="a",
        image_revision="i",
        batch_id="b",
        outcome=refused,
    )
    await events.send(failed, partition=1, id="e-1", time=ago(9))
    await events.send(failed, partition=1, id="e-2", type="io.slipway.worker.reborn.v1", time=ago(8))
    await events.send(failed, partition=1, headers=[])
    await events.send(failed, partition=1, value=b"{", time=ago(7))
    code, lines, _ = await tail(place, "-o", "json", "--beginning")
    found = {row["offset"]: row for row in map(json.loads, lines)}
    assert (code, sorted(found)) == (0, [0, 1, 2, 3])
    assert {name: found[0][name] for name in ("specversion", "id", "type", "source", "subject", "slipwaynumber")} == {
        "specversion": "1.0",
        "id": "e-1",
        "type": WorkerLaunchFailed.type,
        "source": "/slipway/elsewhere",
        "subject": LAST_WORKER,
        "slipwaynumber": 1,
    }
    assert (found[0]["topic"], found[0]["partition"]) == (WORKER_LIFECYCLE.name, 1)
    assert found[0]["data"]["outcome"]["code"] == "InsufficientCapacity"
    assert found[1]["type"] == "io.slipway.worker.reborn.v1"
    assert "ce_id" in found[2]["unreadable"]
    assert found[3]["unreadable"]
    people = (await tail(place, "--beginning"))[1]
    assert f"launch_failed    {LAST_WORKER}  capacity InsufficientCapacity  zone-b" in people[0]
    assert sum("unreadable" in line for line in people) == 2


async def test_filters_find_what_is_behind_many_others(place: Place, events: Publisher) -> None:
    """The last of a worker, however many of others came since; --since leaves out what is older."""
    await events.send(report(LAST_WORKER, "mine"), partition=1)
    for number in range(40):
        await events.send(report(f"w-{number}", "other"), partition=1)
    assert [line.split()[-2:] for line in (await tail(place, "--worker", "3f9a12cd"))[1]] == [["mine", "c"]]
    assert len((await tail(place, "--pool", "p", "-n", "100"))[1]) == 41
    assert await tail(place, "--config", "elsewhere") == (0, [], "no events of elsewhere so far\n")
    assert len((await tail(place))[1]) == 10
    assert len((await tail(place, "--since", "10m"))[1]) == 41


async def test_follows_until_ctrl_c(place: Place, events: Publisher) -> None:
    """Prints stored events, then new ones at once; Ctrl-C is a normal end."""
    await events.send(report("w-1", "x"), partition=0)
    async with slipway(place, "events", "tail", "--topic", "worker.lifecycle") as process:
        assert process.stdout is not None
        assert b"w-1" in await asyncio.wait_for(process.stdout.readline(), SECONDS)
        await events.send(report("w-2", "x"), partition=3)
        assert b"w-2" in await asyncio.wait_for(process.stdout.readline(), SECONDS)
        process.send_signal(signal.SIGINT)
        rest, errors = await asyncio.wait_for(process.communicate(), SECONDS)
    assert (process.returncode, rest, errors) == (0, b"", b"")


async def test_a_reader_that_has_seen_enough_ends_it(place: Place, events: Publisher) -> None:
    """As `| head -1` does: no traceback, and no error."""
    for number in range(3):
        await events.send(report(f"w-{number}", "x"), partition=0)
    shell = f"{shlex.join(COMMAND)} events tail --topic worker.lifecycle | head -1; echo ${{PIPESTATUS[0]}}"
    where = environment("http://127.0.0.1:1", kafka=place.kafka.bootstrap, prefix=place.prefix)
    process = await asyncio.create_subprocess_exec(
        "bash", "-c", shell, env=dict(os.environ) | where, stdout=PIPE, stderr=PIPE
    )
    try:
        assert process.stdout is not None
        assert b"w-0" in await asyncio.wait_for(process.stdout.readline(), SECONDS)
        await events.send(report("w-9", "x"), partition=0)  # the reader is gone
        out, errors = await asyncio.wait_for(process.communicate(), SECONDS)
    finally:
        if process.returncode is None:
            process.kill()
    assert (out, errors) == (b"0\n", b"")


async def test_a_topic_that_is_not_there_is_told_with_those_that_are(place: Place, events: Publisher) -> None:
    code, lines, errors = await run_command(place, "events", "tail", "--topic", "pool.lifecycle")
    assert (code, lines) == (1, [])
    assert f"has no topic {place.prefix}slipway.pool.lifecycle.v1" in errors


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[Services, str]]:
    with served() as server:
        yield server


async def test_doctor_on_a_deployment(place: Place, server: tuple[Services, str]) -> None:
    """Exit code 0 without problems; 3 for a missing heartbeat, an open alert, a dead letter or a changed topic."""
    services, url = server
    await topic_admin.create(place.kafka.bootstrap, prefix=place.prefix, partitions=PARTITIONS)

    async with publisher(place) as events:

        async def beat(name: str, seconds: float) -> None:
            heartbeat = ServiceHeartbeat(service=name, instance="0", at=ago(seconds), version="0.1.0")
            await events.send(heartbeat, partition=1, time=ago(seconds))

        async def findings(*checks: str, beating: Sequence[str] = SERVICES) -> dict[str, str]:
            """Findings, once they are of these checks: a busy broker may answer too late for the command."""

            async def found() -> tuple[dict[str, str]] | None:
                for name in beating:
                    await beat(name, 0)
                asked = ("doctor", "-o", "json", "--partitions", str(PARTITIONS))
                code, lines, errors = await run_command(place, *asked, url=url)
                wrong = {row["check"]: row["detail"] for row in json.loads("".join(lines)) if row["grade"] != "ok"}
                assert (code, errors) == (3 if wrong else 0, "")
                return (wrong,) if wrong.keys() == {*checks} else None

            (wrong,) = await until(found)
            return dict(wrong)

        await beat("lease-broker", 3600)
        await findings("heartbeats", beating=SERVICES[:2])
        await findings()
        odd = {"kind": "odd", "subject_id": "sim-a", "summary": "it is odd", "severity": "page"}
        services.alerts = [changed(LISTED_ALERT, **odd)]
        services.dead_letters = 2
        both = {"alerts": "it is odd", "dead letters": "lease-broker has 2 dead letters"}
        assert await findings(*both) == both
        services.alerts, services.dead_letters = [], 0
        await findings()

        async def differs() -> bool:
            code, out, _ = await run_command(place, "doctor", url=url)
            return code == 3 and any(f"{PARTITIONS} partitions, wanted 32" in line for line in out)

        await until(differs)
