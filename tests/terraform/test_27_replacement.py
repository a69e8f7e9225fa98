"""Check 27: processes are replaced by memory, age, idleness, health and a new binary on disk."""

import asyncio
import random
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from slipway_terraform.domain.errors import ProviderStartError
from slipway_terraform.domain.policy import Policy
from slipway_terraform.scheduler.shared import SharedScheduler
from tests.support import virtual_time
from tests.support.plugin_world import FakePlugin, World, spec
from tests.support.plugins import digest_of, plugin, plugins_in, shared, soon, until

MEBIBYTE = 2**20


async def test_leaking_plugin(sockets: Path) -> None:
    """A busy process over the soft limit drains: it serves its lease to the end, and newcomers get another one."""
    policy = Policy(soft_memory_bytes=100 * MEBIBYTE, sample_seconds=0.1)
    async with shared(sockets, policy) as scheduler:
        async with await scheduler.acquire([plugin("leak=120")], owner="one", deadline=soon()) as lease:
            pids = plugins_in(sockets)
            await until(lambda: [each.reason for each in scheduler.processes()] == ["memory"])
            async with lease.invocation():
                assert plugins_in(sockets) == pids
        await until(lambda: not set(pids) & set(plugins_in(sockets)))


async def test_new_binary(sockets: Path, tmp_path: Path) -> None:
    """The binary is replaced on disk: the process drains, and a start for the former digest is refused."""
    python = tmp_path / "python"
    shutil.copy2(Path(sys.executable).resolve(), python)
    environment = dict(plugin().environment) | {"PYTHONHOME": sys.base_prefix}
    wanted = plugin(binary=str(python), digest=digest_of(str(python)), environment=environment)
    async with (
        shared(sockets, Policy(sample_seconds=0.1)) as scheduler,
        await scheduler.acquire([wanted], owner="one", deadline=soon()),
    ):
        (tmp_path / "new").write_bytes(python.read_bytes() + b"new")
        (tmp_path / "new").rename(python)
        await until(lambda: [each.reason for each in scheduler.processes()] == ["digest"])
        with pytest.raises(ProviderStartError, match="install the release that was approved"):
            await scheduler.acquire([wanted], owner="two", deadline=soon())


async def test_unhealthy_plugin(sockets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipway_terraform.plugins.runner.HEALTH_SECONDS", 0.3)
    async with (
        shared(sockets, Policy(sample_seconds=0.1)) as scheduler,
        await scheduler.acquire([plugin("ill=1")], owner="one", deadline=soon()),
    ):
        await until(lambda: [each.reason for each in scheduler.processes()] == ["health"])


async def test_a_stalled_loop_makes_no_plugin_unhealthy(sockets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our own stall makes one check late; a process is ill only if the next one fails as well."""
    monkeypatch.setattr("slipway_terraform.plugins.runner.HEALTH_SECONDS", 0.5)
    async with (
        shared(sockets, Policy(sample_seconds=0.05)) as scheduler,
        await scheduler.acquire([plugin()], owner="one", deadline=soon()),
    ):
        for _ in range(3):
            time.sleep(1.0)  # noqa: ASYNC251
            await asyncio.sleep(0.7)
        assert [each.reason for each in scheduler.processes()] == [None]


def _leak(each: FakePlugin) -> None:
    each.memory_bytes = 4 * 2**30


@pytest.mark.parametrize(
    ("policy", "fault", "reason", "seconds"),
    [
        (Policy(idle_seconds=60), None, "idle", 60),
        (Policy(max_age_seconds=600, idle_seconds=10_000), None, "age", 600),
        (Policy(idle_seconds=10_000), _leak, "memory_hard", 5),
    ],
)
def test_in_time(
    policy: Policy,
    fault: Callable[[FakePlugin], None] | None,
    reason: str,
    seconds: float,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An idle process ends at its time; ages are shortened by up to a tenth. The hard limit of memory is an error."""

    async def work() -> tuple[float, str]:
        world = World(random.Random(3))
        scheduler = SharedScheduler(world, policy, rng=random.Random(3))
        async with await scheduler.acquire([spec("a")], owner="one", deadline=10.0):
            pass
        (process,) = world.plugins.values()
        began = virtual_time.now()
        if fault:
            fault(process)
        ended = ""
        while world.plugins:
            ended = next((str(each.reason) for each in scheduler.processes() if each.reason), ended)
            await asyncio.sleep(0.1)
        lasted = virtual_time.now() - began
        await scheduler.aclose(0)
        return lasted, ended

    lasted, ended = virtual_time.run(work())
    assert ended == reason
    assert seconds * 0.9 <= lasted <= seconds + 1.5
    assert ("beyond the hard limit" in caplog.text) is (reason == "memory_hard")


def test_ages_differ() -> None:
    """Processes that began together do not end together; the same seed gives the same ages."""

    async def ends(seed: int) -> list[float]:
        world = World(random.Random(1))
        world.slow = dict.fromkeys("abcdef", 0.0)
        scheduler = SharedScheduler(world, Policy(idle_seconds=1e9), rng=random.Random(seed), key=b"k")
        for name in "abcdef":
            async with await scheduler.acquire([spec(name)], owner="one", deadline=10.0):
                pass
        found: list[float] = []
        while world.plugins:
            before = len(world.plugins)
            await asyncio.sleep(1.0)
            found += [virtual_time.now()] * (before - len(world.plugins))
        await scheduler.aclose(0)
        return found

    first = virtual_time.run(ends(1))
    assert len(set(first)) > 3
    assert 3600 * 0.9 <= min(first) <= max(first) <= 3610
    assert virtual_time.run(ends(1)) == first
