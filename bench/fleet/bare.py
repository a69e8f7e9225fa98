"""`python -m bench.fleet.bare`: the fleet listed by a bare client of the SDK, as a yardstick.

It reads a `Fleet` from its standard input, then lists all accounts for each line that follows: the same calls and
pages, as many accounts at once, and nothing else.
"""

import asyncio
import sys
import time
from contextlib import AsyncExitStack
from typing import Any, Final

import msgspec
import uvloop
from aiobotocore.config import AioConfig
from aiobotocore.session import get_session

from bench.fleet.parts import CALL_SECONDS, KEY, LISTED_AT_ONCE, PAGE, REGION, SECRET, Fleet, Listed
from bench.sides import READY

ROLE: Final = "arn:aws:iam::{}:role/slipway"


async def listed(client: Any) -> int:
    """Number of running instances in an account."""
    filters = [{"Name": "instance-state-name", "Values": ["running"]}]
    count, more = 0, dict[str, str]()
    while True:
        page = await client.describe_instances(Filters=filters, MaxResults=PAGE, **more)
        count += sum(len(reservation["Instances"]) for reservation in page["Reservations"])
        if not (token := page.get("NextToken")):
            return count
        more = {"NextToken": token}


async def main() -> None:
    fleet = msgspec.json.decode(sys.stdin.readline(), type=Fleet)
    config = AioConfig(retries={"total_max_attempts": 1}, read_timeout=CALL_SECONDS)
    common: dict[str, Any] = {"region_name": REGION, "endpoint_url": fleet.url, "config": config}
    session: Any = get_session()
    clients = []
    async with AsyncExitStack() as stack:
        own = {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET}
        sts = await stack.enter_async_context(session.create_client("sts", **common, **own))
        for number in fleet.accounts:
            found = (await sts.assume_role(RoleArn=ROLE.format(number), RoleSessionName="bare"))["Credentials"]
            keys = {"aws_access_key_id": found["AccessKeyId"], "aws_secret_access_key": found["SecretAccessKey"]}
            token = {"aws_session_token": found["SessionToken"]}
            client = session.create_client("ec2", **common, **keys, **token)
            clients.append(await stack.enter_async_context(client))
        print(READY, flush=True)
        while await asyncio.to_thread(sys.stdin.readline):
            slots = asyncio.Semaphore(LISTED_AT_ONCE)

            async def one(client: Any, slots: asyncio.Semaphore = slots) -> int:
                async with slots:
                    return await listed(client)

            began, cpu = time.monotonic(), time.process_time()
            counts = await asyncio.gather(*map(one, clients))
            result = Listed(time.monotonic() - began, time.process_time() - cpu, sum(counts))
            print(msgspec.json.encode(result).decode(), flush=True)


if __name__ == "__main__":
    uvloop.run(main())
