"""Accounts whose resources are listed by several replicas, and orphans that are reclaimed at the same time."""

from typing import Final

import pytest

import slipway_provisioner
from slipway_common.base.ids import new_id
from slipway_common.database.postgres import Connection
from slipway_common.messaging.incarnation import Incarnation
from slipway_provisioner.apply import recovery
from slipway_provisioner.apply.workspace_listings import LISTING_SECONDS, LOCK_SECONDS, RETRY_SECONDS, AccountListings
from slipway_provisioner.apply.workspace_runs import WorkspaceRuns
from slipway_provisioner.domain.cloud import Account
from slipway_provisioner.domain.orphan_workspaces import OrphanWorkspace, Resource
from slipway_provisioner.domain.workspaces import Kind, Phase, Workspace
from slipway_provisioner.providers.workspaces import ListingClaim, ListingPending
from slipway_provisioner.store import workspace_listings, workspaces
from tests.support.provisioner import Provisioner, in_transaction, stopped_at
from tests.support.statements import Covered
from tests.support.terraform_provider import startable
from tests.support.workspaces import OLD, ring, stored

locking: Final = Covered(slipway_provisioner)
KEYS: Final = ring(OLD)
CONFIG: Final = "zone-a@3f2c9a"
ACCOUNT: Final = Account(
    id="tf", deployment="d", provider="terraform", region="r", identity="ledger", lease_pool_id="l", settings={}
)
LISTED: Final = "SELECT jsonb_array_length(found) FROM workspace_listing"


@pytest.fixture
async def listings(provisioner: Provisioner) -> AccountListings:
    """AccountListings of an account in which launches may start, and which is due to be listed."""
    await startable(provisioner.database, ACCOUNT, CONFIG)
    found = replica(provisioner)
    assert await found.orphans(ACCOUNT, visibility_seconds=0) == []
    return found


async def test_a_removed_account_is_listed(provisioner: Provisioner, listings: AccountListings) -> None:
    """Orphans in it are found, until its row is deleted with its last launch config."""
    await provisioner.database.execute("UPDATE account SET removed = true")
    assert (await claimed(listings)).account.id == ACCOUNT.id


def replica(provisioner: Provisioner) -> AccountListings:
    return WorkspaceRuns(lambda: provisioner.database, KEYS).listings


async def claimed(listings: AccountListings, *, all_: bool = False) -> ListingClaim:
    claim = await listings.claim(all_=all_)
    assert claim is not None
    return claim


def resource(workspace_id: str, batch_id: str = "") -> Resource:
    return Resource(
        workspace=workspace_id,
        address="machine.worker",
        id="m-1",
        batch_id=batch_id or new_id(),
        launch_config_id=CONFIG,
        incarnation="in",
    )


async def found(provisioner: Provisioner, listings: AccountListings, *resources: Resource) -> list[OrphanWorkspace]:
    """Orphans of a listing that begins later than all rows."""
    await provisioner.set_clock(10_000)
    await listings.finish(await claimed(listings), resources, visibility_seconds=0)
    return [*await listings.orphans(ACCOUNT, visibility_seconds=0)]


@locking("store.workspace_listings.ADD")
async def test_replicas_ask_for_the_first_listing_at_once(provisioner: Provisioner) -> None:
    """The second waits for the transaction of the first, and finds its row."""
    await startable(provisioner.database, ACCOUNT, CONFIG)
    async with provisioner.database.acquire() as db, db.transaction():
        await workspace_listings.get(db, ACCOUNT.id)
        second = provisioner.start(replica(provisioner).orphans(ACCOUNT, visibility_seconds=0))
        await provisioner.until_waiting(second)
    assert await second == []
    assert await provisioner.database.fetchval(LISTED) == 0


