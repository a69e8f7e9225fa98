"""Running instances that nobody has launched, in any number: the stand-in alone has them, moto has none of them.

Their description is that of one instance that moto has launched in the same place, and terminated again.
"""

from collections.abc import Iterator
from random import Random

import msgspec

from slipway_local.ec2 import shown, wire
from slipway_local.ec2.facts import InstanceCreated
from slipway_local.ec2.moto import Moto, Scope, Subnet
from slipway_local.ec2.wire import Refused
from slipway_simulator.http.accounts import BATCH_TAG, CONFIG_TAG, DEPLOYMENT_TAG

KEY = "AKIASEEDED"
"""Access key of the account of moto in which the described instance is launched."""


class Seed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Instances of one account: `size` of them for each of these batches, whose ids are their tags."""

    account: str
    region: str
    zone: str
    instance_type: str
    image: str
    batches: tuple[str, ...]
    size: int = 1
    tags: dict[str, str] = {}


class Described(msgspec.Struct, frozen=True):
    """Description of an instance in moto, in a subnet."""

    instance_id: str
    text: str
    subnet: Subnet

    def of(self, instance_id: str) -> str:
        """The description with another id."""
        return self.text.replace(self.instance_id, instance_id)


async def described(moto: Moto, seed: Seed) -> Described:
    """Description of an instance as it would be launched. Raises Refused."""
    scope = Scope(KEY, seed.region)
    subnet = await moto.subnet(scope, "", seed.zone)
    if subnet is None:
        raise Refused("InvalidParameterValue", f"Invalid availability zone: [{seed.zone}]")
    place = {"ImageId": seed.image, "InstanceType": seed.instance_type, "Placement.AvailabilityZone": subnet.zone}
    root = await moto.call(scope, "RunInstances", place | {"MinCount": "1", "MaxCount": "1"})
    (item,) = wire.items(root, "instancesSet")
    instance_id = item.findtext("instanceId", "")
    interfaces = [found.text or "" for found in item.findall("networkInterfaceSet/item/networkInterfaceId")]
    text = shown.described(item, subnet.zone_id)
    await moto.call(scope, "TerminateInstances", {"InstanceId.1": instance_id})
    for interface in interfaces:
        await moto.call(scope, "DeleteNetworkInterface", {"NetworkInterfaceId": interface})
    return Described(instance_id, text, subnet)


def created(seed: Seed, zone: str, *, now: float, rng: Random) -> Iterator[InstanceCreated]:
    """Facts of the instances, which have been running for a day. Pure."""
    began = now - 86_400.0
    for batch in seed.batches:
        reservation = f"r-{rng.getrandbits(68):017x}"
        for index in range(seed.size):
            yield InstanceCreated(
                at=began,
                instance_id=f"i-{rng.getrandbits(68):017x}",
                call_id="",
                account=seed.account,
                region=seed.region,
                reservation=reservation,
                index=index,
                deployment=seed.tags.get(DEPLOYMENT_TAG, ""),
                batch=batch,
                config=seed.tags.get(CONFIG_TAG, ""),
                zone=zone,
                instance_type=seed.instance_type,
                lifecycle="on-demand",
                image=seed.image,
                visible_at=began,
                runs_at=began,
                boots_at=None,
                dies="",
                stays_when_off=False,
                tags=seed.tags | {BATCH_TAG: batch},
                seeded=True,
            )
