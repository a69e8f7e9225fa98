"""Terraform workspaces, saved, unlocked and encrypted again at the same time: two sessions per locking statement."""

import asyncio
from itertools import count
from typing import Any, Final

import pytest

import slipway_provisioner
from slipway_common.base.ids import new_id
from slipway_common.messaging.incarnation import Incarnation
from slipway_provisioner.apply import recovery
from slipway_provisioner.apply.workspace_runs import WorkspaceRuns
from slipway_provisioner.domain.cloud import Account
from slipway_provisioner.domain.workspace_locks import GAP_SECONDS_MAX, TAKEOVER_SECONDS
from slipway_provisioner.domain.workspace_runs import Next
from slipway_provisioner.domain.workspaces import Operation, Phase, Workspace
from slipway_provisioner.providers.workspaces import NoRoom, Room, RunClaim
from slipway_provisioner.store import workspace_runs
from tests.support.harness import until
from tests.support.provisioner import Provisioner, in_transaction, stopped_at
from tests.support.statements import Covered
from tests.support.terraform_provider import startable
from tests.support.workspace_documents import KEYS, current, rejected, saving
from tests.support.workspaces import state

locking: Final = Covered(slipway_provisioner)
CONFIG: Final = "zone-a@3f2c9a"
ACCOUNT: Final = Account(
    id="tf", deployment="d", provider="terraform", region="r", identity="ledger", lease_pool_id="l", settings={}
)
INPUTS: Final[dict[str, Any]] = {"config": {"id": CONFIG}, "incarnation": "in", "effects_seconds": 100.0}
ANY: Final = Room(workspaces_max=None, queue_max=100)
WORKER: Final = """
INSERT INTO worker (id, pool_id, launch_config_id, account_id, image_revision, state, decision_id, instance_id,
    requested_at, registered_at, last_seen_at, traceparent)
SELECT $1, 'linux', 'zone-a@3f2c9a', 'tf', 'linux-1', 'running', $1, 'i-1', at, at, at, ''
FROM (SELECT slipway_clock() AS at)"""
STOP: Final = "INSERT INTO launch_stop (scope, scope_id, reason, by) VALUES ('all', '', 'test', 'ann')"


@pytest.fixture
async def queued(provisioner: Provisioner) -> list[Workspace]:
    """Three workspaces that wait for a run, in an account in which launches may start."""
    await startable(provisioner.database, ACCOUNT, CONFIG)
    replica = replicas(provisioner)[0]
    for _ in range(3):
        await replica.add(ACCOUNT, new_id(), [INPUTS], ANY)
    return [*await replica.live(ACCOUNT, None)]


def replicas(provisioner: Provisioner) -> tuple[WorkspaceRuns, WorkspaceRuns]:
    """Two replicas, each with a clock of its own that advances at each call."""
    one, two = (
        WorkspaceRuns(lambda: provisioner.database, KEYS, clock=count(0.0, GAP_SECONDS_MAX).__next__) for _ in range(2)
    )
    return one, two


async def observed_as_lapsed(replica: WorkspaceRuns) -> None:
    """Let a replica observe the lapsed locks for long enough, without claiming anything."""
    for _ in range(int(TAKEOVER_SECONDS / GAP_SECONDS_MAX)):
        assert await replica.claim("", 0) == []


def ready(claim: RunClaim, instance_id: str = "i-1") -> Next:
    return Next(phase=Phase.READY, instance_id=instance_id)


def saved(claim: RunClaim, serial: int = 1) -> bytes:
    return state(serial, claim.workspace.id, machine="i-1")


async def phases(provisioner: Provisioner) -> dict[str, int]:
    rows = await provisioner.database.fetch("SELECT phase, count(*)::int AS number FROM workspace GROUP BY phase")
    return {row["phase"]: row["number"] for row in rows}


@locking("store.workspace_runs.ROOM")
async def test_two_calls_take_the_last_room(provisioner: Provisioner) -> None:
    """The second counts what the first has committed."""
    one, two = replicas(provisioner)
    room = Room(workspaces_max=1, queue_max=9)
    async with stopped_at(provisioner, "workspace", one.add(ACCOUNT, new_id(), [INPUTS], room)) as first:
        second = provisioner.start(two.add(ACCOUNT, new_id(), [INPUTS], room))
        await provisioner.until_waiting(first, second)
    await first
    with pytest.raises(NoRoom):
        await second
    assert len(await one.live(ACCOUNT, None)) == 1


