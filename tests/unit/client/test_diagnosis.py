"""Doctor: what is found wrong, and that each finding says what to do."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from slipway_client.diagnosis import FAIL, OK, WARN, Answer, Finding, Gathered, diagnose, healthy

NOW = datetime(2026, 8, 1, 14, 30, tzinfo=UTC)
SERVICES = ("provisioner", "weight-calculator", "lease-broker")


def status(service: str) -> dict[str, Any]:
    return {
        "service": service,
        "version": "1.2.0",
        "instance": "0",
        "ready": True,
        "reasons": [],
        "now": NOW.isoformat(),
        "database_now": NOW.isoformat(),
        "schema_revision": "0001",
        "partitions": [],
        "dead_letters": 0,
        "outbox_oldest_seconds": 0.0,
        "stopped_partitions": [],
        "standing": None,
    }


def answer(name: str, **fields: Any) -> Answer:
    return Answer(url="http://there", status=status(name) | fields, asked_at=NOW, answered_at=NOW)


WELL = Gathered(
    own_version="1.2.0",
    services={name: answer(name) for name in SERVICES},
    kafka="k:9092",
    differences=[],
    heartbeats=dict.fromkeys(SERVICES, NOW),
    alerts=[],
    brakes=[],
    pools=[],
    configs=[],
    now=NOW,
)
SILENT = Answer(
    url="http://there", error="the provisioner at http://there does not answer", asked_at=NOW, answered_at=NOW
)
CONFIG = {"id": "zone-a", "account_id": "sim-a", "state": "active", "circuit": "open", "reason": "a: open"}
BRAKE = {"scope": "account", "scope_id": "sim-a", "reason": "r", "by": "me", "until": None, "at": NOW.isoformat()}


def of_provisioner(**fields: Any) -> dict[str, Any]:
    return {"services": dict(WELL.services) | {"provisioner": answer("provisioner", **fields)}}


def at(seconds: float) -> str:
    return (NOW + timedelta(seconds=seconds)).isoformat()


def test_all_is_well() -> None:
    found = diagnose(WELL)
    assert {finding.level for finding in found} == {OK}
    assert [finding.what for finding in found] == [
        *SERVICES,
        "versions",
        "clocks",
        "kafka",
        "topics",
        "lag",
        "positions",
        "dead letters",
        "outbox",
        "heartbeats",
        "alerts",
        "brakes",
        "accounts",
    ]
    assert healthy(found)


def test_a_notice_is_told_and_nothing_is_wrong() -> None:
    """What Slipway handles by itself; pages come first."""
    notice = {"kind": "k", "summary": "zone-b is closed", "command": "slipway lc show zone-b", "severity": "notice"}
    page = {"kind": "p", "summary": "all is closed", "severity": "page"}
    found = diagnose(msgspec.structs.replace(WELL, alerts=[notice, page]))
    told = [(finding.level, finding.detail) for finding in found if finding.what == "alerts"]
    assert told == [(WARN, "all is closed"), (OK, "notice: zone-b is closed")]
    assert healthy(diagnose(msgspec.structs.replace(WELL, alerts=[notice])))


def test_who_is_active_is_told() -> None:
    """Of a service whose replicas take turns; to stand by is to be well."""
    for role, said in (("active", "; active, epoch 4, since"), ("standby", "; stands by, instance b is active, epoch")):
        standing = {"role": role, "instance": "b", "epoch": 4, "since": at(-60)}
        services = dict(WELL.services) | {"weight-calculator": answer("weight-calculator", standing=standing)}
        found = diagnose(msgspec.structs.replace(WELL, services=services))
        assert [finding.detail for finding in found if said in finding.detail] == [found[1].detail]
        assert healthy(found)


CASES: list[tuple[str, dict[str, Any], str, str, str]] = [
    (
        "unreachable",
        {"services": dict(WELL.services) | {"provisioner": SILENT}},
        FAIL,
        "provisioner the provisioner at http://there does not answer",
        "SLIPWAY_PROVISIONER_URL",
    ),
    (
        "another service",
        of_provisioner(service="lease-broker"),
        FAIL,
        "provisioner at http://there is the lease-broker",
        "SLIPWAY_PROVISIONER_URL",
    ),
    (
        "not ready",
        of_provisioner(ready=False, reasons=["no schema"]),
        FAIL,
        "provisioner is not ready: no schema",
        "log",
    ),
    (
        "versions",
        of_provisioner(version="1.3.0"),
        WARN,
        "versions differ: provisioner 1.3.0, weight-calculator 1.2.0, lease-broker 1.2.0, this command 1.2.0",
        "upgrade",
    ),
    ("clock ahead", of_provisioner(now=at(7)), WARN, "clocks provisioner is 7 s ahead of this machine", "NTP"),
    (
        "database behind",
        of_provisioner(database_now=at(-90)),
        WARN,
        "clocks provisioner's database is 1 min 30 s behind this machine",
        "NTP",
    ),
    (
        "kafka",
        {"kafka_error": "Kafka at k does not answer", "differences": None, "heartbeats": None, "alerts": None},
        FAIL,
        "kafka Kafka at k does not answer",
        "--kafka",
    ),
    (
        "topics missing",
        {"differences": [f"t{n}: missing" for n in range(5)]},
        FAIL,
        "topics missing: t0, t1, t2 and 2 more",
        "topic_admin",
    ),
    (
        "topics differ",
        {"differences": ["t: 4 partitions, wanted 32"]},
        WARN,
        "topics not as the registry wants them: t: 4 partitions, wanted 32",
        "--partitions",
    ),
    (
        "lag",
        of_provisioner(partitions=[{"topic": "t", "lag": lag} for lag in (600, None, 601)]),
        WARN,
        "lag provisioner is 1201 events behind on t",
        "replica",
    ),
    (
        "stopped",
        of_provisioner(stopped_partitions=[{"topic": "t", "partition": 3, "why": "another cluster"}]),
        FAIL,
        "positions provisioner has stopped on t 3: another cluster",
        "slipway topics adopt provisioner t 3 --at begin",
    ),
    (
        "dead letter",
        of_provisioner(dead_letters=1),
        FAIL,
        "dead letters provisioner could not apply 1",
        "slipway dlq ls provisioner",
    ),
    (
        "outbox",
        of_provisioner(outbox_oldest_seconds=75.0),
        FAIL,
        "outbox provisioner's oldest event has waited 1 min 15 s to be sent",
        "Kafka",
    ),
    (
        "silent",
        {"heartbeats": dict(WELL.heartbeats or {}) | {"lease-broker": NOW - timedelta(seconds=45)}},
        FAIL,
        "heartbeats lease-broker was last heard 45 s ago: the others take it for silent",
        "log",
    ),
    (
        "never heard",
        {"heartbeats": dict.fromkeys(SERVICES[:2], NOW)},
        WARN,
        "heartbeats lease-broker was never heard on this topic prefix",
        "start it",
    ),
    (
        "alert",
        {"alerts": [{"kind": "k", "summary": "it is odd", "effect": "none", "command": "slipway why x"}]},
        WARN,
        "alerts it is odd; none",
        "slipway why x",
    ),
    (
        "brake",
        {"brakes": [BRAKE | {"until": at(60)}]},
        WARN,
        "brakes launching is stopped in account sim-a until 14:31:00 by me: r",
        "slipway start-launching --account sim-a",
    ),
    (
        "paused pool",
        {"pools": [{"id": "linux", "paused": True, "paused_reason": "r", "paused_by": "me"}]},
        WARN,
        "brakes pool linux is paused by me: r",
        "slipway pool resume linux",
    ),
    (
        "frozen pool",
        {"pools": [{"id": "linux", "frozen": True, "frozen_reason": "r", "frozen_by": "me"}]},
        WARN,
        "brakes pool linux is frozen by me: r",
        "slipway pool unfreeze linux",
    ),
    (
        "account",
        {"configs": [CONFIG | {"circuit": "closed", "reason": "a: closed"}, CONFIG | {"state": "paused"}]},
        WARN,
        "accounts sim-a may only probe: zone-a closed; a: closed",
        "slipway lc show zone-a",
    ),
]


@pytest.mark.parametrize(("changes", "level", "told", "do"), [case[1:] for case in CASES], ids=[c[0] for c in CASES])
def test_problem(changes: dict[str, Any], level: str, told: str, do: str) -> None:
    """One thing is wrong: one finding says so, and what to do; all others stay ok."""
    found = diagnose(msgspec.structs.replace(WELL, **changes))
    problems = [finding for finding in found if finding.level != OK]
    assert [(problem.level, f"{problem.what} {problem.detail}") for problem in problems] == [(level, told)]
    assert do in problems[0].do
    assert not healthy(found)


def test_a_second_closed_config_leaves_the_account_alone() -> None:
    configs = [CONFIG, CONFIG | {"id": "zone-b", "circuit": "closed"}]
    assert healthy(diagnose(msgspec.structs.replace(WELL, configs=configs)))


def test_what_could_not_be_asked_for_is_not_called_well() -> None:
    """With everything down there is one finding per thing that is down, and no word about the rest."""
    down = Gathered(own_version="1.2.0", services=dict.fromkeys(SERVICES, SILENT), kafka="k", kafka_error="no", now=NOW)
    assert [(finding.level, finding.what) for finding in diagnose(down)] == [
        (FAIL, name) for name in (*SERVICES, "kafka")
    ]


def test_every_answer_may_take_its_time() -> None:
    """A slow answer is no wrong clock: its time lies between question and answer."""
    slow = answer("provisioner", now=at(20), database_now=at(25))
    slow = msgspec.structs.replace(slow, answered_at=NOW + timedelta(seconds=26))
    services = dict(WELL.services) | {"provisioner": slow}
    found = diagnose(msgspec.structs.replace(WELL, services=services))
    well = Finding(OK, "clocks", "services, database and this machine agree within 5 s")
    assert [finding for finding in found if finding.what == "clocks"] == [well]
