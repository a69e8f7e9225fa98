"""Resources that no row knows: after the restore of an old database, by late effects of runs, by rows pruned early.

The ledger says what exists.
"""

from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec
import pytest

from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_local.terraform.ledger import Fault
from slipway_provisioner.domain.reaping import UNKNOWN_BATCH
from slipway_provisioner.domain.recovery import Action
from slipway_provisioner.domain.workspace_runs import STUCK_RUNS
from slipway_provisioner.domain.workspaces import Kind, Phase
from slipway_provisioner.providers.port import CreateRequest, OutcomeUnknown, TerminationRefused
from slipway_provisioner.providers.terraform import queue
from slipway_provisioner.providers.terraform.adapter import Terraform
from slipway_terraform.runs.modules import module_digest
from tests.support.harness import until
from tests.support.orphans import alerts, confirmed, not_listed_yet, reaped, restored, until_listed
from tests.support.terraform_fleet import CONFIG, Fleet, fleet_on
from tests.support.terraform_provider import launch_settings, working

BATCH: Final = """
INSERT INTO launch_batch (id, launch_config_id, account_id, lease_id, token, body, units, state, outcome, call_deadline,
    known_at) VALUES ($1, $2, 'tf', 'none', '', '{}', 1, 'known', 'failed', slipway_clock(), slipway_clock())"""
FENCED: Final = """
UPDATE workspace SET phase = 'gone', holder = '', fence = fence + 1, locked_until = NULL, due_at = NULL,
    ended_at = slipway_clock()"""
EARLIER: Final = """
UPDATE workspace SET created_at = created_at - $1 * interval '1 s', ended_at = ended_at - $1 * interval '1 s',
    effects_until = effects_until - $1 * interval '1 s'"""


@pytest.fixture
async def fleet(postgres: EmbeddedPostgres) -> AsyncIterator[Fleet]:
    async with fleet_on(postgres) as fleet:
        settings = launch_settings(fleet.place)
        await fleet.database.execute("UPDATE launch_config SET settings = $1", settings)
        yield fleet


async def made(fleet: Fleet, provider: Terraform, **settings: Any) -> CreateRequest:
    """Machines of a launch, whose workspace is ready."""
    asked = await fleet.create(**settings)
    assert isinstance(await fleet.resolved(asked), list)
    return asked


async def test_a_machine_that_a_restored_database_does_not_know(fleet: Fleet) -> None:
    """It is an orphan that waits for a person, whose decision destroys it with all of its resources. Before that
    nothing is done, and the account counts as not listed until its resources are."""
    async with working(fleet.replica()) as provider:
        asked = await made(fleet, provider, variables={"more": 1})
        (row,) = await fleet.rows()
        await restored(fleet)
        await not_listed_yet(fleet, provider)
        await until_listed(fleet)
        asks = await reaped(fleet, provider)
        assert len(asks) == 1
        waiting = asks[0]
        first, more = sorted(fleet.machines)
        assert waiting.startswith(
            f"workspace-{row.id}: its launch batch is unknown to this database; workspace {row.id}: "
        )
        assert f"ledger_machine.worker ({row.instance_id})" in waiting
        assert first in waiting
        assert more in waiting
        await reaped(fleet, provider)
        assert await fleet.rows() == []
        (alert,) = await alerts(fleet, "orphans-kept")
        assert waiting.partition(": ")[2] in alert["summary"]
        await confirmed(fleet, Action.TERMINATE)
        await reaped(fleet, provider)
        await fleet.until_phase(Phase.GONE)
        assert (fleet.machines, fleet.creations) == ([], 2)
        await until_listed(fleet)
        assert await reaped(fleet, provider) == []
        assert (await fleet.rows())[0].batch_id == asked.batch_id


