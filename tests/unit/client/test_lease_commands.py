"""`slipway lease` against a stub broker: requests, output and exit codes."""

import asyncio
import json
import shlex
import signal
import subprocess
import sys
import threading
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from typer.testing import CliRunner, Result

from slipway_client.cli.main import app
from slipway_client.leases import LeaseLost, NotAdmitted, Refused, Unreachable, lease
from slipway_client.leases.attempts import Attempt
from slipway_client.leases.state import Spooled, State
from slipway_client.leases.terms import Lease, Start, Wanted
from slipway_common.base.clock import monotonic_seconds
from slipway_common.events.lease import ReplacedLease
from tests.support import lease_answers
from tests.support.harness import until
from tests.support.lease_answers import ACQUIRE, HANDLE, LEASE, RELEASE, RENEW, UNLEASED, LeaseBroker, problem, waiting

NOWHERE = "http://127.0.0.1:1"
COMMAND = [sys.executable, "-c", "from slipway_client.cli.main import app; app(prog_name='slipway')", "lease"]
CANCEL = "DELETE /lease-pools/aws-ci/requests/"
SECONDS = 60.0
# Renewed after a third, and trusted for nine tenths: the time between bears with a busy machine.
TTL_SECONDS: Final = 9.0


def slipway(environment: dict[str, str], *arguments: str) -> Result:
    return CliRunner().invoke(app, ["lease", *arguments], env=environment, catch_exceptions=False)