@locking("store.workspace_runs.ROOM")
async def test_a_call_that_is_repeated_at_the_same_time(provisioner: Provisioner) -> None:
    """A batch has its workspaces once."""
    one, two = replicas(provisioner)
    batch_id = new_id()
    async with stopped_at(provisioner, "workspace", one.add(ACCOUNT, batch_id, [INPUTS] * 2, ANY)) as first:
        second = provisioner.start(two.add(ACCOUNT, batch_id, [INPUTS] * 2, ANY))
        await provisioner.until_waiting(first, second)
    await asyncio.gather(first, second)
    assert [row.ordinal for row in await one.of_batch(ACCOUNT, batch_id)] == [1, 2]


@pytest.mark.parametrize("put_back", [False, True])
async def test_a_problem_that_cannot_be_stored(
    provisioner: Provisioner, queued: list[Workspace], put_back: bool
) -> None:
    """A character that PostgreSQL rejects must not keep a state from being saved, again and again."""
    runs, _ = replicas(provisioner)
    (claim,) = await runs.claim("one", 1)
    problem = "the plugin printed \0 and \ud800" + "!" * 9_000
    next_ = Next(phase=Phase.UNKNOWN, due_seconds=0.0, problem=problem, put_back=put_back)
    assert await runs.finish(claim, saved(claim), next_) == ""
    row = await provisioner.database.fetchrow(
        "SELECT problem, outcome FROM workspace WHERE id = $1", claim.workspace.id
    )
    assert row["problem"].startswith("the plugin printed \N{REPLACEMENT CHARACTER} and \N{REPLACEMENT CHARACTER}!")
    assert len(row["problem"]) < 5_000
    assert row["outcome"] == ({"put_back": row["problem"]} if put_back else None)


@locking("store.workspace_runs.CLAIM", "store.workspace_runs.BEGIN")
async def test_replicas_claim_different_workspaces(provisioner: Provisioner, queued: list[Workspace]) -> None:
    """Neither waits for the other, and no workspace has two runs."""
    one, two = replicas(provisioner)
    async with provisioner.database.acquire() as db, db.transaction():
        await db.fetch("SELECT FROM workspace WHERE id = $1 FOR UPDATE", queued[0].id)
        first = await one.claim("one", 1)
        second = await two.claim("two", 9)
    ids = [claim.workspace.id for claim in (*first, *second)]
    assert sorted(ids) == sorted(workspace.id for workspace in queued[1:])
    assert [claim.workspace.id for claim in await one.claim("one", 9)] == [queued[0].id]


async def test_a_claim_takes_no_more_than_it_asks_for(provisioner: Provisioner, queued: list[Workspace]) -> None:
    """Also under nested loops, which PostgreSQL may choose by its statistics."""
    async with provisioner.database.acquire() as db, db.transaction():
        for setting in ("hashjoin", "mergejoin", "hashagg", "sort", "material", "indexscan", "bitmapscan"):
            await db.execute(f"SET LOCAL enable_{setting} = off")
        assert len(await workspace_runs.claim(db, "one", lock_seconds=60, most=1)) == 1
    assert len(queued) == 3


@locking("store.workspace_runs.CLAIM", "store.workspace_runs.RENEW", "store.workspace_runs.FINISH")
async def test_a_run_that_has_lost_its_lock_saves_nothing_over_its_successor(
    provisioner: Provisioner, queued: list[Workspace]
) -> None:
    """Its state is stored beside the other one. Its workspace is looked up before anything is applied again."""
    one, two = replicas(provisioner)
    (late,) = await one.claim("one", 1)
    assert await one.renew([late]) == []
    await provisioner.set_clock(61)
    await observed_as_lapsed(two)
    (successor,) = [claim for claim in await two.claim("two", 9) if claim.workspace.id == late.workspace.id]
    assert (successor.operation, successor.unsettled_seconds) == (Operation.LOOK_UP, 39.0)
    assert await one.renew([late]) == [late.workspace.id]
    assert "lost the lock" in await one.finish(late, saved(late), ready(late))
    looked = Next(phase=Phase.QUEUED, due_seconds=0.0)
    assert await two.finish(successor, saved(successor), looked) == ""
    assert (await current(provisioner, late.workspace)).version.serial == 1
    assert await rejected(provisioner, late.workspace) == ["its run had lost the lock"]
    (again,) = [claim for claim in await two.claim("two", 9) if claim.workspace.id == late.workspace.id]
    assert again.operation is Operation.APPLY


