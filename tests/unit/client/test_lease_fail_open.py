"""Mode `always` against a stub broker: every command runs in the end, and its start is recorded by its cause."""

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner, Result

from slipway_api.http.lease_broker import Lease, UnleasedStart, UnleasedStarts
from slipway_client.cli.main import app
from slipway_client.leases import lease, session, unleased
from slipway_client.leases.environment import of_command, without_secrets
from slipway_client.leases.state import Spooled, State
from slipway_common.base.clock import monotonic_seconds
from slipway_common.base.settings import Secret, variable_of
from slipway_lease_broker.settings import Settings as Broker
from slipway_provisioner.settings import Settings as Provisioner
from tests.support import lease_answers
from tests.support.lease_answers import ACQUIRE, HANDLE, LEASE, RELEASE, TOKEN, UNLEASED, LeaseBroker, problem, waiting

COMMAND = [sys.executable, "-c", "from slipway_client.cli.main import app; app(prog_name='slipway')", "lease"]
SECONDS: Final = 60.0
# A request at the very beginning of its span, which would otherwise be half a minute of waiting.
SOON: Final = next(f"r-{number}" for number in range(10_000) if Random(f"r-{number}").random() < 0.001)
CHARGED = (200, {"charged": 1, "items": [lease_answers.lease()[1]]})


@pytest.fixture
def environment(environment: dict[str, str]) -> dict[str, str]:
    return environment | {"SLIPWAY_LEASE_FAIL_OPEN": "always"}


