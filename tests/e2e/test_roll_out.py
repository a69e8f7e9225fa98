"""Roll-outs on a deployment of real processes: natural, rolling, now, and the deadline of a drain.

One deployment runs all of them, each in a pool of its own; machines and their user data are those of the simulator's
ledger. At the end the whole run is checked.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final

import asyncpg
import httpx2
import pytest

from slipway_api.events.alert import Alert, AlertRaised, AlertResolved
from slipway_common.base.ids import new_secret
from slipway_common.declaration.models import Declaration
from slipway_local.check import evidence, path_check, roll_out
from slipway_local.demo.deployment import Deployment
from slipway_local.servers.supervisor import Supervisor
from slipway_simulator import facts, ledger
from tests.support.accounts import simulated_account
from tests.support.folders import temporary_folder
from tests.support.harness import until

SPEED: Final = 40.0
SECONDS: Final = {"stop_grace_seconds": 40.0, "reap_seconds": 40.0}
SCENARIO: Final = {
    "seed": 3,
    "speed": SPEED,
    "accounts": {"*": {}},
    "visibility_seconds": 5,
    "boot_seconds_median": 20.0,
}
LEAKED: Final = f"leaked-{new_secret()}"
DRAIN_SECONDS: Final = 2.5
LONG_SECONDS: Final = 4000.0  # no task ends before its machine is terminated, however slow this one is
PATIENCE_SECONDS: Final = 120.0  # 3 to 25 on an idle machine
# Pool → its maximum and the settings of its one launch config.
POOLS: Final[dict[str, tuple[int, dict[str, Any]]]] = {
    "natural": (10, {"tasks_per_worker": 2}),
    "rolling": (16, {"tasks_per_worker": 1}),
    "now": (6, {"api_token": LEAKED}),
    "kept": (3, {}),
    "ended": (3, {}),
}


def declared() -> Declaration:
    pools = [
        {"id": pool, "max_capacity": maximum, "launch_configs": [launch_config(f"{pool}-a", settings)]}
        for pool, (maximum, settings) in POOLS.items()
    ]
    lease_pool = {
        "id": "acc",
        "limit": 60,
        "hold_seconds": 1200 / SPEED,
        "ttl_seconds": 300 / SPEED,
        "reserve_seconds": 180 / SPEED,
        "pacing": "off",
    }
    return Declaration.model_validate(
        {"version": 1, "lease_pools": [lease_pool], "accounts": [simulated_account()], "worker_pools": pools}
    )


def launch_config(name: str, settings: dict[str, Any]) -> dict[str, Any]:
    place = {"account": "acc", "zone": "zone-a", "instance_type": "m5", "image": "image-1"}
    return {"name": name, "settings": settings} | place


class System:
    """A running deployment, its rows, and its ledger."""

    def __init__(self, supervisor: Supervisor, deployment: Deployment, db: asyncpg.Connection) -> None:
        self.supervisor = supervisor
        self.deployment = deployment
        self.db = db

    @property
    def ledger(self) -> Sequence[facts.Fact]:
        return [*ledger.read(self.deployment.ledger)]

    async def change(
        self, pool: str, edit: Callable[[dict[str, Any]], None], *, confirm: bool = False, **how: Any
    ) -> None:
        """Change a pool as declared; dangerous changes are confirmed by their digest, if they should be."""
        url, headers = f"{self.deployment.url('provisioner')}/pools/{pool}", self._headers
        http = self.deployment.http
        read = (await http.get(url, headers=headers)).raise_for_status()
        spec = read.json()["declared"]
        edit(spec)
        headers |= {"If-Match": read.headers["etag"]}
        answer = await http.put(url, json=spec, headers=headers, params=how)
        if confirm:
            assert answer.status_code == 409, answer.text
            answer = await http.put(url, json=spec, headers=headers, params=how | {"confirm": answer.json()["digest"]})
        assert answer.status_code == 200, answer.text

    @property
    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.deployment.token}"}

    async def revisions(self, pool: str) -> dict[str, dict[str, Any]]:
        """Revisions of a pool's launch configs, in order of their creation."""
        query = "SELECT * FROM provisioner.launch_config WHERE pool_id = $1 ORDER BY declared_at"
        return {row["id"]: dict(row) for row in await self.db.fetch(query, pool)}

    async def evidence(self) -> evidence.Evidence:
        """Evidence of the run so far."""
        return await evidence.gather(
            ledger_path=self.deployment.ledger,
            kafka=self.deployment.kafka,
            prefix=self.deployment.prefix,
            database_url=self.deployment.database_url,
            settle_seconds=self.deployment.settle_seconds,
        )

    async def add_tasks(self, pool: str, count: int, seconds: float) -> None:
        """Add tasks of a length in product seconds."""
        task = {"pool_id": pool, "count": count, "duration_seconds": seconds}
        await self.deployment.call("POST", "simulator", "/tasks", task)

    @contextlib.asynccontextmanager
    async def demand(self, pool: str, per_second: float, seconds: float) -> AsyncIterator[None]:
        """Steady demand by tasks of a length in product seconds."""

        async def feed() -> None:
            while True:
                await self.add_tasks(pool, 1, seconds)
                await asyncio.sleep(1 / per_second)

        feeding = asyncio.create_task(feed())
        try:
            yield
        finally:
            feeding.cancel()
            await asyncio.wait({feeding})

    def live(self, pool: str) -> list[facts.InstanceCreated]:
        """Machines of a pool that have not been terminated."""
        found = self.ledger
        ended = {fact.instance_id for fact in found if isinstance(fact, facts.Terminated)}
        return [
            fact
            for fact in found
            if isinstance(fact, facts.InstanceCreated)
            and fact.config.startswith(f"{pool}-")
            and fact.instance_id not in ended
        ]

    def busy(self, pool: str) -> set[str]:
        """Machines that have a task of a pool."""
        busy: set[str] = set()
        for fact in self.ledger:
            if isinstance(fact, facts.TaskStarted) and fact.pool_id == pool:
                busy.add(fact.instance_id)
            elif isinstance(fact, facts.TaskEnded):
                busy.discard(fact.instance_id)
        return busy

    async def ask(self, instance_id: str) -> dict[str, Any]:
        """Answer to the worker on this machine that asks whether it should terminate."""
        registered = next(
            fact for fact in self.ledger if isinstance(fact, facts.Registered) and fact.instance_id == instance_id
        )
        url = f"{self.deployment.url('provisioner')}/workers/{registered.worker_id}/should-terminate"
        answer = await self.deployment.http.get(url, headers={"Authorization": f"Bearer {registered.token}"})
        told: dict[str, Any] = answer.raise_for_status().json()
        return told