@locking("store.workspace_runs.CLAIM", "store.workspace_runs.RENEW")
async def test_a_run_keeps_its_workspace_through_an_outage_and_a_jump_of_the_clock(
    provisioner: Provisioner, queued: list[Workspace]
) -> None:
    """All locks have lapsed then, and by that clock no earlier run can have effects. No replica takes over a run that
    goes on: its state would be rejected, and its machine created again."""
    one, two = replicas(provisioner)
    (running,) = await one.claim("one", 1)
    await provisioner.database.execute("UPDATE workspace SET due_at = NULL WHERE id <> $1", running.workspace.id)
    await provisioner.jump_clock(7200)
    assert await two.claim("two", 9) == []
    assert await one.renew([running]) == []
    await observed_as_lapsed(two)
    assert await two.claim("two", 9) == []
    assert await one.finish(running, saved(running), ready(running)) == ""
    assert (await phases(provisioner))["ready"] == 1


async def test_a_clock_that_is_set_back(provisioner: Provisioner, queued: list[Workspace]) -> None:
    """A run that was due stays due, and a workspace that a lost replica has locked is taken over."""
    one, two = replicas(provisioner)
    await provisioner.set_clock(7200)
    running, lost, done = await one.claim("one", 9)
    destroy = Next(phase=Phase.DESTROYING, due_seconds=0.0)
    assert await one.finish(done, saved(done), destroy) == ""
    await provisioner.jump_clock(0)
    assert await one.renew([running]) == []
    due = await two.claim("two", 9)
    assert [(claim.workspace.id, claim.operation) for claim in due] == [(done.workspace.id, Operation.DESTROY)]
    assert await two.renew(due) == []
    await observed_as_lapsed(two)
    (taken,) = await two.claim("two", 9)
    assert (taken.workspace.id, taken.operation) == (lost.workspace.id, Operation.LOOK_UP)


@locking("store.workspace_runs.CLAIM", "store.workspace_runs.RENEW")
async def test_a_lock_that_is_renewed_while_it_is_taken_over(provisioner: Provisioner, queued: list[Workspace]) -> None:
    """A claim takes over no lock that is being renewed, or has been renewed since it was observed."""
    one, two = replicas(provisioner)
    (running,) = await one.claim("one", 1)
    await provisioner.database.execute("UPDATE workspace SET due_at = NULL WHERE id <> $1", running.workspace.id)
    await provisioner.set_clock(61)
    await observed_as_lapsed(two)
    async with provisioner.database.acquire() as db, db.transaction():
        assert await workspace_runs.renew(db, [(running.workspace.id, running.workspace.fence)], lock_seconds=60)
        assert await two.claim("two", 9) == []
    assert await two.claim("two", 9) == []


@locking("store.workspace_runs.BEGIN", "store.workspaces.LOCK")
async def test_a_claim_whose_lock_has_lapsed_before_its_apply_begins(
    provisioner: Provisioner, queued: list[Workspace]
) -> None:
    """As of a process that was suspended meanwhile: the apply is that of its successor, and does not begin twice."""
    one, two = replicas(provisioner)
    await provisioner.database.execute("UPDATE workspace SET due_at = NULL WHERE id <> $1", queued[0].id)
    async with provisioner.database.acquire() as db, db.transaction():
        await db.execute("LOCK TABLE launch_config IN ACCESS EXCLUSIVE MODE")
        late = provisioner.start(one.claim("one", 1))
        await provisioner.until_waiting(late)
        await provisioner.set_clock(61)
        await observed_as_lapsed(two)
        (successor,) = await two.claim("two", 9)
        assert (successor.workspace.id, successor.operation) == (queued[0].id, Operation.LOOK_UP)
    assert await late == []
    assert await two.renew([successor]) == []
    assert await two.finish(successor, saved(successor), Next(phase=Phase.QUEUED, due_seconds=0.0)) == ""
    assert [claim.operation for claim in await two.claim("two", 9)] == [Operation.APPLY]


