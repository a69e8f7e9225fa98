"""`slipway lease` and `slipway lease-pool` against a stand-in for the lease-broker: one command each."""

import json
import shlex
import subprocess
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner, Result

from slipway_api.http.lease_pools import LeasePoolReport, OtherTerms, ThrottledBand
from slipway_client.cli.main import app
from slipway_client.leases import lease
from tests.support import lease_answers
from tests.support.lease_answers import ACQUIRE, CHANGED, HANDLE, LEASE, RELEASE, RENEW, LeaseBroker, problem, waiting
from tests.support.lease_commands import CANCEL, NOWHERE, run


def slipway(environment: dict[str, str], *arguments: str) -> Result:
    return CliRunner().invoke(app, ["lease", *arguments], env=environment, catch_exceptions=False)


def test_a_lease_is_printed_in_the_requested_format(broker: LeaseBroker, environment: dict[str, str]) -> None:
    assert slipway(environment, "acquire", "--pool", "aws-ci").stdout == f"{HANDLE}\n"
    received = json.loads(slipway(environment, "acquire", "--pool", "aws-ci", "-o", "json").stdout)
    assert (received["lease_id"], received["fencing_token"]) == (LEASE, 7)
    lines = slipway(environment, "acquire", "--pool", "aws-ci", "-o", "env").stdout
    shown = subprocess.run(
        ["sh", "-c", f"eval {shlex.quote(lines)}; env"], capture_output=True, text=True, check=True, env={}
    ).stdout.splitlines()
    assert {"SLIPWAY_FENCING_TOKEN=7", f"SLIPWAY_LEASE_ID={LEASE}", "SLIPWAY_LEASE_POOL=aws-ci"} <= set(shown)


def test_all_options_are_sent(broker: LeaseBroker, environment: dict[str, str]) -> None:
    slipway(
        environment,
        "acquire",
        "--pool",
        "aws-ci",
        "--operation",
        "destroy",
        "--hold",
        "20m",
        "--units",
        "2",
        "--tenant",
        "nightly",
        "--priority",
        "3",
        "--request-id",
        "r-1",
        "--replaces",
        "l-0:5",
        "--group",
        "payload",
        "--group-size",
        "10",
        "--spread",
        "15m",
        "--member",
        "0",
        "--max-wait",
        "0",
    )
    assert broker.bodies(ACQUIRE) == [
        {
            "request_id": "r-1",
            "operation": "destroy",
            "units": 2,
            "tenant": "nightly",
            "priority": 3,
            "hold_seconds": 1200.0,
            "replaces": {"lease_id": "l-0", "fencing_token": 5},
            "wait_seconds": 0.0,
            "group": {"name": "payload", "size": 10, "spread_seconds": 900.0, "member": 0},
        }
    ]
    slipway(environment, "acquire", "--pool", "aws-ci", "--request-id", "r-2")
    assert broker.bodies(ACQUIRE)[1] == {"request_id": "r-2", "wait_seconds": 0.0}


def test_a_request_without_an_id_is_cancelled_after_the_wait(broker: LeaseBroker, environment: dict[str, str]) -> None:
    """With one it stays in the queue, and its position is printed."""
    broker.answers[ACQUIRE] = [waiting()]
    answer = slipway(environment, "acquire", "--pool", "aws-ci", "--max-wait", "0")
    assert (answer.exit_code, answer.stdout) == (75, "")
    assert "no lease of aws-ci within 0 s; position 3, about 1 min, 50 of 50 units are held" in answer.stderr
    (request,) = (body["request_id"] for body in broker.bodies(ACQUIRE))
    assert broker.count(CANCEL + request) == 1
    broker.received.clear()
    mine = ("acquire", "--pool", "aws-ci", "--max-wait", "0", "--request-id", "host-1")
    assert slipway(environment, *mine).exit_code == 75
    shown = slipway(environment, *mine, "-o", "json")
    assert (shown.exit_code, json.loads(shown.stdout)["retry_after_seconds"]) == (75, 0.05)
    assert broker.count(CANCEL + "host-1") == 0


