"""Registration keys: the first one derives, all verify, and none that anybody could guess is accepted."""

import base64
import os
from pathlib import Path
from typing import Final

import pytest

from slipway_provisioner.domain.encryption import BadKeys, KeyRing
from slipway_provisioner.domain.registration import RegistrationKeys
from slipway_provisioner.settings import Settings

BATCH: Final = "0192f0c1-0000-7000-8000-000000000000"


def key() -> str:
    return base64.b64encode(os.urandom(32)).decode()


def test_machines_that_boot_during_a_rotation_register() -> None:
    """The new key is first, the old one stays until they have registered."""
    old, new = key(), key()
    before, during, after = RegistrationKeys(old), RegistrationKeys(f"{new}\n# old\n{old}\n"), RegistrationKeys(new)
    assert during.secret(BATCH) == after.secret(BATCH) != before.secret(BATCH)
    assert during.verifies(BATCH, before.secret(BATCH))
    assert during.verifies(BATCH, after.secret(BATCH))
    assert not after.verifies(BATCH, before.secret(BATCH))
    assert not during.verifies("another batch", during.secret(BATCH))
    assert not during.verifies(BATCH, "")


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("", "there is no key"),
        (" \n# none\n", "there is no key"),
        ("secret", "line 1 is not a key"),
        (base64.b64encode(b"short").decode(), "line 1 is not a key"),
        (f"{key()}\n\nx", "line 3 is not a key"),
    ],
)
def test_a_key_that_is_none_is_refused_at_start(lines: str, words: str) -> None:
    with pytest.raises(BadKeys, match=words):
        RegistrationKeys(lines)
    with pytest.raises(ValueError, match=words):
        Settings(database_url="", kafka="", registration_keys=lines)


def test_the_file_is_read_again_when_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that becomes unusable or vanishes locks nobody out."""
    file, old, new = tmp_path / "keys", key(), key()
    file.write_text(old)
    monkeypatch.setenv("SLIPWAY_REGISTRATION_KEYS_FILE", str(file))
    monkeypatch.setenv("SLIPWAY_DATABASE_URL", "postgresql://db/db")
    monkeypatch.setenv("SLIPWAY_KAFKA", "kafka:9092")
    settings = Settings()  # type: ignore[call-arg]
    first = settings.registration().secret(BATCH)
    file.write_text(f"{new}\n{old}\n")
    assert settings.registration().secret(BATCH) == RegistrationKeys(new).secret(BATCH)
    assert settings.registration().verifies(BATCH, first)
    file.write_text("half a ke")
    assert settings.registration().secret(BATCH) == first, "that of the start"
    file.write_text(new)
    file.unlink()
    assert settings.registration().verifies(BATCH, first)


def test_state_keys_are_read_again_when_their_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first key encrypts, all decrypt. A file that becomes unusable leaves the last good keys."""
    file, old, new = tmp_path / "keys", key(), key()
    file.write_text(old)
    monkeypatch.setenv("SLIPWAY_STATE_KEYS_FILE", str(file))
    keys = Settings(database_url="", kafka="", registration_keys=key()).state_key_ring()
    document = keys.encrypt(b"state", "w-1", bytes(12))
    file.write_text(f"{new}\n{old}\n")
    assert keys.current_id == KeyRing(new).current_id
    assert keys.decrypt(document, "w-1") == b"state"
    file.write_text("half a ke")
    assert keys.current_id == KeyRing(new).current_id
    assert keys.decrypt(document, "w-1") == b"state"
