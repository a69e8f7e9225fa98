"""The sentences of `slipway why` from what a real provisioner answers: the fields that they are made of are there."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from slipway_client.why import of_pool, of_worker
from slipway_common.events.weight import StageHealth
from slipway_local.postgres import EmbeddedPostgres
from slipway_provisioner.loops import plan
from tests.provisioner import Provisioner, after, provisioner_on, report, weight


@pytest.fixture
async def provisioner(postgres: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Provisioner]:
    monkeypatch.setattr(plan, "COALESCE_SECONDS", 0.0)
    async with provisioner_on(postgres) as provisioner:
        yield provisioner


async def read(provisioner: Provisioner, path: str) -> Any:
    async with provisioner.client() as client:
        answer = await client.get(path)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_of_a_worker(provisioner: Provisioner) -> None:
    """From its decision to its task, at the times of the database."""
    (started,) = await provisioner.starting()
    await provisioner.set_clock(30)
    registered = await provisioner.register(started.instance_id or "", started.batch_id)
    async with provisioner.client(token=registered.json()["token"]) as client:
        await client.post(
            f"/workers/{started.id}/claimed", json={"task_id": "t-1", "source": "q", "at": after(30).isoformat()}
        )
    worker = await read(provisioner, f"/workers/{started.id}")
    decision = await read(provisioner, f"/decisions/{worker['decision_id']}")
    assert of_worker(worker, decision, [], now=after(30)) == [
        f"Worker {started.id} of pool linux is running on zone-a (account {started.account_id}).",
        f"It was asked for at {after(0):%H:%M:%S}: 1 needed, since 1 task wanted 1 and 0 served "
        f"(decision {decision['id']}).",
        "→ zone-a got 1: weight 1, room for 64.",
        f"It was admitted by lease pool {worker['lease']['lease_pool_id']} (fencing token 1): 0 s from its request to "
        "the call.",
        f"The provider was called at {after(0):%H:%M:%S} and said yes 0 s later: instance i-0001.",
        f"It booted in 30 s: registered at {after(30):%H:%M:%S}.",
        "It took 1 task, the first 0 s after it registered; now task t-1 of q.",
    ]


async def test_of_a_pool(provisioner: Provisioner) -> None:
    """What it wants, who got nothing and why, and the circuit that binds."""
    await provisioner.declare()
    health = StageHealth(probability=0.1, successes=0, failures=2, window=8, failures_folded=0)
    await provisioner.weights(
        weight(
            stages={"launch": health},
            state="closed",
            closed_stage="launch",
            probe_permit=1,
            next_probe_at=after(12),
            reason="zone-a: closed, 2 capacity errors",
        )
    )
    await provisioner.demand(report(5, 2))
    await provisioner.plan()
    facts = [
        await read(provisioner, path)
        for path in ("/pools/linux", "/pools/linux/decisions", "/launch-configs?pool=linux", "/brakes")
    ]
    pool, decisions, configs, brakes = (fact.get("items", fact) for fact in facts)
    told = of_pool(pool, decisions, configs, brakes, [], calculator="", now=after(2))
    bounds = f"between {pool['min_capacity']} and {pool['max_capacity']}"
    assert told == [
        f"Pool linux wants 7 workers ({bounds}) for 5 tasks pending and 2 running, some for 0 s.",
        "It has 0 (0 of them registered) and 0 leaving.",
        f"Last decision, at {after(0):%H:%M:%S}: 7 needed, but no config may launch now.",
        "  zone-a got nothing: closed, 2 capacity errors; no probe is due "
        f"(weight {configs[0]['weight']:.3g}, room for 8).",
        "zone-a is closed: 2 capacity errors; next probe in 10 s.",
    ]
