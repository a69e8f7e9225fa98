"""States of a Terraform workspace."""

from typing import Final

from slipway_common.database.postgres import Connection
from slipway_provisioner.apply import workspaces as apply
from slipway_provisioner.domain.encryption import KeyRing
from slipway_provisioner.domain.workspaces import Kind, Version, Workspace
from slipway_provisioner.store import workspaces
from tests.support.provisioner import Provisioner, in_transaction
from tests.support.workspaces import OLD, ring

KEYS: Final = ring(OLD)


async def current(provisioner: Provisioner, workspace: Workspace, keys: KeyRing = KEYS) -> workspaces.Decrypted:
    async with provisioner.database.acquire() as db:
        found = await workspaces.document(db, workspace.id, Kind.STATE, keys)
    assert found is not None
    return found


async def rejected(provisioner: Provisioner, workspace: Workspace) -> list[str]:
    rows = await provisioner.database.fetch(
        "SELECT reason FROM workspace_document WHERE workspace_id = $1 AND kind = 'rejected' ORDER BY number",
        workspace.id,
    )
    return [row["reason"] for row in rows]


async def saving(provisioner: Provisioner, workspace: Workspace, new: bytes, base: int) -> str:
    """Save a state in a transaction of its own; returns the reason against it."""

    async def save(tx: Connection) -> str:
        row = await workspaces.lock(tx, workspace.id)
        assert row is not None
        return await apply.save(tx, row, new, Version(workspace.id, base), KEYS)

    reason: str = await in_transaction(provisioner, save)
    return reason