CANCEL: Final = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE $1 = ANY(pg_blocking_pids(pid))"


async def test_one_of_several_claimed_workspaces_cannot_be_begun(
    provisioner: Provisioner, queued: list[Workspace]
) -> None:
    """As after a lock timeout. The others have begun and are run, since nobody else may apply them before their time
    has passed."""
    one, _ = replicas(provisioner)
    async with provisioner.database.acquire() as blocker, blocker.transaction():
        async with provisioner.database.acquire() as db, db.transaction():
            await db.execute("LOCK TABLE launch_config IN ACCESS EXCLUSIVE MODE")
            claiming = provisioner.start(one.claim("one", 9))
            await provisioner.until_waiting(claiming)
            await blocker.fetch("SELECT FROM workspace WHERE id = $1 FOR UPDATE", queued[1].id)
        pid = await blocker.fetchval("SELECT pg_backend_pid()")

        async def cancelled() -> bool:
            async with provisioner.database.acquire() as db, db.transaction():
                await db.execute("SET LOCAL ROLE NONE")  # the sessions are a superuser's, whom no other role may cancel
                return bool(await db.fetch(CANCEL, pid))

        await until(cancelled, "the claim waits for the second workspace, and is cancelled")
        claims: Any = (await asyncio.gather(claiming, return_exceptions=True))[0]
    assert isinstance(claims, list)
    assert sorted(claim.workspace.id for claim in claims) == sorted([queued[0].id, queued[2].id])
    assert await one.renew(claims) == []


@locking("store.workspace_runs.FINISH")
async def test_a_lock_that_is_claimed_while_its_run_saves(provisioner: Provisioner, queued: list[Workspace]) -> None:
    """The end of a run and a claim after its lock has lapsed wait for each other; one of them wins."""
    one, two = replicas(provisioner)
    (claim,) = await one.claim("one", 1)
    await provisioner.set_clock(61)
    await observed_as_lapsed(two)
    async with stopped_at(provisioner, "workspace_document", one.finish(claim, saved(claim), ready(claim))) as saving:
        others = await two.claim("two", 9)
        assert claim.workspace.id not in [other.workspace.id for other in others]
    assert await saving == ""
    assert (await phases(provisioner))["ready"] == 1


@locking("store.workspace_runs.DESTROY", "store.workspace_runs.FINISH")
async def test_a_destruction_that_is_asked_for_during_a_refresh(
    provisioner: Provisioner, queued: list[Workspace]
) -> None:
    """The end of the refresh does not make the workspace ready again."""
    one, two = replicas(provisioner)
    for claim in await one.claim("one", 1):
        await one.finish(claim, saved(claim), ready(claim))
    assert await two.refresh_oldest(-1) is True
    (refresh,) = [claim for claim in await one.claim("one", 9) if claim.operation is Operation.REFRESH]
    async with stopped_at(provisioner, "workspace_document", one.finish(refresh, saved(refresh, 2), ready(refresh))):
        destroying = provisioner.start(two.destroy(ACCOUNT, ["i-1"]))
        await provisioner.until_waiting(destroying)
    await destroying
    assert [row.phase for row in await one.of_instances(ACCOUNT, ["i-1"])] == [Phase.DESTROYING]
    (claim,) = [claim for claim in await one.claim("one", 9) if claim.workspace.id == refresh.workspace.id]
    await two.destroy(ACCOUNT, ["i-1"])
    assert claim.operation is Operation.DESTROY


@locking("store.workspace_runs.DESTROY")
async def test_a_refresh_that_ends_after_a_destruction_was_asked_for(
    provisioner: Provisioner, queued: list[Workspace]
) -> None:
    one, two = replicas(provisioner)
    for claim in await one.claim("one", 1):
        await one.finish(claim, saved(claim), ready(claim))
    await one.refresh_oldest(-1)
    (refresh,) = [claim for claim in await one.claim("one", 9) if claim.operation is Operation.REFRESH]
    await two.destroy(ACCOUNT, ["i-1"])
    await one.finish(refresh, saved(refresh, 2), ready(refresh))
    assert [row.phase for row in await one.of_instances(ACCOUNT, ["i-1"])] == [Phase.DESTROYING]
    assert len(await two.claim("two", 9)) == 1


