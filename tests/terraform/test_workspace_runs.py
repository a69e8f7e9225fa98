"""Terraform workspaces under kills, lost locks and bad input: nothing is lost, and nothing is applied twice.

The ledger says what exists and what was ever created.
"""

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec import structs

from slipway_common.events.alert import AlertRaised, AlertResolved
from slipway_common.events.worker import Scope
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_local.terraform.ledger import Fault
from slipway_provisioner.apply.previews import preview
from slipway_provisioner.domain.declaration import NewLaunch
from slipway_provisioner.domain.encryption import NONCE_BYTES
from slipway_provisioner.domain.workspace_runs import APPLIES_MAX, STUCK_RUNS
from slipway_provisioner.domain.workspaces import Kind, Phase, Version
from slipway_provisioner.loops.check_accounts import AccountChecks
from slipway_provisioner.loops.reap import reap_next
from slipway_provisioner.loops.terminate import terminate_instances
from slipway_provisioner.main import build
from slipway_provisioner.providers.port import OutcomeUnknown, Refused, TerminationRefused
from slipway_provisioner.providers.terraform.adapter import Terraform
from slipway_provisioner.providers.terraform.runs import resources_of
from slipway_provisioner.settings import Settings
from slipway_provisioner.store import account_checks, reachability
from slipway_provisioner.store.workspaces import identity
from tests.support.harness import WAITING, until
from tests.support.provisioner import Cloud
from tests.support.terraform import installed
from tests.support.terraform_fleet import Fleet, fleet_on
from tests.support.terraform_provider import settings_on, working
from tests.support.terraform_runs import SECRET
from tests.support.workspaces import NEW, OLD, ring, state

HANG: Final = Fault(kind="hang", at="create", done=True)
SLOW: Final = Fault(kind="hang", at="create", seconds=2.0, done=True)


@pytest.fixture
async def fleet(postgres: EmbeddedPostgres) -> AsyncIterator[Fleet]:
    async with fleet_on(postgres) as fleet:
        yield fleet


async def one_machine(fleet: Fleet) -> str:
    """The only machine, which was created once, and which the state of its ready workspace has."""
    row = await fleet.until_phase(Phase.READY)
    assert fleet.machines == [row.instance_id]
    assert fleet.creations == 1
    stored = await fleet.state()
    assert stored is not None
    assert str(row.instance_id) in stored.content.decode()
    return str(row.instance_id)


async def test_a_worker_is_made_and_destroyed(fleet: Fleet) -> None:
    """Nothing is left of it, and no file has its secrets."""
    async with working(fleet.replica()) as provider:
        asked = await fleet.create()
        made = await fleet.resolved(asked)
        assert made == [await one_machine(fleet)]
        (machine,) = fleet.place.ledger.machines()
        assert machine["tags"]["slipway-batch"] == asked.batch_id
        assert machine["user_data"] == asked.user_data
        assert (await fleet.rows())[0].address == machine["address"]
        fleet.place.ledger.inject(Fault(kind="error", at="list", text="nothing is missing, so nothing is looked up"))
        await provider.terminate(fleet.account, [machine["id"]])
        await fleet.until_phase(Phase.GONE)
        assert (fleet.machines, fleet.creations) == ([], 1)
        assert await provider.gone(fleet.account, {machine["id"]: None}) == [machine["id"]]
        found = [path for path in fleet.place.folder.rglob("*") if path.is_file() and "ledger" not in path.parts]
        assert [
            path for path in found if b"the-secret" in path.read_bytes() or SECRET.encode() in path.read_bytes()
        ] == []


# Kills and lost locks


@pytest.mark.parametrize(("file", "content"), [("id", ""), ("tools.json", ""), ("tools.json", '["')])
async def test_a_file_that_a_power_failure_has_cut_off(fleet: Fleet, file: str, content: str) -> None:
    """It is written anew. Without an id a run would have no lock, and be begun again and again."""
    folder = fleet.place.folder / "runs"
    folder.mkdir(mode=0o700)
    (folder / file).write_text(content)
    async with working(fleet.replica()):
        await fleet.create()
        await until(lambda: fleet.machines, "the machine exists")
        assert len((folder / "id").read_text()) == len(fleet.call().batch_id)
        await one_machine(fleet)


