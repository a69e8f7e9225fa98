"""Databases of a simulation: migrated once, copied for each run, with a clock that the simulation sets."""

from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Final

import asyncpg.transaction
import msgspec

from slipway_common.base import ids
from slipway_common.base.buckets import Limit
from slipway_common.database import migrate, postgres
from slipway_common.web.limits import LIMITS, CallerLimits
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_provisioner.main import build
from slipway_provisioner.settings import Settings
from tests.simulation.commands import TOKEN
from tests.support.provisioner import KEY

SERVICES: Final = ("provisioner", "weight-calculator", "lease-broker")
# One clock controlled by the simulation, in microseconds since START; each service's database adds its own skew. It is
# a sequence because a function that reads no table becomes a part of the statements that call it for each row.
CLOCK: Final = """
CREATE SEQUENCE public.simulated_clock MINVALUE 0;
SELECT setval('public.simulated_clock', 0);
GRANT ALL ON SEQUENCE public.simulated_clock TO PUBLIC"""
PER_SECOND: Final = 1_000_000
DEPLOYMENT: Final = "slipway-simulated"
TEMPLATE: Final = "simulation_template"
_templates: set[str] = set()  # servers with that database


class Api:
    """The provisioner's HTTP API. It keeps no state of a deployment but its database."""

    def __init__(self) -> None:
        self.tokens = NamedTemporaryFile()  # noqa: SIM115 (deleted at the end of the process)
        entry = {"name": "operator", "sha256": ids.hash_secret(TOKEN), "scopes": ["admin"]}
        Path(self.tokens.name).write_bytes(msgspec.json.encode([entry]))
        self.settings = Settings(
            database_url="",
            kafka="",
            registration_keys=KEY,
            send_within_seconds=1e9,
            boot_timeout_seconds=300.0,
            stuck_after_seconds=120.0,
            accepted_timeout_seconds=300.0,
            starts_at_once=1,  # in the same order with each seed
            tokens_file=Path(self.tokens.name),
        )
        service = build(self.settings)
        self.runtime = service.runtime
        self.app = service.app()
        # The limits go by the real clock, in which a history has thousands of requests a second.
        self.app.state.limits = CallerLimits(PER_SECOND, others=dict.fromkeys(LIMITS, Limit(PER_SECOND, PER_SECOND)))


async def migrated(server: EmbeddedPostgres) -> str:
    """Name of a database with the schemas of all services, which is created once per server and copied from then on."""
    if server.url() not in _templates:
        url = await server.create_database(TEMPLATE)
        for service in SERVICES:
            await migrate.upgrade(url, service)
        admin = await asyncpg.connect(url)
        await admin.execute(CLOCK)
        for service in SERVICES:  # what a migration draws at random
            await admin.execute(f"UPDATE {postgres.schema_of(service)}.incarnation SET id = md5('{service}')")
        await admin.execute(f"UPDATE provisioner.deployment SET id = '{DEPLOYMENT}'")
        await admin.close()
        _templates.add(server.url())
    return TEMPLATE
