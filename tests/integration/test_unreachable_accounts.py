"""Accounts that do not answer: others launch in their place, a person may retire them, and nothing is left behind."""

from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest

from slipway_api.events.alert import Alert, AlertRaised, AlertResolved
from slipway_api.events.lease import LeaseRequested
from slipway_api.events.worker import Outcome, Result, Scope, Stage, WorkerLost, WorkerStopping
from slipway_common.base.ids import new_id
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_provisioner.domain.cloud import Account, Instance, InstanceState
from slipway_provisioner.providers.port import Accepted, CreateRequest, OutcomeUnknown, Refused
from tests.support.cloud import START, Cloud
from tests.support.provisioner import Provisioner, administrator, declared, provisioner_on, report

DEAD = "sim-a"


class Clouds(Cloud):
    """Accounts of which the `dead` ones do not answer. A call to one `takes_effect` or not."""

    def __init__(self) -> None:
        super().__init__()
        self.dead: set[str] = set()
        self.throttled = False
        self.takes_effect = True
        self.of: dict[str, set[str]] = defaultdict(set)
        self.listed: list[str] = []

    def _check(self, account: Account) -> None:
        if account.id in self.dead:
            raise OutcomeUnknown(f"{account.id} does not answer", throttled=self.throttled)

    async def create(self, account: Account, request: CreateRequest) -> Sequence[str] | Accepted:
        if self.throttled and account.id in self.dead:
            self.calls.append(request)
            raise Refused(Outcome(Stage.LAUNCH, Result.FAILED, Scope.LIMITER, account.id, "Throttled"), "slow down")
        if self.takes_effect or account.id not in self.dead:
            reply = await super().create(account, request)
        self._check(account)
        return reply

    def make(self, request: CreateRequest, number: int) -> list[str]:
        ids = super().make(request, number)
        self.of["sim-b" if request.config["zone"] == "zone-b" else DEAD].update(ids)
        return ids

    async def pages(self, account: Account, *, batch_id: str | None = None) -> AsyncIterator[Sequence[Instance]]:
        self._check(account)
        self.listed.append(account.id)
        async for page in super().pages(account, batch_id=batch_id):
            yield [i for i in page if i.id in self.of[account.id]]

    async def exists(self, account: Account, instance_id: str, *, launched_at: datetime | None) -> bool:
        self._check(account)
        return await super().exists(account, instance_id, launched_at=launched_at)

    async def terminate(self, account: Account, instance_ids: Sequence[str]) -> None:
        self._check(account)
        await super().terminate(account, instance_ids)

    async def identity(self, account: Account) -> str:
        self._check(account)
        return account.identity

    async def health(self, account: Account) -> None:
        self._check(account)


@pytest.fixture
def clouds() -> Clouds:
    return Clouds()


@pytest.fixture
async def provisioner(postgres: EmbeddedPostgres, clouds: Clouds) -> AsyncIterator[Provisioner]:
    """A pool of six workers at most, with a launch config in each of two accounts, and four tasks."""
    async with provisioner_on(postgres, clouds) as provisioner:
        body = declared("zone-a", "zone-b", max_capacity=6)
        body["accounts"].append(body["accounts"][0] | {"id": "sim-b", "identity": "sim-b"})
        body["worker_pools"][0]["launch_configs"][1]["account"] = "sim-b"
        await provisioner.declare(body)
        await provisioner.trust()
        await provisioner.demand(report(4, valid_for_seconds=80_000))
        yield provisioner


async def launch(provisioner: Provisioner) -> None:
    """Plan, admit and call until nothing more is needed."""
    await provisioner.plan()
    await provisioner.resend_requests()
    now = await provisioner.database.fetchval("SELECT slipway_clock()")
    for request in await provisioner.published(LeaseRequested):
        await provisioner.leases(provisioner.granted(request, expires_at=now + timedelta(seconds=180)))
    await provisioner.launch()


