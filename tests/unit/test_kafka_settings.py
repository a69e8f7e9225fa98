"""Settings of Kafka clients: what is refused at start, and what clients and logs get."""

from pathlib import Path
from typing import Any

import pytest

from slipway_common.base.settings import from_environment
from slipway_common.messaging.clients import FilePassword, KafkaSettings, client_options
from tests.support.authority import Authority


@pytest.fixture
def password(tmp_path: Path) -> Path:
    path = tmp_path / "password"
    path.write_text("secret-1\n")
    return path


def read(monkeypatch: pytest.MonkeyPatch, **values: Any) -> KafkaSettings:
    monkeypatch.setenv("SLIPWAY_KAFKA", "broker:9093")
    for name, value in values.items():
        monkeypatch.setenv(f"SLIPWAY_KAFKA_{name.upper()}", str(value))
    return from_environment(KafkaSettings)


def test_without_security(monkeypatch: pytest.MonkeyPatch) -> None:
    options = client_options(read(monkeypatch).kafka_access)
    assert options == {"bootstrap_servers": "broker:9093", "security_protocol": "PLAINTEXT"}
    assert client_options("broker:9093") == {"bootstrap_servers": "broker:9093"}


def test_password(monkeypatch: pytest.MonkeyPatch, password: Path) -> None:
    settings = read(monkeypatch, security_protocol="SASL_SSL", username="provisioner", password_file=password)
    options = client_options(settings.kafka_access)
    assert options["sasl_mechanism"] == "SCRAM-SHA-512"
    found = options["sasl_plain_password"]
    assert isinstance(found, FilePassword)
    assert found.read() == "secret-1"
    password.write_text("secret-2\n")
    assert found.read() == "secret-2"
    assert "secret-" not in f"{options} {settings!r}"


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"security_protocol": "SASL_SSL"}, "SASL_SSL with SCRAM-SHA-512 needs username and password_file"),
        ({"security_protocol": "SASL_SSL", "username": "a", "password_file": "absent"}, "absent: No such file"),
        (
            {"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER"},
            "needs oauth_token_url and oauth_client_id and oauth_client_secret_file",
        ),
        ({"username": "a"}, "username has no effect with PLAINTEXT"),
        ({"ca_file": "absent.pem"}, "ca_file has no effect with PLAINTEXT"),
        ({"security_protocol": "SSL", "ca_file": "absent.pem"}, "absent.pem: No such file or directory"),
        ({"security_protocol": "SSL", "key_file": "key.pem"}, "key_file needs certificate_file"),
        ({"security_protocol": "SASL_PLAINTEXT"}, "PLAINTEXT"),
    ],
)
def test_what_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], values: dict[str, str], reason: str
) -> None:
    with pytest.raises(SystemExit):
        read(monkeypatch, **values)
    assert reason in capsys.readouterr().err


def test_certificate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    settings = read(
        monkeypatch, security_protocol="SSL", ca_file=authority.ca_file, certificate_file=authority.issue("client")
    )
    assert client_options(settings.kafka_access)["ssl_context"].problem == ""
