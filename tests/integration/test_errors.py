"""Errors that workers report: stored with a sample, bounded per worker, and counted in full."""

import asyncio
from collections.abc import AsyncIterator

import httpx2
import pytest

from slipway_api.events.worker import WorkerErrorReported
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_provisioner.store import errors
from tests.support.provisioner import Provisioner, provisioner_on, revision_id


@pytest.fixture
async def provisioner(postgres: EmbeddedPostgres) -> AsyncIterator[Provisioner]:
    async with provisioner_on(postgres) as product:
        yield product


async def booted(provisioner: Provisioner, workers: int = 1) -> list[tuple[str, str]]:
    """Ids and tokens of workers that have registered."""
    found = await provisioner.starting(workers)
    answers = [await provisioner.register(worker.instance_id or "", worker.batch_id) for worker in found]
    return [(answer.json()["worker_id"], answer.json()["token"]) for answer in answers]


async def reported(client: httpx2.AsyncClient, worker_id: str, code: str, detail: str = "") -> None:
    answer = await client.post(f"/workers/{worker_id}/error", json={"kind": code, "detail": detail})
    assert answer.status_code == 200, answer.text


async def test_errors_are_listed_and_counted(provisioner: Provisioner) -> None:
    """Newest first, without secrets, with config and image; by code and hour; the launch config names them."""
    ((first, token), (second, other)) = await booted(provisioner, 2)
    async with provisioner.client(token=token) as client:
        await reported(client, first, "disk-full", "cannot write /data; password=hunter2hunter2")
        await provisioner.set_clock(3_600)
        await reported(client, first, "disk-full", "cannot write /tmp")
    async with provisioner.client(token=other) as client:
        await reported(client, second, "no-network")
    async with provisioner.client() as client:
        rows = (await client.get("/errors")).json()["items"]
        of_one = (await client.get("/errors", params={"worker": first, "limit": 1})).json()["items"]
        totals = (await client.get("/errors/totals", params={"pool": "linux"})).json()["items"]
        config = (await client.get("/launch-configs/zone-a")).json()
    assert [(row["worker_id"], row["code"], row["image_revision"]) for row in rows] == [
        (second, "no-network", "linux-1"),
        (first, "disk-full", "linux-1"),
        (first, "disk-full", "linux-1"),
    ]
    assert of_one == rows[1:2]
    assert "hunter2" not in str(rows)
    assert [(row["launch_config_id"], row["code"], row["number"], row["hour"][11:16]) for row in totals] == [
        (revision_id(), "no-network", 1, "13:00"),
        (revision_id(), "disk-full", 1, "13:00"),
        (revision_id(), "disk-full", 1, "12:00"),
    ]
    assert [(row["code"], row["number"], row["sample"]) for row in config["recent_errors"]] == [
        ("disk-full", 2, "cannot write /tmp"),
        ("no-network", 1, ""),
    ]


async def test_a_worker_that_reports_without_end(provisioner: Provisioner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound of an hour its errors are counted under one code, and neither stored nor published; those of
    another worker are."""
    monkeypatch.setattr(errors, "STORED_MAX", 3)
    ((loud, token), (calm, other)) = await booted(provisioner, 2)
    await provisioner.events()
    async with provisioner.client(token=token) as client:
        for number in range(6):
            await reported(client, loud, f"code-{number}")
    async with provisioner.client(token=other) as client:
        await reported(client, calm, "one")
    async with provisioner.client() as client:
        rows = (await client.get("/errors")).json()["items"]
        totals = {row["code"]: row["number"] for row in (await client.get("/errors/totals")).json()["items"]}
    assert [row["code"] for row in rows] == ["one", "code-2", "code-1", "code-0"]
    assert totals == {"code-0": 1, "code-1": 1, "code-2": 1, "one": 1, errors.OTHER: 3}
    assert len(await provisioner.published(WorkerErrorReported)) == 4
    await provisioner.set_clock(3_601)
    async with provisioner.client(token=token) as client:
        await reported(client, loud, "later")
    assert await provisioner.database.fetchval("SELECT count(*) FROM worker_error WHERE code = 'later'") == 1


async def test_machines_of_one_image_report_at_once(provisioner: Provisioner) -> None:
    """Each is counted."""
    found = await booted(provisioner, 4)

    async def report(worker_id: str, token: str) -> None:
        async with provisioner.client(token=token) as client:
            for _ in range(5):
                await reported(client, worker_id, "disk-full")

    await asyncio.gather(*(report(*each) for each in found))
    assert await provisioner.database.fetchval("SELECT number FROM worker_error_hour") == 20