async def states(provisioner: Provisioner) -> dict[str, dict[str, int]]:
    """Number of live workers by account and state."""
    found: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for worker in await provisioner.workers():
        if worker.ended_at is None:
            found[worker.account_id][worker.state.value] += 1
    return {account: dict(by_state) for account, by_state in found.items()}


async def die(provisioner: Provisioner, clouds: Clouds) -> None:
    """Let the account stop answering before its calls, until it counts as unreachable."""
    clouds.dead.add(DEAD)
    await launch(provisioner)
    waiting = {DEAD: {"launching": 2}, "sim-b": {"starting": 2}}
    assert await states(provisioner) == waiting
    await provisioner.set_clock(60)
    await provisioner.reap()
    assert await states(provisioner) == waiting
    await provisioner.set_clock(200)
    await provisioner.reap()


async def alerts(provisioner: Provisioner) -> list[Alert]:
    """Alerts on accounts since the last call for any event."""
    return [alert for alert in await provisioner.published(Alert) if alert.subject_kind == "account"]


async def account_of(client: httpx2.AsyncClient) -> dict[str, Any]:
    found: dict[str, Any] = (await client.get(f"/accounts/{DEAD}")).json()
    return found


async def test_others_launch_in_its_place(provisioner: Provisioner, clouds: Clouds) -> None:
    """Its unknown calls are given up and fill no window. No stage has ended; nothing starts there."""
    await die(provisioner, clouds)
    events = await provisioner.events()
    assert [event.outcome for event in events if isinstance(event, WorkerStopping)] == [None, None]
    (raised,) = [event for event in events if isinstance(event, AlertRaised)]
    assert (raised.kind, raised.subject_id) == ("account-unreachable", DEAD)
    await provisioner.database.execute("UPDATE shared_window SET size = 4 WHERE stage = 'boot'")  # of their image
    await launch(provisioner)
    assert await states(provisioner) == {DEAD: {"stopping": 2}, "sim-b": {"starting": 4}}
    assert [call.config["zone"] for call in clouds.calls[2:]] == ["zone-b"]
    await provisioner.reap()
    assert await alerts(provisioner) == []


async def test_it_answers_again(provisioner: Provisioner, clouds: Clouds) -> None:
    """Machines that its calls created meanwhile are terminated, since they were replaced."""
    await die(provisioner, clouds)
    await launch(provisioner)
    clouds.dead.clear()
    await provisioner.set_clock(300)
    await provisioner.events()
    await provisioner.reap()
    assert [type(alert) for alert in await alerts(provisioner)] == [AlertResolved]
    await provisioner.resolve()
    await provisioner.terminate_instances()
    assert set(clouds.terminated) == clouds.of[DEAD] != set()
    await provisioner.set_clock(400)
    await provisioner.reap()
    await launch(provisioner)
    assert await states(provisioner) == {"sim-b": {"starting": 4}}


async def test_workers_that_wait_for_its_calls(provisioner: Provisioner, clouds: Clouds) -> None:
    """Admitted intents are cancelled, since no call may start for them."""
    await provisioner.plan()
    for request in await provisioner.published(LeaseRequested):
        await provisioner.leases(provisioner.granted(request))
    await provisioner.database.execute("UPDATE account SET unreachable = true WHERE id = $1", DEAD)
    await provisioner.launch()
    assert await states(provisioner) == {DEAD: {"requested": 2}, "sim-b": {"starting": 2}}
    await provisioner.sweep_now()
    await launch(provisioner)
    assert await states(provisioner) == {"sim-b": {"starting": 4}}


async def test_one_unanswered_call_is_not_the_end(provisioner: Provisioner, clouds: Clouds) -> None:
    """An answer of any kind counts: the time without one begins anew."""
    clouds.dead.add(DEAD)
    await launch(provisioner)
    clouds.dead.clear()
    await provisioner.set_clock(60)
    await provisioner.reap()
    clouds.dead.add(DEAD)
    await provisioner.set_clock(150)
    await provisioner.reap()
    assert await states(provisioner) == {DEAD: {"launching": 2}, "sim-b": {"starting": 2}}


