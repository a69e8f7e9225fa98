"""Identity and tags of real processes."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Final

import pytest

from slipway_common.base.clock import utc_now
from slipway_common.base.ids import new_id
from slipway_common.base.process import identities
from slipway_common.base.process.identities import alive, identity, own_identity, tagged
from tests.support.linux import needs_linux

ROOT: Final = Path(__file__).parents[2]
Start = Callable[..., "subprocess.Popen[bytes]"]
TAG = "SLIPWAY_TEST_TAG"

pytestmark = needs_linux


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts shells as session leaders; afterwards they and all processes of their sessions are killed."""
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


WATCHED: Final = """
cd /proc/$PPID
ls fd >/dev/null && echo fd
for link in cwd root exe; do readlink $link >/dev/null && echo $link; done
for file in environ maps mem; do head -c1 <$file >/dev/null && echo $file; done
true"""
PARENT: Final = """
import ctypes, os, subprocess, sys
from slipway_common.base.process import groups
os.setgroups([]); os.setgid(65534); os.setuid(65534)
ctypes.CDLL(None).prctl(groups.PR_SET_DUMPABLE, 1)  # as in a process that has always been of this user
if sys.argv[1] == "private":
    groups.keep_private()
subprocess.run(["/bin/sh", "-c", sys.argv[2]], check=True)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
@pytest.mark.parametrize(("kept", "seen"), [("open", {"fd", "cwd", "root", "environ", "maps"}), ("private", set())])
def test_a_child_sees_nothing_of_a_private_parent(kept: str, seen: set[str]) -> None:
    """Of its own user, that is no root: neither environment nor memory, descriptors or folders."""
    argv = [sys.executable, "-c", PARENT, kept, WATCHED]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, cwd="/")
    assert set(done.stdout.split()) - {"exe", "mem"} == seen
    assert kept == "open" or not done.stdout


def next_line(process: "subprocess.Popen[bytes]") -> str:
    """Next line of its output."""
    assert process.stdout is not None
    return process.stdout.readline().decode().strip()


def send(process: "subprocess.Popen[bytes]", line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{line}\n".encode())
    process.stdin.flush()


def test_an_identity_is_unique_and_survives_exec(start: Start) -> None:
    """A launcher that executes its agent stays the same instance."""
    one = start("echo $$; read line; exec sh -c 'echo again; read line'")
    other = start("echo up; read line")
    assert (next_line(one), next_line(other)) == (str(one.pid), "up")
    before = identity(one.pid)
    assert before is not None
    send(one, "go")
    assert next_line(one) == "again"
    assert identity(one.pid) == before
    assert alive(before)
    assert len({before, identity(other.pid), own_identity()}) == 3
    assert own_identity() == identity(os.getpid())


def test_a_reused_process_id_is_another_process(start: Start) -> None:
    """The same process ID with another start or boot is another process, which gets no signal."""
    process = start("echo up; read line")
    next_line(process)
    real = identity(process.pid)
    assert real is not None
    pid, ticks, boot = real.split("-")
    for other in (f"{pid}-{int(ticks) - 1}-{boot}", f"{pid}-{ticks}-00000000", pid, "", "-1-2", "x", f"{pid}-"):
        assert not alive(other)
        assert not identities.send(other, signal.SIGKILL)
    assert alive(real)
    assert identities.send(real, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not identities.send(real, signal.SIGKILL)


def test_a_zombie_is_gone(start: Start) -> None:
    """A process whose exit status was not collected counts as ended."""
    process = start("echo up; read line", tag="zombie")
    next_line(process)
    real = identity(process.pid)
    assert real is not None
    send(process, "end")
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert os.path.exists(f"/proc/{process.pid}")
    assert identity(process.pid) is None
    assert not alive(real)
    assert identities.child_identity(process.pid) == real
    assert tagged(TAG, "zombie") == []


def test_children_carry_the_tag(start: Start) -> None:
    """A child has its own identity but the session and tag of its parent; the leader is listed first."""
    mine = new_id()
    leader = start("exec 3<&0; sh -c 'echo $$; read line' <&3 & wait", tag=f"{mine}/a")
    start_other = start("echo up; read line", tag=f"{new_id()}/a")
    child = int(next_line(leader))
    next_line(start_other)
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


def test_a_name_with_parentheses_is_parsed(start: Start) -> None:
    """The kernel writes names unescaped between parentheses."""
    process = start("printf ') R 1 1 1' > /proc/$$/comm; echo up; read line")
    next_line(process)
    assert (identity(process.pid) or "").startswith(f"{process.pid}-")
    assert [p.session for p in identities.running(TAG) if p.pid == process.pid] == [process.pid]


def test_a_process_in_the_middle_of_an_exec_keeps_its_tag(start: Start) -> None:
    """Every listing finds a process that replaces itself continuously and has no environment in between."""
    mine = new_id()
    loop = 'exec "$0" -c "$1" "$0" "$1"'
    process = start(f"echo up; exec sh -c '{loop}' sh '{loop}'", tag=mine)
    next_line(process)
    found = [read.tag if (read := identities._read_process(process.pid, TAG)) else None for _ in range(2000)]
    assert found == [mine] * 2000
    assert [p.pid for p in tagged(TAG, mine)] == [process.pid]


#        (environ is complete, environ) at each read, tag found
READS: list[tuple[list[tuple[bool, bytes]], str]] = [
    ([(True, b"")], ""),  # a process that was started without an environment
    ([(False, b""), (False, b""), (True, b"A=1\0SLIPWAY_TEST_TAG=x\0")], "x"),
    ([(False, b"A=1\0"), (True, b"A=1\0SLIPWAY_TEST_TAG=x\0")], "x"),  # cut off when the old address space ended
]


@pytest.mark.parametrize(("reads", "tag"), READS)
def test_an_environment_is_read_until_it_is_complete(
    monkeypatch: pytest.MonkeyPatch, reads: list[tuple[bool, bytes]], tag: str
) -> None:
    real_read, left = identities._read, list(reads)

    def read(folder: int, name: str) -> bytes:
        if name == "environ":
            return left.pop(0)[1]
        is_complete, content = left[0]
        fields = real_stat(folder)
        begin, end = (4096, 4096 + len(content)) if is_complete else (0, 0)
        return b"1 (x) " + b" ".join([*fields[:47], str(begin).encode(), str(end).encode(), *fields[49:]])

    def real_stat(folder: int) -> list[bytes]:
        return real_read(folder, "stat").rpartition(b") ")[2].split()

    monkeypatch.setattr(identities, "_read", read)
    found = identities._read_process(os.getpid(), TAG)
    assert found is not None
    assert (found.tag, left) == (tag, [])


def test_an_exec_that_does_not_end_fails_the_listing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The listing fails, since one without the process would prove that it has ended."""
    fields = identities._stat(os.open(f"/proc/{os.getpid()}", os.O_RDONLY))
    between = b"1 (x) " + b" ".join([*fields[:47], b"0", b"0", *fields[49:]])
    monkeypatch.setattr(identities, "_read", lambda _, name: b"" if name == "environ" else between)
    monkeypatch.setattr(identities, "EXEC_SECONDS", 0.0)
    with pytest.raises(identities.Unsettled, match="middle of an exec"):
        tagged(TAG)


