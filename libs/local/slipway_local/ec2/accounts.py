"""Answers about an account: its identity, quotas of vCPUs, subnets and images. Pure."""

import re
from collections.abc import Iterable
from math import inf
from typing import Any, Final
from xml.etree import ElementTree

from slipway_local.ec2 import wire
from slipway_local.ec2.cloud import Cloud, vcpus_in_use
from slipway_local.ec2.faults import Effects
from slipway_local.ec2.scenario import Image
from slipway_local.ec2.wire import Refused, Request

UNLIMITED_VCPUS: Final = 100_000
"""Quota of a family for which the scenario has none."""
QUOTA_CODES: Final = {
    "L-1216C47A": "standard",
    "L-34B43A08": "standard/spot",
    "L-DB2E81BA": "g-vt",
    "L-3819A6DF": "g-vt/spot",
    "L-417A185B": "p",
    "L-7212CCBC": "p/spot",
    "L-74FC7D96": "f",
    "L-88CF9481": "f/spot",
    "L-7295265B": "x",
    "L-E3A00192": "x/spot",
    "L-1945791B": "inf",
    "L-B5D1601B": "inf/spot",
    "L-2C3B7624": "trn",
    "L-6B0D517C": "trn/spot",
    "L-6E869C2A": "dl",
    "L-85EED4F7": "dl/spot",
}


def quota(cloud: Cloud, effects: Effects, account: str, region: str, code: str) -> dict[str, Any]:
    """Answer of Service Quotas. Raises Refused."""
    if code not in QUOTA_CODES:
        raise Refused("NoSuchResourceException", f"there is no quota {code} of ec2")
    name = QUOTA_CODES[code]
    if account in effects.quota_used_up:
        value: float = vcpus_in_use(cloud, account, region, name)
    else:
        value = cloud.rules.account(account).quota.get(name, inf)
    value = min(value, UNLIMITED_VCPUS)
    return {"Quota": {"ServiceCode": "ec2", "QuotaCode": code, "QuotaName": name, "Value": float(value)}}


def identity(text: str, account: str, effects: Effects) -> str:
    """Answer of GetCallerIdentity; a fault makes it that of another account."""
    return re.sub(rf"\b{account}\b", effects.identity, text) if effects.identity else text


def subnets(text: str, effects: Effects) -> str:
    """Answer of DescribeSubnets; full ones have no free addresses."""
    root = wire.parse(text)
    for item in wire.items(root, "subnetSet"):
        names = {item.findtext("subnetId", ""), item.findtext("availabilityZone", "")}
        free = item.find("availableIpAddressCount")
        if names & effects.full_subnets and free is not None:
            free.text = "0"
    root.set("xmlns", wire.NAMESPACE)
    return ElementTree.tostring(root, encoding="unicode")


def images(cloud: Cloud, effects: Effects, request: Request) -> str:
    """Inner answer of DescribeImages: every image exists and is shared, but for those of the scenario and of faults.
    Raises Refused for an id that is unknown, unless it is a filter's."""
    ids = request.numbered("ImageId")
    for image in ids:
        if not is_available(cloud, effects, image):
            raise Refused("InvalidAMIID.NotFound", f"The image id '[{image}]' does not exist")
    wanted = [*ids, *request.filters().get("image-id", ())]
    return (
        f"<imagesSet>{''.join(_images(image for image in wanted if is_available(cloud, effects, image)))}</imagesSet>"
    )


def is_available(cloud: Cloud, effects: Effects, image: str) -> bool:
    return image not in effects.unshared_images and cloud.rules.images.get(image, Image()).bad != "not_found"


def _images(ids: Iterable[str]) -> Iterable[str]:
    for image in ids:
        yield f"<item><imageId>{image}</imageId><imageState>available</imageState><isPublic>false</isPublic></item>"