@pytest.fixture(scope="module")
async def system() -> AsyncIterator[System]:
    """A whole deployment with idle pools, as processes of their own."""
    with temporary_folder() as folder:
        async with Supervisor() as supervisor:
            deployment = Deployment(supervisor, folder, speed=SPEED, seconds=SECONDS)
            await deployment.start()
            await deployment.apply(declared())
            await deployment.call("POST", "simulator", "/scenario", SCENARIO)
            db = await asyncpg.connect(deployment.database_url)
            try:
                yield System(supervisor, deployment, db)
            finally:
                await db.close()
                await deployment.remove()


async def _are(found: Callable[[], Awaitable[Any]], expected: Any) -> bool:
    return bool(await found() == expected)


async def eventually(condition: Callable[[], Any], what: str) -> None:
    await until(condition, what, seconds=PATIENCE_SECONDS)


def image(name: str) -> Callable[[dict[str, Any]], None]:
    """Change of the image of all launch configs."""

    def edit(spec: dict[str, Any]) -> None:
        for config in spec["launch_configs"]:
            config["image"] = name

    return edit


def told_of(revision: str) -> dict[str, str]:
    config, _, hash_ = revision.partition("@")
    return {"config": config, "revision": hash_}


async def test_natural(system: System) -> None:
    """The old revision launches until the new one is proven; then it drains, and its last worker archives it."""
    async with system.demand("natural", per_second=5, seconds=20.0):
        await eventually(lambda: len(system.busy("natural")) >= 2, "workers are busy")
        await system.change("natural", image("image-2"), replace="natural")
        old, new = await system.revisions("natural")
        assert old.partition("@")[0] == new.partition("@")[0] == "natural-a"
        rows = await system.revisions("natural")
        assert (rows[old]["replaced_by"], rows[new]["state"]) == ("natural", "active")

        async def is_archived() -> bool:
            return bool((await system.revisions("natural"))[old]["state"] == "archived")

        await eventually(is_archived, "the old revision is archived")
        rows = await system.revisions("natural")
        assert rows[new]["proven_at"] <= rows[old]["drain_from"], "it drained before its replacement was proven"
        await eventually(
            lambda: {made.config for made in system.live("natural")} == {new}, "only new machines are left"
        )
        wanted = told_of(new) | {"terminate": False, "state": "active", "deadline": None}

        async def stays() -> bool:
            """True if a busy worker is told to stay: one that has worked off its tasks is not asked in time."""
            for instance_id in system.busy("natural"):
                with contextlib.suppress(httpx2.HTTPStatusError):
                    asked = await system.ask(instance_id)
                    return asked | wanted | {"current": wanted["revision"]} == asked
            return False

        await eventually(stays, "a new worker stays")


async def test_rolling(system: System) -> None:
    """Until the new revision is proven, most launches are of the old one."""
    async with system.demand("rolling", per_second=12, seconds=10.0):
        await eventually(lambda: len(system.busy("rolling")) >= 2, "workers are busy")
        await system.change("rolling", image("image-2"), replace="rolling")
        old, new = await system.revisions("rolling")
        rows = await system.revisions("rolling")
        assert rows[old]["replaced_by"] == "rolling"
        began = rows[new]["declared_at"].timestamp()

        async def drains() -> bool:
            return bool((await system.revisions("rolling"))[old]["state"] != "active")

        await eventually(drains, "the old revision drains")
    until_proven = (await system.revisions("rolling"))[old]["drain_from"].timestamp()
    calls = [fact for fact in system.ledger if isinstance(fact, facts.Call) and began < fact.at < until_proven]
    launched = Counter({old: 0, new: 0}) + Counter({call.config: 0 for call in calls})
    for call in calls:
        launched[call.config] += call.count
    assert launched[old] > launched[new] > 0, launched


