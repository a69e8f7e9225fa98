"""`slipway-worker wrap` and its hooks: jobs of an agent of somebody else's queue."""

import os
import signal
import stat
import subprocess
from pathlib import Path

import pytest

from slipway_api.events.worker import WorkerErrorReported
from slipway_common.base.clock import utc_now
from slipway_common.base.ids import hash_secret
from slipway_provisioner.domain.cloud import Account, Instance, InstanceState
from slipway_provisioner.domain.identity import Attested, Proof
from slipway_provisioner.domain.registration import RegistrationKeys
from tests.support.harness import until
from tests.support.imds import INSTANCE_ID, fake_imds
from tests.support.provisioner import KEY
from tests.support.worker_scenes import AGENT, HOOK, SECRET_LIKE, Scene


async def test_an_agent_and_its_hooks(scene: Scene) -> None:
    """Claims and ends of the hooks are reported in order, and `draining` answers; no secret reaches the agent, its
    socket is accessible to its user only, and is removed."""
    script = (
        f"{HOOK} draining; echo draining $?; {HOOK} claimed job-1 --source mine; {HOOK} idle; {HOOK} idle; "
        f"{HOOK} claimed ''; echo empty $?; read line; echo read $?; env | sort; "
        "until [ -e $0/go ]; do sleep 0.02; done"
    )
    async with scene.serving():
        agent = await scene.start("wrap", "--", "sh", "-c", script, str(scene.folder))
        await until(lambda: len(agent.processes()) > 1)
        (folder,) = await until(lambda: list(scene.folder.glob("slipway-worker-*")))
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        await until(
            lambda: scene.provisioner.database.fetchval("SELECT count(*) FROM claim WHERE ended_at IS NOT NULL")
        )
        worker = await scene.worker()
        (scene.folder / "go").touch()
        assert await agent.end() == 0
    assert await scene.published() == ["registered", "claimed", "idle", "stopped"]
    claim = await scene.provisioner.database.fetchrow("SELECT source, task_id FROM claim")
    assert claim is not None
    assert tuple(claim) == ("mine", "job-1")
    output = agent.output.decode()
    assert "continue\ndraining 1\n" in output
    assert "the job id is empty\nempty 1\nread 1\n" in output
    assert f"SLIPWAY_WORKER_SOCKET={folder}/" in output
    assert list(scene.folder.glob("slipway-worker-*")) == []
    secrets = {RegistrationKeys(KEY).secret(scene.batch_id), worker.token_sha256}
    for word in SECRET_LIKE.findall(output):
        assert not {word, hash_secret(word)} & secrets


async def test_two_jobs_at_once(scene: Scene) -> None:
    """Each ends by its name, with the source of the settings; without one neither does, and the hook says so. The hooks
    get pool and source in their environment, and no task of another agent."""
    await scene.provisioner.database.execute("UPDATE worker SET task_slots = 2")
    script = (
        f"{HOOK} claimed long; {HOOK} claimed short --source other; {HOOK} idle; echo unnamed $?; "
        f"SLIPWAY_TASK_ID=short {HOOK} idle; echo ended $?; env | sort; "
        f"until [ -e $0/go ]; do sleep 0.02; done; {HOOK} idle"
    )
    ended = (
        "SELECT string_agg(task_id || ' of ' || source, ', ' ORDER BY task_id) FROM claim WHERE ended_at IS NOT NULL"
    )
    async with scene.serving():
        agent = await scene.start("wrap", "--", "sh", "-c", script, str(scene.folder), source="mine")
        assert await until(lambda: scene.provisioner.database.fetchval(ended)) == "short of other"
        assert (await scene.worker()).idle_since is None
        (scene.folder / "go").touch()
        assert await agent.end() == 0
    assert await scene.provisioner.database.fetchval(ended) == "long of mine, short of other"
    assert await scene.published() == ["registered", "claimed", "claimed", "idle", "stopped"]
    output = agent.output.decode()
    assert "several jobs run, so name the one that has ended: long, short\nunnamed 0\nended 0\n" in output
    for variable in ("SLIPWAY_POOL_ID=linux", "SLIPWAY_SOURCE=mine", "SLIPWAY_TASK_ID="):
        assert f"\n{variable}\n" in output


async def test_a_hook_without_its_environment(scene: Scene) -> None:
    """A job that runs in a clean environment counts under the worker's source, not another one."""
    script = f'env -i SLIPWAY_WORKER_SOCKET="$SLIPWAY_WORKER_SOCKET" {HOOK} claimed a; exit 0'
    async with scene.serving():
        agent = await scene.start("wrap", "--", "sh", "-c", script, source="mine")
        assert await agent.end() == 0
    assert await scene.provisioner.database.fetchval("SELECT source FROM claim") == "mine"


async def test_a_job_whose_claim_would_be_refused(scene: Scene) -> None:
    """Its hook says so, and the worker goes on: the refusal of a report would end it, with its jobs."""
    crabs = "\N{CRAB}" * 151
    script = f"{HOOK} claimed {crabs}; echo claimed $?; {HOOK} claimed job-1; {HOOK} idle"
    async with scene.serving():
        agent = await scene.start("wrap", "--", "sh", "-c", script)
        assert await agent.end() == 0
    assert "the job id has 604 bytes in UTF-8; at most 600 are allowed\nclaimed 1\n" in agent.output.decode()
    assert await scene.published() == ["registered", "claimed", "idle", "stopped"]