@pytest.mark.parametrize("asked", [False, True], ids=["", "destruction"])
@pytest.mark.parametrize("lineage", ["", "foreign"], ids=["changed", "foreign"])
async def test_a_refresh_whose_state_is_rejected_changes_nothing_of_its_worker(
    provisioner: Provisioner, queued: list[Workspace], lineage: str, asked: bool
) -> None:
    """Its instance stays, and a destruction that was asked for meanwhile."""
    one, two = replicas(provisioner)
    for claim in await one.claim("one", 1):
        await one.finish(claim, saved(claim), ready(claim))
    await one.refresh_oldest(-1)
    (refresh,) = [claim for claim in await one.claim("one", 9) if claim.operation is Operation.REFRESH]
    id_ = refresh.workspace.id
    if asked:
        await two.destroy(ACCOUNT, ["i-1"])
    if not lineage:
        assert await saving(provisioner, refresh.workspace, saved(refresh, 5), 1) == ""
    found = Next(phase=Phase.DESTROYING, due_seconds=0.0, instance_id="i-1", problem="its instance i-1 is gone")
    assert await one.finish(refresh, state(2, lineage or id_), found) != ""
    phase = Phase.DESTROYING if asked else Phase.READY
    rows = await one.of_instances(ACCOUNT, ["i-1"])
    assert [(row.id, row.phase, row.holder, row.refreshed_at) for row in rows] == [(id_, phase, "", None)]
    assert len(await rejected(provisioner, refresh.workspace)) == 1
    await provisioner.set_clock(11)
    (again,) = [claim for claim in await two.claim("two", 9) if claim.workspace.id == id_]
    assert again.operation is (Operation.DESTROY if asked else Operation.REFRESH)


@locking("store.workspace_runs.HELD", "store.workspaces.UNLOCK")
async def test_a_successor_releases_the_locks_of_its_predecessor(
    provisioner: Provisioner, queued: list[Workspace]
) -> None:
    """Other processes keep theirs."""
    one, two = replicas(provisioner)
    (killed,) = await one.claim("one", 1)
    (other,) = await two.claim("two", 1)
    assert await one.release("one") == 1
    again = {claim.workspace.id: claim.operation for claim in await one.claim("one", 9)}
    assert again[killed.workspace.id] is Operation.LOOK_UP
    assert other.workspace.id not in again


@locking("store.workspace_runs.REFRESH_OLDEST", "store.workspace_runs.REFRESH_UNRESPONSIVE")
async def test_replicas_make_one_refresh_due(provisioner: Provisioner, queued: list[Workspace]) -> None:
    """A second one skips the row, and a ready workspace without a reason is never due."""
    one, two = replicas(provisioner)
    for claim in await one.claim("one", 1):
        await one.finish(claim, saved(claim), ready(claim))
    assert await one.refresh_oldest(3600) is False
    await provisioner.set_clock(3601)
    async with provisioner.database.acquire() as db, db.transaction():
        await db.fetch("SELECT FROM workspace FOR UPDATE")
        assert await two.refresh_oldest(3600) is False
    assert await one.refresh_oldest(3600) is True
    assert await two.refresh_oldest(3600) is False
    assert await two.refresh_unresponsive(60) == 0


async def test_two_workers_cannot_have_one_instance(provisioner: Provisioner, queued: list[Workspace]) -> None:
    """As of a module whose output is a constant: its launch config is charged, and the second one is destroyed."""
    one, two = replicas(provisioner)
    first, second = [*await one.claim("one", 1), *await two.claim("two", 1)]
    assert await one.finish(first, saved(first), ready(first)) == ""
    assert await two.finish(second, saved(second), ready(second)) == ""
    (row,) = await one.of_batch(ACCOUNT, second.workspace.batch_id)
    assert (row.phase, row.instance_id, (row.outcome or {})["code"]) == (Phase.DESTROYING, None, "InstanceIdInUse")
    assert [row.id for row in await one.of_instances(ACCOUNT, ["i-1"])] == [first.workspace.id]


