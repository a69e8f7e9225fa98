"""Encrypted documents: AES-256-GCM under the first of several keys, decrypted with any. Pure: the nonce is given.

Format: nonce, then ciphertext with its tag. The identity of a document is authenticated with it, so that a document
that was moved to another row, or whose row names another version, cannot be decrypted there.
"""

import base64
import binascii
import hashlib
from collections.abc import Mapping
from typing import Any, Final

import msgspec

KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
KEY_ID_CHARACTERS: Final = 16


class BadKeys(ValueError):
    """Keys that cannot be used; the message names the line and contains nothing of it."""


class KeyMissing(Exception):
    """The key of a document is not among the keys of this service."""

    def __init__(self, key_id: str) -> None:
        super().__init__(
            f"the key {key_id} is not among the state keys of the provisioner; add it as the last line of "
            "the file of SLIPWAY_STATE_KEYS_FILE"
            if key_id
            else "the provisioner has no state keys; set SLIPWAY_STATE_KEYS_FILE"
        )
        self.key_id = key_id


class NotAuthentic(Exception):
    """A document was changed, or belongs to another row."""


class Encrypted(msgspec.Struct, frozen=True):
    """An encrypted document and the id of its key."""

    key_id: str
    data: bytes


class KeyRing:
    """Keys of a service. Documents are encrypted with the first one."""

    def __init__(self, lines: str) -> None:
        """`lines` has the base64 of one key a line; empty lines and those that begin with # are skipped. Raises
        BadKeys."""
        self._known: Mapping[str, bytes] = keys_by_id(lines)

    @property
    def _keys(self) -> Mapping[str, bytes]:
        """Keys by their ids."""
        return self._known

    @property
    def current_id(self) -> str:
        """Id of the key that encrypts. Raises KeyMissing if there is none."""
        if not self._keys:
            raise KeyMissing("")
        return next(iter(self._keys))

    @property
    def ids(self) -> tuple[str, ...]:
        """Ids of all keys, the one that encrypts first."""
        return tuple(self._keys)

    def encrypt(self, document: bytes, identity: str, nonce: bytes) -> Encrypted:
        """Encrypt a document. A nonce is used once. Raises KeyMissing if there is no key."""
        cipher = _cipher(self._keys[self.current_id])
        return Encrypted(self.current_id, nonce + cipher.encrypt(nonce, document, identity.encode()))

    def decrypt(self, encrypted: Encrypted, identity: str) -> bytes:
        """Decrypt a document. Raises KeyMissing, NotAuthentic."""
        if encrypted.key_id not in self._keys:
            raise KeyMissing(encrypted.key_id)
        from cryptography.exceptions import InvalidTag  # an extra, like all that workspaces need

        try:
            document: bytes = _cipher(self._keys[encrypted.key_id]).decrypt(
                encrypted.data[:NONCE_BYTES], encrypted.data[NONCE_BYTES:], identity.encode()
            )
        except (InvalidTag, ValueError):
            raise NotAuthentic(f"the document {identity} was changed, or is that of another row") from None
        return document


def keys_by_id(lines: str) -> dict[str, bytes]:
    """Keys by their ids, in the order of their lines. Raises BadKeys."""
    found: dict[str, bytes] = {}
    for key in key_lines(lines):
        found.setdefault(key_id_of(key), key)
    return found


def key_lines(lines: str) -> list[bytes]:
    """Keys, the base64 of one a line; empty lines and those that begin with # are skipped. Raises BadKeys."""
    numbered = enumerate(map(str.strip, lines.splitlines()), 1)
    return [_decoded(line, number) for number, line in numbered if line and not line.startswith("#")]


def key_id_of(key: bytes) -> str:
    """Id of a key, derived from it, so that no key can have the id of another one."""
    return hashlib.sha256(b"slipway state key" + key).hexdigest()[:KEY_ID_CHARACTERS]


def _cipher(key: bytes) -> Any:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(key)


def _decoded(line: str, number: int) -> bytes:
    try:
        key = base64.b64decode(line, validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != KEY_BYTES:
        remedy = f"write the base64 of {KEY_BYTES} random bytes, as `openssl rand -base64 {KEY_BYTES}` prints it"
        raise BadKeys(f"line {number} is not a key; {remedy}")
    return key
