"""`make bench-commands`: CPU time that commands of `slipway` take in user mode, from start to end.

`slipway --help` needs no service, `pool ls` and `lease run -- true` ask those of a deployment of one pool. The commands
and a bare Python, which does nothing, run in turns. Prints p50 and p99 of each, and how often the p50 of a bare Python
it is; exits with 1 if a command failed. SECONDS is the approximate time of the measurements.
"""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from bench.claims import report
from bench.http import LEASE_POOL, declaration
from bench.spread import percentile
from slipway_local.demo.deployment import Deployment
from slipway_local.servers.supervisor import Supervisor, run
from tests.support.folders import disk_folder

SECONDS: Final = 20.0
ROUNDS_MIN: Final = 5
SLIPWAY: Final = str(Path(sys.executable).with_name("slipway"))
BARE: Final = "python -c pass"
COMMANDS: Final = {
    BARE: (sys.executable, "-c", "pass"),
    "slipway --help": (SLIPWAY, "--help"),
    "slipway pool ls": (SLIPWAY, "pool", "ls"),
    "slipway lease run": (SLIPWAY, "lease", "run", "--pool", LEASE_POOL, "--", "true"),
}


def user_ms(command: Sequence[str], environment: Mapping[str, str]) -> float:
    """Milliseconds of CPU time in user mode, also of processes that the command starts. Raises CalledProcessError."""
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return usage.ru_utime * 1000


def measured(environment: Mapping[str, str], seconds: float) -> dict[str, list[float]]:
    """Milliseconds of each command in turns, for some seconds."""
    for command in COMMANDS.values():
        user_ms(command, environment)  # compiles modules
    found: dict[str, list[float]] = {name: [] for name in COMMANDS}
    began = time.monotonic()
    while len(found[BARE]) < ROUNDS_MIN or time.monotonic() < began + seconds:
        for name, command in COMMANDS.items():
            found[name].append(user_ms(command, environment))
    return found


@asynccontextmanager
async def deployed(supervisor: Supervisor) -> AsyncIterator[dict[str, str]]:
    """A new deployment of one pool; the environment of its commands."""
    with disk_folder("slipway-bench-") as folder:
        deployment = Deployment(supervisor, folder, speed=1.0, seconds={})
        try:
            await deployment.start()
            body = declaration()
            pools = {"documents": [{"owner": "bench", "lease_pools": body.pop("lease_pools")}]}
            await deployment.call("PUT", "lease-broker", "/lease-pools", pools)
            await deployment.call("PUT", "provisioner", "/declaration", body | {"metadata": {"owner": "bench"}})
            yield {
                "PATH": os.environ["PATH"],
                "XDG_STATE_HOME": str(folder / "state"),
                "SLIPWAY_TOKEN": deployment.token,
                **{
                    f"SLIPWAY_{service.upper().replace('-', '_')}_URL": deployment.url(service)
                    for service in ("provisioner", "weight-calculator", "lease-broker")
                },
            }
        finally:
            await supervisor.stop()
            await deployment.remove()


async def measure(supervisor: Supervisor) -> int:
    """Run all measurements on a new deployment."""
    seconds = float(os.environ.get("SECONDS", SECONDS))
    print("starting everything …", flush=True)
    async with deployed(supervisor) as environment:
        print("commands …", flush=True)
        found = await asyncio.to_thread(measured, environment, seconds)
    bare = percentile(found[BARE], 50)
    for name, values in found.items():
        p50 = percentile(values, 50)
        print(f"{name:<20} user p50 {p50:g} ms, p99 {percentile(values, 99):g} ms; ÷ bare Python {p50 / bare:.2f}")
    return report({f"{len(found[BARE])} rounds, no command failed": True})


if __name__ == "__main__":
    sys.exit(run(measure))
