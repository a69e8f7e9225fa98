"""Terraform workspaces, saved, unlocked and sealed again at the same time: two sessions for every locking statement."""

import asyncio
from typing import Final

import slipway_provisioner
from slipway_common.database.postgres import Connection
from slipway_provisioner.apply import workspaces as apply
from slipway_provisioner.domain.sealing import KeyRing
from slipway_provisioner.domain.workspaces import Kind, Phase, Version, Workspace
from slipway_provisioner.store import workspaces
from tests.support.provisioner import Provisioner, in_transaction, stopped_at
from tests.support.statements import Covered, locking_statements
from tests.support.workspaces import NEW, OLD, ring, state, stored

locking: Final = Covered()
OWN: Final = ("store.workspaces.", "store.retention.DELETE_DOCUMENTS", "store.retention.DELETE_WORKSPACES")
KEYS: Final = ring(OLD)


async def made(provisioner: Provisioner) -> Workspace:
    async with provisioner.database.acquire() as db:
        return await stored(db, KEYS)


async def current(provisioner: Provisioner, workspace: Workspace, keys: KeyRing = KEYS) -> workspaces.Opened:
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


@locking("store.workspaces.LOCK", "store.workspaces.PUT")
async def test_two_runs_that_began_with_one_state(provisioner: Provisioner) -> None:
    """The first saves its state; that of the second is stored beside it. Nothing is lost."""
    workspace = await made(provisioner)
    one, two = state(1, workspace.id, machine="i-1"), state(1, workspace.id, machine="i-2")
    async with stopped_at(provisioner, "workspace_document", saving(provisioner, workspace, one, 0)) as first:
        second = provisioner.start(saving(provisioner, workspace, two, 0))
        await provisioner.until_waiting(first, second)
    assert await first == ""
    assert "began with 0" in await second
    assert (await current(provisioner, workspace)).content == one
    async with provisioner.database.acquire() as db:
        beside = await workspaces.document(db, workspace.id, Kind.REJECTED, KEYS)
    assert beside is not None
    assert beside.content == two


@locking("store.workspaces.LOCK", "store.workspaces.PUT")
async def test_many_runs_save_one_after_another(provisioner: Provisioner) -> None:
    """Of twenty that began with the same state one saves its own; nineteen are stored beside it."""
    workspace = await made(provisioner)
    saves = [saving(provisioner, workspace, state(1, workspace.id, machine=f"i-{n}"), 0) for n in range(20)]
    reasons = await asyncio.gather(*saves)
    assert sum(not reason for reason in reasons) == 1
    assert len(await rejected(provisioner, workspace)) == 19


@locking("store.workspaces.TAKE_SEALED_WITHOUT", "store.workspaces.RESEAL", "store.workspaces.PUT")
async def test_a_state_that_is_saved_while_keys_are_rotated(provisioner: Provisioner) -> None:
    """The rotation skips it or goes first; the new state is stored either way, and opens."""
    workspace = await made(provisioner)
    new, both = state(1, workspace.id, machine="i-1"), ring(NEW, OLD)

    async def rotate(tx: Connection) -> int:
        return await apply.reseal(tx, both, by="ann")

    async with provisioner.database.acquire() as db, db.transaction():
        row = await workspaces.lock(db, workspace.id)
        assert row is not None
        assert await apply.save(db, row, new, Version(workspace.id, 0), KEYS) == ""
        assert await in_transaction(provisioner, rotate) == 0, "the document is locked by the run"
    assert await in_transaction(provisioner, rotate) == 1
    assert (await current(provisioner, workspace, ring(NEW))).content == new
    async with provisioner.database.acquire() as db:
        async with db.transaction():
            await db.fetch("SELECT FROM workspace_document FOR UPDATE")
            save = provisioner.start(saving(provisioner, workspace, state(2, workspace.id), 1))
            await provisioner.until_waiting(save)
        assert await save == ""
    assert (await current(provisioner, workspace)).version.serial == 2


@locking("store.workspaces.UNLOCK", "store.workspaces.LOCK")
async def test_a_lock_that_is_taken_while_its_run_saves(provisioner: Provisioner) -> None:
    """The command waits for the transaction of the run, and takes the lock that is left."""
    workspace = await made(provisioner)
    await provisioner.database.execute("UPDATE workspace SET holder = 'run', fence = 4")

    async def take(tx: Connection) -> None:
        row = await workspaces.lock(tx, workspace.id)
        assert row is not None
        await workspaces.unlock(tx, row.id, Phase.UNKNOWN)

    async with stopped_at(provisioner, "workspace_document", saving(provisioner, workspace, state(1, workspace.id), 0)):
        taking = provisioner.start(in_transaction(provisioner, take))
        await provisioner.until_waiting(taking)
    await taking
    after = await provisioner.database.fetchrow("SELECT phase, holder, fence FROM workspace")
    assert tuple(after) == ("unknown", "", 5)
    assert (await current(provisioner, workspace)).version.serial == 1


@locking("store.retention.DELETE_DOCUMENTS", "store.retention.DELETE_WORKSPACES")
async def test_pruning_skips_a_document_that_is_locked(provisioner: Provisioner) -> None:
    """A workspace stays with its documents, and both are kept for 14 days."""
    workspace = await made(provisioner)
    await provisioner.database.execute("UPDATE workspace SET phase = 'gone', ended_at = slipway_clock()")
    await provisioner.set_clock(13.9 * 86_400)
    await provisioner.prune()
    assert (await current(provisioner, workspace)).version.serial == 0
    await provisioner.set_clock(14.1 * 86_400)
    async with provisioner.database.acquire() as db, db.transaction():
        await db.fetch("SELECT FROM workspace_document FOR UPDATE")
        await provisioner.prune()
        assert await provisioner.database.fetchval("SELECT count(*) FROM workspace") == 1
    await provisioner.prune()
    assert await provisioner.database.fetchval("SELECT count(*) FROM workspace") == 0


def test_every_locking_statement_has_an_interleaving() -> None:
    """None is missing, and none is named that does not exist."""
    assert {name for name in locking_statements(slipway_provisioner) if name.startswith(OWN)} == locking