async def test_now_takes_a_leaked_secret_from_every_machine(system: System) -> None:
    """Although the provisioner is killed in the middle: no machine is left that was given the secret."""

    def with_secret() -> list[str]:
        return [made.instance_id for made in system.live("now") if LEAKED in str(made.user_data)]

    def edit(spec: dict[str, Any]) -> None:
        for config in spec["launch_configs"]:
            config["settings"]["api_token"] = "renewed"

    await system.add_tasks("now", 4, LONG_SECONDS)
    await eventually(lambda: len(system.busy("now")) == 4, "four workers are busy")
    busy = system.busy("now")
    assert set(with_secret()) == busy
    await system.change("now", edit, replace="now", drain_seconds=DRAIN_SECONDS)
    old, new = await system.revisions("now")
    asked = await system.ask(next(iter(busy)))
    assert asked | told_of(old) | {"terminate": True, "state": "draining"} == asked
    assert asked["deadline"] is not None
    assert asked["current"] == new.partition("@")[2]
    await system.supervisor.kill("provisioner")
    await system.supervisor.restart("provisioner")
    await eventually(lambda: not with_secret(), "no machine has the secret")
    by = {fact.instance_id: fact.by for fact in system.ledger if isinstance(fact, facts.Terminated)}
    assert {by[instance_id] for instance_id in busy} == {"api"}, "a task of an hour ended in time"

    def started_again() -> set[str]:
        started = [fact for fact in system.ledger if isinstance(fact, facts.TaskStarted) and fact.pool_id == "now"]
        return {fact.task_id for fact in started if fact.instance_id not in busy}

    await eventually(lambda: len(started_again()) == 4, "their tasks go on")
    assert {made.config for made in system.live("now")} == {new}
    for log in system.deployment.folder.glob("*.log"):
        assert LEAKED not in log.read_text(errors="replace"), f"{log.name} has the secret"


async def test_the_deadline_of_a_drain(system: System) -> None:
    """Workers that are left at four fifths of the time raise an alert; they are terminated only if that was asked."""
    for pool, seconds in (("kept", 1000.0), ("ended", LONG_SECONDS)):
        await system.add_tasks(pool, 2, seconds)
    await eventually(lambda: all(len(system.busy(pool)) == 2 for pool in ("kept", "ended")), "workers are busy")
    kept, ended = system.busy("kept"), system.busy("ended")
    for pool, terminate in (("kept", False), ("ended", True)):

        def edit(spec: dict[str, Any], name: str = f"{pool}-b") -> None:
            spec["launch_configs"] = [launch_config(name, {})]

        await system.change(pool, edit, confirm=True, drain_seconds=DRAIN_SECONDS, terminate=terminate)
    (old,) = [id_ for id_ in await system.revisions("kept") if id_.startswith("kept-a@")]
    asked = await system.ask(next(iter(kept)))
    assert asked | told_of(old) | {"terminate": True, "state": "draining"} == asked

    async def ended_is_archived() -> bool:
        rows = await system.revisions("ended")
        return any(id_.startswith("ended-a@") and row["state"] == "archived" for id_, row in rows.items())

    await eventually(ended_is_archived, "the terminated one is archived")
    by = {fact.instance_id: fact.by for fact in system.ledger if isinstance(fact, facts.Terminated)}
    assert {by[instance_id] for instance_id in ended} == {"api"}
    row = (await system.revisions("kept"))[old]
    assert (row["state"], row["drain_alerted"], kept <= system.busy("kept")) == ("draining", True, True)

    async def kept_is_archived() -> bool:
        return bool((await system.revisions("kept"))[old]["state"] == "archived")

    await eventually(kept_is_archived, "the other one is archived once its tasks are done")

    async def alerts() -> list[type[Any]]:
        published = [record.event for record in (await system.evidence()).published]
        return [type(event) for event in published if isinstance(event, Alert) and event.subject_id == old]

    await eventually(lambda: _are(alerts, [AlertRaised, AlertResolved]), "its alert was raised and resolved")


async def test_the_whole_run(system: System) -> None:
    """By ledger, topics and rows nothing is doubled or lost, and no draining revision launched anything."""
    await asyncio.sleep(system.deployment.settle_seconds)
    found = await system.evidence()
    drained = await system.db.fetch("SELECT id FROM provisioner.launch_config WHERE drain_from IS NOT NULL")
    assert path_check.judge(found).problems == []
    assert sorted(drain.config_id for drain in roll_out.drains(found)) == sorted(row["id"] for row in drained) != []
    assert LEAKED not in str(found.published)
