"""Requests of an earlier `slipway-worker wrap`, as it wrote them, against the provisioner of today.

It names no task at its end, knows no task slots, and gives up its worker, and with it the task, at any refusal.
"""

from datetime import datetime, timedelta
from typing import Any, Final

import httpx2
import pytest

from tests.support.provisioner import Provisioner, after, report

RECORDED_AT: Final = datetime.fromisoformat("2026-11-28T21:14:53+00:00")
# Path and body of each request between registration and end, while its agent ran the job `long`, then `short` without
# the end hook of `long`, and then `next`.
RECORDED: Final[list[tuple[str, dict[str, str] | None]]] = [
    ("should-terminate", None),
    ("claimed", {"at": "2026-11-28T21:14:53.238332+00:00", "task_id": "long", "source": "q"}),
    ("idle", {"at": "2026-11-28T21:14:53.384945+00:00"}),
    ("claimed", {"at": "2026-11-28T21:14:53.384945+00:00", "task_id": "short", "source": "q"}),
    ("idle", {"at": "2026-11-28T21:14:53.451687+00:00"}),
    ("should-terminate", None),
    ("claimed", {"at": "2026-11-28T21:14:54.110167+00:00", "task_id": "next", "source": "q"}),
    ("heartbeat", {}),
    ("idle", {"at": "2026-11-28T21:14:54.737340+00:00"}),
    ("should-terminate", None),
]


async def registered(provisioner: Provisioner, task_slots: int) -> httpx2.AsyncClient:
    """Its client, once the provisioner's clock is that of the recording."""
    (worker,) = await provisioner.starting(1)
    await provisioner.set_clock((RECORDED_AT - after(0) + timedelta(seconds=2)).total_seconds())
    await provisioner.database.execute("UPDATE worker SET task_slots = $1", task_slots)
    answer = (await provisioner.register(worker.instance_id or "", worker.batch_id)).json()
    assert all(isinstance(answer[name], str) for name in ("worker_id", "pool_id", "token"))
    client = provisioner.client(token=answer["token"])
    client.base_url = httpx2.URL(f"http://provisioner/workers/{worker.id}")
    return client


async def sent(client: httpx2.AsyncClient, path: str, body: dict[str, str] | None) -> dict[str, Any]:
    """The answer to a recorded request, in which it finds nothing that makes it leave."""
    answer = await (client.get(f"/{path}") if body is None else client.post(f"/{path}", json=body))
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    assert (told["terminate"], told["reason"]) == (False, "")
    return told


@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize("task_slots", [1, 2])
async def test_every_recorded_request_is_answered(provisioner: Provisioner, copies: int, task_slots: int) -> None:
    """Once, and with every answer lost: it is busy exactly while a job runs, and each job ends at its time."""
    client = await registered(provisioner, task_slots)
    for path, body in RECORDED:
        for _ in range(copies):
            told = await sent(client, path, body)
        busy = (await provisioner.worker()).idle_since is None
        if path in ("claimed", "idle"):
            assert busy is (path == "claimed")
        if path == "heartbeat":
            assert told["has_task"] is True
    rows = await provisioner.database.fetch("SELECT task_id, ended_at FROM claim ORDER BY started_at")
    ends = [body["at"] for path, body in RECORDED if path == "idle" and body is not None]
    assert [(row["task_id"], row["ended_at"].isoformat()) for row in rows] == list(
        zip(("long", "short", "next"), ends, strict=True)
    )


async def test_answers_that_it_does_not_know(provisioner: Provisioner) -> None:
    """Claims above the task slots, and an end while several tasks run, are accepted: its tasks go on."""
    client = await registered(provisioner, 2)
    claims = [body for path, body in RECORDED if path == "claimed"]
    assert [(await sent(client, "claimed", body))["counted"] for body in claims] == [True, True, False]
    assert (await sent(client, "idle", RECORDED[-2][1]))["ended"] == 0
    await provisioner.demand(report(0, 0, observed_at=RECORDED_AT))
    await provisioner.set_clock((RECORDED_AT - after(0)).total_seconds() + 600)
    await provisioner.plan()
    assert await provisioner.states() == {"running": 1}
    await sent(client, "heartbeat", {})