def test_an_unanswered_request_is_retried_with_the_same_id(broker: LeaseBroker, environment: dict[str, str]) -> None:
    """The id stays the same after errors whose effect is unknown: a lost reply must not become a second lease."""
    unclear = [problem(503, "unavailable"), (200, {"odd": 1})]
    broker.answers[ACQUIRE] = [*unclear, waiting(), waiting(), lease_answers.lease()]
    assert slipway(environment, "acquire", "--pool", "aws-ci").stdout == f"{HANDLE}\n"
    bodies = broker.bodies(ACQUIRE)
    assert [body["wait_seconds"] > 0 for body in bodies] == [False, False, False, True, True, False]
    assert len({body["request_id"] for body in bodies}) == 1


REFUSALS = [
    (problem(401, "unknown-token"), 77),
    (problem(403, "scope-missing"), 77),
    (problem(403, "wrong-owner"), 77),
    (problem(404, "unknown-lease-pool"), 78),
    (problem(422, "invalid-request"), 78),
    (problem(409, "request-conflict"), 78),
    (problem(410, "lease-ended", reason="released"), 76),
]


@pytest.mark.parametrize(("answer", "code"), REFUSALS, ids=[answer[1]["title"] for answer, _ in REFUSALS])
def test_a_refused_request_is_not_retried(
    broker: LeaseBroker, environment: dict[str, str], answer: Any, code: int
) -> None:
    """A refusal is final in every mode: a broker that refuses is available."""
    broker.answers[ACQUIRE] = [answer]
    assert slipway(environment, "acquire", "--pool", "aws-ci").exit_code == code
    ran = run(environment, "--fail-open", "optimistic", "--", "echo", "started")
    assert (ran.returncode, ran.stdout) == (125, "")
    assert [asked for asked, _ in broker.received] == [ACQUIRE, ACQUIRE]


HELD = [
    ("renew", RENEW, {"fencing_token": 7}, "300\n"),
    ("heartbeat", RENEW, {"fencing_token": 7}, "300\n"),
    ("confirm", f"POST /leases/{LEASE}/confirm", {"fencing_token": 7}, "300\n"),
    ("release", RELEASE, {"fencing_token": 7}, "1\n"),
]


@pytest.mark.parametrize(("command", "requested", "body", "value"), HELD, ids=[row[0] for row in HELD])
def test_a_lease_is_named_by_its_handle_or_the_environment(
    broker: LeaseBroker, environment: dict[str, str], command: str, requested: str, body: Any, value: str
) -> None:
    broker.answers[f"POST /leases/{LEASE}/confirm"] = [lease_answers.lease()]
    broker.answers[f"POST /leases/{LEASE}/heartbeat"] = [lease_answers.lease()]
    named = slipway(environment, command, HANDLE)
    ours = slipway(environment | {"SLIPWAY_LEASE_ID": LEASE, "SLIPWAY_FENCING_TOKEN": "7"}, command)
    assert [(each.exit_code, each.stdout) for each in (named, ours)] == [(0, value)] * 2
    assert broker.received == [(requested, body)] * 2
    assert slipway(environment, command).exit_code == 2
    assert slipway(environment, command, LEASE).exit_code == 2


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (problem(410, "lease-ended", reason="expired"), 76),
        (problem(409, "stale-token"), 76),
        (problem(403, "wrong-owner"), 77),
        (problem(404, "unknown-lease"), 78),
        (problem(503, "unavailable"), 69),
    ],
)
def test_why_a_lease_is_not_renewed(broker: LeaseBroker, environment: dict[str, str], answer: Any, code: int) -> None:
    broker.answers[RENEW] = [answer]
    received = slipway(environment, "renew", HANDLE)
    assert (received.exit_code, received.stdout) == (code, "")


