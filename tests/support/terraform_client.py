"""A client of the daemon as a process of its own: acquires a lease, runs Terraform in it, and says what it does.

`python -m tests.support.terraform_client SOCKET FOLDER`, with a provider specification as JSON in the first line of
standard input. It prints `leased` and the environment of the lease, then does what each further line says: `apply` of
the root module in FOLDER, or `begin` and `end` of an invocation. Each answer is a line of JSON. It ends with its input.
"""

import asyncio
import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any, Final

import msgspec

from slipway_local.terraform.packages import TERRAFORM
from slipway_terraform.daemon.client import DaemonLease, DaemonScheduler
from slipway_terraform.domain.specs import ProviderSpec

WAIT_SECONDS: Final = 60.0


async def main(socket: Path, folder: Path) -> None:
    spec = msgspec.json.decode(await line(), type=ProviderSpec)
    deadline = asyncio.get_running_loop().time() + WAIT_SECONDS
    lease = await DaemonScheduler(socket).acquire([spec], owner=folder.name, deadline=deadline)
    async with lease, contextlib.AsyncExitStack() as open_invocation:
        say("leased", **lease.env)
        while command := (await line()).decode().strip():
            if command == "apply":
                async with lease.invocation():
                    await apply(folder, lease)
            elif command == "begin":
                await open_invocation.enter_async_context(lease.invocation())
                say("begun")
            else:
                await open_invocation.aclose()
                say("ended")


async def apply(folder: Path, lease: DaemonLease) -> None:
    environment = {**lease.env, "CHECKPOINT_DISABLE": "1", "HOME": str(folder), "PATH": os.defpath}
    terraform = await asyncio.create_subprocess_exec(
        TERRAFORM.path, "apply", "-auto-approve", "-input=false", "-no-color", "-lock=false",
        cwd=folder, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    output, _ = await terraform.communicate()
    say("applied", code=terraform.returncode, output=output.decode())


def say(what: str, **more: Any) -> None:
    print(json.dumps({"what": what, **more}), flush=True)


async def line() -> bytes:
    return await asyncio.to_thread(sys.stdin.buffer.readline)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2])))
