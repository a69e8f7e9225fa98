"""A short form of `make e2e`: parts are killed in the middle of calls and grants, and nothing is doubled or lost."""

from slipway_local.supervisor import Supervisor
from tests.e2e.run import e2e, plan


async def test_kills_lose_and_double_nothing() -> None:
    wished = plan({"CHANGES": "150", "POOLS": "8", "SEED": "11", "KILL": "provisioner,lease-broker,postgres,kafka"})
    async with Supervisor() as supervisor:
        assert await e2e(supervisor, wished) == 0
