"""Check 32, for the CLI: a driver that is killed leaves no CLI, no plugin of it and no secret."""

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from slipway_local.terraform.ledger import Fault
from tests.support.harness import until
from tests.support.terraform_runs import SECRET, Place
from tests.terraform.faults import having

VICTIM = """
import asyncio, sys
from pathlib import Path
from slipway_terraform.domain.results import Command
from tests.support.terraform_runs import Place, driver, schedulers, soon

async def main(folder, kind):
    place = Place(Path(folder))
    async with schedulers(place.folder) as shared, driver(place, shared if kind == "leased" else None) as runs:
        await runs.run(Command.APPLY, "w-1", place.job(), state=None, deadline=soon())

asyncio.run(main(*sys.argv[1:]))
"""


def secrets(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]


@pytest.mark.parametrize("kind", ["leased", "own"])
async def test_nothing_is_left(place: Place, kind: str) -> None:
    place.ledger.inject(Fault(kind="hang", at="create", seconds=3600.0, done=True))
    victim = await asyncio.create_subprocess_exec(sys.executable, "-c", VICTIM, str(place.folder), kind)
    try:
        await until(lambda: place.ledger.calls("create"))
        assert secrets(place.folder / "runs") != []
        assert len(having(place.folder)) > 2
    finally:
        victim.send_signal(signal.SIGKILL)
        await victim.wait()
    await until(lambda: not having(place.folder), "no process is left")
    await until(lambda: [path.name for path in (place.folder / "runs").iterdir()] == ["lock"])
    assert secrets(place.folder / "runs") == []
