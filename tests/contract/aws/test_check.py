"""Check of an account of EC2, on the stand-in: what is missing is named with its remedy, and nothing is changed."""

from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import msgspec
import pytest

from slipway_local.ec2.facts import Call, InstanceCreated, Terminated
from slipway_local.ec2.server import ENDPOINTS, EmbeddedEc2
from slipway_provisioner.domain.account_check import CheckState, Finding
from slipway_provisioner.domain.cloud import Account
from slipway_provisioner.providers.aws import account_check, calls
from slipway_provisioner.providers.aws.adapter import Ec2 as Provider
from slipway_provisioner.providers.pacing import LocalBuckets
from slipway_provisioner.providers.port import ProviderSettings
from tests.contract.aws.conftest import KEY, REGION, SECRET, request
from tests.support.ec2 import Ec2, cleared

IDENTITY: Final = "123456789012"  # of moto
OTHER: Final = "210987654321"
ROLE: Final = {
    "role": f"arn:aws:iam::{OTHER}:role/slipway",
    "external_id": "demo",
    "source": {"environment": "CI_AWS"},
}
PROFILE: Final = "slipway-machine"


class Checked(msgspec.Struct, frozen=True):
    """A stand-in, and the provider that checks accounts in it."""

    ec2: Ec2
    provider: Provider

    def account(self, **changes: Any) -> Account:
        own: dict[str, Any] = {
            "id": "ci/aws",
            "deployment": "deployment-1",
            "provider": "aws",
            "region": REGION,
            "identity": IDENTITY,
            "lease_pool_id": "ci",
            "settings": dict.fromkeys(ENDPOINTS, self.ec2.url),
            "credential": {"environment": "CI_AWS"},
        }
        return Account(**own | changes)

    async def findings(self, *configs: Mapping[str, Any], **changes: Any) -> dict[tuple[str, str], Finding]:
        found = await self.provider.check(self.account(**changes), configs or [config()])
        by_key = {finding.key: finding for finding in found}
        assert len(by_key) == len(found), "two findings on one subject"
        assert SECRET not in repr(found)
        return by_key

    async def subnet(self) -> str:
        """Default subnet of the first zone."""
        async with self.ec2.client() as client:
            reply: Any = await client.describe_subnets()
            return next(str(row["SubnetId"]) for row in reply["Subnets"] if row["AvailabilityZone"] == "us-east-1a")


def config(name: str = "linux/a", **changes: Any) -> dict[str, Any]:
    own = {"id": f"{name}@1", "name": name, "zone": "us-east-1a", "instance_type": "m5.large", "image": "ami-1"}
    return own | {"settings": {"instance_profile": PROFILE}} | changes


