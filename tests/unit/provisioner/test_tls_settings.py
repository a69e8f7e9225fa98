"""Settings of the provisioner by which machines reach it over TLS."""

from pathlib import Path
from typing import Any

import pytest

from slipway_provisioner.settings import Settings
from tests.support.authority import Authority
from tests.support.provisioner import KEY


def settings(**given: Any) -> Settings:
    needed = {"database_url": "postgresql://", "kafka": "broker:9092", "registration_keys": KEY}
    return Settings(**needed | given)


def test_url_for_machines(tmp_path: Path) -> None:
    certificate = Authority(tmp_path).issue("provisioner")
    assert settings(port=1).url_for_machines == "http://127.0.0.1:1"
    assert settings(port=1, tls_certificate_file=certificate).url_for_machines == "https://127.0.0.1:1"
    with pytest.raises(ValueError, match="SLIPWAY_REGISTER_URL must begin with https://"):
        settings(register_url="http://slipway.example", tls_certificate_file=certificate)


def test_authorities_for_machines(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    assert settings().authorities_for_machines() == ""
    assert settings(register_ca_file=authority.ca_file).authorities_for_machines() == authority.ca_file.read_text()
    many = tmp_path / "many.pem"
    many.write_text(authority.ca_file.read_text() * 10)
    for file, reason in ((many, "user data have room for 4,096"), (tmp_path / "absent.pem", "No such file")):
        with pytest.raises(ValueError, match=reason):
            settings(register_ca_file=file)
