"""`slipway db` and `slipway doctor --after-restore` against stub services."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI, HTTPException
from typer.testing import CliRunner

from slipway_client.cli.main import app
from tests.support.recorded import AT, RECOVERY, environment, serving

ORPHAN: dict[str, Any] = {
    "account_id": "sim-a",
    "batch_id": "0198",
    "launch_config_id": "zone-a@3f2c9a",
    "created_at": AT,
    "reason": "its launch batch is unknown to this database",
    "decision": "",
}
KNOWN = ORPHAN | {"instance_id": "i-1", "action": "adopt", "why": "it becomes a worker of zone-a@3f2c9a"}
STRANGE = ORPHAN | {"instance_id": "i-2", "action": "leave", "why": "it has no tag of a launch batch"}
RESTORED: dict[str, Any] = {
    "unconfirmed": "restored, reported by me: backup of 03:00",
    "restored": "restored, reported by me: backup of 03:00",
    "orphans": [KNOWN, STRANGE],
    "missing": [
        {
            "account_id": "sim-a",
            "worker_id": "w",
            "pool_id": "linux",
            "instance_id": "i-9",
            "state": "running",
            "found_at": AT,
        }
    ],
    "open_calls": [],
    "compared": True,
    "lost_claims": [{"pool_id": "linux", "source": "q", "claimed": 5, "known": 2}],
    "not_listed": [{"account_id": "sim-b", "counts_from": AT}],
}


class Stub:
    """The services, as far as recovery needs them."""

    def __init__(self) -> None:
        self.answer = RESTORED
        self.unavailable = ""
        self.received: list[tuple[str, str, dict[str, Any]]] = []
        self.app = FastAPI()

        @self.app.get("/provisioner/recovery")
        async def recovery() -> dict[str, Any]:
            return self.answer

        @self.app.post("/provisioner/recovery/confirm")
        async def confirm(body: dict[str, Any]) -> dict[str, Any]:
            self.received.append(("provisioner", "confirm", body))
            actions = [each["action"] for each in body["instances"]]
            numbers = {"adopted": "adopt", "left": "leave", "terminating": "terminate"}
            return {name: actions.count(action) for name, action in numbers.items()} | {"open": 0, "restore": True}

        @self.app.post("/{service}/restored")
        async def restored(service: str, body: dict[str, Any]) -> dict[str, Any]:
            if service == self.unavailable:
                raise HTTPException(503)
            self.received.append((service, "restored", body))
            return {"restored": True}

        @self.app.post("/provisioner/start-launching")
        async def start_launching() -> dict[str, Any]:
            return {"scope": "all", "scope_id": "", "stopped": False, "was_stopped": False}

        @self.app.get("/provisioner/launch-stops")
        async def launch_stops() -> dict[str, Any]:
            stop = {
                "scope": "restore",
                "scope_id": "",
                "by": "provisioner",
                "reason": "restored",
                "until": None,
                "at": AT,
            }
            return {"items": [stop]}


@pytest.fixture
def stub() -> Stub:
    return Stub()


@pytest.fixture
def url(stub: Stub) -> Iterator[str]:
    with serving(stub.app) as url:
        yield url


def slipway(url: str, *arguments: str) -> Any:
    return CliRunner().invoke(app, arguments, env=environment(url), catch_exceptions=False)


def test_a_restore_is_recorded_in_every_service(stub: Stub, url: str) -> None:
    """The provisioner first, since it stops launching."""
    done = slipway(url, "db", "restored", "--reason", "backup of 03:00")
    assert (done.exit_code, "launching is stopped" in done.stdout) == (0, True)
    services = ["provisioner", "lease-broker", "weight-calculator"]
    assert stub.received == [(service, "restored", {"reason": "backup of 03:00"}) for service in services]


def test_a_restore_without_a_reason(stub: Stub, url: str) -> None:
    refused = slipway(url, "db", "restored", "--reason", " ")
    assert (refused.exit_code, stub.received) == (2, [])
    assert "it is empty; say why" in refused.stderr


def test_a_restore_that_some_services_have_not_recorded(stub: Stub, url: str) -> None:
    """The command says which have, and that it can be repeated."""
    stub.unavailable = "weight-calculator"
    partly = slipway(url, "db", "restored", "--reason", "r")
    assert (partly.exit_code, partly.stdout) == (1, "provisioner: new incarnation\nlease-broker: new incarnation\n")
    assert "Then repeat this command; another new incarnation of provisioner and lease-broker does" in partly.stderr
    stub.unavailable = "provisioner"
    assert "repeat this command" not in slipway(url, "db", "restored", "--reason", "r").stderr


def test_no_other_command_lifts_the_stop_of_a_restore(url: str) -> None:
    """It says what is still in force, and which command lifts it."""
    assert slipway(url, "start-launching", "--reason", "r").stdout.splitlines() == [
        "launches were not stopped everywhere",
        "still in force: launching is stopped everywhere by provisioner: restored",
        "remedy: slipway doctor --after-restore; then slipway db confirm",
    ]


def test_nothing_is_confirmed_without_yes(stub: Stub, url: str) -> None:
    """The actions are printed, and the exit code is that of a confirmation."""
    shown = slipway(url, "db", "confirm", "--terminate", "i-2")
    assert shown.exit_code == 4
    assert "nothing was changed; with --yes: adopt 1, leave 0, terminate 1; launching starts again" in shown.stdout
    assert "sim-b" in shown.stdout
    rows = [line.split() for line in shown.stdout.splitlines() if line.startswith("i-")]
    assert [(row[0], "terminate" in row) for row in rows] == [("i-1", False), ("i-2", True)]
    assert stub.received == []


@pytest.mark.parametrize(
    ("options", "actions"),
    [
        ((), ["adopt", "leave"]),
        (("--all", "leave"), ["leave", "leave"]),
        (("--all", "terminate", "--adopt", "i-1"), ["adopt", "terminate"]),
    ],
)
def test_what_is_confirmed(stub: Stub, url: str, options: tuple[str, ...], actions: list[str]) -> None:
    """Each instance with the action that was shown for it."""
    done = slipway(url, "db", "confirm", *options, "--yes")
    assert (done.exit_code, "launching starts again" in done.stdout) == (0, True)
    ((_, _, body),) = stub.received
    assert [each["action"] for each in body["instances"]] == actions
    assert [each["instance_id"] for each in body["instances"]] == ["i-1", "i-2"]


def test_accounts_that_need_no_listing(stub: Stub, url: str) -> None:
    """None by default; those named by a person."""
    slipway(url, "db", "confirm", "--yes")
    slipway(url, "db", "confirm", "--yes", "--unlisted", "sim-b", "--unlisted", "sim-c")
    assert [body["unlisted"] for _, _, body in stub.received] == [[], ["sim-b", "sim-c"]]


def test_what_would_be_refused_is_said_before(stub: Stub, url: str) -> None:
    """An account without a listing needs its name; a database that is not compared with Kafka needs Kafka."""
    stub.answer = RESTORED | {"compared": False}
    unlisted, not_compared = "409 not-listed unless `--unlisted ACCOUNT` names each", "503 unconfirmed: the database"
    for command in (("db", "confirm"), ("doctor", "--after-restore")):
        shown = slipway(url, *command).stdout
        assert (unlisted in shown, not_compared in shown, "`slipway doctor`" in shown) == (True, True, True)
        assert re.search(r"from when a listing counts:\n  sim-b: .*\d\d:\d\d", shown)
    stub.answer = RESTORED
    shown = slipway(url, "db", "confirm", "--unlisted", "sim-b").stdout
    assert (unlisted in shown, not_compared in shown, "sim-b" in shown) == (False, False, False)


def test_a_confirmation_as_json(stub: Stub, url: str) -> None:
    """With what a confirmation depends on."""
    for option, done in (("--yes", True), ("--all", False)):
        rest = () if done else ("leave",)
        answer = json.loads(slipway(url, "db", "confirm", option, *rest, "-o", "json").stdout)
        assert {name: answer[name] for name in ("restored", "compared", "not_listed")} == {
            "restored": RESTORED["restored"],
            "compared": True,
            "not_listed": RESTORED["not_listed"],
        }
        assert (answer["done"] is not None) == done


def test_a_database_that_is_not_compared_yet(stub: Stub, url: str) -> None:
    """Nothing is to be confirmed: Kafka has to be reachable."""
    stub.answer = RECOVERY | {"unconfirmed": "the database has not been compared", "compared": False}
    shown = slipway(url, "doctor", "--after-restore")
    assert (shown.exit_code, shown.stdout.splitlines()[-1]) == (3, "remedy: make Kafka reachable (`slipway doctor`)")


def test_an_unknown_instance_is_refused(stub: Stub, url: str) -> None:
    refused = slipway(url, "db", "confirm", "--terminate", "i-7", "--yes")
    assert (refused.exit_code, stub.received) == (2, [])
    assert "i-7" in refused.output


def test_two_actions_for_an_instance_are_refused(stub: Stub, url: str) -> None:
    refused = slipway(url, "db", "confirm", "--adopt", "i-1", "--terminate", "i-1", "--yes")
    assert (refused.exit_code, stub.received) == (2, [])
    assert "i-1" in refused.output


def test_nothing_to_confirm(stub: Stub, url: str) -> None:
    stub.answer = RECOVERY
    done = slipway(url, "db", "confirm")
    assert (done.exit_code, done.stdout) == (0, "no orphan instances\n")
    assert slipway(url, "doctor", "--after-restore").exit_code == 0


def test_what_was_decided_before_needs_no_confirmation(stub: Stub, url: str) -> None:
    """It is shown, and changed only by a new decision."""
    stub.answer = RECOVERY | {"orphans": [STRANGE | {"decision": "leave"}]}
    done = slipway(url, "db", "confirm", "--yes")
    assert (done.exit_code, "i-2" in done.stdout, stub.received) == (0, True, [])
    assert slipway(url, "db", "confirm").exit_code == 0
    assert slipway(url, "db", "confirm", "--terminate", "i-2").exit_code == 4


def test_differences_after_a_restore(stub: Stub, url: str) -> None:
    """All of them are shown, and a person has to act."""
    shown = slipway(url, "doctor", "--after-restore")
    assert shown.exit_code == 3
    lines = shown.stdout.splitlines()
    assert lines[0] == "launching is stopped: restored, reported by me: backup of 03:00"
    headings = [line for line in lines if line.partition(":")[2].strip() in {"2", "1", "none"}]
    assert [line.rpartition(": ")[2] for line in headings] == ["2", "1", "none", "1"]
    assert lines[-1] == "remedy: slipway db confirm"
    as_json = slipway(url, "doctor", "--after-restore", "-o", "json")
    assert json.loads(as_json.stdout) == stub.answer
