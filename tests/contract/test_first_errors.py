"""First errors: the mistakes of a first hour, each answered in one line that says what to write instead."""

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from slipway_api.http.service import AuditEntry
from slipway_client.cli.commands.audit import FIELDS
from slipway_client.cli.main import app
from tests.support.recorded import row

ROOT = Path(__file__).parents[2]
ENTRY = "version: 1\nlease_pools:\n  - id: a\n    limit: 2\n    hold_seconds: "


def slipway(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments, env={"SLIPWAY_TOKEN": "none"}, catch_exceptions=False)
    assert result.exit_code in (1, 2), result.output
    return result.output.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("20m", '"20m" must be a number of seconds: write 1200'),
        ("1.5h", '"1.5h" must be a number of seconds: write 5400'),
        ("soon", '"soon" must be a number of seconds'),
    ],
)
def test_a_duration_with_a_unit(tmp_path: Path, written: str, reason: str) -> None:
    file = tmp_path / "slipway.yaml"
    file.write_text(ENTRY + written + "\n")
    assert slipway("diff", str(file)) == f"{file}:5: lease_pools[0].hold_seconds: {reason}"


def test_an_address_without_a_scheme() -> None:
    assert slipway("--provisioner", "queue:7301", "pool", "ls") == (
        "--provisioner or SLIPWAY_PROVISIONER_URL: 'queue:7301' has no scheme; write http://queue:7301"
    )


@pytest.mark.parametrize(
    ("words", "command"), [("get pools", "pool ls"), ("list worker", "worker ls"), ("describe lc", "lc show")]
)
def test_the_verb_of_another_tool(words: str, command: str) -> None:
    verb = words.split()[0]
    expected = f"Error: No such command '{verb}'. The noun comes first: slipway {command}"
    assert slipway(*words.split()) == expected


def test_a_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = {
            "SLIPWAY_DATABASE_URL": "postgresql://nowhere/x",
            "SLIPWAY_KAFKA": "127.0.0.1:1",
            "SLIPWAY_PORT": str(port),
        }
        command = [sys.executable, "-m", "slipway_weight_calculator.main"]
        ran = subprocess.run(
            command, env=os.environ | settings, capture_output=True, text=True, timeout=60, check=False
        )
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr == (
        f"weight-calculator cannot listen on 127.0.0.1:{port}: Address already in use; "
        "stop what listens there, or set SLIPWAY_HOST and SLIPWAY_PORT\n"
    )


@pytest.fixture
def fresh_clone(tmp_path: Path) -> Path:
    """Folder of what `make setup` reads."""
    for file in (*ROOT.glob("*.lock"), *ROOT.glob("*/*/pyproject.toml"), ROOT / "pyproject.toml", ROOT / "Makefile"):
        copy = tmp_path / file.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)
    return tmp_path


def test_setup_without_a_network(fresh_clone: Path) -> None:
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_EXTRA_INDEX_URL": "", "PIP_FIND_LINKS": ""}
    ran = subprocess.run(
        ["make", "setup", f"PYTHON={sys.executable}"],
        cwd=fresh_clone,
        env={name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
        | nowhere
        | {"PIP_RETRIES": "0"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    said, failed = ran.stderr.splitlines()
    assert said == (
        "Packages cannot be downloaded: connect to the network, or set PIP_INDEX_URL and UV_INDEX_URL to a mirror"
    )
    assert failed.startswith("make: ***")


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        (None, {"reason": "", "units": 0}, "units: 0"),
        ({"reason": "bill"}, {"reason": ""}, "reason: bill → none"),
        ({"paused": False}, {"paused": True, "reason": "bill"}, "paused: false → true, reason: none → bill"),
    ],
)
def test_an_audit_row_lists_what_has_changed(before: Any, after: Any, shown: str) -> None:
    (change,) = [field[1] for field in FIELDS if field[0] == "change"]
    assert callable(change)
    assert change(row(AuditEntry, result="updated", before=before, after=after)) == shown