@pytest.fixture
def frozen() -> Iterator[str]:
    """Address of a broker that accepts connections and answers nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def run(environment: dict[str, str], *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*COMMAND, "run", "--pool", "aws-ci", *arguments],
        env={"PATH": "/usr/bin:/bin", **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def slipway(environment: dict[str, str], *arguments: str) -> Result:
    return CliRunner().invoke(app, ["lease", *arguments], env=environment, catch_exceptions=False)


def status_of(file: Path) -> dict[str, Any]:
    status: dict[str, Any] = json.loads(file.read_bytes())
    return status


def uncharged(folder: Path) -> list[Any]:
    return [json.loads(path.read_bytes()) for path in folder.rglob("uncharged/*")]


# Refused: nothing to wait for

REFUSALS = [
    (problem(404, "unknown-lease-pool", detail="lease pool 'aws-ci' is not declared"), "is not declared"),
    (problem(401, "unknown-token"), "check SLIPWAY_TOKEN_FILE or SLIPWAY_TOKEN"),
    (problem(403, "scope-missing", detail="ci needs leases:write:aws-ci"), "ci needs leases:write:aws-ci"),
    (problem(422, "too-many-units"), "too-many-units"),
    (problem(410, "lease-ended", reason="released"), "lease-ended"),
    ((404, {"detail": "Not Found"}), "is it a lease-broker?"),
]


@pytest.mark.parametrize(("answer", "line"), REFUSALS, ids=[str(answer[1].get("title")) for answer, _ in REFUSALS])
def test_a_refused_command_runs(
    broker: LeaseBroker, environment: dict[str, str], tmp_path: Path, answer: Any, line: str
) -> None:
    """With a line that says what to mend. The start is recorded on this host, and reported to no pool."""
    broker.answers[ACQUIRE] = [answer]
    file = tmp_path / "status"
    ran = run(environment, "--request-id", SOON, "--status-file", str(file), "--", "sh", "-c", "echo ran; exit 7")
    assert (ran.returncode, ran.stdout) == (7, "ran\n")
    assert line in ran.stderr
    assert "start 1 of this host that is charged to no lease pool" in ran.stderr
    cause = answer[1].get("title", "refused")
    assert status_of(file) == {"started": True, "leased": False, "cause": cause, "exit_code": 7}
    assert [(entry["lease_pool_id"], entry["refused"]) for entry in uncharged(tmp_path)] == [("aws-ci", cause)]
    assert [asked for asked, _ in broker.received] == [ACQUIRE]


def test_a_wrong_address_runs_the_command(environment: dict[str, str], broker: LeaseBroker, tmp_path: Path) -> None:
    """Also one that is not UTF-8, a certificate that is none, and a token that cannot be read."""
    https = environment["SLIPWAY_LEASE_BROKER_URL"].replace("http", "https")
    wrong = [
        ({"SLIPWAY_LEASE_BROKER_URL": "broker:7303"}, "not-an-address", "broker:7303 is not a URL"),
        ({"SLIPWAY_LEASE_BROKER_URL": os.fsdecode(b"http://\xff")}, "not-an-address", "is not a URL"),
        ({"SLIPWAY_LEASE_BROKER_URL": https}, "tls", f"Check the address {https} and its certificate"),
        ({"SLIPWAY_LEASE_BROKER_URL": "http://no-such-host.invalid"}, "unknown-host", "Check the address"),
        ({"SLIPWAY_TOKEN": "", "SLIPWAY_TOKEN_FILE": str(tmp_path / "none")}, "no-token", "none: No such file"),
    ]
    broker.answers[ACQUIRE] = [problem(401, "no-token")]
    file = tmp_path / "status"
    for change, cause, line in wrong:
        ran = run(environment | change, "--request-id", SOON, "--status-file", str(file), "--", "true")
        assert (ran.returncode, status_of(file)["cause"]) == (0, cause), ran.stderr
        assert line in ran.stderr


def test_a_state_folder_that_cannot_be_written_prevents_nothing(
    broker: LeaseBroker, environment: dict[str, str], tmp_path: Path
) -> None:
    """Neither a lease nor a start without one, which only this process reports then."""
    (tmp_path / "file").touch()
    unusable = environment | {"SLIPWAY_STATE_DIR": str(tmp_path / "file")}
    assert run(unusable, "--", "sh", "-c", "echo $SLIPWAY_LEASE_ID").stdout == f"{LEASE}\n"
    broker.answers[ACQUIRE] = [problem(503, "unavailable")]
    broker.answers[UNLEASED] = [CHARGED]
    ran = run(unusable, "--max-wait", "1s", "--request-id", SOON, "--", "true")
    assert ran.returncode == 0
    assert "cannot write to" in ran.stderr
    assert "set SLIPWAY_STATE_DIR to another directory" in ran.stderr
    assert broker.bodies(UNLEASED)


# Full, drained, unavailable


def test_a_full_pool_is_charged_against_the_request(broker: LeaseBroker, environment: dict[str, str]) -> None:
    """In the second half of the wait, under the id that waits; the lease of the answer is released at the end."""
    broker.answers |= {ACQUIRE: [waiting()], UNLEASED: [CHARGED]}
    began = monotonic_seconds()
    ran = run(environment, "--max-wait", "4s", "--request-id", "r-1", "--", "sh", "-c", "sleep 0.5; exit 3")
    assert monotonic_seconds() - began >= 2.0
    assert (ran.returncode, ran.stdout) == (3, "")
    assert "no lease of aws-ci yet (position 3, about 1 min, 50 of 50 units are held)" in ran.stderr
    (start,) = broker.bodies(UNLEASED)[0]["starts"]
    assert (start["request_id"], start["cause"], start.get("units", 1)) == ("r-1", "max_wait", 1)
    assert [body.get("result", "done") for body in broker.bodies(RELEASE)] == ["failed"]
    assert not any(asked.startswith("DELETE") for asked, _ in broker.received)


def test_a_drained_pool_starts_after_the_whole_wait(
    broker: LeaseBroker, environment: dict[str, str], tmp_path: Path
) -> None:
    broker.answers |= {ACQUIRE: [waiting(cause="drained", reason="drained: moving")], UNLEASED: [CHARGED]}
    file, began = tmp_path / "status", monotonic_seconds()
    ran = run(environment, "--max-wait", "2s", "--request-id", SOON, "--status-file", str(file), "--", "true")
    assert (ran.returncode, status_of(file)["cause"]) == (0, "drained")
    assert monotonic_seconds() - began >= 2.0
    (start,) = broker.bodies(UNLEASED)[0]["starts"]
    assert (start["request_id"], start["cause"]) == (SOON, "max_wait")
    assert not any(asked.startswith("DELETE") for asked, _ in broker.received)


def test_a_frozen_broker_delays_no_start(frozen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that is never answered is not awaited beyond the instant of the start, which is recorded."""
    monkeypatch.setenv("SLIPWAY_STATE_DIR", str(tmp_path))
    began = monotonic_seconds()
    with lease("aws-ci", url=frozen, fail_open="always", max_wait_seconds=2.0, request_id=SOON) as held:
        assert 1.0 <= monotonic_seconds() - began <= 2.0
        assert held.lease_id == ""
    (entry,) = (json.loads(path.read_bytes()) for path in tmp_path.rglob("unleased/*"))
    assert ("cause" in entry["start"], entry["result"]) == (False, "done")


# Other callers