async def test_a_launch_is_an_answer(provisioner: Provisioner, clouds: Clouds) -> None:
    """That ends the time without one."""
    clouds.dead.add(DEAD)
    await launch(provisioner)
    assert await waiting_accounts(provisioner) == [DEAD]
    clouds.dead.clear()
    await provisioner.demand(report(6, at=1))
    await provisioner.plan()
    await launch(provisioner)
    assert await waiting_accounts(provisioner) == []


async def waiting_accounts(provisioner: Provisioner) -> list[str]:
    """Accounts that have not answered since a call was left unanswered."""
    rows = await provisioner.database.fetch("SELECT id FROM account WHERE unanswered_since IS NOT NULL ORDER BY id")
    return [row["id"] for row in rows]


async def test_a_throttled_call_is_an_answer(provisioner: Provisioner, clouds: Clouds) -> None:
    """An account that throttles listings for an hour goes on launching."""
    clouds.dead.add(DEAD)
    await launch(provisioner)
    clouds.throttled = True
    for at in range(60, 3600, 600):
        await provisioner.set_clock(at)
        await provisioner.reap()
    assert await states(provisioner) == {DEAD: {"launching": 2}, "sim-b": {"starting": 2}}
    assert await alerts(provisioner) == []


async def test_an_account_that_throttles_calls_is_a_notice_until_it_throttles_none(
    provisioner: Provisioner, clouds: Clouds
) -> None:
    """After a minute. Its pool and the account say so too."""
    clouds.dead.add(DEAD)
    clouds.throttled = True
    for at in (0, 30, 59):
        assert await kinds_after_launches(provisioner, at) == [], at
    assert await kinds_after_launches(provisioner, 70) == [AlertRaised]
    async with provisioner.client() as client:
        found = await account_of(client)
        assert (await throttled_of(client), found["throttled"], found["throttled_calls"]) == ([DEAD], True, 4)
        clouds.dead.clear()
        for at in (100, 129):
            assert await kinds_after_launches(provisioner, at) == [], at
        assert await kinds_after_launches(provisioner, 131) == [AlertResolved]
        assert (await throttled_of(client), (await account_of(client))["throttled"]) == ([], False)


async def kinds_after_launches(provisioner: Provisioner, at: float) -> list[type[Alert]]:
    """Alerts on accounts after launches at a time, and a pass over deadlines."""
    await provisioner.set_clock(at)
    await launch(provisioner)
    await provisioner.expire()
    return [type(alert) for alert in await alerts(provisioner)]


async def throttled_of(client: httpx2.AsyncClient) -> list[str]:
    (pool,) = (await client.get("/pools")).json()["items"]
    found: list[str] = pool["throttled"]
    return found


async def test_calls_that_are_throttled_now_and_then_are_none(provisioner: Provisioner, clouds: Clouds) -> None:
    clouds.throttled = True
    clouds.dead.add(DEAD)
    for at in range(0, 600, 61):
        assert await kinds_after_launches(provisioner, at) == []
    assert len(clouds.calls) > 3


async def test_an_outage_of_ours_makes_no_account_unreachable(provisioner: Provisioner, clouds: Clouds) -> None:
    """Only uptime counts: nobody called the account meanwhile."""
    await provisioner.expire()
    clouds.dead.add(DEAD)
    await launch(provisioner)
    await provisioner.jump_clock(1200)
    await provisioner.expire()
    await provisioner.reap()
    assert await states(provisioner) == {DEAD: {"launching": 2}, "sim-b": {"starting": 2}}


