"""`slipway lease run`: exit codes, signals, losses, and a broker that is unavailable."""

import shlex
import subprocess
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from slipway_api.http.lease_broker import AcquireReplaces, Lease, ReleaseLease, UnleasedStart
from slipway_client.leases.attempts import Attempt
from slipway_client.leases.state import METRICS, Spooled, State
from slipway_client.leases.terms import Wanted
from tests.support import lease_answers
from tests.support.lease_answers import ACQUIRE, LEASE, RELEASE, RENEW, UNLEASED, LeaseBroker, problem
from tests.support.lease_commands import COMMAND, NOWHERE, SECONDS, TTL_SECONDS, run


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
    (released,) = broker.bodies(RELEASE)
    expected = ReleaseLease(fencing_token=7, result=result, holder=requested["holder"])
    assert msgspec.convert(released, ReleaseLease) == expected


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
    assert [body.get("throttled", False) for body in broker.bodies(RELEASE)] == [True, False]


def test_a_command_that_was_asked_to_stop_has_not_failed(broker: LeaseBroker, environment: dict[str, str]) -> None:
    """A failure would slow down the tenant."""
    script = "kill -TERM $PPID; sleep 60"
    assert run(environment, "--", "sh", "-c", script).returncode == 143
    assert [body.get("result", "done") for body in broker.bodies(RELEASE)] == ["cancelled"]


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
    broker.answers[UNLEASED] = [
        (200, {"charged": 1, "items": [lease_answers.lease(lease_id="l-0", fencing_token=8)[1]]})
    ]
    broker.answers["POST /leases/l-0/release"] = [lease_answers.RELEASED]
    lost = "lease lost: lost; the command continues; the rest of its hold is charged as an unleased start"
    code, log = run_until(environment, lost, "--", "sh", "-c", "read line; exit 3")
    assert (code, lost in log) == (3, True)
    charged = {
        "request_id": f"lost-{LEASE}",
        "started_at": lease_answers.lease()[1]["granted_at"],
        "hold_seconds": 1200.0,
        "cause": "lost",
    }
    # Reported again at the end of a command that ends before the answer.
    assert all(body == {"starts": [charged]} for body in broker.bodies(UNLEASED))
    assert broker.count(UNLEASED) >= 1
    assert [body.get("result", "done") for body in broker.bodies("POST /leases/l-0/release")] == ["failed"]
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


@pytest.mark.parametrize("status", [200, 404])
@pytest.mark.parametrize("content", [b'{"detail": "caf\xe9"}', b'{"a":' * 20_000], ids=["latin-1", "deep"])
def test_an_answer_that_cannot_be_read_ends_no_command(
    broker: LeaseBroker, environment: dict[str, str], content: bytes, status: int
) -> None:
    """As from a proxy: neither before it starts nor while it runs, and its exit code is its own."""
    granted = lease_answers.lease(ttl_seconds=0.6)
    broker.answers[RENEW] = [(status, content), problem(410, "lease-ended", reason="hold")]
    broker.answers[ACQUIRE] = [granted if status == 404 else (status, content), granted]
    ended = "lease ended (hold)"
    code, log = run_until(environment, ended, "--", "sh", "-c", "read line; exit 3")
    assert (code, ended in log, broker.count(RENEW), broker.count(RELEASE)) == (3, True, 2, 1), log


@pytest.mark.parametrize("on_loss", ["continue", "term"])
def test_the_end_of_the_hold_ends_nothing_else(broker: LeaseBroker, environment: dict[str, str], on_loss: str) -> None:
    """Also for a command that would get a signal after a loss."""
    broker.answers[ACQUIRE] = [lease_answers.lease(hold_seconds=1.0)]
    ended = "lease ended (hold); the command continues without a lease"
    code, log = run_until(environment, ended, "--on-loss", on_loss, "--", "sh", "-c", "read line; exit 0")
    assert (code, ended in log, broker.count(RENEW)) == (0, True, 0)
    assert [body.get("result", "done") for body in broker.bodies(RELEASE)] == ["done"]


def test_a_lease_is_renewed_while_the_command_runs(broker: LeaseBroker, environment: dict[str, str]) -> None:
    broker.answers[ACQUIRE] = [lease_answers.lease(ttl_seconds=1.5)]
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

    def attempt(number: int, replaces: AcquireReplaces | None = None) -> Attempt:
        wanted = Wanted(lease_pool_id="aws-ci", request_id="job-1", replaces=replaces)
        return Attempt(options["url"], number, wanted, given_id=True, log=logged.append)

    first = attempt(1)
    first.granted(msgspec.convert(lease_answers.lease()[1], Lease))
    second, third = attempt(2), attempt(3, AcquireReplaces(lease_id="l-9", fencing_token=9))
    assert [each.wanted.request_id for each in (first, second, third)] == ["job-1", "job-1.2", "job-1.3"]
    assert first.wanted.replaces is None
    assert second.wanted.replaces == AcquireReplaces(lease_id=LEASE, fencing_token=7)
    assert third.wanted.replaces == AcquireReplaces(lease_id="l-9", fencing_token=9)
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
    broker.answers[UNLEASED] = [
        (200, {"charged": 1, "items": [lease_answers.lease(lease_id="l-0", fencing_token=1)[1]]})
    ]
    broker.answers["POST /leases/l-0/release"] = [lease_answers.RELEASED]
    for _ in range(2):
        assert run(environment, "--", "true").returncode == 0
    assert broker.count(UNLEASED) == 1
    assert [body.get("result", "done") for body in broker.bodies("POST /leases/l-0/release")] == [
        "failed"
    ]  # it has ended, with 7
    (start,) = broker.bodies(UNLEASED)[0]["starts"]
    started = msgspec.convert(start, UnleasedStart)
    assert (started.operation, started.units) == ("install", 1)
    assert started.started_at.tzinfo is not None


