"""HTTP API of the simulator: the real process on a free port, with a minimal fake provisioner."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
import uvicorn
from fastapi import FastAPI, Response

from slipway_local.servers.ports import free_ports
from slipway_simulator.facts import (
    Claimed,
    DrainRequested,
    Fact,
    Idle,
    InstanceCreated,
    Refused,
    Registered,
    Reply,
    TaskArrived,
    TaskClaimed,
    TaskEnded,
    TaskRenewed,
    Terminated,
    TerminationRefused,
)
from slipway_simulator.ledger import Ledger, read
from slipway_simulator.main import served
from slipway_simulator.settings import Settings
from tests.support.harness import PATIENCE_SECONDS
from tests.support.serving import serving

SCENARIO: dict[str, Any] = {
    "seed": 7,
    "speed": 1000,
    "accounts": {"sim-a": {"capacity": {"zone-c": 2}}, "slow": {"throttle": {"burst": 2, "refill_per_second": 1e-5}}},
    "zones": {"zone-a": {}, "zone-b": {}, "zone-c": {}},
}


class Registrar:
    """Fake provisioner: admits the right secret, records the requests, and gives configurable answers."""

    def __init__(self) -> None:
        (self.port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{self.port}"
        self.requests: list[tuple[str, ...]] = []
        self.down = self.terminate = False
        self.app = FastAPI()
        self.app.post("/workers/register")(self.register)
        self.app.post("/workers/{worker_id}/{what}")(self.report)
        self.app.get("/workers/{worker_id}/should-terminate")(self.should_terminate)

    @property
    def reports(self) -> list[tuple[str, ...]]:
        """Requests without heartbeats: a machine sends one if it is held up for a second."""
        return [request for request in self.requests if request[0] != "heartbeat"]

    async def register(self, body: dict[str, Any]) -> Any:
        if self.down:
            return Response(status_code=503)
        if body["secret"] != "secret":
            return Response(status_code=401)
        self.requests.append(("register", body["instance_id"], body["batch_id"]))
        return {"worker_id": f"w-{body['instance_id']}", "pool_id": "linux", "token": f"token-{body['instance_id']}"}

    async def report(self, worker_id: str, what: str, body: dict[str, Any]) -> Any:
        if self.down:
            return Response(status_code=503)
        self.requests.append((what, worker_id, body.get("task_id", "")))
        return {"terminate": self.terminate}

    async def should_terminate(self, worker_id: str) -> Any:
        return {"terminate": self.terminate, "reason": "idle"}


class Simulated:
    """The real application with its real server, in this process or in a separate one, and a client."""

    def __init__(self, ledger: Path, registrar: Registrar) -> None:
        self.settings = Settings(port=free_ports(1)[0], ledger=ledger, kafka="")
        self.registrar = registrar
        url = f"http://127.0.0.1:{self.settings.port}"
        self.client = httpx2.AsyncClient(base_url=url, trust_env=False, timeout=PATIENCE_SECONDS)
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Run it in a separate process, which can be killed."""
        env = os.environ | {"SLIPWAY_PORT": str(self.settings.port), "SLIPWAY_LEDGER": str(self.settings.ledger)}
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "slipway_simulator.main", env=env, stdout=asyncio.subprocess.DEVNULL
        )
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                try:
                    assert (await self.client.get("/readyz")).status_code == 200
                    return
                except httpx2.TransportError:
                    await asyncio.sleep(0.05)

    async def stop(self, by: signal.Signals) -> int:
        assert self.process is not None
        self.process.send_signal(by)
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self.process.wait()

    def user_data(self, batch_id: str, secret: str) -> str:
        """A script that hands its JSON to the agent."""
        data = {"register_url": self.registrar.url, "batch_id": batch_id, "secret": secret}
        return f"#!/bin/sh\nif true; then {{ echo '{json.dumps(data)}' | slipway-worker run; }}; fi\n"

    async def create(self, token: str, *, account: str = "sim-a", **fields: Any) -> httpx2.Response:
        body = {
            "token": token,
            "tags": {"slipway-deployment": "test", "slipway-batch": f"batch-{token}", "slipway-launch-config": "lc"},
            "count": 1,
            "zone": "zone-a",
            "instance_type": "m5",
            "image": "linux-1",
            "user_data": self.user_data(f"batch-{token}", "secret"),
        }
        return await self.client.post(f"/accounts/{account}/instances", json=body | fields)

    async def claim(self, worker_id: str, *, wait_seconds: float = 0.0) -> httpx2.Response:
        body = {"worker_id": worker_id, "instance_id": f"i-{worker_id}", "wait_seconds": wait_seconds}
        return await self.client.post("/queue/linux/claim", json=body)

    async def listed(self, token: str) -> list[str]:
        params = {"deployment": "test", "batch": f"batch-{token}"}
        answer = (await self.client.get("/accounts/sim-a/instances", params=params)).json()
        return [instance["id"] for instance in answer["instances"]]

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        response = await self.client.post(path, json=body)
        assert response.status_code < 300, response.text
        answer: dict[str, Any] = response.json()
        return answer

    async def facts(self, kind: type[Fact], number: int) -> list[Any]:
        """Facts of a kind in the ledger, once there are that many."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(found := self.written(kind)) < number:
                await asyncio.sleep(0.02)
        assert len(found) == number
        return found

    def written(self, kind: type[Fact]) -> list[Any]:
        return [fact for fact in read(self.settings.ledger) if isinstance(fact, kind)]


@pytest.fixture
async def prepared(tmp_path: Path) -> AsyncIterator[Simulated]:
    """A simulator that is not running yet, with a fake provisioner."""
    registrar = Registrar()
    config = uvicorn.Config(registrar.app, port=registrar.port, log_config=None, lifespan="off", timeout_keep_alive=600)
    prepared = Simulated(tmp_path / "ledger.jsonl", registrar)
    async with serving(config):
        yield prepared
        await prepared.client.aclose()
        if prepared.process and prepared.process.returncode is None:
            await prepared.stop(signal.SIGKILL)


@pytest.fixture
async def simulated(prepared: Simulated) -> AsyncIterator[Simulated]:
    """A simulator in this process with the scenario loaded."""
    async with serving(served(prepared.settings)):
        await prepared.post("/scenario", SCENARIO)
        yield prepared
        await prepared.client.aclose()


async def test_create_register_work_leave(simulated: Simulated) -> None:
    """A one-task machine registers, claims, runs its task and stops by itself; the ledger has all of it."""
    await simulated.post("/tasks", {"pool_id": "linux", "count": 1, "duration_seconds": 60})
    reply = await simulated.create("t1", settings={"tasks_per_worker": 1})
    assert (reply.status_code, reply.json()) == (200, {"instances": [{"id": "i-000001", "state": "pending"}]})
    (ended,) = await simulated.facts(Terminated, 1)
    assert (ended.instance_id, ended.by, ended.account) == ("i-000001", "self", "sim-a")
    assert simulated.registrar.reports == [
        ("register", "i-000001", "batch-t1"),
        ("claimed", "w-i-000001", "linux-1"),
        ("stopped", "w-i-000001", ""),
    ]
    (task,) = await simulated.facts(TaskEnded, 1)
    assert (task.task_id, task.result) == ("linux-1", "done")
    assert await simulated.listed("t1") == []


async def test_reusable_machine_works_until_drained(simulated: Simulated) -> None:
    """A machine without a limit runs task after task, reports when it is idle, and drains on request."""
    await simulated.create("t1")
    await simulated.post("/tasks", {"pool_id": "linux", "count": 3, "duration_seconds": 60, "at": [0, 1, 200]})
    assert [fact.status for fact in await simulated.facts(Idle, 3)] == [200, 200, 200]
    simulated.registrar.terminate = True
    await simulated.facts(Terminated, 1)
    assert [what for what, *_ in simulated.registrar.reports] == ["register", *["claimed", "idle"] * 3, "stopped"]


async def test_partial_capacity_then_none(simulated: Simulated) -> None:
    """A zone launches up to its capacity, then refuses with an error code; a deleted instance frees capacity."""
    assert len((await simulated.create("t1", zone="zone-c", count=3)).json()["instances"]) == 2
    refusal = await simulated.create("t2", zone="zone-c")
    assert (refusal.status_code, refusal.json()["code"]) == (409, "InsufficientCapacity")
    instance_id = (await simulated.listed("t1"))[0]
    path = f"/accounts/sim-a/instances/{instance_id}"
    assert [(await simulated.client.delete(path)).status_code for _ in range(2)] == [204, 204]
    assert (await simulated.create("t3", zone="zone-c")).status_code == 200
    unknown = await simulated.client.delete("/accounts/sim-a/instances/i-999999")
    assert (unknown.status_code, unknown.json()["code"]) == (404, "InstanceNotFound")


@pytest.mark.parametrize("name", ["sim-a", "i-000001"])
async def test_an_instance_that_cannot_be_terminated(simulated: Simulated, name: str) -> None:
    """It is refused by its own name or that of its account, and its machine hangs when it is asked to leave."""
    await simulated.create("t1")
    await simulated.facts(Registered, 1)
    await simulated.post("/faults", {"name": "no-termination", "arg": name})
    path = "/accounts/sim-a/instances/i-000001"
    refusal = await simulated.client.delete(path)
    assert (refusal.status_code, refusal.json()["code"]) == (409, "OperationNotPermitted")
    simulated.registrar.terminate = True
    (refused,) = await simulated.facts(TerminationRefused, 1)
    assert (refused.instance_id, refused.account) == ("i-000001", "sim-a")
    await simulated.facts(DrainRequested, 1)
    assert await simulated.listed("t1") == ["i-000001"]
    await simulated.client.delete("/faults/no-termination")
    await simulated.facts(Terminated, 1)


async def test_lost_reply_then_listed_by_tag(simulated: Simulated) -> None:
    """The connection is dropped without an answer; the instances are listed by tag, and the token returns them."""
    await simulated.post("/faults", {"name": "lost-reply", "arg": "1"})
    with pytest.raises(httpx2.TransportError):
        await simulated.create("t1", count=2)
    (reply,) = await simulated.facts(Reply, 1)
    assert (reply.code, reply.lost) == ("OK", True)
    assert await simulated.listed("t1") == list(reply.instance_ids) == ["i-000001", "i-000002"]
    await simulated.client.delete("/faults/lost-reply")
    again = (await simulated.create("t1", count=2)).json()
    assert [instance["id"] for instance in again["instances"]] == ["i-000001", "i-000002"]
    assert (await simulated.client.get("/state")).json()["calls"]["lost_replies"] == 1


async def test_ignored_token_doubles(simulated: Simulated) -> None:
    """An account that ignores tokens creates more instances with the same tag."""
    await simulated.post("/faults", {"name": "ignore-token"})
    await simulated.create("t1")
    await simulated.create("t1")
    assert await simulated.listed("t1") == ["i-000001", "i-000002"]


async def test_zone_out_keeps_its_instances(simulated: Simulated) -> None:
    """A zone without capacity launches nothing and keeps its instances."""
    await simulated.create("t1", zone="zone-b")
    await simulated.post("/faults", {"name": "zone-b"})
    assert (await simulated.create("t2", zone="zone-b")).json()["code"] == "InsufficientCapacity"
    zone = (await simulated.client.get("/state")).json()["zones"]["zone-b"]
    assert zone == {"live": 1, "launched": 1, "out": True}


async def test_throttle(simulated: Simulated) -> None:
    """Beyond its token bucket, an account refuses and returns the time to wait."""
    answers = [await simulated.create(f"t{number}", account="slow") for number in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    refusal = answers[2].json()
    assert refusal["code"] == "RequestLimitExceeded"
    assert 0 < refusal["retry_after_seconds"] <= 100.0


async def test_bad_requests_are_refused_and_change_nothing(simulated: Simulated) -> None:
    """Accounts answer with provider error codes, other APIs with problem+json."""
    before = (await simulated.client.get("/ledger")).json()["size_bytes"]
    unread = await simulated.create("")
    assert (unread.status_code, unread.json()["code"]) == (400, "InvalidRequest")
    for path, body, reason in [
        ("/faults", {"name": "gremlins"}, "known: none, zone-NAME"),
        ("/scenario", {"sped": 3}, "unknown field `sped`"),
        ("/scenario", {"pools": {"p": {"kind": "trace", "path": "/nowhere.dat"}}}, "No such file"),
        ("/tasks", {"pool_id": "p"}, "duration_seconds"),
    ]:
        refusal = await simulated.client.post(path, json=body)
        assert refusal.headers["content-type"] == "application/problem+json"
        assert (refusal.status_code, reason in refusal.json()["detail"]) == (422, True)
    assert (await simulated.client.get("/ledger")).json()["size_bytes"] == before


async def test_refused_machine_stays_and_does_nothing(simulated: Simulated) -> None:
    """A machine with a wrong secret runs until it is terminated."""
    await simulated.create("t1", user_data=simulated.user_data("batch-t1", "wrong"))
    (refused,) = await simulated.facts(Refused, 1)
    assert refused.status == 401
    assert await simulated.listed("t1") == ["i-000001"]


async def test_demand_level(simulated: Simulated) -> None:
    """Machines hold the units of a level, and release them when it drops."""
    await simulated.client.put("/demand/linux", json={"pending": 3})
    await simulated.create("t1", count=2)
    await simulated.facts(Claimed, 2)
    pool = (await simulated.client.get("/state")).json()["pools"]["linux"]
    assert (pool["pending"], pool["claimed"], pool["busy"]) == (1, 2, 2)
    answer = (await simulated.client.put("/demand/linux", json={"pending": 1})).json()
    assert (answer["pending"], answer["claimed"]) == (0, 1)
    await simulated.facts(Idle, 1)


async def test_killed_simulator_continues_from_its_ledger(prepared: Simulated) -> None:
    """After SIGKILL while one machine works and one waits to register, the state is the same and both go on."""
    simulated = prepared
    await simulated.start()
    await simulated.post("/scenario", SCENARIO)
    await simulated.post("/tasks", {"pool_id": "linux", "count": 2, "duration_seconds": 500})
    await simulated.create("t1", settings={"tasks_per_worker": 1})
    await simulated.facts(Claimed, 1)
    simulated.registrar.down = True
    await simulated.post("/faults", {"name": "zone-b"})
    await simulated.create("t2", settings={"tasks_per_worker": 1})
    before = (await simulated.client.get("/state")).json()
    await simulated.stop(signal.SIGKILL)
    with simulated.settings.ledger.open("ab") as ledger:
        ledger.write(b'{"kind":"task_arr')
    simulated.registrar.down = False
    await simulated.start()
    after = (await simulated.client.get("/state")).json()
    for part in ("calls", "faults", "started_at"):
        assert (part, after[part]) == (part, before[part])
    again = (await simulated.create("t2", settings={"tasks_per_worker": 1})).json()
    assert [instance["id"] for instance in again["instances"]] == ["i-000002"]
    assert {fact.by for fact in await simulated.facts(Terminated, 2)} == {"self"}
    assert sorted(simulated.registrar.reports) == [
        ("claimed", "w-i-000001", "linux-1"),
        ("claimed", "w-i-000002", "linux-2"),
        ("register", "i-000001", "batch-t1"),
        ("register", "i-000002", "batch-t2"),
        ("stopped", "w-i-000001", ""),
        ("stopped", "w-i-000002", ""),
    ]
    assert [fact.result for fact in await simulated.facts(TaskEnded, 2)] == ["done", "done"]
    assert await simulated.stop(signal.SIGTERM) == -signal.SIGTERM  # uvicorn raises the signal again after a clean stop


async def test_crash_loses_the_machine_not_its_task(simulated: Simulated) -> None:
    """The task of a crashed machine runs on the next one."""
    await simulated.post("/tasks", {"pool_id": "linux", "count": 1, "duration_seconds": 1e6})
    await simulated.create("t1")
    await simulated.facts(Claimed, 1)
    assert (await simulated.client.post("/instances/i-000001/crash")).status_code == 204
    assert [fact.result for fact in await simulated.facts(TaskEnded, 1)] == ["interrupted"]
    await simulated.create("t2")
    runs = [(fact.instance_id, fact.task_id) for fact in await simulated.facts(Claimed, 2)]
    assert runs == [("i-000001", "linux-1"), ("i-000002", "linux-1")]
    assert [fact.by for fact in await simulated.facts(Terminated, 1)] == ["fault"]


async def test_an_external_worker_waits_claims_renews_and_finishes(simulated: Simulated) -> None:
    """A claim waits for a task, and a repeated claim returns the same one; only its worker renews and finishes it."""
    assert (await simulated.claim("w-1")).status_code == 204
    waiting = asyncio.create_task(simulated.claim("w-1", wait_seconds=20))
    await simulated.post("/tasks", {"pool_id": "linux", "count": 2, "duration_seconds": 1500})
    task = (await waiting).json()
    assert task == {"task_id": "linux-1", "command": ["sleep", "1.500"], "source": "simulator", "claim_seconds": 20.0}
    assert (await simulated.claim("w-1")).json() == task
    assert (await simulated.claim("w-2")).json()["task_id"] == "linux-2"
    foreign = await simulated.client.post("/queue/linux/tasks/linux-1/renew", json={"worker_id": "w-2"})
    assert (foreign.status_code, foreign.json()["detail"]) == (409, "task linux-1 runs on w-1")
    end = "/queue/linux/tasks/linux-1/finish"
    bodies = [{"worker_id": "w-1", "exit_code": 3}, {"worker_id": "w-1", "exit_code": 3}, {"worker_id": "w-2"}]
    assert [(await simulated.client.post(end, json=body)).status_code for body in bodies] == [200, 200, 422]
    (ended,) = await simulated.facts(TaskEnded, 1)
    assert (ended.task_id, ended.instance_id, ended.result, ended.exit_code) == ("linux-1", "i-w-1", "done", 3)
    first = await simulated.facts(Registered, 2)
    assert [(f.worker_id, f.pool_id, f.token) for f in first] == [("w-1", "linux", ""), ("w-2", "linux", "")]
    pool = (await simulated.client.get("/state")).json()["pools"]["linux"]
    assert (pool["pending"], pool["claimed"], pool["busy"], pool["tasks_done"]) == (0, 1, 1, 1)


async def test_machines_and_external_workers_share_a_pool(simulated: Simulated) -> None:
    """Each task runs once, on a machine or on an external worker."""
    await simulated.post("/tasks", {"pool_id": "linux", "count": 2, "duration_seconds": 200})
    assert (await simulated.claim("w-1")).json()["task_id"] == "linux-1"
    await simulated.create("t1")
    await simulated.facts(Claimed, 1)
    assert (await simulated.claim("w-2")).status_code == 204
    await simulated.client.post("/queue/linux/tasks/linux-1/finish", json={"worker_id": "w-1", "exit_code": 0})
    ended = {fact.task_id: fact.instance_id for fact in await simulated.facts(TaskEnded, 2)}
    assert ended == {"linux-1": "i-w-1", "linux-2": "i-000001"}


async def test_a_disconnected_worker_takes_nothing(simulated: Simulated) -> None:
    """If a waiting worker disconnects, the next one gets the task."""
    going = asyncio.create_task(simulated.claim("w-1", wait_seconds=20))
    await simulated.facts(Registered, 1)
    going.cancel()
    await asyncio.wait({going})
    waiting = asyncio.create_task(simulated.claim("w-2", wait_seconds=20))
    await simulated.facts(Registered, 2)
    await simulated.post("/tasks", {"pool_id": "linux", "count": 1, "duration_seconds": 1000})
    assert (await waiting).json()["task_id"] == "linux-1"


async def test_claims_survive_a_restart_and_expire(prepared: Simulated) -> None:
    """After a restart, a worker still has its claim; without renewal it expires and the task is pending again."""
    simulated = prepared
    async with serving(served(simulated.settings)):
        await simulated.post("/tasks", {"pool_id": "linux", "count": 1, "duration_seconds": 900})
        await simulated.facts(TaskArrived, 1)
        await simulated.claim("w-1")
    async with serving(served(simulated.settings)):
        renewed = await simulated.client.post("/queue/linux/tasks/linux-1/renew", json={"worker_id": "w-1"})
        assert (renewed.status_code, renewed.json()) == (200, {"claim_seconds": 20.0})
    (claimed,), (renewal,) = simulated.written(TaskClaimed), simulated.written(TaskRenewed)
    assert claimed.expires_at < renewal.expires_at
    ledger = Ledger(simulated.settings.ledger)
    ledger.append([msgspec.structs.replace(renewal, expires_at=renewal.at + 1)])  # a test does not wait for 20 s
    ledger.close()
    async with serving(served(simulated.settings)):
        (ended,) = await simulated.facts(TaskEnded, 1)
        assert (ended.task_id, ended.result, ended.at >= renewal.at + 1) == ("linux-1", "interrupted", True)
        end = "/queue/linux/tasks/linux-1/finish"
        late = await simulated.client.post(end, json={"worker_id": "w-1", "exit_code": 0})
        assert (late.status_code, late.json()["detail"]) == (
            409,
            "task linux-1 is pending again because its claim expired",
        )
        assert (await simulated.claim("w-2")).json()["task_id"] == "linux-1"


async def test_waiting_claims_do_not_delay_a_stop(prepared: Simulated) -> None:
    """A stopping simulator answers waiting claims and exits."""
    async with serving(served(prepared.settings)):
        waiting = asyncio.create_task(prepared.claim("w-1", wait_seconds=30))
        await prepared.facts(Registered, 1)
    assert (await waiting).status_code == 204  # a stop that waits for it in vain ends its connection without an answer


def test_incomplete_line_is_removed(tmp_path: Path) -> None:
    """An incomplete fact is removed, and the next one is on its own line."""
    path = tmp_path / "ledger.jsonl"
    fact = Registered(at=1.0, instance_id="i-1", worker_id="w", pool_id="p", token="t")
    ledger = Ledger(path)
    ledger.append([fact])
    ledger.close()
    with path.open("ab") as torn:
        torn.write(b'{"kind":"registered","at"')
    assert list(read(path)) == [fact]
    ledger = Ledger(path)
    ledger.append([fact])
    ledger.close()
    assert list(read(path)) == [fact, fact]


async def test_same_seed_same_run(simulated: Simulated) -> None:
    """Boot times depend only on the seed: the same scenario has the same boot times."""
    await simulated.create("t1", count=2)
    first, second = await simulated.facts(InstanceCreated, 2)
    boots = [round((fact.boots_at - fact.at) * SCENARIO["speed"], 3) for fact in (first, second)]
    assert boots[0] != boots[1]
    assert all(20 < seconds < 400 for seconds in boots)


async def test_get_one_instance(simulated: Simulated) -> None:
    """An instance is found while it is live, in its account; terminated, unknown, and other accounts' ones are not."""
    await simulated.post("/scenario", SCENARIO | {"boot_seconds_median": 1e9})
    await simulated.create("t1")
    path = "/accounts/sim-a/instances/i-000001"
    found = await simulated.client.get(path)
    assert (found.status_code, found.json()["id"], found.json()["state"]) == (200, "i-000001", "pending")
    assert (await simulated.client.get("/accounts/slow/instances/i-000001")).status_code == 404
    await simulated.client.delete(path)
    gone = await simulated.client.get(path)
    assert (gone.status_code, gone.json()["code"]) == (404, "InstanceNotFound")


async def test_console_of_a_bad_image_is_kept_after_termination(simulated: Simulated) -> None:
    """The console output is without secrets, and only for the machine's account."""
    await simulated.post("/faults", {"name": "bad-image", "arg": "linux-1"})
    await simulated.create("t1")
    await simulated.client.delete("/accounts/sim-a/instances/i-000001")
    answer = await simulated.client.get("/accounts/sim-a/instances/i-000001/console")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/plain; charset=utf-8")
    first, last = answer.text.splitlines()
    assert first == "[      0.0] booting linux-1 on m5 in zone-a; kernel panic: no init found"
    assert last.endswith("power off by api")
    assert (await simulated.client.get("/accounts/slow/instances/i-000001/console")).status_code == 404