async def test_retire(provisioner: Provisioner, clouds: Clouds, tmp_path: Path) -> None:
    """Open calls are settled without evidence, their room is free, and they are listed until a pass over the reinstated
    account. Before, they keep the pool at its maximum."""
    await provisioner.database.execute("UPDATE worker_pool SET max_capacity = 4")
    async with administrator(provisioner, tmp_path, ["accounts:write", "read"]) as client:
        retire = {"reason": "closed by its owner"}
        answer = await client.post(f"/accounts/{DEAD}/retire", json=retire)
        assert (answer.status_code, answer.json().get("type")) == (409, "urn:slipway:problem:account-reachable")
        await die(provisioner, clouds)
        await launch(provisioner)
        assert await states(provisioner) == {DEAD: {"stopping": 2}, "sim-b": {"starting": 2}}
        answer = await client.post(f"/accounts/{DEAD}/retire", json=retire)
        assert (answer.status_code, answer.json()["may_still_run"], answer.json()["was_retired"]) == (200, 2, False)
        assert (await client.post(f"/accounts/{DEAD}/retire", json=retire)).json()["was_retired"] is True
        await launch(provisioner)
        assert await states(provisioner) == {"sim-b": {"starting": 4}}
        batches = [worker.batch_id for worker in await provisioner.workers() if worker.account_id == DEAD]
        machines = (await account_of(client))["machines"]
        assert [(row["batch_id"], row["instance_id"]) for row in machines] == [(id_, None) for id_ in batches]

        clouds.dead.clear()
        clouds.listed.clear()
        await provisioner.set_clock(300)
        await provisioner.reap()
        await provisioner.resolve()
        assert DEAD not in clouds.listed
        await client.post(f"/accounts/{DEAD}/reinstate", json={"reason": "reopened"})
        audit = (await client.get("/audit", params={"subject": DEAD, "limit": 2})).json()["items"]
        assert [(row["action"], row["by"], row["reason"]) for row in audit] == [
            ("reinstate", "admin", "reopened"),
            ("retire", "admin", "closed by its owner"),
        ]
        await provisioner.set_clock(400)
        await provisioner.reap()
        assert set(clouds.terminated) == clouds.of[DEAD] != set()
        await provisioner.set_clock(500)
        await provisioner.reap()
        found = await account_of(client)
        assert (found["machines"], found["retired"], found["unreachable"]) == ([], False, False)


@pytest.mark.parametrize("removed", [False, True])
async def test_nothing_is_asked_about_an_account_that_is_listed_no_more(
    provisioner: Provisioner, clouds: Clouds, tmp_path: Path, removed: bool
) -> None:
    """Orphan and missing instances of a retired or a deleted account are forgotten with their alert; those of others
    are not."""
    await launch(provisioner)
    for account in (DEAD, "sim-b"):
        name = f"i-{account}"
        clouds.live[name] = Instance(id=name, batch_id=new_id(), created_at=START, state=InstanceState.RUNNING)
        clouds.of[account].add(name)
    await provisioner.set_clock(100)
    await provisioner.reap()
    missing = "INSERT INTO missing_instance (account_id, worker_id) SELECT account_id, id FROM worker"
    await provisioner.database.execute(f"{missing} WHERE account_id = $1", DEAD)
    assert {alert.kind for alert in await alerts(provisioner)} == {"orphans-kept"}
    assert await kept(provisioner) == [DEAD, "sim-b"]
    if removed:
        statement = "UPDATE missing_instance SET account_id = 'gone'; UPDATE orphan_instance SET account_id = 'gone' "
        await provisioner.database.execute(f"{statement} WHERE account_id = '{DEAD}'")
        await provisioner.expire()
    else:
        await provisioner.database.execute("UPDATE account SET unreachable = true WHERE id = $1", DEAD)
        async with administrator(provisioner, tmp_path, ["accounts:write", "read"]) as client:
            await client.post(f"/accounts/{DEAD}/retire", json={"reason": "closed"})
    assert await kept(provisioner) == ["sim-b"]
    assert await provisioner.database.fetchval("SELECT count(*) FROM missing_instance") == 0
    resolved = [alert.subject_id for alert in await alerts(provisioner) if alert.kind == "orphans-kept"]
    assert resolved == ["gone" if removed else DEAD]
    assert clouds.terminated == []


async def kept(provisioner: Provisioner) -> list[str]:
    """Accounts of orphan instances that wait for a person."""
    async with provisioner.client() as client:
        return [row["account_id"] for row in (await client.get("/recovery")).json()["orphans"]]


