"""Two sessions on the terms of lease pools: declarations, limits, and the end of a backoff."""

import asyncio
import itertools
from typing import Final

import msgspec
import pytest

import slipway_lease_broker
from slipway_api.events.lease import LeaseGranted, LeaseLimitChanged
from slipway_common.declaration.changes import ConfirmationRequired
from slipway_lease_broker import apply
from slipway_lease_broker.apply import Act, Action
from slipway_lease_broker.domain.declaration import Declaration, change
from slipway_lease_broker.domain.terms import Backoff, Policy
from slipway_lease_broker.store import pools
from tests.support.lease_broker import Broker, acquire_request, release, terms
from tests.support.lease_decisions import APPLIED, during_decision, of_owner
from tests.support.statements import Covered

SET: Final = Act(action=Action.SET, by="ops", reason="test")
locking: Final = Covered(slipway_lease_broker)


@locking("store.pools.OWNERS_LOCK", "store.pools.DECLARE")
async def test_two_declarations_of_a_new_pool(broker: Broker) -> None:
    """The second compares with the rows of the first: the limit changes once."""
    wanted = of_owner("a.yaml", terms(limit=3), terms("new", 7))
    await asyncio.gather(*(apply.declare(broker.pool, wanted, APPLIED) for _ in range(4)))
    assert [(e.lease_pool_id, e.limit, e.previous_limit) for e in await broker.events()] == [("new", 7, None)]
    assert await broker.pool.fetchval("SELECT revision FROM lease_pools WHERE id = 'new'") == 1


@locking("store.pools.OWNERS_LOCK", "store.pools.SHARED_LOCK")
async def test_declarations_of_one_owner_take_turns(broker: Broker) -> None:
    """The second finds what the first declared; another owner waits for neither."""
    async with broker.pool.acquire() as db:
        async with db.transaction():
            await pools.take_turns(db, ["a.yaml"], prune=False)
            second = broker.start(apply.declare(broker.pool, of_owner("a.yaml", terms("new")), APPLIED))
            await broker.until_waiting(second)
            await apply.declare(broker.pool, of_owner("b.yaml", terms("other")), APPLIED)
            await apply.record(db, [change(None, terms("first", owner="a.yaml"))], APPLIED)
        with pytest.raises(ConfirmationRequired, match="lease pool first is removed"):
            await second


@locking("store.pools.PRUNE_LOCK", "store.pools.SHARED_LOCK")
@pytest.mark.parametrize("prunes_first", [True, False])
async def test_a_declaration_that_prunes_waits_for_those_of_all_owners(broker: Broker, prunes_first: bool) -> None:
    async with broker.pool.acquire() as db:
        async with db.transaction():
            await pools.take_turns(db, ["a.yaml"], prune=prunes_first)
            wanted = msgspec.structs.replace(of_owner("b.yaml", terms()), prune=not prunes_first)
            other = broker.start(apply.declare(broker.pool, wanted, APPLIED))
            await broker.until_waiting(other)
        await other


@locking("store.pools.DECLARE", "store.pools.CLAIM")
async def test_a_declaration_locks_only_the_pools_that_it_changes(broker: Broker) -> None:
    """While it waits for one of them, the others grant and take commands, and a preview waits for none."""
    await broker.declare(terms("a", 3), terms(limit=3))
    await broker.send(acquire_request("first", pool="a"))
    wanted = Declaration(owners=frozenset({""}), pools=[terms("a", 3), terms(limit=5)])
    async with broker.pool.acquire() as blocker:
        async with blocker.transaction():
            await pools.lock(blocker, ["sim-a"])
            declaring = broker.start(apply.declare(broker.pool, wanted, APPLIED))
            await broker.until_waiting(declaring)
            assert [grant.request_id for grant in await broker.grants()] == ["first"]
            await broker.send(acquire_request("second", pool="a"))
            preview = await apply.preview(broker.pool, wanted)
        changes = await declaring
    assert [made.result for made in preview] == [made.result for made in changes] == ["unchanged", "updated"]