@locking("store.workspace_listings.CLAIM", "store.workspace_listings.FINISH")
async def test_one_replica_lists_an_account(provisioner: Provisioner, listings: AccountListings) -> None:
    """Another one does while the first holds its lock, or later, only if it has not ended; the late result of the first
    is not stored then."""
    other = replica(provisioner)

    async def claim(tx: Connection) -> object:
        return await workspace_listings.claim(tx, lock_seconds=LOCK_SECONDS, all_=True)

    async with provisioner.database.acquire() as db, db.transaction():
        assert await claim(db) is not None
        assert await other.claim(all_=True) is None, "it is locked"
    assert await other.claim(all_=True) is None, "it is listed now"
    await provisioner.set_clock(LOCK_SECONDS + 1)
    killed = await claimed(other)
    await provisioner.set_clock(2 * LOCK_SECONDS + 2)
    successor = await claimed(listings)
    await other.finish(killed, [resource(new_id())], visibility_seconds=0)
    assert await provisioner.database.fetchval(LISTED) == 0
    await listings.finish(successor, [resource(new_id()), resource(new_id())], visibility_seconds=0)
    assert await provisioner.database.fetchval(LISTED) == 2
    await provisioner.set_clock(2 * LOCK_SECONDS + LISTING_SECONDS + 3)
    assert await listings.claim(all_=False) is None, "only within the share of the sweep"
    await claimed(listings, all_=True)


@locking("store.workspace_listings.FAIL")
async def test_a_listing_that_fails_withdraws_nothing(provisioner: Provisioner, listings: AccountListings) -> None:
    """Nor does the failure of one that was overtaken delay the next."""
    (orphan,) = await found(provisioner, listings, resource(new_id()))
    await provisioner.set_clock(20_000)
    first = await claimed(listings, all_=True)
    await provisioner.set_clock(20_000 + LOCK_SECONDS + 1)
    second = await claimed(listings, all_=True)
    await listings.fail(second, "Unavailable\0")
    await listings.fail(first, "late")
    assert (
        await provisioner.database.fetchval("SELECT problem FROM workspace_listing")
        == "Unavailable\N{REPLACEMENT CHARACTER}"
    )
    assert await listings.orphans(ACCOUNT, visibility_seconds=0) == [orphan]
    assert await listings.claim(all_=True) is None
    await provisioner.set_clock(20_000 + LOCK_SECONDS + RETRY_SECONDS + 2)
    await claimed(listings, all_=True)


@locking("store.workspace_listings.FINISH")
async def test_a_workspace_that_is_added_while_its_account_is_listed(
    provisioner: Provisioner, listings: AccountListings
) -> None:
    """Its row is committed before its first resource exists, and is read after the listing."""
    await provisioner.set_clock(10_000)
    claim = await claimed(listings)
    async with provisioner.database.acquire() as db:
        added = await stored(db, KEYS, account_id="tf", deployment="d")
    assert await listings.finish(claim, [resource(added.id)], visibility_seconds=0) == 0
    assert await listings.orphans(ACCOUNT, visibility_seconds=0) == []


@locking("store.workspace_listings.DISTRUST")
async def test_a_listing_that_ends_after_a_restore(provisioner: Provisioner, listings: AccountListings) -> None:
    """It is of the time before, like all that the restored database has listed: the account is listed again, and its
    orphans are unknown until then. The restore waits for a listing that is being stored."""
    before = await claimed(listings)
    renewal = Incarnation("new", "restored", ("old",), 2**50, None)
    finishing = listings.finish(before, [resource(new_id())], visibility_seconds=0)
    async with stopped_at(provisioner, "workspace_listing", finishing):
        restoring = provisioner.start(
            in_transaction(provisioner, lambda tx: recovery.stop_until_confirmed(tx, renewal))
        )
        await provisioner.until_waiting(restoring)
    await restoring
    with pytest.raises(ListingPending, match="not been listed since the restore"):
        await listings.orphans(ACCOUNT, visibility_seconds=0)
    await listings.finish(before, [resource(new_id())], visibility_seconds=0)
    with pytest.raises(ListingPending):
        await listings.orphans(ACCOUNT, visibility_seconds=0)
    await listings.fail(await claimed(listings), "Unavailable")
    with pytest.raises(ListingPending, match="Unavailable"):
        await listings.orphans(ACCOUNT, visibility_seconds=0)


