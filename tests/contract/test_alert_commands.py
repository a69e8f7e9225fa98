"""`slipway alert` on alerts of real services: as a table, whole, as JSON, and silenced. It needs no Kafka."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest

from slipway_api.events.alert import AlertRaised, AlertResolved
from slipway_common.messaging import outbox
from slipway_local.servers.postgres import EmbeddedPostgres
from tests.support.deployment import Deployment, deployment_on

NOTICE: Final = AlertRaised(
    dedup_key="provisioner/config-tripped/zone-b",
    subject_kind="config",
    subject_id="zone-b",
    kind="config-tripped",
    summary="zone-b is odd",
    severity="notice",
)
PAGE: Final = AlertRaised(
    dedup_key="provisioner/pool-tripped/linux",
    subject_kind="pool",
    subject_id="linux",
    kind="pool-tripped",
    summary="linux is odd",
    effect="tasks wait",
    doing="probes go on",
    command="slipway why linux",
    cause="zone-b",
    evidence=("worker w-1, instance i-1", "worker w-2"),
    console=("Booting", "slipway-worker failed"),
)


def raised(kind: str, subject: str, **fields: Any) -> AlertRaised:
    key = f"provisioner/{kind}/{subject}"
    return AlertRaised(
        **{"dedup_key": key, "subject_kind": "config", "subject_id": subject, "kind": kind, "summary": "it is odd"}
        | fields
    )


def resolved(alert: AlertRaised) -> AlertResolved:
    return AlertResolved(
        dedup_key=alert.dedup_key,
        subject_kind=alert.subject_kind,
        subject_id=alert.subject_id,
        kind=alert.kind,
        summary="it is well again",
    )


OVER: Final = raised("quota-exhausted", "sim-a", subject_kind="account")


class Alerts:
    """Alerts of a provisioner beside services without any, each a second after the one before."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.slipway = deployment.slipway
        self.seconds = 0.0

    async def send(self, *events: AlertRaised | AlertResolved) -> None:
        provisioner = self.deployment.provisioner
        for event in events:
            self.seconds += 1
            await provisioner.set_clock(self.seconds)
            async with provisioner.database.acquire() as db, db.transaction():
                await outbox.enqueue(db, [event])

    async def read(self, *arguments: str) -> Any:
        return json.loads(await self.slipway("alert", *arguments, "-o", "json"))

    async def show(self, name: str, exit_code: int = 0) -> list[str]:
        return (await self.slipway("alert", "show", name, exit_code=exit_code)).splitlines()


@pytest.fixture
async def alerts(postgres: EmbeddedPostgres, tmp_path: Path) -> AsyncIterator[Alerts]:
    async with deployment_on(postgres, tmp_path) as deployment:
        alerts = Alerts(deployment)
        await alerts.send(OVER, raised("pool-tripped", "linux", severity="notice"), NOTICE, PAGE, resolved(OVER))
        yield alerts


async def test_alerts_are_listed_pages_first(alerts: Alerts) -> None:
    """Open ones, and on request those that were resolved, with when."""
    heading, *rows = (await alerts.slipway("alert", "ls")).splitlines()
    assert heading.split() == ["severity", "kind", "subject", "since", "summary"]
    assert [row.split()[:3] for row in rows] == [
        ["page", "pool-tripped", "linux"],
        ["notice", "config-tripped", "zone-b"],
    ]
    heading, *rows = (await alerts.slipway("alert", "ls", "--all")).splitlines()
    assert (heading.split()[0], rows[-1].split()[:3]) == ("state", ["resolved", "page", "quota-exhausted"])
    listed = await alerts.read("ls", "--all")
    assert [(row["dedup_key"], row["state"], bool(row["closed_at"]), row["service"]) for row in listed] == [
        (PAGE.dedup_key, "open", False, "provisioner"),
        (NOTICE.dedup_key, "open", False, "provisioner"),
        (OVER.dedup_key, "resolved", True, "provisioner"),
    ]
    assert await alerts.read("ls", "--all", "--since", "2100-01-01T00:00") == listed[:2]
    assert await alerts.read("ls", "--all", "--until", "2020-01-01T00:00") == []


async def test_more_alerts_than_a_list_has(alerts: Alerts) -> None:
    """An outage trips a thousand launch configs after its page, and others a thousand times before: the page is the
    first in each list, and is found by its name."""
    closed = "INSERT INTO alert ({0}, closed_at) SELECT {0}, raised_at {1}"
    names = "dedup_key, kind, subject_kind, subject_id, severity, body, raised_at"
    rows = """FROM (SELECT a.dedup_key || n AS dedup_key, kind, subject_kind, subject_id, severity, body,
        a.raised_at + n * interval '1 s' AS raised_at
        FROM alert a, generate_series(1, 1000) n WHERE a.dedup_key = $1) r"""
    database = alerts.deployment.provisioner.database
    await database.execute(f"INSERT INTO alert ({names}) SELECT {names} {rows}", NOTICE.dedup_key)
    await database.execute(closed.format(names, rows), PAGE.dedup_key)
    for everything in ((), ("--all",)):
        listed = await alerts.read("ls", *everything, "--limit", "3000")
        assert len(listed) >= 1_000 + len(everything) * 1_000
        assert listed[0]["dedup_key"] == PAGE.dedup_key
    assert (await alerts.show(PAGE.dedup_key))[2].split() == ["state", "open"]