def test_acquire_prints_the_lease_as_which_the_start_was_charged(
    broker: LeaseBroker, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For its caller to release; nothing if the broker is unavailable, and no lease of somebody else."""
    for module in (session, unleased):
        monkeypatch.setattr(module, "LAST_TRY_SECONDS", 0.2)
    broker.answers |= {ACQUIRE: [waiting()], UNLEASED: [CHARGED]}
    full = slipway(environment, "acquire", "--pool", "aws-ci", "--max-wait", "1s", "--request-id", SOON)
    assert (full.exit_code, full.stdout) == (0, f"{HANDLE}\n")
    broker.answers |= {ACQUIRE: [problem(503, "unavailable")], UNLEASED: [problem(503, "unavailable")]}
    out = ("acquire", "--pool", "aws-ci", "--max-wait", "1s", "--request-id", SOON)
    printed = {form: slipway(environment, *out, "-o", form).stdout for form in ("handle", "env", "json")}
    assert printed["handle"] == ""
    assert printed["env"] == "unset SLIPWAY_LEASE_ID SLIPWAY_FENCING_TOKEN\n"
    assert json.loads(printed["json"]) == {"request_id": SOON, "state": "unleased", "cause": "unavailable"}


@pytest.mark.parametrize(
    ("answer", "cause"),
    [(waiting(), "max_wait"), (problem(503, "unavailable"), "unavailable"), (problem(401, "unknown-token"), "")],
)
def test_a_gang_starts_in_all_of_its_pools(
    broker: LeaseBroker, environment: dict[str, str], tmp_path: Path, answer: Any, cause: str
) -> None:
    """It is charged in each under the id of its request, with the leases as its answer; a refused one in none."""
    pools = {"aws-ci": 1, "quay": 10}
    broker.answers["POST /lease-gangs"] = [answer]
    broker.answers |= {f"POST /lease-pools/{pool}/unleased": [CHARGED] for pool in pools}
    members = ("--member", "aws-ci", "--member", "quay:10")
    started = slipway(environment, "gang", *members, "--request-id", SOON, "--max-wait", "1s")
    assert (started.exit_code, started.stdout) == (0, f"{HANDLE}\n" * 2 if cause else "")
    starts = {
        pool: [
            msgspec.convert(body, UnleasedStarts).starts for body in broker.bodies(f"POST /lease-pools/{pool}/unleased")
        ]
        for pool in pools
    }
    for pool, units in pools.items():
        reported = [(start.request_id, start.units, start.cause) for (start,) in starts[pool]]
        assert reported == ([(SOON, units, cause)] if cause else [])
    assert [entry["refused"] for entry in uncharged(tmp_path)] == ([] if cause else ["unknown-token"] * 2)


@pytest.mark.parametrize("charged_first", [True, False])
@pytest.mark.parametrize("other", [problem(503, "unavailable"), problem(403, "scope-missing")])
def test_a_gang_that_is_charged_in_part(
    broker: LeaseBroker, environment: dict[str, str], other: Any, charged_first: bool
) -> None:
    """Its leases are printed, so that the caller can release them; a later process reports the other start."""
    answers = [CHARGED, other] if charged_first else [other, CHARGED]
    for pool, answer in zip(("aws-ci", "quay"), answers, strict=True):
        broker.answers[f"POST /lease-pools/{pool}/unleased"] = [answer]
    broker.answers["POST /lease-gangs"] = [waiting()]
    gang = ("gang", "--member", "aws-ci", "--member", "quay:10", "--request-id", SOON, "--max-wait", "1s")
    is_held = charged_first or other[0] == 403  # after no answer the next one is not asked for
    started = slipway(environment, *gang)
    assert (started.exit_code, started.stdout) == (0, f"{HANDLE}\n" if is_held else "")
    assert ("the start counts in aws-ci only, so far" in started.stderr) == is_held
    printed = json.loads(slipway(environment, *gang, "-o", "json").stdout)
    assert [lease["lease_id"] for lease in printed] == [LEASE] if is_held else printed["state"] == "unleased"


def test_a_block_is_entered_without_a_lease(
    broker: LeaseBroker, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    broker.answers[ACQUIRE] = [problem(404, "unknown-lease-pool")]
    with lease("aws-ci", request_id=SOON) as held:
        assert (held.lease_id, held.lost.is_set()) == ("", False)
    monkeypatch.setenv("SLIPWAY_LEASE_FAIL_OPEN", "sometimes")
    with pytest.raises(ValueError, match="sometimes"):
        lease("aws-ci")


def test_a_token_that_is_none_is_not_shown(broker: LeaseBroker, environment: dict[str, str]) -> None:
    """The HTTP library put the whole header into its error, which was logged."""
    broker.answers[ACQUIRE] = [problem(401, "no-token")]
    ran = run(environment | {"SLIPWAY_TOKEN": "not one\nline"}, "--request-id", SOON, "--", "true")
    assert ran.returncode == 0
    assert "SLIPWAY_TOKEN is not a token: it has line breaks" in ran.stderr
    assert "not one" not in ran.stderr


@pytest.mark.parametrize("option", ["--pool", "--request-id", "--operation", "--tenant"])
def test_text_that_is_not_utf_8_is_a_usage_error(environment: dict[str, str], option: str) -> None:
    ran = run(environment, option, os.fsdecode(b"a\xff"), "--", "true")
    assert ran.returncode == 125
    assert "has a character that cannot be printed" in ran.stderr


def test_an_error_that_nobody_expects_enters_the_block(
    broker: LeaseBroker, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here of the log that the caller gave."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    lines: list[str] = []

    def log(line: str) -> None:
        lines.append(line)
        if len(lines) == 1:
            raise KeyError("no such log")

    broker.answers[ACQUIRE] = [problem(404, "unknown-lease-pool")]
    entered = False
    with contextlib.suppress(KeyError), lease("aws-ci", request_id=SOON, log=log) as held:
        entered = held.lease_id == ""
    assert entered
    assert "KeyError: 'no such log'. Starting without a lease in" in lines[1]
    assert [entry["refused"] for entry in uncharged(tmp_path)] == ["unexpected"]


def test_uncharged_starts_are_counted_and_pruned(tmp_path: Path) -> None:
    state = State(tmp_path, "http://broker", print)

    def entry(name: str) -> Spooled:
        start = UnleasedStart(request_id=name, units=1, started_at=datetime(2026, 1, 1, 12, tzinfo=UTC))
        return Spooled(lease_pool_id="p", start=start, refused="tls")

    assert [state.record_uncharged(entry(name)) for name in ("a", "b", "b")] == [1, 2, 2]
    (metrics,) = tmp_path.rglob("uncharged.prom")
    (family,) = text_string_to_metric_families(metrics.read_text())
    assert [(one.labels, one.value) for one in family.samples] == [({"lease_pool": "p", "cause": "tls"}, 2.0)]
    for path in tmp_path.rglob("uncharged/*"):
        os.utime(path, (0, 0))
    assert state.record_uncharged(entry("c")) == 1
    assert state.spooled() == []


# Exit codes, status, and what the command gets


def test_the_status_file_tells_our_code_from_the_command_s(
    broker: LeaseBroker, environment: dict[str, str], tmp_path: Path
) -> None:
    """It is written when the command starts, and at its end."""
    file = tmp_path / "status"
    status = ("--status-file", str(file), "--fail-open", "safe", "--max-wait", "0")
    assert run(environment, *status, "--", "sh", "-c", f"cat {file}; exit 125").stdout == (
        '{"started":true,"leased":true,"cause":null,"exit_code":null}\n'
    )
    assert status_of(file) == {"started": True, "leased": True, "cause": None, "exit_code": 125}
    assert run(environment, *status, "--", "nosuch").returncode == 127
    assert status_of(file) == {"started": False, "leased": True, "cause": "cannot-start", "exit_code": 127}
    assert run(environment | {"SLIPWAY_LEASE": "off"}, *status, "--", "sh", "-c", "exit 9").returncode == 9
    assert status_of(file) == {"started": True, "leased": False, "cause": "switched-off", "exit_code": 9}
    off = run(environment | {"SLIPWAY_LEASE": "off"}, *status, "--", "sh", "-c", f"cat {file}; kill -TERM $$")
    assert (off.returncode, json.loads(off.stdout)["exit_code"], status_of(file)["exit_code"]) == (143, None, 143)
    assert run(environment | {"SLIPWAY_LEASE": "off"}, *status, "--", "nosuch").returncode == 127
    assert status_of(file) == {"started": False, "leased": False, "cause": "cannot-start", "exit_code": 127}
    broker.answers[ACQUIRE] = [problem(401, "unknown-token")]
    assert run(environment, *status, "--", "true").returncode == 125
    assert status_of(file) == {"started": False, "leased": False, "cause": "unknown-token", "exit_code": 125}
    broker.answers[ACQUIRE] = [waiting()]
    assert run(environment, *status, "--", "true").returncode == 125
    assert status_of(file) == {"started": False, "leased": False, "cause": "not-admitted", "exit_code": 125}
    ran = run(environment, "--status-file", f"{file}/x", "--fail-open", "safe", "--max-wait", "0", "--", "true")
    assert (ran.returncode, f"cannot write the status file {file}/x" in ran.stderr) == (125, True)


def test_the_command_gets_the_token_of_its_lease(broker: LeaseBroker, environment: dict[str, str]) -> None:
    """Ours only with --pass-token; none, with a line, if the broker issues none."""
    secrets = {"SLIPWAY_DATABASE_URL": "postgresql://u:p@h/d", "SLIPWAY_TOKEN_FILE": "/none"}
    show = ("sh", "-c", "echo $SLIPWAY_TOKEN,$SLIPWAY_DATABASE_URL,$SLIPWAY_TOKEN_FILE")
    assert run(environment | secrets, "--", *show).stdout == "secret-of-the-lease,,\n"
    (asked,) = broker.bodies(TOKEN)
    assert (asked["fencing_token"], asked["holder"]) == (7, broker.bodies(ACQUIRE)[0]["holder"])
    passed = run(environment | secrets, "--pass-token", "--", *show)
    assert passed.stdout == "secret,postgresql://u:p@h/d,/none\n"
    off = {"SLIPWAY_LEASE": "off"}
    assert run(environment | secrets | off, "--", *show).stdout == ",,\n"
    broker.answers[TOKEN] = [problem(404, "not-found")]
    ran = run(environment, "--", *show)
    assert (ran.returncode, ran.stdout) == (0, ",,\n")
    assert "the command gets no token, since none was issued for its lease" in ran.stderr


FEW_COLLECTIONS: Final = 5  # that of a start, and those of the compilation of modules without bytecode
SLOW: Final = ("httpx2", "rich", "yaml", "ctypes", "json", "email", "http.client", "importlib.metadata", "pydantic")


def test_a_command_starts_without_what_it_does_not_use(broker: LeaseBroker, environment: dict[str, str]) -> None:
    """No module that takes long to import, and hardly a collection of garbage, of which there is none: 60 otherwise."""
    script = f"""if True:
        import atexit, gc, sys
        collections = lambda: sum(generation["collections"] for generation in gc.get_stats())
        before = collections()
        atexit.register(lambda: print(collections() - before, [name for name in {SLOW} if name in sys.modules]))
        from slipway_client.cli.start import main
        main()
    """
    command = [sys.executable, "-c", script, "lease", "run", "--pool", "aws-ci", "--", "true"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=True)
    number, imported = ran.stdout.split(maxsplit=1)
    assert (int(number) <= FEW_COLLECTIONS, imported) == (True, "[]\n"), ran.stdout
    assert [asked for asked, _ in broker.received].count(RELEASE) == 1


def test_no_secret_of_any_settings_reaches_a_command() -> None:
    """Nor the name of the file that has it: the command runs as our user. Our certificate as a client stays, with which
    it reaches the broker."""
    fields = {name: field for kind in (Provisioner, Broker) for name, field in kind.model_fields.items()}
    secrets = {name for name, field in fields.items() if any(isinstance(mark, Secret) for mark in field.metadata)}
    secrets |= {name for name in fields if name.endswith(("_password_file", "_secret_file", "_key_file"))}
    variables = {variable_of(name) for name in secrets} | {"SLIPWAY_TOKEN", "SLIPWAY_TOKEN_FILE"}
    assert "SLIPWAY_KAFKA_PASSWORD_FILE" in variables
    assert without_secrets(dict.fromkeys(variables, "x")) == {}


def test_environment_of_a_command() -> None:
    outer = {"SLIPWAY_LEASE_ID": "l-0", "SLIPWAY_FENCING_TOKEN": "1", "SLIPWAY_TOKEN": "ours", "HOME": "/h"}
    assert of_command(without_secrets(outer), "p") == {"SLIPWAY_LEASE_POOL": "p", "HOME": "/h"}
    granted = msgspec.convert(lease_answers.lease(lease_id="l-1", fencing_token=2)[1], Lease)
    leased = of_command(outer, "p", granted, "its")
    assert leased == {
        "SLIPWAY_LEASE_POOL": "p",
        "SLIPWAY_LEASE_ID": "l-1",
        "SLIPWAY_FENCING_TOKEN": "2",
        "SLIPWAY_TOKEN": "its",
        "HOME": "/h",
    }
