"""`slipway lease run` on a real broker: signals of the command, releases, and exit codes. Each test has a lease pool
of its own with one unit; the broker's history shows the decisions about it."""

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import httpx2
import msgspec
import pytest

from slipway_client.leases import lease
from slipway_common.base.ids import hash_secret
from slipway_common.database import migrate
from slipway_common.messaging import topic_admin
from slipway_local.servers.kafka import EmbeddedKafka
from slipway_local.servers.ports import free_ports
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_local.servers.supervisor import Service, Supervisor, http_ready
from tests.drills.proxy import Proxy
from tests.support.harness import until
from tests.support.linux import needs_linux

pytestmark = needs_linux

NAME: Final = "lease-run"
PROGRAM: Final = "from slipway_client.cli.main import app; app(prog_name='slipway')"
SECRET: Final = "secret-of-everybody"
SECONDS: Final = 60.0
PATIENT, FROZEN = "patient", "frozen"  # their paces allow no start while the broker is down
POOLS: Final = (
    "exit",
    "crash",
    "int",
    "term",
    "trap",
    "script",
    "waits",
    "attempt",
    "shared",
    "optimistic",
    PATIENT,
    FROZEN,
    "pessimistic",
    "full",
)
# Pools of tests in which leases are not renewed for a while.
SHORT: Final = ("killed", "stopped", "taken", "unavailable", "fenced")
SHORT_TTL_SECONDS: Final = 4.0
HELD: Final = "held"
HOLD_SECONDS: Final = 5.0
LONGER_SECONDS: Final = 2.0
"""How long commands go on after the end of their hold."""
LATENCY_SECONDS: Final = 0.04
LOSSES: Final = ("continue", "raise")
PACED: Final = "paced"
PACED_HOLD_SECONDS: Final = 1.5
LOST_LINGER_SECONDS: Final = 0.2
# A request at the very beginning of its span, which would otherwise be half a minute of waiting.
SOON: Final = next(f"r-{number}" for number in range(10_000) if Random(f"r-{number}").random() < 0.001)
UP: Final = "echo up $SLIPWAY_LEASE_ID $SLIPWAY_FENCING_TOKEN; "
FOREVER: Final = "while :; do sleep 0.05; done"


class Run:
    """One `slipway lease run`, or a script that has one, as a process that leads its own session as a CI job does."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lease_id = ""
        self.fencing_token = 0
        self.lines: list[str] = []

    async def up(self) -> None:
        """Wait until the command runs, and read its lease."""
        line = await self.until_printed("up")
        self.lease_id, _, token = line.removeprefix("up").strip().partition(" ")
        self.fencing_token = int(token or 0)

    async def until_printed(self, word: str) -> str:
        """Wait for a line that begins with a word, and return it."""
        assert self.process.stdout is not None
        async with asyncio.timeout(SECONDS):
            while line := (await self.process.stdout.readline()).decode():
                self.lines.append(line.strip())
                if line.startswith(word):
                    return line
        _, err = await self.ended()
        raise AssertionError(f"it exited with {self.process.returncode} before it printed {word!r}: {err}")

    def send(self, signum: int) -> None:
        self.process.send_signal(signum)

    async def ended(self) -> tuple[int, str]:
        """Wait for its exit code as in a shell, and its stderr; `lines` has its output."""
        out, err = await asyncio.wait_for(self.process.communicate(), SECONDS)
        self.lines += out.decode().splitlines()
        code = self.process.returncode
        assert code is not None
        return (128 - code if code < 0 else code), err.decode()


class Broker:
    """A lease-broker in a process of its own, and its API."""

    def __init__(self, supervisor: Supervisor, folder: Path, port: int) -> None:
        self.supervisor = supervisor
        self.folder = folder
        self.port = port
        self.url = url = f"http://127.0.0.1:{port}"
        self.http = httpx2.AsyncClient(
            base_url=url,
            timeout=30.0,
            headers={"Authorization": f"Bearer {SECRET}"},
            limits=httpx2.Limits(keepalive_expiry=1.0),  # the server closes an idle connection after 5 s, as a TTL ends
        )
        self.started: list[asyncio.subprocess.Process] = []

    async def close(self) -> None:
        """Kill what a failed test has left: whole sessions, since commands outlive the client that ran them."""
        await self.http.aclose()
        for process in self.started:
            for pid in of_session(process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            await process.wait()

    async def run(self, pool: str, *arguments: str, **variables: str) -> Run:
        command = (sys.executable, "-c", PROGRAM, "lease", "run", "--pool", pool, *arguments)
        return await self.start(*command, **variables)

    async def start(self, *command: str, **variables: str) -> Run:
        own = {name: value for name, value in os.environ.items() if not name.startswith("SLIPWAY_")}
        own |= {
            "SLIPWAY_LEASE_BROKER_URL": self.url,
            "SLIPWAY_TOKEN": SECRET,
            "SLIPWAY_STATE_DIR": str(self.folder),
            **variables,
        }
        process = await asyncio.create_subprocess_exec(
            *command,
            env=own,
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=PIPE,
            start_new_session=True,
        )
        self.started.append(process)
        return Run(process)

    async def get(self, path: str) -> Any:
        answer = await self.http.get(path)
        answer.raise_for_status()
        return answer.json()

    async def held(self, pool: str) -> list[str]:
        return [lease["lease_id"] for lease in (await self.get(f"/leases?pool={pool}"))["items"]]

    async def history(self, lease_id: str) -> list[str]:
        """Kinds of the decisions about a lease, in order."""
        return [entry["kind"] for entry in (await self.get(f"/leases/{lease_id}/history"))["items"]]

    async def charged(self, pool: str) -> int:
        """Number of unleased starts that were charged."""
        entries = (await self.get(f"/lease-pools/{pool}/history"))["items"]
        return sum(entry["kind"] == "unleased" for entry in entries)

    async def pool(self, name: str) -> Any:
        return next(row for row in (await self.get("/lease-pools"))["items"] if row["id"] == name)


def of_session(session: int) -> list[int]:
    """Processes of a session."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, of, *_ = path.read_text().rpartition(")")[2].split()
            if int(of) == session and state != "Z":
                found.append(int(path.parent.name))
    return found


