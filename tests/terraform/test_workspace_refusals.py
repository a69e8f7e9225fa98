"""Workers made by modules of Terraform: refusals, refreshes, destructions, and plans."""

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from slipway_api.events.alert import AlertRaised, AlertResolved
from slipway_api.events.worker import Scope
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_local.terraform.ledger import Fault
from slipway_provisioner.apply.previews import preview
from slipway_provisioner.domain.declaration import NewLaunch
from slipway_provisioner.domain.workspace_runs import STUCK_RUNS
from slipway_provisioner.domain.workspaces import Phase
from slipway_provisioner.loops.check_accounts import AccountChecks
from slipway_provisioner.loops.reap import reap_next
from slipway_provisioner.loops.terminate import terminate_instances
from slipway_provisioner.providers.port import OutcomeUnknown, Refused, TerminationRefused
from slipway_provisioner.providers.terraform.adapter import Terraform
from slipway_provisioner.settings import Settings
from slipway_provisioner.store import account_checks, reachability
from tests.support.cloud import Cloud
from tests.support.harness import until
from tests.support.provisioner import KEY
from tests.support.terraform import installed
from tests.support.terraform_fleet import Fleet, fleet_on
from tests.support.terraform_provider import settings_on, working
from tests.support.terraform_runs import SECRET
from tests.support.workspace_fleets import one_machine


async def test_a_refused_apply_has_the_scope_of_its_code(fleet: Fleet) -> None:
    """And what it made before is destroyed."""
    fault = Fault(kind="error", at="create", call=2, text="MachineQuota: no more", detail="token {secret}")
    settings = {**fleet.account.settings, "errors": {"MachineQuota": "quota"}}
    await fleet.database.execute("UPDATE account SET settings = $1", settings)
    fleet.place.ledger.inject(fault)
    async with working(fleet.replica(shares=False)):
        refused = await fleet.resolved(await fleet.create(variables={"more": 1}))
        assert isinstance(refused, Refused)
        assert (refused.outcome.scope, refused.outcome.code, refused.concludes) == (Scope.QUOTA, "MachineQuota", True)
        row = await fleet.until_phase(Phase.GONE)
        assert fleet.machines == []
        assert SECRET not in row.problem + str(row.outcome)


async def test_a_module_that_was_changed_since_it_was_declared(fleet: Fleet) -> None:
    """Its launches are refused, and its workers are destroyed nevertheless."""
    async with working(fleet.replica()):
        await fleet.create()
        machine = await one_machine(fleet)
    asked = await fleet.create()
    (fleet.place.folder / "modules" / "worker" / "main.tf").write_text("# other\n")
    async with working(fleet.replica()) as provider:
        refused = await fleet.resolved(asked)
        assert isinstance(refused, Refused)
        assert (refused.outcome.scope, refused.outcome.code) == (Scope.CONFIG, "DigestMismatch")
        await provider.terminate(fleet.account, [machine])
        await until(lambda: not fleet.machines, "the machine is destroyed")


@pytest.mark.parametrize("is_known", [True, False], ids=["ready", "unknown"])
async def test_a_plugin_that_was_upgraded(fleet: Fleet, is_known: bool) -> None:
    """Machines of an earlier version are looked up, imported and destroyed with the one that the account has now."""
    plugin = {**fleet.account.settings["plugins"][0], "version": "9.9.9"}
    upgraded = {**fleet.account.settings, "plugins": [plugin]}
    if not is_known:
        fleet.place.ledger.inject(Fault(kind="crash", at="create", call=1, done=True))
    async with working(fleet.replica()) as provider:
        await fleet.create()
        await fleet.until_phase(Phase.READY if is_known else Phase.UNKNOWN)
        fleet.place.ledger.inject()
        (machine,) = fleet.machines
        await fleet.database.execute("UPDATE account SET settings = $1", upgraded)
        if is_known:
            await provider.terminate(fleet.account, [machine])
        await fleet.due()
        await fleet.until_phase(Phase.GONE)
        assert fleet.machines == []


async def test_a_machine_that_was_deleted_by_hand(fleet: Fleet) -> None:
    """A refresh finds it; nothing else does, since listings read rows."""
    async with working(fleet.replica()) as provider:
        await fleet.create()
        machine = await one_machine(fleet)
        fleet.place.ledger.remove(machine)
        assert await provider.gone(fleet.account, {machine: None}) == []
        await fleet.database.execute("UPDATE workspace SET due_at = slipway_clock()")
        await fleet.until_phase(Phase.GONE)
        assert await provider.gone(fleet.account, {machine: None}) == [machine]