async def test_two_replicas_in_one_folder(fleet: Fleet) -> None:
    """The second one says so, and claims nothing that it could not run."""
    await fleet.create()
    await fleet.database.execute("UPDATE workspace SET due_at = slipway_clock() + interval '20 min'")
    first, second = fleet.replica(), fleet.replica()
    for replica in (first, second):
        await replica.open()
    assert not await first.work()
    await fleet.database.execute("UPDATE workspace SET due_at = slipway_clock()")
    with pytest.raises(OutcomeUnknown, match="another process runs Terraform in"):
        await second.work()
    assert [row.fence for row in await fleet.rows()] == [0]
    await first.close()
    async with working(second):
        await one_machine(fleet)


async def test_a_graceful_shutdown_of_the_service(fleet: Fleet) -> None:
    """A run in progress is interrupted, and its state saved while the database is still connected."""
    fleet.place.ledger.inject(SLOW)
    settings = Settings(
        database_url=fleet.url,
        kafka="127.0.0.1:9",
        registration_key="k" * 32,
        state_keys=OLD,
        terraform_folder=str(fleet.place.folder / "runs"),
    )
    app = build(settings).app()
    async with app.router.lifespan_context(app):
        await fleet.create()
        await fleet.database.execute("UPDATE workspace SET failed_runs = $1", APPLIES_MAX - 1)
        await until(lambda: fleet.machines, "the machine exists")
    (row,) = await fleet.rows()
    stored = await fleet.state()
    assert stored is not None
    assert fleet.machines[0] in stored.content.decode()
    assert (row.holder, row.phase) == ("", Phase.QUEUED)
    assert (row.failed_runs, row.interruptions) == (APPLIES_MAX - 1, 1), "a shutdown is no failed apply"
    await fleet.due()
    async with working(fleet.replica()):
        await one_machine(fleet)


async def test_a_shutdown_before_a_run_has_begun(fleet: Fleet) -> None:
    """Its lock is released, and nothing has to be looked up."""
    fleet.place.ledger.inject(Fault(kind="hang", at="list", seconds=1.0))
    async with working(fleet.replica()):
        await fleet.create()
        await until(lambda: fleet.place.ledger.calls("configure"), "the credential is looked up")
    (row,) = await fleet.rows()
    assert (row.holder, row.phase, row.failed_runs, row.interruptions) == ("", Phase.QUEUED, 0, 1)
    assert row.problem == "interrupted by the shutdown of its provisioner"


async def test_a_kill_between_apply_and_save(fleet: Fleet) -> None:
    """The machine exists, and no state has it: its successor finds it by its tags and adopts it."""
    fleet.place.ledger.inject(SLOW)
    async with fleet.process() as victim, fleet.database.acquire() as db:
        await fleet.create()
        await until(lambda: fleet.machines, "the machine exists")
        async with db.transaction():
            await db.fetch("SELECT FROM workspace FOR UPDATE")

            async def saving() -> bool:
                return bool(await fleet.database.fetchval(WAITING))

            await until(saving, "the run waits to save its state")
            victim.send_signal(signal.SIGKILL)
            await victim.wait()
    fleet.place.ledger.inject()
    stored = await fleet.state()
    assert stored is not None
    assert resources_of(stored.content) == 0
    async with working(fleet.replica()):
        await one_machine(fleet)


async def test_a_kill_in_the_middle_of_a_creation(fleet: Fleet) -> None:
    """The CLI and its plugin end with their replica."""
    fleet.place.ledger.inject(HANG)
    async with fleet.process() as victim:
        await fleet.create()
        await until(lambda: fleet.machines, "the machine exists")
        victim.send_signal(signal.SIGKILL)
        await victim.wait()
    fleet.place.ledger.inject()
    async with working(fleet.replica()):
        await one_machine(fleet)