@pytest.fixture(scope="module")
async def broker(kafka: EmbeddedKafka, postgres: EmbeddedPostgres, session_folder: Path) -> AsyncIterator[Broker]:
    folder = session_folder / NAME
    folder.mkdir()
    (folder / "tokens.yaml").write_bytes(
        msgspec.json.encode([{"name": "ci", "sha256": hash_secret(SECRET), "scopes": ["admin"]}])
    )
    (port,) = free_ports(1)
    database_url = await postgres.create_database(NAME)
    await migrate.upgrade(database_url, "lease-broker")
    await topic_admin.create(kafka.bootstrap, prefix=f"{NAME}.", partitions=1)
    env = {key: value for key, value in os.environ.items() if not key.startswith("SLIPWAY_")}
    env |= {
        "SLIPWAY_KAFKA": kafka.bootstrap,
        "SLIPWAY_TOPIC_PREFIX": f"{NAME}.",
        "SLIPWAY_PARTITIONS": "1",
        "SLIPWAY_DATABASE_URL": database_url,
        "SLIPWAY_PORT": str(port),
        "SLIPWAY_TOKENS_FILE": str(folder / "tokens.yaml"),
        "SLIPWAY_LOST_LINGER_SECONDS": str(LOST_LINGER_SECONDS),
    }
    async with Supervisor() as supervisor:
        await supervisor.start(
            Service(
                NAME,
                [sys.executable, "-m", "slipway_lease_broker.main"],
                env=env,
                log=folder / "broker.log",
                ready=partial(http_ready, port),
                start_seconds=120.0,
            )
        )
        broker = Broker(supervisor, folder, port)
        terms = {"limit": 1, "hold_seconds": 600.0, "reserve_seconds": 60.0, "pacing": "off"}
        pools = [{"id": name, **terms, "ttl_seconds": 120.0} for name in POOLS if name not in (PATIENT, FROZEN)]
        pools.append({"id": HELD, **terms, "limit": 20, "ttl_seconds": HOLD_SECONDS})
        pools += [{"id": name, **terms, "ttl_seconds": 120.0, "hold_seconds": 86_400.0} for name in (PATIENT, FROZEN)]
        pools += [{"id": name, **terms, "ttl_seconds": SHORT_TTL_SECONDS} for name in SHORT]
        paced = dict.fromkeys(("hold_seconds", "ttl_seconds", "reserve_seconds"), PACED_HOLD_SECONDS)
        pools.append({"id": PACED, "limit": 1, "pacing": "off"} | paced)
        documents = {"documents": [{"owner": "tests", "lease_pools": pools}]}
        (await broker.http.put("/lease-pools", json=documents)).raise_for_status()
        yield broker
        await broker.close()


