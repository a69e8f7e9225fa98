"""Those whom a flood must not harm: people who read, machines that register, a worker that reports, and a holder that
renews its lease. Each at a fixed rate, and measured."""

import asyncio
import hashlib
import hmac
from collections.abc import Awaitable, Callable
from contextlib import suppress
from math import ceil
from typing import Any, Final

import msgspec

from bench.leases.bench.http_client import HttpClient
from slipway_common.base.clock import monotonic_seconds
from slipway_common.base.ids import hash_secret
from slipway_local.demo.deployment import Deployment

READS, REGISTRATIONS, HEARTBEATS, RENEWALS = "people's reads", "registrations", "heartbeats", "renewals"
LONGEST_SECONDS: Final = 20.0
"""Time for which an answer is waited for."""


class Machine(msgspec.Struct, frozen=True):
    """A machine that has not used its token yet, so that it may register again, as after a lost answer."""

    batch_id: str
    instance_id: str


class Figures(msgspec.Struct):
    """Times of answers in seconds, by kind, and the statuses of those that were no success."""

    seconds: dict[str, list[float]] = {}
    refused: dict[str, list[int]] = {}

    def p99_ms(self, kind: str) -> float:
        values = sorted(self.seconds[kind])
        return 1000 * values[ceil(0.99 * len(values)) - 1]

    def number(self, kind: str) -> int:
        return len(self.seconds[kind])


def batch_secret(deployment: Deployment, batch_id: str) -> str:
    """Secret of a batch, in this tree and in earlier ones."""
    if hasattr(deployment, "registration_keys"):
        from slipway_provisioner.domain.registration import RegistrationKeys

        return RegistrationKeys(deployment.registration_keys).secret(batch_id)
    key = hash_secret(deployment.token)
    return hmac.new(key.encode(), batch_id.encode(), hashlib.sha256).hexdigest()


class Legitimate:
    """Callers of a deployment, who begin with `measure`."""

    def __init__(
        self, deployment: Deployment, machines: list[Machine], worker_id: str, worker_token: str, lease: dict[str, Any]
    ) -> None:
        self._deployment = deployment
        self._machines = machines
        self._secrets = {each.batch_id: batch_secret(deployment, each.batch_id) for each in machines}
        self._worker_id = worker_id
        self._worker_token = worker_token
        self._lease = lease

    async def enrolled(self) -> tuple[str, str]:
        """Register the first machine; returns the id and the token of its worker."""
        async with HttpClient(self._deployment.ports["provisioner"], "") as client:
            _, answer = await self._register(client, 0)
            return answer["worker_id"], answer["token"]

    async def measure(self, seconds: float) -> Figures:
        """Send requests for some seconds; returns how long their answers took."""
        figures, until, ours = Figures(), monotonic_seconds() + seconds, self._deployment.token
        await asyncio.gather(
            *(self._repeat(figures, READS, "provisioner", ours, 0.1, until, self._read) for _ in range(4)),
            *(self._repeat(figures, REGISTRATIONS, "provisioner", "", 0.16, until, self._register) for _ in range(5)),
            self._repeat(figures, HEARTBEATS, "provisioner", self._worker_token, 0.5, until, self._beat),
            self._repeat(figures, RENEWALS, "lease-broker", ours, 0.1, until, self._renew),
        )
        return figures

    async def _repeat(
        self,
        figures: Figures,
        kind: str,
        service: str,
        token: str,
        interval_seconds: float,
        until: float,
        send: Callable[[HttpClient, int], Awaitable[tuple[int, Any]]],
    ) -> None:
        """Send one request after another on one connection. The time of an answer begins when its request was due: one
        that waits for an earlier one is late, too."""
        times = figures.seconds.setdefault(kind, [])
        refused = figures.refused.setdefault(kind, [])
        due, number = monotonic_seconds(), 0
        async with HttpClient(self._deployment.ports[service], token) as client:
            while due < until:
                await asyncio.sleep(max(0.0, due - monotonic_seconds()))
                status = 0
                with suppress(TimeoutError, OSError, asyncio.IncompleteReadError):
                    async with asyncio.timeout(LONGEST_SECONDS):
                        status, _ = await send(client, number)
                now = monotonic_seconds()
                times.append(now - due)
                if not 200 <= status < 300:
                    refused.append(status)
                if not status:
                    return
                due, number = max(due + interval_seconds, now), number + 1

    async def _read(self, client: HttpClient, _: int) -> tuple[int, Any]:
        return await client.call("GET", "/pools", None)

    async def _register(self, client: HttpClient, number: int) -> tuple[int, Any]:
        machine = self._machines[number % len(self._machines)]
        body = {
            "batch_id": machine.batch_id,
            "secret": self._secrets[machine.batch_id],
            "instance_id": machine.instance_id,
        }
        return await client.call("POST", "/workers/register", body)

    async def _beat(self, client: HttpClient, _: int) -> tuple[int, Any]:
        return await client.call("POST", f"/workers/{self._worker_id}/heartbeat", {})

    async def _renew(self, client: HttpClient, _: int) -> tuple[int, Any]:
        body = {"fencing_token": self._lease["fencing_token"]}
        return await client.call("POST", f"/leases/{self._lease['lease_id']}/renew", body)