def run(environment: dict[str, str], *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run `slipway lease run` as a process of its own."""
    return subprocess.run(
        [*COMMAND, "run", "--pool", "aws-ci", *arguments],
        env={"PATH": "/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def run_until(environment: dict[str, str], words: str, *arguments: str) -> tuple[int, str]:
    """Run `slipway lease run` with a command that waits for the end of its input, which comes once these words are
    logged, or after a minute; exit code and log."""
    process = subprocess.Popen(
        [*COMMAND, "run", "--pool", "aws-ci", *arguments],
        env={"PATH": "/usr/bin:/bin", **environment},
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdin is not None
        assert process.stderr is not None
        patience = threading.Timer(SECONDS, process.stdin.close)
        patience.start()
        log = []
        for line in process.stderr:
            log.append(line)
            if words in line:
                process.stdin.close()
        patience.cancel()
    return process.returncode, "".join(log)


# One command each


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
    assert broker.bodies(ACQUIRE)[1] == {
        "request_id": "r-2",
        "operation": "install",
        "units": 1,
        "priority": 0,
        "wait_seconds": 0.0,
    }


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
    ("release", RELEASE, {"fencing_token": 7, "result": "done", "throttled": False}, "1\n"),
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
    assert broker.bodies("GET /leases") == [requested]


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
    broker.answers["PATCH /lease-pools/aws-ci"] = [(200, {"id": "aws-ci", "revision": 4})]
    assert slipway(environment, *command).exit_code == 2
    received = slipway(environment, *command, "--reason", "why")
    done = {"pin": "pinned", "unpin": "unpinned"}.get(command[0], "changed")
    assert (received.exit_code, received.stdout) == (0, f"lease pool aws-ci {done}, revision 4\n")
    assert broker.received == [("PATCH /lease-pools/aws-ci", body | {"reason": "why"})]


def test_a_limit_that_is_more_than_doubled_is_confirmed(broker: LeaseBroker, environment: dict[str, str]) -> None:
    """Without the digest nothing is changed, and the command to repeat is printed."""
    dangers = ["lease pool aws-ci: the maximum grows from 40 to 100"]
    refused = problem(409, "confirmation-required", digest="0123456789ab", dangers=dangers)
    broker.answers["PATCH /lease-pools/aws-ci"] = [refused, (200, {"id": "aws-ci", "revision": 4})]
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
    granted = {"leases": [lease_answers.lease()[1], lease_answers.lease(lease_id="l-2", fencing_token=1)[1]]}
    broker.answers["POST /lease-gangs"] = [waiting(), (200, granted)]
    members = ("--member", "aws-ci", "--member", "quay:10")
    received = slipway(environment, "gang", *members, "--request-id", "g", "--hold", "5m")
    assert received.stdout == f"{HANDLE}\nl-2:1\n"
    bodies = broker.bodies("POST /lease-gangs")
    assert bodies[0] == {
        "request_id": "g",
        "operation": "install",
        "wait_seconds": 0.0,
        "members": [
            {"pool": "aws-ci", "units": 1, "hold_seconds": 300.0},
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


def test_an_empty_pool_is_an_unset_variable(environment: dict[str, str], options: dict[str, Any]) -> None:
    assert "the lease pool id is empty" in slipway(environment, "acquire", "--pool", "").stderr
    with pytest.raises(ValueError, match="lease pool id is empty"):
        lease("", **options)


def test_an_invalid_duration_is_reported_with_its_option(environment: dict[str, str]) -> None:
    received = slipway(environment, "acquire", "--pool", "p", "--hold", "soon").stderr
    assert "--hold: 'soon' is not a duration" in received


def test_a_capped_hold_is_logged(broker: LeaseBroker, environment: dict[str, str]) -> None:
    """The hold of the stub's lease is 20 min; shorter requests log nothing."""
    words = "hold capped at 20 min (requested 30 min) by pool aws-ci"
    capped = slipway(environment, "acquire", "--pool", "aws-ci", "--hold", "30m")
    assert (capped.stdout, words in capped.stderr) == (f"{HANDLE}\n", True)
    assert words in run(environment, "--hold", "30m", "--", "true").stderr
    broker.answers["POST /lease-gangs"] = [(200, {"leases": [lease_answers.lease()[1]]})]
    assert words in slipway(environment, "gang", "--member", "aws-ci", "--hold", "30m").stderr
    for given in (("--hold", "20m"), ()):
        assert slipway(environment, "acquire", "--pool", "aws-ci", *given).stderr == ""


@pytest.mark.parametrize("body", [{"detail": "Not Found"}, problem(404, "not-found")[1] | {"title": "Not Found"}])
def test_a_wrong_address_is_reported(broker: LeaseBroker, environment: dict[str, str], body: dict[str, Any]) -> None:
    """Either another server answers there, or a Slipway service that has no such path."""
    broker.answers[ACQUIRE] = [(404, body)]
    received = slipway(environment, "acquire", "--pool", "aws-ci")
    where = f"{environment['SLIPWAY_LEASE_BROKER_URL']}/lease-pools/aws-ci/leases"
    assert received.exit_code == 78
    assert f"POST {where} answered 404 Not Found: is it a lease-broker?" in received.stderr


def test_one_row_of_a_report_is_shown_as_pairs(broker: LeaseBroker, environment: dict[str, str]) -> None:
    bands = [{"units": 1, "starts": 4}, {"units": 2, "starts": 5}]
    body = {"id": "aws-ci", "bands": bands, "what_if": [{"limit": 40, "wait_seconds_p95": 12.0}]}
    broker.answers["GET /lease-pools/aws-ci/report"] = [(200, body)]
    lines = slipway(environment, "report", "aws-ci").stdout.splitlines()
    assert lines[lines.index("bands:") + 1].split() == ["units", "starts"]
    assert lines[lines.index("what if:") + 1 :] == ["limit             40", "wait seconds p95  12"]


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


# run


@pytest.mark.parametrize(
    ("command", "code", "result"),
    [("exit 7", 7, "failed"), ("exit 0", 0, "done"), ("kill -9 $$", 137, "failed"), ("kill -INT $$", 130, "failed")],
)
def test_run_exits_like_its_command_and_releases_once(
    broker: LeaseBroker, environment: dict[str, str], command: str, code: int, result: str
) -> None:
    ran = run(environment, "--", "sh", "-c", command)
    assert (ran.returncode, ran.stdout, ran.stderr) == (code, "", "")
    (requested,) = broker.bodies(ACQUIRE)
    released = {"fencing_token": 7, "result": result, "throttled": False, "holder": requested["holder"]}
    assert broker.bodies(RELEASE) == [released]


def test_the_command_gets_our_input_and_knows_its_lease(broker: LeaseBroker, environment: dict[str, str]) -> None:
    code = "read line; echo $line $SLIPWAY_LEASE_ID $SLIPWAY_FENCING_TOKEN $SLIPWAY_LEASE_POOL"
    ran = subprocess.run(
        [*COMMAND, "run", "--pool", "aws-ci", "--", "sh", "-c", code],
        input="hello\n",
        text=True,
        capture_output=True,
        env={"PATH": "/usr/bin:/bin", **environment, "SLIPWAY_LEASE_ID": "outer"},
        timeout=SECONDS,
        check=True,
    )
    assert ran.stdout == f"hello {LEASE} 7 aws-ci\n"


def test_a_command_that_cannot_start_holds_nothing(broker: LeaseBroker, environment: dict[str, str]) -> None:
    ran = run(environment, "--", "nosuch")
    assert (ran.returncode, broker.count(RELEASE)) == (127, 1)
    assert "cannot start nosuch" in ran.stderr


def test_an_unanswered_release_is_retried(broker: LeaseBroker, environment: dict[str, str]) -> None:
    broker.answers[RELEASE] = [problem(503, "unavailable"), problem(503, "unavailable"), lease_answers.RELEASED]
    assert run(environment, "--", "true").returncode == 0
    assert broker.count(RELEASE) == 3


def test_an_exit_code_can_mean_that_the_account_throttles(broker: LeaseBroker, environment: dict[str, str]) -> None:
    for code in (4, 5):
        run(environment, "--throttled-exit", "4", "--", "sh", "-c", f"exit {code}")
    assert [body["throttled"] for body in broker.bodies(RELEASE)] == [True, False]


def test_a_command_that_was_asked_to_stop_has_not_failed(broker: LeaseBroker, environment: dict[str, str]) -> None:
    """A failure would slow down the tenant."""
    script = "kill -TERM $PPID; sleep 60"
    assert run(environment, "--", "sh", "-c", script).returncode == 143
    assert [body["result"] for body in broker.bodies(RELEASE)] == ["cancelled"]


IN_BACKGROUND = """
trap '' INT QUIT
"$@" lease run --pool aws-ci -- {command} &
wait $!
echo "code $?"
"""
UNTIL_SIGNAL: Final = """
import os, signal, time
print([signal.getsignal(signum) is signal.SIG_IGN for signum in (signal.SIGINT, signal.SIGQUIT)])
signal.signal(signal.SIGTERM, lambda *_: exit(5))
os.kill(os.getppid(), signal.SIGTERM)
time.sleep(60)
"""


def test_a_command_in_the_background_of_a_script_ignores_no_signals(
    broker: LeaseBroker, environment: dict[str, str]
) -> None:
    """A shell without job control starts it with SIGINT and SIGQUIT ignored. SIGTERM to `slipway` ends both."""
    command = shlex.join([sys.executable, "-c", UNTIL_SIGNAL])
    ran = subprocess.run(
        ["bash", "-c", IN_BACKGROUND.format(command=command), "bash", *COMMAND[:-1]],
        env={"PATH": "/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert (ran.stdout.splitlines(), broker.count(RELEASE)) == (["[False, False]", "code 5"], 1)


AT_A_TERMINAL = """
trap 'echo own INT trap' INT
"$@" lease run --pool aws-ci -- {command}
echo "code $?"
"""
COUNTS: Final = """
import signal, time
got = []
signal.signal(signal.SIGINT, lambda *_: got.append(1))
print("up", flush=True)
while not got:
    time.sleep(0.05)
time.sleep(0.5)
print("got", len(got))
"""


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (shlex.join([sys.executable, "-c", COUNTS]), ["up", "got 1", "own INT trap", "code 0"]),
        ("sh -c 'echo up; exec sleep 60'", ["up", "own INT trap", "code 130"]),
    ],
)
def test_ctrl_c_reaches_command_and_script_once_each(
    broker: LeaseBroker, environment: dict[str, str], command: str, words: list[str]
) -> None:
    """A terminal sends it to both, and to us: we only have to release."""
    spawn = "import pty, sys; pty.spawn(sys.argv[1:])"
    script = ["bash", "-c", AT_A_TERMINAL.format(command=command), "bash", *COMMAND[:-1]]
    process = subprocess.Popen(
        [sys.executable, "-c", spawn, *script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"PATH": "/usr/bin:/bin", **environment},
    )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        lines = [process.stdout.readline().decode().strip()]
        process.stdin.write(b"\x03")
        process.stdin.flush()
        lines += [line.decode().strip().removeprefix("^C") for line in process.stdout]
    finally:
        process.kill()
        process.wait()
    assert (lines, broker.count(RELEASE)) == (words, 1)


def test_a_lost_lease_sends_the_chosen_signal(broker: LeaseBroker, environment: dict[str, str]) -> None:
    """A lost lease is not released: its units may be another holder's."""
    broker.answers[ACQUIRE] = [lease_answers.lease(ttl_seconds=TTL_SECONDS)]
    broker.answers[RENEW] = [problem(410, "lease-ended", reason="expired")]
    script = "trap 'echo told; exit 9' USR1; while :; do sleep 0.05; done"
    ran = run(environment, "--on-loss", "USR1", "--", "sh", "-c", script)
    assert (ran.returncode, ran.stdout) == (9, "told\n")
    assert "lease lost: expired; sending SIGUSR1 to the command" in ran.stderr
    assert broker.count(RELEASE) == 0


def test_a_command_outlives_its_lost_lease(broker: LeaseBroker, environment: dict[str, str]) -> None:
    """The rest of its hold counts as an unleased start, under an id of the lease, until the command ends."""
    broker.answers[ACQUIRE] = [lease_answers.lease(ttl_seconds=0.6)]
    broker.answers[RENEW] = [problem(410, "lease-ended", reason="lost")]
    broker.answers[UNLEASED] = [(200, {"items": [lease_answers.lease(lease_id="l-0", fencing_token=8)[1]]})]
    broker.answers["POST /leases/l-0/release"] = [lease_answers.RELEASED]
    lost = "lease lost: lost; the command continues; the rest of its hold is charged as an unleased start"
    code, log = run_until(environment, lost, "--", "sh", "-c", "read line; exit 3")
    assert (code, lost in log) == (3, True)
    charged = {
        "request_id": f"lost-{LEASE}",
        "operation": "install",
        "units": 1,
        "started_at": lease_answers.lease()[1]["granted_at"],
        "hold_seconds": 1200.0,
        "cause": "lost",
    }
    # Reported again at the end of a command that ends before the answer.
    assert all(body == {"starts": [charged]} for body in broker.bodies(UNLEASED))
    assert broker.count(UNLEASED) >= 1
    assert [body["result"] for body in broker.bodies("POST /leases/l-0/release")] == ["failed"]
    assert broker.count(RELEASE) == 0


def test_the_loss_to_another_attempt_is_not_charged(broker: LeaseBroker, environment: dict[str, str]) -> None:
    """Its units count for that attempt."""
    broker.answers[ACQUIRE] = [lease_answers.lease(ttl_seconds=0.6)]
    broker.answers[RENEW] = [problem(410, "lease-ended", reason="replaced")]
    lost = "lease lost: replaced; the command continues\n"
    code, log = run_until(environment, "lease lost", "--on-loss", "continue", "--", "sh", "-c", "read line; exit 3")
    assert (code, lost in log, broker.count(UNLEASED)) == (3, True, 0)


def test_an_outage_beyond_the_ttl_is_no_loss(broker: LeaseBroker, environment: dict[str, str]) -> None:
    """A renewal is retried until the hold ends. A proxy that answers with a 404 of its own has not ended the lease, nor
    has a token that is refused for a while."""
    broker.answers[ACQUIRE] = [lease_answers.lease(ttl_seconds=0.6)]
    unclear = [problem(503, "unavailable"), problem(404, ""), problem(401, "invalid-token")]
    broker.answers[RENEW] = [*unclear, problem(503, "unavailable"), lease_answers.lease()]
    renewed = "the lease was renewed: nobody else had its units"
    code, log = run_until(environment, renewed, "--", "sh", "-c", "read line; exit 3")
    assert (code, renewed in log, "another holder may have its units" in log) == (3, True, True)
    assert (broker.count(UNLEASED), broker.count(RELEASE)) == (0, 1)


@pytest.mark.parametrize("on_loss", ["continue", "term"])
def test_the_end_of_the_hold_ends_nothing_else(broker: LeaseBroker, environment: dict[str, str], on_loss: str) -> None:
    """Also for a command that would get a signal after a loss."""
    broker.answers[ACQUIRE] = [lease_answers.lease(hold_seconds=1.0)]
    ended = "lease ended (hold); the command continues without a lease"
    code, log = run_until(environment, ended, "--on-loss", on_loss, "--", "sh", "-c", "read line; exit 0")
    assert (code, ended in log, broker.count(RENEW)) == (0, True, 0)
    assert [body["result"] for body in broker.bodies(RELEASE)] == ["done"]


def test_a_lease_is_renewed_while_the_command_runs(broker: LeaseBroker, environment: dict[str, str]) -> None:
    broker.answers[ACQUIRE] = [lease_answers.lease(ttl_seconds=TTL_SECONDS)]
    broker.answers[RENEW] = [*broker.answers[ACQUIRE] * 2, problem(410, "lease-ended", reason="hold")]
    code, _ = run_until(environment, "lease ended (hold)", "--", "sh", "-c", "read line; exit 3")
    assert (code, broker.count(RENEW), broker.count(RELEASE)) == (3, 3, 1)


def test_the_next_attempt_replaces_the_lease_of_the_one_before(
    broker: LeaseBroker, environment: dict[str, str]
) -> None:
    """The job is the calling process; a success leaves nothing to replace."""
    for number, code in ((1, 4), (2, 0), (3, 0)):
        run(environment, "--attempt", str(number), "--", "sh", "-c", f"exit {code}")
    bodies = broker.bodies(ACQUIRE)
    assert [body.get("replaces") for body in bodies] == [None, {"lease_id": LEASE, "fencing_token": 7}, None]
    assert len({body["request_id"] for body in bodies}) == 3


def test_a_job_with_an_id_is_found_by_it(options: dict[str, Any]) -> None:
    """The id identifies the job for every caller; --replaces takes precedence over the recorded lease."""
    logged: list[str] = []

    def attempt(number: int, replaces: ReplacedLease | None = None) -> Attempt:
        wanted = Wanted(lease_pool_id="aws-ci", request_id="job-1", replaces=replaces)
        return Attempt(options["url"], number, wanted, given_id=True, log=logged.append)

    first = attempt(1)
    first.granted(msgspec.convert(lease_answers.lease()[1], Lease))
    second, third = attempt(2), attempt(3, ReplacedLease(lease_id="l-9", fencing_token=9))
    assert [each.wanted.request_id for each in (first, second, third)] == ["job-1", "job-1.2", "job-1.3"]
    assert first.wanted.replaces is None
    assert second.wanted.replaces == ReplacedLease(lease_id=LEASE, fencing_token=7)
    assert third.wanted.replaces == ReplacedLease(lease_id="l-9", fencing_token=9)
    assert logged == []
    second.succeeded()
    assert attempt(3).wanted.replaces is None
    assert "no lease of attempt 2 is recorded on this host" in logged[0]


def test_a_lease_that_cannot_be_replaced_costs_its_credit_only(
    broker: LeaseBroker, environment: dict[str, str]
) -> None:
    broker.answers[ACQUIRE] = [problem(404, "unknown-lease"), lease_answers.lease()]
    assert run(environment, "--attempt", "2", "--replaces", "l-0:5", "--", "true").returncode == 0
    assert ["replaces" in body for body in broker.bodies(ACQUIRE)] == [True, False]


# In a shell script


TRAPS: Final = """
trap 'echo "own $?" # and nothing more' EXIT
add_trap "false; echo one" EXIT
add_trap "echo two; false" EXIT
"""


@pytest.mark.parametrize(("end", "code"), [("exit 9", 9), ("false", 1), ("true", 0)])
def test_the_guide_s_add_trap_chains_traps(end: str, code: int) -> None:
    """The trap runs also under `set -e`, after a failed command in it, and beside an earlier trap."""
    guide = (Path(__file__).parents[3] / "docs/guides/leases.md").read_text()
    add_trap = "add_trap() {" + guide.partition("add_trap() {")[2].partition("\n}\n")[0] + "\n}\n"
    script = f"set -eu\n{add_trap}{TRAPS}{end}"
    ran = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=SECONDS, check=False)
    assert (ran.stdout, ran.stderr, ran.returncode) == (f"two\none\nown {code}\n", "", code)


