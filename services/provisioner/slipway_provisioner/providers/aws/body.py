"""Parameters of RunInstances, from a launch config and a committed launch call. Pure.

A repeat of a call has the same parameters, byte for byte: EC2 compares all of them when a token is used again. So they
are committed before the first call, and sent in the order of their names, which the database does not preserve.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from slipway_api.events.scopes import SPOT
from slipway_provisioner.providers.aws.settings import BlockDevice, Ec2Settings, LaunchSettings

DEPLOYMENT: Final = "slipway-deployment"
ACCOUNT: Final = "slipway-account"
INCARNATION: Final = "slipway-incarnation"
BATCH: Final = "slipway-batch"
LAUNCH_CONFIG: Final = "slipway-launch-config"
TAGGED: Final = ("instance", "volume", "network-interface")
"""Resources that a launch creates besides the request for spot instances, and that are tagged from the start."""
ZONE_ID: Final = re.compile(r"[a-z]{2,}[0-9](?:-[a-z]{3}[0-9])?-az[0-9]+")


def committed(config: Mapping[str, Any], account: Ec2Settings, settings: LaunchSettings) -> dict[str, Any]:
    """Parts of a call besides its token, count, user data and Slipway's own tags.

    A machine that shuts down terminates; its volumes and interfaces are deleted with it.
    """
    parameters: dict[str, Any] = {
        "ImageId": config["image"],
        "InstanceType": config["instance_type"],
        "MinCount": 1,
        "InstanceInitiatedShutdownBehavior": "terminate",
        "MetadataOptions": {
            "HttpTokens": "required",
            "HttpEndpoint": "enabled",
            "HttpPutResponseHopLimit": settings.metadata_hops,
        },
        "Placement": placement(config["zone"], settings),
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
    return {"parameters": parameters, "tags": {**account.tags, **settings.tags}}


def run_instances(
    call: Mapping[str, Any], *, token: str, count: int, user_data: str, tags: Mapping[str, str]
) -> dict[str, Any]:
    """Parameters of a committed call for 1…count machines. `tags` are Slipway's own."""
    parameters = call["parameters"]
    kinds = (*TAGGED, "spot-instances-request") if "InstanceMarketOptions" in parameters else TAGGED
    all_tags = {**call["tags"], **tags}
    rows = [{"Key": key, "Value": all_tags[key]} for key in sorted(all_tags)]
    ordered: dict[str, Any] = _ordered(
        {
            **parameters,
            "ClientToken": token,
            "MaxCount": count,
            "TagSpecifications": [{"ResourceType": kind, "Tags": rows} for kind in kinds],
            "UserData": user_data,
        }
    )
    return ordered


def placement(zone: str, settings: LaunchSettings) -> dict[str, str]:
    """Place of the machines. A zone is declared by its id, which means the same zone in every account, or by its
    name."""
    place = {"AvailabilityZoneId" if ZONE_ID.fullmatch(zone) else "AvailabilityZone": zone}
    return place | ({"GroupName": settings.placement_group} if settings.placement_group else {})


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


def _ordered(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _ordered(value[name]) for name in sorted(value)}
    return [_ordered(each) for each in value] if isinstance(value, list) else value
