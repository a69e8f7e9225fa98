"""`slipway-worker` against the real provisioner and queue: tasks, signals, refusals."""

import os
import signal
import subprocess
import sys
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from slipway_common.base.clock import utc_now
from slipway_common.base.ids import hash_secret
from slipway_common.base.process import identities
from slipway_provisioner.domain.registration import RegistrationKeys
from tests.support.harness import until
from tests.support.imds import INSTANCE_ID, fake_imds
from tests.support.provisioner import KEY, revision_id
from tests.support.worker_scenes import HOOK, SECRET_LIKE, Scene, environment


def losing_answers(app: Any) -> Any:
    """A network that loses the first of two answers to the same kind of request."""
    seen: Counter[str] = Counter()

    async def lossy(scope: Any, receive: Any, send: Any) -> None:
        seen[scope["path"]] += 1
        lost = seen[scope["path"]] % 2

        async def answer(message: Any) -> None:
            if lost and message["type"] == "http.response.start":
                message = message | {"status": 503}
            await send(message)

        await app(scope, receive, answer)

    return lossy


async def test_a_worker_with_two_tasks(scene: Scene) -> None:
    """Registers under its own identity, runs one task after the other in a group of its own, reports in order, leaves.
    Its tasks' output is its own; secret and token stand in no environment, no argument and no output."""
    scene.queue.commands += [
        ["sh", "-c", "echo out of $SLIPWAY_TASK_ID; sleep 600 & read line; echo read $?; exit 3"],
        ["sh", "-c", "until [ -e $0/go ]; do sleep 0.02; done", str(scene.folder)],
    ]
    async with scene.serving():
        agent = await scene.start("run", tasks_per_worker=2)
        own = identities.identity(agent.pid)
        await until(lambda: ("claim", "task-2") in scene.queue.calls, "the second task runs")
        task = await until(agent.task)
        assert (os.getsid(task), environment(task)["SLIPWAY_TASK_ID"]) == (agent.pid, "task-2")
        await until(
            lambda: {pid for pid, group in agent.groups().items() if group != task} == {agent.pid}, "it is alone"
        )
        seen = "".join(
            Path(f"/proc/{pid}/{what}").read_text() for pid in (agent.pid, task) for what in ("environ", "cmdline")
        )
        worker = await scene.worker()
        assert (worker.instance_id, worker.state) == (own, "running")
        (scene.folder / "go").touch()
        assert await agent.end() == 0
    assert scene.queue.calls == [("claim", "task-1"), ("task-1", 3), ("claim", "task-2"), ("task-2", 0)]
    assert await scene.published() == ["registered", "claimed", "idle", "claimed", "stopped"]
    assert (await scene.worker()).state == "stopped"
    output = agent.output.decode()
    assert "out of task-1\nread 1\n" in output
    secrets = {RegistrationKeys(KEY).secret(scene.batch_id), worker.token_sha256}
    for word in SECRET_LIKE.findall(seen + output):
        assert not {word, hash_secret(word)} & secrets


async def test_reports_are_sent_when_the_provisioner_is_back(scene: Scene) -> None:
    """The provisioner is unavailable before the registration, and again while the task begins and ends: the task
    continues, and the reports arrive in order with the times at which they were true."""
    agent = await scene.start("run", tasks_per_worker=2)
    async with scene.serving():
        await until(lambda: scene.queue.claims, "it has registered and claims tasks")
    scene.queue.commands.append(["true"])
    await until(lambda: ("task-1", 0) in scene.queue.calls)
    assert await scene.published() == ["registered"]
    scene.queue.commands.append(["true"])
    calls_at: list[datetime] = []

    def timed(app: Any) -> Any:
        async def call(scope: Any, receive: Any, send: Any) -> None:
            calls_at.append(utc_now())
            await app(scope, receive, send)

        return call

    async with scene.serving(timed):
        assert await agent.end() == 0
    assert await scene.published() == ["registered", "claimed", "idle", "claimed", "stopped"]
    first, second = await scene.provisioner.database.fetch("SELECT started_at, ended_at FROM claim ORDER BY started_at")
    assert first["started_at"] < first["ended_at"] < calls_at[0]
    assert first["ended_at"] < second["started_at"] <= second["ended_at"]
    assert b"provisioner unavailable" in agent.output


async def test_lost_answers_double_nothing(scene: Scene) -> None:
    """Every call takes effect, and every first answer is lost: a retry changes nothing."""
    scene.queue.commands += [["true"], ["true"]]
    async with scene.serving(losing_answers):
        agent = await scene.start("run", tasks_per_worker=2)
        assert await agent.end() == 0
    assert await scene.published() == ["registered", "claimed", "idle", "claimed", "stopped"]
    tasks = await scene.provisioner.database.fetch("SELECT task_id FROM claim ORDER BY started_at")
    assert [row["task_id"] for row in tasks] == ["task-1", "task-2"]