@pytest.mark.parametrize("is_terminated", [False, True])
async def test_a_credential_of_another_account(fleet: Fleet, is_terminated: bool) -> None:
    """It finds nothing there: neither is a worker gone, nor has its destruction succeeded. The credential is the same
    text as before, so that nothing shows before the run that a role which it assumes is another account's."""
    assumed = fleet.place.ledger.folder / "identity"
    async with working(fleet.replica()) as provider:
        await fleet.create()
        machine = await one_machine(fleet)
        file = fleet.place.ledger.folder / "machines" / f"{machine}.json"
        elsewhere = file.rename(fleet.place.folder / file.name)
        assumed.write_text("other")
        if is_terminated:
            await provider.terminate(fleet.account, [machine])
        else:
            await fleet.database.execute("UPDATE workspace SET due_at = slipway_clock()")
        ended = "SELECT phase = 'gone' OR problem <> '' FROM workspace"
        await until(lambda: fleet.database.fetchval(ended), "the run has ended")
        (row,) = await fleet.rows()
        assert row.phase is (Phase.DESTROYING if is_terminated else Phase.READY)
        assert row.problem.startswith("the credential of account tf belongs to other, not to ledger; correct")
        elsewhere.rename(file)
        assumed.unlink()
        await fleet.due()
        if is_terminated:
            await fleet.until_phase(Phase.GONE)
            assert fleet.machines == []
        else:
            done = "SELECT problem = '' AND refreshed_at IS NOT NULL FROM workspace"
            await until(lambda: fleet.database.fetchval(done), "the workspace is refreshed")
            await one_machine(fleet)


async def test_a_refresh_of_what_is_there_changes_nothing(fleet: Fleet) -> None:
    async with working(fleet.replica()):
        await fleet.create()
        await one_machine(fleet)
        await fleet.database.execute("UPDATE workspace SET due_at = slipway_clock()")

        async def refreshed() -> bool:
            return (await fleet.rows())[0].refreshed_at is not None

        await until(refreshed, "the workspace is refreshed")
        await one_machine(fleet)


async def test_a_destruction_that_fails_ten_times(fleet: Fleet) -> None:
    """It is reported with its reason and what to do, and ends once the cause is removed."""
    async with working(fleet.replica()) as provider:
        await fleet.create()
        machine = await one_machine(fleet)
        fleet.place.ledger.inject(Fault(kind="error", at="destroy", text="Forbidden: locked"))
        await provider.terminate(fleet.account, [machine])
        await fleet.database.execute("UPDATE workspace SET failed_runs = $1", STUCK_RUNS - 1)
        await fleet.due()

        async def stuck() -> bool:
            return (await fleet.rows())[0].failed_runs >= STUCK_RUNS

        await until(stuck, "it has failed ten times")
        with pytest.raises(TerminationRefused) as refused:
            await provider.terminate(fleet.account, [machine])
        (protected,) = refused.value.instances.values()
        assert "Forbidden" in protected.reason
        assert "slipway worker unlock" in protected.remedy
        fleet.place.ledger.inject()
        await fleet.due()
        await fleet.until_phase(Phase.GONE)
        assert fleet.machines == []


async def test_a_destruction_that_fails_ten_times_is_one_alert(fleet: Fleet) -> None:
    """It names the instance, the cause and what to do, until the instance is gone. Nothing is lost meanwhile."""
    times: dict[str, Any] = {"reap_seconds": 0.001, "call_timeout_seconds": 0.001, "visibility_seconds": 0.001}
    settings = Settings(database_url="", kafka="", registration_keys=KEY, **times)
    async with working(fleet.replica()) as provider:
        loops: dict[str, Any] = {"settings": settings, "providers": {"terraform": provider}}
        await fleet.create()
        machine = await one_machine(fleet)
        worker_id = await fleet.stopping(machine)
        fleet.place.ledger.inject(Fault(kind="error", at="destroy", text="Forbidden: locked"))

        async def stuck() -> bool:
            await fleet.due()
            await terminate_instances(fleet.database, **loops)
            return bool(await fleet.alerts())

        await until(stuck, "an alert is raised")
        (row,) = await fleet.rows()
        assert row.failed_runs >= STUCK_RUNS
        for _ in range(3):
            await stuck()
            await reap_next(fleet.database, **loops)
        (alert,) = await fleet.alerts()
        assert isinstance(alert, AlertRaised)
        assert (alert.kind, alert.subject_id, alert.evidence) == ("termination-refused", "tf", (machine,))
        assert "Forbidden: locked" in alert.cause
        assert alert.command.startswith("slipway worker unlock")
        assert fleet.machines == [machine]
        fleet.place.ledger.inject()
        await fleet.due()
        await fleet.until_phase(Phase.GONE)
        assert (fleet.machines, fleet.creations) == ([], 1)
        await until(lambda: reap_next(fleet.database, **loops), "the account is listed")
        assert [type(each) for each in await fleet.alerts()] == [AlertRaised, AlertResolved]
        states = await fleet.database.fetch("SELECT id::text, state FROM worker")
        assert [(each["id"], each["state"]) for each in states] == [(worker_id, "stopped")]


