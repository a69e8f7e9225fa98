"""A disk without room, which a small file system of memory is, in a mount namespace of its own that needs no root."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

SMALL: Final = """
mount -t tmpfs -o size=256k,nr_inodes=200 small "$1" && mkdir "$1/sockets" &&
mount -t tmpfs -o size=64k,nr_inodes=1 none "$1/sockets" && shift && exec "$@"
"""
PROGRAM: Final = """
import asyncio, contextlib, json, sys
from pathlib import Path
from slipway_local.terraform.ledger import Fault
from slipway_terraform.domain.errors import DiskFull, ProviderStartError
from slipway_terraform.domain.results import Changes, Command, Scope
from slipway_terraform.plugins.runner import PluginRunner
from slipway_terraform.scheduler.shared import SharedScheduler
from tests.support.harness import until
from tests.support.terraform_runs import driver, new_place, schedulers, soon

def fill(file):
    with contextlib.suppress(OSError), open(file, "wb", buffering=0) as opened:
        while True:
            opened.write(b"x" * 4096)

async def raised(error, awaitable):
    try:
        await awaitable
    except error as found:
        return str(found)
    raise AssertionError(f"no {error.__name__}")

async def runs_on(small, place, shared):
    ballast = small / "ballast"
    async with driver(place, shared, folder=small / "runs") as runs:
        place.ledger.inject(Fault(kind="hang", at="create", seconds=1.0, done=True))
        operation = runs.start(Command.APPLY, "w-1", place.job(), state=None, deadline=soon())
        await until(lambda: place.ledger.machines(), "the machine exists")
        fill(ballast)
        run = await operation.wait()
        (machine,) = place.ledger.machines()
        assert run.failure is not None and run.failure.scope is Scope.NOTHING, run
        assert "no space left on device" in str(run.failure), run.failure
        (resource,) = json.loads(run.newest_state)["resources"]
        assert resource["instances"][0]["attributes"]["id"] == machine["id"]
        again = runs.run(Command.APPLY, "w-2", place.job(), state=run.newest_state, deadline=soon())
        refused = await raised(DiskFull, again)
        assert refused.startswith("no space on the disk for the workspace w-2: No space left on device; free"), refused
        assert list((small / "runs" / "files" / "workspaces").iterdir()) == []
        ballast.unlink()
        destroyed = await runs.run(Command.DESTROY, "w-1", place.job(), state=run.newest_state, deadline=soon())
        assert destroyed.changes == Changes(0, 0, 1), destroyed
    assert [path.name for path in (small / "runs").iterdir()] == ["lock"]

async def main():
    small = Path(sys.argv[1])
    with new_place() as place:
        scheduler = SharedScheduler(PluginRunner(small / "sockets"))
        refused = await raised(ProviderStartError, scheduler.acquire([place.spec()], owner="", deadline=soon()))
        assert "No space left on device; free some space, or set another folder" in refused, refused
        await scheduler.aclose(0)
        async with schedulers(place.folder) as shared:
            await runs_on(small, place, shared)
    print("done")

asyncio.run(main())
"""


def small_disk(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command that sees a small file system at `folder`, and nobody else does. Skips the test where none may."""
    if (unshare := shutil.which("unshare")) is None:
        pytest.skip("NO SMALL DISK: unshare of util-linux is not here")
    prefix = [unshare, "--user", "--map-root-user", "--mount", "sh", "-c", SMALL, "sh", str(folder)]
    if subprocess.run([*prefix, "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("NO SMALL DISK: this kernel gives no user namespaces")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [os.getcwd(), *sys.path]))}
    return subprocess.run([*prefix, *command], check=False, capture_output=True, text=True, env=environment)


@pytest.mark.usefixtures("place")  # skips it without Terraform
def test_nothing_is_lost_on_a_full_disk(tmp_path: Path) -> None:
    """The state that cannot be written is returned, nothing is run without room, and all works again after."""
    done = small_disk(tmp_path, sys.executable, "-c", PROGRAM, str(tmp_path))
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
