"""Error table of EC2: the scope of each code, the advice for people, and whether a launch may have happened. Pure.

A code is looked up exactly; where its meaning depends on the message, the first case whose words the message contains
decides. A code that is not in the table is a definite failure of unknown meaning, unless the reply was HTTP 5xx: then
the outcome is unknown.
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec

from slipway_api.events.worker import Scope, Stage


class Launched(StrEnum):
    """Possible effect of a launch call that ended with an error."""

    NO = "no"
    MAYBE = "maybe"
    YES = "yes"


class Advice(StrEnum):
    """Remedy of an error, for people. Slipway itself does it, except where a person is named."""

    PROBE = "probe, for minutes"
    NOWHERE = "no retry: this type is not offered in this zone"
    CORRECT = "no retry: correct the launch config"
    PROPAGATE = "retry once: the resource may be new; then correct the launch config"
    PROFILE = "retry for up to 2 minutes after a change in IAM; then correct the launch config"
    SMALLER = "no retry: request fewer instances or tags per call"
    QUOTA = "wait for terminations, or request a quota increase from AWS"
    CLEAN_UP = "delete unused resources, or request a quota increase from AWS"
    SUBNET = "wait for free addresses, or use a larger subnet"
    IMAGE = "no retry: correct or share the image"
    SUBSCRIBE = "no retry: a person accepts the terms of the image in AWS Marketplace"
    CREDENTIAL = "probe; a person corrects the credential or its policy"
    REFRESH = "refresh the credential; check the clock of this host"
    SERVICE_ROLE = "no retry: a person creates the service-linked role AWSServiceRoleForEC2Spot"
    ACCOUNT = "probe, for hours; a person contacts AWS Support"
    BACK_OFF = "back off: the lease-broker lowers the pace of the account"
    SAME_TOKEN = "repeat with the same token"  # noqa: S105 # no secret
    LOOK_UP = "look up by tag; then a new call with another token"
    DEFECT = "no retry: a defect of Slipway; report it"
    WAIT = "ask again later: a new instance is not listed everywhere yet"
    RESTART = "list again from the first page"
    INSTANCE = "no retry: a person removes the protection of the instance"
    NOTHING = "nothing: the check succeeded"
    SHUT_DOWN = "read its console output; its image or user data shut it down before it registered"
    ENDED = "nothing: the instance was terminated on purpose"
    UNKNOWN = "probe; add the code to `errors` in the settings of the account"


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """Meaning of a code. Without a scope it is unclassified. `resource` is the part of the account that the error
    concerns, if it is neither the family of the instance type (quota) nor all of it (credential). `stage` is the stage
    that fails. `words` must occur in the message."""

    scope: Scope | None
    advice: Advice
    launched: Launched = Launched.NO
    resource: str = ""
    stage: Stage = Stage.LAUNCH
    words: str = ""

    @property
    def is_unknown(self) -> bool:
        """True if the outcome of the call is unknown until it is repeated with its token or looked up."""
        return self.advice in (Advice.SAME_TOKEN, Advice.LOOK_UP)

    def applies(self, message: str) -> bool:
        return self.words.lower() in message.lower()


SUBNET: Final = "subnet"
"""Resource of the quota of one subnet."""
SPOT: Final = "spot"
"""Resource of a credential that may launch on demand, but no spot instances."""

CAPACITY: Final = Case(scope=Scope.CAPACITY, advice=Advice.PROBE)
CONFIG: Final = Case(scope=Scope.CONFIG, advice=Advice.CORRECT)
NETWORK: Final = Case(scope=Scope.CONFIG, advice=Advice.PROPAGATE)
SMALLER: Final = Case(scope=Scope.CONFIG, advice=Advice.SMALLER)
FAMILY: Final = Case(scope=Scope.QUOTA, advice=Advice.QUOTA)
SUBNET_FULL: Final = Case(scope=Scope.QUOTA, advice=Advice.SUBNET, resource=SUBNET)
IMAGE: Final = Case(scope=Scope.IMAGE, advice=Advice.IMAGE)
CREDENTIAL: Final = Case(scope=Scope.CREDENTIAL, advice=Advice.CREDENTIAL)
EXPIRED: Final = Case(scope=Scope.CREDENTIAL, advice=Advice.REFRESH)
ACCOUNT: Final = Case(scope=Scope.CREDENTIAL, advice=Advice.ACCOUNT)
THROTTLE: Final = Case(scope=Scope.LIMITER, advice=Advice.BACK_OFF)
UNKNOWN: Final = Case(scope=Scope.NOTHING, advice=Advice.SAME_TOKEN, launched=Launched.MAYBE)
NOT_SENT: Final = Case(scope=Scope.NOTHING, advice=Advice.SAME_TOKEN)
DEFECT: Final = Case(scope=Scope.CONFIG, advice=Advice.DEFECT)
UNCLASSIFIED: Final = Case(scope=None, advice=Advice.UNKNOWN)
INSTANCE: Final = Case(scope=Scope.NOTHING, advice=Advice.INSTANCE)
LISTING: Final = Case(scope=Scope.NOTHING, advice=Advice.RESTART)


def _quota(resource: str) -> Case:
    return Case(scope=Scope.QUOTA, advice=Advice.CLEAN_UP, resource=resource)


def _said(case: Case, words: str) -> Case:
    return msgspec.structs.replace(case, words=words)


def _rows(case: Case, codes: str) -> dict[str, tuple[Case, ...]]:
    return dict.fromkeys(codes.split(), (case,))


def _ended(case: Case, stage: Stage = Stage.LAUNCH) -> Case:
    return msgspec.structs.replace(case, launched=Launched.YES, stage=stage)


# Advice for the scopes that the settings of an account may give to a code.
ADVICE: Final = {
    Scope.CONFIG: Advice.CORRECT,
    Scope.CAPACITY: Advice.PROBE,
    Scope.QUOTA: Advice.QUOTA,
    Scope.IMAGE: Advice.IMAGE,
    Scope.CREDENTIAL: Advice.CREDENTIAL,
    Scope.LIMITER: Advice.BACK_OFF,
}

TABLE: Final[Mapping[str, tuple[Case, ...]]] = {
    **_rows(
        CAPACITY,
        "UnfulfillableCapacity InsufficientHostCapacity InsufficientCapacityOnHost "
        "InsufficientReservedInstanceCapacity InsufficientVolumeCapacity ReservationCapacityExceeded "
        "SpotMaxPriceTooLow",
    ),
    "InsufficientInstanceCapacity": (_said(CONFIG, "spread placement group"), CAPACITY),
    "Unsupported": (
        Case(scope=Scope.CAPACITY, advice=Advice.NOWHERE, words="not supported in your requested Availability Zone"),
        CONFIG,
    ),
    **_rows(
        FAMILY,
        "VcpuLimitExceeded InstanceLimitExceeded MaxSpotFleetRequestCountExceeded MaxFleetCountExceeded "
        "TargetCapacityLimitExceededException MaxSpotInstanceCountExceeded",
    ),
    **_rows(_quota("volumes"), "VolumeLimitExceeded"),
    **_rows(_quota("volume-iops"), "MaxIOPSLimitExceeded"),
    **_rows(_quota("network-interfaces"), "NetworkInterfaceLimitExceeded"),
    **_rows(_quota("addresses"), "AddressLimitExceeded"),
    **_rows(_quota("resources"), "ResourceLimitExceeded"),
    **_rows(_quota("launch-templates"), "MaxTemplateLimitExceeded MaxTemplateVersionLimitExceeded"),
    **_rows(SUBNET_FULL, "InsufficientFreeAddressesInSubnet"),
    **_rows(
        IMAGE,
        "InvalidAMIID.Malformed InvalidAMIID.NotFound InvalidAMIID.Unavailable InvalidManifest "
        "InvalidSnapshot.NotFound",
    ),
    **_rows(
        CONFIG,
        "UnsupportedOperation InvalidParameter InvalidParameterDependency MissingParameter UnknownParameter "
        "ValidationError InvalidRequest InvalidInstanceType InvalidUserData.Malformed InvalidBlockDeviceMapping "
        "UnknownVolumeType EncryptedVolumesNotSupported VolumeTypeNotAvailableInZone InvalidTagKey.Malformed "
        "TagPolicyViolation ParamValidationError",
    ),
    "InvalidParameterValue": (
        _said(SUBNET_FULL, "sufficient free Ipv4"),
        Case(scope=Scope.CONFIG, advice=Advice.PROFILE, words="Invalid IAM Instance Profile"),
        Case(scope=Scope.CONFIG, advice=Advice.PROFILE, words="no associated IAM Roles"),
        CONFIG,
    ),
    "InvalidParameterCombination": (_said(ACCOUNT, "not eligible for Free Tier"), CONFIG),
    **_rows(
        NETWORK,
        "InvalidSubnetID.NotFound InvalidSubnetId.NotFound InvalidSubnet InvalidGroup.NotFound "
        "InvalidSecurityGroupID.NotFound SecurityGroupsPerInterfaceLimitExceeded InvalidKeyPair.NotFound "
        "InvalidAvailabilityZone InvalidZone.NotFound InvalidPlacementGroup.Unknown VPCIdNotSpecified "
        "DefaultVpcDoesNotExist InvalidLaunchTemplateId.NotFound InvalidLaunchTemplateId.VersionNotFound "
        "InvalidLaunchTemplateName.NotFoundException InvalidCapacityReservationId.NotFound",
    ),
    **_rows(SMALLER, "TagLimitExceeded ResourceCountExceeded RequestResourceCountExceeded"),
    **_rows(
        CREDENTIAL,
        "UnauthorizedOperation AccessDenied AccessDeniedException InvalidClientTokenId UnrecognizedClientException "
        "MissingAuthenticationToken SignatureDoesNotMatch IncompleteSignature NoCredentialsError "
        "PartialCredentialsError CredentialRetrievalError TokenRetrievalError",
    ),
    "AuthFailure": (_said(IMAGE, "Not authorized for images"), CREDENTIAL),
    **_rows(EXPIRED, "ExpiredToken ExpiredTokenException RequestExpired InvalidSecurity.RequestHasExpired"),
    "AuthFailure.ServiceLinkedRoleCreationNotPermitted": (
        Case(scope=Scope.CREDENTIAL, advice=Advice.SERVICE_ROLE, resource=SPOT),
    ),
    **_rows(ACCOUNT, "Blocked PendingVerification AccountDisabled RegionDisabledException"),
    "OptInRequired": (
        Case(scope=Scope.IMAGE, advice=Advice.SUBSCRIBE, words="accept terms and subscribe"),
        ACCOUNT,
    ),
    **_rows(
        THROTTLE,
        "RequestLimitExceeded Throttling ThrottlingException ThrottledException RequestThrottled "
        "RequestThrottledException TooManyRequestsException EC2ThrottledException SlowDown BandwidthLimitExceeded",
    ),
    **_rows(
        UNKNOWN,
        "InternalError InternalFailure ServerInternal Unavailable ServiceUnavailable RequestTimeout "
        "500 501 502 503 504 ReadTimeoutError ConnectionClosedError ResponseParserError IncompleteReadError "
        "HTTPClientError",
    ),
    **_rows(NOT_SENT, "EndpointConnectionError ConnectTimeoutError ProxyConnectionError SSLError"),
    "IdempotentInstanceTerminated": (Case(scope=Scope.NOTHING, advice=Advice.LOOK_UP, launched=Launched.YES),),
    "IdempotentParameterMismatch": (Case(scope=Scope.NOTHING, advice=Advice.LOOK_UP, launched=Launched.MAYBE),),
    **_rows(
        DEFECT,
        "InvalidClientToken InvalidAction InvalidFilter FilterLimitExceeded InvalidInstanceID.Malformed",
    ),
    "InvalidInstanceID.NotFound": (Case(scope=Scope.NOTHING, advice=Advice.WAIT),),
    **_rows(LISTING, "InvalidNextToken InvalidPaginationToken"),
    **_rows(INSTANCE, "OperationNotPermitted IncorrectInstanceState"),
    "DryRunOperation": (Case(scope=Scope.NOTHING, advice=Advice.NOTHING),),
}

# StateReason.Code of an instance that ended while it booted, whose launch had succeeded. Insufficient capacity or quota
# is a failure of the launch nevertheless, since AWS could have refused it; the others are failures of the boot.
STATE_REASONS: Final[Mapping[str, Case]] = {
    "Server.InsufficientInstanceCapacity": _ended(CAPACITY),
    "Client.VolumeLimitExceeded": _ended(_quota("volumes")),
    "Server.InternalError": _ended(UNCLASSIFIED, Stage.BOOT),
    **dict.fromkeys(
        ("Client.InternalError", "Client.InvalidSnapshot.NotFound", "Client.InvalidKMSKey.InvalidState"),
        _ended(IMAGE, Stage.BOOT),
    ),
    # An instance shuts itself down when its worker has exited; this one did so before its worker had registered.
    "Client.InstanceInitiatedShutdown": _ended(Case(scope=Scope.CONFIG, advice=Advice.SHUT_DOWN), Stage.BOOT),
    **dict.fromkeys(
        (
            "Server.SpotInstanceTermination",
            "Server.SpotInstanceShutdown",
            "Server.ScheduledStop",
            "Client.UserInitiatedShutdown",
            "Client.InstanceTerminated",
        ),
        Case(scope=Scope.NOTHING, advice=Advice.ENDED, launched=Launched.YES, stage=Stage.BOOT),
    ),
}
OF_INSTANCES: Final = frozenset(code for code, cases in TABLE.items() if INSTANCE in cases)
"""Codes of a single instance among those of a call."""
_NAMED: Final = re.compile(r"\b(?:Client|Server)\.[A-Za-z][\w.]*\w")


def classify(code: str, message: str = "", *, http_status: int = 0, extra: Mapping[str, str] | None = None) -> Case:
    """Meaning of an error code. `extra` are codes and scopes from the settings of the account."""
    if extra and code in extra:
        return Case(scope=Scope(extra[code]), advice=ADVICE[Scope(extra[code])])
    for case in TABLE.get(code, ()):
        if case.applies(message):
            return case
    return UNKNOWN if http_status >= 500 else UNCLASSIFIED


def classify_credential(code: str, message: str = "", *, http_status: int = 0) -> Case:
    """Meaning of a failure to obtain credentials, after which nothing was sent to EC2."""
    case = classify(code, message, http_status=http_status)
    if case.is_unknown or case.scope is Scope.LIMITER:
        return NOT_SENT
    return case if case.scope is Scope.CREDENTIAL else CREDENTIAL


def is_state_reason(code: str) -> bool:
    """True for the code of a StateReason, which begins with the side that terminated the instance."""
    return code.startswith(("Client.", "Server."))


def classify_end(code: str, message: str = "") -> Case:
    """Meaning of the StateReason of an instance that ended while it booted."""
    if code == "Server.InternalError":
        named = next((name for name in _NAMED.findall(message) if name in STATE_REASONS and name != code), code)
        return STATE_REASONS[named]
    return STATE_REASONS.get(code, _ended(UNCLASSIFIED, Stage.BOOT))


def problem(extra: Mapping[str, str]) -> str:
    """Problem with the codes that an account adds; empty if they are usable."""
    for code, scope in extra.items():
        if scope not in ADVICE:
            return f"errors contains {code}: {scope!r}; write one of {', '.join(ADVICE)}"
        if any(case.is_unknown for case in TABLE.get(code, ())):
            return f"errors contains {code}, after which a launch may have happened; remove it"
    return ""
