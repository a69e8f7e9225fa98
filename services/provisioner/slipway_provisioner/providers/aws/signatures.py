"""Signatures of identity documents: a detached one, and PKCS7 data with the document embedded. Pure.

EC2 signs with RSA (PKCS #1 v1.5) and SHA-2. Its PKCS7 data (RFC 5652) have one signer and contain no certificate, which
is why no library verifies them as a whole; only their encoding is parsed here by one.
"""

import base64
import hashlib
from collections.abc import Iterable
from typing import Any, Final

from asn1crypto import cms
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

DIGESTS: Final[dict[str, hashes.HashAlgorithm]] = {
    "sha256": hashes.SHA256(),
    "sha384": hashes.SHA384(),
    "sha512": hashes.SHA512(),
}
SET: Final = b"\x31"


class Malformed(Exception):
    """A signature without the form of one. The text says which part is wrong."""


def verified(text: bytes, signature: str, keys: Iterable[RSAPublicKey]) -> bool:
    """True if one of the keys has signed these bytes. Raises Malformed."""
    return _verified(text, _decoded("signature", signature), hashes.SHA256(), keys)


def content(rsa2048: str, keys: Iterable[RSAPublicKey]) -> bytes | None:
    """Content of PKCS7 data that one of the keys has signed; None if none has. Raises Malformed."""
    encoded = _decoded("rsa2048", rsa2048)
    try:
        embedded, signed, signature, digest = _parsed(encoded)
    except Malformed:
        raise
    except Exception as error:  # the parser raises whatever hostile bytes lead it to
        raise Malformed(f"rsa2048 is not PKCS7 data with one signer ({type(error).__name__})") from error
    return embedded if _verified(signed, signature, DIGESTS[digest], keys) else None


def _parsed(encoded: bytes) -> tuple[bytes, bytes, bytes, str]:
    """Embedded content, the bytes that are signed, their signature, and the digest of both."""
    info = cms.ContentInfo.load(encoded, strict=True)
    if info["content_type"].native != "signed_data":
        raise Malformed("rsa2048 is PKCS7 data without a signature")
    data = info["content"]
    (signer,) = data["signer_infos"]
    if (embedded := data["encap_content_info"]["content"].native) is None:
        raise Malformed("rsa2048 has no embedded document")
    digest = signer["digest_algorithm"]["algorithm"].native
    if digest not in DIGESTS or signer["signature_algorithm"].signature_algo != "rsassa_pkcs1v15":
        raise Malformed("rsa2048 is not signed with RSA and SHA-2")
    attributes = signer["signed_attrs"]
    if not attributes:
        return embedded, embedded, signer["signature"].native, digest
    if _value(attributes, "message_digest") != hashlib.new(digest, embedded).digest():
        raise Malformed("rsa2048 has the digest of another document")
    if _value(attributes, "content_type") != data["encap_content_info"]["content_type"].native:
        raise Malformed("rsa2048 names another content type than it has")
    # They are sent under a tag of their own, and signed as the SET that they are (RFC 5652, 5.4).
    return embedded, SET + attributes.dump()[1:], signer["signature"].native, digest


def _value(attributes: Any, kind: str) -> Any:
    """The one value of the one attribute of a kind."""
    (found,) = [attribute for attribute in attributes if attribute["type"].native == kind]
    (value,) = found["values"]
    return value.native


def _verified(signed: bytes, signature: bytes, digest: hashes.HashAlgorithm, keys: Iterable[RSAPublicKey]) -> bool:
    for key in keys:
        try:
            key.verify(signature, signed, PKCS1v15(), digest)
        except InvalidSignature:
            continue
        return True
    return False


def _decoded(name: str, text: str) -> bytes:
    """Bytes of base64 text, which the metadata service breaks into lines."""
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except ValueError as error:
        raise Malformed(f"{name} is not base64") from error
