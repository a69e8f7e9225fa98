"""Two sessions on the states of Terraform workspaces: saves, rotations of keys, and pruning."""

import asyncio
from typing import Final

import slipway_provisioner
from slipway_common.base.ids import new_id
from slipway_common.database.postgres import Connection
from slipway_provisioner.apply import workspaces as apply
from slipway_provisioner.domain.workspaces import Kind, Phase, Version, Workspace
from slipway_provisioner.store import workspaces
from tests.support.provisioner import Provisioner, in_transaction, stopped_at
from tests.support.statements import Covered
from tests.support.workspace_documents import KEYS, current, rejected, saving
from tests.support.workspaces import NEW, OLD, ring, state, stored

locking: Final = Covered(slipway_provisioner)


async def made(provisioner: Provisioner) -> Workspace:
    async with provisioner.database.acquire() as db:
        return await stored(db, KEYS)


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


async def test_a_run_that_is_rejected_again_and_again(provisioner: Provisioner) -> None:
    """Its first states and the newest one are stored, since it is repeated without end."""
    workspace = await made(provisioner)
    states = [state(9, "another", machine=f"i-{n}") for n in range(apply.REJECTED_MAX + 5)]
    for each in states:
        assert await saving(provisioner, workspace, each, 0)
    assert len(await rejected(provisioner, workspace)) == apply.REJECTED_MAX
    async with provisioner.database.acquire() as db:
        newest = await workspaces.document(db, workspace.id, Kind.REJECTED, KEYS)
    assert newest is not None
    assert newest.content == states[-1]


@locking("store.workspaces.TAKE_ENCRYPTED_WITHOUT", "store.workspaces.REENCRYPT", "store.workspaces.PUT")
async def test_a_state_that_is_saved_while_keys_are_rotated(provisioner: Provisioner) -> None:
    """The rotation skips it or goes first; the new state is stored either way, and opens."""
    workspace = await made(provisioner)
    new, both = state(1, workspace.id, machine="i-1"), ring(NEW, OLD)

    async def rotate(tx: Connection) -> int:
        return (await apply.reencrypt(tx, both, by="ann")).encrypted

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


async def test_a_rotation_of_large_states(provisioner: Provisioner) -> None:
    """A chunk has a few megabytes, or one document: a hundred states of 5 MB would need a gigabyte of memory."""
    sizes = (3, 3, 3, 9)
    async with provisioner.database.acquire() as db:
        for size in sizes:
            id_ = new_id()
            await stored(db, KEYS, state(1, id_, machine="i" * size * 2**20), id=id_)
    chunks: list[int] = []
    after: workspaces.Place | None = workspaces.FIRST
    while after is not None and len(chunks) < len(sizes):
        async with provisioner.database.acquire() as db, db.transaction():
            done = await apply.reencrypt(db, ring(NEW, OLD), after, by="ann")
        after = done.after
        chunks.append(done.encrypted)
    assert (chunks, after) == ([2, 1, 1], None)


@locking("store.workspaces.UNLOCK", "store.workspaces.LOCK")
async def test_a_lock_that_is_taken_while_its_run_saves(provisioner: Provisioner) -> None:
    """The command waits for the transaction of the run, and takes the lock that is left."""
    workspace = await made(provisioner)
    await provisioner.database.execute("UPDATE workspace SET holder = 'run', fence = 4")

    async def take(tx: Connection) -> None:
        row = await workspaces.lock(tx, workspace.id)
        assert row is not None
        await workspaces.unlock(tx, row.id, Phase.UNKNOWN, effects_seconds=0.0)

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
