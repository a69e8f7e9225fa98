"""Encrypted documents: decrypted by their key and in their own row only."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_provisioner.domain.encryption import (
    KEY_BYTES,
    NONCE_BYTES,
    BadKeys,
    Encrypted,
    KeyMissing,
    KeyRing,
    NotAuthentic,
)
from tests.support.workspaces import NEW, OLD, ring

NONCE = bytes(NONCE_BYTES)


@given(st.binary(max_size=200), st.text(max_size=40), st.binary(min_size=NONCE_BYTES, max_size=NONCE_BYTES))
def test_what_was_encrypted_can_be_decrypted(document: bytes, identity: str, nonce: bytes) -> None:
    keys = ring(OLD)
    encrypted = keys.encrypt(document, identity, nonce)
    assert keys.decrypt(encrypted, identity) == document
    assert len(document) < 8 or document not in encrypted.data[NONCE_BYTES:]


def test_documents_of_earlier_releases_can_be_decrypted() -> None:
    """The id of a key, and the place of nonce, text, tag and identity, are those in every database."""
    data = bytes.fromhex("000102030405060708090a0b3476b76fa0f07af3ae850274b7f4c2ee3619f61363")
    recorded = Encrypted("5d49e155344b6124", data)
    assert ring(NEW, OLD).decrypt(recorded, "one/state/0/lineage/7") == b"state"
    assert ring(OLD).encrypt(b"state", "one/state/0/lineage/7", data[:NONCE_BYTES]) == recorded


def test_the_first_key_encrypts_and_all_decrypt() -> None:
    before = ring(OLD).encrypt(b"state", "a", NONCE)
    after = ring(NEW, OLD).encrypt(b"state", "a", NONCE)
    assert before.key_id != after.key_id == ring(NEW).current_id
    for encrypted in (before, after):
        assert ring(NEW, OLD).decrypt(encrypted, "a") == b"state"
    assert ring(NEW, OLD, NEW).ids == (after.key_id, before.key_id)


def test_a_missing_key_is_named() -> None:
    encrypted = ring(OLD).encrypt(b"state", "a", NONCE)
    with pytest.raises(KeyMissing, match=encrypted.key_id) as missing:
        ring(NEW).decrypt(encrypted, "a")
    assert missing.value.key_id == encrypted.key_id
    with pytest.raises(KeyMissing, match="has no state keys"):
        ring().encrypt(b"state", "a", NONCE)


@pytest.mark.parametrize("place", [0, NONCE_BYTES, -1], ids=["nonce", "text", "tag"])
def test_a_changed_document_cannot_be_decrypted(place: int) -> None:
    encrypted = ring(OLD).encrypt(b"state", "a", NONCE)
    data = bytearray(encrypted.data)
    data[place] ^= 1
    with pytest.raises(NotAuthentic):
        ring(OLD).decrypt(Encrypted(encrypted.key_id, bytes(data)), "a")


def test_a_document_does_not_open_in_another_row() -> None:
    encrypted = ring(OLD).encrypt(b"state", "one/state/0/lineage/7", NONCE)
    with pytest.raises(NotAuthentic):
        ring(OLD).decrypt(encrypted, "two/state/0/lineage/7")


@pytest.mark.parametrize("line", ["no base64!", base64.b64encode(b"short").decode(), "A" * 44, f"{OLD[:9]}!{OLD[9:]}"])
def test_a_bad_key_is_refused_by_its_line(line: str) -> None:
    with pytest.raises(BadKeys, match="line 3") as refused:
        KeyRing(f"# of November\n{OLD}\n{line}")
    assert line not in str(refused.value)
    assert str(KEY_BYTES) in str(refused.value)
