"""Metrics of each service's process: exactly its rows of the table."""

import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families

from slipway_common.observability.metrics import EVERY, METRICS
from slipway_local.servers.child import Child
from slipway_local.servers.ports import free_ports
from tests.support import readers
from tests.support.harness import until
from tests.support.provisioner import KEY
from tests.support.tools import run

# Metrics of the process itself, added by the client library.
OF_THE_PROCESS = ("python_", "process_")


@pytest.fixture(params=EVERY)
async def service(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[str, int]]:
    """Name and port of a service without its servers, which answers nevertheless."""
    name: str = request.param
    (port,) = free_ports(1)
    given = {
        "DATABASE_URL": "postgresql://nobody@127.0.0.1:1/nowhere",
        "KAFKA": "127.0.0.1:1",
        "PORT": str(port),
        "REGISTRATION_KEYS": KEY,
        "SECRETS_IN_ENVIRONMENT": "yes",
        "TOKENS_FILE": str(readers.TOKENS_FILE),
    }
    child = Child(
        name,
        [sys.executable, "-m", f"slipway_{name.replace('-', '_')}.main"],
        log=tmp_path / "log",
        env=os.environ | {f"SLIPWAY_{variable}": value for variable, value in given.items()},
    )
    child.start()
    yield name, port
    await child.kill()


async def test_a_service_exports_exactly_its_rows(service: tuple[str, int]) -> None:
    """Names, kinds, labels and help texts equal the table's; promtool reports no problems."""
    name, port = service
    async with httpx2.AsyncClient(trust_env=False) as http:

        async def scraped() -> str:
            try:
                return (await http.get(f"http://127.0.0.1:{port}/metrics", headers=readers.HEADERS)).text
            except httpx2.TransportError:
                return ""

        text = await until(scraped, f"{name} answers")
    exported = {
        (family.name, family.type, family.documentation)
        for family in text_string_to_metric_families(text)
        if not family.name.startswith(OF_THE_PROCESS)
    }
    assert exported == {
        (metric.name.removesuffix("_total"), metric.kind, metric.help) for metric in METRICS if name in metric.services
    }
    assert run("promtool", "check", "metrics", given=text) == ""
