"""Calls to AWS: all that this provider makes, from which the IAM policy is generated. Pure."""

import re
from typing import Any, Final

import msgspec


class Bucket(msgspec.Struct, frozen=True):
    """Token bucket in which AWS counts calls, or the resources of calls, of one account and region."""

    name: str
    size: float
    refill_per_second: float


# The documented sizes; AWS raises them for single accounts, which makes calls faster than they need to be at no risk.
RUN_CALLS: Final = Bucket("run-calls", 5, 2)
RUN_INSTANCES: Final = Bucket("run-instances", 1000, 2)
TERMINATE_CALLS: Final = Bucket("terminate-calls", 100, 5)
TERMINATE_INSTANCES: Final = Bucket("terminate-instances", 1000, 20)
DESCRIBE: Final = Bucket("describe", 100, 20)
CHANGE: Final = Bucket("change", 50, 5)


IAM_PREFIXES: Final = {"service-quotas": "servicequotas"}
"""Prefixes of services in IAM policies, where they are not the SDK's names."""


class Call(msgspec.Struct, frozen=True):
    """Operation of a service. A call takes one token of `calls`, and one of `units` for each of its resources."""

    service: str
    operation: str
    calls: Bucket | None = None
    units: Bucket | None = None

    @property
    def action(self) -> str:
        """Name in IAM policies."""
        return f"{IAM_PREFIXES.get(self.service, self.service)}:{self.operation}"

    @property
    def method(self) -> str:
        """Name of the SDK's method."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", self.operation).lower()


RUN: Final = Call("ec2", "RunInstances", RUN_CALLS, RUN_INSTANCES)
TERMINATE: Final = Call("ec2", "TerminateInstances", TERMINATE_CALLS, TERMINATE_INSTANCES)
LIST: Final = Call("ec2", "DescribeInstances", DESCRIBE)
CONSOLE: Final = Call("ec2", "GetConsoleOutput", DESCRIBE)
STATUS: Final = Call("ec2", "DescribeInstanceStatus", DESCRIBE)
ZONES: Final = Call("ec2", "DescribeAvailabilityZones", DESCRIBE)
VOLUMES: Final = Call("ec2", "DescribeVolumes", DESCRIBE)
INTERFACES: Final = Call("ec2", "DescribeNetworkInterfaces", DESCRIBE)
DELETE_VOLUME: Final = Call("ec2", "DeleteVolume", CHANGE)
DELETE_INTERFACE: Final = Call("ec2", "DeleteNetworkInterface", CHANGE)
SUBNETS: Final = Call("ec2", "DescribeSubnets", DESCRIBE)
IMAGES: Final = Call("ec2", "DescribeImages", DESCRIBE)
TYPES: Final = Call("ec2", "DescribeInstanceTypes", DESCRIBE)
IDENTITY: Final = Call("sts", "GetCallerIdentity")
DECODE: Final = Call("sts", "DecodeAuthorizationMessage")
QUOTA: Final = Call("service-quotas", "GetServiceQuota")
CHECKS: Final = (SUBNETS, IMAGES, TYPES, DECODE, QUOTA)
"""Calls that only the check of an account makes. Without them it says less, and everything else works."""
CALLS: Final = (
    RUN,
    TERMINATE,
    LIST,
    STATUS,
    CONSOLE,
    ZONES,
    VOLUMES,
    INTERFACES,
    DELETE_VOLUME,
    DELETE_INTERFACE,
    IDENTITY,
    *CHECKS,
)
CREDENTIAL_OPERATIONS: Final = frozenset({"AssumeRole", "AssumeRoleWithWebIdentity"})
"""Operations of STS that the SDK calls to obtain credentials."""

_CREATED: Final = ("instance", "volume", "network-interface", "spot-instances-request")
_OWNED: Final = {"StringLike": {"aws:ResourceTag/slipway-deployment": "*"}}


def policy(*, partition: str = "aws", machine_role: str = "") -> dict[str, Any]:
    """IAM policy that allows these calls and no others; `Check` may be left out. Only resources with Slipway's tag can
    be terminated or deleted. `machine_role` is the ARN of the role of the machines, if they have an instance profile.
    """
    arn = f"arn:{partition}:ec2:*:*"
    reads = [call.action for call in CALLS if call.calls is DESCRIBE and call not in CHECKS]
    ends = [call.action for call in (TERMINATE, DELETE_VOLUME, DELETE_INTERFACE)]
    statements: list[dict[str, Any]] = [
        {"Sid": "Read", "Effect": "Allow", "Action": reads, "Resource": "*"},
        {"Sid": "Check", "Effect": "Allow", "Action": [call.action for call in CHECKS], "Resource": "*"},
        {"Sid": "Launch", "Effect": "Allow", "Action": RUN.action, "Resource": "*"},
        {
            "Sid": "TagAtLaunch",
            "Effect": "Allow",
            "Action": "ec2:CreateTags",
            "Resource": [f"{arn}:{kind}/*" for kind in _CREATED],
            "Condition": {"StringEquals": {"ec2:CreateAction": RUN.operation}},
        },
        {
            "Sid": "TerminateOwn",
            "Effect": "Allow",
            "Action": ends,
            "Resource": [f"{arn}:{kind}/*" for kind in _CREATED[:3]],
            "Condition": _OWNED,
        },
    ]
    if machine_role:
        statements.append(
            {
                "Sid": "PassMachineRole",
                "Effect": "Allow",
                "Action": "iam:PassRole",
                "Resource": machine_role,
                "Condition": {"StringEquals": {"iam:PassedToService": "ec2.amazonaws.com"}},
            }
        )
    return {"Version": "2012-10-17", "Statement": statements}
