"""Findings of doctor: their grades, details and remedies."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from slipway_api.http.provisioner.accounts import Account
from slipway_api.http.provisioner.launch_configs import LaunchConfig
from slipway_api.http.provisioner.pools import LaunchStop, Pool
from slipway_api.http.provisioner.recovery import Deployment
from slipway_api.http.service import ListedAlert, ServiceStatus
from slipway_client.view import diagnosis
from slipway_client.view.diagnosis import FAIL, NOTE, OK, WARN, Finding, Gathered, ServiceAnswer, healthy
from tests.support.recorded import ACCOUNT, LISTED_ALERT, row

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
        "database_tls": True,
        "partitions": [],
        "dead_letters": 0,
        "outbox_oldest_seconds": 0.0,
        "stopped_partitions": [],
        "leadership": None,
    }


PARTITION = {"partition": 0, "owned": True, "next_offset": 0, "end_offset": 0, "lag": 0}


def answer(name: str, **fields: Any) -> ServiceAnswer:
    given = status(name) | fields
    given["partitions"] = [PARTITION | partition for partition in given["partitions"]]
    known = row(ServiceStatus, given)
    return ServiceAnswer(url="http://there", status=known, asked_at=NOW, answered_at=NOW)


WELL = Gathered(
    own_version="1.2.0",
    services={name: answer(name) for name in SERVICES},
    kafka="k:9092",
    differences=[],
    heartbeats=dict.fromkeys(SERVICES, NOW),
    alerts=[],
    deployment=Deployment(id="slipway-4be1c07d2a9f4e10", incarnation="8a1f"),
    launch_stops=[],
    pools=[],
    configs=[],
    now=NOW,
)
UNAVAILABLE = ServiceAnswer(
    url="http://there", error="the provisioner at http://there does not answer", asked_at=NOW, answered_at=NOW
)
CONFIG = {
    "live": 0,
    "id": "zone-a",
    "pool_id": "linux",
    "account_id": "sim-a",
    "state": "active",
    "health_state": "healthy",
    "reason": "zone-a healthy",
}
TRIPPED = CONFIG | {
    "id": "zone-b",
    "health_state": "tripped",
    "reason": "zone-b tripped: 2 capacity errors",
    "next_probe_at": (NOW + timedelta(seconds=12)).isoformat(),
}
LAUNCH_STOP = {"scope": "account", "scope_id": "sim-a", "reason": "r", "by": "me", "until": None, "at": NOW.isoformat()}


def of_provisioner(**fields: Any) -> dict[str, Any]:
    return {"services": dict(WELL.services) | {"provisioner": answer("provisioner", **fields)}}


def at(seconds: float) -> str:
    return (NOW + timedelta(seconds=seconds)).isoformat()


def diagnose(seen: Gathered) -> list[Finding]:
    """Findings on rows of which tests give the fields that matter; the others are as recorded."""
    alerts: Any = seen.alerts
    given: dict[str, tuple[type, Any]] = {
        "launch_stops": (LaunchStop, seen.launch_stops),
        "accounts": (Account, seen.accounts),
        "pools": (Pool, seen.pools),
        "configs": (LaunchConfig, seen.configs),
    }
    typed = {name: rows and [row(type_, one) for one in rows] for name, (type_, rows) in given.items()}
    listed = alerts and [msgspec.convert(LISTED_ALERT | one, ListedAlert) for one in alerts]
    return list(diagnosis.diagnose(msgspec.structs.replace(seen, alerts=listed, **typed)))


def test_everything_is_ok() -> None:
    found = diagnose(WELL)
    assert {finding.grade for finding in found} == {OK}
    assert [finding.check for finding in found] == [
        *SERVICES,
        "deployment",
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
        "launch stops",
        "health",
        "accounts",
        "drains",
    ]
    assert healthy(found)


def test_alerts_are_graded_by_severity() -> None:
    """Pages come first. A notice needs nobody, unless a whole pool is tripped."""
    notice = {"kind": "recovered", "summary": "zone-b recovered", "severity": "notice", "since": at(-10)}
    pool = {
        "kind": "pool-tripped",
        "summary": "all configs of linux are tripped",
        "severity": "notice",
        "since": at(-9),
    }
    page = {"kind": "p", "summary": "quota exhausted", "severity": "page"}
    found = diagnose(msgspec.structs.replace(WELL, alerts=[notice, pool, page]))
    assert [(finding.grade, finding.detail) for finding in found if finding.check == "alerts"] == [
        (WARN, "quota exhausted"),
        (NOTE, "zone-b recovered"),
        (WARN, "all configs of linux are tripped"),
    ]
    assert not healthy(found)
    assert healthy(diagnose(msgspec.structs.replace(WELL, alerts=[notice])))
    for seconds, silenced in ((60, True), (-60, False)):
        until = (WELL.now + timedelta(seconds=seconds)).isoformat()
        found = diagnose(msgspec.structs.replace(WELL, alerts=[page | {"silenced_until": until}]))
        assert healthy(found) is silenced


def test_a_tripped_config_is_a_note() -> None:
    """Others launch instead. Its alert would say the same again."""
    alert = {"kind": "config-tripped", "subject_id": "zone-b", "summary": "zone-b is tripped", "severity": "notice"}
    found = diagnose(msgspec.structs.replace(WELL, configs=[CONFIG, TRIPPED], alerts=[alert]))
    problems = [(finding.grade, finding.check, finding.detail) for finding in found if finding.grade != OK]
    assert problems == [(NOTE, "health", "zone-b tripped: 2 capacity errors; next probe in 12 s")]
    assert healthy(found)


@pytest.mark.parametrize(("pending", "grade", "tasks"), [(0, WARN, ""), (1, FAIL, "; 1 task pending")])
def test_a_tripped_pool_is_never_ok(pending: int, grade: str, tasks: str) -> None:
    pools = [{"id": "linux", "pending": pending}]
    found = diagnose(msgspec.structs.replace(WELL, pools=pools, configs=[TRIPPED]))
    assert [(finding.grade, finding.detail, finding.remedy) for finding in found if finding.check == "health"] == [
        (grade, f"pool linux launches only probes: zone-b is tripped{tasks}", "slipway why linux"),
        (
            NOTE,
            "zone-b tripped: 2 capacity errors; next probe in 12 s",
            "none needed; `slipway why zone-b` explains it",
        ),
    ]
    assert not healthy(found)


def test_a_refused_credential_is_explained() -> None:
    """Probes correct neither a credential nor a missing permission."""
    found = diagnose(msgspec.structs.replace(WELL, configs=[TRIPPED | {"tripped_by": "credential"}]))
    assert [finding.remedy for finding in found if finding.grade == NOTE] == ["slipway why zone-b"]


def test_the_leader_is_named() -> None:
    """Of a service with standbys; a standby is ok."""
    for role, words in (
        ("leader", "; leader, epoch 4, since"),
        ("standby", "; standby, instance b is the leader, epoch"),
    ):
        leadership = {"role": role, "instance": "b", "epoch": 4, "since": at(-60)}
        services = dict(WELL.services) | {"weight-calculator": answer("weight-calculator", leadership=leadership)}
        found = diagnose(msgspec.structs.replace(WELL, services=services))
        assert [finding.detail for finding in found if words in finding.detail] == [found[1].detail]
        assert healthy(found)


def test_heartbeats_have_their_ages() -> None:
    heartbeats = dict.fromkeys(SERVICES, NOW - timedelta(seconds=2))
    (found,) = (
        row for row in diagnose(msgspec.structs.replace(WELL, heartbeats=heartbeats)) if row.check == "heartbeats"
    )
    assert found.detail == "provisioner 2 s ago, weight-calculator 2 s ago, lease-broker 2 s ago"


CASES: list[tuple[str, dict[str, Any], str, str, str]] = [
    (
        "unreachable",
        {"services": dict(WELL.services) | {"provisioner": UNAVAILABLE}},
        FAIL,
        "provisioner the provisioner at http://there does not answer",
        "SLIPWAY_PROVISIONER_URL",
    ),
    (
        "another service",
        of_provisioner(service="lease-broker"),
        FAIL,
        "provisioner http://there is the lease-broker",
        "SLIPWAY_PROVISIONER_URL",
    ),
    (
        "not ready",
        of_provisioner(ready=False, reasons=["workers is not caught up"]),
        FAIL,
        "provisioner not ready: workers is not caught up",
        "read its log",
    ),
    (
        "no database",
        of_provisioner(ready=False, reasons=["the database is unavailable"]),
        FAIL,
        "provisioner not ready: the database is unavailable",
        "check that PostgreSQL runs and that the service can reach it; then read the log",
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
        "topics differ from the registry: t: 4 partitions, wanted 32",
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
        of_provisioner(stopped_partitions=[{"topic": "t", "partition": 3, "reason": "another cluster"}]),
        FAIL,
        "positions provisioner has stopped on t 3: another cluster",
        "slipway topics adopt provisioner t 3 --at begin",
    ),
    (
        "dead letter",
        of_provisioner(dead_letters=1),
        FAIL,
        "dead letters provisioner has 1 dead letter",
        "slipway dlq ls provisioner",
    ),
    (
        "outbox",
        of_provisioner(outbox_oldest_seconds=75.0),
        FAIL,
        "outbox provisioner's oldest event has waited 1 min 15 s to be published",
        "Kafka",
    ),
    (
        "stale heartbeat",
        {"heartbeats": dict(WELL.heartbeats or {}) | {"lease-broker": NOW - timedelta(seconds=45)}},
        FAIL,
        "heartbeats lease-broker heartbeat 45 s ago: the others treat it as unavailable",
        "log",
    ),
    (
        "no heartbeat",
        {"heartbeats": dict.fromkeys(SERVICES[:2], NOW)},
        WARN,
        "heartbeats no heartbeat of the lease-broker on this topic prefix",
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
        "launch stop",
        {"launch_stops": [LAUNCH_STOP | {"until": at(60)}]},
        WARN,
        "launch stops launching is stopped in account sim-a by me until 14:31:00: r",
        "slipway start-launching --account sim-a --reason …",
    ),
    (
        "paused pool",
        {"pools": [{"id": "linux", "paused": True, "paused_reason": "r", "paused_by": "me"}]},
        WARN,
        "launch stops pool linux is paused by me: r",
        "slipway pool resume linux",
    ),
    (
        "frozen pool",
        {"pools": [{"id": "linux", "frozen": True, "frozen_reason": "r", "frozen_by": "me"}]},
        WARN,
        "launch stops pool linux is frozen by me: r",
        "slipway pool unfreeze linux",
    ),
    (
        "unreachable account",
        {"accounts": [ACCOUNT | {"unreachable": True, "unanswered_since": at(-300), "unknown_calls": 3}]},
        FAIL,
        "accounts sim-a has not answered since 14:25:00: 3 unknown calls, 1 worker to terminate",
        "`slipway account check sim-a` says why; if it will never answer again: slipway account retire sim-a",
    ),
    (
        "unresponsive workers",
        {"accounts": [ACCOUNT | {"mass_unresponsive": True}]},
        FAIL,
        "accounts so many workers of sim-a are unresponsive that none is stopped",
        "once they are known to be dead: slipway account confirm-unresponsive sim-a",
    ),
    (
        "checked account",
        {"accounts": [ACCOUNT | {"problems": 2, "checked_at": at(-60)}]},
        WARN,
        "accounts sim-a had 2 problems when it was checked at 14:29:00",
        "slipway account check sim-a",
    ),
    (
        "account with a problem",
        {"accounts": [ACCOUNT | {"problems": 1, "checked_at": at(-60), "problem": "/usr/bin/tofu is missing"}]},
        WARN,
        "accounts sim-a had 1 problem when it was checked at 14:29:00: /usr/bin/tofu is missing",
        "slipway account check sim-a",
    ),
    (
        "account",
        {"configs": [TRIPPED, CONFIG | {"pool_id": "other", "account_id": "sim-b"}, CONFIG | {"account_id": "sim-b"}]},
        WARN,
        "accounts sim-a launches only probes: zone-b is tripped",
        "slipway why zone-b",
    ),
]


def test_a_retired_account_is_a_note_while_something_may_run_there() -> None:
    retired = ACCOUNT | {"retired": True, "unreachable": True}
    found = diagnose(msgspec.structs.replace(WELL, accounts=[retired | {"may_still_run": 2}]))
    assert [(finding.grade, finding.detail) for finding in found if finding.check == "accounts"] == [
        (NOTE, "sim-a is retired; 2 machines may still run there")
    ]
    assert all(finding.grade == OK for finding in diagnose(msgspec.structs.replace(WELL, accounts=[retired])))


def test_throttled_calls_are_one_note_with_what_the_limiter_does() -> None:
    """The notice on them says the same."""
    account = ACCOUNT | {"throttled": True, "throttled_since": at(-90), "throttled_calls": 37}
    notice = {"kind": "account-throttled", "subject_id": "sim-a", "severity": "notice", "summary": "throttled"}
    found = diagnose(msgspec.structs.replace(WELL, accounts=[account], alerts=[notice]))
    assert [(finding.grade, finding.detail, finding.remedy) for finding in found if finding.grade != OK] == [
        (
            NOTE,
            "sim-a throttles calls, 37 since 14:28:30: each is made again, and lease pool sim-a grants none before the "
            "provider's Retry-After has passed",
            "slipway lease report sim-a --since 1h",
        )
    ]


@pytest.mark.parametrize(
    ("changes", "grade", "text", "remedy"), [case[1:] for case in CASES], ids=[c[0] for c in CASES]
)
def test_problem(changes: dict[str, Any], grade: str, text: str, remedy: str) -> None:
    """One problem: one finding with a remedy; all others stay ok."""
    found = diagnose(msgspec.structs.replace(WELL, **changes))
    problems = [finding for finding in found if finding.grade not in (OK, NOTE)]
    assert [(problem.grade, f"{problem.check} {problem.detail}") for problem in problems] == [(grade, text)]
    assert remedy in problems[0].remedy
    assert not healthy(found)


def test_a_paused_config_is_a_note() -> None:
    """A person paused it on purpose; the deployment is healthy."""
    paused = CONFIG | {"state": "paused", "state_by": "me", "state_reason": "r"}
    found = diagnose(msgspec.structs.replace(WELL, configs=[CONFIG, paused | {"id": "zone-p"}]))
    (note,) = (finding for finding in found if finding.grade == NOTE)
    assert (note.check, note.detail) == ("launch stops", "launch config zone-p is paused by me: r")
    assert note.remedy.startswith("slipway lc resume zone-p")
    assert healthy(found)


DRAINING = CONFIG | {"id": "zone-a@3f2c9a", "state": "draining", "current": False, "live": 2, "drain_until": at(-60)}


@pytest.mark.parametrize(
    ("fields", "grade", "detail"),
    [
        ({}, WARN, "zone-a@3f2c9a drains: 2 workers left, 1 min over the deadline"),
        (
            {"drain_terminate": True},
            NOTE,
            "zone-a@3f2c9a drains: 2 workers left, 1 min over the deadline, being terminated",
        ),
        ({"drain_until": at(60)}, OK, "none is over its deadline"),
        ({"live": 0}, OK, "none is over its deadline"),
        ({"state": "archived"}, OK, "none is over its deadline"),
    ],
)
def test_drains_over_their_deadlines(fields: dict[str, Any], grade: str, detail: str) -> None:
    found = diagnose(msgspec.structs.replace(WELL, configs=[CONFIG, DRAINING | fields]))
    assert [(finding.grade, finding.detail) for finding in found if finding.check == "drains"] == [(grade, detail)]


def test_a_pause_of_several_revisions_is_one_note() -> None:
    both = [CONFIG | {"id": id_, "state": "paused"} for id_ in ("zone-a@1", "zone-a@2")]
    found = [finding for finding in diagnose(msgspec.structs.replace(WELL, configs=both)) if finding.grade != OK]
    assert [(finding.detail, finding.remedy) for finding in found] == [
        ("launch config zone-a is paused", "slipway lc resume zone-a --reason …")
    ]


def test_no_lag_is_claimed_while_kafka_does_not_answer() -> None:
    """Services learn of new events from Kafka: that they have read what they know of means nothing."""
    found = diagnose(msgspec.structs.replace(WELL, kafka_error="Kafka at k:9092 did not answer within 8 s"))
    (lag,) = [finding for finding in found if finding.check == "lag"]
    assert (lag.grade, lag.detail) == (NOTE, "unknown: Kafka did not answer")


def test_a_standby_before_the_first_election() -> None:
    leadership = {"role": "standby", "instance": "", "epoch": 0, "since": None}
    services = dict(WELL.services) | {"weight-calculator": answer("weight-calculator", leadership=leadership)}
    found = diagnose(msgspec.structs.replace(WELL, services=services))
    (service,) = (finding for finding in found if finding.check == "weight-calculator")
    assert (service.grade, service.detail.partition("; ")[2]) == (OK, "standby, no leader has been elected yet")


def test_facts_that_are_missing_are_not_graded() -> None:
    """With everything down there is one finding for each, and none about the rest."""
    down = Gathered(
        own_version="1.2.0", services=dict.fromkeys(SERVICES, UNAVAILABLE), kafka="k", kafka_error="no", now=NOW
    )
    assert [(finding.grade, finding.check) for finding in diagnose(down)] == [
        (FAIL, name) for name in (*SERVICES, "kafka")
    ]


def test_a_restore_waits_for_confirmation() -> None:
    """No command that starts launching is the remedy."""
    stop = LAUNCH_STOP | {"scope": "restore", "scope_id": "", "reason": "restored", "by": "provisioner"}
    found = diagnose(msgspec.structs.replace(WELL, launch_stops=[stop]))
    (finding,) = [each for each in found if each.check == "launch stops"]
    assert finding.grade == WARN
    assert "launching is stopped everywhere" in finding.detail
    assert finding.remedy == "slipway doctor --after-restore; then slipway db confirm"


def test_a_slow_answer_is_no_clock_skew() -> None:
    """Its time lies between question and answer."""
    slow = answer("provisioner", now=at(20), database_now=at(25))
    slow = msgspec.structs.replace(slow, answered_at=NOW + timedelta(seconds=26))
    services = dict(WELL.services) | {"provisioner": slow}
    found = diagnose(msgspec.structs.replace(WELL, services=services))
    well = Finding(OK, "clocks", "services, databases and this machine agree within 5 s")
    assert [finding for finding in found if finding.check == "clocks"] == [well]