@pytest.fixture
async def checked(
    provider: Provider, ec2_server: EmbeddedEc2, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Checked]:
    monkeypatch.setenv("CI_AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("CI_AWS_SECRET_ACCESS_KEY", SECRET)
    async with cleared(ec2_server) as ec2:
        yield Checked(ec2, provider)


def problems(found: Mapping[tuple[str, str], Finding]) -> set[tuple[str, str]]:
    return {key for key, finding in found.items() if finding.is_problem}


async def test_a_good_account(checked: Checked) -> None:
    """Everything is ok but what no machine runs to try on, also with a machine; nothing was launched or ended."""
    found = await checked.findings(config(), config("linux/b", settings={"lifecycle": "spot"}))
    states = {key: finding.state for key, finding in found.items()}
    of_instances = [("permission", f"ec2:{call}") for call in ("TerminateInstances", "GetConsoleOutput")]
    assert [states.pop(key) for key in of_instances] == [CheckState.UNKNOWN] * 2
    assert set(states.values()) == {CheckState.OK}, found
    assert {("identity", ""), ("clock", ""), ("credential", ""), ("permission", "ec2:RunInstances")} <= states.keys()
    assert {("quota", "standard"), ("quota", "standard-spot"), ("image", "ami-1")} <= states.keys()
    assert {("permission", f"ec2:Describe{of}") for of in ("Instances", "Volumes", "NetworkInterfaces")} < states.keys()
    assert any(kind == "subnet" for kind, _ in states)
    await checked.ec2.play(boot_seconds_median=3600)  # its agent could shut it down before it is looked at
    asked = request(zone="us-east-1a")
    (instance_id,) = await checked.provider.create(checked.account(), asked)
    again = await checked.findings()
    assert [again[key].state for key in of_instances] == [CheckState.OK] * 2, again
    assert "2 of" in again["quota", "standard"].message
    assert len([fact for fact in checked.ec2.facts(InstanceCreated) if fact.batch == "check"]) == 0
    assert [fact for fact in checked.ec2.facts(Terminated) if fact.instance_id == instance_id] == []


#          faults, expected problem, words of its message, words of its remedy
CASES: Final = [
    ("deny:RunInstances", ("permission", "ec2:RunInstances"), "arn:aws:ec2:us-east-1:123456789012:instance/*", "allow"),
    ("deny:CreateTags", ("permission", "ec2:CreateTags"), "denied on arn:aws:ec2", "allow ec2:CreateTags"),
    (
        "deny:PassRole",
        ("permission", "iam:PassRole"),
        f"role/{PROFILE}; needed by launch config linux/a",
        "iam:PassRole",
    ),
    ("deny:DescribeVolumes", ("permission", "ec2:DescribeVolumes"), "denied", "aws-policy.json"),
    ("deny:RunInstances,deny:DecodeAuthorizationMessage", ("permission", "ec2:RunInstances"), "denied", "allow"),
    (f"quota:{IDENTITY}", ("quota", "standard"), "no room for one m5.large (2 vCPUs)", "--quota-code L-1216C47A"),
    (f"identity:{OTHER}", ("identity", ""), f"belongs to {OTHER}", "correct the credential"),
    ("unshared-image:ami-1", ("image", "ami-1"), f"not shared with AWS account {IDENTITY}", "modify-image-attribute"),
    ("clock:-250", ("clock", ""), "ahead of AWS", "NTP"),
    ("clock:400", ("clock", ""), "behind AWS", "NTP"),
    ("expired-credential", ("credential", ""), "RequestExpired", "refresh"),
    ("refuse:GetCallerIdentity/InvalidClientTokenId", ("credential", ""), "InvalidClientTokenId", "corrects"),
    ("refuse:RunInstances/InvalidGroup.NotFound", ("launch-config", "linux/a"), "InvalidGroup.NotFound", "correct"),
]


@pytest.mark.parametrize(("faults", "key", "message", "remedy"), CASES)
async def test_a_problem_is_named_with_its_remedy(
    checked: Checked, faults: str, key: tuple[str, str], message: str, remedy: str
) -> None:
    await checked.ec2.play(faults=faults)
    found = await checked.findings()
    also = {("credential", "")} if faults == "clock:400" else set()
    assert problems(found) == {key} | also, found
    assert message in found[key].message
    assert remedy in found[key].remedy


async def test_a_full_subnet(checked: Checked) -> None:
    """Named by its launch configs, or the default one of their zone."""
    subnet = await checked.subnet()
    await checked.ec2.play(faults=f"subnet:{subnet}")
    for settings in ({}, {"subnet_id": subnet}):
        found = await checked.findings(config(settings=settings))
        assert problems(found) == {("subnet", subnet)}
        assert found["subnet", subnet].message == "no free address: each machine takes one"
        assert "larger subnet" in found["subnet", subnet].remedy
    elsewhere = await checked.findings(config(zone="us-east-1b"))
    assert problems(elsewhere) == set()


async def test_subnets_that_do_not_fit(checked: Checked) -> None:
    """One that is unknown, and one of another zone, are one problem each."""
    subnet = await checked.subnet()
    unknown = await checked.findings(config(settings={"subnet_id": "subnet-0abc"}))
    assert problems(unknown) == {("subnet", "subnet-0abc")}
    assert "belongs to another AWS account" in unknown["subnet", "subnet-0abc"].message
    other = await checked.findings(config(zone="us-east-1b", settings={"subnet_id": subnet}))
    assert problems(other) == {("subnet", subnet)}
    assert "not in that of launch config linux/a" in other["subnet", subnet].message


async def test_a_zone_and_an_image_that_do_not_exist(checked: Checked) -> None:
    await checked.ec2.play(images={"ami-2": {"bad": "not_found"}})
    found = await checked.findings(config(), config("linux/b", image="ami-2"), config("linux/c", zone="us-east-9a"))
    assert problems(found) == {("image", "ami-2"), ("launch-config", "linux/c")}
    assert "use1-az" in found["launch-config", "linux/c"].remedy


async def test_quotas_of_on_demand_and_spot_are_apart(checked: Checked) -> None:
    """Also the machines that others have launched count."""
    await checked.ec2.play(accounts={"*": {"quota": {"standard": 4, "standard/spot": 3}}})
    async with checked.ec2.client() as client:
        await client.run_instances(ImageId="ami-9", InstanceType="c5.large", MinCount=1, MaxCount=1)
    spot = config("linux/b", settings={"lifecycle": "spot"})
    found = await checked.findings(config(), spot)
    assert found["quota", "standard"].message == "2 of 4 vCPUs in use; room for 1 × m5.large"
    assert found["quota", "standard-spot"].message == "0 of 3 vCPUs in use; room for 1 × m5.large"
    large = await checked.findings(config(instance_type="m5.xlarge"), spot)
    assert problems(large) == {("quota", "standard")}


@pytest.mark.parametrize(
    ("denied", "kind"),
    [
        ("GetServiceQuota", "quota"),
        ("DescribeSubnets", "subnet"),
        ("DescribeImages", "image"),
        ("DescribeInstanceTypes", "quota"),
    ],
)
async def test_a_permission_of_checks_alone_is_a_warning(checked: Checked, denied: str, kind: str) -> None:
    """All else is checked; that which depends on it is unknown."""
    await checked.ec2.play(faults=f"deny:{denied},deny:CreateTags")
    found = await checked.findings()
    assert problems(found) == {("permission", "ec2:CreateTags")}
    (warned,) = [finding for finding in found.values() if finding.state is CheckState.WARNING]
    assert (warned.kind, warned.subject.partition(":")[2]) == ("permission", denied)
    assert "only this check needs it" in warned.message
    unknown = {key[0] for key, finding in found.items() if finding.state is CheckState.UNKNOWN}
    assert unknown == {kind, "permission"}, "TerminateInstances could not be tried"


async def test_the_end_of_a_session(checked: Checked, monkeypatch: pytest.MonkeyPatch) -> None:
    """A role's session is renewed, so that only one that is not is a problem. Other temporary credentials end."""
    role: dict[str, Any] = {"credential": ROLE, "identity": OTHER}
    found = await checked.findings(**role)
    assert problems(found) == set()
    assert "renewed before" in found["credential", ""].message
    await checked.ec2.play(faults="session:300")
    short = await checked.findings(**role | {"deployment": "deployment-2"})
    assert problems(short) == {("credential", "")}
    assert "in 5 minutes; renewing it fails, or extends it no further" in short["credential", ""].message
    assert "maximum session duration" in short["credential", ""].remedy
    await checked.ec2.play()
    monkeypatch.setenv("CI_AWS_SESSION_TOKEN", "token")
    assert (await checked.findings())["credential", ""].state is CheckState.WARNING
    monkeypatch.setenv("CI_AWS_CREDENTIAL_EXPIRATION", "2026-01-01T00:00:00Z")
    ended = await checked.findings()
    assert problems(ended) == {("credential", "")}
    assert "expires at 2026-01-01 00:00:00 UTC" in ended["credential", ""].message


async def test_a_foreign_account_is_asked_nothing_else(checked: Checked) -> None:
    await checked.ec2.play(faults=f"identity:{OTHER}")
    before = len(checked.ec2.facts(Call))
    found = await checked.findings()
    assert [fact.action for fact in checked.ec2.facts(Call)[before:]] == ["GetCallerIdentity"]
    assert {key for key, finding in found.items() if finding.state is CheckState.UNKNOWN} == {
        (kind, "") for kind in ("permission", "launch-config", "subnet", "image", "quota")
    }


async def test_launch_configs_that_differ_in_place_alone_are_tried_once(checked: Checked) -> None:
    """The bucket of launches has few tokens."""
    before = len(checked.ec2.facts(Call))
    places = [config(f"linux/{zone}", zone=zone) for zone in ("us-east-1a", "us-east-1b", "use1-az1")]
    found = await checked.findings(*places, config("linux/x", settings={"tags": {"team": "x"}}))
    assert "of 4 launch configs" in found["permission", "ec2:RunInstances"].message
    assert [fact.action for fact in checked.ec2.facts(Call)[before:]].count("RunInstances") == 2


async def test_a_check_leaves_tokens_to_launches(checked: Checked, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the five launch calls of a full bucket it makes two. The others are unknown, and a launch need not wait."""
    monkeypatch.setattr(account_check, "PATIENCE_SECONDS", 0.0)
    provider = Provider(ProviderSettings(timeout_seconds=60, pacing=LocalBuckets(lambda: 0.0)))
    await provider.open()
    try:
        before = len(checked.ec2.facts(Call))
        configs = [config(f"linux/{n}", settings={"tags": {"n": str(n)}}) for n in range(4)]
        found = {finding.key: finding for finding in await provider.check(checked.account(), configs)}
        assert [fact.action for fact in checked.ec2.facts(Call)[before:]].count("RunInstances") == 2
        assert found["permission", ""].message.startswith("launches of linux/2, linux/3 were not tried")
        waits = [
            await provider.caller.missing_seconds(checked.account(), calls.RUN, 1, within_seconds=0) for _ in "123"
        ]
        assert waits == [0, 0, 0]
    finally:
        await provider.close()