def test_evidence_goes_with_the_release(broker: LeaseBroker, environment: dict[str, str]) -> None:
    slipway(
        environment,
        "release",
        HANDLE,
        "--remaining",
        "2",
        "--result",
        "failed",
        "--retry-after",
        "2m",
        "--quota-remaining",
        "9",
    )
    assert broker.bodies(RELEASE) == [
        {
            "fencing_token": 7,
            "remaining": 2,
            "result": "failed",
            "throttled": True,
            "retry_after_seconds": 120.0,
            "quota_remaining": 9,
        }
    ]


def test_leases_are_listed_by_name_for_scripts(broker: LeaseBroker, environment: dict[str, str]) -> None:
    broker.answers["GET /leases"] = [(200, {"items": [lease_answers.lease()[1]]}), (200, {"items": []})]
    assert slipway(environment, "ls", "-o", "name").stdout == f"{LEASE}\n"
    assert slipway(environment, "ls", "-o", "name").stdout == ""
    assert slipway(environment, "ls").stdout == "no leases\n"


@pytest.mark.parametrize(
    ("arguments", "requested"),
    [
        ((), {"mine": "true"}),
        (("--all",), {}),
        (("--pool", "aws-ci"), {"pool": "aws-ci"}),
        (("--tenant", "ci"), {"tenant": "ci"}),
    ],
)
def test_filters_of_the_list_of_leases(
    broker: LeaseBroker, environment: dict[str, str], arguments: tuple[str, ...], requested: dict[str, str]
) -> None:
    """Own leases by default; those of all holders with --pool, --tenant or --all."""
    broker.answers["GET /leases"] = [(200, {"items": []})]
    assert slipway(environment, "ls", *arguments).exit_code == 0
    assert broker.bodies("GET /leases") == [requested | {"limit": "101"}]


CHANGES = [
    (("set", "aws-ci", "--limit", "40"), {"limit": 40}),
    (
        ("set", "aws-ci", "--hold", "20m", "--ttl", "5m", "--revision", "3"),
        {"hold_seconds": 1200.0, "ttl_seconds": 300.0, "revision": 3},
    ),
    (("set", "aws-ci", "--pacing", "12s/3"), {"pacing": {"interval_seconds": 12.0, "burst": 3}}),
    (("set", "aws-ci", "--pacing", "12s"), {"pacing": {"interval_seconds": 12.0, "burst": 1}}),
    (("set", "aws-ci", "--pacing", "off"), {"pacing": "off"}),
    (("set", "aws-ci", "--pacing", "default"), {"pacing": None}),
    (("set", "aws-ci", "--pacing", "off", "--operation", "launch"), {"pacing": "off", "operation": "launch"}),
    (("set", "aws-ci", "--mode", "shadow"), {"mode": "shadow"}),
    (("pin", "aws-ci"), {"pinned": True}),
    (("unpin", "aws-ci"), {"pinned": False}),
]


@pytest.mark.parametrize(("command", "body"), CHANGES, ids=[" ".join(command) for command, _ in CHANGES])
def test_a_pool_is_changed_with_a_reason(
    broker: LeaseBroker, environment: dict[str, str], command: tuple[str, ...], body: Any
) -> None:
    """Terms that are not named stay unchanged."""
    broker.answers["PATCH /lease-pools/aws-ci"] = [(200, CHANGED)]
    assert slipway(environment, *command).exit_code == 2
    received = slipway(environment, *command, "--reason", "why")
    done = {"pin": "pinned", "unpin": "unpinned"}.get(command[0], "changed")
    assert (received.exit_code, received.stdout) == (0, f"lease pool aws-ci {done}, revision 4\n")
    assert broker.received == [("PATCH /lease-pools/aws-ci", body | {"reason": "why"})]


