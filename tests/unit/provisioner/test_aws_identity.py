"""Certificates of EC2's identity documents by region, and the encodings in which it signs."""

import base64
from collections import Counter
from typing import Any

import pytest
from asn1crypto import cms, core
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from slipway_local.ec2.identity import Key
from slipway_provisioner.domain.cloud import Account
from slipway_provisioner.domain.identity import IdentityRefused, Proof, Reason
from slipway_provisioner.providers.aws import certificates, identity, signatures
from slipway_provisioner.providers.aws.settings import PARTITIONS, RSA2048_BITS, partition_of
from slipway_provisioner.providers.aws.signatures import Malformed
from tests.support.identity import signer

TEXT = '{"instanceId": "i-1"}'
SECRET_PARTITIONS = {"aws-iso", "aws-iso-b", "aws-iso-e", "aws-iso-f"}
END = b"\0\0"


def test_every_public_region_has_both_kinds_of_keys() -> None:
    """Each region a key of 2048 bits of its own, and one of 1024 that 17 of them share."""
    regions = certificates.regions()
    assert len(regions) == 39
    assert {partition_of(region) for region in regions} == {"aws", *PARTITIONS.values()} - SECRET_PARTITIONS
    long, short = Counter[int](), Counter[int]()
    for region in regions:
        first, second = certificates.keys(region, ())
        assert {first.key_size, second.key_size} == {1024, 2048}
        for key in (first, second):
            (long if key.key_size == RSA2048_BITS else short)[key.public_numbers().n] += 1
    assert set(long.values()) == {1}
    assert sorted(short.values())[-3:] == [2, 2, 17]


def test_every_certificate_is_whole() -> None:
    """Each has signed itself, so that no character of it is wrong."""
    pinned = [der for found in certificates._pinned().values() for der in found]
    for certificate in map(x509.load_der_x509_certificate, set(pinned)):
        key, digest = certificate.public_key(), certificate.signature_hash_algorithm
        assert isinstance(key, RSAPublicKey)
        assert digest is not None
        key.verify(certificate.signature, certificate.tbs_certificate_bytes, PKCS1v15(), digest)
        assert "Amazon" in certificate.subject.rfc4514_string()


@pytest.mark.parametrize(
    ("region", "given", "words"),
    [
        ("us-east-1", [], ""),
        ("us-iso-east-1", [], "us-iso-east-1 are unknown; write those"),
        ("us-iso-east-1", [Key(2048).pem], ""),
        ("us-east-1", [Key(1024).pem, "-----BEGIN CERTIFICATE-----"], "[2] cannot be used"),
    ],
)
def test_certificates_of_settings(region: str, given: list[str], words: str) -> None:
    problem = certificates.problem(region, given)
    assert words in problem
    assert bool(words) is bool(problem)


def test_a_declared_certificate_is_one_more() -> None:
    """A renewed key beside the one before."""
    keys = certificates.keys("us-east-1", (signer().long.pem,))
    assert keys[:2] == certificates.keys("us-east-1", ())
    assert keys[2:] == (signer().long.private.public_key(),)


def ber(der: bytes) -> Any:
    """The same PKCS7 data in the encoding that EC2 uses: of indefinite length, with the content in parts."""
    signed = cms.ContentInfo.load(der)["content"]
    inner, content = signed["encap_content_info"], signed["encap_content_info"]["content"].native
    parts = [core.OctetString(content[:7]).dump(), core.OctetString(content[7:]).dump()]
    wrapped = b"\x30\x80" + inner["content_type"].dump() + b"\xa0\x80\x24\x80" + b"".join(parts) + END * 3
    data = signed["version"].dump() + signed["digest_algorithms"].dump() + wrapped + signed["signer_infos"].dump()
    return b"\x30\x80" + cms.ContentType("signed_data").dump() + b"\xa0\x80\x30\x80" + data + END * 3


def test_content_of_indefinite_length() -> None:
    keys = [signer().long.private.public_key()]
    der = base64.b64decode(signer().rsa2048(TEXT))
    for encoded in (der, ber(der)):
        assert signatures.content(base64.b64encode(encoded).decode(), keys) == TEXT.encode()
    altered = ber(der).replace(b"i-1", b"i-2")
    with pytest.raises(Malformed, match="digest of another document"):
        signatures.content(base64.b64encode(altered).decode(), keys)


def test_weak_digests_are_refused() -> None:
    """EC2 signs with SHA-2; its DSA signatures with SHA-1 are of another kind."""
    info = cms.ContentInfo.load(base64.b64decode(signer().rsa2048(TEXT)))
    info["content"]["signer_infos"][0]["digest_algorithm"]["algorithm"] = "sha1"
    with pytest.raises(Malformed, match="not signed with RSA and SHA-2"):
        signatures.content(base64.b64encode(info.dump()).decode(), [signer().long.private.public_key()])


def test_attributes_are_what_is_signed() -> None:
    """A digest that fits another content does not help without its signature."""
    info = cms.ContentInfo.load(base64.b64decode(signer().rsa2048(TEXT)))
    other = cms.ContentInfo.load(base64.b64decode(signer().rsa2048(TEXT.replace("i-1", "i-2"))))
    (mine,), (theirs,) = info["content"]["signer_infos"], other["content"]["signer_infos"]
    theirs["signature"] = mine["signature"].native
    keys = [signer().long.private.public_key()]
    assert signatures.content(base64.b64encode(info.dump()).decode(), keys) == TEXT.encode()
    assert signatures.content(base64.b64encode(other.dump(force=True)).decode(), keys) is None


def test_a_document_that_is_nested_too_deeply() -> None:
    """It is refused as malformed, not an error of the provisioner."""
    account = Account(
        id="a", deployment="d", provider="aws", region="eu-central-1", identity="1", lease_pool_id="", settings={}
    )
    with pytest.raises(IdentityRefused) as refused:
        identity.attested(account, "ami-1", Proof('{"region":' + "[" * 4000))
    assert refused.value.reason is Reason.MALFORMED
