"""Parameters of RunInstances and the settings that they are made from."""

from typing import Any

import msgspec
import pytest

from slipway_provisioner.providers.aws import body
from slipway_provisioner.providers.aws.settings import (
    Ec2Settings,
    account_problem,
    account_settings,
    credential_problem,
    launch_problem,
    launch_settings,
)

BODY = {"id": "linux/a@1", "zone": "use1-az4", "instance_type": "m5.large", "image": "ami-1", "settings": {}}
EVERYTHING = {
    "lifecycle": "spot",
    "subnet_id": "subnet-0a",
    "security_group_ids": ["sg-0b", "sg-0c"],
    "instance_profile": "runner",
    "block_devices": [{"device_name": "/dev/sda1", "size_gib": 100, "iops": 4000, "encrypted": True}],
    "key_name": "key",
    "tags": {"team": "ci"},
    "metadata_hops": 2,
    "capacity_reservations": "none",
    "placement_group": "close",
    "tasks_per_worker": 1,
}


def made(settings: dict[str, Any], account: dict[str, Any] | None = None, zone: str = "use1-az4") -> dict[str, Any]:
    call = body.committed(BODY | {"zone": zone}, account_settings(account or {}), launch_settings(settings))
    return body.run_instances(call, token="d-1", count=3, user_data="#!/bin/sh", tags={"slipway-batch": "b"})


def tags(resource: str) -> dict[str, Any]:
    return {"ResourceType": resource, "Tags": [{"Key": "slipway-batch", "Value": "b"}]}


def test_the_least_call() -> None:
    """A machine that shuts down is terminated, and its metadata service needs a token."""
    assert made({}) == {
        "ImageId": "ami-1",
        "InstanceType": "m5.large",
        "MinCount": 1,
        "MaxCount": 3,
        "ClientToken": "d-1",
        "UserData": "#!/bin/sh",
        "InstanceInitiatedShutdownBehavior": "terminate",
        "MetadataOptions": {"HttpTokens": "required", "HttpEndpoint": "enabled", "HttpPutResponseHopLimit": 1},
        "Placement": {"AvailabilityZoneId": "use1-az4"},
        "TagSpecifications": [tags("instance"), tags("volume"), tags("network-interface")],
    }


