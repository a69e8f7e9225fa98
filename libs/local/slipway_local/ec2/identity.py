"""Identity documents of instances, signed with test keys: RSA of 1024 and 2048 bits, as EC2 has them.

The keys are drawn anew by each process and serve all regions. Their certificates are declared in the settings of an
account, as those of a new region are.
"""

import base64
from datetime import UTC, datetime
from functools import cached_property
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.hazmat.primitives.serialization.pkcs7 import PKCS7Options, PKCS7SignatureBuilder
from cryptography.x509.oid import NameOID

EXPONENT: Final = 65537
ISSUED: Final = datetime(2020, 1, 1, tzinfo=UTC)
EXPIRED: Final = datetime(2021, 1, 1, tzinfo=UTC)
"""The certificates have expired, as some that are in use."""


class Key:
    """A key with its certificate."""

    def __init__(self, bits: int) -> None:
        self.private: RSAPrivateKey = generate_private_key(EXPONENT, bits)
        name = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Stand-in for EC2")])
        self.certificate = (x509.CertificateBuilder(name, name, self.private.public_key(), bits, ISSUED, EXPIRED)).sign(
            self.private, hashes.SHA256()
        )

    @property
    def pem(self) -> str:
        return self.certificate.public_bytes(Encoding.PEM).decode()


class Signer:
    """Signs documents. The keys are drawn on first use."""

    @cached_property
    def short(self) -> Key:
        return Key(1024)

    @cached_property
    def long(self) -> Key:
        return Key(2048)

    def certificates(self) -> list[str]:
        """Certificates of both keys, as PEM."""
        return [self.short.pem, self.long.pem]

    def signature(self, document: str) -> str:
        """Detached signature with the short key."""
        return _lines(self.short.private.sign(document.encode(), PKCS1v15(), hashes.SHA256()))

    def rsa2048(self, document: str) -> str:
        """PKCS7 data with the document embedded, signed with the long key, without a certificate."""
        builder = PKCS7SignatureBuilder().set_data(document.encode())
        signed = builder.add_signer(self.long.certificate, self.long.private, hashes.SHA256())
        return _lines(signed.sign(Encoding.DER, [PKCS7Options.Binary, PKCS7Options.NoCerts]))


def _lines(signed: bytes) -> str:
    """Base64 in lines, as the metadata service gives it."""
    return base64.encodebytes(signed).decode().strip()
