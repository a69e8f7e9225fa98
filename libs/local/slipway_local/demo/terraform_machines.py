"""Machines of a demo with PROVIDER=terraform: agents that a Terraform module makes, each a resource of a ledger.

The resource starts its agent when it is created and kills it when it is destroyed. The agents are observed like those
of the provider `process`; what is left at the end is counted in the ledger, too.
"""

import base64
import hashlib
import json
import os
from pathlib import Path
from typing import Any, Final

from slipway_common.base.process.guard import guard
from slipway_common.base.process.identities import INSTANCE_TAG
from slipway_common.declaration.models import Declaration
from slipway_common.declaration.parsing import parse
from slipway_local.demo.agents import AGENT, LAUNCHER, Agents
from slipway_local.demo.deployment import Deployment
from slipway_local.servers.child import StartFailed
from slipway_local.servers.supervisor import Supervisor
from slipway_local.terraform.ledger import SOURCE, VERSION, Ledger, write_mirror
from slipway_local.terraform.packages import TERRAFORM, missing

MODULES: Final = Path("examples/terraform")
WORKER: Final = "worker"
LOOK_UP: Final = "look-up"


def environment(folder: Path) -> dict[str, str]:
    """Variables of the provisioner: a key for states, and the folder of runs."""
    return {
        "SLIPWAY_STATE_KEYS": base64.b64encode(os.urandom(32)).decode(),
        "SLIPWAY_TERRAFORM_FOLDER": str(folder / "terraform"),
        "SLIPWAY_TERRAFORM_SHARES_PLUGINS": "true",
    }


class TerraformMachines(Agents):
    """Agents that are resources of a ledger in the deployment's folder."""

    def __init__(self, deployment: Deployment) -> None:
        self.ledger = Ledger(deployment.folder / "ledger")
        super().__init__(deployment)

    def declared(self, declaration: Declaration) -> Declaration:
        guard().tagged(f"{INSTANCE_TAG}={self.tag}")
        body = declaration.model_dump(mode="json")
        for account in body["accounts"]:
            account["identity"] = self.ledger.folder.name
            account["settings"] |= {
                "lookup": {"module": LOOK_UP, "digest": module_digest(MODULES / LOOK_UP)},
                "queue_url": f"{self.deployment.url('simulator')}/queue",
            }
        for pool in body["worker_pools"]:
            for config in pool["launch_configs"]:
                config["settings"]["digest"] = module_digest(MODULES / WORKER)
        return parse(body)

    async def start(self, supervisor: Supervisor) -> None:
        if reason := missing():
            raise StartFailed(reason)
        await super().start(supervisor)

    def _permitted(self) -> dict[str, Any]:
        binary, digest = write_mirror(self.deployment.folder / "plugins")
        plugin = {"source": SOURCE, "version": VERSION, "binary": str(binary), "digest": digest}
        own = {
            "tool": str(TERRAFORM.path),
            "modules_folder": str(MODULES.resolve()),
            "configuration": {"folder": str(self.ledger.folder), "agent": json.dumps(self._agent())},
            "plugins": [plugin | {"mode": "debug", "arguments": ["--dev"]}],
        }
        return {"terraform": {"entries": {"default": own}}}

    def left_over(self) -> str:
        return "" if self.left is None else f"left {self.left}"

    def _running(self) -> int:
        """Agents that run, and resources that exist."""
        return max(super()._running(), len(self.ledger.machines()))

    def _agent(self) -> dict[str, Any]:
        """Command of an agent, and its environment beside the tag of its instance."""
        passed_on = {name: os.environ[name] for name in ("PATH", "HOME", "PYTHONPATH") if name in os.environ}
        return {"command": ["sh", "-c", LAUNCHER, str(self.path), *AGENT], "environment": passed_on}


def module_digest(folder: Path) -> str:
    """SHA-256 of the checksums of a module's files, as the guide on Terraform has it."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(folder).as_posix()}\n" for path in paths
    ]
    return hashlib.sha256("".join(lines).encode()).hexdigest()
