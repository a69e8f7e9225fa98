"""Checks of accounts: when each is due, what is stored and raised, and what people are answered."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from slipway_api.events.alert import Alert, AlertRaised, AlertResolved
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_provisioner.apply import account_checks as apply
from slipway_provisioner.domain.account_check import CheckState, Finding
from slipway_provisioner.domain.cloud import Account
from slipway_provisioner.domain.declaration import DeclarationRefused
from slipway_provisioner.domain.workspaces import Phase
from slipway_provisioner.loops.check_accounts import AccountChecks
from slipway_provisioner.providers.port import OutcomeUnknown
from slipway_provisioner.store import reachability
from tests.support.cloud import Cloud
from tests.support.provisioner import Provisioner, administrator, declared, provisioner_on
from tests.support.workspaces import OLD, ring, stored

FULL: Final = Finding(
    kind="subnet", subject="subnet-1", state=CheckState.PROBLEM, message="no free address", remedy="use a larger one"
)
FOREIGN: Final = "the credential belongs to other, not to sim-a"


class Checking(Cloud):
    """Provider with findings of its own, which keeps what it was asked. `down`: it does not answer."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, list[str]]] = []
        self.findings: list[Finding] = []
        self.down = False

    async def check(self, account: Account, configs: Sequence[Mapping[str, Any]]) -> Sequence[Finding]:
        self.asked.append((account.id, [config["name"] for config in configs]))
        if self.hold is not None:
            await self.hold.wait()
        if self.down:
            raise OutcomeUnknown(f"{account.id} does not answer")
        return [*await super().check(account, configs), *self.findings]

    def config_problem(self, account_settings: Mapping[str, Any], config_settings: Mapping[str, Any]) -> str:
        return "colour is unknown; remove it" if "colour" in config_settings else ""


@pytest.fixture
def cloud() -> Checking:
    return Checking()


@pytest.fixture
async def provisioner(postgres: EmbeddedPostgres, cloud: Checking) -> AsyncIterator[Provisioner]:
    async with provisioner_on(postgres, cloud) as provisioner:
        provisioner.app.state.providers = provisioner.providers
        yield provisioner


async def check(provisioner: Provisioner) -> int:
    """Checks that are due."""
    checks = AccountChecks(provisioner.settings, provisioner.providers)
    number = 0
    while await checks.step(provisioner.database):
        number += 1
    return number


async def alerts(provisioner: Provisioner) -> list[tuple[type[Alert], str]]:
    """Published alerts of checks, with their subjects."""
    found = [event for event in await provisioner.events() if isinstance(event, AlertRaised | AlertResolved)]
    return [(type(alert), alert.dedup_key.partition("sim-a/")[2]) for alert in found if alert.kind == "account-check"]


async def test_an_account_is_checked_at_once_and_then_hourly(provisioner: Provisioner, cloud: Checking) -> None:
    """Also once it was declared otherwise, or has a new launch config."""
    await provisioner.declare(declared())
    assert await check(provisioner) == 1
    assert await check(provisioner) == 0
    await provisioner.set_clock(3500)
    assert await check(provisioner) == 0
    await provisioner.set_clock(3700)
    assert await check(provisioner) == 1
    await provisioner.set_clock(3710)
    await provisioner.declare(declared(settings={"url": "http://other"}))
    assert await check(provisioner) == 1
    await provisioner.set_clock(3720)
    await provisioner.declare(declared("zone-a", "zone-b", settings={"url": "http://other"}))
    assert await check(provisioner) == 1
    assert await check(provisioner) == 0
    assert cloud.asked == [("sim-a", ["zone-a"])] * 3 + [("sim-a", ["zone-a", "zone-b"])]


async def test_a_problem_is_an_alert_until_a_check_finds_it_gone(provisioner: Provisioner, cloud: Checking) -> None:
    """One alert, however often it is found, and none for what could not be found out."""
    await provisioner.declare(declared())
    cloud.findings, cloud.reported_identity = [FULL], "other"
    await check(provisioner)
    assert await alerts(provisioner) == [(AlertRaised, "identity/"), (AlertRaised, "subnet/subnet-1")]
    await provisioner.set_clock(4000)
    await check(provisioner)
    cloud.down = True
    await provisioner.set_clock(8000)
    await check(provisioner)
    cloud.down, cloud.reported_identity = False, "sim-a"
    cloud.findings = [Finding(kind="subnet", state=CheckState.UNKNOWN, message="not checked")]
    await provisioner.set_clock(12000)
    await check(provisioner)
    assert await alerts(provisioner) == [(AlertResolved, "identity/")]
    cloud.findings = []
    await provisioner.set_clock(16000)
    await check(provisioner)
    assert await alerts(provisioner) == [(AlertResolved, "subnet/subnet-1")]
    assert len(cloud.asked) == 5