# An unavailable broker


def test_unleased_starts_are_reported_when_the_broker_is_back(broker: LeaseBroker, environment: dict[str, str]) -> None:
    """The next process reports each start once; a start has the same id in every report."""
    nowhere = environment | {"SLIPWAY_LEASE_BROKER_URL": NOWHERE}
    show = "echo $SLIPWAY_LEASE_POOL $SLIPWAY_LEASE_ID; exit 7"
    ran = run(nowhere, "--fail-open", "optimistic", "--", "sh", "-c", show)
    assert (ran.returncode, ran.stdout) == (7, "aws-ci\n")
    assert "starting without a lease" in ran.stderr
    # The broker comes back at another address here, and starts belong to one address.
    state = Path(environment["SLIPWAY_STATE_DIR"])
    (down,) = (state / "leases").iterdir()
    down.rename(State(state, environment["SLIPWAY_LEASE_BROKER_URL"], print).folder)
    broker.answers[UNLEASED] = [(200, {"items": [lease_answers.lease(lease_id="l-0", fencing_token=1)[1]]})]
    broker.answers["POST /leases/l-0/release"] = [lease_answers.RELEASED]
    for _ in range(2):
        assert run(environment, "--", "true").returncode == 0
    assert broker.count(UNLEASED) == 1
    assert [body["result"] for body in broker.bodies("POST /leases/l-0/release")] == ["failed"]  # it has ended, with 7
    (start,) = broker.bodies(UNLEASED)[0]["starts"]
    assert (start["operation"], start["units"]) == ("install", 1)
    assert datetime.fromisoformat(start["started_at"]).tzinfo is not None


