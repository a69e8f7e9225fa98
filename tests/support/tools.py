"""External programs that tests call. A missing program fails the test instead of skipping it."""

import shutil
import subprocess
from pathlib import Path

import pytest


def needed(tool: str) -> str:
    """Path of a tool; fails the test if it is not installed."""
    path = shutil.which(tool)
    if path is None:
        pytest.fail(f"{tool} is not installed; run `make tools`", pytrace=False)
    return path


def run(tool: str, *arguments: str | Path, given: str = "") -> str:
    """Run a tool with `given` on its standard input; returns its output. The tool has to exit with 0."""
    done = subprocess.run([needed(tool), *arguments], input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
