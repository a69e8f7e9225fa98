"""`slipway alert`: the newest state of each alert, as a table, whole, and as JSON."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from slipway_client.cli.commands import alerts
from slipway_client.cli.main import app
from slipway_client.transport.log import Entry
from slipway_common.events.alert import AlertRaised, AlertResolved
from slipway_common.messaging.envelope import Envelope

NOW = datetime(2026, 8, 1, 14, 30, tzinfo=UTC)


def entry(type_: str, seconds: float, data: dict[str, Any] | None) -> Entry:
    at = NOW + timedelta(seconds=seconds)
    envelope = Envelope(id="e", source="s", type=type_, subject="k", time=at)
    return Entry(topic="t", partition=0, offset=0, time=at, key="k", envelope=envelope, data=data, stored_at=at)


def alert(kind: str, subject: str, **fields: Any) -> dict[str, Any]:
    key = f"weight-calculator/{kind}/{subject}"
    return {
        "dedup_key": key,
        "subject_kind": "config",
        "subject_id": subject,
        "kind": kind,
        "summary": f"{subject} is odd",
    } | fields


NOTICE = alert("config-tripped", "zone-b", severity="notice", since="2026-08-01T14:20:00Z")
PAGE = alert(
    "pool-tripped",
    "linux",
    effect="tasks wait",
    doing="probes go on",
    command="slipway why linux",
    cause="zone-b",
    evidence=["worker w-1, instance i-1", "worker w-2"],
    console=["Booting", "slipway-worker failed"],
)
OVER = alert("quota-exhausted", "sim-a")
OTHER = alert("recovered", "zone-b", severity="notice")


@pytest.fixture(autouse=True)
def topic(monkeypatch: pytest.MonkeyPatch) -> list[Entry]:
    """Records that the commands read."""
    records = [
        entry(AlertRaised.type, -90, OVER),
        entry(AlertRaised.type, -60, PAGE | {"severity": "notice"}),
        entry(AlertRaised.type, -50, NOTICE),
        entry(AlertRaised.type, -40, PAGE),
        entry(AlertResolved.type, -30, OVER),
        entry(AlertResolved.type, -20, alert("never", "raised")),
        entry("io.slipway.newer.thing.v1", -10, {"any": "thing"}),
        entry(AlertRaised.type, -5, None),
    ]

    async def read(_: Any) -> list[alerts.Alert]:
        known: dict[str, alerts.Alert] = {}
        for one in records:
            alerts.record(known, one)
        return list(known.values())

    monkeypatch.setattr(alerts, "_from_topic", read)
    return records


def slipway(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["alert", *arguments], catch_exceptions=False)


def test_open_alerts_are_listed_pages_first() -> None:
    heading, *rows = slipway("ls").stdout.splitlines()
    assert heading.split() == ["severity", "kind", "subject", "since", "summary"]
    assert [row.split()[:3] for row in rows] == [
        ["page", "pool-tripped", "linux"],
        ["notice", "config-tripped", "zone-b"],
    ]


def test_the_alerts_of_these_tests_have_every_field() -> None:
    assert {*PAGE, *NOTICE} == set(AlertRaised.__struct_fields__)


def test_resolved_alerts_are_listed_on_request() -> None:
    heading, *rows = slipway("ls", "--all").stdout.splitlines()
    assert heading.split()[0] == "state"
    assert [row.split()[:3] for row in rows][-1] == ["resolved", "page", "quota-exhausted"]
    listed = json.loads(slipway("ls", "--all", "-o", "json").stdout)
    assert [(row["dedup_key"], row["state"], bool(row["resolved_at"])) for row in listed] == [
        (PAGE["dedup_key"], "open", False),
        (NOTICE["dedup_key"], "open", False),
        (OVER["dedup_key"], "resolved", True),
    ]


@pytest.mark.parametrize("name", ["linux", "pool-tripped/linux", PAGE["dedup_key"]])
def test_an_alert_is_shown_whole(name: str) -> None:
    lines = slipway("show", name).stdout.splitlines()
    assert [line.split()[0] for line in lines] == [
        *("alert", "severity", "state", "since", "summary", "effect", "Slipway", "remedy", "cause", "key"),
        *("evidence", "worker", "console", "slipway-worker"),
    ]
    assert "remedy    slipway why linux" in lines
    assert json.loads(slipway("show", name, "-o", "json").stdout)["evidence"] == PAGE["evidence"]


def test_the_alert_on_an_image_is_shown_with_the_console_of_its_machine(topic: list[Entry]) -> None:
    """Under its own kind, too."""
    image = {"subject_kind": "image", "evidence": ["worker w"]}
    printed = alert("never-registered", "ami-1", **image, console=["Booting", "\x1b[31mfailed"])
    topic += [
        entry(AlertRaised.type, -4, alert("image-unhealthy", "ami-1", **image)),
        entry(AlertRaised.type, -3, printed),
    ]
    for name in ("ami-1", "image-unhealthy/ami-1"):
        lines = slipway("show", name).stdout.splitlines()
        assert lines[0].split() == ["alert", "image-unhealthy", "ami-1"]
        assert [line.strip() for line in lines[-2:]] == ["console   Booting", "�[31mfailed"]
    assert json.loads(slipway("show", "ami-1", "-o", "json").stdout)["console"] == printed["console"]
    assert "never-registered ami-1" in slipway("show", "never-registered/ami-1").stdout


def test_an_open_alert_hides_a_resolved_one(topic: list[Entry]) -> None:
    topic += [entry(AlertRaised.type, -4, OTHER), entry(AlertResolved.type, -3, OTHER)]
    assert "config-tripped zone-b" in slipway("show", "zone-b").stdout
    assert "quota-exhausted sim-a" in slipway("show", "sim-a").stdout
    assert "resolved  " in slipway("show", "sim-a").stdout


def test_a_name_finds_the_alert_of_its_revision(topic: list[Entry]) -> None:
    topic.append(entry(AlertRaised.type, -4, alert("drain-overdue", "gecko-t/linux@3f2c9a")))
    for name in ("gecko-t/linux", "gecko-t/linux@3f2c9a", "drain-overdue/gecko-t/linux"):
        assert "drain-overdue gecko-t/linux@3f2c9a" in slipway("show", name).stdout
    assert slipway("show", "gecko-t").exit_code == 1


def test_unknown_and_ambiguous_names_are_refused(topic: list[Entry]) -> None:
    unknown = slipway("show", "solaris")
    assert (unknown.exit_code, unknown.stdout) == (1, "")
    assert unknown.stderr.startswith("There is no alert 'solaris'.\n`slipway alert ls` lists")
    topic.append(entry(AlertRaised.type, -4, OTHER))
    both = slipway("show", "zone-b")
    assert both.exit_code == 1
    assert both.stderr.startswith("'zone-b' names 2 alerts: recovered/zone-b, config-tripped/zone-b.")


def test_alerts_of_one_kind_on_one_account_are_named_by_their_keys(topic: list[Entry]) -> None:
    """Their kind and subject would not tell them apart."""
    keys = [f"provisioner/account-check/aws-1/{problem}" for problem in ("quota/standard", "subnet/subnet-1")]
    topic += [entry(AlertRaised.type, -4, alert("account-check", "aws-1") | {"dedup_key": key}) for key in keys]
    refused = slipway("show", "account-check/aws-1").stderr
    assert all(key in refused for key in keys)
    for key in keys:
        assert slipway("show", key).stdout.rstrip().splitlines()[-1].endswith(key)


def test_no_alerts(topic: list[Entry]) -> None:
    topic.clear()
    assert slipway("ls").stdout == "no open alerts\n"
    assert slipway("ls", "--all").stdout == "no alerts\n"
