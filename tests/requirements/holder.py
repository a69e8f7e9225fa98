"""A holder that is stopped by a test: `python -m tests.requirements.holder PORT RESOURCE_PORT SECRET POOL`.

It renews its lease and writes under it, and prints the outcome of each when it changes, until both are refused.
"""

import asyncio
import sys
from random import Random

from tests.histories.actor import Actor
from tests.histories.journal import Journal


async def hold(port: int, resource: int, secret: str, pool: str) -> None:
    actor = Actor(
        "holder",
        owner="ann",
        secret=secret,
        ports=[port],
        journal=Journal(lambda _: None),
        rng=Random(1),
        resource=resource,
        answer_seconds=60.0,
    )
    lease = (await actor.acquire(pool, "holder", wait_seconds=5.0)).lease
    assert lease is not None
    before = {"write": "", "renew": ""}
    while "accepted" in before.values() or not all(before.values()):
        now = {"write": "accepted" if await actor.write(pool, lease) else "refused"}
        renewed = await actor.send("renew", pool, lease)
        now["renew"] = "accepted" if renewed.answer == "ok" else f"{renewed.answer} {renewed.reason}"
        for what, how in now.items():
            if before[what] != how:
                print(what, how, flush=True)
        before = now
        await asyncio.sleep(0.05)


if __name__ == "__main__":
    asyncio.run(hold(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]))
