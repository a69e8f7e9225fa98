"""Listings of the resources of accounts by their tags, and the destruction of orphans among them.

Lock order: room of the account, workspace, document.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from slipway_common.database.postgres import Connection, Database
from slipway_provisioner.domain.cloud import Account
from slipway_provisioner.domain.encryption import KeyRing
from slipway_provisioner.domain.orphan_workspaces import OrphanWorkspace, Resource, orphans
from slipway_provisioner.domain.workspaces import Kind, Phase, Workspace, empty_state, version_of
from slipway_provisioner.providers.workspaces import ListingClaim, ListingPending
from slipway_provisioner.store import accounts, recovery, workspace_listings, workspace_runs, workspaces

LISTING_SECONDS: Final = 3600.0
"""Time after a listing at which the next one is due."""
RETRY_SECONDS: Final = 600.0
"""Time after a failed listing at which the next one is due."""
LOCK_SECONDS: Final = 360.0
"""Time after which another replica begins a listing that has not ended: the deadline of a look-up, and a minute."""
NO_WORKSPACE: Final = "its tags name no workspace"
NO_LAUNCH: Final = "its tags name no launch batch, or its workspace is of another account"
NO_CONFIG: Final = "the launch config of its workspace, and with it its module, is unknown here"


class AccountListings:
    """Listings in the database."""

    def __init__(self, connected: Callable[[], Database], keys: KeyRing, resolve: Callable[[Account], Account]) -> None:
        self._connected, self._keys, self._resolve = connected, keys, resolve

    async def orphans(self, account: Account, *, visibility_seconds: float) -> Sequence[OrphanWorkspace]:
        async with self._connected().acquire() as db:
            listed = await workspace_listings.get(db, account.id)
            if listed.listed_at is None:
                if listed.restored:
                    raise ListingPending(listed.problem or "its resources have not been listed since the restore")
                return []
            rows = await workspace_listings.rows(db, _ids(listed.found))
        return orphans(listed.found, rows, listed_at=listed.listed_at, visibility_seconds=visibility_seconds)

    async def claim(self, *, all_: bool) -> ListingClaim | None:
        async with self._connected().acquire() as db:
            found = await workspace_listings.claim(db, lock_seconds=LOCK_SECONDS, all_=all_)
            if found is None:
                return None
            account_id, fence, began_at = found
            try:
                account = self._resolve(await accounts.get(db, account_id))
            except ValueError as error:
                await workspace_listings.fail(db, account_id, fence, str(error), due_seconds=RETRY_SECONDS)
                return None
            return ListingClaim(account=account, fence=fence, began_at=began_at)

    async def finish(self, claim: ListingClaim, found: Sequence[Resource], *, visibility_seconds: float) -> int:
        async with self._connected().acquire() as db, db.transaction():
            rows = await workspace_listings.rows(db, _ids(found))  # after the listing
            left = orphans(found, rows, listed_at=claim.began_at, visibility_seconds=visibility_seconds)
            await workspace_listings.finish(
                db,
                claim.account.id,
                claim.fence,
                [resource for orphan in left for resource in orphan.resources],
                began_at=claim.began_at,
                due_seconds=LISTING_SECONDS,
            )
        return len(left)

    async def fail(self, claim: ListingClaim, problem: str) -> None:
        async with self._connected().acquire() as db:
            await workspace_listings.fail(db, claim.account.id, claim.fence, problem, due_seconds=RETRY_SECONDS)

    async def reclaim(self, account: Account, found: Sequence[OrphanWorkspace]) -> Mapping[str, str]:
        refused = {}
        for orphan in found:
            async with self._connected().acquire() as db, db.transaction():
                if problem := await self._reclaim(db, account, orphan):
                    refused[orphan.id] = problem
        return refused

    async def _reclaim(self, tx: Connection, account: Account, orphan: OrphanWorkspace) -> str:
        """Have an orphan destroyed that has no row, or whose workspace is gone; returns the reason against it."""
        if not orphan.id:
            return NO_WORKSPACE
        await workspace_runs.lock_room(tx, account.id)  # since its ordinal is one below those of its batch
        row = await workspaces.lock(tx, orphan.id)
        if row is None:
            row = Workspace(
                id=orphan.id,
                deployment=account.deployment,
                incarnation=orphan.incarnation,
                account_id=account.id,
                batch_id=orphan.batch_id,
                ordinal=0,
                launch_config_id=orphan.launch_config_id,
                phase=Phase.ORPHAN,
                effects_seconds=0.0,  # nothing is applied
            )
        if row.deployment != account.deployment or row.account_id != account.id or not row.batch_id:
            return NO_LAUNCH
        if not await workspace_listings.is_known(tx, account.id, row.launch_config_id):
            return NO_CONFIG
        if await workspace_listings.reclaim(tx, row):
            await self._document(tx, row)
        return ""

    async def _document(self, tx: Connection, row: Workspace) -> None:
        """Store what an import needs: the inputs of the launch, without its secret, and a state."""
        config = await recovery.body(tx, row.launch_config_id)
        inputs = {"config": config, "batch_id": row.batch_id, "incarnation": row.incarnation, "user_data": ""}
        await workspaces.put(tx, row.id, Kind.INPUTS, msgspec.json.encode(inputs), self._keys)
        if await workspaces.version(tx, row.id) is None:
            first = empty_state(row.id)
            await workspaces.put(tx, row.id, Kind.STATE, first, self._keys, version=version_of(first))


def _ids(found: Sequence[Resource]) -> list[str]:
    return sorted({each.workspace for each in found if each.workspace})