def test_a_start_is_kept_until_it_is_charged(broker: LeaseBroker, environment: dict[str, str]) -> None:
    """A start refused for this token or clock is kept and blocks no other; an invalid one is dropped."""
    logged: list[str] = []
    state = State(Path(environment["SLIPWAY_STATE_DIR"]), environment["SLIPWAY_LEASE_BROKER_URL"], logged.append)
    for n, name in enumerate(("another's", "fast clock", "nonsense", "charged")):
        start = Start(request_id=name, operation="install", units=1, started_at=f"2026-01-01T12:00:0{n}+00:00")
        state.spool(Spooled(lease_pool_id="aws-ci", start=start))
    broker.answers[UNLEASED] = [
        problem(403, "scope-missing"),
        problem(422, "clock-ahead"),
        problem(422, "invalid-request"),
        (200, {}),
    ]
    assert run(environment, "--", "true").returncode == 0
    assert broker.count(UNLEASED) == 4
    assert [entry.start.request_id for entry in state.spooled()] == ["another's", "fast clock"]


def test_unleased_starts_are_reported_before_a_request(broker: LeaseBroker, environment: dict[str, str]) -> None:
    """Otherwise a broker that is back would grant in addition. A start that has ended is released once it is charged,
    also if the answer to the report was lost."""
    state = State(Path(environment["SLIPWAY_STATE_DIR"]), environment["SLIPWAY_LEASE_BROKER_URL"], print)
    start = Start(request_id="r-0", operation="install", units=1, started_at="2026-01-01T12:00:00+00:00")
    state.spool(Spooled(lease_pool_id="aws-ci", start=start, result="failed"))
    broker.answers[UNLEASED] = [(200, {"items": [lease_answers.lease(lease_id="l-0", fencing_token=1)[1]]})]
    give_back = "POST /leases/l-0/release"
    broker.answers[give_back] = [problem(503, "unavailable"), problem(410, "lease-ended", reason="released")]
    assert run(environment, "--", "true").returncode == 0
    received = [asked for asked, _ in broker.received if asked in {UNLEASED, give_back, ACQUIRE}]
    assert received == [UNLEASED, give_back, ACQUIRE, UNLEASED, give_back]
    assert broker.bodies(give_back)[0] == {"fencing_token": 1, "result": "failed", "throttled": False}
    assert state.spooled() == []


