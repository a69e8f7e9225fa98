"""Agents as processes of this host: user data, sessions, logs and limits that no other provider has."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from subprocess import PIPE
from typing import Any

import msgspec
import pytest

from slipway_api.events.worker import Outcome, Result, Scope, Stage
from slipway_api.percent import encoded
from slipway_common.base.process import identities
from slipway_common.base.process.identities import INSTANCE_TAG
from slipway_provisioner.providers.port import OutcomeUnknown, Refused
from slipway_provisioner.providers.process import Processes
from tests.support.harness import until
from tests.support.linux import needs_linux
from tests.support.provider_contract import Setup, clear
from tests.support.providers import ACCOUNT, CONFIG, DEPLOYMENT, account, provider_settings, request

ROOT = Path(__file__).parents[3]


async def test_a_cancelled_call_starts_no_further_process(process_setup: Setup) -> None:
    """Of three, the second is the last one, if it was being started already."""
    assert len(await process_setup.cancelled(request(3))) in {1, 2}


async def test_an_agent_gets_its_user_data_and_nothing_of_ours(
    local: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The secret comes on standard input, and the provisioner's environment is not passed on, nor what a launch config
    says."""
    monkeypatch.setenv("SLIPWAY_DATABASE_URL", "postgresql://secret@db")
    monkeypatch.setenv("PGPASSWORD", "secret")
    asked = request(n=1, environment={"FROM_CONFIG": 7})
    here = account(
        command=["sh", "-c", "cat > data; env > env; pwd > pwd; echo logged; echo done > done; exec sleep 600"],
        environment={"FROM_ACCOUNT": "here"},
        work_folder=str(tmp_path),
        log_folder=str(tmp_path / "logs"),
    )
    (created,) = await local.create(here, asked)
    await until(lambda: (tmp_path / "done").exists(), "the agent has looked at what it got")
    assert (tmp_path / "data").read_text() == asked.user_data
    environment = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines())
    tag = encoded(DEPLOYMENT, ACCOUNT, asked.batch_id, "1", CONFIG, asked.incarnation)
    assert environment[INSTANCE_TAG] == tag
    assert environment["FROM_ACCOUNT"] == "here"
    added_by_the_shell = {"PWD", "OLDPWD", "SHLVL", "_"}
    allowed = {"PATH", "HOME", "LANG", "TMPDIR", "FROM_ACCOUNT", "FROM_CONFIG", INSTANCE_TAG} | added_by_the_shell
    assert set(environment) <= allowed
    log = tmp_path / "logs" / f"{asked.batch_id}-1.log"
    assert (log.read_text(), log.stat().st_mode & 0o777) == ("logged\n", 0o600)
    pid = int(created.split("-")[0])
    assert os.getsid(pid) == pid
    arguments = Path(f"/proc/{pid}/cmdline").read_bytes()
    assert b"the-secret" not in arguments
    assert "the-secret" not in (tmp_path / "env").read_text()


async def test_the_whole_session_ends_with_its_leader(local: Processes, tmp_path: Path) -> None:
    """A child in another process group, one in another session and one that cleared its environment all end."""
    script = """
        sleep 600 & echo $! >> pids
        setsid sleep 600 & echo $! >> pids
        env -i sleep 600 & echo $! >> pids
        set -m; sleep 600 & echo $! >> pids
        echo $$ >> pids; mv pids all
        while :; do sleep 600; done"""
    here = account(command=["sh", "-c", script], work_folder=str(tmp_path))
    (created,) = await local.create(here, request())
    await until(lambda: (tmp_path / "all").exists(), "all children run")
    pids = [int(line) for line in (tmp_path / "all").read_text().split()]
    run = [identity for pid in pids if (identity := identities.identity(pid))]
    assert len(run) == 5
    try:
        await local.terminate(here, [created])
        await until(lambda: not any(map(identities.alive, run)), "none of them runs")
    finally:
        for identity in run:
            identities.send(identity, signal.SIGKILL)


async def test_processes_left_by_a_dead_leader_are_an_orphan(local: Processes, tmp_path: Path) -> None:
    """The task of a killed agent continues and is listed under another id, as an orphan instance."""
    here = account(command=["sh", "-c", "sleep 600 & sleep 600 & wait"])
    asked = request()
    (created,) = await local.create(here, asked)
    await until(lambda: len(identities.tagged(INSTANCE_TAG, encoded(DEPLOYMENT))) == 3, "both children run")
    assert [i.id for i in await local.instances(here)] == [created]
    assert identities.send(created, signal.SIGKILL)
    await until(lambda: not identities.alive(created), "the leader is gone")
    left = await local.instances(here)
    assert [instance.batch_id for instance in left] == [asked.batch_id]
    orphan = left[0]
    assert orphan.id != created
    assert not await local.exists(here, created, launched_at=None)
    assert await local.exists(here, orphan.id, launched_at=None)
    await local.terminate(here, [orphan.id])
    await until(lambda: not identities.tagged(INSTANCE_TAG, encoded(DEPLOYMENT)), "nothing is left")
    assert await local.instances(here) == []