@locking("store.workspace_listings.RECLAIM")
async def test_two_replicas_reclaim_an_orphan(provisioner: Provisioner, listings: AccountListings) -> None:
    """It has one row, with what its import needs; its launch is none of its batch's."""
    id_, batch_id = new_id(), new_id()
    orphans = await found(provisioner, listings, resource(id_, batch_id))
    async with stopped_at(provisioner, "workspace", listings.reclaim(ACCOUNT, orphans)) as first:
        second = provisioner.start(replica(provisioner).reclaim(ACCOUNT, orphans))
        await provisioner.until_waiting(first, second)
    assert (await first, await second) == ({}, {})
    runs = WorkspaceRuns(lambda: provisioner.database, KEYS)
    (made,) = await runs.live(ACCOUNT, None)
    assert (made.id, made.phase, made.batch_id, made.ordinal) == (id_, Phase.ORPHAN, batch_id, 0)
    assert await runs.of_batch(ACCOUNT, batch_id) == []
    async with provisioner.database.acquire() as db:
        assert await workspaces.document(db, id_, Kind.STATE, KEYS) is not None
        assert await workspaces.document(db, id_, Kind.INPUTS, KEYS) is not None
    again = resource(new_id(), batch_id)
    await provisioner.database.execute("UPDATE workspace_listing SET due_at = slipway_clock(), listed_at = NULL")
    await listings.reclaim(ACCOUNT, [each for each in await found(provisioner, listings, again) if each.id != id_])
    assert sorted(row.ordinal for row in await runs.live(ACCOUNT, None)) == [-1, 0]


@locking("store.workspace_listings.RECLAIM")
@pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.GONE])
async def test_a_workspace_that_is_live_is_not_reclaimed(
    provisioner: Provisioner, listings: AccountListings, phase: Phase
) -> None:
    """However its resources were judged before."""
    live = await workspace(provisioner, phase)
    orphan = OrphanWorkspace(
        id=live.id,
        listed_at=await provisioner.database.fetchval("SELECT slipway_clock()"),
        resources=(resource(live.id),),
        batch_id=live.batch_id,
        launch_config_id=CONFIG,
        incarnation="in",
    )
    assert await listings.reclaim(ACCOUNT, [orphan]) == {}
    assert await phases(provisioner) == [phase]


@locking("store.workspace_listings.RECLAIM")
async def test_a_workspace_that_is_gone_is_reclaimed(provisioner: Provisioner, listings: AccountListings) -> None:
    """Under its own batch and state, whatever the tags say; not one of another account or deployment."""
    gone = await workspace(provisioner, Phase.GONE)
    orphans = await found(provisioner, listings, resource(gone.id))
    assert [each.batch_id for each in orphans] == [gone.batch_id]
    await provisioner.database.execute("UPDATE workspace SET deployment = 'other'")
    assert gone.id in await listings.reclaim(ACCOUNT, orphans)
    assert await phases(provisioner) == [Phase.GONE]
    await provisioner.database.execute("UPDATE workspace SET deployment = 'd'")
    assert await listings.reclaim(ACCOUNT, orphans) == {}
    assert await phases(provisioner) == [Phase.ORPHAN]


@locking("store.retention.DELETE_LISTINGS")
async def test_the_listing_of_a_deleted_account_is_pruned(provisioner: Provisioner, listings: AccountListings) -> None:
    await provisioner.prune()
    assert await provisioner.database.fetchval(LISTED) == 0
    await provisioner.database.execute("UPDATE workspace_listing SET account_id = 'deleted'")
    async with provisioner.database.acquire() as db, db.transaction():
        await db.execute("SELECT FROM workspace_listing FOR UPDATE")
        await provisioner.prune()
    assert await provisioner.database.fetchval(LISTED) == 0
    await provisioner.prune()
    assert await provisioner.database.fetchval(LISTED) is None


async def workspace(provisioner: Provisioner, phase: Phase) -> Workspace:
    async with provisioner.database.acquire() as db:
        made = await stored(db, KEYS, account_id="tf", deployment="d")
    statement = "UPDATE workspace SET phase = $1, ended_at = CASE WHEN $1 = 'gone' THEN slipway_clock() END"
    await provisioner.database.execute(statement, phase)
    return made


async def phases(provisioner: Provisioner) -> list[str]:
    return [found["phase"] for found in await provisioner.database.fetch("SELECT phase FROM workspace")]