async def test_late_effects_of_a_run(fleet: Fleet) -> None:
    """Its workspace is gone by then, and its launch known to have failed: what it creates is destroyed without a
    question, once no run can have effects any more."""
    fleet.place.ledger.inject(Fault(kind="hang", at="create", seconds=2.0))
    async with working(fleet.replica()) as provider:
        asked = await fleet.create()
        await fleet.database.execute(BATCH, asked.batch_id, CONFIG)
        await until(lambda: fleet.place.ledger.calls("configure"), "the run has begun")
        await fleet.database.execute(FENCED)
        await until(lambda: fleet.state(Kind.REJECTED), "the run has ended")
        (row,) = await fleet.rows()
        assert len(fleet.machines) == 1
        fleet.place.ledger.inject()
        await provider.instances(fleet.account)
        await until_listed(fleet)
        assert await provider.instances(fleet.account) == []
        await fleet.database.execute(EARLIER, 7200.0)
        await until_listed(fleet)
        listed = [(orphan.id, orphan.batch_id) for orphan in await provider.instances(fleet.account)]
        assert listed == [(f"workspace-{row.id}", asked.batch_id)]
        # The reaper judges what is a few seconds old in a later pass.
        await fleet.database.execute("UPDATE workspace_listing SET listed_at = listed_at - interval '1 h'")
        assert await reaped(fleet, provider) == []
        await until(lambda: not fleet.machines, "the machine is destroyed")
        await fleet.until_phase(Phase.GONE)


async def test_resources_with_other_tags_than_ours(fleet: Fleet) -> None:
    """They are named to a person, hide no others, and are not touched."""
    async with working(fleet.replica()) as provider:
        await made(fleet, provider)
        (machine,) = fleet.place.ledger.machines()
        tags = {name: machine["tags"][name] for name in ("slipway-deployment", "slipway-account")}
        for id_, own in (("m-bare", {}), ("m-odd", {"slipway-workspace": "w" * 9000, "slipway-batch": "b"})):
            odd = dict(machine, id=id_, tags=tags | own)
            (fleet.place.ledger.folder / "machines" / f"{id_}.json").write_bytes(msgspec.json.encode(odd))
        await restored(fleet)
        await not_listed_yet(fleet, provider)
        await until_listed(fleet)
        asks = await reaped(fleet, provider)
        assert len(asks) == 2
        unnamed, named = asks
        assert unnamed == f"workspace-: {UNKNOWN_BATCH}; workspace unnamed: no address (m-bare), no address (m-odd)"
        assert machine["id"] in named
        await confirmed(fleet, Action.TERMINATE)
        await reaped(fleet, provider)
        await fleet.until_phase(Phase.GONE)
        assert sorted(fleet.machines) == ["m-bare", "m-odd"]
        (alert,) = await alerts(fleet, "termination-refused")
        assert "its tags name no workspace" in alert["cause"]


async def test_a_workspace_that_is_made_while_its_account_is_listed(fleet: Fleet) -> None:
    """Its row is read after the listing, and it is no orphan."""
    fleet.place.ledger.inject(Fault(kind="hang", at="list", seconds=3.0))
    async with working(fleet.replica()) as provider:
        await provider.instances(fleet.account)
        began = "SELECT fence > 0 FROM workspace_listing"
        await until(lambda: fleet.database.fetchval(began), "the listing has begun")
        await made(fleet, provider)
        listed = "SELECT listed_at FROM workspace_listing"
        await until(lambda: fleet.database.fetchval(listed), "the account is listed")
        assert await fleet.database.fetchval("SELECT found FROM workspace_listing") == []
        assert [instance.id for instance in await provider.instances(fleet.account)] == fleet.machines


async def test_machines_of_another_deployment(fleet: Fleet) -> None:
    """They are not listed, also where the look-up module shows all that exists."""
    settings = dict(fleet.account.settings)
    text = (fleet.place.folder / "modules" / "look-up" / "main.tf").read_text()
    async with working(fleet.replica()) as provider:
        await made(fleet, provider)
        (machine,) = fleet.place.ledger.machines()
        foreign = dict(machine, id="m-foreign", tags=machine["tags"] | {"slipway-deployment": "other"})
        folder = fleet.place.ledger.folder / "machines"
        (folder / "m-foreign.json").write_bytes(msgspec.json.encode(foreign))
        everything = fleet.place.module(text.replace("tags = var.tags", "tags = {}"), "look-up")
        settings["lookup"] = {"module": "look-up", "digest": module_digest(everything)}
        await fleet.database.execute("UPDATE account SET settings = $1", settings)
        fleet.account = msgspec.structs.replace(fleet.account, settings=settings)
        await restored(fleet)
        await not_listed_yet(fleet, provider)
        await until_listed(fleet)
        (waiting,) = await reaped(fleet, provider)
        assert "m-foreign" not in waiting
        await confirmed(fleet, Action.TERMINATE)
        await reaped(fleet, provider)
        await fleet.until_phase(Phase.GONE)
        assert fleet.machines == ["m-foreign"]