def test_a_limit_that_is_more_than_doubled_is_confirmed(broker: LeaseBroker, environment: dict[str, str]) -> None:
    """Without the digest nothing is changed, and the command to repeat is printed."""
    dangers = ["lease pool aws-ci: the maximum grows from 40 to 100"]
    refused = problem(409, "confirmation-required", digest="0123456789ab", dangers=dangers)
    broker.answers["PATCH /lease-pools/aws-ci"] = [refused, (200, CHANGED)]
    command = ("set", "aws-ci", "--limit", "100", "--reason", "more quota")
    answer = slipway(environment, *command)
    assert answer.exit_code == 4
    assert dangers[0] in answer.stderr
    repeat = "slipway lease set aws-ci --reason 'more quota' --limit 100 --confirm 0123456789ab"
    assert repeat in answer.stderr
    assert slipway(environment, *shlex.split(repeat)[2:]).exit_code == 0
    assert [body.get("confirm") for _, body in broker.received] == [None, "0123456789ab"]


def test_a_pool_is_drained_and_grants_again(broker: LeaseBroker, environment: dict[str, str]) -> None:
    requested = {how: f"POST /lease-pools/aws-ci/{how}" for how in ("drain", "undrain")}
    broker.answers |= {name: [(200, {})] for name in requested.values()}
    for how in requested:
        assert slipway(environment, how, "aws-ci", "--reason", "why").exit_code == 0
    assert broker.received == [(name, {"reason": "why"}) for name in requested.values()]


def test_a_gang_is_one_request(broker: LeaseBroker, environment: dict[str, str]) -> None:
    granted = {
        "request_id": "g",
        "leases": [lease_answers.lease()[1], lease_answers.lease(lease_id="l-2", fencing_token=1)[1]],
    }
    broker.answers["POST /lease-gangs"] = [waiting(), (200, granted)]
    members = ("--member", "aws-ci", "--member", "quay:10")
    received = slipway(environment, "gang", *members, "--request-id", "g", "--hold", "5m")
    assert received.stdout == f"{HANDLE}\nl-2:1\n"
    bodies = broker.bodies("POST /lease-gangs")
    assert bodies[0] == {
        "request_id": "g",
        "wait_seconds": 0.0,
        "members": [
            {"pool": "aws-ci", "hold_seconds": 300.0},
            {"pool": "quay", "units": 10, "hold_seconds": 300.0},
        ],
    }
    assert {body["request_id"] for body in bodies} == {"g"}


@pytest.mark.parametrize(
    "wrong",
    [
        ("acquire", "--pool", "p", "--spread", "5m"),
        ("acquire", "--pool", "p", "--group", "g"),
        ("acquire", "--pool", "p", "--group", "g", "--spread", "5m", "--group-size", "3", "--member", "3"),
        ("acquire", "--pool", "p", "--max-wait", "soon"),
        ("acquire", "--pool", "p", "--units", "0"),
        ("acquire", "--pool", "p", "--priority", "10"),
        ("acquire", "--pool", "p", "--replaces", "l-1"),
        ("run", "--pool", "p"),
        ("run", "--pool", "p", "--on-loss", "STOP", "--", "true"),
        ("run", "--pool", "p", "--fail-open", "maybe", "--", "true"),
        ("gang", "--member", "p:x"),
        ("acquire", "--pool", ""),
        ("run", "--pool", "", "--", "true"),
        ("cancel", "--pool", "", "r"),
        ("cancel", "--pool", "p", ""),
        ("set", "p", "--reason", "r"),
        ("set", "p", "--reason", "r", "--pacing", "5s/x"),
    ],
)
def test_a_usage_error_sends_no_request(
    broker: LeaseBroker, environment: dict[str, str], wrong: tuple[str, ...]
) -> None:
    """Its code is not one that the command of `run` may have."""
    answer = slipway(environment, *wrong)
    assert (answer.exit_code, answer.stdout, broker.received) == (125 if wrong[0] == "run" else 2, "", [])


def test_an_empty_pool_is_an_unset_variable(environment: dict[str, str]) -> None:
    assert "the lease pool id is empty" in slipway(environment, "acquire", "--pool", "").stderr


def test_an_invalid_duration_is_reported_with_its_option(environment: dict[str, str]) -> None:
    received = slipway(environment, "acquire", "--pool", "p", "--hold", "soon").stderr
    assert "--hold: 'soon' is not a duration" in received