async def test_children_are_collected_at_once(local: Processes) -> None:
    """No zombie stays, and a process that ended at once has an id of its own."""
    here = account(command=["true"], processes_max=50)
    created = await local.create(here, request(20))
    assert len(set(created)) == 20
    pids = [int(id_.split("-")[0]) for id_ in created]
    await until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "no zombie is left")
    assert await local.instances(here) == []
    assert not any([await local.exists(here, id_, launched_at=None) for id_ in created])


#         settings,                              code, scope, words
FAILURES = [
    (
        {"command": ["no-such-agent"]},
        "InvalidCommand",
        "^InvalidCommand: command of account ci/here .* install it.*no-such-agent",
    ),
    ({"command": ["/etc/passwd"]}, "InvalidCommand", "command of account ci/here .*/etc/passwd"),
    (
        {"command": ["true"], "work_folder": "/no/such/folder"},
        "InvalidCommand",
        "work_folder of account ci/here .* create it.*/no/such/folder",
    ),
    ({"log_folder": "/etc/passwd"}, "InvalidCommand", "log_folder of account ci/here .* write there.*/etc/passwd"),
    ({"log_folder": "/etc/passwd/logs"}, "InvalidCommand", "log_folder of account ci/here"),
    ({"log_folder": "/" + 300 * "x"}, "InvalidCommand", "log_folder of account ci/here .* write there"),
    ({"environment": {"LONG": 3_000_000 * "x"}}, "TooLarge", "too long"),
    ({"command": ["a\0b"]}, "InvalidCommand", "null byte"),
]


@pytest.mark.parametrize(("settings", "code", "words"), FAILURES)
async def test_a_command_that_cannot_run_blames_its_config(
    local: Processes, settings: dict[str, Any], code: str, words: str
) -> None:
    with pytest.raises(Refused, match=words) as refused:
        await local.create(account(**settings), request())
    assert refused.value.outcome == Outcome(Stage.LAUNCH, Result.FAILED, Scope.CONFIG, CONFIG, code)
    assert await local.instances(account()) == []


@pytest.mark.parametrize(("length", "fits"), [(60_000, True), (70_000, False)])
async def test_user_data_that_are_too_long_blame_their_config(local: Processes, length: int, fits: bool) -> None:
    """They would be too long on any host, so a retry is useless."""
    here, asked = account(command=["true"]), request(long=length * "x")
    if fits:
        assert len(await local.create(here, asked)) == 1
        return
    with pytest.raises(Refused, match="shorten the launch config's settings") as refused:
        await local.create(here, asked)
    assert refused.value.outcome == Outcome(Stage.LAUNCH, Result.FAILED, Scope.CONFIG, CONFIG, "TooLarge")


@needs_linux
async def test_a_host_without_capacity() -> None:
    """Without processes, files or memory left, the failure is one of capacity, whatever the config."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.providers", "crowded", cwd=ROOT, stdout=PIPE
    )
    output, _ = await process.communicate()
    assert output.decode().strip() == "capacity InsufficientCapacity"


async def test_a_call_of_a_killed_provisioner_is_found_by_its_tag(local: Processes, tmp_path: Path) -> None:
    """The processes that a killed call has started continue with their user data, and are found and terminated."""
    asked = request(10)
    # Opening this log blocks until a reader opens it, which stops the provisioner here.
    os.mkfifo(tmp_path / f"{asked.batch_id}-6.log")
    killed = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.support.providers",
        "creating",
        DEPLOYMENT,
        asked.batch_id,
        str(tmp_path),
        cwd=ROOT,
    )
    try:
        await until(lambda: len(identities.tagged(INSTANCE_TAG, encoded(DEPLOYMENT))) == 5, "five of ten were started")
    finally:
        killed.kill()
        await killed.wait()
    here = account()
    listed = await local.instances(here, batch_id=asked.batch_id)
    assert len(listed) == 5
    assert all([await local.exists(here, instance.id, launched_at=None) for instance in listed])
    seen = [tmp_path / instance.id.split("-")[0] for instance in listed]
    await until(lambda: all(path.exists() and path.stat().st_size for path in seen), "all have read their user data")
    assert {msgspec.json.decode(path.read_bytes())["batch_id"] for path in seen} == {asked.batch_id}
    for instance in listed:
        await local.terminate(here, [instance.id])
    await until(lambda: not identities.tagged(INSTANCE_TAG, encoded(DEPLOYMENT)), "nothing is left")


@needs_linux
async def test_processes_outlive_a_provisioner_that_stops(tmp_path: Path) -> None:
    """Closing terminates nothing: the next provisioner finds the processes."""
    first = Processes(provider_settings())
    here = account(environment={"SEEN": str(tmp_path)})
    try:
        created = await first.create(here, request(2))
        await first.close()
        with pytest.raises(OutcomeUnknown):
            await first.create(here, request())
        second = Processes(provider_settings())
        assert {i.id for i in await second.instances(here)} == set(created)
        await second.close()
    finally:
        await clear()