def test_safe_waits_for_its_place_in_the_pace(environment: dict[str, str], tmp_path: Path) -> None:
    """A pool that was never seen has a limit of 1: one start per hold, so the second one does not fit in the wait."""
    nowhere = environment | {"SLIPWAY_LEASE_BROKER_URL": NOWHERE}
    safe = ("--unavailable-after", "0", "--hold", "5s", "--", "true")
    first = run(nowhere, "--max-wait", "60s", *safe)
    state = State(tmp_path, NOWHERE, print)
    taken = state.pace("aws-ci")
    assert taken is not None
    assert taken.next_start_at > 0
    # However long the first process took to end, the next place is still to come.
    state.learn("aws-ci", msgspec.structs.replace(taken, next_start_at=taken.next_start_at + 1200.0))
    second = run(nowhere, "--max-wait", "0.1s", *safe)
    assert (first.returncode, second.returncode) == (0, 125)
    assert "starting without a lease in" in first.stderr
    assert "not starting unless it answers, since its next start at the last known pace is in 20 min" in second.stderr


def test_pessimistic_starts_nothing(environment: dict[str, str]) -> None:
    nowhere = environment | {"SLIPWAY_LEASE_BROKER_URL": NOWHERE}
    ran = run(nowhere, "--fail-open", "pessimistic", "--max-wait", "0.5s", "--", "echo", "started")
    assert (ran.returncode, ran.stdout) == (125, "")
    assert "has not answered within 0.5 s" in ran.stderr


