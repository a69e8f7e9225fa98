"""Restore of a simulated deployment's database from a backup, and the person who reports and confirms it."""

from typing import Any, Final

from slipway_common.messaging import incarnation
from slipway_local.servers.postgres import EmbeddedPostgres
from tests.simulation.commands import TOKEN
from tests.simulation.databases import SERVICES
from tests.simulation.deployment import Deployment
from tests.simulation.log import Written
from tests.simulation.outside import connect

HEADERS: Final = {"Authorization": f"Bearer {TOKEN}"}
LISTED_WITHIN: Final = 20  # rounds
ROUND_SECONDS: Final = 20.0


class Backup:
    """A copy of the database of a deployment."""

    def __init__(self, server: EmbeddedPostgres, deployment: Deployment) -> None:
        self.server = server
        self.deployment = deployment
        self.name = deployment.name
        self.copy = f"{deployment.name}_backup"

    async def make(self) -> None:
        """Copy the database. All services are started again, since a template has no sessions."""
        await self._disconnect()
        await self.server.create_database(self.copy, template=self.name)
        await self._connect()
        await self._start_again()

    async def restore(self) -> None:
        """Replace the database by the copy, and start all services again."""
        await self._disconnect()
        await self.server.drop_database(self.name)
        await self.server.create_database(self.name, template=self.copy)
        await self.server.drop_database(self.copy)
        await self._connect()
        await self.deployment.pass_time(0)  # the clock is a row of the database
        await self._start_again()

    async def _start_again(self) -> None:
        """Kill all services, and let the lease-broker and the weight-calculator compare their rows with the log."""
        for service in SERVICES:
            await self.deployment.kill(service)
        for service in SERVICES[1:]:
            await self.deployment.relay(service)

    async def _disconnect(self) -> None:
        for database in self.deployment.databases.values():
            await database.close()

    async def _connect(self) -> None:
        for service in SERVICES:
            self.deployment.databases[service] = await connect(self.server.url(self.name), service)
        self.deployment.api.runtime.database = self.deployment.databases["provisioner"]


async def is_in_log(deployment: Deployment) -> bool:
    """True if the log has events that the restored rows lack, so that the relay will notice."""
    async with deployment.databases["provisioner"].acquire() as db:
        rows = await db.fetch(incarnation.POSITIONS)
        positions = {(row["topic"], row["partition"]): row["sequence_number"] for row in rows}
        sent = await Written(deployment.log, "provisioner").ends()
        return bool(incarnation.lost_commits(await incarnation.get(db), positions, sent))


async def report(deployment: Deployment) -> None:
    """Record that the database was restored, as a person does."""
    answer = await deployment.http.post("/restored", json={"reason": "restored from a backup"}, headers=HEADERS)
    assert answer.status_code == 200, answer.text


async def confirm(deployment: Deployment) -> dict[str, Any]:
    """Wait until every account has been listed, then do what is proposed; returns what was proposed."""
    for _ in range(LISTED_WITHIN):
        await deployment.everything()
        found: dict[str, Any] = (await deployment.http.get("/recovery", headers=HEADERS)).json()
        if found["restored"] and not found["not_listed"]:
            names = ("account_id", "instance_id", "action")
            body = {"instances": [{name: row[name] for name in names} for row in found["orphans"]]}
            answer = await deployment.http.post("/recovery/confirm", json=body, headers=HEADERS)
            assert answer.status_code == 200, answer.text
            return found
        await deployment.pass_time(ROUND_SECONDS)
    raise AssertionError(f"nothing to confirm: {found}")
