"""Identity documents of EC2: certificates by region, the encodings in which it signs, and refused proofs."""

import base64
from collections import Counter
from typing import Any, Final

import pytest
from asn1crypto import cms, core
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.hazmat.primitives.serialization.pkcs7 import PKCS7Options, PKCS7SignatureBuilder
from msgspec.structs import replace

from slipway_local.ec2.identity import Key, Signer
from slipway_provisioner.domain.cloud import Account
from slipway_provisioner.domain.identity import Attested, IdentityRefused, Proof, Reason
from slipway_provisioner.providers.aws import certificates, identity, signatures
from slipway_provisioner.providers.aws.settings import PARTITIONS, RSA2048_BITS, partition_of
from slipway_provisioner.providers.aws.signatures import Malformed
from tests.support.identity import ACCOUNT as OWNER
from tests.support.identity import IMAGE, REGION, STARTED, document, instance_id, signed, signer
from tests.support.provisioner import after

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


OWN: Final = instance_id(1)
ELSEWHERE: Final = "eu-west-1"
DOCUMENT: Final = document(OWN)
OTHER: Final = DOCUMENT.replace(IMAGE, "ami-0fedcba9876543210")
LONG: Final = signer().rsa2048(DOCUMENT)
FORGER: Final = Signer()
ACCOUNT: Final = Account(
    id="sim-a",
    deployment="d",
    provider="aws",
    region=REGION,
    identity=OWNER,
    lease_pool_id="",
    settings={"identity_certificates": signer().certificates()},
)


def pkcs7(*options: PKCS7Options, signers: int = 1) -> str:
    builder = PKCS7SignatureBuilder().set_data(DOCUMENT.encode())
    for _ in range(signers):
        builder = builder.add_signer(signer().long.certificate, signer().long.private, hashes.SHA256())
    made = builder.sign(Encoding.DER, [PKCS7Options.Binary, PKCS7Options.NoCerts, *options])
    return base64.b64encode(made).decode()


def whole(text: str, *, by: Signer | None = None) -> Proof:
    return Proof(**signed(text, by=by))


def only(name: str) -> Proof:
    """Proof with one of its signatures."""
    return Proof(DOCUMENT, **{name: signed(DOCUMENT)[name]})


REFUSED: Final[dict[str, tuple[Proof | None, Reason, str]]] = {
    "the secret alone": (None, Reason.MISSING, "the batch secret alone does not register"),
    "no signature": (Proof(DOCUMENT), Reason.MISSING, "without a signature"),
    "forged, RSA-1024": (
        Proof(DOCUMENT, signature=FORGER.signature(DOCUMENT)),
        Reason.FORGED,
        "known keys of region us-east-1",
    ),
    "altered, RSA-1024": (
        Proof(OTHER, signature=signer().signature(DOCUMENT)),
        Reason.FORGED,
        "its signature matches none",
    ),
    "altered beside the embedded one": (
        Proof(OTHER, rsa2048=LONG),
        Reason.CONTRADICTORY,
        "differs from the one",
    ),
    "a forged RSA-2048 beside a genuine RSA-1024": (
        Proof(DOCUMENT, signature=signer().signature(DOCUMENT), rsa2048=FORGER.rsa2048(DOCUMENT)),
        Reason.FORGED,
        "its rsa2048 matches none",
    ),
    "foreign region": (
        whole(document(OWN, region=ELSEWHERE), by=signer(ELSEWHERE)),
        Reason.FOREIGN_REGION,
        "from region eu-west-1, but account sim-a is in us-east-1",
    ),
    "the key of a foreign region": (
        whole(DOCUMENT, by=signer(ELSEWHERE)),
        Reason.FORGED,
        "known keys of region us-east-1",
    ),
    "embedded: foreign region": (
        Proof(DOCUMENT, rsa2048=signer().rsa2048(document(OWN, region=ELSEWHERE))),
        Reason.CONTRADICTORY,
        "differs from the one",
    ),
    "embedded: no JSON": (Proof(DOCUMENT, rsa2048=signer().rsa2048("{")), Reason.MALFORMED, "cannot be read"),
    "another account": (
        whole(document(OWN, accountId="210987654321")),
        Reason.FOREIGN_ACCOUNT,
        "is in account 210987654321",
    ),
    "another image": (whole(OTHER), Reason.FOREIGN_IMAGE, "launched from ami-0fed"),
    "no JSON": (whole(DOCUMENT.replace("{", "[", 1)), Reason.MALFORMED, "cannot be read"),
    "nested too deeply": (Proof('{"region":' + "[" * 4000), Reason.MALFORMED, "cannot be read"),
    "no pendingTime": (whole(document(OWN, pendingTime=None)), Reason.MALFORMED, "pendingTime"),
    "no time zone": (whole(document(OWN, pendingTime="2026-01-01T12:00:10")), Reason.MALFORMED, "zone"),
    "no base64, RSA-1024": (Proof(DOCUMENT, signature="*"), Reason.MALFORMED, "signature is not base64"),
    "no base64, RSA-2048": (Proof(DOCUMENT, rsa2048="MII=A"), Reason.MALFORMED, "rsa2048 is not base64"),
    "no PKCS7": (
        Proof(DOCUMENT, rsa2048=signer().signature(DOCUMENT)),
        Reason.MALFORMED,
        "not PKCS7 data",
    ),
    "no signature in PKCS7": (
        Proof(DOCUMENT, rsa2048=base64.b64encode(cms.ContentInfo({"content_type": "data"}).dump()).decode()),
        Reason.MALFORMED,
        "PKCS7 data without a signature",
    ),
    "detached PKCS7": (
        Proof(DOCUMENT, rsa2048=pkcs7(PKCS7Options.DetachedSignature)),
        Reason.MALFORMED,
        "no embedded document",
    ),
    "two signers": (Proof(DOCUMENT, rsa2048=pkcs7(signers=2)), Reason.MALFORMED, "with one signer"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_proof_that_is_refused(name: str) -> None:
    proof, reason, words = REFUSED[name]
    with pytest.raises(IdentityRefused, match=words) as refused:
        identity.attested(ACCOUNT, IMAGE, proof)
    assert refused.value.reason is reason


@pytest.mark.parametrize(
    "proof",
    [only("signature"), only("rsa2048"), Proof(DOCUMENT, rsa2048=pkcs7(PKCS7Options.NoAttributes))],
    ids=["RSA-1024", "RSA-2048", "without attributes"],
)
@pytest.mark.parametrize("image", [IMAGE, "name-of-an-image"])
def test_a_proof_attests_a_machine(proof: Proof, image: str) -> None:
    assert identity.attested(ACCOUNT, image, proof) == Attested(OWN, after(STARTED))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "no certificates for region us-iso-east-1; add those"),
        (
            {"identity_key_bits": 2048, "identity_certificates": [signer().short.pem]},
            "no certificates with 2048 bits or more for region us-iso-east-1",
        ),
    ],
)
def test_a_region_without_keys(settings: dict[str, Any], words: str) -> None:
    secret = replace(ACCOUNT, region="us-iso-east-1", settings=settings)
    with pytest.raises(IdentityRefused, match=words) as refused:
        identity.attested(secret, IMAGE, whole(document(OWN, region=secret.region)))
    assert refused.value.reason is Reason.NO_CERTIFICATE
