"""Credentials and settings of AWS accounts, as declared: secrets are nowhere to be found, and bad settings refused."""

import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest

from slipway_api.events.lease import LeaseRequested
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_provisioner.domain.declaration import DeclarationRefused
from slipway_provisioner.domain.operator import CredentialOfOperator
from tests.support.ec2_provisioner import CREDENTIALS, body, with_ec2
from tests.support.ec2_server import Ec2Server, assumed, caller, described, error, launched, serving, zones
from tests.support.provisioner import Provisioner, report

ROLE: Final = "arn:aws:iam::123456789012:role/slipway"
SECRETS: Final = ("a-secret-access-key", "a-session-token", "secret-of-ASIAROLE", "token-of-ASIAROLE")
PATHS: Final = (
    "/accounts",
    "/accounts/sim-a",
    "/audit",
    "/declaration",
    "/launch-configs",
    "/pools",
    "/pools/linux",
    "/pools/linux/history",
    "/status",
    "/workers",
)
"""Routes whose responses the commands print."""


@pytest.fixture
async def server() -> AsyncIterator[Ec2Server]:
    async with serving() as server:
        yield server


@pytest.fixture
async def provisioner(postgres: EmbeddedPostgres) -> AsyncIterator[Provisioner]:
    async with with_ec2(postgres) as provisioner:
        yield provisioner


async def test_bad_settings_of_a_launch_config_are_refused(provisioner: Provisioner) -> None:
    """With the place and the remedy; nothing of the declaration is applied."""
    with pytest.raises(DeclarationRefused) as refused:
        await provisioner.declare(body(subnet_id="my subnet"))
    place = "worker pool linux: launch config zone-a in account sim-a: settings: "
    assert str(refused.value).startswith(f"{place}subnet_id is 'my subnet'; write")
    for table in ("account", "worker_pool", "launch_config"):
        assert await provisioner.database.fetchval(f"SELECT count(*) FROM {table}") == 0
    await provisioner.declare(body(subnet_id="subnet-0a"))


async def test_a_partition_of_another_region_is_refused(provisioner: Provisioner) -> None:
    wrong = body()
    wrong["accounts"][0]["region"] = "cn-north-1"
    with pytest.raises(DeclarationRefused) as refused:
        await provisioner.declare(wrong)
    assert str(refused.value).startswith("account sim-a: settings: partition is aws, but region cn-north-1 lies in")


async def test_an_unusable_reference_is_refused(provisioner: Provisioner) -> None:
    with pytest.raises(DeclarationRefused, match="account sim-a: credential: role is 'slipway'; write its ARN"):
        await provisioner.declare(body(credential={"role": "slipway"}))


async def test_a_credential_is_stored_and_shown_nowhere(
    provisioner: Provisioner, server: Ec2Server, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Not in rows, events, answers and logs, after launches that succeed, fail and stay unknown."""
    caplog.set_level(logging.DEBUG)
    file = tmp_path / "credentials"
    keys = {"access_key_id": "AKIAEXAMPLE", "secret_access_key": SECRETS[0], "session_token": SECRETS[1]}
    file.write_text("\n".join(["[default]", *(f"aws_{name} = {value}" for name, value in keys.items())]))
    CREDENTIALS["file"] = CredentialOfOperator(file=str(file))
    await provisioner.declare(body(server.url, credential={"role": ROLE, "source": {"name": "file"}}))
    await provisioner.trust()
    others = {
        "AssumeRole": assumed("AssumeRole", "ASIAROLE"),
        "DescribeAvailabilityZones": zones(us_east_1a="use1-az4"),
        "GetCallerIdentity": caller("sim-a"),
    }
    denied = error("UnauthorizedOperation", f"{SECRETS[2]} may not", 403)
    for pending, answer in enumerate((launched("i-1"), denied, error("Unavailable", status=503)), 1):
        server.answers(answer, DescribeInstances=described(), **others)
        await provisioner.demand(report(pending, at=pending))
        await provisioner.plan()
        requests = await provisioner.published(LeaseRequested)
        await provisioner.leases(*(provisioner.granted(request) for request in requests))
        await provisioner.launch()
        await provisioner.reap()
    assert server.actions().count("RunInstances") >= 3
    assert "AssumeRole" in server.actions()
    tables = await provisioner.database.fetch("SELECT relname AS name FROM pg_stat_user_tables")
    rows = [await provisioner.database.fetch(f'SELECT t::text AS row FROM "{table["name"]}" AS t') for table in tables]
    async with provisioner.client() as client:
        answers = [await client.get(path) for path in PATHS]
    assert [answer.status_code for answer in answers] == [200] * len(PATHS)
    shown = "\n".join([*(row["row"] for found in rows for row in found), *(a.text for a in answers), caplog.text])
    assert shown.count(ROLE) >= 2
    assert str(file) not in shown, "the declaration names the credential, and only the operator knows its file"
    assert [secret for secret in SECRETS if secret in shown] == []
