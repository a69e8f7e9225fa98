"""Identity documents of EC2 instances: the signature against the keys of the account's region, and what they say.

Nothing is read from a document before its signature, but for its region, which selects a better reason to refuse it.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from slipway_provisioner.domain.cloud import Account
from slipway_provisioner.domain.identity import Attested, IdentityRefused, Proof, Reason
from slipway_provisioner.providers.aws import certificates, signatures
from slipway_provisioner.providers.aws.settings import RSA2048_BITS, account_settings
from slipway_provisioner.providers.aws.signatures import Malformed

IMAGE_ID: Final = "ami-"
UNREADABLE: Final = (msgspec.MsgspecError, RecursionError)  # the latter of JSON that is nested a thousand times


class IdentityDocument(msgspec.Struct, frozen=True, rename="camel"):
    """Members of an identity document that are compared."""

    account_id: str
    region: str
    image_id: str
    instance_id: str
    pending_time: datetime


def attested(account: Account, image: str, proof: Proof | None) -> Attested:
    """Machine of an account and an image that a proof is about. Raises IdentityRefused."""
    if proof is None:
        remedy = "the batch secret alone does not register a machine of AWS; use a slipway-worker that sends one"
        raise IdentityRefused(Reason.MISSING, f"the machine sent no identity document; {remedy}")
    if (region := _parsed(proof.document.encode()).region) != account.region:
        text = f"the document is from region {region}, but account {account.id} is in {account.region}"
        raise IdentityRefused(Reason.FOREIGN_REGION, text)
    document = _verified(account, proof)
    if document.region != account.region or document.account_id != account.identity:
        text = f"the instance is in account {document.account_id} and {document.region}"
        expected = f"{account.id} is {account.identity} in {account.region}"
        raise IdentityRefused(Reason.FOREIGN_ACCOUNT, f"{text}; {expected}")
    if image.startswith(IMAGE_ID) and document.image_id != image:
        text = f"the instance was launched from {document.image_id}, and its batch from {image}"
        raise IdentityRefused(Reason.FOREIGN_IMAGE, text)
    return Attested(document.instance_id, document.pending_time)


def _verified(account: Account, proof: Proof) -> IdentityDocument:
    """Document that a key of the account's region has signed. The embedded one is read if there is any."""
    settings = account_settings(account.settings)
    known = certificates.keys(account.region, settings.identity_certificates)
    keys = [key for key in known if key.key_size >= settings.identity_key_bits]
    if not keys:
        bits = f" with {settings.identity_key_bits} bits or more" if known else ""
        remedy = "add those that AWS publishes to identity_certificates in the account's settings"
        text = f"there are no certificates{bits} for region {account.region}; {remedy}"
        raise IdentityRefused(Reason.NO_CERTIFICATE, text)
    try:
        if proof.rsa2048 and any(key.key_size >= RSA2048_BITS for key in keys):
            return _embedded(account, proof, keys)
        if not proof.signature:
            text = "the machine sent its identity document without a signature that can be checked"
            raise IdentityRefused(Reason.MISSING, text)
        if not signatures.verified(proof.document.encode(), proof.signature, keys):
            raise _forged(account, "signature", keys)
    except Malformed as error:
        raise IdentityRefused(Reason.MALFORMED, str(error)) from error
    return _parsed(proof.document.encode())


def _embedded(account: Account, proof: Proof, keys: Sequence[RSAPublicKey]) -> IdentityDocument:
    embedded = signatures.content(proof.rsa2048, keys)
    if embedded is None:
        raise _forged(account, "rsa2048", keys)
    if _decoded(embedded) != _decoded(proof.document.encode()):
        text = "the document that rsa2048 contains differs from the one that was sent beside it"
        raise IdentityRefused(Reason.CONTRADICTORY, text)
    return _parsed(embedded)


def _forged(account: Account, name: str, keys: Sequence[RSAPublicKey]) -> IdentityRefused:
    remedy = "if AWS has published a new key, add its certificate to identity_certificates in the account's settings"
    text = f"its {name} matches none of the {len(keys)} known keys of region {account.region}; {remedy}"
    return IdentityRefused(Reason.FORGED, text)


def _parsed(text: bytes) -> IdentityDocument:
    try:
        document = msgspec.json.decode(text, type=IdentityDocument)
    except UNREADABLE as error:
        raise IdentityRefused(Reason.MALFORMED, f"the identity document cannot be read: {error}") from error
    if document.pending_time.tzinfo is None:
        raise IdentityRefused(Reason.MALFORMED, "the identity document cannot be read: pendingTime has no time zone")
    return document


def _decoded(text: bytes) -> Any:
    try:
        return msgspec.json.decode(text)
    except UNREADABLE as error:
        raise IdentityRefused(Reason.MALFORMED, f"the identity document cannot be read: {error}") from error
