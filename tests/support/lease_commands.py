"""Runs of `slipway lease` against a stand-in for the lease-broker."""

import subprocess
import sys
from typing import Final

NOWHERE = "http://127.0.0.1:1"
COMMAND = [sys.executable, "-c", "from slipway_client.cli.main import app; app(prog_name='slipway')", "lease"]
CANCEL = "DELETE /lease-pools/aws-ci/requests/"
SECONDS = 60.0
# Renewed after a third, and trusted for nine tenths: the time between bears with a busy machine.
TTL_SECONDS: Final = 4.5


def run(environment: dict[str, str], *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run `slipway lease run` as a process of its own."""
    return subprocess.run(
        [*COMMAND, "run", "--pool", "aws-ci", *arguments],
        env={"PATH": "/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