def test_a_capped_hold_is_logged(broker: LeaseBroker, environment: dict[str, str]) -> None:
    """The hold of the stub's lease is 20 min; shorter requests log nothing."""
    words = "hold capped at 20 min (requested 30 min) by pool aws-ci"
    capped = slipway(environment, "acquire", "--pool", "aws-ci", "--hold", "30m")
    assert (capped.stdout, words in capped.stderr) == (f"{HANDLE}\n", True)
    assert words in run(environment, "--hold", "30m", "--", "true").stderr
    broker.answers["POST /lease-gangs"] = [(200, {"request_id": "g", "leases": [lease_answers.lease()[1]]})]
    assert words in slipway(environment, "gang", "--member", "aws-ci", "--hold", "30m").stderr
    for given in (("--hold", "20m"), ()):
        assert slipway(environment, "acquire", "--pool", "aws-ci", *given).stderr == ""


@pytest.mark.parametrize(
    ("body", "found"),
    [({"detail": "Not Found"}, ""), (problem(404, "not-found")[1] | {"title": "Not Found"}, " Not Found")],
)
def test_a_wrong_address_is_reported(
    broker: LeaseBroker, environment: dict[str, str], body: dict[str, Any], found: str
) -> None:
    """Either another server answers there, or a Slipway service that has no such path."""
    broker.answers[ACQUIRE] = [(404, body)]
    received = slipway(environment, "acquire", "--pool", "aws-ci")
    where = f"{environment['SLIPWAY_LEASE_BROKER_URL']}/lease-pools/aws-ci/leases"
    assert received.exit_code == 78
    assert f"POST {where} answered 404{found}: is it a lease-broker?" in received.stderr


def test_one_row_of_a_report_is_shown_as_pairs(broker: LeaseBroker, environment: dict[str, str]) -> None:
    at = datetime(2026, 8, 1, tzinfo=UTC)
    figures = LeasePoolReport(
        id="aws-ci",
        mode="enforce",
        limit=50,
        since=at,
        until=at,
        requests=9,
        starts_per_minute_most=3,
        throttled=0,
        bands=[ThrottledBand(least=least, most=least, starts=4, throttled=0) for least in (1, 2)],
        quiet_units=None,
        spreads=[],
        what_if=[
            OtherTerms(
                limit_units=40,
                hold_seconds=1200.0,
                interval_seconds=None,
                waited=0,
                never=0,
                concurrency_most=2,
                starts_per_minute_most=3,
                cut_short=0,
                wait_seconds_p50=0.0,
                wait_seconds_p95=12.0,
                wait_seconds_most=12.0,
            )
        ],
    )
    broker.answers["GET /lease-pools/aws-ci/report"] = [(200, msgspec.to_builtins(figures))]
    lines = slipway(environment, "report", "aws-ci").stdout.splitlines()
    assert lines[lines.index("bands:") + 1].split() == ["least", "most", "starts", "throttled"]
    pairs = lines[lines.index("what if:") + 1 :]
    assert (pairs[0].split(), pairs[-1].split()) == (["limit", "units", "40"], ["wait", "seconds", "most", "12"])


def test_a_drained_pool_has_no_other_mode(broker: LeaseBroker, environment: dict[str, str]) -> None:
    pool = lease_answers.POOL | {"mode": "enforce", "held": 0, "limit_in_force": 0, "limit_reason": "drained: replaced"}
    pool |= {"drained_reason": "replaced", "pinned_reason": None}
    broker.answers["GET /lease-pools"] = [(200, {"items": [pool]})]
    assert slipway(environment, "pools").stdout.splitlines()[1].split()[:5] == [
        "aws-ci",
        "drained",
        "0",
        "drained",
        "50",
    ]


#   declared, in force, reason → cells of limit and declared
LIMITS = [
    (50, 12, "derived: 2 × 6 units", ["12", "derived", "50"]),
    (50, 41, "adaptive", ["41", "adaptive", "50"]),
    (50, 50, "pinned: ratchet", ["50", "pinned", "50"]),
    (50, 0, "drained: moved", ["0", "drained", "50"]),
    (50, 50, "as declared", ["50", "50"]),
    (50, None, "", ["50", "50"]),  # not decided yet
]