@pytest.mark.parametrize("name", ["linux", "pool-tripped/linux", PAGE.dedup_key])
async def test_an_alert_is_shown_whole(alerts: Alerts, name: str) -> None:
    lines = await alerts.show(name)
    assert [line.split()[0] for line in lines] == [
        *("alert", "severity", "state", "since", "summary", "effect", "Slipway", "remedy", "cause", "key"),
        *("evidence", "worker", "console", "slipway-worker"),
    ]
    assert "remedy    slipway why linux" in lines
    assert (await alerts.read("show", name))["evidence"] == list(PAGE.evidence)


async def test_the_alert_on_an_image_is_shown_with_the_console_of_its_machine(alerts: Alerts) -> None:
    """Under its own kind, too."""
    image = raised("image-unhealthy", "ami-1", subject_kind="image", evidence=("worker w",))
    printed = raised("never-registered", "ami-1", subject_kind="image", console=("Booting", "\x1b[31mfailed"))
    await alerts.send(image, printed)
    for name in ("ami-1", "image-unhealthy/ami-1"):
        lines = await alerts.show(name)
        assert lines[0].split() == ["alert", "image-unhealthy", "ami-1"]
        assert [line.strip() for line in lines[-2:]] == ["console   Booting", "�[31mfailed"]
    assert (await alerts.read("show", "ami-1"))["console"] == list(printed.console)
    assert "never-registered ami-1" in (await alerts.show("never-registered/ami-1"))[0]


async def test_names_of_alerts(alerts: Alerts) -> None:
    """An open alert hides a resolved one; a launch config names those of its revisions; else the choice is shown."""
    other = raised("recovered", "zone-b", severity="notice")
    await alerts.send(other, resolved(other), raised("drain-overdue", "gecko-t/linux@3f2c9a"))
    assert "config-tripped zone-b" in (await alerts.show("zone-b"))[0]
    assert any("it is well again" in line for line in await alerts.show("sim-a"))
    for name in ("gecko-t/linux", "gecko-t/linux@3f2c9a", "drain-overdue/gecko-t/linux"):
        assert "drain-overdue gecko-t/linux@3f2c9a" in (await alerts.show(name))[0]
    assert (await alerts.show("solaris", exit_code=1))[0] == "There is no alert 'solaris'."
    await alerts.send(other)
    both = (await alerts.show("zone-b", exit_code=1))[0]
    assert both == "'zone-b' names 2 alerts: recovered/zone-b, config-tripped/zone-b."
    keys = [f"provisioner/account-check/aws-1/{problem}" for problem in ("quota/standard", "subnet/subnet-1")]
    await alerts.send(*(raised("account-check", "aws-1", dedup_key=key) for key in keys))
    refused = "\n".join(await alerts.show("account-check/aws-1", exit_code=1))
    assert all(key in refused for key in keys)
    for key in keys:
        assert (await alerts.show(key))[-1].endswith(key)


async def test_silence(alerts: Alerts) -> None:
    """It is listed with its end, and shown with who did so; the audit has it. A resolved one cannot be silenced."""
    await alerts.deployment.provisioner.follow_the_host()
    before = await alerts.slipway("alert", "ls")
    silence = ("alert", "silence", "linux", "--for", "2h", "--reason", "the cloud works on it")
    assert "alert pool-tripped linux silenced until" in await alerts.slipway(*silence)
    assert any("by root: the cloud works on it" in line for line in await alerts.show("linux"))
    assert "silenced  " not in before
    head, *rows = (await alerts.slipway("alert", "ls")).splitlines()
    assert head.split() == ["severity", "kind", "subject", "since", "silenced", "summary"]
    assert [" until " in row for row in rows if "pool-tripped" in row] == [True]
    (row,) = await alerts.deployment.read("audit", "--kind", "alert")
    assert (row["action"], row["subject_id"], row["reason"]) == ("silence", PAGE.dedup_key, "the cloud works on it")
    assert "There is no alert 'sim-a'" in await alerts.slipway(
        "alert", "silence", "sim-a", "--for", "2h", "--reason", "r", exit_code=1
    )


async def test_a_service_that_does_not_answer(alerts: Alerts) -> None:
    """The alerts of the others are listed, and it is named; without any there is only the error."""
    alerts.deployment.environment["SLIPWAY_LEASE_BROKER_URL"] = "http://127.0.0.1:1"
    output = await alerts.slipway("alert", "ls", exit_code=1)
    assert "pool-tripped" in output
    assert "the lease-broker at http://127.0.0.1:1 is unavailable" in output
