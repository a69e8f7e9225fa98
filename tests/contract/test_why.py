"""`slipway why` with the answers of a real provisioner, which must have the fields that the sentences need."""

from typing import TypeVar

import msgspec

from slipway_api.events.weight import StageHealth
from slipway_api.http.pages import Items
from slipway_api.http.provisioner.accounts import Account, AccountDetails
from slipway_api.http.provisioner.decisions import Decision
from slipway_api.http.provisioner.demand import DemandSource
from slipway_api.http.provisioner.launch_configs import LaunchConfig
from slipway_api.http.provisioner.pools import LaunchStop, Pool
from slipway_api.http.provisioner.workers import WorkerDetails
from slipway_client.view.why.explanation import Facts
from slipway_client.view.why.pools import of_pool
from slipway_client.view.why.workers import of_worker
from slipway_provisioner.apply import account_checks as apply
from slipway_provisioner.domain.account_check import CheckState, Finding
from slipway_provisioner.store import account_checks
from tests.support.provisioner import Provisioner, after, report, revision_id, weight

T = TypeVar("T")


async def read(type_: type[T], provisioner: Provisioner, path: str) -> T:
    async with provisioner.client() as client:
        answer = await client.get(path)
    assert answer.status_code == 200, answer.text
    return msgspec.json.decode(answer.content, type=type_)


async def test_of_a_worker(provisioner: Provisioner) -> None:
    """From its decision to its task, with the times of the database."""
    (started,) = await provisioner.starting()
    await provisioner.set_clock(30)
    registered = await provisioner.register(started.instance_id or "", started.batch_id)
    async with provisioner.client(token=registered.json()["token"]) as client:
        await client.post(
            f"/workers/{started.id}/claimed", json={"task_id": "t-1", "source": "q", "at": after(30).isoformat()}
        )
    worker = await read(WorkerDetails, provisioner, f"/workers/{started.id}")
    decision = await read(Decision, provisioner, f"/decisions/{worker.decision_id}")
    configs = (await read(Items[LaunchConfig], provisioner, "/launch-configs?pool=linux")).items
    assert worker.lease is not None
    assert {config.lease_pool_id for config in configs} == {worker.lease.lease_pool_id}
    assert of_worker(worker, decision, None, now=after(30)).sentences(after(30)) == [
        f"Worker {started.id}: running a task.",
        f"Since {after(30):%H:%M:%S}, 0 s ago.",
        "Effect: its task goes on.",
        f"Remedy: none needed; `slipway worker terminate {started.id} --reason …` gives up on it.",
        f"Pool linux, launch config {revision_id()}, account {started.account_id}.",
        f"Requested at {after(0):%H:%M:%S}: 1 needed; 1 task wanted 1 worker, 0 serving (decision {decision.id}).",
        f"→ {revision_id()} got 1: weight 1, room for 64.",
        f"Admitted by lease pool {worker.lease.lease_pool_id} (fencing token 1): 0 s from the request to the call.",
        f"Provider called at {after(0):%H:%M:%S}: launched 0 s later, instance i-0001.",
        f"Registered at {after(30):%H:%M:%S}, after a boot of 30 s.",
        "Claimed 1 task, the first 0 s after it registered; current: task t-1 of q.",
    ]


async def test_of_a_pool(provisioner: Provisioner) -> None:
    """The tripped config is the cause; the details have the last decision."""
    await provisioner.declare()
    health = StageHealth(probability=0.1, successes=0, failures=2, window=8, failures_folded=0)
    await provisioner.weights(
        weight(
            stages={"launch": health},
            state="tripped",
            tripped_stage="launch",
            tripped_since=after(0),
            probe_permit=1,
            next_probe_at=after(12),
            reason="zone-a tripped: 2 capacity errors",
        )
    )
    await provisioner.demand(report(5, 2))
    await provisioner.plan()
    pool = await read(Pool, provisioner, "/pools/linux")
    decisions = (await read(Items[Decision], provisioner, "/pools/linux/decisions")).items
    configs = (await read(Items[LaunchConfig], provisioner, "/launch-configs?pool=linux")).items
    launch_stops = (await read(Items[LaunchStop], provisioner, "/launch-stops")).items
    sources = (await read(Items[DemandSource], provisioner, "/demand")).items
    facts = Facts(now=after(2), configs=configs, launch_stops=launch_stops, decisions=decisions)
    explained = of_pool(pool, facts, sources=sources, calculator="")
    (decision,) = decisions
    assert decision.details.configs
    note = decision.details.configs[revision_id()]
    assert explained.sentences(after(2)) == [
        f"Pool linux: its only active launch config is tripped: {revision_id()} "
        "(2 capacity errors; next probe in 10 s).",
        f"Since {after(0):%H:%M:%S}, 2 s ago.",
        "Effect: 5 tasks pending, 2 claimed; 0 of 7 wanted workers serving (0 registered); only probes are launched.",
        "Remedy: none needed: Slipway probes by itself and launches again after the first success; "
        f"`slipway lc show {revision_id()}` lists the failures.",
        f"Last decision at {after(0):%H:%M:%S}: {decision.reason}.",
        f"  {revision_id()} got nothing: {note.reason} (weight {note.weight:.3g}, room for {note.room}).",
    ]


async def test_of_a_pool_whose_account_lacks_a_permission(provisioner: Provisioner) -> None:
    """By the findings of the account's last check, as the provisioner answers them."""
    await provisioner.declare()
    denied = Finding(
        kind="permission",
        subject="ec2:RunInstances",
        state=CheckState.PROBLEM,
        message="denied",
        remedy="allow ec2:RunInstances in the policy of the caller",
    )
    async with provisioner.database.acquire() as db:
        begun = await account_checks.begin(db, "sim-a")
        assert begun is not None
        async with db.transaction():
            await apply.record(db, "sim-a", [denied], begun.began_at)
    (listed,) = (await read(Items[Account], provisioner, "/accounts")).items
    assert listed.problems == 1
    account = await read(AccountDetails, provisioner, "/accounts/sim-a")
    pool = await read(Pool, provisioner, "/pools/linux")
    configs = (await read(Items[LaunchConfig], provisioner, "/launch-configs?pool=linux")).items
    found = of_pool(pool, Facts(now=after(2), configs=configs, accounts=[account]), sources=[], calculator="")
    assert (found.cause, found.remedy) == (
        "account sim-a, permission ec2:RunInstances: denied",
        "allow ec2:RunInstances in the policy of the caller",
    )