async def test_an_orphan_whose_module_is_unknown(fleet: Fleet) -> None:
    """The refusal names the resources to delete by hand."""
    async with working(fleet.replica()) as provider:
        await made(fleet, provider)
        (row,) = await fleet.rows()
        await restored(fleet)
        await fleet.database.execute("UPDATE launch_config SET id = 'other'")
        await not_listed_yet(fleet, provider)
        await until_listed(fleet)
        with pytest.raises(TerminationRefused) as refused:
            await provider.terminate(fleet.account, [f"workspace-{row.id}"])
        (protected,) = refused.value.instances.values()
        assert "launch config of its workspace" in protected.reason
        assert f"ledger_machine.worker ({row.instance_id})" in protected.reason
        assert "by hand" in protected.remedy
        assert await fleet.rows() == []


async def test_an_orphan_that_cannot_be_destroyed(fleet: Fleet) -> None:
    """It is refused after ten failures, and gone once it is deleted by hand."""
    async with working(fleet.replica()) as provider:
        await made(fleet, provider)
        (row,) = await fleet.rows()
        await restored(fleet)
        await not_listed_yet(fleet, provider)
        await until_listed(fleet)
        await reaped(fleet, provider)
        fleet.place.ledger.inject(Fault(kind="error", at="destroy", text="Forbidden: locked"))
        await confirmed(fleet, Action.TERMINATE)
        await reaped(fleet, provider)

        async def failed(times: int) -> bool:
            return [each.failed_runs >= times for each in await fleet.rows()] == [True]

        await until(lambda: failed(1), "it has failed")
        await fleet.database.execute("UPDATE workspace SET failed_runs = $1", STUCK_RUNS - 1)
        await fleet.due()
        await until(lambda: failed(STUCK_RUNS), "it has failed ten times")
        with pytest.raises(TerminationRefused, match="Forbidden") as refused:
            await provider.terminate(fleet.account, [f"workspace-{row.id}"])
        assert f"ledger_machine.worker ({row.instance_id})" in str(refused.value)
        assert [each.id for each in await provider.instances(fleet.account)] == [f"workspace-{row.id}"]
        fleet.place.ledger.remove(fleet.machines[0])
        fleet.place.ledger.inject()
        await fleet.due()
        await fleet.until_phase(Phase.GONE)
        await until_listed(fleet)
        assert await provider.instances(fleet.account) == []


async def test_a_credential_of_another_account(fleet: Fleet) -> None:
    """It finds nothing there, which proves nothing about this one."""
    async with working(fleet.replica()) as provider:
        await made(fleet, provider)
        await restored(fleet)
        await fleet.database.execute("UPDATE account SET identity = 'declared'")
        await not_listed_yet(fleet, provider)
        ended = "SELECT problem <> '' OR listed_at IS NOT NULL FROM workspace_listing"
        await until(lambda: fleet.database.fetchval(ended), "the listing has ended")
        with pytest.raises(OutcomeUnknown, match="the credential of account tf belongs to ledger, not to declared"):
            await provider.instances(fleet.account)


async def test_accounts_are_listed_in_turn_with_refreshes(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both within the share of the sweep; an account without anything new is listed again after an hour."""
    monkeypatch.setattr(queue, "SEARCH_SECONDS", 0.05)
    async with working(fleet.replica(sweep_share=1.0, sweep_seconds=0.0)) as provider:
        await made(fleet, provider)
        await provider.instances(fleet.account)
        await fleet.database.execute(
            "UPDATE workspace_listing SET due_at = slipway_clock(), listed_at = slipway_clock()"
        )

        async def swept() -> bool:
            (row,) = await fleet.rows()
            pause = "SELECT fence = 1 AND due_at > slipway_clock() + interval '50 min' FROM workspace_listing"
            return row.refreshed_at is not None and bool(await fleet.database.fetchval(pause))

        await until(swept, "the workspace is refreshed and the account listed")
