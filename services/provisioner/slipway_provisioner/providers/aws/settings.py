"""Settings of EC2: those of an account, and those of a launch config. Pure."""

import re
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeVar

import msgspec

from slipway_api.events.scopes import SPOT
from slipway_provisioner.providers.aws import errors
from slipway_provisioner.providers.launch_settings import misspelt_setting

TAGS_MAX: Final = 50
TAG_KEY_CHARACTERS_MAX: Final = 128
TAG_VALUE_CHARACTERS_MAX: Final = 256
OWN_PREFIX: Final = "slipway-"
OWN_TAGS: Final = 5
"""Number of tags that Slipway itself gives to whatever a launch creates."""
Partition = Literal["aws", "aws-cn", "aws-us-gov", "aws-iso", "aws-iso-b", "aws-iso-e", "aws-iso-f", "aws-eusc"]
VISIBILITY_SECONDS_MAX: Final = 3600.0
RSA2048_BITS: Final = 2048
"""Smallest key of the signature that the metadata service calls rsa2048; the other one has keys of 1024 bits."""
PARTITIONS: Final = {
    "cn-": "aws-cn",
    "us-gov-": "aws-us-gov",
    "us-iso-": "aws-iso",
    "us-isob-": "aws-iso-b",
    "eu-isoe-": "aws-iso-e",
    "us-isof-": "aws-iso-f",
    "eusc-": "aws-eusc",
}
"""Partitions by the prefixes of their regions; all other regions lie in `aws`."""
_SUBNET: Final = re.compile(r"subnet-[0-9a-z]{1,32}")
_ROLE: Final = re.compile(r"arn:aws[a-z-]*:iam::[0-9]{12}:role/[\w+=,.@/-]+")
OPERATOR_SETTINGS: Final = frozenset({"endpoint_url", "sts_endpoint_url", "quotas_endpoint_url", "proxy", "ca_bundle"})
"""Settings of accounts that only the operator states: calls are sent there with the credentials of this service."""
EXTERNAL_ID_CHARACTERS_MIN: Final = 2
_GROUP: Final = re.compile(r"sg-[0-9a-z]+")

Struct = TypeVar("Struct", bound=msgspec.Struct)