@pytest.mark.parametrize(("declared", "in_force", "reason", "cells"), LIMITS)
def test_the_limit_in_force_is_shown_beside_the_declared_one(
    broker: LeaseBroker, environment: dict[str, str], declared: int, in_force: int | None, reason: str, cells: list[str]
) -> None:
    limits = {"limit": declared, "limit_in_force": in_force, "limit_reason": reason}
    broker.answers["GET /lease-pools"] = [(200, {"items": [lease_answers.POOL | limits]})]
    assert slipway(environment, "pools").stdout.splitlines()[1].split()[2 : 2 + len(cells)] == cells


def test_units_that_a_limit_derives_from_are_reported(broker: LeaseBroker, environment: dict[str, str]) -> None:
    answer = {"id": "metal", "units": 3, "valid_until": "2026-08-01T14:38:20Z"}
    broker.answers["PUT /lease-pools/metal/units"] = [(200, answer)]
    reported = slipway(environment, "units", "metal", "3", "--ttl", "10m")
    assert reported.exit_code == 0
    assert reported.stdout.startswith("lease pool metal: 3 units reported, valid until ")
    assert broker.received == [("PUT /lease-pools/metal/units", {"units": 3, "ttl_seconds": 600.0})]
    assert slipway(environment, "units", "metal", "-1").exit_code == 2


def test_an_operation_is_named_with_its_pacing(broker: LeaseBroker, environment: dict[str, str]) -> None:
    answer = slipway(environment, "set", "aws-ci", "--limit", "4", "--operation", "launch", "--reason", "why")
    assert (answer.exit_code, broker.received) == (2, [])
    assert "--operation names what --pacing changes" in answer.stderr


def test_a_lease_is_shown_with_one_id(broker: LeaseBroker, environment: dict[str, str]) -> None:
    broker.answers[f"GET /leases/{LEASE}"] = [(200, {"id": LEASE} | lease_answers.lease()[1])]
    assert slipway(environment, "status", LEASE).stdout.count(LEASE) == 1
    assert json.loads(slipway(environment, "status", LEASE, "-o", "json").stdout)["id"] == LEASE


def test_switched_off_no_request_is_sent(
    broker: LeaseBroker, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Single commands do nothing; `run` runs its command without a lease."""
    for word in ("OFF", "0", "false"):
        assert slipway(environment | {"SLIPWAY_LEASE": word}, "acquire", "--pool", "").exit_code == 0
    off = environment | {"SLIPWAY_LEASE": "off"}
    for command in (("acquire", "--pool", "aws-ci", "-o", "env"), ("renew",), ("release",)):
        answer = slipway(off, *command)
        assert (answer.exit_code, answer.stdout) == (0, "")
    ran = run(off, "--", "sh", "-c", "echo $SLIPWAY_LEASE_ID.; exit 7")
    assert (ran.returncode, ran.stdout, ran.stderr) == (7, ".\n", "")
    assert run(off, "--", "nosuch").returncode == 127
    monkeypatch.setenv("SLIPWAY_LEASE", "off")
    with lease("aws-ci", url=NOWHERE) as held:
        assert (held.lease_id, held.fencing_token, held.lost.is_set()) == ("", 0, False)
    assert broker.received == []


def test_a_wait_takes_nothing_from_a_lease(broker: LeaseBroker, environment: dict[str, str]) -> None:
    """The time of the grant within a long poll is unknown: a second request returns the remaining time."""
    broker.wait_seconds = 0.5
    broker.answers[ACQUIRE] = [waiting(), lease_answers.lease(ttl_seconds=0.4), lease_answers.lease()]
    ran = run(environment, "--on-loss", "TERM", "--", "sh", "-c", "sleep 0.2; exit 3")
    assert (ran.returncode, "lost" in ran.stderr) == (3, False)
