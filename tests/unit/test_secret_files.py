"""Secrets of a new deployment: generated once, consistent, readable by owner and group only."""

import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from slipway_client.cli import secret_files
from slipway_client.cli.main import app
from slipway_common.web.tokens import Tokens

URL = "postgresql://slipway@postgres:5432/slipway"
NAMES = {"database_password", "database_url", "registration_keys", "operator_token", "metrics_token", "tokens.yaml"}


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_everything_is_generated_once(tmp_path: Path) -> None:
    assert set(secret_files.create(tmp_path, URL)) == NAMES
    first = contents(tmp_path)
    assert secret_files.create(tmp_path, URL) == []
    assert contents(tmp_path) == first
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o640}


def test_secrets_are_consistent(tmp_path: Path) -> None:
    secret_files.create(tmp_path, URL)
    made = {name: text.strip() for name, text in contents(tmp_path).items()}
    assert made["database_url"] == f"postgresql://slipway:{made['database_password']}@postgres:5432/slipway"
    token = Tokens(tmp_path / "tokens.yaml").find(made["operator_token"])
    assert token is not None
    assert (token.name, token.scopes) == ("operator", ["admin"])
    scraper = Tokens(tmp_path / "tokens.yaml").find(made["metrics_token"])
    assert scraper is not None
    assert (scraper.name, scraper.scopes) == ("prometheus", ["read:metrics"])
    assert not {made["operator_token"], made["metrics_token"]} & set(made["tokens.yaml"].split())


def test_an_interrupted_first_run_is_completed(tmp_path: Path) -> None:
    """A token without its hash is useless: both are generated again, and the password stays."""
    secret_files.create(tmp_path, URL)
    before = contents(tmp_path)
    (tmp_path / "tokens.yaml").unlink()
    assert set(secret_files.create(tmp_path, URL)) == {"operator_token", "metrics_token", "tokens.yaml"}
    after = contents(tmp_path)
    assert after["database_password"] == before["database_password"]
    assert Tokens(tmp_path / "tokens.yaml").find(after["operator_token"].strip()) is not None


@pytest.mark.parametrize("url", ["postgresql://slipway:pw@host/db", "postgresql://host/db", "nonsense"])
def test_a_url_that_cannot_take_a_password(tmp_path: Path, url: str) -> None:
    with pytest.raises(ValueError, match="without a password"):
        secret_files.create(tmp_path, url)
    assert contents(tmp_path) == {}


def test_the_command_reads_its_token_from_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A missing file is named before any service is called."""
    monkeypatch.setenv("SLIPWAY_TOKEN_FILE", str(tmp_path / "operator_token"))
    answer = CliRunner().invoke(app, ["pool", "ls"])
    assert (answer.exit_code, "Traceback" in answer.output) == (1, False)
    assert f"SLIPWAY_TOKEN_FILE={tmp_path / 'operator_token'}: No such file" in answer.output