def test_an_address_that_is_none_is_no_outage(environment: dict[str, str]) -> None:
    ran = run(environment | {"SLIPWAY_LEASE_BROKER_URL": "broker:7303"}, "--fail-open", "optimistic", "--", "echo", "x")
    assert (ran.returncode, ran.stdout) == (125, "")
    assert "broker:7303 is not a URL" in ran.stderr


# From Python


@pytest.fixture
def options(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setenv("SLIPWAY_STATE_DIR", environment["SLIPWAY_STATE_DIR"])
    monkeypatch.delenv("SLIPWAY_LEASE", raising=False)
    return {"url": environment["SLIPWAY_LEASE_BROKER_URL"], "token": "secret"}


def test_a_block_holds_a_lease(broker: LeaseBroker, options: dict[str, Any]) -> None:
    with lease("aws-ci", hold_seconds=60.0, **options) as held:
        assert (held.lease_id, held.fencing_token, held.lost.is_set()) == (LEASE, 7, False)
        held.check()
        assert broker.count(RELEASE) == 0
    assert broker.bodies(ACQUIRE)[0]["hold_seconds"] == 60.0
    assert [body["result"] for body in broker.bodies(RELEASE)] == ["done"]


async def test_an_async_block_holds_a_lease(broker: LeaseBroker, options: dict[str, Any]) -> None:
    async with lease("aws-ci", **options) as held:
        assert (held.lease_id, held.fencing_token) == (LEASE, 7)
    assert [body["result"] for body in broker.bodies(RELEASE)] == ["done"]


async def test_a_block_that_fails_releases_once(broker: LeaseBroker, options: dict[str, Any]) -> None:
    with pytest.raises(ZeroDivisionError):
        async with lease("aws-ci", **options):
            raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError), lease("aws-ci", **options):
        raise ZeroDivisionError
    assert [body["result"] for body in broker.bodies(RELEASE)] == ["failed", "failed"]