@pytest.mark.parametrize("declared_first", [True, False])
@locking("store.tenants.END_BACKOFFS")
async def test_a_failure_beside_a_declaration_without_backoff(broker: Broker, declared_first: bool) -> None:
    """The one that waits for the pool sees what the other has committed: the tenant does not back off."""
    await broker.declare(terms(policy=Policy(backoff=Backoff(seconds=600))))
    await broker.send(acquire_request("first"))
    (grant,) = await broker.grants()
    wanted = of_owner("a.yaml", terms(policy=Policy(backoff=None)))
    declaring, failing = apply.declare(broker.pool, wanted, APPLIED), broker.send(release(grant, result="failed"))
    async with broker.pool.acquire() as blocker:
        async with blocker.transaction():
            await pools.lock(blocker, ["sim-a"])
            first = broker.start(declaring if declared_first else failing)
            await broker.until_waiting(first)
            second = broker.start(failing if declared_first else declaring)
            await broker.until_waiting(first, second)
        await asyncio.gather(first, second)
    assert await broker.pool.fetchval("SELECT coalesce(max(failures), 0) FROM tenants") == 0


@locking("store.pools.DECLARE")
async def test_a_pool_changed_while_a_declaration_waits_is_compared_again(broker: Broker) -> None:
    """The declaration is based on what the operator has set meanwhile, and asks again if that makes it dangerous."""
    async with broker.pool.acquire() as db:
        for limit, wanted, expected in ((4, 5, (4, 5)), (1, 6, None)):
            async with db.transaction():
                await pools.lock(db, ["sim-a"])
                (before,) = await pools.declared(db, ["sim-a"])
                declaring = broker.start(apply.declare(broker.pool, of_owner("a.yaml", terms(limit=wanted)), APPLIED))
                await broker.until_waiting(declaring)
                await apply.set_terms(db, before, msgspec.structs.replace(before, limit_units=limit), SET)
            if expected is None:
                with pytest.raises(ConfirmationRequired, match="grows from 1 to 6"):
                    await declaring
            else:
                (made,) = await declaring
                assert made.fields["limit"] == expected
    row = await broker.pool.fetchrow("SELECT limit_units, revision, owner FROM lease_pools")
    assert tuple(row) == (1, 4, "a.yaml")


@locking("store.pools.DECLARE")
async def test_a_declaration_gives_up_when_its_pools_keep_changing(broker: Broker) -> None:
    """It changes nothing then. Callers wait for the table in the order in which they came."""

    async def set_limit(limit: int) -> None:
        async with broker.pool.acquire() as db, db.transaction():
            await db.execute("LOCK TABLE lease_pools IN SHARE ROW EXCLUSIVE MODE")
            locked[limit].set()
            await asked[limit].wait()
            (before,) = await pools.declared(db, ["sim-a"])
            await apply.set_terms(db, before, msgspec.structs.replace(before, limit_units=limit), SET)

    limits = (4, 5, 6, 7)
    locked, asked = ({limit: asyncio.Event() for limit in limits} for _ in range(2))
    setting = broker.start(set_limit(4))
    await locked[4].wait()
    declaring = broker.start(apply.declare(broker.pool, of_owner("a.yaml", terms(limit=5)), APPLIED))
    for limit, next_ in itertools.pairwise(limits):
        await broker.until_waiting(declaring)
        waits = broker.start(set_limit(next_))
        await broker.until_waiting(declaring, waits)
        asked[limit].set()
        await setting
        await locked[next_].wait()
        setting = waits
    with pytest.raises(apply.ChangedMeanwhile):
        await declaring
    asked[7].set()
    await setting
    assert tuple(await broker.pool.fetchrow("SELECT limit_units, owner FROM lease_pools")) == (7, "")


@locking("store.pools.DECLARE")
async def test_a_limit_lowered_during_a_decision(broker: Broker) -> None:
    """The decision commits under the limit it read; the new limit comes after it and revokes nothing."""
    await broker.send(acquire_request("r1", 3))
    await during_decision(broker, broker.declare(terms(limit=1)))
    granted, changed = await broker.events()
    assert isinstance(granted, LeaseGranted)
    assert isinstance(changed, LeaseLimitChanged)
    await broker.send(acquire_request("r2"))
    assert await broker.grants() == []
    assert await broker.held() == 3


@locking("store.pools.DECLARE", "store.pools.CLAIM")
async def test_a_decision_while_the_limit_is_being_lowered(broker: Broker) -> None:
    """No grant commits above the limit in force at that commit."""
    await broker.send(acquire_request("r", 3))
    async with broker.pool.acquire() as db, db.transaction():
        await pools.declare(db, [terms(limit=1, revision=2)])
        assert await broker.loop.step(broker.pool) is False
    assert [grant.units for grant in await broker.grants()] == [1]
