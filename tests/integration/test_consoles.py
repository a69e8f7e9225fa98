"""Console output of machines that never registered: fetched once per image, redacted, and stored with its alert."""

from typing import Any, Final

import pytest

from slipway_api.events.alert import AlertRaised, AlertResolved
from slipway_api.events.worker import Outcome, Result, Scope, Stage
from slipway_provisioner.domain.consoles import ATTEMPTS_MAX
from slipway_provisioner.providers.port import OutcomeUnknown
from tests.support.provisioner import Provisioner

ERROR: Final = "slipway-worker: cannot open libssl.so.3"
BOOT_SECONDS: Final = 901


async def overdue(provisioner: Provisioner, machines: int = 1) -> list[str]:
    """Instances that did not register in time."""
    started = await provisioner.starting(machines)
    for seconds in range(0, BOOT_SECONDS, 300):  # else it would be downtime
        await provisioner.set_clock(seconds)
        await provisioner.expire()
    await provisioner.set_clock(BOOT_SECONDS)
    await provisioner.expire()
    return [worker.instance_id or "" for worker in started]


async def stored(provisioner: Provisioner) -> list[dict[str, Any]]:
    async with provisioner.client() as client:
        response = await client.get("/console-outputs")
    assert response.status_code == 200, response.text
    items: list[dict[str, Any]] = response.json()["items"]
    return items


async def test_a_machine_that_did_not_register(provisioner: Provisioner) -> None:
    """One of three is asked for, once. The alert holds what it printed, without its user data and secret."""
    instances = await overdue(provisioner, 3)
    (call,) = provisioner.cloud.calls
    secret = call.user_data.split('"secret":"')[1].split('"')[0]
    echo = f"user data:\n{call.user_data}\n+ export TOKEN={secret}"
    provisioner.cloud.printed = dict.fromkeys(instances, f"Booting\n{echo}\n{ERROR}\n")
    await provisioner.events()
    await provisioner.consoles()
    await provisioner.consoles()
    (alert,) = await provisioner.published(AlertRaised)
    assert (alert.kind, alert.subject_kind, alert.subject_id) == ("never-registered", "image", "linux-1")
    assert alert.console == ("Booting", "user data:", "…", "+ export TOKEN=…", ERROR)
    (read,) = provisioner.cloud.consoles_read
    assert read in instances
    assert read in alert.evidence[0]
    (row,) = await stored(provisioner)
    assert (row["instance_id"], tuple(row["lines"]), row["problem"]) == (read, alert.console, "")
    for private in (secret, "register_url", call.batch_id):
        assert private not in f"{alert.console} {alert.summary} {row['lines']}"


async def test_a_machine_that_died_while_booting(provisioner: Provisioner) -> None:
    """Unless its provider knows a reason that is no fault of its image."""
    first, second = await provisioner.starting(2)
    capacity = Outcome(Stage.BOOT, Result.FAILED, Scope.CAPACITY, "key", "Server.InsufficientInstanceCapacity")
    provisioner.cloud.endings[first.instance_id or ""] = capacity
    provisioner.cloud.printed[second.instance_id or ""] = ERROR
    provisioner.cloud.live.clear()
    await provisioner.set_clock(61)
    await provisioner.reap()
    await provisioner.consoles()
    assert provisioner.cloud.consoles_read == [second.instance_id]
    (alert,) = [a for a in await provisioner.published(AlertRaised) if a.kind == "never-registered"]
    assert (alert.console, alert.cause) == ((ERROR,), "instance is gone")


async def test_a_registered_machine_is_not_asked_for(provisioner: Provisioner) -> None:
    (worker,) = await provisioner.starting()
    await provisioner.register(worker.instance_id or "", worker.batch_id)
    provisioner.cloud.live.clear()
    await provisioner.set_clock(61)
    await provisioner.reap()
    await provisioner.consoles()
    assert provisioner.cloud.consoles_read == []


async def test_output_that_is_posted_late(provisioner: Provisioner) -> None:
    """It is asked for again, ever more seldom."""
    (instance,) = await overdue(provisioner)
    await provisioner.events()
    at = BOOT_SECONDS
    for seconds in (59, 1, 119):  # due, but for the last
        await provisioner.consoles()
        at += seconds
        await provisioner.set_clock(at)
    await provisioner.consoles()
    assert (len(provisioner.cloud.consoles_read), await provisioner.published(AlertRaised)) == (2, [])
    provisioner.cloud.printed[instance] = ERROR
    await provisioner.set_clock(at + 1)
    await provisioner.consoles()
    (alert,) = await provisioner.published(AlertRaised)
    assert (alert.console, len(provisioner.cloud.consoles_read)) == ((ERROR,), 3)


#           what the provider answers, words of the alert
NONE = [("", "it had none after 5 attempts"), (OutcomeUnknown("UnauthorizedOperation"), "UnauthorizedOperation")]


@pytest.mark.parametrize(("answer", "words"), NONE)
async def test_none_at_all(provisioner: Provisioner, answer: str | Exception, words: str) -> None:
    """After five attempts the alert says so, and nothing is asked for any more."""
    (instance,) = await overdue(provisioner)
    provisioner.cloud.printed[instance] = answer
    await provisioner.events()
    for hour in range(1, 8):
        await provisioner.consoles()
        await provisioner.set_clock(BOOT_SECONDS + 3600 * hour)
    assert len(provisioner.cloud.consoles_read) == ATTEMPTS_MAX
    (alert,) = await provisioner.published(AlertRaised)
    assert (alert.console, words in alert.summary) == ((), True)
    assert words in (await stored(provisioner))[0]["problem"]


async def test_the_alert_ends_with_a_registration(provisioner: Provisioner) -> None:
    """Of a machine of the image, after its console output was stored."""
    dead, other = await provisioner.starting(2)
    del provisioner.cloud.live[dead.instance_id or ""]
    provisioner.cloud.printed[dead.instance_id or ""] = ERROR
    await provisioner.set_clock(61)
    await provisioner.reap()
    await provisioner.consoles()
    await provisioner.consoles()
    assert await provisioner.published(AlertResolved) == []
    await provisioner.set_clock(62)
    await provisioner.register(other.instance_id or "", other.batch_id)
    await provisioner.consoles()
    await provisioner.consoles()
    resolved = [alert.dedup_key for alert in await provisioner.published(AlertResolved)]
    assert resolved == ["provisioner/never-registered/linux-1"]


async def test_the_alert_ends_after_a_week(provisioner: Provisioner) -> None:
    (instance,) = await overdue(provisioner)
    provisioner.cloud.printed[instance] = ERROR
    await provisioner.consoles()
    await provisioner.set_clock(8 * 86_400)
    await provisioner.consoles()
    assert len(await provisioner.published(AlertResolved)) == 1


async def test_an_account_that_does_not_answer(provisioner: Provisioner) -> None:
    """It is asked once it answers again."""
    await overdue(provisioner)
    await provisioner.database.execute("UPDATE account SET unreachable = true")
    await provisioner.consoles()
    assert provisioner.cloud.consoles_read == []
    await provisioner.database.execute("UPDATE account SET unreachable = false")
    await provisioner.consoles()
    assert len(provisioner.cloud.consoles_read) == 1
