"""The stand-in for EC2 in tests: its operators' routes, its ledger, and clients of the cloud."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import httpx2
from aiobotocore.config import AioConfig
from aiobotocore.session import get_session

from slipway_local.ec2.facts import DECODER
from slipway_local.ec2.server import EmbeddedEc2
from slipway_simulator import fact_file
from slipway_simulator.facts import Recorded

if TYPE_CHECKING:
    from types_aiobotocore_ec2 import EC2Client

PATIENCE_SECONDS: Final = 60.0
KEY: Final = "AKIATEST"
# Nothing takes time but what a test lets take time.
AT_ONCE: Final = {"latency_seconds": 0, "pending_seconds": 0, "boot_seconds_median": 0, "boot_sigma": 0}
Kind = TypeVar("Kind", bound=Recorded)


class Ec2:
    """A cleared stand-in with a scenario."""

    def __init__(self, server: EmbeddedEc2, client: httpx2.AsyncClient) -> None:
        self.server = server
        self.url = server.url
        self.http = client

    async def play(self, **scenario: Any) -> None:
        await self.post("/scenario", AT_ONCE | scenario)

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        response = await self.http.post(path, json=body)
        assert response.is_success, response.text
        return response.json()

    async def get(self, path: str) -> Any:
        response = await self.http.get(path)
        assert response.is_success, response.text
        return response.json()

    def facts(self, kind: type[Kind]) -> list[Kind]:
        """Facts of a kind in the ledger, of all tests so far."""
        return [fact for fact in fact_file.read(self.server.ledger, DECODER) if isinstance(fact, kind)]

    async def fact(self, kind: type[Kind], instance_id: str) -> Kind:
        """The fact of a kind about an instance, once it is in the ledger."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                for fact in self.facts(kind):
                    if getattr(fact, "instance_id", "") == instance_id:
                        return fact
                await asyncio.sleep(0.05)

    @asynccontextmanager
    async def client(self, region: str = "us-east-1", key: str = KEY) -> "AsyncIterator[EC2Client]":
        """A client of the cloud that never repeats a call by itself."""
        config = AioConfig(retries={"total_max_attempts": 1}, read_timeout=PATIENCE_SECONDS)
        async with get_session().create_client(
            "ec2",
            region_name=region,
            endpoint_url=self.url,
            aws_access_key_id=key,
            aws_secret_access_key="secret",
            config=config,
        ) as client:
            yield client


@asynccontextmanager
async def cleared(server: EmbeddedEc2) -> AsyncIterator[Ec2]:
    """The stand-in without anything of earlier tests."""
    async with httpx2.AsyncClient(base_url=server.url, trust_env=False, timeout=PATIENCE_SECONDS) as client:
        (await client.delete("/scenario")).raise_for_status()
        ec2 = Ec2(server, client)
        await ec2.play()
        yield ec2
