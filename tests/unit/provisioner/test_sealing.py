"""Sealed documents: opened by their key and in their own row only."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_provisioner.domain.sealing import (
    KEY_BYTES,
    NONCE_BYTES,
    BadKeys,
    KeyMissing,
    KeyRing,
    NotAuthentic,
    Sealed,
)
from tests.support.workspaces import NEW, OLD, ring

NONCE = bytes(NONCE_BYTES)


@given(st.binary(max_size=200), st.text(max_size=40), st.binary(min_size=NONCE_BYTES, max_size=NONCE_BYTES))
def test_what_was_sealed_opens(document: bytes, identity: str, nonce: bytes) -> None:
    keys = ring(OLD)
    sealed = keys.seal(document, identity, nonce)
    assert keys.open(sealed, identity) == document
    assert len(document) < 8 or document not in sealed.data[NONCE_BYTES:]


def test_the_first_key_seals_and_all_open() -> None:
    before = ring(OLD).seal(b"state", "a", NONCE)
    after = ring(NEW, OLD).seal(b"state", "a", NONCE)
    assert before.key_id != after.key_id == ring(NEW).current_id
    for sealed in (before, after):
        assert ring(NEW, OLD).open(sealed, "a") == b"state"


def test_a_missing_key_is_named() -> None:
    sealed = ring(OLD).seal(b"state", "a", NONCE)
    with pytest.raises(KeyMissing, match=sealed.key_id):
        ring(NEW).open(sealed, "a")
    with pytest.raises(KeyMissing, match="SLIPWAY_STATE_KEYS"):
        ring().seal(b"state", "a", NONCE)


@pytest.mark.parametrize("place", [0, NONCE_BYTES, -1], ids=["nonce", "text", "tag"])
def test_a_changed_document_does_not_open(place: int) -> None:
    sealed = ring(OLD).seal(b"state", "a", NONCE)
    data = bytearray(sealed.data)
    data[place] ^= 1
    with pytest.raises(NotAuthentic):
        ring(OLD).open(Sealed(sealed.key_id, bytes(data)), "a")


def test_a_document_does_not_open_in_another_row() -> None:
    sealed = ring(OLD).seal(b"state", "one/state/0/lineage/7", NONCE)
    with pytest.raises(NotAuthentic):
        ring(OLD).open(sealed, "two/state/0/lineage/7")


@pytest.mark.parametrize("line", ["no base64!", base64.b64encode(b"short").decode(), "A" * 44])
def test_a_bad_key_is_refused_by_its_line(line: str) -> None:
    with pytest.raises(BadKeys, match="line 3") as refused:
        KeyRing(f"# of November\n{OLD}\n{line}")
    assert line not in str(refused.value)
    assert str(KEY_BYTES) in str(refused.value)
