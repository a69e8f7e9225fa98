"""Programs that tests call and that are not Python's: a missing one fails the test, it never skips it."""

import shutil
import subprocess
from pathlib import Path

import pytest


def needed(tool: str) -> str:
    """Where a tool is; fails the test that asks for one that is not there."""
    path = shutil.which(tool)
    if path is None:
        pytest.fail(f"{tool} is not installed: `make tools` installs it, or says how", pytrace=False)
    return path


def run(tool: str, *arguments: str | Path, given: str = "") -> str:
    """Output of a tool that is to succeed, given `given` as its input."""
    done = subprocess.run([needed(tool), *arguments], input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
