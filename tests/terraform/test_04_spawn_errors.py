"""Check 4: an error of a spawn reaches the caller, with what to do, and leaves nothing."""

import asyncio
import os
from pathlib import Path

import pytest

from slipway_terraform.domain.errors import ProviderStartError
from slipway_terraform.domain.specs import ProviderSpec
from slipway_terraform.plugins.runner import PluginRunner
from slipway_terraform.scheduler.shared import SharedScheduler
from tests.support.plugins import PROGRAM, assert_nothing_left, digest_of, plugin, plugins_in, shared, soon, until


def binary(path: Path, text: bytes, mode: int = 0o755) -> ProviderSpec:
    path.write_bytes(text)
    path.chmod(mode)
    return plugin(binary=str(path), digest=digest_of(str(path)))


async def refused(sockets: Path, spec: ProviderSpec) -> ProviderStartError:
    async with shared(sockets) as scheduler:
        with pytest.raises(ProviderStartError) as caught:
            await scheduler.acquire([spec], owner="one", deadline=soon())
        return caught.value


async def test_missing_binary(sockets: Path, tmp_path: Path) -> None:
    error = await refused(sockets, plugin(binary=str(tmp_path / "gone"), digest="0" * 64))
    assert "No such file or directory; install the provider there" in str(error)
    assert not error.retryable


@pytest.mark.parametrize("path", ["/dev/zero", "/tmp"])
async def test_no_file(sockets: Path, path: str) -> None:
    error = await refused(sockets, plugin(binary=path, digest="0" * 64))
    assert "not a regular file; install the provider there or correct the path" in str(error)


async def test_relative_path(sockets: Path) -> None:
    """Relative to our folder, not to the plugin's."""
    path = os.path.relpath(plugin().binary)
    async with shared(sockets) as scheduler:
        (await scheduler.acquire([plugin(binary=path)], owner="one", deadline=soon())).release()


async def test_wrong_digest(sockets: Path) -> None:
    error = await refused(sockets, plugin(digest="0" * 64))
    assert f"not {'0' * 64}; install the release that was approved" in str(error)
    assert not error.retryable


async def test_replaced_while_it_starts(sockets: Path, tmp_path: Path) -> None:
    """The file may be another one when it is executed than when it was checked."""
    program = f"#!/bin/sh\nexec {plugin().binary} {PROGRAM} late=1\n"
    spec, other = binary(tmp_path / "plugin", program.encode()), tmp_path / "other"
    other.write_text(f"{program}# of another release\n")
    other.chmod(0o755)
    async with shared(sockets) as scheduler:
        caller = asyncio.create_task(scheduler.acquire([spec], owner="one", deadline=soon()))
        await until(lambda: plugins_in(sockets) != [])
        other.rename(tmp_path / "plugin")
        with pytest.raises(ProviderStartError, match="install the release that was approved"):
            await caller
        assert plugins_in(sockets) == []


@pytest.mark.parametrize(
    ("text", "mode", "what"),
    [(b"#!/bin/sh\n", 0o600, "Permission denied"), (b"\x7fELF", 0o755, "Exec format error")],
)
async def test_no_executable(sockets: Path, tmp_path: Path, text: bytes, mode: int, what: str) -> None:
    error = await refused(sockets, binary(tmp_path / "plugin", text, mode))
    assert f"{what}; check that it is an executable for this machine" in str(error)
    assert not error.retryable


async def test_busy_text_file(sockets: Path, tmp_path: Path) -> None:
    """A binary in the middle of its installation can be tried again."""
    spec = binary(tmp_path / "plugin", Path("/bin/true").read_bytes())
    with (tmp_path / "plugin").open("ab"):
        error = await refused(sockets, spec)
    assert "Text file busy; retry later" in str(error)
    assert error.retryable


async def test_full_disk(tmp_path: Path) -> None:
    """The folder of the sockets cannot be made: here a file is in its place."""
    (tmp_path / "full").write_text("")
    scheduler = SharedScheduler(PluginRunner(tmp_path / "full"))
    with pytest.raises(ProviderStartError, match=r"cannot create a folder for its socket in .*; free some space"):
        await scheduler.acquire([plugin()], owner="one", deadline=soon())
    await scheduler.aclose(0)


async def test_path_too_long(sockets: Path) -> None:
    folder = sockets / ("x" * 80)
    folder.mkdir()
    scheduler = SharedScheduler(PluginRunner(folder))
    with pytest.raises(ProviderStartError, match=r"may have [0-9]+ bytes, and the system allows 107; set a shorter"):
        await scheduler.acquire([plugin()], owner="one", deadline=soon())
    await scheduler.aclose(0)
    assert_nothing_left(folder)


async def test_failures_back_off_and_trip(sockets: Path) -> None:
    """An error that cannot pass trips at once: callers are refused without another start."""
    async with shared(sockets) as scheduler:
        for _ in range(2):
            with pytest.raises(ProviderStartError) as caught:
                await scheduler.acquire([plugin(digest="0" * 64)], owner="one", deadline=soon())
        assert "(start 1 failed; the next one may begin in " in str(caught.value)