async def test_another_replica_waits_until_a_lost_run_can_have_no_effects(fleet: Fleet) -> None:
    """It finds the machine at once, and adopts it only then: a second resource could still appear."""
    fleet.place.ledger.inject(HANG)
    async with fleet.process() as victim:
        await fleet.create()
        await until(lambda: fleet.machines, "the machine exists")
        victim.send_signal(signal.SIGKILL)
        await victim.wait()
    fleet.place.ledger.inject()
    await fleet.database.execute("UPDATE workspace SET locked_until = slipway_clock()")
    async with working(fleet.replica("others")):
        await fleet.until_phase(Phase.UNKNOWN)

        async def imported() -> bool:
            stored = await fleet.state()
            return stored is not None and resources_of(stored.content) == 1

        await until(imported, "the machine is in the state")
        row = await fleet.until_phase(Phase.UNKNOWN)
        assert row.due_at == row.effects_until or (row.due_at and row.effects_until and row.due_at > row.effects_until)
        await fleet.database.execute("UPDATE workspace SET effects_until = slipway_clock()")
        await fleet.due()
        await one_machine(fleet)


async def test_an_apply_that_could_not_begin_within_its_time_limit(fleet: Fleet) -> None:
    """As after a replica was suspended between claim and apply: another one may have applied the workspace by then.
    Here the tool takes longer to print its version than the time limit of the apply."""
    tool = fleet.place.folder / "slow"
    tool.write_text(f'#!/bin/sh\n[ "$1" != version ] || sleep 3\nexec {installed().terraform} "$@"\n')
    tool.chmod(0o755)
    await fleet.database.execute("UPDATE account SET settings = $1", {**fleet.account.settings, "tool": str(tool)})
    async with working(fleet.replica()):
        await fleet.create(apply_seconds=2)

        async def failed() -> bool:
            (row,) = await fleet.rows()
            return "no run could begin before the deadline" in row.problem

        await until(failed, "the apply was not begun")
        assert fleet.creations == 0


async def test_a_run_that_crashes_after_its_first_resource(fleet: Fleet) -> None:
    """An apply adds the rest to the resources that are found, and creates none twice."""
    fleet.place.ledger.inject(Fault(kind="crash", at="create", call=2, done=True))
    async with working(fleet.replica(shares=False)):
        await fleet.create(variables={"more": 2})
        await until(lambda: fleet.creations >= 2, "two machines exist")
        fleet.place.ledger.inject()
        await fleet.until_phase(Phase.READY)
        assert (len(fleet.machines), fleet.creations) == (3, 3)


async def test_a_crash_before_anything_exists(fleet: Fleet) -> None:
    """Nothing is found, and it is applied again."""
    fleet.place.ledger.inject(Fault(kind="crash", at="create", call=1))
    async with working(fleet.replica(shares=False)):
        await fleet.create()
        await fleet.until_phase(Phase.UNKNOWN)
        fleet.place.ledger.inject()
        await one_machine(fleet)


async def test_a_run_that_fails_together_with_its_plugin(fleet: Fleet) -> None:
    """The plugin has crashed, and what the CLI has left is no state: the machine is looked up, not made again."""
    tool, once = fleet.place.folder / "broken", fleet.place.folder / "once"
    machines = fleet.place.ledger.folder / "machines"
    pid = "pid=$(echo $TF_REATTACH_PROVIDERS | sed 's/.*\"Pid\":\\([0-9]*\\).*/\\1/')"
    crash = f"{pid}; kill -9 $pid; while kill -0 $pid; do sleep 0.02; done"
    break_ = f"touch {once}; {crash}; echo '{{\"outputs\": []}}' >terraform.tfstate; exit 1"
    when = f'[ "$1" = apply ] && [ ! -e {once} ] && [ -n "$(ls {machines} 2>/dev/null)" ]'
    real = installed().terraform
    tool.write_text(f'#!/bin/sh\n{real} "$@"; code=$?\nif {when}; then {break_}; fi\nexit $code\n')
    tool.chmod(0o755)
    settings = {**fleet.account.settings, "tool": str(tool)}
    await fleet.database.execute("UPDATE account SET settings = $1", settings)
    async with working(fleet.replica()):
        await fleet.create()
        await one_machine(fleet)
    assert once.exists()


