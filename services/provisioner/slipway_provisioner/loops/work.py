"""Own work of the providers, such as runs that wait in a queue."""

from slipway_common.database.postgres import Database
from slipway_provisioner.providers.port import Provider


async def work(_: Database, *, provider: Provider) -> bool:
    """Do a step of a provider's work; False if there is none."""
    return await provider.work()


async def stop_work(*, provider: Provider) -> None:
    """End what steps of a provider's work have begun."""
    await provider.work(stop=True)
