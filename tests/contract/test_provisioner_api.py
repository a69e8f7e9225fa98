"""What the provisioner answers to people: the fields that the command line and the live screen are built on."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from slipway_common.events.lease import LeaseRequested
from slipway_common.events.weight import StageHealth
from slipway_common.events.worker import Outcome, Result, Scope, Stage
from slipway_local.postgres import EmbeddedPostgres
from slipway_provisioner.loops import plan
from slipway_provisioner.providers.port import Refused
from tests.provisioner import Provisioner, declared, provisioner_on, report, weight


@pytest.fixture
async def provisioner(postgres: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Provisioner]:
    monkeypatch.setattr(plan, "COALESCE_SECONDS", 0.0)
    async with provisioner_on(postgres) as provisioner:
        yield provisioner


def refused() -> Refused:
    outcome = Outcome(Stage.LAUNCH, Result.FAILED, Scope.CAPACITY, "", "InsufficientCapacity")
    return Refused(outcome, "no", throttled=False, retry_after_seconds=None)


async def read(provisioner: Provisioner, path: str, status: int = 200) -> Any:
    async with provisioner.client() as client:
        answer = await client.get(path)
    assert answer.status_code == status, answer.text
    return answer.json()


async def test_what_a_pool_misses_and_since_when(provisioner: Provisioner) -> None:
    """By the newest decision, unknown before it; by the fresh sources that have tasks pending."""
    await provisioner.declare(declared(max_capacity=3))
    pool = await read(provisioner, "/pools/linux")
    assert {name: pool[name] for name in ("needed", "wanted", "oldest_wait_seconds")} == dict.fromkeys(
        ("needed", "wanted", "oldest_wait_seconds")
    )
    await provisioner.demand(report(5), report(0, 2, source="busy"))
    await provisioner.plan()
    await provisioner.set_clock(40)
    pool = await read(provisioner, "/pools/linux")
    shown = ("pending", "claimed", "wanted", "needed", "serving", "running", "leaving", "oldest_wait_seconds")
    assert {name: pool[name] for name in shown} == {
        "pending": 5, "claimed": 2, "wanted": 3, "needed": 3, "serving": 3, "running": 0, "leaving": 0,
        "oldest_wait_seconds": 40.0,
    }  # fmt: skip
    await provisioner.demand(report(4, at=50, source="ahead"))
    await provisioner.plan()
    assert (await read(provisioner, "/pools/linux"))["needed"] == 0
    await provisioner.set_clock(301)
    assert (await read(provisioner, "/pools/linux"))["oldest_wait_seconds"] == 251.0
    await provisioner.set_clock(351)
    assert (await read(provisioner, "/pools"))["items"][0]["oldest_wait_seconds"] is None


async def test_the_wait_of_a_report_from_the_future(provisioner: Provisioner) -> None:
    """Has not begun."""
    await provisioner.declare()
    await provisioner.demand(report(1, at=30))
    assert (await read(provisioner, "/pools/linux"))["oldest_wait_seconds"] == 0.0


async def test_how_a_config_does(provisioner: Provisioner) -> None:
    """What is under way and not folded against each window; launches accepted and failures, over its life."""
    provisioner.cloud.script.append(refused())
    await provisioner.admitted(3)
    await provisioner.launch()
    (config,) = (await read(provisioner, "/launch-configs"))["items"]
    assert (config["ok"], config["failed"], config["probe_ready"], config["state_by"]) == (0, 3, False, "")
    assert config["stages"]["launch"] == {"in_flight": 0, "unfolded": 3, "window": 64}
    await provisioner.plan()
    (request,) = await provisioner.told(LeaseRequested)
    await provisioner.leases(provisioner.granted(request))
    await provisioner.launch()
    await provisioner.register("i-0001", (await provisioner.workers())[-1].batch_id)
    health = StageHealth(probability=0.9, successes=0, failures=0, window=7, failures_folded=1)
    closed: dict[str, Any] = {"state": "closed", "closed_stage": "launch", "probe_permit": 1, "probe_ready": True}
    await provisioner.weights(weight(stages={"launch": health}, reason="closed", **closed))
    (config,) = (await read(provisioner, "/launch-configs?pool=linux"))["items"]
    assert (config["ok"], config["failed"], config["probe_ready"], config["circuit"]) == (3, 3, True, "closed")
    assert (config["starting"], config["running"]) == (2, 1)
    assert config["stages"] == {
        "launch": {"in_flight": 0, "unfolded": 2, "window": 7},
        "boot": {"in_flight": 2, "unfolded": 0, "window": 64},
        "claim": {"in_flight": 1, "unfolded": 0, "window": 1000},
    }