def test_a_start_is_kept_until_it_is_charged(broker: LeaseBroker, environment: dict[str, str]) -> None:
    """A start refused for this token or clock is kept and blocks no other; an invalid one is dropped."""
    logged: list[str] = []
    state = State(Path(environment["SLIPWAY_STATE_DIR"]), environment["SLIPWAY_LEASE_BROKER_URL"], logged.append)
    for n, name in enumerate(("another's", "fast clock", "nonsense", "charged")):
        start = UnleasedStart(request_id=name, started_at=datetime(2026, 1, 1, 12, 0, n, tzinfo=UTC))
        state.spool(Spooled(lease_pool_id="aws-ci", start=start))
    broker.answers[UNLEASED] = [
        problem(403, "scope-missing"),
        problem(422, "clock-ahead"),
        problem(422, "invalid-request"),
        (200, {"charged": 1, "items": []}),
    ]
    assert run(environment, "--", "true").returncode == 0
    assert broker.count(UNLEASED) == 4
    assert [entry.start.request_id for entry in state.spooled()] == ["another's", "fast clock"]


def test_a_start_that_no_pool_is_charged_for_stays_on_record(broker: LeaseBroker, environment: dict[str, str]) -> None:
    """Its pool was not declared when the broker was back: it is counted on this host, as one refused at once."""
    state = State(Path(environment["SLIPWAY_STATE_DIR"]), environment["SLIPWAY_LEASE_BROKER_URL"], print)
    start = UnleasedStart(request_id="r-0", started_at=datetime(2026, 1, 1, 12, tzinfo=UTC))
    state.spool(Spooled(lease_pool_id="aws-ci", start=start))
    broker.answers[UNLEASED] = [problem(404, "unknown-lease-pool")]
    assert run(environment, "--", "true").returncode == 0
    assert (broker.count(UNLEASED), state.spooled()) == (1, [])
    counted = 'slipway_lease_uncharged_starts{lease_pool="aws-ci",cause="unknown-lease-pool"} 1\n'
    assert counted in (state.folder / METRICS).read_text()


def test_unleased_starts_are_reported_before_a_request(broker: LeaseBroker, environment: dict[str, str]) -> None:
    """Otherwise a broker that is back would grant in addition. A start that has ended is released once it is charged,
    also if the answer to the report was lost."""
    state = State(Path(environment["SLIPWAY_STATE_DIR"]), environment["SLIPWAY_LEASE_BROKER_URL"], print)
    start = UnleasedStart(request_id="r-0", started_at=datetime(2026, 1, 1, 12, tzinfo=UTC))
    state.spool(Spooled(lease_pool_id="aws-ci", start=start, result="failed"))
    broker.answers[UNLEASED] = [
        (200, {"charged": 1, "items": [lease_answers.lease(lease_id="l-0", fencing_token=1)[1]]})
    ]
    give_back = "POST /leases/l-0/release"
    broker.answers[give_back] = [problem(503, "unavailable"), problem(410, "lease-ended", reason="released")]
    assert run(environment, "--", "true").returncode == 0
    received = [asked for asked, _ in broker.received if asked in {UNLEASED, give_back, ACQUIRE}]
    assert received == [UNLEASED, give_back, ACQUIRE, UNLEASED, give_back]
    assert broker.bodies(give_back)[0] == {"fencing_token": 1, "result": "failed"}
    assert state.spooled() == []


def test_safe_waits_for_its_place_in_the_pace(environment: dict[str, str], tmp_path: Path) -> None:
    """A pool that was never seen has a limit of 1: one start per hold, so the second one does not fit in the wait."""
    nowhere = environment | {"SLIPWAY_LEASE_BROKER_URL": NOWHERE}
    safe = ("--unavailable-after", "0", "--hold", "2s", "--", "true")
    first = run(nowhere, "--max-wait", "60s", *safe)
    state = State(tmp_path, NOWHERE, print)
    taken = state.pace("aws-ci")
    assert taken is not None
    assert taken.next_start_at > 0
    # However long the first process took to end, the next place is still to come.
    state.learn("aws-ci", msgspec.structs.replace(taken, next_start_at=taken.next_start_at + 1230.0))
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
