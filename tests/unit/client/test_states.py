"""Commands on the Terraform states of workers, against stub services."""

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from typer.testing import CliRunner, Result

from slipway_client.cli.main import app
from tests.support.recorded import ID, STATE_KEY, Services, environment, served, serving


@pytest.fixture
def server() -> Iterator[tuple[Services, str]]:
    with served() as server:
        yield server


def slipway(url: str, *arguments: str) -> Result:
    return CliRunner().invoke(app, arguments, env=environment(url), catch_exceptions=False)


def test_a_state_is_exported_to_a_new_private_file(server: tuple[Services, str], tmp_path: Path) -> None:
    services, url = server
    file = tmp_path / "terraform.tfstate"
    done = slipway(url, "worker", "state", ID, "--export", str(file), "--reason", "moved")
    assert (done.exit_code, file.read_text(), stat.S_IMODE(file.stat().st_mode)) == (0, "the state", 0o600)
    assert services.received == [(f"workers/{ID}/state", {"reason": "moved", "rejected": False})]
    assert "--rejected exports the newest" in done.stderr
    again = slipway(url, "worker", "state", ID, "--export", str(file))
    assert (again.exit_code, len(services.received)) == (1, 1)
    assert f"{file} exists already, and nothing was exported" in again.stderr


def test_a_state_is_printed_as_it_is(server: tuple[Services, str]) -> None:
    services, url = server
    assert slipway(url, "worker", "state", ID, "--rejected", "--export", "-").stdout == "the state\n"
    assert not Path("-").exists()
    assert services.received == [(f"workers/{ID}/state", {"reason": "", "rejected": True})]


def test_a_workspace_is_unlocked(server: tuple[Services, str]) -> None:
    _, url = server
    printed = f"workspace of worker {ID} unlocked; its phase is unknown, and its next run is due now\n"
    assert slipway(url, "worker", "unlock", ID).stdout == printed


def test_keys_are_listed_and_rotated(server: tuple[Services, str]) -> None:
    _, url = server
    listed = slipway(url, "state-key", "ls").stdout.splitlines()
    assert listed[1].split() == [STATE_KEY["id"], "encrypts", "3"]
    assert slipway(url, "state-key", "rotate").stdout == "0 documents encrypted with the first key; all were already\n"


def test_a_document_that_cannot_be_decrypted_holds_up_no_rotation() -> None:
    """It is named with its worker, and the command fails once all others are encrypted."""
    app_, asked = FastAPI(), list[Any]()
    not_authentic = {"workspace_id": ID, "kind": "state", "number": 0}
    after = not_authentic | {"number": 7}

    @app_.post("/provisioner/state-keys/rotate")
    async def rotate(body: dict[str, Any]) -> dict[str, Any]:
        asked.append(body["after"])
        found = {"not_authentic": [not_authentic | {"worker_id": "w-1"}], "after": after} if len(asked) == 1 else {}
        return {"encrypted": 99, "not_authentic": [], "after": None, "left": 1, "unavailable": 0} | found

    with serving(app_) as url:
        done = slipway(url, "state-key", "rotate")
    assert (asked, done.exit_code, done.stdout) == ([None, after], 1, "198 documents encrypted with the first key\n")
    assert "state of worker w-1 not encrypted: it was changed, or belongs to another row" in done.stderr
    assert "rotate again" in done.stderr
    assert "in use by a run" not in done.stderr
