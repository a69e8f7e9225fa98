"""The stand-in as a part under a supervisor."""

import os
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

from slipway_local.ec2.machines import CONSOLE
from slipway_local.servers.ports import free_ports
from slipway_local.servers.supervisor import Service, http_ready

NAME: Final = "ec2"
ENDPOINTS: Final = ("endpoint_url", "sts_endpoint_url", "quotas_endpoint_url")
"""Settings of an account whose URL is that of the stand-in."""
START_SECONDS: Final = 120.0  # moto's first call takes seconds, more on a busy machine


class EmbeddedEc2(Service):
    """The stand-in on a port of this host, with its ledger and the folders of its machines in one folder."""

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        self.port = free_ports(1)[0]
        self.url = f"http://127.0.0.1:{self.port}"
        self.ledger = folder / "ec2.jsonl"
        own = {
            "SLIPWAY_PORT": str(self.port),
            "SLIPWAY_LEDGER": str(self.ledger),
            "SLIPWAY_FOLDER": str(folder / "ec2"),
        }
        self._machines = folder / "ec2" / "machines"
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("SLIPWAY_", "AWS_"))}
        super().__init__(
            NAME,
            [sys.executable, "-m", "slipway_local.ec2.main"],
            env={**inherited, **(environment or {}), **own},
            log=folder / f"{NAME}.log",
            ready=partial(http_ready, self.port),
            start_seconds=START_SECONDS,
        )

    def console(self, instance_id: str) -> str:
        """Text that a machine has printed; empty if it has not started."""
        path = self._machines / instance_id / CONSOLE
        return path.read_text(errors="replace") if path.exists() else ""