async def test_a_lost_claim_ends_the_task(scene: Scene) -> None:
    """The claim was given to another worker: the task's whole group is terminated, and the worker continues."""
    scene.queue.commands.append(["sh", "-c", "trap '' TERM; sleep 600 & wait; sleep 600"])
    scene.queue.claim_seconds = 6.0
    async with scene.serving():
        agent = await scene.start("run", tasks_per_worker=1, stop_seconds=0.3)
        await until(lambda: len(agent.processes()) == 3, "the task and its child run")
        scene.queue.lost = True
        await until(lambda: agent.processes() == [agent.pid], "the task's group has ended")
        scene.queue.lost = False
        scene.queue.commands.append(["true"])
        assert await agent.end() == 0
    assert await scene.published() == ["registered", "claimed", "idle", "claimed", "stopped"]
    assert scene.queue.calls == [("claim", "task-1"), ("claim", "task-2"), ("task-2", 0)]


async def test_a_draining_worker_finishes_its_task_first(scene: Scene) -> None:
    """No other task is claimed, although one waits."""
    os.mkfifo(scene.folder / "go")
    scene.queue.commands += [["cat", str(scene.folder / "go")], ["sleep", "600"]]
    async with scene.serving():
        agent = await scene.start("run")
        await until(lambda: len(agent.processes()) == 2)
        await scene.drain_worker()
        await agent.until_printed("leaving, as requested by the provisioner: test")
        assert len(agent.processes()) == 2
        (scene.folder / "go").write_text("")
        assert await agent.end() == 0
    assert scene.queue.calls == [("claim", "task-1"), ("task-1", 0)]
    assert await scene.published() == ["registered", "claimed", "stopped"]


@pytest.mark.parametrize("arguments", [("run",), ("wrap",)], ids=["run", "wrap"])
async def test_a_worker_of_a_replaced_revision_leaves_after_its_task(scene: Scene, arguments: tuple[str, ...]) -> None:
    """Its revision drains: it finishes its task, takes no other one, and names the revision as the reason."""
    os.mkfifo(scene.folder / "go")
    task = ["cat", str(scene.folder / "go")]
    scene.queue.commands += [task, ["sleep", "600"]]
    script = f"{HOOK} claimed task-1; {' '.join(task)}; {HOOK} draining; {HOOK} idle; while :; do sleep 0.05; done"
    wrapped = ("--", "sh", "-c", script) if arguments == ("wrap",) else ()
    async with scene.serving():
        agent = await scene.start(*arguments, *wrapped)
        await until(lambda: scene.provisioner.database.fetchval("SELECT count(*) FROM claim"))
        await scene.replace_revision()
        await agent.until_printed(f"leaving, as requested by the provisioner: {revision_id()} drains")
        (scene.folder / "go").write_text("")
        assert await agent.end() == (128 + signal.SIGTERM if wrapped else 0)
    assert wrapped or scene.queue.calls == [("claim", "task-1"), ("task-1", 0)]
    assert not wrapped or f"leave: {revision_id()} drains".encode() in agent.output
    assert (await scene.published())[-1] == "stopped"


@pytest.mark.parametrize("arguments", [("run",), ("wrap",)], ids=["run", "wrap"])
async def test_a_machine_that_its_provider_takes_back(scene: Scene, arguments: tuple[str, ...]) -> None:
    """It registers by the id of its instance. After a notice it finishes its task, takes no other one, and leaves: the
    provisioner knows the reason."""
    os.mkfifo(scene.folder / "go")
    task = ["cat", str(scene.folder / "go")]
    scene.queue.commands += [task, ["sleep", "600"]]
    script = f"{HOOK} claimed task-1; {' '.join(task)}; {HOOK} idle; while :; do sleep 0.05; done"
    wrapped = ("--", "sh", "-c", script) if arguments == ("wrap",) else ()
    async with fake_imds() as imds, scene.serving():
        imds.hold()
        agent = await scene.start(*arguments, *wrapped, imds=imds)
        await until(lambda: scene.provisioner.database.fetchval("SELECT count(*) FROM claim"))
        assert (await scene.worker()).instance_id == INSTANCE_ID
        imds.recommend_rebalance()
        await agent.until_printed("leaving after the current task: the provider recommends replacing the machine")
        await until(lambda: scene.state_is("stopping"))
        (scene.folder / "go").write_text("")
        assert await agent.end() == (128 + signal.SIGTERM if wrapped else 0)
    worker = await scene.worker()
    assert (worker.state, worker.notice) == ("stopped", "rebalance")
    assert worker.reason == "its provider recommends replacing the machine in zone euw1-az2"
    assert wrapped or scene.queue.calls == [("claim", "task-1"), ("task-1", 0)]
    assert (await scene.published())[-1] == "stopped"