async def test_two_jobs_on_one_task_slot(scene: Scene) -> None:
    """The second ends the first, and its hook says so, since the worker may be stopped in the middle of the first."""
    script = f"{HOOK} claimed a; {HOOK} claimed a; echo again; {HOOK} claimed b; {HOOK} idle"
    async with scene.serving():
        agent = await scene.start("wrap", "--", "sh", "-c", script, str(scene.folder))
        assert await agent.end() == 0
    warning = "job a counts as ended: this worker runs one at a time; for more, declare task_slots of its launch config"
    _, _, after = agent.output.decode().partition("again\n")
    assert f"slipway-worker hook: {warning}\n" in after
    assert agent.output.count(b"counts as ended") == 1
    assert await scene.published() == ["registered", "claimed", "idle", "claimed", "idle", "stopped"]


async def test_a_killed_agent_comes_back_as_its_worker(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the token that it keeps; without it, its identity document is one that anybody may have copied."""
    proofs: list[Proof | None] = []

    def attested(account: Account, image: str, proof: Proof | None) -> Attested:
        proofs.append(proof)
        return Attested(INSTANCE_ID, utc_now())

    cloud = scene.provisioner.cloud
    monkeypatch.setattr(cloud, "attested", attested)
    cloud.live[INSTANCE_ID] = Instance(
        id=INSTANCE_ID, batch_id=scene.batch_id, created_at=utc_now(), state=InstanceState.RUNNING
    )
    folder = scene.folder / "state"
    monkeypatch.setenv("SLIPWAY_STATE_DIRECTORY", str(folder))
    async with fake_imds() as imds, scene.serving():
        imds.attest()
        first = await scene.start("run", imds=imds)
        await first.until_printed("registered as")
        first.process.kill()
        await first.end()
        again = await scene.start("run", imds=imds)
        await again.until_printed(f"registered as {(await scene.worker()).id}")
        again.process.kill()
        await again.end()
        (folder / "worker.json").unlink()
        copy = await scene.start("run", imds=imds)
        assert await copy.end() == 1
    assert b"identity: the document has enrolled worker" in copy.output
    assert await scene.published() == ["registered"]
    assert proofs == [Proof(f'{{"instanceId": "{INSTANCE_ID}"}}\n', "c2ln", "cGtjczc=")] * 3


async def test_an_agent_is_drained_between_jobs(scene: Scene) -> None:
    """After its job, by the drain signal to its whole group; if it does not exit, it is killed."""
    script = (
        f"trap 'echo drained' USR1; trap '' TERM; {HOOK} claimed job-1; until [ -e $0/drain ]; do sleep 0.02; "
        f"done; {HOOK} draining; echo draining $?; until [ -e $0/done ]; do sleep 0.02; done; {HOOK} idle; "
        "while :; do sleep 0.05; done"
    )
    async with scene.serving():
        agent = await scene.start(
            "wrap", "--drain-signal", "USR1", "--", "sh", "-c", script, str(scene.folder), stop_seconds=2
        )
        await until(lambda: scene.provisioner.database.fetchval("SELECT count(*) FROM claim"))
        await scene.drain_worker()
        await agent.until_printed("leaving, as requested by the provisioner: test")
        (scene.folder / "drain").touch()
        await agent.until_printed("leave: test\ndraining 0\n")
        assert b"drained" not in agent.output
        (scene.folder / "done").touch()
        assert await agent.end() == 128 + signal.SIGKILL
    assert await scene.published() == ["registered", "claimed", "idle", "stopped"]
    output = agent.output.decode()
    assert "drained\n" in output
    assert "the agent did not exit within 2 s" in output
    assert list(scene.folder.glob("slipway-worker-*")) == []


FAILURES = [
    (["sh", "-c", "exit 3"], 3, "exit code 3"),
    (["sh", "-c", "kill -SEGV $$"], 128 + signal.SIGSEGV, "killed by SIGSEGV"),
    (["no-such-agent"], 127, "cannot start no-such-agent: No such file or directory"),
    (["/"], 126, "cannot start /: Permission denied"),
]


@pytest.mark.parametrize(("command", "code", "detail"), FAILURES)
async def test_an_agent_that_fails(scene: Scene, command: list[str], code: int, detail: str) -> None:
    """The failure is reported, then that the worker has stopped; the wrap exits with its code."""
    async with scene.serving():
        agent = await scene.start("wrap", "--", *command)
        assert await agent.end() == code
    assert await scene.published() == ["registered", "error", "stopped"]
    (error,) = await scene.provisioner.published(WorkerErrorReported)
    assert (error.kind, error.detail) == ("agent_exited", detail)


async def test_signals_are_passed_on(scene: Scene) -> None:
    """The agent decides what they mean; exiting by a stop signal is no failure."""
    script = "trap 'echo got HUP' HUP; trap 'echo got USR2' USR2; touch $0/up; while :; do sleep 0.05; done"
    async with scene.serving():
        agent = await scene.start("wrap", "--", "sh", "-c", script, str(scene.folder))
        await until((scene.folder / "up").exists)
        for signum in (signal.SIGHUP, signal.SIGUSR2):
            agent.process.send_signal(signum)
            await agent.until_printed(f"got {signum.name[3:]}\n")
        agent.process.send_signal(signal.SIGTERM)
        assert await agent.end() == 128 + signal.SIGTERM
    assert await scene.published() == ["registered", "stopped"]


def test_hooks_without_a_wrap_fail(tmp_path: Path) -> None:
    """Exit code 2 and a message, without a wrap and after its exit."""
    for variables in ({}, {"SLIPWAY_WORKER_SOCKET": str(tmp_path / "gone")}):
        ran = subprocess.run(
            [*AGENT, "hook", "idle"], env=os.environ | variables, capture_output=True, text=True, check=False
        )
        assert (ran.returncode, ran.stderr.startswith("slipway-worker hook: ")) == (2, True)
        assert ("is not set" if not variables else "does not answer") in ran.stderr
