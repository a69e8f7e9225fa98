"""IAM policy of the provider: it allows the calls that the code makes, and no others."""

import ast
from pathlib import Path
from typing import Any

import msgspec
import pytest

import slipway_provisioner.providers.aws as package
from slipway_provisioner.providers.aws import remains
from slipway_provisioner.providers.aws.adapter import Ec2
from slipway_provisioner.providers.aws.calls import CALLS, CHECKS, CREDENTIAL_OPERATIONS, policy
from slipway_provisioner.providers.port import ProviderSettings
from tests.contract.aws.conftest import Cloud, request
from tests.support.ec2_server import Reply, caller, checked, described, error, instance, launched, reply, zones

FOLDER = Path(package.__path__[0])


def actions(document: dict[str, Any]) -> set[str]:
    """Actions that a policy allows."""
    found = set()
    for statement in document["Statement"]:
        assert statement["Effect"] == "Allow"
        named = statement["Action"]
        found |= {named} if isinstance(named, str) else set(named)
    return found


async def test_the_provider_makes_the_listed_calls(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every method of the provider, against a server that keeps what it receives."""
    provider = Ec2(ProviderSettings(timeout_seconds=60))
    monkeypatch.setattr(remains, "UNUSED_SECONDS", 0.0)
    await provider.open()
    cloud.server.answers(
        RunInstances=launched("i-1"),
        DescribeInstances=described(instance("i-1", "terminated", reason="Client.InternalError")),
        DescribeInstanceStatus=checked(i_1="ok/ok"),
        TerminateInstances=reply("TerminateInstances", "<instancesSet/>"),
        GetConsoleOutput=reply("GetConsoleOutput", "<instanceId>i-1</instanceId>"),
        DescribeAvailabilityZones=zones(us_east_1a="use1-az4"),
        GetCallerIdentity=caller("1"),
        DescribeVolumes=reply("DescribeVolumes", "<volumeSet><item><volumeId>vol-1</volumeId></item></volumeSet>"),
        DescribeNetworkInterfaces=reply(
            "DescribeNetworkInterfaces",
            "<networkInterfaceSet><item><networkInterfaceId>eni-1</networkInterfaceId></item></networkInterfaceSet>",
        ),
        DeleteVolume=reply("DeleteVolume", "<return>true</return>"),
        DeleteNetworkInterface=reply("DeleteNetworkInterface", "<return>true</return>"),
        DescribeSubnets=reply("DescribeSubnets", "<subnetSet/>"),
        DescribeImages=error("UnauthorizedOperation", "Encoded authorization failure message: abc", 403),
        DescribeInstanceTypes=reply("DescribeInstanceTypes", "<instanceTypeSet/>"),
        DecodeAuthorizationMessage=error("AccessDenied", status=403, sts=True),
        GetServiceQuota=Reply('{"Quota": {"Value": 5}}', headers={"content-type": "application/x-amz-json-1.1"}),
    )
    account, asked = cloud.account(), request()
    try:
        await provider.create(account, asked)
        await provider.instances(account)
        await provider.exists(account, "i-1", launched_at=None)
        await provider.ready(account, ["i-1"])
        await provider.ending(account, asked.config, "i-1")
        await provider.console_output(account, asked.batch_id, "i-1")
        await provider.terminate(account, ["i-1"])
        await provider.identity(account)
        await provider.health(account)
        await provider.clean_up(account)
        await provider.check(msgspec.structs.replace(account, identity="1"), [{**asked.config, "name": "a"}])
    finally:
        await provider.close()
    assert set(cloud.server.actions()) == {call.operation for call in CALLS}


def test_calls_are_made_in_one_place() -> None:
    """The SDK's clients are used by one function, which takes one of the listed calls; so no method can make another.
    Credentials make their own calls, with clients of STS."""
    users = set()
    for file in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            named = isinstance(node, ast.Attribute) and node.attr == "clients"
            if named or (isinstance(node, ast.Name) and node.id == "getattr"):
                users.add(file.name)
    assert users == {"client.py", "failures.py", "settings.py"}
    assert "Call(" not in "".join(file.read_text() for file in FOLDER.glob("*.py") if file.name != "calls.py")
    assert {"AssumeRole", "AssumeRoleWithWebIdentity"} == CREDENTIAL_OPERATIONS


def test_the_policy_allows_these_calls() -> None:
    """GetCallerIdentity needs no permission, and a launch needs to tag."""
    listed = {call.action for call in CALLS} - {"sts:GetCallerIdentity"}
    assert "servicequotas:GetServiceQuota" in listed
    assert actions(policy()) == listed | {"ec2:CreateTags"}
    assert actions(policy(machine_role="arn:aws:iam::1:role/m")) == listed | {"ec2:CreateTags", "iam:PassRole"}


def test_calls_of_checks_are_a_statement_of_their_own() -> None:
    """Without it nothing is lost but findings of the check."""
    (checks,) = [s for s in policy()["Statement"] if s["Sid"] == "Check"]
    assert set(checks["Action"]) == {call.action for call in CHECKS}
    rest = {"Statement": [s for s in policy()["Statement"] if s["Sid"] != "Check"]}
    assert not actions(rest) & {*checks["Action"]}


def test_the_policy_ends_only_what_slipway_has_made() -> None:
    ends = {"ec2:TerminateInstances", "ec2:DeleteVolume", "ec2:DeleteNetworkInterface"}
    statements = [s for s in policy(partition="aws-cn")["Statement"] if ends & actions({"Statement": [s]})]
    (statement,) = statements
    assert set(statement["Action"]) == ends
    assert statement.get("Condition") == {"StringLike": {"aws:ResourceTag/slipway-deployment": "*"}}
    assert all(arn.startswith("arn:aws-cn:ec2:*:*:") for arn in statement["Resource"])
