"""Commands of the source `exec` that do not end well."""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from slipway_common.declaration.strict_yaml import write
from slipway_monitor.domain.counts import Counts, Unreadable
from slipway_monitor.loops.report import read_once
from slipway_monitor.source_file import Entry, read
from slipway_monitor.sources import exec as commands


def entry(script: str, **settings: Any) -> Entry:
    usual = {"name": "q", "kind": "exec", "counts": "waiting", "claims": "hooks", "pool": "linux"}
    (found,) = read(write({"sources": [usual | {"command": ["sh", "-c", script]} | settings]}))
    return found


async def counted(script: str, timeout_seconds: float = 5.0) -> Sequence[Counts]:
    return (await read_once(entry(script).open(), timeout_seconds)).counts


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


async def test_what_a_command_leaves_behind_ends_with_it() -> None:
    """A child in the background, which holds its output, delays no report."""
    assert await counted("sleep 60 & echo 3") == [Counts(3)]


@pytest.mark.parametrize("script", ["sleep 60", "{escape}; echo 3", "{escape}; sleep 60"])
async def test_a_command_that_does_not_end_in_time(script: str, tmp_path: Path) -> None:
    """Nor does one whose descendant has left its process group with its output."""
    file, before = tmp_path / "has left", descriptors()
    left = f'setsid sh -c \'touch "{file}"; exec sleep 5\' & until [ -e "{file}" ]; do sleep 0.01; done'
    async with asyncio.timeout(4):
        with pytest.raises(Unreadable, match="no answer within 1 s"):
            await counted(script.format(escape=left), 1.0)
    await asyncio.sleep(0)  # transports close their pipes in the next round
    assert descriptors() <= before


async def test_a_command_that_prints_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "OUTPUT_BYTES_MAX", 100_000)
    with pytest.raises(Unreadable, match="printed more than 100,000 bytes"):
        await counted("yes 33333")


@pytest.mark.parametrize(
    ("script", "reason"),
    [("echo secret >&2; exit 3", "exited with 3; run it"), ("kill -9 $$", "exited with 137"), ("echo x", "no JSON")],
)
async def test_a_command_that_fails(script: str, reason: str) -> None:
    with pytest.raises(Unreadable, match=reason) as refused:
        await counted(script)
    assert "secret" not in str(refused.value)


async def test_a_program_that_does_not_exist(tmp_path: Path) -> None:
    source = entry("", command=[str(tmp_path / "none")]).open()
    with pytest.raises(Unreadable, match=r"cannot start .*none: No such file"):
        await read_once(source, 5.0)
