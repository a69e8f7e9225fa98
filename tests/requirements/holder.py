"""A holder to be stopped: `python -m tests.requirements.holder PORT RESOURCE_PORT SECRET POOL`.

It renews its lease and writes under it, and says how each went when that changes, until both are refused.
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
    )
    lease = (await actor.acquire(pool, "holder", wait_seconds=5.0)).lease
    assert lease is not None
    said = {"write": "", "renew": ""}
    while "accepted" in said.values() or not all(said.values()):
        heard = {"write": "accepted" if await actor.write(pool, lease) else "refused"}
        renewed = await actor.say("renew", pool, lease)
        heard["renew"] = "accepted" if renewed.answer == "ok" else f"{renewed.answer} {renewed.reason}"
        for what, how in heard.items():
            if said[what] != how:
                print(what, how, flush=True)
        said = heard
        await asyncio.sleep(0.05)


if __name__ == "__main__":
    asyncio.run(hold(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]))