@pytest.mark.parametrize(
    "text",
    [
        "error configuring Terraform AWS Provider: error validating provider credentials: error calling "
        "sts:GetCallerIdentity: ExpiredToken: The security token included in the request is expired",
        "error configuring Terraform AWS Provider: error validating provider credentials: error calling "
        "sts:GetCallerIdentity: InvalidClientTokenId: The security token included in the request is invalid.",
    ],
    ids=["ExpiredToken", "InvalidClientTokenId"],
)
async def test_a_credential_that_expires_while_workers_exist(
    postgres: EmbeddedPostgres, tmp_path: Path, text: str, request: pytest.FixtureRequest
) -> None:
    """It is charged to its account, and a destruction fails. With a renewed one all goes on, without a person."""
    file = tmp_path / "credential"
    file.write_text("LEDGER_TOKEN=old\n")
    async with fleet_on(postgres, credential={"file": str(file)}) as fleet, working(fleet.replica()) as provider:
        await fleet.database.execute("UPDATE account SET credential = $1", dict(fleet.account.credential))
        await fleet.create()
        machine = await one_machine(fleet)
        expired = [Fault(kind="error", at=at, token="old", text=text) for at in ("configure", "create", "destroy")]
        fleet.place.ledger.inject(*expired)
        refused = await fleet.resolved(await fleet.create())
        assert isinstance(refused, Refused)
        outcome = refused.outcome
        assert (outcome.scope, outcome.scope_key) == (Scope.CREDENTIAL, "tf")
        assert outcome.code in request.node.callspec.id
        await provider.terminate(fleet.account, [machine])

        async def fails() -> bool:
            return any(row.instance_id == machine and outcome.code in row.problem for row in await fleet.rows())

        await until(fails, "the destruction fails")
        assert fleet.machines == [machine]
        file.write_text("LEDGER_TOKEN=new\n")
        await fleet.due()
        await until(lambda: not fleet.machines, "the machine is destroyed")
        made = await fleet.resolved(await fleet.create())
        assert made == fleet.machines
        assert fleet.creations == 2