async def test_a_block_learns_of_its_loss(broker: LeaseBroker, options: dict[str, Any]) -> None:
    """The loss is an event during the block, and with `raise` an exception at its end."""
    broker.answers[ACQUIRE] = [lease_answers.lease(ttl_seconds=TTL_SECONDS)]
    broker.answers[RENEW] = [problem(410, "lease-ended", reason="lost")]
    options["on_loss"] = "raise"
    with pytest.raises(LeaseLost, match="is lost: lost"), lease("aws-ci", **options) as held:
        assert held.lost.wait(SECONDS)

    async def until_lost() -> None:
        async with lease("aws-ci", **options) as later:
            await asyncio.wait_for(later.lost.wait(), SECONDS)

    with pytest.raises(LeaseLost, match="is lost: lost"):
        await until_lost()
    assert (broker.count(RELEASE), broker.count(UNLEASED)) == (0, 0)


async def test_a_block_that_does_not_check_outlives_its_lease(broker: LeaseBroker, options: dict[str, Any]) -> None:
    """It is charged until the end of its hold, or its own."""
    broker.answers[ACQUIRE] = [lease_answers.lease(ttl_seconds=0.6)]
    broker.answers[RENEW] = [problem(410, "lease-ended", reason="lost")]
    broker.answers[UNLEASED] = [(200, {"items": [lease_answers.lease(lease_id="l-0", fencing_token=8)[1]]})]
    broker.answers["POST /leases/l-0/release"] = [lease_answers.RELEASED]
    async with lease("aws-ci", **options) as held:
        await asyncio.wait_for(held.lost.wait(), SECONDS)
        with pytest.raises(LeaseLost, match="is lost: lost"):
            held.check()
        await until(lambda: broker.count(UNLEASED) == 1, "it is charged")
    assert [body["starts"][0]["cause"] for body in broker.bodies(UNLEASED)] == ["lost"]
    assert (broker.count("POST /leases/l-0/release"), broker.count(RELEASE)) == (1, 0)


async def test_a_block_outlives_its_hold(broker: LeaseBroker, options: dict[str, Any]) -> None:
    """The end of the hold is no loss, also for a block that needs fencing."""
    broker.answers[ACQUIRE] = [lease_answers.lease(hold_seconds=0.3)]
    for on_loss in ("continue", "raise"):
        lines: list[str] = []
        with lease("aws-ci", on_loss=on_loss, **options) as held:
            assert not held.lost.wait(0.6)
            held.check()
        async with lease("aws-ci", on_loss=on_loss, log=lines.append, **options) as later:
            await asyncio.sleep(0.6)
            later.check()
    assert [body["result"] for body in broker.bodies(RELEASE)] == ["done"] * 4
    assert broker.count(RENEW) == 0
    with pytest.raises(ValueError, match="on_loss is 'stop'"):
        lease("aws-ci", on_loss="stop", **options)


