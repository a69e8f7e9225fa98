"""An earlier commit's rules as the policy `before`, computed by processes of their own.

Only the cores that slipway.py calls come from the commit: its packages are first on the path of these processes, while
scenarios, arrivals, boots and outages are those of this tree. This module imports none of the packages, so that the
first import in a process finds the commit's.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Final

BEFORE: Final = "before"
COMMIT: Final = "563fa56f163a2811958c638a282dcafefd460160"
"""The last commit before windows followed evidence."""
ROOT: Final = Path(__file__).parents[2]
CORES: Final = "slipway_weight_calculator"


class UnknownCommit(Exception):
    """A commit that the repository does not have."""


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """A temporary folder with the packages of a commit. Raises UnknownCommit."""
    with tempfile.TemporaryDirectory(prefix="slipway-policies-") as name:
        folder, archive = Path(name) / "tree", Path(name) / "tree.tar"
        folder.mkdir()
        command = ["git", "archive", "--output", str(archive), commit, "libs", "services"]
        made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if made.returncode:
            raise UnknownCommit(f"BEFORE={commit}: {made.stderr.strip()}; name a commit of this repository")
        subprocess.run(["tar", "-xf", archive, "-C", folder], check=True)
        yield folder


_given: list[bytes] = []  # in a process that computes, since it began


def given() -> bytes:
    """Bytes that this process was given at its beginning."""
    return _given[0]


def begin(tree: Path | None, given: bytes) -> None:
    """Initialize a process: take the packages of `tree`, if any, and keep what it is given, which may need them."""
    if tree is not None:
        sys.path[:0] = [str(package) for kind in ("libs", "services") for package in sorted((tree / kind).iterdir())]
        file = import_module(CORES).__file__
        if file is None or not Path(file).is_relative_to(tree):
            raise RuntimeError(f"{CORES} comes from {file}, not from {tree}")
    _given[:] = [given]