async def test_a_credential_that_expires(postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    """A launch without a credential is refused for its account; a destruction waits for the next one."""
    file = tmp_path / "credential"
    file.write_text("LEDGER_TOKEN=one\n")
    async with fleet_on(postgres, credential={"file": str(file)}) as fleet, working(fleet.replica()) as provider:
        await fleet.database.execute("UPDATE account SET credential = $1", dict(fleet.account.credential))
        await fleet.create()
        machine = await one_machine(fleet)
        file.unlink()
        refused = await fleet.resolved(await fleet.create())
        assert isinstance(refused, Refused)
        assert (refused.outcome.scope, refused.outcome.scope_key) == (Scope.CREDENTIAL, "tf")
        await provider.terminate(fleet.account, [machine])
        await until(lambda: _failed(fleet, machine), "the destruction fails")
        file.write_text("LEDGER_TOKEN=two\n")
        await fleet.due()
        await until(lambda: not fleet.machines, "the machine is destroyed")


async def _failed(fleet: Fleet, machine: str) -> bool:
    return any(row.instance_id == machine and "credential" in row.problem for row in await fleet.rows())


async def test_a_credential_replaced_by_one_of_another_account(postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    """Nothing is created, refreshed or destroyed with it, and one alert is raised at once, before the hourly check."""
    file = tmp_path / "credential"
    file.write_text("LEDGER_TOKEN=own\n")
    settings = Settings(database_url="", kafka="", registration_keys=KEY)
    async with fleet_on(postgres, credential={"file": str(file)}) as fleet, working(fleet.replica()) as provider:
        await fleet.database.execute("UPDATE account SET credential = $1", dict(fleet.account.credential))
        await fleet.database.execute("UPDATE deployment SET id = $1", fleet.account.deployment)
        checks = AccountChecks(settings, {"terraform": provider})
        assert await checks.step(fleet.database), "a new account is checked"
        await fleet.create()
        machine = await one_machine(fleet)
        assert not await AccountChecks(settings, {"terraform": provider}).step(fleet.database), "no check is due"
        file.write_text("LEDGER_TOKEN=other\nLEDGER_IDENTITY=other\n")
        refused = await fleet.resolved(await fleet.create())
        assert isinstance(refused, Refused)
        outcome = refused.outcome
        assert (outcome.scope, outcome.scope_key, outcome.code) == (Scope.CREDENTIAL, "tf", "ForeignCredential")
        await fleet.database.execute("UPDATE workspace SET due_at = slipway_clock() WHERE phase = 'ready'")
        await until(lambda: _failed(fleet, machine), "the refresh fails")
        await fleet.database.execute("UPDATE workspace SET problem = ''")
        await provider.terminate(fleet.account, [machine])
        await until(lambda: _failed(fleet, machine), "the destruction fails")
        assert (fleet.machines, fleet.creations, fleet.place.ledger.calls("destroy")) == ([machine], 1, [])
        for _ in range(2):
            assert await AccountChecks(settings, {"terraform": provider}).step(fleet.database)
            await fleet.database.execute("UPDATE account SET check_began_at = NULL")
        (alert,) = [each for each in await fleet.alerts() if "launch-config" not in each.dedup_key]
        assert isinstance(alert, AlertRaised)
        assert (alert.kind, alert.subject_id, alert.severity) == ("account-check", "tf", "page")
        assert "the credential belongs to other, not to ledger" in alert.summary
        assert alert.cause.startswith("correct the credential of the account")
        file.write_text("LEDGER_TOKEN=new\n")
        await fleet.due()
        await until(lambda: not fleet.machines, "the machine is destroyed")
        assert await fleet.resolved(await fleet.create()) == fleet.machines
        assert fleet.creations == 2


async def test_a_credential_that_cannot_be_looked_up(postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    """Nothing is applied while its account is unknown. A refused credential is charged to the account, any other
    failure to nothing."""
    file = tmp_path / "credential"
    file.write_text("LEDGER_TOKEN=old\n")
    async with fleet_on(postgres, credential={"file": str(file)}) as fleet, working(fleet.replica()):
        await fleet.database.execute("UPDATE account SET credential = $1", dict(fleet.account.credential))
        text = "error calling sts:GetCallerIdentity: ExpiredToken: The security token is expired"
        fleet.place.ledger.inject(Fault(kind="error", at="list", token="old", text=text))
        refused = await fleet.resolved(await fleet.create())
        assert isinstance(refused, Refused)
        assert (refused.outcome.scope, refused.outcome.code) == (Scope.CREDENTIAL, "ExpiredToken")
        fleet.place.ledger.inject(Fault(kind="error", at="list", token="old", text="the listing is broken"))
        asked = await fleet.create()

        async def waits() -> bool:
            return any(
                row.phase is Phase.QUEUED and "the listing is broken" in row.problem for row in await fleet.rows()
            )

        await until(waits, "the apply waits for a look-up")
        assert fleet.creations == 0
        file.write_text("LEDGER_TOKEN=new\n")
        await fleet.due()
        assert await fleet.resolved(asked) == fleet.machines
        assert fleet.creations == 1


async def test_a_tool_that_was_removed(fleet: Fleet) -> None:
    """The account is checked at once, and its problem names the tool."""
    settings = Settings(database_url="", kafka="", registration_keys=KEY)
    tool = fleet.place.folder / "tool"
    tool.write_text(f'#!/bin/sh\nexec {installed().terraform} "$@"\n')
    tool.chmod(0o755)
    own = {**fleet.account.settings, "tool": str(tool)}
    await fleet.database.execute("UPDATE account SET settings = $1", own)
    await fleet.database.execute("UPDATE deployment SET id = $1", fleet.account.deployment)
    async with working(fleet.replica()) as provider:

        async def problem() -> str:
            async with fleet.database.acquire() as db:
                checks = AccountChecks(settings, {"terraform": provider})
                await checks.step(fleet.database)
                found = await account_checks.findings(db, "tf")
            return next((each.message for each in found if each.subject == "tool"), "")

        await fleet.create()
        await one_machine(fleet)
        assert await problem() == ""
        tool.unlink()
        await fleet.create()
        await until(problem, "the problem is found")
        assert await problem() == f"{tool} is missing, or not executable"
        async with fleet.database.acquire() as db:
            (shown,) = await reachability.accounts(db, "tf")
        assert str(tool) in shown.problem


async def test_a_plan_finds_what_is_wrong_with_a_launch_config(fleet: Fleet) -> None:
    """Before anything is created, and without a trace."""
    async with working(fleet.replica()) as provider:
        good = fleet.call().config
        bad = fleet.call(variables={"colour": "red"}).config
        assert await provider.preview(fleet.account, good) == ""
        assert "colour" in await provider.preview(fleet.account, bad)
        for outputs in ({"instance_id": "iid"}, {"address": "adress"}):
            assert 'does not have an attribute named "' in await provider.preview(
                fleet.account, fleet.call(outputs=outputs).config
            )
        # A module of this digest is installed already, but its folder does not exist.
        for elsewhere in (fleet.call(module="nowhere").config, fleet.call(digest="0" * 64).config):
            assert await provider.preview(fleet.account, elsewhere)
        missing = structs.replace(fleet.account, settings={**fleet.account.settings, "modules_folder": "/nowhere"})
        assert "there is no module at /nowhere/worker" in await provider.preview(missing, good)
        lookup = {"module": "look-up", "digest": "0" * 64}
        changed = structs.replace(fleet.account, settings={**fleet.account.settings, "lookup": lookup})
        assert "look-up: SHA-256 is " in await provider.preview(changed, good)
    assert fleet.creations == 0
    assert await fleet.rows() == []


async def test_a_plan_finds_a_missing_plugin_although_it_runs_already(fleet: Fleet) -> None:
    """Otherwise launches fail once the provisioner has restarted, long after the change."""
    async with working(fleet.replica()) as provider:
        good = fleet.call().config
        assert await provider.preview(fleet.account, good) == ""
        plugins = [{**plugin, "binary": "/nowhere/plugin"} for plugin in fleet.account.settings["plugins"]]
        moved = structs.replace(fleet.account, settings={**fleet.account.settings, "plugins": plugins})
        assert "cannot read /nowhere/plugin: No such file or directory; install" in await provider.preview(moved, good)


async def test_a_plan_finds_the_credential_of_another_account(fleet: Fleet) -> None:
    async with working(fleet.replica()) as provider:
        declared = structs.replace(fleet.account, identity="other")
        problem = await provider.preview(declared, fleet.call().config)
        assert problem.startswith("the credential of account tf belongs to ledger, not to other; correct")


async def test_a_provisioner_without_a_key_says_so(fleet: Fleet) -> None:
    """In a diff and in the check of an account, before a launch has an unknown outcome."""
    async with working(Terraform(settings_on(fleet.database, fleet.place.folder / "runs", keys=()))) as provider:
        (found,) = await preview([NewLaunch(fleet.account, fleet.call().config)], {"terraform": provider})
        assert found.problem.startswith("not planned: the provisioner has no state keys; set SLIPWAY_STATE_KEYS")
        with pytest.raises(OutcomeUnknown, match="set SLIPWAY_STATE_KEYS"):
            await provider.identity(fleet.account)


async def test_a_module_without_the_output_of_its_id_makes_nothing(fleet: Fleet) -> None:
    """Terraform refuses it before it creates anything that nobody could name."""
    async with working(fleet.replica()):
        refused = await fleet.resolved(await fleet.create(outputs={"instance_id": "iid"}))
    assert isinstance(refused, Refused)
    assert refused.outcome.scope is Scope.CONFIG
    assert fleet.creations == 0


async def test_a_declaration_is_planned_once(fleet: Fleet) -> None:
    """Those that have a problem are named, and providers without previews have none."""
    async with working(fleet.replica()) as provider:
        bad = fleet.call(variables={"colour": "red"}).config
        launches = [NewLaunch(fleet.account, bad), NewLaunch(structs.replace(fleet.account, provider="other"), bad)]
        (found,) = await preview(launches, {"terraform": provider, "other": Cloud()})
    assert found.config == bad["id"]
    assert "colour" in found.problem
