"""Instance metadata of a machine (IMDSv2), as its agent reads them. Pure: `now` and the keys are arguments."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

import msgspec

from slipway_local.ec2.cloud import Instance
from slipway_local.ec2.identity import Signer

TTL_HEADER: Final = "x-aws-ec2-metadata-token-ttl-seconds"
TOKEN_HEADER: Final = "x-aws-ec2-metadata-token"  # noqa: S105 (a header's name)
LONGEST_SECONDS: Final = 21600


class MetadataAnswer(msgspec.Struct, frozen=True):
    status: int
    text: str = ""


class Sessions:
    """Session tokens of the machines. A machine accepts only those that it gave out."""

    def __init__(self) -> None:
        self._until: dict[tuple[str, str], float] = {}

    def open(self, instance_id: str, headers: Mapping[str, str], token: str, now: float) -> MetadataAnswer:
        """Give out `token`, unless the request came through a proxy or asks for no valid period."""
        if "x-forwarded-for" in headers:
            return MetadataAnswer(403)
        ttl = headers.get(TTL_HEADER, "")
        if not ttl.isdecimal() or not 1 <= int(ttl) <= LONGEST_SECONDS:
            return MetadataAnswer(400)
        self._until[instance_id, token] = now + int(ttl)
        return MetadataAnswer(200, token)

    def valid(self, instance_id: str, headers: Mapping[str, str], now: float) -> bool:
        return now < self._until.get((instance_id, headers.get(TOKEN_HEADER, "")), 0.0)


def read(instance: Instance, zone_id: str, user_data: bytes, path: str, signer: Signer) -> MetadataAnswer:
    """Answer to a GET with a valid token."""
    created = instance.created
    values = {
        "ami-id": created.image,
        "ami-launch-index": str(created.index),
        "instance-action": "none",
        "instance-id": instance.id,
        "instance-life-cycle": created.lifecycle,
        "instance-type": created.instance_type,
        "placement/availability-zone": created.zone,
        "placement/availability-zone-id": zone_id,
        "placement/region": created.region,
        "reservation-id": created.reservation,
        **{f"tags/instance/{name}": value for name, value in instance.tags.items()},
    }
    if interruption := instance.notices.get("interruption"):
        ends_at = _time(interruption.ends_at)
        values["spot/instance-action"] = json.dumps({"action": "terminate", "time": ends_at})
        values["spot/termination-time"] = ends_at
    if rebalance := instance.notices.get("rebalance"):
        values["events/recommendations/rebalance"] = json.dumps({"noticeTime": _time(rebalance.at)})
    match path.removeprefix("latest/").partition("/"):
        case ("meta-data", _, name) if name in values:
            return MetadataAnswer(200, values[name])
        case ("user-data", _, "") if user_data:
            return MetadataAnswer(200, user_data.decode(errors="replace"))
        case ("dynamic", _, "instance-identity/document"):
            return MetadataAnswer(200, document(instance))
        case ("dynamic", _, "instance-identity/signature"):
            return MetadataAnswer(200, signer.signature(document(instance)))
        case ("dynamic", _, "instance-identity/rsa2048"):
            return MetadataAnswer(200, signer.rsa2048(document(instance)))
        case _:
            return MetadataAnswer(404)


def document(instance: Instance) -> str:
    """Identity document of an instance, the same each time."""
    created = instance.created
    members = {
        "accountId": created.account,
        "architecture": "x86_64",
        "availabilityZone": created.zone,
        "imageId": created.image,
        "instanceId": instance.id,
        "instanceType": created.instance_type,
        "pendingTime": _time(created.at),
        "region": created.region,
        "version": "2017-09-30",
    }
    return json.dumps(members, indent=2)


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
