"""Agents on the machines of a simulated cloud: they register, run one task each, and report over HTTP.

An agent that the provisioner does not know registers again, once, and reports its claim again. While there are faults,
some take another task, reports arrive again later, and some tokens report tasks that nobody has.
"""

from collections import Counter
from datetime import UTC, datetime
from random import Random
from typing import Any, Final

import httpx2

from tests.simulation.cloud import Cloud, Machine

TASK_SECONDS: Final = 60.0
MADE_UP_MAX: Final = 12  # tasks that a token reports at once
ANOTHER_TASK: Final = 0.3
"""Share of tasks after which a machine waits for another one."""
UNKNOWN: Final = {"urn:slipway:problem:unknown-worker", "urn:slipway:problem:foreign-token"}


class Machines:
    """Agents of all machines of a cloud. `another_task`: share of tasks after which a machine goes on. `forgers`:
    workers whose token has reported tasks that nobody has. `made`: reports that no agent has sent, by kind."""

    def __init__(self, cloud: Cloud, http: httpx2.AsyncClient, chance: Random) -> None:
        """`http` calls the provisioner."""
        self.cloud = cloud
        self.http = http
        self.chance = chance
        self.another_task = 0.0
        self.forgers: set[str] = set()
        self.made: Counter[str] = Counter()
        self._sent: list[tuple[str, dict[str, Any], str]] = []  # path, body and token

    async def act(self) -> None:
        """Execute the next action of each machine."""
        now = self.cloud.now()
        for machine in list(self.cloud.machines.values()):
            await self._act(machine, now)

    async def _act(self, machine: Machine, now: float) -> None:
        if machine.refused or machine.boots_at is None or machine.boots_at > now:
            return
        if not machine.worker_id:
            await self._register(machine, now)
        elif machine.task and not machine.claim_reported:
            machine.claimed_at = self._now()
            machine.claim_reported = await self._send(machine, "claimed", task_id=machine.task, source="q") == 200
        elif machine.task and machine.ends_at <= now and self._takes_another(machine):
            claim = {"task_id": machine.task, "source": "q", "claimed_at": machine.claimed_at}
            if await self._send(machine, "idle", **claim) == 200:
                self.cloud.done.append(machine.task)
                machine.task, machine.polled_at, machine.claim_reported = "", now, False
        elif machine.task and machine.ends_at <= now:
            if await self._send(machine, "stopped") == 200:
                self.cloud.done.append(machine.task)
                machine.task = ""
                self.cloud.terminate_now(machine.instance_id, "self")
        elif machine.stop_requested:
            if not self.cloud.is_undying(machine.instance_id) and await self._send(machine, "stopped") == 200:
                self.cloud.terminate_now(machine.instance_id, "self")
        elif not machine.task and self.cloud.pending:
            machine.task, machine.ends_at = self.cloud.pending.popleft(), now + TASK_SECONDS
            machine.goes_on = self.another_task > 0 and self.chance.random() < self.another_task
        elif not machine.task and machine.polled_at + 30 <= now:
            machine.polled_at = now
            headers = {"Authorization": f"Bearer {machine.token}"}
            answer = await self.http.get(f"/workers/{machine.worker_id}/should-terminate", headers=headers)
            self._judge(machine, answer)
            machine.stop_requested = answer.status_code == 200 and answer.json()["terminate"]

    async def _register(self, machine: Machine, now: float) -> None:
        body = {"instance_id": machine.instance_id} | machine.user_data
        answer = await self.http.post("/workers/register", json=body)
        if answer.status_code == 200:
            machine.worker_id, machine.token = answer.json()["worker_id"], answer.json()["token"]
            machine.polled_at, machine.claim_reported = now, False
        else:
            machine.refused = answer.status_code < 500

    async def _send(self, machine: Machine, event: str, **body: Any) -> int:
        """Report a worker event to the provisioner; return the status code."""
        path, said = f"/workers/{machine.worker_id}/{event}", {"at": self._now()} | body
        self._sent.append((path, said, machine.token))
        answer = await self._post(path, said, machine.token)
        self._judge(machine, answer)
        status: int = answer.status_code
        return status

    async def repeat(self) -> None:
        """Deliver a report again, as a network does that holds requests back: any later one may have come before it."""
        if self._sent:
            await self._post(*self.chance.choice(self._sent))
            self.made["report again"] += 1

    async def make_up(self) -> None:
        """Report tasks that nobody has with the token of an idle machine, each with its end, in any order."""
        idle = [m for m in self.cloud.machines.values() if m.worker_id and not m.task and not m.refused]
        if not idle:
            return
        machine = self.chance.choice(idle)
        self.forgers.add(machine.worker_id)
        for _ in range(self.chance.randint(1, MADE_UP_MAX)):
            at = self.cloud.now() - self.chance.uniform(0, 60)
            claim = {"task_id": f"made-up-{self.made['made-up claim']}", "source": "q"}
            claimed_at, ended_at = _text(at), _text(at + self.chance.uniform(0, 10))
            path = f"/workers/{machine.worker_id}"
            await self._post(f"{path}/claimed", claim | {"at": claimed_at}, machine.token)
            await self._post(f"{path}/idle", claim | {"at": ended_at, "claimed_at": claimed_at}, machine.token)
            self.made["made-up claim"] += 1

    def _takes_another(self, machine: Machine) -> bool:
        return machine.goes_on and not machine.stop_requested

    def _now(self) -> str:
        return _text(self.cloud.now())

    async def _post(self, path: str, body: dict[str, Any], token: str) -> httpx2.Response:
        return await self.http.post(path, json=body, headers={"Authorization": f"Bearer {token}"})

    def _judge(self, machine: Machine, answer: httpx2.Response) -> None:
        """Apply a refusal: register again if the worker is unknown, else stop here, until terminated."""
        if answer.status_code == 200:
            machine.rejoining = False
        elif 400 <= answer.status_code < 500:
            if answer.json().get("type") in UNKNOWN and not machine.rejoining:
                machine.worker_id, machine.rejoining = "", True
            else:
                machine.refused = True


def _text(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat()