class Ec2Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of an account. The URLs replace the SDK's endpoints of EC2, STS and Service Quotas. `proxy` is the URL
    of an HTTP proxy, `ca_bundle` a file of certificates. `errors` adds codes with their scope, `tags` are given to all
    that a launch creates. `queue_url` is for the machines. A new instance is listed after at most `visibility_seconds`.
    `identity_certificates`, as PEM, are further ones of the region's identity documents, which need a key of
    `identity_key_bits` or more."""

    endpoint_url: str = ""
    sts_endpoint_url: str = ""
    quotas_endpoint_url: str = ""
    proxy: str = ""
    ca_bundle: str = ""
    fips: bool = False
    partition: Partition = "aws"
    errors: dict[str, str] = {}
    tags: dict[str, str] = {}
    queue_url: str = ""
    visibility_seconds: float = 300.0
    identity_certificates: tuple[str, ...] = ()
    identity_key_bits: Literal[1024, 2048] = 1024


class BlockDevice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """EBS volume of each machine, deleted with it. Without a size it has the size of its snapshot."""

    device_name: str
    size_gib: int | None = None
    type: Literal["gp2", "gp3", "io1", "io2", "st1", "sc1", "standard"] = "gp3"
    iops: int | None = None
    throughput: int | None = None
    encrypted: bool | None = None
    kms_key_id: str = ""
    snapshot_id: str = ""


class LaunchSettings(msgspec.Struct, frozen=True):
    """Settings of a launch config that EC2 uses; the others are for the agent. `instance_profile` is a name or an ARN,
    `metadata_hops` the number of network hops to the metadata service, 2 for containers."""

    lifecycle: Literal["on-demand", "spot"] = "on-demand"
    subnet_id: str = ""
    security_group_ids: tuple[str, ...] = ()
    instance_profile: str = ""
    block_devices: tuple[BlockDevice, ...] = ()
    key_name: str = ""
    tags: dict[str, str] = {}
    metadata_hops: int = 1
    capacity_reservations: Literal["open", "none", "capacity-reservations-only"] = "open"
    placement_group: str = ""

    @property
    def is_spot(self) -> bool:
        return self.lifecycle == SPOT


def account_settings(settings: Mapping[str, Any]) -> Ec2Settings:
    """Settings of an account that were checked when they were declared. Raises msgspec.ValidationError."""
    return msgspec.convert(dict(settings), Ec2Settings)


def launch_settings(settings: Mapping[str, Any]) -> LaunchSettings:
    """Settings of a launch config that were checked when they were declared. Raises msgspec.ValidationError."""
    return msgspec.convert({name: value for name, value in settings.items() if value is not None}, LaunchSettings)


def subnet_of(settings: Mapping[str, Any]) -> str:
    """Subnet of a launch config, whose settings may have been declared for another provider; empty without one."""
    subnet_id = settings.get("subnet_id")
    return subnet_id if isinstance(subnet_id, str) and _SUBNET.fullmatch(subnet_id) else ""


def partition_of(region: str) -> str:
    """Partition of AWS in which a region lies."""
    return next((name for prefix, name in PARTITIONS.items() if region.startswith(prefix)), "aws")


def account_problem(settings: Mapping[str, Any], region: str) -> str:
    """Problem with the settings of an account in a region and its remedy; empty if they are usable."""
    try:
        declared = account_settings(settings)
    except msgspec.ValidationError as error:
        return f"{error}; the settings are {', '.join(Ec2Settings.__struct_fields__)}"
    for name in ("endpoint_url", "sts_endpoint_url", "quotas_endpoint_url", "proxy", "queue_url"):
        url = getattr(declared, name)
        if "@" in url.split("://")[-1].partition("/")[0]:
            remedy = "declare none; those of a proxy belong in HTTPS_PROXY in the provisioner's environment"
            return f"{name} may contain a user name and a password, which settings show; {remedy}"
        if url and not url.startswith(("http://", "https://")):
            return f"{name} is {url!r}; write a URL, such as https://host.example.com"
    if declared.ca_bundle and not declared.ca_bundle.startswith("/"):
        return f"ca_bundle is {declared.ca_bundle!r}; write the absolute path of a file of certificates"
    if not 0 <= declared.visibility_seconds <= VISIBILITY_SECONDS_MAX:
        return f"visibility_seconds is {declared.visibility_seconds:g}; write 0 to {VISIBILITY_SECONDS_MAX:g}"
    if declared.partition != (own := partition_of(region)):
        return f"partition is {declared.partition}, but region {region} lies in {own}; write partition: {own}"
    return errors.problem(declared.errors) or _tag_problem(declared.tags)


def credential_problem(credential: Mapping[str, Any]) -> str:
    """Problem with a reference to a credential and its remedy; empty if it is usable."""
    role = credential.get("role") or credential.get("web_identity", {}).get("role")
    if role and not _ROLE.fullmatch(role):
        return f"role is {role!r}; write its ARN, such as arn:aws:iam::123456789012:role/slipway"
    external_id = credential.get("external_id")
    if external_id is not None and len(external_id) < EXTERNAL_ID_CHARACTERS_MIN:
        return f"external_id is too short; write {EXTERNAL_ID_CHARACTERS_MIN} characters or more"
    source = credential.get("source")
    return credential_problem(source) if source else ""


def launch_problem(account: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """Problem with the settings of a launch config in an account and its remedy; empty if they are usable."""
    try:
        declared = launch_settings(settings)
    except msgspec.ValidationError as error:
        return f"{error}; correct this setting of the launch config"
    if problem := misspelt_setting(settings, LaunchSettings.__struct_fields__):
        return problem
    if declared.subnet_id and not _SUBNET.fullmatch(declared.subnet_id):
        return f"subnet_id is {declared.subnet_id!r}; write the id of a subnet of the zone, such as subnet-0abc"
    if bad := next((group for group in declared.security_group_ids if not _GROUP.fullmatch(group)), ""):
        return f"security_group_ids contains {bad!r}; write ids, such as sg-0abc"
    if not 1 <= declared.metadata_hops <= 64:
        return f"metadata_hops is {declared.metadata_hops}; write 1, 2 for containers, or up to 64"
    names = [device.device_name for device in declared.block_devices]
    if len(set(names)) < len(names):
        return "block_devices names a device twice; write each device_name once"
    return _tag_problem({**account_settings(account).tags, **declared.tags})


def _tag_problem(tags: Mapping[str, str]) -> str:
    if len(tags) > TAGS_MAX - OWN_TAGS:
        return f"there are {len(tags)} tags; write at most {TAGS_MAX - OWN_TAGS}, since Slipway adds {OWN_TAGS}"
    for key, value in tags.items():
        if not key or len(key) > TAG_KEY_CHARACTERS_MAX or len(value) > TAG_VALUE_CHARACTERS_MAX:
            limits = f"1 to {TAG_KEY_CHARACTERS_MAX} characters and at most {TAG_VALUE_CHARACTERS_MAX} for the value"
            return f"tag {key[:40]!r} is too long or empty; write {limits}"
        if key.lower().startswith(("aws:", OWN_PREFIX)):
            return f"tag {key!r} begins with a reserved prefix; AWS owns aws: and Slipway {OWN_PREFIX}"
    return ""
