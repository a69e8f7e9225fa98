"""Own work of the providers, such as runs that wait in a queue."""

from slipway_common.database.postgres import Database
from slipway_provisioner.providers.port import Provider


async def work(_: Database, *, provider: Provider) -> bool:
    """Do a step of a provider's work; False if there is none."""
    return await provider.work()