# End of the command or of the client


async def test_one_release_when_the_command_ends(broker: Broker) -> None:
    run = await broker.run("exit", "--", "sh", "-c", UP + "exit 7")
    await run.up()
    assert (await run.ended())[0] == 7
    assert (await broker.history(run.lease_id)).count("released") == 1
    assert await broker.held("exit") == []


async def test_one_release_when_the_command_crashes(broker: Broker) -> None:
    run = await broker.run("crash", "--", "sh", "-c", UP + "kill -SEGV $$")
    await run.up()
    assert (await run.ended())[0] == 128 + signal.SIGSEGV
    assert (await broker.history(run.lease_id)).count("released") == 1
    assert await broker.held("crash") == []


@pytest.mark.parametrize(("pool", "signum"), [("int", signal.SIGINT), ("term", signal.SIGTERM)])
async def test_a_signal_reaches_the_command_once_and_one_release_follows(
    broker: Broker, pool: str, signum: signal.Signals
) -> None:
    """Once per signal, whether it is sent to the client or to its whole group; the command may take its time to end,
    and its exit code is kept."""
    name = signum.name.removeprefix("SIG")
    script = f"n=0; trap 'n=$((n+1)); echo {name} $n' {name}; trap 'echo got $n; exit 9' USR1; {UP}{FOREVER}"
    run = await broker.run(pool, "--", "sh", "-c", script)
    await run.up()
    to_all: Callable[[int], None] = partial(os.killpg, run.process.pid)
    for number, send in enumerate((to_all, run.send), 1):
        send(signum)
        await run.until_printed(f"{name} {number}\n")
        await asyncio.sleep(0.3)  # a second copy of it would come by then, and two at once would be one
    assert await broker.held(pool) == [run.lease_id]
    run.send(signal.SIGUSR1)
    assert (await run.ended())[0] == 9
    assert run.lines[-1] == "got 2"
    assert (await broker.history(run.lease_id)).count("released") == 1
    assert await broker.held(pool) == []


async def test_a_killed_client_s_lease_ends_by_its_ttl(broker: Broker) -> None:
    """The lease is not released; the command gets a signal, and the unit is granted to another run later."""
    script = f"trap 'echo signalled; exit 0' TERM; {UP}{FOREVER}"
    run = await broker.run("killed", "--on-loss", "TERM", "--", "sh", "-c", script)
    await run.up()
    run.send(signal.SIGKILL)
    assert (await run.ended())[0] == 128 + signal.SIGKILL
    assert run.lines[-1] == "signalled"
    after = await broker.run("killed", "--", "sh", "-c", UP)
    await after.up()
    history = await broker.history(run.lease_id)
    assert ("lost" in history, "released" in history) == (True, False)
    assert after.fencing_token > run.fencing_token
    assert (await after.ended())[0] == 0


# The end of the hold


