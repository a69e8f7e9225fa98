"""Resources of the real provider for AWS that a restored database does not know. moto says what exists."""

from collections.abc import AsyncIterator
from typing import Final

import msgspec
import pytest

from slipway_common.base.ids import new_id
from slipway_local.ec2.moto import HOST, Scope
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_local.terraform.packages import AWS
from slipway_provisioner.domain.recovery import Action
from slipway_provisioner.domain.workspaces import Phase
from slipway_terraform.runs.modules import module_digest
from tests.drills.terraform_e2e import IDENTITY, MODULE_HEAD, MODULES
from tests.support.orphans import alerts, confirmed, not_listed_yet, reaped, restored, until_listed
from tests.support.terraform_aws import AwsCloud
from tests.support.terraform_fleet import Fleet, fleet_on
from tests.support.terraform_provider import launch_settings, working

REGION: Final = "eu-west-1"
ACCESS: Final = Scope("AKIAEXAMPLE", REGION)


@pytest.fixture
async def fleet(postgres: EmbeddedPostgres, aws: AwsCloud) -> AsyncIterator[Fleet]:
    """A fleet whose account is one of moto, and whose module makes a security group."""
    await aws.server.reset()
    async with fleet_on(postgres) as fleet:
        digests = {
            name: module_digest(fleet.place.module(MODULE_HEAD + MODULES[name], name)) for name in ("group", "look-up")
        }
        plugin = {"source": AWS.source, "version": AWS.version, "binary": str(AWS.path), "digest": AWS.digest}
        configuration = dict(aws.spec(REGION).configuration)
        services = ("ec2", "iam", "sts", "resourcegroupstaggingapi")
        configuration["endpoints"] = [dict.fromkeys(services, f"http://{HOST}:{aws.port}")]
        settings = {
            **fleet.account.settings,
            "plugins": [plugin],
            "lookup": {"module": "look-up", "digest": digests["look-up"]},
            "configuration": configuration,
        }
        fleet.account = msgspec.structs.replace(fleet.account, settings=settings, identity=IDENTITY)
        await fleet.database.execute("UPDATE account SET settings = $1, identity = $2", settings, IDENTITY)
        provider = {"source": AWS.source, "version": AWS.version}
        launch = launch_settings(
            fleet.place, module="group", digest=digests["group"], provider=provider, outputs={"address": ""}
        )
        await fleet.database.execute("UPDATE launch_config SET settings = $1", launch)
        yield fleet


async def groups(aws: AwsCloud) -> list[str]:
    """Names of the security groups that exist, without the default ones."""
    found = await aws.server.call(ACCESS, "DescribeSecurityGroups", {})
    names = [item.findtext("groupName", "") for item in found.findall("securityGroupInfo/item")]
    return sorted(name for name in names if name != "default")


async def foreign(aws: AwsCloud, name: str) -> None:
    """Make a security group as another deployment with an account of the same name makes it."""
    tags = {"slipway-deployment": "other", "slipway-account": "tf", "slipway-workspace": new_id(), "address": "a.b"}
    given = {"GroupName": name, "GroupDescription": name, "TagSpecification.1.ResourceType": "security-group"}
    for place, (key, value) in enumerate(tags.items(), 1):
        given |= {f"TagSpecification.1.Tag.{place}.Key": key, f"TagSpecification.1.Tag.{place}.Value": value}
    await aws.server.call(ACCESS, "CreateSecurityGroup", given)


async def test_a_group_that_a_restored_database_does_not_know(fleet: Fleet, aws: AwsCloud) -> None:
    """One alert names it, and a person's decision destroys it. That of another deployment stays."""
    launch = await fleet.database.fetchval("SELECT settings FROM launch_config")
    await foreign(aws, "foreign")
    async with working(fleet.replica()) as provider:
        await fleet.resolved(await fleet.create(**launch))
        (row,) = await fleet.rows()
        assert row.phase is Phase.READY, row.problem
        assert await groups(aws) == sorted([row.id, "foreign"])
        await restored(fleet)
        await not_listed_yet(fleet, provider)
        await until_listed(fleet)
        (waiting,) = await reaped(fleet, provider)
        assert f"aws_security_group.worker ({row.instance_id})" in waiting
        (alert,) = await alerts(fleet, "orphans-kept")
        assert alert["evidence"] == [f"workspace-{row.id}"]
        await confirmed(fleet, Action.TERMINATE)
        await reaped(fleet, provider)
        await fleet.until_phase(Phase.GONE)
        assert await groups(aws) == ["foreign"]
