"""Watching services that become unavailable and return; and the command without a terminal."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from slipway_client.cli.watching import ANSWERS_KEPT, Watch, fetcher
from slipway_common.base.clock import utc_now
from tests.support import screens
from tests.support.harness import until
from tests.support.recorded import LISTED_ALERT
from tests.support.serving import listening

SLIPWAY = str(Path(sys.executable).with_name("slipway"))
NOWHERE = "http://127.0.0.1:1"
SERVICES = ("provisioner", "weight-calculator", "lease-broker")
TRIPPED = {"health_state": "tripped", "weight": 0.02, "reason": "linux-zone-b tripped: 2 capacity errors"}


def shows(watch: Watch, text: str) -> bool:
    return any(text in line.text for line in watch.snapshot().lines)


class Deployment:
    """All three services at one address; the path in `down` answers 503."""

    def __init__(self) -> None:
        self.app = FastAPI()
        self.down = ""
        self.config: dict[str, Any] = msgspec.to_builtins(screens.config(id="linux-zone-b", weight=0.9))
        pool = msgspec.to_builtins(screens.pool(id="linux", mode="enforce", pending=12))
        self.pools: Any = {"items": [pool | {"later": "fields"}]}
        self.alerts: list[dict[str, Any]] = []
        self.url = ""

        @self.app.get("/{what}")
        async def answer(what: str) -> Response:
            if what == self.down:
                return JSONResponse({"title": "Temporarily unavailable", "detail": "no database"}, 503)
            answers = {
                "pools": self.pools,
                "launch-configs": {"items": [self.config]},
                "lease-pools": {"items": [msgspec.to_builtins(screens.lease_pool(id="sim-a", limit=45))]},
                "launch-stops": {"items": []},
                "alerts": {"items": self.alerts, "next": None},
                "readyz": {"ready": True, "reasons": []},
            }
            found = answers[what]
            return found if isinstance(found, Response) else JSONResponse(found)


@pytest.fixture
async def deployment() -> AsyncIterator[Deployment]:
    made = Deployment()
    async with listening(made.app) as made.url:
        yield made


@pytest.fixture
async def watch(deployment: Deployment) -> AsyncIterator[Watch]:
    async with fetcher(dict.fromkeys(SERVICES, deployment.url), {}) as fetch:
        watch = Watch(fetch, title="top", interval_seconds=0.05)
        running = asyncio.create_task(watch.run())
        await until(lambda: watch.complete)
        yield watch
        running.cancel()
        await asyncio.wait({running})


async def test_an_unavailable_service_keeps_its_last_values_and_has_one_line(
    deployment: Deployment, watch: Watch
) -> None:
    assert watch.problems == {}
    deployment.down = "lease-pools"
    await until(lambda: watch.problems)
    seen = watch.snapshot()
    assert [pool.id for pool in seen.lease_pools] == ["sim-a"]
    missing = seen.unavailable("lease-broker")
    assert missing is not None
    assert missing.answered
    deployment.down = ""
    await until(lambda: not watch.problems)
    assert [line.text for line in watch.take()] == [
        "lease-broker is unavailable: 503 no database",
        "lease-broker is available again",
    ]
    assert watch.take() == []


async def test_without_kafka_health_comes_from_answers(deployment: Deployment, watch: Watch) -> None:
    """A tripped config keeps one line, which counts its probes."""
    for hours in (1, 2):
        probe = (utc_now() + timedelta(hours=hours)).isoformat()
        failed = f"{TRIPPED['reason']}; {hours} failed probes"
        deployment.config = deployment.config | TRIPPED | {"next_probe_at": probe, "reason": failed}
        await until(partial(shows, watch, f"{hours} failed"))
        assert len(watch.snapshot().lines) == 1
    deployment.config = deployment.config | {"health_state": "healthy", "next_probe_at": None, "reason": ""}
    await until(lambda: len(watch.snapshot().lines) == 2)
    tripped, recovered = (line.text for line in watch.take())
    assert tripped.startswith("linux-zone-b tripped: 2 capacity errors; 2 failed probes; next probe in ")
    assert recovered == "linux-zone-b recovered: a start succeeded"
    deployment.config = deployment.config | TRIPPED | {"next_probe_at": probe}
    await until(lambda: len(watch.snapshot().lines) == 3)


async def test_open_alerts_come_from_every_service(deployment: Deployment, watch: Watch) -> None:
    """No Kafka is needed; pages come first. An alert that ends is gone."""
    given = {"dedup_key": "k/1", "kind": "slow", "severity": "notice", "since": utc_now().isoformat()}
    notice = LISTED_ALERT | given
    deployment.alerts = [notice, notice | {"dedup_key": "k/2", "severity": "page"}]
    await until(lambda: len(watch.snapshot().alerts) == 2 * len(SERVICES))
    assert [alert.severity for alert in watch.snapshot().alerts] == ["page"] * 3 + ["notice"] * 3
    deployment.alerts = []
    await until(lambda: not watch.snapshot().alerts)


async def test_a_malformed_answer_is_a_problem_not_a_crash(deployment: Deployment, watch: Watch) -> None:
    encoded = Response(b'{"items": [{"id": "f\xfcr alle"}]}', media_type="application/json")
    answers: list[Any] = [{"items": [{"id": 7}]}, {"things": []}, ["items"], None, encoded]
    for nonsense in answers:
        deployment.pools = nonsense
        await until(lambda: "provisioner" in watch.problems)
        deployment.pools = {"items": []}
        await until(lambda: not watch.problems)


async def test_answers_of_pages_that_are_gone_are_not_kept() -> None:
    """While more alerts are open than one page has, each new one moves the cursors of the pages after the first."""
    app, known = FastAPI(), list[str | None]()

    @app.get("/alerts")
    async def alerts(request: Request) -> Response:
        known.append(request.headers.get("if-none-match"))
        return Response(b"{}", headers={"ETag": '"tag"'})

    async with listening(app) as url, fetcher({"provisioner": url}, {}) as fetch:
        pages = [f"/alerts?cursor={number}" for number in range(ANSWERS_KEPT + 1)]
        for page in (*pages, pages[-1], pages[0]):
            await fetch("provisioner", page)
    assert known[-2:] == ['"tag"', None]


async def slipway(*arguments: str, url: str) -> asyncio.subprocess.Process:
    where = {f"SLIPWAY_{name.upper().replace('-', '_')}_URL": url for name in SERVICES}
    return await asyncio.create_subprocess_exec(
        SLIPWAY,
        *arguments,
        env=os.environ | where | {"KAFKA": "127.0.0.1:1"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def test_once_in_a_pipe(deployment: Deployment) -> None:
    """A line per pool; without Kafka a message is printed, and the exit code is 0."""
    process = await slipway("top", "--once", url=deployment.url)
    out, err = await process.communicate()
    assert out.decode().rstrip().endswith("linux  12 pending   0 claimed   0/0 serving  linux-zone-b 100%")
    assert "kafka is unavailable: " in err.decode()
    assert "Traceback" not in err.decode()
    assert process.returncode == 0


async def test_unavailable_services_are_named(deployment: Deployment) -> None:
    process = await slipway("top", "--once", url=NOWHERE)
    _, err = await process.communicate()
    assert [line.split(" is unavailable: ")[0] for line in err.decode().splitlines()] == [*SERVICES, "kafka"]
    assert process.returncode == 1


async def test_interrupt_ends_it(deployment: Deployment) -> None:
    process = await slipway("top", "--interval", "0.1", url=deployment.url)
    assert process.stdout is not None
    try:
        seen = [await process.stdout.readline() for _ in range(6)]
    finally:
        process.send_signal(signal.SIGINT)
    assert any(b" 12 pending " in line for line in seen)
    _, err = await process.communicate()
    assert (process.returncode, err) == (0, b"")


async def test_a_closed_pipe_ends_it(deployment: Deployment) -> None:
    where = {f"SLIPWAY_{name.upper().replace('-', '_')}_URL": deployment.url for name in SERVICES}
    shell = await asyncio.create_subprocess_shell(
        f"{SLIPWAY} top --interval 0.1 | head -n 3",
        env=os.environ | where | {"KAFKA": "127.0.0.1:1"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await shell.communicate()
    assert (len(out.splitlines()), err) == (3, b"")
