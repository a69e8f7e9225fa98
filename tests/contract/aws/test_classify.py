"""`slipway provider classify`: the meaning of an error code, as the running provisioner would read it."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from typer.testing import CliRunner

from slipway_client.cli.main import app
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_provisioner.providers.aws.adapter import Ec2
from slipway_provisioner.providers.port import ProviderSettings
from tests.support.cloud import Cloud
from tests.support.provisioner import Provisioner, provisioner_on
from tests.support.readers import TOKEN
from tests.support.serving import listening


@pytest.fixture
async def provisioner(postgres: EmbeddedPostgres) -> AsyncIterator[Provisioner]:
    async with provisioner_on(postgres) as provisioner:
        ec2 = Ec2(ProviderSettings(timeout_seconds=60))
        provisioner.app.state.providers = {"aws": ec2, "simulated": Cloud()}
        yield provisioner


async def classified(provisioner: Provisioner, path: str = "/providers/aws/classify", **given: str) -> Any:
    async with provisioner.client() as client:
        return (await client.get(path, params=given)).json()


async def test_a_code(provisioner: Provisioner) -> None:
    assert await classified(provisioner, code="InsufficientInstanceCapacity") == {
        "code": "InsufficientInstanceCapacity",
        "stage": "launch",
        "scope": "capacity",
        "resource": "",
        "launched": "no",
        "advice": "probe, for minutes",
    }


async def test_a_code_whose_message_counts(provisioner: Provisioner) -> None:
    message = "Not authorized for images: [ami-1]"
    assert (await classified(provisioner, code="AuthFailure", message=message))["scope"] == "image"
    assert (await classified(provisioner, code="AuthFailure"))["scope"] == "credential"


async def test_a_reason_of_an_end(provisioner: Provisioner) -> None:
    found = await classified(provisioner, code="Client.InternalError")
    assert (found["stage"], found["scope"], found["launched"]) == ("boot", "image", "yes")


async def test_a_code_that_an_account_adds(provisioner: Provisioner) -> None:
    await provisioner.declare()
    await provisioner.database.execute("""UPDATE account SET settings = '{"errors": {"Gremlins": "quota"}}'""")
    assert (await classified(provisioner, code="Gremlins"))["scope"] == "unclassified"
    assert (await classified(provisioner, code="Gremlins", account="sim-a"))["scope"] == "quota"


@pytest.mark.parametrize(
    ("path", "given", "slug"),
    [
        ("/providers/azure/classify", {}, "unknown-provider"),
        ("/providers/simulated/classify", {}, "no-error-table"),
        ("/providers/aws/classify", {"account": "none"}, "unknown-account"),
    ],
)
async def test_what_cannot_be_classified(provisioner: Provisioner, path: str, given: dict[str, str], slug: str) -> None:
    problem = await classified(provisioner, path, code="X", **given)
    assert (problem["status"], problem["type"]) == (404, f"urn:slipway:problem:{slug}")


async def test_the_command(provisioner: Provisioner) -> None:
    async with listening(provisioner.app) as url:

        def slipway(*arguments: str) -> str:
            variables = {"SLIPWAY_PROVISIONER_URL": url, "SLIPWAY_TOKEN": TOKEN}
            given = ["provider", "classify", "aws", *arguments]
            return CliRunner().invoke(app, given, env=variables, catch_exceptions=False).stdout

        table = await asyncio.to_thread(slipway, "--code", "Gremlins", "--message", "they ate it")
        found = await asyncio.to_thread(slipway, "--code", "OptInRequired", "-o", "json")
    assert "unclassified" in table
    assert "add the code to `errors` in the settings of the account" in table
    assert json.loads(found)["advice"] == "probe, for hours; a person contacts AWS Support"
