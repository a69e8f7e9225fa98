"""Cache of the lease pool of each lease, which never changes."""

from typing import Final

from slipway_common.database.postgres import Database
from slipway_lease_broker.store import answers

REMEMBERED_LEASES: Final = 100_000


class KnownLeases:
    """Lease pools of the leases that callers of this process use."""

    def __init__(self) -> None:
        self._pool_of: dict[str, str] = {}

    def remember(self, lease_id: str, lease_pool_id: str) -> None:
        """Cache the pool of a lease, since its holder will name the lease in later commands."""
        if len(self._pool_of) >= REMEMBERED_LEASES:
            self._pool_of.clear()
        self._pool_of[lease_id] = lease_pool_id

    async def pool_of(self, database: Database, lease_id: str) -> str | None:
        """The lease pool of a lease; None for an unknown lease."""
        if (known := self._pool_of.get(lease_id)) is not None:
            return known
        if (found := await answers.pool_of(database, lease_id)) is not None:
            self.remember(lease_id, found)
        return found
