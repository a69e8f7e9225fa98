"""Watching services that answer, fall silent and come back; and the command where nobody has a terminal."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI
from fastapi.responses import JSONResponse

from slipway_client.watching import Watch, asking
from slipway_common.clock import utc_now
from tests.harness import until

SLIPWAY = str(Path(sys.executable).with_name("slipway"))
NOWHERE = "http://127.0.0.1:1"
SERVICES = ("provisioner", "weight-calculator", "lease-broker")
CLOSED = {"circuit": "closed", "weight": 0.02, "reason": "zone-b: closed, 2 capacity errors"}


class Deployment:
    """All three services at one address, as they answer; `down` ones say 503."""

    def __init__(self) -> None:
        self.app = FastAPI()
        self.down = ""
        self.config: dict[str, Any] = {"id": "linux-zone-b", "pool_id": "linux", "weight": 0.9}
        self.pools: Any = {"items": [{"id": "linux", "mode": "enforce", "pending": 12, "later": "fields"}]}
        self.url = ""

        @self.app.get("/{what}")
        async def answer(what: str) -> JSONResponse:
            if what == self.down:
                return JSONResponse({"title": "Temporarily unavailable", "detail": "no database"}, 503)
            answers = {
                "pools": self.pools,
                "launch-configs": {"items": [self.config]},
                "lease-pools": {"items": [{"id": "sim-a", "limit": 45}]},
                "brakes": {"items": []},
                "readyz": {"ready": True, "reasons": []},
            }
            return JSONResponse(answers[what])


@pytest.fixture
async def deployment() -> AsyncIterator[Deployment]:
    made = Deployment()
    server = uvicorn.Server(uvicorn.Config(made.app, port=0, log_level="warning"))
    socket = server.config.bind_socket()
    made.url = f"http://127.0.0.1:{socket.getsockname()[1]}"
    serving = asyncio.create_task(server.serve([socket]))
    yield made
    server.should_exit = True
    await serving


@pytest.fixture
async def watch(deployment: Deployment) -> AsyncIterator[Watch]:
    async with asking(dict.fromkeys(SERVICES, deployment.url), {}) as ask:
        watch = Watch(ask, title="top", interval_seconds=0.05)
        running = asyncio.create_task(watch.run())
        await until(lambda: watch.complete)
        yield watch
        running.cancel()
        await asyncio.wait({running})


async def test_silence_keeps_the_last_values_and_is_told_once(deployment: Deployment, watch: Watch) -> None:
    assert watch.problems == {}
    deployment.down = "lease-pools"
    await until(lambda: watch.problems)
    seen = watch.snapshot()
    assert [pool.id for pool in seen.lease_pools] == ["sim-a"]
    silent = seen.silent("lease-broker")
    assert silent is not None
    assert silent.answered
    deployment.down = ""
    await until(lambda: not watch.problems)
    assert [line.text for line in watch.take()] == [
        "lease-broker does not answer: 503 no database",
        "lease-broker answers again",
    ]
    assert watch.take() == []


async def test_without_kafka_circuits_are_told_from_answers(deployment: Deployment, watch: Watch) -> None:
    probe = (utc_now() + timedelta(hours=1)).isoformat()
    deployment.config = deployment.config | CLOSED | {"next_probe_at": probe}
    await until(lambda: watch.snapshot().lines)
    deployment.config = deployment.config | {"circuit": "open", "next_probe_at": None, "reason": "zone-b: open"}
    await until(lambda: len(watch.snapshot().lines) == 2)
    closed, opened = (line.text for line in watch.take())
    assert closed.startswith("zone-b closed: 2 capacity errors, next probe 3")
    assert opened == "zone-b open again: a start succeeded"


async def test_what_is_no_answer_of_ours_is_a_problem_not_a_crash(deployment: Deployment, watch: Watch) -> None:
    answers: list[Any] = [{"items": [{"id": 7}]}, {"things": []}, ["items"], None]
    for nonsense in answers:
        deployment.pools = nonsense
        await until(lambda: "provisioner" in watch.problems)
        deployment.pools = {"items": []}
        await until(lambda: not watch.problems)


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
    """A line per pool; that Kafka is not there is said in words, but is no failure of what was asked."""
    process = await slipway("top", "--once", url=deployment.url)
    out, err = await process.communicate()
    assert out.decode().rstrip().endswith("linux  12 waiting   0 running   0/0 up  linux-zone-b 100%")
    assert "kafka does not answer: " in err.decode()
    assert "Traceback" not in err.decode()
    assert process.returncode == 0


async def test_services_that_are_not_there_are_named(deployment: Deployment) -> None:
    process = await slipway("top", "--once", url=NOWHERE)
    _, err = await process.communicate()
    assert [line.split(" does not answer: ")[0] for line in err.decode().splitlines()] == [*SERVICES, "kafka"]
    assert process.returncode == 1


async def test_interrupt_is_how_it_ends(deployment: Deployment) -> None:
    process = await slipway("top", "--interval", "0.1", url=deployment.url)
    assert process.stdout is not None
    try:
        seen = [await process.stdout.readline() for _ in range(6)]
    finally:
        process.send_signal(signal.SIGINT)
    assert any(b" 12 waiting " in line for line in seen)
    _, err = await process.communicate()
    assert (process.returncode, err) == (0, b"")


async def test_a_reader_who_has_seen_enough(deployment: Deployment) -> None:
    where = {f"SLIPWAY_{name.upper().replace('-', '_')}_URL": deployment.url for name in SERVICES}
    shell = await asyncio.create_subprocess_shell(
        f"{SLIPWAY} top --interval 0.1 | head -n 3",
        env=os.environ | where | {"KAFKA": "127.0.0.1:1"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await shell.communicate()
    assert (len(out.splitlines()), err) == (3, b"")