async def test_what_people_see(provisioner: Provisioner, cloud: Checking, tmp_path: Path) -> None:
    """The list has the time and the problems of the last check, also of an id with slashes."""
    body = declared()
    body["accounts"][0]["id"] = body["worker_pools"][0]["launch_configs"][0]["account"] = "ci/a"
    body["accounts"][0]["identity"] = "sim-a"
    await provisioner.declare(body)
    cloud.findings = [FULL]
    async with administrator(provisioner, tmp_path, ["accounts:write", "read"]) as client:
        before = (await client.get("/accounts")).json()["items"][0]
        assert (before["checked_at"], before["problems"], before["warnings"]) == (None, 0, 0)
        made = await client.post("/accounts/ci%2Fa/check", json={})
        assert made.status_code == 200
        checked = made.json()
        assert (checked["problems"], [finding["state"] for finding in checked["findings"]]) == (1, ["problem", "ok"])
        assert checked["findings"][0]["remedy"] == FULL.remedy
        shown = (await client.get("/accounts/ci%2Fa")).json()
        assert (shown["findings"], shown["checked_at"]) == (checked["findings"], checked["checked_at"])
        assert (await client.get("/accounts")).json()["items"][0]["problems"] == 1
        assert await check(provisioner) == 0, "it was just checked"
        assert (await client.post("/accounts/none/check", json={})).status_code == 404
        cloud.down = True
        silent = await client.post("/accounts/ci%2Fa/check", json={})
        assert (silent.status_code, silent.json()["type"]) == (503, "urn:slipway:problem:account-unanswered")
        assert "findings are those of the check before" in silent.json()["detail"]
        assert (await client.get("/accounts/ci%2Fa")).json()["findings"] == checked["findings"]
        await provisioner.database.execute("UPDATE account SET retired = true")
        retired = await client.post("/accounts/ci%2Fa/check", json={})
        assert (retired.status_code, retired.json()["type"]) == (409, "urn:slipway:problem:account-retired")
    async with provisioner.client() as reader:
        assert (await reader.post("/accounts/ci%2Fa/check", json={})).status_code == 403


async def test_settings_that_the_provider_cannot_use_are_found(provisioner: Provisioner) -> None:
    """They were declared when it could, such as before an upgrade."""
    await provisioner.declare(declared())
    await provisioner.database.execute("""UPDATE launch_config SET settings = '{"colour": "green"}'""")
    await check(provisioner)
    assert await alerts(provisioner) == [(AlertRaised, "launch-config/zone-a")]


@pytest.mark.parametrize("end", ["retired", "removed"])
async def test_an_account_that_is_checked_no_more_leaves_no_alert(provisioner: Provisioner, end: str) -> None:
    await provisioner.declare(declared())
    cloud = provisioner.providers["simulated"]
    assert isinstance(cloud, Checking)
    cloud.findings = [FULL]
    await check(provisioner)
    assert await alerts(provisioner) == [(AlertRaised, "subnet/subnet-1")]
    await provisioner.database.execute(f"UPDATE account SET {end} = true")
    await check(provisioner)
    assert await alerts(provisioner) == [(AlertResolved, "subnet/subnet-1")]
    assert len(cloud.asked) == 1


async def test_a_removed_account_is_shown_while_something_may_be_left_there(provisioner: Provisioner) -> None:
    """An orphan instance or a workspace is enough: both are destroyed there, and cost money until then."""
    await provisioner.declare(declared())
    await provisioner.database.execute("UPDATE account SET removed = true")

    async def shown() -> list[bool]:
        return [each.removed for each in await reachability.accounts(provisioner.database)]

    assert await shown() == []
    async with provisioner.database.acquire() as db:
        await stored(db, ring(OLD), account_id="sim-a", phase=Phase.DESTROYING)
    assert await shown() == [True]
    await provisioner.database.execute("UPDATE workspace SET phase = 'gone'")
    assert await shown() == []
    await provisioner.database.execute(
        "INSERT INTO orphan_instance (account_id, instance_id, batch_id, launch_config_id, created_at, reason) "
        "VALUES ('sim-a', 'workspace-1', '', '', slipway_clock(), 'unknown')"
    )
    assert await shown() == [True]


async def test_an_unreachable_account_is_left_to_the_reaper(provisioner: Provisioner, cloud: Checking) -> None:
    await provisioner.declare(declared())
    await provisioner.database.execute("UPDATE account SET unreachable = true")
    assert await check(provisioner) == 0
    assert cloud.asked == []


async def test_a_check_that_hangs_ends(
    provisioner: Provisioner, cloud: Checking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds up no other account for ever, and resolves nothing."""
    monkeypatch.setattr(apply, "CHECK_SECONDS_MAX", 0.01)
    await provisioner.declare(declared())
    cloud.findings, cloud.hold = [FULL], asyncio.Event()
    checking = provisioner.start(check(provisioner))
    ended, _ = await asyncio.wait({checking}, timeout=10)
    assert ended == {checking}
    assert await checking == 1
    assert await provisioner.database.fetchval("SELECT checked_at FROM account") is None
    assert await alerts(provisioner) == []


async def test_an_account_keeps_its_launch_configs_usable(provisioner: Provisioner) -> None:
    """Another provider or other settings are refused if a launch config that stays is unusable then; one that is
    removed or corrected by the same apply is not in the way."""
    provisioner.providers["other"] = Cloud()
    body = declared("zone-a", "zone-b")
    body["accounts"][0]["provider"] = "other"
    body["worker_pools"][0]["launch_configs"][0]["settings"] = {"colour": "green"}
    await provisioner.declare(body)
    moved = {**body, "accounts": [body["accounts"][0] | {"provider": "simulated"}]}
    with pytest.raises(DeclarationRefused) as refused:
        await provisioner.declare({"version": 1, "accounts": moved["accounts"]})
    assert str(refused.value) == (
        "worker pool linux: launch config zone-a in account sim-a: settings: colour is unknown; remove it"
    )
    with pytest.raises(DeclarationRefused):
        await provisioner.declare(moved)
    assert await provisioner.database.fetchval("SELECT provider FROM account") == "other"
    corrected = declared("zone-a", "zone-b")
    await provisioner.declare(corrected)
    assert await provisioner.database.fetchval("SELECT provider FROM account") == "simulated"
    await provisioner.declare(body)
    await provisioner.declare(declared("zone-b"))
    assert await provisioner.database.fetchval("SELECT provider FROM account") == "simulated"
