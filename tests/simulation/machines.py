"""Agents on the machines of a simulated cloud: they register, run one task each, and report over HTTP.

An agent that the provisioner does not know registers again, once, and reports its claim again.
"""

from datetime import UTC, datetime
from typing import Any, Final

import httpx2

from tests.simulation.cloud import Cloud, Machine

TASK_SECONDS: Final = 60.0
UNKNOWN: Final = {"urn:slipway:problem:unknown-worker", "urn:slipway:problem:foreign-token"}


class Machines:
    """Agents of all machines of a cloud."""

    def __init__(self, cloud: Cloud, http: httpx2.AsyncClient) -> None:
        """`http` calls the provisioner."""
        self.cloud = cloud
        self.http = http

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
            machine.claim_reported = await self._send(machine, "claimed", task_id=machine.task, source="q") == 200
        elif machine.task and machine.ends_at <= now:
            if await self._send(machine, "stopped") == 200:
                self.cloud.done.append(machine.task)
                machine.task = ""
                self.cloud.terminate_now(machine.instance_id, "self")
        elif machine.stop_requested:
            if await self._send(machine, "stopped") == 200:
                self.cloud.terminate_now(machine.instance_id, "self")
        elif not machine.task and self.cloud.pending:
            machine.task, machine.ends_at = self.cloud.pending.popleft(), now + TASK_SECONDS
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
        at = datetime.fromtimestamp(self.cloud.now(), UTC).isoformat()
        answer = await self.http.post(
            f"/workers/{machine.worker_id}/{event}",
            json={"at": at} | body,
            headers={"Authorization": f"Bearer {machine.token}"},
        )
        self._judge(machine, answer)
        status: int = answer.status_code
        return status

    def _judge(self, machine: Machine, answer: httpx2.Response) -> None:
        """Apply a refusal: register again if the worker is unknown, else stop here, until terminated."""
        if answer.status_code == 200:
            machine.rejoining = False
        elif 400 <= answer.status_code < 500:
            if answer.json().get("type") in UNKNOWN and not machine.rejoining:
                machine.worker_id, machine.rejoining = "", True
            else:
                machine.refused = True