def test_every_setting_reaches_the_call() -> None:
    call = made(EVERYTHING, {"tags": {"team": "platform", "owner": "me"}})
    assert call["InstanceMarketOptions"] == {
        "MarketType": "spot",
        "SpotOptions": {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"},
    }
    assert call["SubnetId"] == "subnet-0a"
    assert call["SecurityGroupIds"] == ["sg-0b", "sg-0c"]
    assert call["IamInstanceProfile"] == {"Name": "runner"}
    assert call["KeyName"] == "key"
    assert call["CapacityReservationSpecification"] == {"CapacityReservationPreference": "none"}
    assert call["Placement"] == {"AvailabilityZoneId": "use1-az4", "GroupName": "close"}
    assert call["MetadataOptions"]["HttpPutResponseHopLimit"] == 2
    disk = {"DeleteOnTermination": True, "VolumeType": "gp3", "VolumeSize": 100, "Iops": 4000, "Encrypted": True}
    assert call["BlockDeviceMappings"] == [{"DeviceName": "/dev/sda1", "Ebs": disk}]
    kinds = [each["ResourceType"] for each in call["TagSpecifications"]]
    assert kinds == ["instance", "volume", "network-interface", "spot-instances-request"]
    for each in call["TagSpecifications"]:
        given = {row["Key"]: row["Value"] for row in each["Tags"]}
        assert (given["team"], given["owner"], given["slipway-batch"]) == ("ci", "me", "b")


def test_a_profile_by_its_arn() -> None:
    arn = "arn:aws:iam::123456789012:instance-profile/runner"
    assert made({"instance_profile": arn})["IamInstanceProfile"] == {"Arn": arn}


@pytest.mark.parametrize("zone", ["us-east-1a", "us-west-2-lax-1a"])
def test_a_zone_by_its_name(zone: str) -> None:
    assert made({}, zone=zone)["Placement"] == {"AvailabilityZone": zone}


@pytest.mark.parametrize("zone", ["use1-az4", "usw2-lax1-az1", "usgw1-az2"])
def test_a_zone_by_its_id(zone: str) -> None:
    assert made({}, zone=zone)["Placement"] == {"AvailabilityZoneId": zone}


def test_the_same_call_has_the_same_bytes() -> None:
    """Also from settings whose keys come in another order, as a database may return them."""
    other = dict(reversed(EVERYTHING.items())) | {"tags": {"team": "ci"}}
    account = {"tags": {"a": "1", "b": "2"}}
    reordered = {"tags": {"b": "2", "a": "1"}}
    assert msgspec.json.encode(made(EVERYTHING, account)) == msgspec.json.encode(made(other, reordered))


def test_slipways_tags_cannot_be_replaced() -> None:
    """An instance with another batch's tag would be terminated, or never."""
    assert "slipway-batch" in launch_problem({}, {"tags": {"slipway-batch": "x"}})
    assert "slipway-" in account_problem({"tags": {"Slipway-Deployment": "x"}}, "us-east-1")


ACCOUNT_PROBLEMS: list[tuple[dict[str, Any], str]] = [
    ({}, ""),
    ({"endpoint_url": "http://127.0.0.1:5000", "fips": True, "partition": "aws", "queue_url": "http://q"}, ""),
    ({"endpoint": "http://x"}, "endpoint_url"),
    ({"endpoint_url": "x:1"}, "write a URL"),
    ({"proxy": "proxy.example.com:3128"}, "proxy is"),
    ({"proxy": "http://me:hunter2@proxy.example.com:3128"}, "HTTPS_PROXY"),
    ({"proxy": "me:hunter2@proxy.example.com:3128"}, "HTTPS_PROXY"),
    ({"ca_bundle": "ca.pem"}, "absolute path"),
    ({"partition": "azure"}, "partition"),
    ({"errors": {"Gremlins": "goblins"}}, "Gremlins"),
    ({"visibility_seconds": 30}, ""),
    ({"visibility_seconds": -1}, "write 0 to 3600"),
    ({"visibility_seconds": 4000}, "write 0 to 3600"),
    ({"tags": {"aws:x": "y"}}, "reserved prefix"),
    ({"tags": {"": "y"}}, "empty"),
    ({"tags": {"k" * 129: "y"}}, "too long"),
    ({"tags": {"k": "y" * 257}}, "too long"),
    ({"tags": {f"k{n}": "y" for n in range(47)}}, "at most 45"),
]


@pytest.mark.parametrize(("settings", "words"), ACCOUNT_PROBLEMS)
def test_settings_of_an_account(settings: dict[str, Any], words: str) -> None:
    problem = account_problem(settings, "us-east-1")
    assert "hunter2" not in problem
    assert words in problem
    assert bool(problem) == bool(words)


@pytest.mark.parametrize(
    ("region", "partition"),
    [
        ("us-east-1", "aws"),
        ("mx-central-1", "aws"),
        ("cn-north-1", "aws-cn"),
        ("us-gov-west-1", "aws-us-gov"),
        ("us-iso-east-1", "aws-iso"),
        ("us-isob-east-1", "aws-iso-b"),
        ("eu-isoe-west-1", "aws-iso-e"),
        ("us-isof-south-1", "aws-iso-f"),
        ("eusc-de-east-1", "aws-eusc"),
    ],
)
def test_the_partition_is_that_of_the_region(region: str, partition: str) -> None:
    """Endpoints follow the region, so that another partition would only be wrong elsewhere."""
    assert account_problem({"partition": partition}, region) == ""
    other = "aws-cn" if partition == "aws" else "aws"
    assert account_problem({"partition": other}, region).endswith(f"lies in {partition}; write partition: {partition}")


LAUNCH_PROBLEMS: list[tuple[dict[str, Any], str]] = [
    ({}, ""),
    (EVERYTHING, ""),
    ({"tasks_per_worker": 3, "environment": {"A": "b"}, "heartbeat_seconds": 60}, ""),
    ({"subnet_id": None}, ""),
    ({"lifecycle": "reserved"}, "lifecycle"),
    ({"subnet": "subnet-1"}, "write subnet_id"),
    ({"security_groups": ["sg-1"]}, "write security_group_ids"),
    ({"subnet_id": "my subnet"}, "subnet_id is 'my subnet'"),
    ({"security_group_ids": ["default"]}, "'default'"),
    ({"metadata_hops": 0}, "metadata_hops"),
    ({"metadata_hops": 65}, "metadata_hops"),
    ({"block_devices": [{"device_name": "/dev/sda1", "sise": 1}]}, "sise"),
    ({"block_devices": [{"device_name": "/dev/sda1"}, {"device_name": "/dev/sda1"}]}, "twice"),
    ({"tags": {f"k{n}": "y" for n in range(45)}}, "46 tags"),
]


@pytest.mark.parametrize(("settings", "words"), LAUNCH_PROBLEMS)
def test_settings_of_a_launch_config(settings: dict[str, Any], words: str) -> None:
    """Settings for the agent are left to it, unless they look like a mistyped one of the provider."""
    problem = launch_problem({"tags": {"owner": "me"}}, settings)
    assert words in problem
    assert bool(problem) == bool(words)


def test_defaults_of_an_account() -> None:
    assert account_settings({}) == Ec2Settings()


CREDENTIALS: list[tuple[dict[str, Any], str]] = [
    ({}, ""),
    ({"environment": "CI_AWS"}, ""),
    ({"file": "/etc/slipway/credentials"}, ""),
    ({"web_identity": {"role": "arn:aws:iam::123456789012:role/x", "token_file": "/t"}}, ""),
    ({"web_identity": {"role": "x", "token_file": "/t"}}, "write its ARN"),
    ({"role": "arn:aws-us-gov:iam::123456789012:role/path/x", "external_id": "ours"}, ""),
    ({"role": "slipway"}, "write its ARN"),
    ({"role": "arn:aws:iam::123456789012:role/x", "external_id": "x"}, "2 characters or more"),
    ({"role": "arn:aws:iam::123456789012:role/x", "source": {"role": "y"}}, "'y'"),
]


@pytest.mark.parametrize(("credential", "words"), CREDENTIALS)
def test_references_to_credentials(credential: dict[str, Any], words: str) -> None:
    problem = credential_problem(credential)
    assert words in problem
    assert bool(problem) == bool(words)