async def test_a_task_ends_with_its_machine(scene: Scene) -> None:
    """The machine ends at once: its task is terminated, and not finished at the queue, where it waits again."""
    scene.queue.commands.append(["sleep", "600"])
    async with fake_imds() as imds, scene.serving():
        imds.hold()
        agent = await scene.start("run", imds=imds)
        await until(lambda: scene.provisioner.database.fetchval("SELECT count(*) FROM claim"))
        imds.interrupt(utc_now().strftime("%Y-%m-%dT%H:%M:%SZ"))
        assert await agent.end() == 0
    assert scene.queue.calls == [("claim", "task-1")]
    assert await scene.published() == ["registered", "claimed", "stopped"]
    assert (await scene.worker()).notice == "interruption"


async def test_a_second_signal_ends_the_task(scene: Scene) -> None:
    """The first signal lets the task go on. A terminated task is not finished at the queue, so that it waits again."""
    scene.queue.commands.append(["sh", "-c", "trap 'exit 0' TERM; while :; do sleep 0.05; done"])
    async with scene.serving():
        agent = await scene.start("run", stop_seconds=60)
        await until(lambda: len(agent.processes()) > 1)
        agent.process.send_signal(signal.SIGTERM)
        await agent.until_printed("got SIGTERM; leaving after the current task")
        await until(lambda: scene.provisioner.database.fetchval("SELECT count(*) FROM claim"))
        assert len(agent.processes()) > 1
        agent.process.send_signal(signal.SIGTERM)
        assert await agent.end() == 0
    assert scene.queue.calls == [("claim", "task-1")]
    assert await scene.published() == ["registered", "claimed", "stopped"]
    assert agent.processes() == []


@pytest.mark.parametrize(
    ("break_it", "text"),
    [("secret", "401 The secret does not match the batch"), ("orphan", "409 The instance is an orphan")],
)
async def test_a_refused_worker_leaves(scene: Scene, break_it: str, text: str) -> None:
    """The output holds the provisioner's refusal and no secret."""
    if break_it == "orphan":
        await scene.provisioner.database.execute("UPDATE worker SET instance_id = 'another'")
    async with scene.serving():
        agent = await scene.start("run", secret="not-this-one" if break_it == "secret" else "")
        assert await agent.end() == 1
    assert text in agent.output.decode()
    assert b"not-this-one" not in agent.output
    assert RegistrationKeys(KEY).secret(scene.batch_id).encode() not in agent.output


async def test_a_worker_that_was_stopped_by_the_provisioner_terminates_its_task(scene: Scene) -> None:
    """410: the worker's row has stopped."""
    scene.queue.commands.append(["sleep", "600"])
    async with scene.serving():
        agent = await scene.start("run")
        await until(lambda: len(agent.processes()) == 2)
        await scene.provisioner.database.execute("UPDATE worker SET state = 'stopped', reason = 'given up'")
        assert await agent.end() == 1
    assert "410 The worker has stopped: given up" in agent.output.decode()
    assert agent.processes() == []


async def test_without_a_provisioner_it_gives_up(scene: Scene) -> None:
    agent = await scene.start("run", give_up_seconds=0.5)
    assert await agent.end() == 1
    assert b"giving up: the provisioner has not answered for 0.5 s" in agent.output


async def test_without_tasks_it_leaves(scene: Scene) -> None:
    async with scene.serving():
        agent = await scene.start("run", idle_exit_seconds=0.3)
        assert await agent.end() == 0
    assert await scene.published() == ["registered", "stopped"]


async def test_a_task_that_cannot_be_started_has_ended(scene: Scene) -> None:
    """Exit codes as in a shell: 127 if it is not found, 126 if it is not executable."""
    scene.queue.commands += [["no-such-program"], ["/"], []]
    async with scene.serving():
        agent = await scene.start("run", tasks_per_worker=3)
        assert await agent.end() == 0
    ends = [("task-1", 127), ("task-2", 126), ("task-3", 126)]
    assert [call for call in scene.queue.calls if call[0] != "claim"] == ends
    assert b"cannot start no-such-program: No such file or directory" in agent.output


def test_imports_are_limited_to_what_is_needed() -> None:
    """No library of the other commands is imported: each would double the time that a worker takes to start."""
    heavy = ("rich", "aiokafka", "pydantic", "fastapi", "httpx2", "jsonschema", "yaml", "asyncpg", "structlog")
    script = f"""
import sys
import slipway_client.worker.cli, slipway_client.worker.run, slipway_client.worker.wrap
print([name for name in {heavy!r} if name in sys.modules])"""
    imported = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert imported.strip() == "[]"
