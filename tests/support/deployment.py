"""Commands of `slipway` run against real services on real databases, without Kafka."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import yaml
from structlog.testing import capture_logs
from typer.testing import CliRunner

from slipway_api.events.launch_config import LaunchConfigCreated
from slipway_api.events.lease import LeaseRequested
from slipway_client.cli.commands.declared import DIFFERENCE
from slipway_client.cli.confirming import CONFIRMATION
from slipway_client.cli.main import app
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_weight_calculator.main import build
from slipway_weight_calculator.settings import Settings
from tests.support.lease_broker_http import World, world_on, write_tokens
from tests.support.provisioner import Provisioner, declared, provisioner_on, report
from tests.support.serving import listening
from tests.support.weight_calculator import Calculator, calculator_on


class Deployment:
    """Three services on loopback. Events between them are passed on by the test, in place of Kafka."""

    def __init__(self, provisioner: Provisioner, calculator: Calculator, world: World, folder: Path) -> None:
        self.provisioner = provisioner
        self.calculator = calculator
        self.world = world
        self.folder = folder
        self.environment: dict[str, str] = {"SLIPWAY_TOKEN": "secret of root", "KAFKA": "127.0.0.1:1"}

    async def slipway(self, *arguments: str, exit_code: int = 0) -> str:
        """Standard output of a command, with its errors when it is refused."""
        result = await asyncio.to_thread(
            CliRunner().invoke, app, arguments, env=self.environment, catch_exceptions=False
        )
        assert result.exit_code == exit_code, (arguments, result.output)
        return result.stdout if exit_code in (0, DIFFERENCE) else result.output

    async def confirmed(self, *arguments: str) -> str:
        """Standard output of a command whose dangerous changes are confirmed."""
        refused = await self.slipway(*arguments, exit_code=CONFIRMATION)
        return await self.slipway(*arguments, "--confirm", refused.split()[-1])

    async def read(self, *arguments: str) -> Any:
        return json.loads(await self.slipway(*arguments, "-o", "json"))

    def file(self, body: dict[str, Any]) -> str:
        path = self.folder / "slipway.yaml"
        path.write_text(yaml.safe_dump(body))
        return str(path)

    async def apply(self, *configs: str) -> None:
        """Declare a pool with a config per zone, which the weight-calculator learns of."""
        pools = [{"id": "sim-a", "limit": 24, "pacing": "off"}]
        await self.confirmed("apply", self.file(declared(*configs) | {"lease_pools": pools}))
        await self.calculator.consume(*await self.provisioner.published(LaunchConfigCreated))

    async def starting(self, pending: int) -> list[str]:
        """IDs of workers that boot, each admitted by the lease-broker."""
        await self.provisioner.trust()
        await self.provisioner.demand(report(pending))
        await self.provisioner.plan()
        await self.world.broker.send(*await self.provisioner.published(LeaseRequested))
        grants = [
            msgspec.structs.replace(grant, owner="/slipway/provisioner") for grant in await self.world.broker.grants()
        ]
        await self.provisioner.leases(*grants)
        await self.provisioner.launch()
        return [worker.id for worker in await self.provisioner.workers()]


@contextlib.asynccontextmanager
async def deployment_on(postgres: EmbeddedPostgres, folder: Path) -> AsyncIterator[Deployment]:
    """Three services on empty databases of their own."""
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(capture_logs())  # a command in this process shares its standard output with the services
        provisioner = await stack.enter_async_context(provisioner_on(postgres))
        calculator = await stack.enter_async_context(calculator_on(postgres))
        world = await stack.enter_async_context(world_on(postgres, folder))
        tokens = write_tokens(folder)
        provisioner.app.state.tokens.path = tokens
        (folder / "sources.yaml").write_text("{}")
        settings: dict[str, Any] = {"tokens_file": tokens, "signal_sources_file": folder / "sources.yaml"}
        service = build(Settings(database_url="", kafka="", **settings))
        service.runtime.database = calculator.database
        deployment = Deployment(provisioner, calculator, world, folder)
        apps = {
            "PROVISIONER": provisioner.app,
            "WEIGHT_CALCULATOR": service.app(),
            "LEASE_BROKER": world.replica.app,
        }
        for name, served in apps.items():
            deployment.environment[f"SLIPWAY_{name}_URL"] = await stack.enter_async_context(listening(served))
        yield deployment
