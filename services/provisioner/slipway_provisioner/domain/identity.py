"""Identity that a machine proves when it registers, and the reasons to refuse it. Pure.

The secret of a launch batch is readable to every process of its machines. A document that the provider has signed says
which machine it is; who has only the secret registers nothing.
"""

from datetime import datetime
from enum import StrEnum
from typing import Final

import msgspec

EARLY_SECONDS_MAX: Final = 120.0
"""Time by which a document may be ahead of the database clock, as that of other times from outside."""


class Reason(StrEnum):
    """Reason to refuse a machine, by which refusals are counted."""

    MISSING = "missing"
    MALFORMED = "malformed"
    NO_CERTIFICATE = "no-certificate"
    FORGED = "forged"
    CONTRADICTORY = "contradictory"
    FOREIGN_REGION = "foreign-region"
    FOREIGN_ACCOUNT = "foreign-account"
    FOREIGN_IMAGE = "foreign-image"
    FOREIGN_BATCH = "foreign-batch"
    OTHER_INSTANCE = "other-instance"
    OLD = "old"
    EARLY = "early"
    USED = "used"


class IdentityRefused(Exception):
    """The machine has not proven that it is the one that it claims to be. The text says why and what to do."""

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class Proof(msgspec.Struct, frozen=True):
    """Identity document of a machine as its provider shows it there, with its signatures in base64. `signature` is that
    of the exact text; `rsa2048` is PKCS7 data with the document embedded. Each may be empty."""

    document: str
    signature: str = ""
    rsa2048: str = ""


class Attested(msgspec.Struct, frozen=True):
    """Machine that a provider has attested: an instance of the account and image of its launch, started at
    `pending_at`."""

    instance_id: str
    pending_at: datetime


class Age(msgspec.Struct, frozen=True):
    """Age of a document by the database: `uptime_seconds` without the downtime in which nothing could register, and
    `ahead_seconds` by which it is in the future."""

    uptime_seconds: float
    ahead_seconds: float


def check_instance(attested: Attested, instance_id: str) -> None:
    """Raise IdentityRefused unless the document is that of the machine that registers."""
    if attested.instance_id != instance_id:
        text = f"the document is that of {attested.instance_id}, not of {instance_id}; a machine registers for itself"
        raise IdentityRefused(Reason.OTHER_INSTANCE, text)


def check_age(age: Age, *, age_seconds_max: float) -> None:
    """Raise IdentityRefused for a document that is too old to enrol a machine, or of the future."""
    if age.ahead_seconds > EARLY_SECONDS_MAX:
        remedy = "correct the clock of the database server"
        text = f"the instance was started {age.ahead_seconds:.0f} s after now by the database clock; {remedy}"
        raise IdentityRefused(Reason.EARLY, text)
    if age.uptime_seconds > age_seconds_max:
        limit = (
            f"its document enrols it for {age_seconds_max:g} s (its registration deadline and identity_grace_seconds)"
        )
        text = f"the instance was started {age.uptime_seconds:.0f} s ago; {limit}"
        raise IdentityRefused(Reason.OLD, text)
