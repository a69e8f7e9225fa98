"""Identity documents of EC2 instances in tests, signed with test keys, and machines that register with them."""

import json
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final

import httpx2
import msgspec

from slipway_api.events.lease import LeaseRequested
from slipway_common.base.ids import new_worker_token
from slipway_local.ec2.identity import Signer
from tests.support.ec2_provisioner import body
from tests.support.ec2_server import Ec2Server, Reply, caller, described, launched, zones
from tests.support.provisioner import Provisioner, after, report

ACCOUNT: Final = "123456789012"
REGION: Final = "us-east-1"
IMAGE: Final = "ami-0123456789abcdef0"
STARTED: Final = 10.0
"""When instances were started, in seconds after START."""


@cache
def signer(region: str = REGION) -> Signer:
    """Keys of a region."""
    return Signer()


def instance_id(number: int) -> str:
    return f"i-{number:017x}"


def document(instance: str, **changes: Any) -> str:
    """Identity document of an instance of the account, region and image that tests declare. Members that are None are
    left out."""
    members = {
        "accountId": ACCOUNT,
        "architecture": "x86_64",
        "availabilityZone": "us-east-1b",
        "billingProducts": None,
        "imageId": IMAGE,
        "instanceId": instance,
        "instanceType": "m5.large",
        "pendingTime": shown(after(STARTED)),
        "privateIp": "10.0.0.1",
        "region": REGION,
        "version": "2017-09-30",
    }
    return json.dumps({name: value for name, value in (members | changes).items() if value is not None}, indent=2)


def shown(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def signed(text: str, *, by: Signer | None = None) -> dict[str, str]:
    """Proof with both signatures."""
    by = by or signer()
    return {"document": text, "signature": by.signature(text), "rsa2048": by.rsa2048(text)}


def proof(instance: str, **changes: Any) -> dict[str, str]:
    """Proof of an instance, as its metadata service gives it."""
    return signed(document(instance, **changes))


def account(url: str = "http://127.0.0.1:1", **settings: Any) -> dict[str, Any]:
    """Declaration of the account and a pool, whose documents are signed with the test keys."""
    declared = body(url, credential={"name": "ci"})
    entry = declared["accounts"][0]
    entry |= {"identity": ACCOUNT, "settings": entry["settings"] | {"identity_certificates": signer().certificates()}}
    entry["settings"] |= settings
    declared["worker_pools"][0]["launch_configs"][0]["image"] = IMAGE
    return declared


class Machines(msgspec.Struct, frozen=True):
    """Provisioner with an account of EC2, and the server that stands in for it."""

    provisioner: Provisioner
    server: Ec2Server

    async def declare(self, **settings: Any) -> None:
        await self.provisioner.declare(account(self.server.url, **settings))
        await self.provisioner.trust()

    async def launch(self, pending: int, *replies: Reply, listed: Reply | None = None) -> str:
        """Launch the machines that are missing for so many tasks, and return the id of their batch."""
        answers = {"DescribeAvailabilityZones": zones(us_east_1a="use1-az4"), "GetCallerIdentity": caller(ACCOUNT)}
        self.server.answers(RunInstances=list(replies), DescribeInstances=listed or described(), **answers)
        await self.provisioner.demand(report(pending, at=pending))
        await self.provisioner.plan()
        requests = await self.provisioner.published(LeaseRequested)
        await self.provisioner.leases(*(self.provisioner.granted(request) for request in requests))
        await self.provisioner.launch()
        newest = "SELECT id::text FROM launch_batch ORDER BY id DESC LIMIT 1"
        return str(await self.provisioner.database.fetchval(newest))

    async def register(self, batch_id: str, number: int, **changes: Any) -> httpx2.Response:
        """Register a machine with its genuine proof and a token that it draws."""
        own = instance_id(number)
        usual = {"identity": proof(own), "token": new_worker_token()}
        return await self.provisioner.register(changes.pop("instance_id", own), batch_id, **(usual | changes))

    async def rows(self) -> list[Any]:
        """All that registrations change."""
        workers = [dict(row) for row in await self.provisioner.database.fetch("SELECT * FROM worker ORDER BY id")]
        events = await self.provisioner.database.fetchval("SELECT max(id) FROM outbox")
        return [*workers, events]

    def looked_up(self) -> int:
        """Number of look-ups by the tag of a batch."""
        return sum("tag:slipway-batch" in call.parameters.values() for call in self.server.received)


def launching(*numbers: int) -> Reply:
    return launched(*map(instance_id, numbers))
