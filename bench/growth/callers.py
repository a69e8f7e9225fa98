"""Callers over HTTP: operators of a lease-broker and a weight-calculator, and holders of leases, gangs and slots."""

import base64
from pathlib import Path
from typing import Any, Final

import httpx2

from bench.growth.copies import MARK
from slipway_common.base.ids import new_id
from slipway_lease_broker.main import build
from slipway_lease_broker.settings import Settings
from slipway_weight_calculator.main import build as build_calculator
from slipway_weight_calculator.settings import Settings as CalculatorSettings
from tests.simulation.commands import OWNER, TOKEN, ZONES
from tests.simulation.deployment import Deployment

GANG_POOLS: Final = ("tests-a", "tests-b")
HOSTS: Final = "hosts"
HOST: Final = "host-1"
SIGNAL: Final = {"ttl_seconds": 60.0, "reason": "drill"}
HOST_LIMIT: Final = {"hold_seconds": 3600.0, "ttl_seconds": 600.0}


class Callers:
    """Callers of both APIs of the lease-broker and of the weight-calculator, as their operator."""

    def __init__(self, deployment: Deployment) -> None:
        tokens = Path(deployment.api.tokens.name)
        service = build(Settings(database_url="", kafka="", tokens_file=tokens))
        service.runtime.database = deployment.databases["lease-broker"]
        app = service.app()
        self.leases = self._client(app, f"Bearer {TOKEN}")
        basic = base64.b64encode(f"operator:{TOKEN}".encode()).decode()
        self.slots = self._client(app.state.boskos.app, f"Basic {basic}")
        calculator = build_calculator(CalculatorSettings(database_url="", kafka="", tokens_file=tokens, speed=1.0))
        calculator.runtime.database = deployment.databases["weight-calculator"]
        self.signals = self._client(calculator.app(), f"Bearer {TOKEN}")

    async def declare(self) -> None:
        """Declare the lease pools of gangs, and a slot."""
        pools = [{"id": name, "limit": 1, "pacing": "off"} for name in GANG_POOLS]
        document = {"owner": OWNER, "lease_pools": pools}
        await self._call("PUT", "/lease-pools", {"documents": [document]})
        await self._call("PUT", "/slots", {"slots": [{"lease_pool": HOSTS, "names": [HOST]}]} | HOST_LIMIT)

    async def change_terms(self) -> None:
        """Change the terms of a lease pool and change them back; drain it meanwhile."""
        path, reason = f"/lease-pools/{GANG_POOLS[0]}", {"reason": "drill"}
        await self._call("PATCH", path, {"ttl_seconds": 200.0} | reason)
        await self._call("POST", f"{path}/drain", reason)
        await self._call("POST", f"{path}/undrain", reason)
        await self._call("PATCH", path, {"ttl_seconds": 300.0} | reason)

    async def hold_a_gang(self) -> None:
        """Acquire a gang for a tenant, which fails, and release its leases."""
        members = [{"pool": name} for name in GANG_POOLS]
        gang = {"request_id": new_id(), "tenant": f"tenant-{MARK}", "members": members}
        for lease in (await self._call("POST", "/lease-gangs", gang))["leases"]:
            body = {"fencing_token": lease["fencing_token"], "result": "failed"}
            await self._call("POST", f"/leases/{lease['lease_id']}/release", body)

    async def share_a_slot(self) -> None:
        """Acquire a slot, which another job waits for that never comes back, and release it."""
        wanted = {"type": HOSTS, "state": "free", "dest": "busy"}
        answers = [
            await self.slots.post("/acquire", params=wanted | {"owner": f"{job}-{MARK}", "request_id": new_id()})
            for job in ("first", "second")
        ]
        assert [answer.status_code for answer in answers] == [200, 404], [answer.text for answer in answers]
        released = {"name": HOST, "dest": "free", "owner": f"first-{MARK}"}
        answer = await self.slots.post("/release", params=released)
        assert answer.status_code == 200, answer.text

    async def raise_signal(self) -> None:
        """Raise a signal on a launch config."""
        body = {"target_kind": "config", "target_id": ZONES[0], "kind": "degraded", "value": 1.0} | SIGNAL
        answer = await self.signals.post("/signals", json=body)
        assert answer.status_code == 202, answer.text

    async def _call(self, method: str, path: str, body: Any) -> Any:
        answer = await self.leases.request(method, path, json=body)
        assert answer.status_code == 200, f"{method} {path}: {answer.text}"
        return answer.json()

    @staticmethod
    def _client(app: Any, authorization: str) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app=app),
            base_url="http://service",
            headers={"Authorization": authorization},
            trust_env=False,
        )