async def test_the_end_of_the_hold_is_no_loss(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that outlives its hold is not disturbed, whatever the latency, and counts as no failure of its tenant;
    nor is a block of Python."""
    received: list[bytes] = []
    near, far = Proxy(broker.port), Proxy(broker.port)
    near.on_request = far.on_request = received.append
    far.delay = lambda: LATENCY_SECONDS
    urls = [f"http://127.0.0.1:{await proxy.start()}" for proxy in (near, far)]
    script = f"{UP}sleep {HOLD_SECONDS + LONGER_SECONDS:g}; echo ok"
    command = ("--hold", f"{HOLD_SECONDS:g}s", "--", "sh", "-c", script)
    runs = [
        await broker.run(HELD, "--on-loss", on_loss, *command, SLIPWAY_LEASE_BROKER_URL=url)
        for url in urls
        for on_loss in ("continue", "TERM")
    ]
    monkeypatch.setenv("SLIPWAY_STATE_DIR", str(broker.folder))

    async def block(url: str, on_loss: str) -> str:
        async with lease(HELD, hold_seconds=HOLD_SECONDS, on_loss=on_loss, url=url, token=SECRET) as held:
            await asyncio.sleep(HOLD_SECONDS + LONGER_SECONDS)
            held.check()
        return held.lease_id

    held = await asyncio.gather(*(block(url, on_loss) for url in urls for on_loss in LOSSES))
    for run in runs:
        await run.up()
        code, err = await run.ended()
        assert (code, run.lines[-1]) == (0, "ok")
        assert "lease ended (hold); the command continues" in err
    for lease_id in [*held, *(run.lease_id for run in runs)]:
        ended = await broker.get(f"/leases/{lease_id}")
        assert (ended["state"], ended["reason"]) == ("released", "hold")
        assert (await broker.history(lease_id))[-1] == "released"
        assert 1 <= b"".join(received).count(f"/leases/{lease_id}/renew".encode()) <= 2
    waits = await broker.http.post(f"/lease-pools/{HELD}/leases", json={"request_id": "next"})
    assert waits.status_code == 200, "its tenant does not back off"


SCRIPT = """
trap 'echo own EXIT trap' EXIT
trap 'echo own TERM trap; exit 3' TERM
"$@" lease run --pool script -- sh -c 'echo up $SLIPWAY_LEASE_ID $SLIPWAY_FENCING_TOKEN; exec sleep 60'
echo not reached
"""


async def test_a_script_s_own_traps_still_fire(broker: Broker) -> None:
    """Nothing is installed into the shell."""
    script = await broker.start("bash", "-c", SCRIPT, "bash", sys.executable, "-c", PROGRAM)
    await script.up()
    os.killpg(script.process.pid, signal.SIGTERM)
    assert (await script.ended())[0] == 3
    assert script.lines[-2:] == ["own TERM trap", "own EXIT trap"]
    assert (await broker.history(script.lease_id)).count("released") == 1


async def test_traps_of_the_command_fire_too(broker: Broker) -> None:
    # The sleep starts before the command is up, and without its output: one forked after the signal would hold it open.
    script = f"trap 'echo own trap' EXIT; sleep 60 >&- 2>&- & {UP} wait"
    run = await broker.run("trap", "--", "bash", "-c", script)
    await run.up()
    run.send(signal.SIGTERM)
    assert (await run.ended())[0] == 128 + signal.SIGTERM
    assert run.lines[-1] == "own trap"
    assert await broker.held("trap") == []


# End of the lease


async def test_the_lease_is_lost_if_the_client_was_suspended_for_too_long(broker: Broker) -> None:
    """The client's own clock decides before any call; meanwhile another run has the unit, with a greater token."""
    script = f"trap 'echo signalled; exit 5' USR1; {UP}{FOREVER}"
    run = await broker.run("stopped", "--on-loss", "USR1", "--", "sh", "-c", script)
    await run.up()
    run.send(signal.SIGSTOP)
    other = await broker.run("stopped", "--", "sh", "-c", UP + "exec sleep 60")
    await other.up()
    assert other.fencing_token > run.fencing_token
    run.send(signal.SIGCONT)
    code, err = await run.ended()
    assert (code, run.lines[-1]) == (5, "signalled")
    assert "lease lost" in err
    assert "sending SIGUSR1 to the command" in err
    assert await broker.held("stopped") == [other.lease_id]
    other.send(signal.SIGTERM)
    await other.ended()


# One request id in several processes


async def test_a_request_id_has_one_holder(broker: Broker) -> None:
    """Another process is refused, and does not disturb the first one; one that joins holds the lease, too."""
    shared = ("--request-id", "job-2")
    script = f"trap 'exit 0' USR1; {UP}{FOREVER}"
    first = await broker.run("shared", *shared, "--", "sh", "-c", script)
    await first.up()
    holder = (await broker.get(f"/leases/{first.lease_id}"))["holder"]
    assert f":{first.process.pid}:" in holder
    second = await broker.run("shared", *shared, "--", "echo", "started")
    code, err = await second.ended()
    assert (code != 0, second.lines) == (True, [])
    assert f"request job-2 is in use by {holder}" in err
    joined = await broker.run("shared", *shared, "--join", "--", "sh", "-c", script)
    await joined.up()
    assert (joined.lease_id, joined.fencing_token) == (first.lease_id, first.fencing_token)
    first.send(signal.SIGUSR1)
    assert (await first.ended())[0] == 0
    assert await broker.held("shared") == [joined.lease_id], "the last release counts"
    joined.send(signal.SIGUSR1)
    assert (await joined.ended())[0] == 0
    assert await broker.held("shared") == []


async def test_a_request_whose_process_was_killed_is_taken_over(broker: Broker) -> None:
    """Three quarters of a TTL after its last renewal, with the same lease under a new token."""
    job = ("--request-id", "job-3", "--on-loss", "TERM", "--", "sh", "-c", UP + "exec sleep 60")
    first = await broker.run("taken", *job)
    await first.up()
    first.send(signal.SIGKILL)
    await first.ended()

    second = first

    async def taken_over() -> bool:
        nonlocal second
        second = await broker.run("taken", *job)
        with contextlib.suppress(AssertionError):
            await second.up()
        return bool(second.lease_id)

    await until(taken_over, "the lease is taken over")
    assert (second.lease_id, second.fencing_token > first.fencing_token) == (first.lease_id, True)
    second.send(signal.SIGTERM)
    await second.ended()
    assert await broker.held("taken") == []


# Waiting


async def test_a_request_that_is_not_admitted_in_time_leaves_the_queue(broker: Broker) -> None:
    """The unit is granted to the run that still waits, as soon as it is free."""
    first = await broker.run("waits", "--", "sh", "-c", UP + "exec sleep 60")
    await first.up()
    short, patient, leaving = [
        await broker.run("waits", "--max-wait", wait, "--", "sh", "-c", UP) for wait in ("0.5s", "5m", "5m")
    ]
    code, err = await short.ended()
    assert (code, short.lines) == (125, [])
    assert "no lease of waits within 0.5 s" in err
    await until(lambda: waiting_in(broker, "waits", 2), "both wait")
    leaving.send(signal.SIGTERM)
    assert (await leaving.ended())[0] == 128 + signal.SIGTERM
    await until(lambda: waiting_in(broker, "waits", 1), "the cancelled request has left the queue")
    first.send(signal.SIGTERM)
    await patient.up()
    assert (await patient.ended())[0] == 0
    assert (await first.ended())[0] == 128 + signal.SIGTERM


async def waiting_in(broker: Broker, pool: str, units: int) -> bool:
    return bool((await broker.pool(pool))["waiting"] == units)


async def test_the_next_attempt_takes_the_place_of_the_one_before(broker: Broker) -> None:
    """A job whose client was killed retries while its lease still counts: that lease ends as the new one is granted."""
    attempt = ("--on-loss", "TERM", "--request-id", "job-1", "--", "sh", "-c", UP + "exec sleep 60")
    first = await broker.run("attempt", *attempt)
    await first.up()
    first.send(signal.SIGKILL)
    await first.ended()
    second = await broker.run("attempt", "--attempt", "2", *attempt)
    await second.up()  # it does not wait for so long as the TTL of the first lease
    assert await broker.held("attempt") == [second.lease_id]
    second.send(signal.SIGTERM)
    await second.ended()


# The broker is unavailable


async def test_each_mode_while_the_broker_is_down(broker: Broker) -> None:
    """Pessimistic starts nothing, optimistic starts at once, safe at the last known pace or not at all. Requests that
    still wait when the broker is back are admitted by it. Every unleased start is reported and charged once, also if
    it has ended before. A command whose lease is not renewed within its TTL goes on, or gets the signal that it needs.
    """
    script = f"trap 'echo signalled; exit 4' TERM; {UP}{FOREVER}"
    held = await broker.run("unavailable", "--", "sh", "-c", script)
    fenced = await broker.run("fenced", "--on-loss", "TERM", "--", "sh", "-c", script)
    await asyncio.gather(held.up(), fenced.up())
    for pool in (PACED, PATIENT):  # records their paces on this host
        assert await ended(await broker.run(pool, "--", "true")) == (0, [])
    await broker.supervisor.kill(NAME)
    patient = await broker.run(PATIENT, "--unavailable-after", "0", "--", "sh", "-c", UP + "exit 8")
    optimistic = ("--fail-open", "optimistic", "--", "sh", "-c")
    running = await broker.run("optimistic", *optimistic, UP + FOREVER)
    await running.up()
    safe = [await broker.run(PACED, "--unavailable-after", "0", "--", "echo", "started") for _ in range(2)]
    others = [
        await broker.run("pessimistic", "--fail-open", "pessimistic", "--max-wait", "1s", "--", "echo", "x"),
        await broker.run(PATIENT, "--unavailable-after", "0", "--max-wait", "1s", "--", "echo", "x"),
        await broker.run("optimistic", *optimistic, "echo $SLIPWAY_LEASE_ID.; exit 7"),
    ]
    assert [await ended(run) for run in [*others, *safe]] == [
        (125, []),
        (125, []),
        (7, ["."]),
        (0, ["started"]),
        (0, ["started"]),
    ]
    code, err = await fenced.ended()
    assert (code, fenced.lines[-1]) == (4, "signalled")
    assert "lease lost: not renewed in time" in err

    await broker.supervisor.restart(NAME)
    await patient.up()
    assert ((await patient.ended())[0], bool(patient.lease_id)) == (8, True)
    await until(lambda: renewed_or_charged(broker, held), "the work is counted again")
    held.send(signal.SIGTERM)
    code, err = await held.ended()
    assert (code, held.lines[-1]) == (4, "signalled")
    assert "another holder may have its units" in err
    assert await broker.held("unavailable") == []
    await until(lambda: all_charged(broker), "every start is charged")
    await until(lambda: holds(broker, "optimistic", 1), "launches that have ended are released")
    running.send(signal.SIGTERM)
    assert (await running.ended())[0] == 128 + signal.SIGTERM
    assert await broker.held("optimistic") == []
    assert await ended(await broker.run("exit", "--", "true")) == (0, [])
    assert await all_charged(broker)


# A start without a lease


async def test_fail_open_runs_what_is_undeclared_unauthorized_or_not_admitted(broker: Broker) -> None:
    """Each with the exit code of its command, and with the cause in its status file; a full pool counts the start."""
    holder = await broker.run("full", "--", "sh", "-c", UP + "exec sleep 60")
    await holder.up()
    causes = {
        ("nowhere", SECRET): "unknown-lease-pool",
        ("full", "revoked"): "unknown-token",
        ("full", SECRET): "full",
    }
    for (pool, secret), cause in causes.items():
        file = broker.folder / "status"
        options = ("--fail-open", "always", "--max-wait", "2s", "--request-id", SOON, "--status-file", str(file))
        run = await broker.run(pool, *options, "--", "sh", "-c", UP + "exit 7", SLIPWAY_TOKEN=secret)
        await run.up()
        assert (await run.ended())[0] == 7
        expected = {"started": True, "leased": False, "cause": cause, "exit_code": 7}
        assert (run.lease_id, msgspec.json.decode(file.read_bytes())) == ("", expected)
        assert await broker.charged("full") == (cause == "full")
    await until(lambda: holds(broker, "full", 1), "the start that has ended is released")
    assert await broker.held("full") == [holder.lease_id]
    assert not await waiting_in(broker, "full", 1)
    holder.send(signal.SIGTERM)
    await holder.ended()


async def test_safe_says_at_once_that_its_slot_comes_too_late(broker: Broker) -> None:
    """While the broker is frozen; it would be asked until the end of the wait."""
    assert await ended(await broker.run(FROZEN, "--", "true")) == (0, [])  # records its pace on this host
    broker.supervisor.pause(NAME)
    try:
        soon = ("--unavailable-after", "0", "--max-wait", "4s")  # over when the first request is given up, after 5 s
        run = await broker.run(FROZEN, "--fail-open", "safe", *soon, "--", "echo", "x")
        code, err = await run.ended()
    finally:
        broker.supervisor.resume(NAME)
    assert (code, run.lines) == (125, [])
    assert "not starting unless it answers, since its next start at the last known pace is in" in err


async def all_charged(broker: Broker) -> bool:
    """True if two launches of each mode that starts are charged, and none of the others."""
    return [await broker.charged(pool) for pool in ("optimistic", PACED, "pessimistic", PATIENT)] == [2, 2, 0, 0]


async def renewed_or_charged(broker: Broker, run: Run) -> bool:
    """True if a command that outlived an outage holds its lease still, or counts without it: a short outage does not
    keep leases from expiring."""
    lease = await broker.get(f"/leases/{run.lease_id}")
    if lease["state"] != "lost":
        return bool(lease["ttl_seconds_left"] > 0.8 * lease["ttl_seconds"])
    counted = (await broker.get("/leases?pool=unavailable"))["items"]
    return any(lease["request_id"] == f"lost-{run.lease_id}" for lease in counted)


async def holds(broker: Broker, pool: str, leases: int) -> bool:
    return len(await broker.held(pool)) == leases


async def ended(run: Run) -> tuple[int, Sequence[str]]:
    code, _ = await run.ended()
    return code, run.lines
