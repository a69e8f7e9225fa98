"""Which process is which: on real ones."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from slipway_common import processes
from slipway_common.clock import utc_now
from slipway_common.ids import new_id
from slipway_common.processes import alive, identity, own_identity, tagged
from tests.linux import needs_linux

Start = Callable[..., "subprocess.Popen[bytes]"]
TAG = "SLIPWAY_TEST_TAG"

pytestmark = needs_linux


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a shell that leads a session of its own; it and what it left there are ended."""
    started: list[subprocess.Popen[bytes]] = []

    def go(script: str, tag: str = "") -> "subprocess.Popen[bytes]":
        env = {"PATH": os.environ["PATH"]} | ({TAG: tag} if tag else {})
        started.append(
            subprocess.Popen(
                ["sh", "-c", script], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
            )
        )
        return started[-1]

    yield go
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def said(process: "subprocess.Popen[bytes]") -> str:
    """The next line it says."""
    assert process.stdout is not None
    return process.stdout.readline().decode().strip()


def tell(process: "subprocess.Popen[bytes]", line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{line}\n".encode())
    process.stdin.flush()


def test_an_identity_lasts_through_exec_and_is_nobody_elses(start: Start) -> None:
    """A launcher that becomes its agent stays the same instance."""
    one = start("echo $$; read line; exec sh -c 'echo again; read line'")
    other = start("echo up; read line")
    assert (said(one), said(other)) == (str(one.pid), "up")
    before = identity(one.pid)
    assert before is not None
    tell(one, "go")
    assert said(one) == "again"
    assert identity(one.pid) == before
    assert alive(before)
    assert len({before, identity(other.pid), own_identity()}) == 3
    assert own_identity() == identity(os.getpid())


def test_a_number_that_was_given_again_is_another_process(start: Start) -> None:
    """Same pid, other start or other boot: not the process that was meant, and nothing is sent to it."""
    process = start("echo up; read line")
    said(process)
    real = identity(process.pid)
    assert real is not None
    pid, ticks, boot = real.split("-")
    for other in (f"{pid}-{int(ticks) - 1}-{boot}", f"{pid}-{ticks}-00000000", pid, "", "-1-2", "x", f"{pid}-"):
        assert not alive(other)
        assert not processes.send(other, signal.SIGKILL)
    assert alive(real)
    assert processes.send(real, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not processes.send(real, signal.SIGKILL)


def test_a_zombie_is_gone(start: Start) -> None:
    """Nobody has collected its exit status: nothing runs any more all the same."""
    process = start("echo up; read line", tag="zombie")
    said(process)
    real = identity(process.pid)
    assert real is not None
    tell(process, "end")
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert os.path.exists(f"/proc/{process.pid}")
    assert identity(process.pid) is None
    assert not alive(real)
    assert processes.child_identity(process.pid) == real
    assert tagged(TAG, "zombie") == []


def test_children_carry_the_tag(start: Start) -> None:
    """A child has its own identity, its parent's session and tag; the leader comes first."""
    mine = new_id()
    leader = start("exec 3<&0; sh -c 'echo $$; read line' <&3 & wait", tag=f"{mine}/a")
    start_other = start("echo up; read line", tag=f"{new_id()}/a")
    child = int(said(leader))
    said(start_other)
    found = tagged(TAG, mine)
    assert [(p.pid, p.session, p.leads, p.tag) for p in found] == [
        (leader.pid, leader.pid, True, f"{mine}/a"),
        (child, leader.pid, False, f"{mine}/a"),
    ]
    assert [p.identity for p in found] == [identity(leader.pid), identity(child)]
    assert tagged(TAG, f"{mine}/b") == []
    assert tagged("SLIPWAY_TEST", mine) == []
    now = utc_now()
    assert all(now - timedelta(seconds=60) < p.started_at <= now + timedelta(seconds=0.02) for p in found)


def test_a_name_full_of_parentheses_confuses_nobody(start: Start) -> None:
    """The kernel shows names unescaped, between parentheses."""
    process = start("printf ') R 1 1 1' > /proc/$$/comm; echo up; read line")
    said(process)
    assert (identity(process.pid) or "").startswith(f"{process.pid}-")
    assert [p.session for p in processes.running(TAG) if p.pid == process.pid] == [process.pid]


def test_what_may_not_be_read_is_left_out(start: Start) -> None:
    """Another user's process is listed without its tag, and fails nobody's listing."""
    mine = new_id()
    process = start("echo up; read line", tag=mine)
    said(process)
    child = os.fork()
    if child == 0:
        try:
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            hidden = tagged(TAG, mine) == [] or os.getuid() != 65534
            os._exit(0 if hidden and any(p.pid == 1 and not p.tag for p in processes.running("PATH")) else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert [p.pid for p in tagged(TAG, mine)] == [process.pid]


def test_without_proc_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another system gets a sentence, not an empty list that would mean "nothing runs"."""
    monkeypatch.setattr(processes, "supported", lambda: False)
    with pytest.raises(processes.Unsupported, match="Linux"):
        tagged(TAG)
    with pytest.raises(processes.Unsupported):
        own_identity()