async def test_a_shutdown_saves_what_runs_have_made(fleet: Fleet) -> None:
    """An interrupted apply is adopted by the next process."""
    fleet.place.ledger.inject(SLOW)
    async with working(fleet.replica()):
        await fleet.create()
        await until(lambda: fleet.machines, "the machine exists")
    fleet.place.ledger.inject()
    async with working(fleet.replica()):
        await one_machine(fleet)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder to another user")
async def test_a_folder_of_another_user_is_refused(fleet: Fleet) -> None:
    """It names the tools that are run."""
    folder = fleet.place.folder / "runs"
    folder.mkdir()
    os.chown(folder, 12345, -1)
    await fleet.create()
    provider = fleet.replica()
    await provider.open()
    try:
        with pytest.raises(OutcomeUnknown, match="belongs to another user; set SLIPWAY_TERRAFORM_FOLDER"):
            await provider.work()
    finally:
        await provider.close()
    assert list(folder.iterdir()) == []


# States


async def test_a_state_that_was_changed_behind_our_back(fleet: Fleet) -> None:
    """While a run applies. Its own state is stored beside the other one, and the machine is found by its tags."""
    fleet.place.ledger.inject(SLOW)
    async with working(fleet.replica()):
        await fleet.create()
        await until(lambda: fleet.machines, "the machine exists")
        (row,) = await fleet.rows()
        other = state(5, row.id)
        encrypted = ring(OLD).encrypt(other, identity(row.id, "state", 0, Version(row.id, 5)), b"0" * NONCE_BYTES)
        await fleet.database.execute(
            "UPDATE workspace_document SET serial = 5, encrypted = $1 WHERE kind = 'state'", encrypted.data
        )
        fleet.place.ledger.inject()
        machine = await one_machine(fleet)
    beside = await fleet.state(Kind.REJECTED)
    assert beside is not None
    assert machine in beside.content.decode()
    stored = await fleet.state()
    assert stored is not None
    assert stored.version.serial > 5


async def test_a_state_of_another_lineage(fleet: Fleet) -> None:
    """It is not saved over: the run's own state is stored beside it, and nothing is applied on it."""
    fleet.place.ledger.inject(SLOW)
    async with working(fleet.replica()):
        await fleet.create()
        await until(lambda: fleet.machines, "the machine exists")
        (row,) = await fleet.rows()
        foreign = state(1, "foreign")
        encrypted = ring(OLD).encrypt(foreign, identity(row.id, "state", 0, Version("foreign", 1)), b"0" * NONCE_BYTES)
        await fleet.database.execute(
            "UPDATE workspace_document SET lineage = 'foreign', serial = 1, encrypted = $1 WHERE kind = 'state'",
            encrypted.data,
        )
        await until(lambda: fleet.state(Kind.REJECTED), "the state is stored beside the other one")
        fleet.place.ledger.inject()
        await one_machine(fleet)


async def test_a_lost_key_stops_the_runs_of_its_workspaces(fleet: Fleet) -> None:
    """Nothing is changed until it is back."""
    asked = await fleet.create()
    async with working(fleet.replica("runs", NEW)):

        async def named() -> bool:
            (row,) = await fleet.rows()
            return ring(OLD).current_id in row.problem

        await until(named, "the missing key is named")
    assert fleet.creations == 0
    await fleet.due()
    async with working(fleet.replica("runs", NEW, OLD)):
        assert await fleet.resolved(asked) == [await one_machine(fleet)]


# Refusals, refreshes and destructions


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
    settings = Settings(database_url="", kafka="", registration_key="r" * 32, **times)
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
    settings = Settings(database_url="", kafka="", registration_key="r" * 32)
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
    settings = Settings(database_url="", kafka="", registration_key="r" * 32)
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
        assert str(tool) in shown["problem"]


# Previews


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
