"""Parameters of RunInstances, from a committed launch call. Pure.

The same call gives the same parameters, byte for byte: EC2 compares all of them when a token is used again.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from slipway_provisioner.providers.aws.quotas import SPOT
from slipway_provisioner.providers.aws.settings import BlockDevice, Ec2Settings, LaunchSettings

DEPLOYMENT: Final = "slipway-deployment"
INCARNATION: Final = "slipway-incarnation"
BATCH: Final = "slipway-batch"
LAUNCH_CONFIG: Final = "slipway-launch-config"
TAGGED: Final = ("instance", "volume", "network-interface")
"""Resources that a launch creates besides the request for spot instances, and that are tagged from the start."""
ZONE_ID: Final = re.compile(r"[a-z]{2,}[0-9](?:-[a-z]{3}[0-9])?-az[0-9]+")


def own_tags(deployment: str, incarnation: str, batch_id: str, launch_config_id: str) -> dict[str, str]:
    """Tags by which Slipway finds its instances."""
    return {
        DEPLOYMENT: deployment,
        INCARNATION: incarnation,
        BATCH: batch_id,
        LAUNCH_CONFIG: launch_config_id,
    }


def run_instances(
    body: Mapping[str, Any],
    account: Ec2Settings,
    settings: LaunchSettings,
    *,
    token: str,
    count: int,
    user_data: str,
    tags: Mapping[str, str],
) -> dict[str, Any]:
    """Parameters for 1…count machines of a committed body, without defaults that differ between regions or accounts.

    A machine that shuts down terminates; its disks and interfaces end with it.
    """
    parameters: dict[str, Any] = {
        "ImageId": body["image"],
        "InstanceType": body["instance_type"],
        "MinCount": 1,
        "MaxCount": count,
        "ClientToken": token,
        "UserData": user_data,
        "InstanceInitiatedShutdownBehavior": "terminate",
        "MetadataOptions": {
            "HttpTokens": "required",
            "HttpEndpoint": "enabled",
            "HttpPutResponseHopLimit": settings.metadata_hops,
        },
        "Placement": placement(body["zone"], settings),
        "TagSpecifications": _specifications({**account.tags, **settings.tags, **tags}, settings),
    }
    if settings.capacity_reservations != "open":
        parameters["CapacityReservationSpecification"] = {
            "CapacityReservationPreference": settings.capacity_reservations
        }
    if settings.is_spot:
        parameters["InstanceMarketOptions"] = {
            "MarketType": SPOT,
            "SpotOptions": {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"},
        }
    if settings.subnet_id:
        parameters["SubnetId"] = settings.subnet_id
    if settings.security_group_ids:
        parameters["SecurityGroupIds"] = list(settings.security_group_ids)
    if settings.instance_profile:
        kind = "Arn" if settings.instance_profile.startswith("arn:") else "Name"
        parameters["IamInstanceProfile"] = {kind: settings.instance_profile}
    if settings.key_name:
        parameters["KeyName"] = settings.key_name
    if settings.block_devices:
        parameters["BlockDeviceMappings"] = [_mapping(device) for device in settings.block_devices]
    return parameters


def placement(zone: str, settings: LaunchSettings) -> dict[str, str]:
    """Place of the machines. A zone is declared by its id, which means the same zone in every account, or by its
    name."""
    place = {"AvailabilityZoneId" if ZONE_ID.fullmatch(zone) else "AvailabilityZone": zone}
    return place | ({"GroupName": settings.placement_group} if settings.placement_group else {})


def _specifications(tags: Mapping[str, str], settings: LaunchSettings) -> list[dict[str, Any]]:
    rows = [{"Key": key, "Value": tags[key]} for key in sorted(tags)]
    kinds = (*TAGGED, "spot-instances-request") if settings.is_spot else TAGGED
    return [{"ResourceType": kind, "Tags": rows} for kind in kinds]


def _mapping(device: BlockDevice) -> dict[str, Any]:
    disk = {
        "DeleteOnTermination": True,
        "VolumeType": device.type,
        "VolumeSize": device.size_gib,
        "Iops": device.iops,
        "Throughput": device.throughput,
        "Encrypted": device.encrypted,
        "KmsKeyId": device.kms_key_id or None,
        "SnapshotId": device.snapshot_id or None,
    }
    return {
        "DeviceName": device.device_name,
        "Ebs": {name: value for name, value in disk.items() if value is not None},
    }