async def test_a_renewal_after_an_outage_ends_the_doubt(broker: LeaseBroker, options: dict[str, Any]) -> None:
    """A block that checks is fenced while another holder may have its units, and only then."""
    broker.answers[ACQUIRE] = [lease_answers.lease(ttl_seconds=0.6)]
    broker.answers[RENEW] = [problem(503, "unavailable")]
    async with lease("aws-ci", **options) as held:
        await asyncio.wait_for(held.lost.wait(), SECONDS)
        with pytest.raises(LeaseLost, match="not renewed in time"):
            held.check()
        broker.answers[RENEW] = [lease_answers.lease()]
        await until(lambda: not held.lost.is_set(), "it was renewed")
        held.check()
    assert (broker.count(RELEASE), broker.count(UNLEASED)) == (1, 0)


async def test_a_block_is_not_entered_without_a_lease(broker: LeaseBroker, options: dict[str, Any]) -> None:
    broker.answers[ACQUIRE] = [waiting()]
    with pytest.raises(NotAdmitted) as refusal, lease("aws-ci", max_wait_seconds=0.0, **options):
        pytest.fail("entered")
    assert refusal.value.waiting is not None
    with pytest.raises(NotAdmitted):
        async with lease("aws-ci", max_wait_seconds=0.0, **options):
            pytest.fail("entered")
    assert sum(asked.startswith(CANCEL) for asked, _ in broker.received) == 2
    broker.answers[ACQUIRE] = [problem(403, "scope-missing")]
    with pytest.raises(Refused), lease("aws-ci", **options):
        pytest.fail("entered")
    with (
        pytest.raises(Unreachable),
        lease("aws-ci", max_wait_seconds=0.1, fail_open="pessimistic", url=NOWHERE, token="x"),
    ):
        pytest.fail("entered")


async def test_a_cancelled_block_withdraws_its_request(broker: LeaseBroker, options: dict[str, Any]) -> None:
    broker.answers[ACQUIRE] = [waiting(retry_after_seconds=30.0)]

    async def block() -> None:
        async with lease("aws-ci", request_id="r-1", **options):
            pytest.fail("entered")

    waits = asyncio.create_task(block())
    began = monotonic_seconds()
    while broker.count(ACQUIRE) < 2 and monotonic_seconds() - began < SECONDS:
        await asyncio.sleep(0.01)
    waits.cancel()
    await asyncio.wait({waits})
    assert waits.cancelled()
    assert broker.count(CANCEL + "r-1") == 1


PROGRAM = """
import asyncio, os, signal, sys, time
from slipway_client.leases import lease
{before}
# One long wait could begin just after the signal has come, and before its handler has run: the handler would wait too.
def sync():
    with lease("aws-ci"):
        print("held", flush=True)
        while True:
            time.sleep(0.05)
async def coroutine():
    async with lease("aws-ci"):
        print("held", flush=True)
        while True:
            await asyncio.sleep(0.05)
{main}
print("afterwards", signal.getsignal(signal.SIGTERM) in (signal.SIG_DFL, mine if "mine" in globals() else None))
"""
MINE = """
def mine(*_):
    os.write(1, b"mine\\n")  # the print that it may have interrupted is not to be entered again
    raise KeyError("mine")
signal.signal(signal.SIGTERM, mine)
"""
GUARDED = """
try:
    sync()
except KeyError:
    pass
"""


@pytest.mark.parametrize(
    ("before", "main", "signum", "code", "words"),
    [
        ("", "sync()", signal.SIGTERM, 143, []),
        ("", "asyncio.run(coroutine())", signal.SIGTERM, 143, []),
        ("", "sync()", signal.SIGHUP, 129, []),
        ("", "sync()", signal.SIGINT, -signal.SIGINT, []),
        (MINE, GUARDED, signal.SIGTERM, 0, ["mine", "afterwards True"]),
    ],
)
def test_signals_unwind_a_block_and_handlers_of_the_program_stay(
    broker: LeaseBroker, environment: dict[str, str], before: str, main: str, signum: int, code: int, words: list[str]
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(before=before, main=main)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        process.send_signal(signum)
        out, _ = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    assert (process.returncode, out.splitlines(), broker.count(RELEASE)) == (code, words, 1)
