"""Settings from the environment and from files named there: precedence and error messages."""

import base64
from importlib import import_module
from pathlib import Path
from typing import Final

import pytest

from slipway_common import service
from slipway_common.base import settings
from slipway_common.base.settings import NamedFiles, Secret, UnreadableFile, from_environment
from slipway_lease_broker.settings import Settings as LeaseBroker
from slipway_provisioner.settings import Settings as Provisioner
from slipway_simulator.settings import Settings as Simulator
from slipway_terraform.daemon import settings as daemon
from slipway_weight_calculator.settings import Settings as WeightCalculator

KEY: Final = base64.b64encode(b"k" * 32).decode()
PLACES: Final = {"register_url", "lease_broker_url", "kafka_oauth_token_url"}
"""Settings of which a part is named like a secret, and that are none."""


class Settings(service.ServiceSettings):
    registration_key: str


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIPWAY_KAFKA", "kafka:9092")
    monkeypatch.setenv("SLIPWAY_DATABASE_URL", "postgresql://env@host/db")
    monkeypatch.setenv("SLIPWAY_REGISTRATION_KEY", "from-env")


def test_a_value_from_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A trailing line break is not part of a secret."""
    (tmp_path / "url").write_text("postgresql://file@host/db\n")
    (tmp_path / "port").write_text("7777\n")
    monkeypatch.delenv("SLIPWAY_DATABASE_URL")
    monkeypatch.setenv("SLIPWAY_DATABASE_URL_FILE", str(tmp_path / "url"))
    monkeypatch.setenv("SLIPWAY_PORT_FILE", str(tmp_path / "port"))
    read = from_environment(Settings)
    assert (read.database_url, read.port, read.registration_key) == ("postgresql://file@host/db", 7777, "from-env")


def test_the_environment_takes_precedence_over_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("from-file")
    monkeypatch.setenv("SLIPWAY_REGISTRATION_KEY_FILE", str(tmp_path / "key"))
    assert NamedFiles(Settings)() == {}, "it is not even read"
    assert from_environment(Settings).registration_key == "from-env"
    monkeypatch.setenv("SLIPWAY_REGISTRATION_KEY_FILE", str(tmp_path / "absent"))
    assert from_environment(Settings).registration_key == "from-env", "a file that is not needed may be absent"


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "No such file or directory"), (b" \n", "the file is empty"), (b"\xff\xfe", "not UTF-8 text")],
)
def test_a_file_without_a_value_is_named(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    content: bytes | None,
    reason: str,
) -> None:
    path = tmp_path / "key"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.delenv("SLIPWAY_REGISTRATION_KEY")
    monkeypatch.setenv("SLIPWAY_REGISTRATION_KEY_FILE", str(path))
    with pytest.raises(UnreadableFile):
        Settings()  # type: ignore[call-arg]
    with pytest.raises(SystemExit) as ended:
        from_environment(Settings)
    printed = capsys.readouterr().err
    assert ended.value.code == 2
    assert f"SLIPWAY_REGISTRATION_KEY_FILE={path}: {reason}" in printed


def test_all_errors_are_printed_without_values(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SLIPWAY_REGISTRATION_KEY")
    monkeypatch.setenv("SLIPWAY_PORT", "hunter2")
    with pytest.raises(SystemExit):
        from_environment(Settings)
    printed = capsys.readouterr().err.splitlines()
    assert printed[1] == "SLIPWAY_REGISTRATION_KEY is not set; set it, or SLIPWAY_REGISTRATION_KEY_FILE"
    assert printed[0].startswith("SLIPWAY_PORT: ")
    assert "hunter2" not in "".join(printed)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("SLIPWAY_TERRAFORM_RUN_MAX", "SLIPWAY_TERRAFORM_RUNS_MAX"),
        ("SLIPWAY_TERRAFORM_MAX_RUNS", "SLIPWAY_TERRAFORM_RUNS_MAX"),
        ("SLIPWAY_TERRAFORM_FODLER", "SLIPWAY_TERRAFORM_FOLDER"),
        ("SLIPWAY_REGISTER_ULR", "SLIPWAY_REGISTER_URL"),
        ("SLIPWAY_STATE_KEY_FILE", "SLIPWAY_STATE_KEYS_FILE"),
    ],
)
def test_a_misspelt_variable_is_named_at_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], wrong: str, right: str
) -> None:
    """It would be ignored silently otherwise. Its value is not printed."""
    monkeypatch.setenv("SLIPWAY_SECRETS_IN_ENVIRONMENT", "yes")
    monkeypatch.setenv("SLIPWAY_REGISTRATION_KEYS", base64.b64encode(b"k" * 32).decode())
    monkeypatch.setenv(wrong, "hunter2")
    from_environment(Provisioner)
    printed = capsys.readouterr().err
    assert f"{wrong} is not a setting of this program and is ignored; did you mean {right}?" in printed
    assert "hunter2" not in printed


@pytest.mark.parametrize("kind", [Provisioner, WeightCalculator, LeaseBroker, Simulator])
def test_variables_of_other_programs_are_not_misspelt(kind: type[settings.EnvironmentSettings]) -> None:
    """All services, the command and the daemon of Terraform may share an environment."""
    names = {name for each in (Provisioner, WeightCalculator, LeaseBroker, Simulator) for name in each.model_fields}
    names |= {f"terraform_{name}" for name in daemon.VARIABLES | daemon.POLICY_FIELDS}
    names |= {"token", "token_file", "state_dir", "provisioner_url", "weight_calculator_url", "worker_socket", "lease"}
    shared = {settings.variable_of(name): "" for name in names} | {"HOME": "/"}
    assert settings.misspelt(kind.model_fields, shared) == {}


@pytest.mark.parametrize("kind", [Provisioner, WeightCalculator, LeaseBroker, Simulator])
def test_no_setting_is_the_file_of_another(kind: type[settings.EnvironmentSettings]) -> None:
    """A setting x_file would collide with the file of a setting x."""
    names = set(kind.model_fields)
    assert not {name for name in names if name.endswith("_file") and name.removesuffix("_file") in names}


@pytest.mark.parametrize(
    ("given", "refused"),
    [
        ({}, []),
        ({"REGISTRATION_KEYS": KEY}, ["SLIPWAY_REGISTRATION_KEYS"]),
        ({"STATE_KEYS": KEY}, ["SLIPWAY_STATE_KEYS"]),
        ({"DATABASE_URL": "postgresql://u:hunter2@db/d"}, ["SLIPWAY_DATABASE_URL"]),
        ({"DATABASE_URL": "postgresql://u@db/d?password=hunter2"}, ["SLIPWAY_DATABASE_URL"]),
        ({"DATABASE_URL": "postgresql://u@db/d?passfile=/etc/pgpass"}, []),
        ({"REGISTRATION_KEYS": KEY, "SECRETS_IN_ENVIRONMENT": "yes"}, []),
    ],
)
def test_a_secret_in_the_environment_is_refused(
    given: dict[str, str],
    refused: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It comes from a file, but for a demo. The line names the variable and the remedy, and never the secret."""
    file = tmp_path / "keys"
    file.write_text(KEY)
    usual = {"REGISTRATION_KEYS_FILE": str(file), "DATABASE_URL": "postgresql://db/db", "KAFKA": "kafka:9092"}
    monkeypatch.delenv("SLIPWAY_REGISTRATION_KEY")
    for name, value in (usual | given).items():
        monkeypatch.setenv(f"SLIPWAY_{name}", value)
    if not refused:
        assert from_environment(Provisioner).registration_keys == KEY
        return
    with pytest.raises(SystemExit) as ended:
        from_environment(Provisioner)
    lines = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2
    assert [line.split()[0] for line in lines] == refused
    assert all(f"set {name}_FILE" in line for name, line in zip(refused, lines, strict=True))
    assert not any(secret in line for line in lines for secret in ("hunter2", KEY))


def test_no_secret_of_a_service_is_without_its_mark() -> None:
    """Texts of settings that name keys, passwords, tokens or secrets are files, or marked as secrets."""
    for package in ("provisioner", "weight_calculator", "lease_broker", "monitor"):
        for name, field in import_module(f"slipway_{package}.settings").Settings.model_fields.items():
            is_secret = {"keys", "password", "token", "tokens", "secret", "url"} & set(name.split("_"))
            if is_secret and field.annotation is str and name not in PLACES:
                assert any(isinstance(mark, Secret) for mark in field.metadata), name
