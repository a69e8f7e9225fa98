"""Check of contracts/openapi by programs of others (`make contracts-check`), beside the system of `make demo`.

Every document is valid for openapi-spec-validator, and clients that openapi-python-client makes of the documents call
every GET: see contracts_client. Last line: `N of N decode, 0 extra fields`; exits with 1 for any other numbers.
"""

import asyncio
import json
import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import Final

from slipway_common.base.clock import monotonic_seconds
from slipway_local.demo.deployment import SERVICES, Deployment
from slipway_local.demo.program import DECLARATIONS, parse_arguments, scenario
from slipway_local.servers.child import Child
from slipway_local.servers.supervisor import Supervisor

ROOT: Final = Path(__file__).parents[2]
TOOLS: Final = Path(sys.prefix).with_name(".venv-contracts") / "bin"
DOCUMENTS: Final = sorted((ROOT / "contracts/openapi").glob("*.json"))
PLAYED: Final = {"DURATION": "0", "SPEED": "4", "FAULTS": "none"}
# Lists that a run fills after a while, of which a client reads single objects.
FILLED: Final = {
    "provisioner": ("/workers?state=running", "/pools/linux/decisions"),
    "lease-broker": ("/leases",),
    "weight-calculator": ("/weights",),
}
FILL_SECONDS: Final = 240.0


async def main() -> int:
    with tempfile.TemporaryDirectory(prefix="slipway-contracts-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        for document in DOCUMENTS:
            if await run(
                f"validator-{document.stem}", folder, TOOLS / "python", "-m", "openapi_spec_validator", document
            ):
                return 1
        print(f"{len(DOCUMENTS)} documents are valid", flush=True)
        for service in (*SERVICES, "simulator"):
            if await run(f"client-{service}", folder, *generate(service, folder / "clients")):
                return 1
        async with Supervisor() as supervisor:
            deployment = Deployment(supervisor, folder / "system", speed=float(PLAYED["SPEED"]), seconds={})
            await deployment.start()
            await deployment.apply(deployment.declaration(ROOT / DECLARATIONS["simulated"]))
            await deployment.call("POST", "simulator", "/scenario", scenario(parse_arguments(PLAYED)))
            await filled(deployment)
            code = await call_all(deployment, folder)
            await supervisor.stop()
            await deployment.remove()
        return code


def generate(service: str, folder: Path) -> tuple[str | Path, ...]:
    """Command that makes the client of a service."""
    folder.mkdir(exist_ok=True)
    document, package = ROOT / f"contracts/openapi/{service}.json", folder / service.replace("-", "_")
    options = ("--meta", "none", "--output-path", package)
    return TOOLS / "openapi-python-client", "generate", "--path", document, *options


async def filled(deployment: Deployment) -> None:
    """Wait until the lists have something to read. Raises TimeoutError."""
    deadline = monotonic_seconds() + FILL_SECONDS
    waiting = [(service, path) for service, paths in FILLED.items() for path in paths]
    while waiting:
        service, path = waiting[0]
        if (await deployment.call("GET", service, path))["items"]:
            waiting.pop(0)
        elif monotonic_seconds() > deadline:
            raise TimeoutError(f"{service} {path}: nothing within {FILL_SECONDS:g} s")
        else:
            await asyncio.sleep(0.2)


async def call_all(deployment: Deployment, folder: Path) -> int:
    """Call every GET by the clients; returns the exit code."""
    services = {}
    for name in (*SERVICES, "simulator"):
        paths = json.loads((ROOT / f"contracts/openapi/{name}.json").read_text())["paths"]
        gets = [path for path, operations in paths.items() if "get" in operations]
        services[name.replace("-", "_")] = {"url": deployment.url(name), "gets": gets}
    system = folder / "system.json"
    system.write_text(json.dumps({"deployment": deployment.id, "token": deployment.token, "services": services}))
    client = Path(__file__).with_name("contracts_client.py")
    return await run("calls", folder, TOOLS / "python", client, folder / "clients", system, shown=True)


async def run(name: str, folder: Path, *argv: str | Path, shown: bool = False) -> int:
    """Run a program to its end; its output is shown if it fails, or in any case."""
    environment = os.environ | {"PATH": f"{Path(sys.prefix) / 'bin'}:{os.environ['PATH']}"}  # the generator calls ruff
    child = Child(name, argv, log=folder / f"{name}.log", env=environment)
    child.start()
    code = await child.wait()
    if shown or code:
        print((folder / f"{name}.log").read_text(), end="", flush=True)
    return 1 if code is None else code


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    sys.exit(asyncio.run(main()))
