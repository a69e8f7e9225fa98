"""Instances that their provider refuses to terminate: one alert names them and the remedy until they are gone."""

from pathlib import Path
from typing import Final

from slipway_api.events.alert import AlertRaised, AlertResolved
from slipway_common.base.ids import new_id
from slipway_provisioner.domain.cloud import Instance, InstanceState, Protected
from tests.support.cloud import START
from tests.support.provisioner import Provisioner, administrator

WHY: Final = Protected("OperationNotPermitted: i-0001 is protected", "unprotect i-0001")
KIND: Final = "termination-refused"


async def stopping(provisioner: Provisioner, number: int) -> None:
    """Workers whose boot has timed out, and whose instances are terminated from now on."""
    await provisioner.starting(number)
    await provisioner.set_clock(2000)
    await provisioner.expire()
    await provisioner.events()


async def raised(provisioner: Provisioner) -> list[AlertRaised]:
    return [alert for alert in await provisioner.published(AlertRaised) if alert.kind == KIND]


async def test_a_protected_instance_is_an_alert_until_it_is_gone(provisioner: Provisioner) -> None:
    """It is raised once, whatever the number of attempts; the other instances end."""
    await stopping(provisioner, 2)
    provisioner.cloud.protected["i-0001"] = WHY
    await provisioner.terminate_instances()
    assert provisioner.cloud.terminated == ["i-0002"]
    alerts = await raised(provisioner)
    assert len(alerts) == 1
    alert = alerts[0]
    assert (alert.subject_id, alert.evidence, alert.severity) == ("sim-a", ("i-0001",), "page")
    assert alert.summary == "sim-a refuses to terminate i-0001"
    assert (alert.cause, alert.command) == (WHY.reason, WHY.remedy)
    for at in (2100, 2200):
        await provisioner.set_clock(at)
        await provisioner.terminate_instances()
        await provisioner.reap()
    assert await raised(provisioner) == []
    provisioner.cloud.protected.clear()
    await provisioner.set_clock(2300)
    await provisioner.terminate_instances()
    await provisioner.reap()
    resolved = [alert.kind for alert in await provisioner.published(AlertResolved)]
    assert resolved == [KIND]


async def test_a_protected_instance_is_tried_once_per_pass(provisioner: Provisioner) -> None:
    """Its calls are paced like those of any other instance that does not end."""
    await stopping(provisioner, 1)
    provisioner.cloud.protected["i-0001"] = WHY
    for _ in range(3):
        await provisioner.terminate_instances()
    assert provisioner.cloud.refused == ["i-0001"]
    await provisioner.set_clock(2000 + provisioner.settings.reap_seconds + 1)
    await provisioner.terminate_instances()
    assert provisioner.cloud.refused == ["i-0001"] * 2


async def test_a_further_protected_instance_renews_the_alert(provisioner: Provisioner) -> None:
    """Orphan instances are named as well."""
    await stopping(provisioner, 1)
    provisioner.cloud.protected["i-0001"] = WHY
    await provisioner.terminate_instances()
    batch_id = str(await provisioner.database.fetchval("SELECT id FROM launch_batch"))
    orphan = Instance(id="i-9999", batch_id=batch_id, created_at=START, state=InstanceState.RUNNING)
    provisioner.cloud.live["i-9999"] = orphan
    provisioner.cloud.protected["i-9999"] = Protected("it is protected too")
    await provisioner.reap()
    assert [alert.evidence for alert in await raised(provisioner)] == [("i-0001",), ("i-0001", "i-9999")]


async def test_the_alert_of_a_retired_account_is_resolved(provisioner: Provisioner, tmp_path: Path) -> None:
    """Nobody lists its instances any more."""
    await stopping(provisioner, 1)
    provisioner.cloud.protected["i-0001"] = WHY
    await provisioner.terminate_instances()
    await provisioner.database.execute("UPDATE account SET unreachable = true")
    async with administrator(provisioner, tmp_path, ["accounts:write", "read"]) as client:
        answer = await client.post("/accounts/sim-a/retire", json={"reason": f"closed {new_id()}"})
        assert answer.status_code == 200, answer.text
    assert KIND in [alert.kind for alert in await provisioner.published(AlertResolved)]
    assert await provisioner.database.fetchval("SELECT protected FROM account") == {}