@locking("store.workspace_runs.REFRESH_UNRESPONSIVE")
async def test_an_unresponsive_worker_has_its_workspace_refreshed_once(
    provisioner: Provisioner, queued: list[Workspace]
) -> None:
    """Not one that has reported since, and none twice without a contact between."""
    one, two = replicas(provisioner)
    for claim in await one.claim("one", 1):
        await one.finish(claim, saved(claim), ready(claim))
    await provisioner.set_clock(10)
    await provisioner.database.execute(WORKER, new_id())
    await provisioner.set_clock(60)
    assert [await replica.refresh_unresponsive(60) for replica in (one, two)] == [0, 0]
    await provisioner.set_clock(71)
    assert [await replica.refresh_unresponsive(60) for replica in (one, two)] == [1, 0]
    (refresh,) = [claim for claim in await one.claim("one", 9) if claim.operation is Operation.REFRESH]
    await one.finish(refresh, saved(refresh, 2), ready(refresh))
    await provisioner.set_clock(200)
    assert await two.refresh_unresponsive(60) == 0


@pytest.mark.parametrize(
    "content", [b'{"version": 5}', b'{"version": 4, "serial": 1, "lineage": "a\\u0000"}'], ids=["format", "lineage"]
)
async def test_content_that_is_not_a_state(provisioner: Provisioner, queued: list[Workspace], content: bytes) -> None:
    """It is stored as a rejected state, and the resources are looked up. A lineage with a NUL could not be stored, and
    saving it would be retried for ever."""
    one, _ = replicas(provisioner)
    (claim,) = await one.claim("one", 1)
    assert "no state" in await one.finish(claim, content, ready(claim))
    assert await phases(provisioner) == {"queued": 2, "unknown": 1}


@locking("store.workspace_runs.DISTRUST", "store.workspaces.LOCK")
async def test_a_restored_database_whose_queue_has_been_applied_since(
    provisioner: Provisioner, queued: list[Workspace]
) -> None:
    """Nothing is applied twice: what waits is looked up first, once no run from before can have effects. Such a run
    saves nothing, although its token is that of the next lock."""
    one, two = replicas(provisioner)
    (before,) = await one.claim("before", 1)
    restored = "UPDATE workspace SET holder = '', fence = 0, locked_until = NULL, effects_until = NULL"
    await provisioner.database.execute(f"{restored}, effects_seconds = 7200")
    renewal = Incarnation("new", "restored", ("old",), 2**50, None)
    async with stopped_at(provisioner, "workspace_document", one.finish(before, saved(before), ready(before))):
        restoring = provisioner.start(
            in_transaction(provisioner, lambda tx: recovery.stop_until_confirmed(tx, renewal))
        )
        await provisioner.until_waiting(restoring)
    await restoring
    assert await phases(provisioner) == {"unknown": 3}
    assert await two.claim("two", 9) == []
    await provisioner.database.execute("DELETE FROM launch_stop")
    claims = await two.claim("two", 9)
    assert [claim.operation for claim in claims] == [Operation.LOOK_UP] * 3
    assert [claim.unsettled_seconds for claim in claims] == [7200.0] * 3
    assert "lost the lock" in await one.finish(before, saved(before), ready(before))


async def test_nothing_is_claimed_of_a_database_that_may_be_restored(
    provisioner: Provisioner, queued: list[Workspace]
) -> None:
    """Its queue may have been applied since: it stays as it is until the database is compared with Kafka."""
    one, _ = replicas(provisioner)
    await provisioner.database.execute("UPDATE incarnation SET server = 'another'")
    assert await one.claim("one", 9) == []
    assert await phases(provisioner) == {"queued": 3}


@locking("store.workspaces.DROP", "store.workspace_runs.FINISH")
async def test_an_apply_is_a_start(provisioner: Provisioner, queued: list[Workspace]) -> None:
    """None begins after a launch stop has committed; what waits is put back, without inputs."""
    one, _ = replicas(provisioner)
    await provisioner.database.execute(STOP)
    assert await one.claim("one", 9) == []
    assert await phases(provisioner) == {"gone": 3}
    rows = await one.of_batch(ACCOUNT, queued[0].batch_id)
    assert [row.outcome for row in rows] == [{"put_back": "launching was stopped or paused before the apply began"}]
    left = await provisioner.database.fetchval("SELECT count(*) FROM workspace_document WHERE kind = 'inputs'")
    assert left == 0
