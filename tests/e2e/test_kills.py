"""Short form of `make e2e`: parts are killed during calls and grants, and no work is duplicated or lost."""

from slipway_local.servers.supervisor import Supervisor
from tests.e2e.run import e2e, plan


async def test_kills_neither_lose_nor_duplicate_work() -> None:
    planned = plan({"CHANGES": "150", "POOLS": "8", "SEED": "11", "KILL": "provisioner,lease-broker,postgres,kafka"})
    async with Supervisor() as supervisor:
        assert await e2e(supervisor, planned) == 0