def test_unreadable_processes_have_no_tag(start: Start) -> None:
    """Another user's process is listed without its tag and does not fail the listing."""
    mine = new_id()
    process = start("echo up; read line", tag=mine)
    next_line(process)
    child = os.fork()
    if child == 0:
        try:
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            hidden = tagged(TAG, mine) == [] or os.getuid() != 65534
            os._exit(0 if hidden and any(p.pid == 1 and not p.tag for p in identities.running("PATH")) else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert [p.pid for p in tagged(TAG, mine)] == [process.pid]


def test_without_proc_the_listing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other systems get an error, not an empty list, which would mean that nothing runs."""
    monkeypatch.setattr(identities, "supported", lambda: False)
    with pytest.raises(identities.Unsupported, match="Linux"):
        tagged(TAG)
    with pytest.raises(identities.Unsupported):
        own_identity()


@pytest.mark.parametrize("folder", ["libs/common", "libs/local", "libs/terraform", "services"])
def test_no_code_runs_between_fork_and_exec(folder: str) -> None:
    """These processes have threads of gRPC, whose locks may be held at a fork. The command and the agent, which start
    `groups`, have none."""
    unsafe = ("preexec_fn", "os.fork(", "multiprocessing")
    files = sorted(path for path in (ROOT / folder).rglob("*.py") if path.name != "groups.py")
    assert len(files) > 10
    assert [path.name for path in files if any(text in path.read_text() for text in unsafe)] == []
