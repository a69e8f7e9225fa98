"""`python -m bench.ec2.bare URL`: the yardstick. The SDK's client alone launches, lists and terminates machines.

For each launch call: RunInstances with the parameters that the provisioner sends, DescribeInstances by the tag of the
call, page by page, until all of its machines are running, and TerminateInstances of them. The client is that of the
provisioner, without retries; nothing is stored, paced, parsed elsewhere or checked.
"""

import sys
from itertools import count
from typing import Any, Final

from aiobotocore.config import AioConfig
from aiobotocore.session import get_session

from bench.ec2 import side
from bench.ec2.side import Cell, Meter

PAGE: Final = 200
TAGGED: Final = ("instance", "volume", "network-interface")
USER_DATA: Final = "x" * 600
LIVE: Final = ["pending", "running", "stopping", "stopped", "shutting-down"]


def parameters(token: str, size: int) -> dict[str, Any]:
    """A launch call like those of the provisioner."""
    tags = {
        "slipway-account": "bench/aws",
        "slipway-batch": token,
        "slipway-deployment": "bench",
        "slipway-incarnation": token,
        "slipway-launch-config": "bench/0/a@123456",
    }
    rows = [{"Key": key, "Value": value} for key, value in tags.items()]
    return {
        "ImageId": side.IMAGE,
        "InstanceType": side.INSTANCE_TYPE,
        "MinCount": 1,
        "MaxCount": size,
        "ClientToken": token,
        "InstanceInitiatedShutdownBehavior": "terminate",
        "MetadataOptions": {"HttpTokens": "required", "HttpEndpoint": "enabled", "HttpPutResponseHopLimit": 1},
        "Placement": {"AvailabilityZone": side.ZONE},
        "TagSpecifications": [{"ResourceType": kind, "Tags": rows} for kind in TAGGED],
        "UserData": USER_DATA,
    }


async def life(client: Any, token: str, size: int) -> None:
    """Launch machines by one call, list them until they run, and terminate them."""
    launched = await client.run_instances(**parameters(token, size))
    ids = {instance["InstanceId"] for instance in launched["Instances"]}
    filters = [
        {"Name": "tag:slipway-deployment", "Values": ["bench"]},
        {"Name": "tag:slipway-batch", "Values": [token]},
        {"Name": "instance-state-name", "Values": LIVE},
    ]
    running: set[str] = set()
    while running != ids:
        running = set()
        more: dict[str, str] = {}
        while True:
            page = await client.describe_instances(Filters=filters, MaxResults=PAGE, **more)
            running |= {
                instance["InstanceId"]
                for reservation in page["Reservations"]
                for instance in reservation["Instances"]
                if instance["State"]["Name"] == "running"
            }
            if not (token_of_next := page.get("NextToken")):
                break
            more = {"NextToken": token_of_next}
    await client.terminate_instances(InstanceIds=sorted(ids))


async def main() -> None:
    (url,) = sys.argv[1:]
    config = AioConfig(
        retries={"total_max_attempts": 1}, read_timeout=side.CALL_SECONDS, max_pool_connections=side.CONNECTIONS_MAX
    )
    numbers = count(1)
    async with get_session().create_client(
        "ec2",
        region_name=side.REGION,
        endpoint_url=url,
        aws_access_key_id=side.KEY,
        aws_secret_access_key=side.SECRET,
        config=config,
    ) as client:

        async def play(cell: Cell, meter: Meter) -> None:
            for _ in range(cell.calls):
                with meter.running():
                    await life(client, f"bench-{next(numbers):036}", cell.size)
            await side.until_ended(url)

        await side.serve(play)


if __name__ == "__main__":
    side.run(main)