async def test_leaving_workers_of_a_retired_account(provisioner: Provisioner, clouds: Clouds, tmp_path: Path) -> None:
    """They are settled as lost once they have had the grace period; running ones go on."""
    await launch(provisioner)
    booting, running = [worker for worker in await provisioner.workers() if worker.account_id == DEAD]
    await provisioner.register(running.instance_id or "", running.batch_id)
    clouds.dead.add(DEAD)
    await provisioner.set_clock(60)
    await provisioner.reap()
    await provisioner.set_clock(200)
    await provisioner.reap()
    await provisioner.events()
    async with administrator(provisioner, tmp_path, ["accounts:write", "read"]) as client:
        await client.post(f"/accounts/{DEAD}/retire", json={"reason": "closed"})
        assert (await states(provisioner))[DEAD] == {"running": 1, "starting": 1}
        await provisioner.database.execute("UPDATE worker SET last_seen_at = $1", booting.requested_at)
        await provisioner.set_clock(901)
        await provisioner.expire()
        lost = await provisioner.published(WorkerLost)
        assert [(event.worker_id, event.outcome) for event in lost] == [(booting.id, None)]
        await provisioner.set_clock(1022)
        await provisioner.expire()
        assert [event.worker_id for event in await provisioner.published(WorkerLost)] == [running.id]
        machines = (await account_of(client))["machines"]
        assert {row["instance_id"] for row in machines} == {booting.instance_id, running.instance_id}
        assert clouds.terminated == []


async def test_an_account_that_is_reinstated_in_vain(provisioner: Provisioner, clouds: Clouds, tmp_path: Path) -> None:
    """The alert is raised again until it answers. What it left a month ago is ended then, since its batch is known."""
    await die(provisioner, clouds)
    async with administrator(provisioner, tmp_path, ["accounts:write", "read"]) as client:
        await client.post(f"/accounts/{DEAD}/retire", json={"reason": "closed"})
        assert [type(alert) for alert in await alerts(provisioner)] == [AlertRaised, AlertResolved]
        await provisioner.set_clock(30 * 86400)
        await provisioner.prune()
        await client.post(f"/accounts/{DEAD}/reinstate", json={"reason": "reopened"})
        assert [type(alert) for alert in await alerts(provisioner)] == [AlertRaised]
    clouds.dead.clear()
    await provisioner.set_clock(30 * 86400 + 100)
    await provisioner.reap()
    assert [type(alert) for alert in await alerts(provisioner)] == [AlertResolved]
    assert set(clouds.terminated) == clouds.of[DEAD] != set()


@pytest.mark.parametrize("command", ["retire", "reinstate", "confirm-unresponsive"])
async def test_refused_commands(provisioner: Provisioner, tmp_path: Path, command: str) -> None:
    async with administrator(provisioner, tmp_path, ["accounts:write", "read"]) as client:
        answer = await client.post(f"/accounts/nobody/{command}", json={"reason": "test"})
        assert (answer.status_code, answer.json()["type"]) == (404, "urn:slipway:problem:unknown-account")
        assert (await client.get("/accounts/nobody")).status_code == 404
    async with administrator(provisioner, tmp_path, ["pools:write"]) as client:
        assert (await client.post(f"/accounts/{DEAD}/{command}", json={"reason": "test"})).status_code == 403


async def test_reinstating_what_is_not_retired(provisioner: Provisioner, tmp_path: Path) -> None:
    async with administrator(provisioner, tmp_path, ["accounts:write", "read"]) as client:
        answer = await client.post(f"/accounts/{DEAD}/reinstate", json={"reason": "test"})
        assert (answer.status_code, answer.json()["type"]) == (409, "urn:slipway:problem:account-not-retired")


async def test_accounts_are_listed(provisioner: Provisioner) -> None:
    await launch(provisioner)
    async with provisioner.client() as client:
        items = (await client.get("/accounts")).json()["items"]
    assert [(item["id"], item["serving"], item["unknown_calls"]) for item in items] == [
        ("sim-a", 2, 0),
        ("sim-b", 2, 0),
    ]
