"""`make terraform-daemon`: clients in several processes share plugins of one daemon, and some of them are killed.

Two clients get the same plugin, which has no more places; a third one waits until the first is killed with -9: its
lease has to end within 2 s, and the second goes on. A client that is killed during a run of Terraform costs the others
nothing either: its plugin takes no new lease, and ends with the last one. The truth is the process table, the ledger of
the provider and who gets a lease when; the daemon's own counters say nothing here. Then upjet's own workspaces run on
the daemon through `examples/upjet`, where Go is present, and at last the daemon is stopped. Prints figures and the
claims, and exits with 1 if one is false. MUTANT=name runs a broken copy.
"""

import asyncio
import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Final

import psutil

from bench.claims import report
from slipway_local.servers.supervisor import Supervisor, run
from slipway_local.terraform import packages
from slipway_local.terraform.ledger import SOURCE, VERSION, Fault
from tests.support.folders import temporary_folder
from tests.support.harness import until
from tests.support.terraform_daemon import Client, DaemonProcess, Plugin, plugin_pid, running

EXAMPLE: Final = Path(__file__).parents[2] / "examples" / "upjet"
LEASE_END_SECONDS: Final = 2.0
POLICY: Final = {"max_processes": 4, "max_concurrency": 2}


async def share(daemon: DaemonProcess, plugin: Plugin, folder: Path) -> dict[str, bool]:
    """Claims about clients on a daemon with two places in a plugin. Raises AssertionError if one gets no answer."""

    async def client(name: str) -> Client:
        return await Client.start(daemon.socket, folder / name, plugin.spec(), plugin.root("east", name))

    def exists(name: str) -> bool:
        return name in {machine["name"] for machine in plugin.ledger.machines()}

    first, second = await client("first"), await client("second")
    shared, same = [plugin_pid(await each.answer()) for each in (first, second)]
    third = await client("third")
    granted = asyncio.create_task(third.answer())
    applied = await second.ask("apply")
    waited = not granted.done()
    first.process.kill()
    killed_at = time.monotonic()
    next_to_it = plugin_pid(await granted)
    lease_end_seconds = time.monotonic() - killed_at
    went_on = await second.ask("apply")

    plugin.ledger.inject(Fault(kind="hang", at="create", done=True))
    third.write("apply")
    await until(lambda: exists("third"), "Terraform creates a machine and waits for the reply")
    plugin.ledger.inject()
    (cli,) = psutil.Process(third.process.pid).children()
    third.process.kill()
    fourth = await client("fourth")
    replaced = plugin_pid(await fourth.answer())
    still = await second.ask("apply")
    kept = shared in running(plugin.binary)
    ends = [await second.end(), await fourth.end()]
    cli.kill()
    await until(lambda: shared not in running(plugin.binary), "the plugin of the killed run ends with its last lease")
    return {
        "two clients share one plugin": shared == same == next_to_it,
        "a third waits for a place": waited,
        f"the lease of a client killed by -9 ends within {LEASE_END_SECONDS:g} s ({1000 * lease_end_seconds:.0f} ms)": (
            lease_end_seconds <= LEASE_END_SECONDS
        ),
        "the other client goes on": [each["code"] for each in (applied, went_on, still)] == [0, 0, 0]
        and exists("second"),
        "after a kill during a run others get another plugin": replaced != shared and kept,
        "clients end in order": ends == [0, 0],
    }


async def try_example(daemon: DaemonProcess, plugin: Plugin) -> dict[str, bool]:
    """Vet and test the example for upjet against the daemon, where Go is present. Prints the output of a failure."""
    if shutil.which("go") is None:
        return {"the example for upjet is SKIPPED: no Go here; install Go 1.22 or later": True}
    given = {
        "socket": str(daemon.socket),
        "source": SOURCE,
        "version": VERSION,
        "configuration": plugin.configuration("upjet"),
        "root": plugin.root("upjet", "of upjet"),
    }
    path = f"{packages.TERRAFORM.path.parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"SLIPWAY_UPJET_EXAMPLE": json.dumps(given), "PATH": path, "CHECKPOINT_DISABLE": "1"}
    for argv in (("go", "vet", "./..."), ("go", "test", "-count=1", "./...")):
        process = await asyncio.create_subprocess_exec(
            *argv, cwd=EXAMPLE, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        output, _ = await process.communicate()
        if process.returncode != 0:
            print(f"{' '.join(argv)} in {EXAMPLE}:\n{output.decode()}")
            return {f"{' '.join(argv)} of the example for upjet": False}
    regions = [call.region for call in plugin.ledger.calls("destroy")]
    return {
        "the example for upjet is built and passes": True,
        "the workspace of upjet has destroyed its machine": regions == ["upjet"],
    }


async def check(supervisor: Supervisor) -> int:
    if reason := packages.missing():
        print(f"SKIPPED: {reason}")
        return 0
    with temporary_folder("slipway-daemon-") as folder:
        plugin = Plugin(folder)
        settings = plugin.settings(folder / "daemon" / "run" / "daemon.sock", "shared", **POLICY)
        async with DaemonProcess(folder / "daemon", settings) as daemon:
            shares = await share(daemon, plugin, folder)
            example = await try_example(daemon, plugin)
            await daemon.child.stop()
        claims = (
            shares
            | example
            | {
                "the daemon ends by SIGTERM with 0": daemon.child.exit_code == 0,
                "it leaves no socket and no plugin": not daemon.socket.exists() and not running(plugin.binary),
            }
        )
    return report(claims)


if __name__ == "__main__":
    sys.exit(run(check))
