"""Workers made by modules of Terraform: runs, kills and lost locks, and their states."""

import os
import signal
from typing import Final

import msgspec
import pytest

from slipway_local.terraform.ledger import Fault
from slipway_provisioner.domain.encryption import NONCE_BYTES
from slipway_provisioner.domain.workspace_runs import APPLIES_MAX
from slipway_provisioner.domain.workspaces import Kind, Phase, Version
from slipway_provisioner.main import build
from slipway_provisioner.providers.port import OutcomeUnknown
from slipway_provisioner.providers.terraform.adapter import Terraform
from slipway_provisioner.providers.terraform.runs import resources_of
from slipway_provisioner.settings import Settings
from slipway_provisioner.store.workspaces import identity
from tests.support.harness import WAITING, until
from tests.support.provisioner import KEY
from tests.support.terraform import installed
from tests.support.terraform_fleet import Fleet
from tests.support.terraform_provider import working
from tests.support.terraform_runs import SECRET
from tests.support.workspace_fleets import one_machine
from tests.support.workspaces import NEW, OLD, ring, state

HANG: Final = Fault(kind="hang", at="create", done=True)
SLOW: Final = Fault(kind="hang", at="create", seconds=2.0, done=True)


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
    entry = {name: value for name, value in fleet.account.settings.items() if name in Terraform.operator_settings}
    settings = Settings(
        database_url=fleet.url,
        kafka="127.0.0.1:9",
        registration_keys=KEY,
        state_keys=OLD,
        providers=msgspec.json.encode({"terraform": {"entries": {"default": entry}}}).decode(),
        commands_as_service=True,
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
