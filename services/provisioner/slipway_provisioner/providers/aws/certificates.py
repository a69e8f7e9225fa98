"""Certificates of the keys with which EC2 signs identity documents, by region.

`certificates.tsv` has those that AWS publishes (EC2 User Guide, "AWS public certificates for instance identity document
signatures"). Its rows are for all regions that share a key. A certificate stands for its key alone: that it has expired
proves nothing about a key, and AWS has renewed certificates with the same key for years. New regions, and those whose
certificates are not public, need the account setting `identity_certificates`.
"""

import base64
from collections.abc import Sequence
from functools import cache, lru_cache
from importlib.resources import files
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

TABLE: Final = "certificates.tsv"
KEY_BITS_MIN: Final = 1024


def problem(region: str, certificates: Sequence[str]) -> str:
    """Problem with the certificates in an account's settings for its region, and its remedy; empty if there is none."""
    for number, pem in enumerate(certificates, 1):
        try:
            _key(x509.load_pem_x509_certificate(pem.encode()))
        except ValueError as error:
            remedy = "write a PEM certificate as AWS publishes it"
            return f"identity_certificates[{number}] cannot be used ({error}); {remedy}"
    if not certificates and region not in _pinned():
        remedy = "write those that AWS publishes for it, as PEM, in identity_certificates"
        return f"the certificates of identity documents in region {region} are unknown; {remedy}"
    return ""


@lru_cache(maxsize=1024)
def keys(region: str, certificates: tuple[str, ...]) -> tuple[RSAPublicKey, ...]:
    """Keys that may have signed a document of a region: the pinned ones, and those of an account's settings."""
    published = [x509.load_der_x509_certificate(der) for der in _pinned().get(region, ())]
    declared = [x509.load_pem_x509_certificate(pem.encode()) for pem in certificates]
    return tuple(_key(certificate) for certificate in (*published, *declared))


def regions() -> list[str]:
    """Regions whose certificates are pinned, sorted."""
    return sorted(_pinned())


@cache
def _pinned() -> dict[str, list[bytes]]:
    pinned: dict[str, list[bytes]] = {}
    for line in files(__package__).joinpath(TABLE).read_text().splitlines()[1:]:
        names, certificate = line.split("\t")
        for region in names.split(","):
            pinned.setdefault(region, []).append(base64.b64decode(certificate))
    return pinned


def _key(certificate: x509.Certificate) -> RSAPublicKey:
    """Key of a certificate. Raises ValueError if no document is signed with one of its kind."""
    key = certificate.public_key()
    if not isinstance(key, RSAPublicKey):
        raise ValueError("its key is not an RSA key")
    if key.key_size < KEY_BITS_MIN:
        raise ValueError(f"its key has {key.key_size} bits, less than {KEY_BITS_MIN}")
    return key
