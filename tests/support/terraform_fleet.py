"""Workspaces of the provider `ledger` on a real database, and replicas that run them: here, or in a process to kill.

`python -m tests.support.terraform_fleet URL FOLDER`
"""

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from slipway_api.events.alert import AlertRaised, AlertResolved
from slipway_api.events.topics import DECODERS
from slipway_common.base.ids import new_id
from slipway_common.database import postgres
from slipway_common.database.postgres import Database
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_provisioner.domain.cloud import Account
from slipway_provisioner.domain.workspaces import Kind, Phase, Workspace
from slipway_provisioner.providers.port import Accepted, CreateRequest, Refused
from slipway_provisioner.providers.terraform.adapter import Terraform
from slipway_provisioner.store import workspaces
from tests.support.databases import connected, empty_database
from tests.support.harness import until
from tests.support.providers import request
from tests.support.terraform_provider import (
    account_settings,
    launch_settings,
    real_clock,
    settings_on,
    startable,
    working,
)
from tests.support.terraform_runs import Place, new_place
from tests.support.workspaces import NEW, OLD, ring

SERVICE: Final = "provisioner"
CONFIG: Final = "zone-a@3f2c9a"
STOPPING: Final = """
INSERT INTO worker (id, pool_id, launch_config_id, account_id, image_revision, state, decision_id, instance_id,
    requested_at, launched_at, stopping_at, traceparent)
SELECT $1, 'linux', $2, $3, 'linux-1', 'stopping', $1, $4, at, at, at, '' FROM (SELECT slipway_clock() AS at)"""
ROW: Final = f"SELECT {', '.join(Workspace.__struct_fields__)} FROM workspace ORDER BY id"


class Fleet:
    """An account, its machines, and the database of its workspaces."""

    def __init__(self, url: str, database: Database, place: Place, **account: Any) -> None:
        self.url, self.database, self.place = url, database, place
        self.account = Account(
            id="tf",
            deployment="d",
            provider="terraform",
            region="r",
            identity="ledger",
            lease_pool_id="l",
            settings=account_settings(place),
            **account,
        )

    @property
    def machines(self) -> list[str]:
        """Ids of the machines that exist, from the ledger."""
        return [machine["id"] for machine in self.place.ledger.machines()]

    @property
    def creations(self) -> int:
        """Machines that were ever created, from the ledger."""
        return len(self.place.ledger.calls("create"))

    def replica(self, folder: str = "runs", *keys: str, **settings: Any) -> Terraform:
        """A replica whose runs are in a folder of its own."""
        provider = settings_on(self.database, self.place.folder / folder, keys=keys or (OLD,), **settings)
        return Terraform(provider)

    @contextlib.asynccontextmanager
    async def process(self, folder: str = "runs") -> AsyncIterator[asyncio.subprocess.Process]:
        """A replica in a process of its own, which is killed at the end, if not before."""
        command = (sys.executable, "-m", "tests.support.terraform_fleet", self.url, str(self.place.folder / folder))
        process = await asyncio.create_subprocess_exec(*command)
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)
            await process.wait()

    def call(self, **settings: Any) -> CreateRequest:
        """A launch of one worker."""
        asked = request()
        config = {**asked.config, "id": CONFIG, "settings": launch_settings(self.place, **settings)}
        return msgspec.structs.replace(asked, config=config)

    async def create(self, **settings: Any) -> CreateRequest:
        """Accept a launch of one worker, which waits for a run."""
        asked = self.call(**settings)
        assert isinstance(await self.replica().create(self.account, asked), Accepted)
        return asked

    async def resolved(self, asked: CreateRequest) -> Sequence[str] | Refused:
        """Instances of a launch, or its refusal."""
        found: list[Sequence[str] | Refused] = []

        async def is_resolved() -> bool:
            try:
                if (polled := await self.replica().poll(self.account, asked, asked.batch_id)) is not None:
                    found.append(polled)
            except Refused as refused:
                found.append(refused)
            return bool(found)

        await until(is_resolved, "the launch is resolved")
        return found[0]

    async def rows(self) -> list[Workspace]:
        return [workspaces.from_row(row) for row in await self.database.fetch(ROW)]

    async def until_phase(self, phase: Phase) -> Workspace:
        """The only workspace, once it is in a phase and has no run."""

        async def reached() -> bool:
            (row,) = await self.rows()
            return row.phase is phase and not row.holder

        await until(reached, f"the workspace is {phase}")
        return (await self.rows())[0]

    async def state(self, kind: Kind = Kind.STATE) -> workspaces.Decrypted | None:
        """State of the only workspace, or its newest rejected one."""
        (row,) = await self.rows()
        async with self.database.acquire() as db:
            return await workspaces.document(db, row.id, kind, ring(NEW, OLD))

    async def stopping(self, instance_id: str) -> str:
        """Worker of an instance, which is terminated from now on."""
        await self.database.execute("UPDATE deployment SET id = $1", self.account.deployment)
        worker_id = new_id()
        await self.database.execute(STOPPING, worker_id, CONFIG, self.account.id, instance_id)
        return worker_id

    async def alerts(self) -> list[AlertRaised | AlertResolved]:
        """Alerts that were raised and resolved, in their order."""
        rows = await self.database.fetch("SELECT type, value FROM outbox WHERE value IS NOT NULL ORDER BY id")
        events = [DECODERS[row["type"]].decode(row["value"]) for row in rows]
        return [event for event in events if isinstance(event, AlertRaised | AlertResolved)]

    async def due(self) -> None:
        """Let no pause between runs keep a workspace waiting. A run that goes on would set one at its end."""

        async def none_runs() -> bool:
            return not any(row.holder for row in await self.rows())

        await until(none_runs, "no run goes on")
        await self.database.execute("UPDATE workspace SET due_at = slipway_clock() WHERE due_at IS NOT NULL")


@contextlib.asynccontextmanager
async def fleet_on(server: EmbeddedPostgres, **account: Any) -> AsyncIterator[Fleet]:
    """A fleet with nothing in it, in which launches may start."""
    async with empty_database(server, SERVICE) as url, connected(url, SERVICE, size=10) as database:
        with new_place() as place:
            async with real_clock(database):
                fleet = Fleet(url, database, place, **account)
                await startable(database, fleet.account, CONFIG)
                yield fleet


async def main(url: str, folder: str) -> None:
    database = await postgres.connect(url, SERVICE, size=4)
    async with working(Terraform(settings_on(database, Path(folder)))):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
