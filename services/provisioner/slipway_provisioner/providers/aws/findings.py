"""Findings on an account, from the answers of EC2, STS and Service Quotas. Pure."""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from slipway_common.base.text import listed
from slipway_provisioner.domain.account_check import CheckState, Finding
from slipway_provisioner.domain.cloud import Account
from slipway_provisioner.providers.aws.quotas import CODES

# EC2 refuses a signature whose time is more than 5 minutes from its own.
CLOCK_PROBLEM: Final = timedelta(minutes=4)
CLOCK_WARNING: Final = timedelta(seconds=30)
# From 15 minutes before the end of a session on, the SDK renews it at each call; the shortest session lasts as long.
RENEWED_BY: Final = timedelta(minutes=14)
ENDS_SOON: Final = timedelta(hours=1)
FREE_ADDRESSES_MIN: Final = 10
QUOTA_USED_MAX: Final = 0.8
DENIED: Final = frozenset({"UnauthorizedOperation", "AccessDenied", "AccessDeniedException"})
"""Codes of a call that the policies of the caller do not allow."""
_ENCODED: Final = re.compile(r"Encoded authorization failure message: (\S+)")
_NAMED: Final = re.compile(r"not authorized to perform: ([\w:-]+)(?: on resource: (\S+))?")
_ACTION: Final = re.compile(r"[a-z0-9-]{1,30}:\w{1,60}")
_RESOURCE: Final = re.compile(r"[\w*:/+=,.@-]{1,300}")


class Expiry(msgspec.Struct, frozen=True):
    """End of the credentials in use. Those with a session token are `temporary`; without `at` their end is unknown.
    `renewed`: the SDK obtains others before the end."""

    temporary: bool
    renewed: bool = False
    at: datetime | None = None


class Denial(msgspec.Struct, frozen=True):
    """Action that the policies of the caller do not allow, on a resource if that is known; `explicit` if a statement
    denies it."""

    action: str
    resource: str = ""
    explicit: bool = False


class Quota(msgspec.Struct, frozen=True, kw_only=True):
    """Quota of a family in vCPUs, those in use, and vCPUs of the instance types that the launch configs need."""

    family: str
    limit: float
    used: int
    needed: Mapping[str, int]


def found(kind: str, subject: str, message: str) -> Finding:
    return Finding(kind=kind, subject=subject, state=CheckState.OK, message=message)


def warning(kind: str, subject: str, message: str, remedy: str) -> Finding:
    return Finding(kind=kind, subject=subject, state=CheckState.WARNING, message=message, remedy=remedy)


def problem(kind: str, subject: str, message: str, remedy: str) -> Finding:
    return Finding(kind=kind, subject=subject, state=CheckState.PROBLEM, message=message, remedy=remedy)


def unknown(kind: str, message: str, *, subject: str = "", remedy: str = "") -> Finding:
    return Finding(kind=kind, subject=subject, state=CheckState.UNKNOWN, message=message, remedy=remedy)


def clock(told: datetime | None, *, before: datetime, after: datetime) -> Finding:
    """Difference to the clock of AWS, which `told` its time, in whole seconds, `before` and `after` two times of
    ours."""
    if told is None:
        return unknown("clock", "AWS's replies have no Date header; check if a proxy removes it")
    ahead, behind = before - told - timedelta(seconds=1), told - after
    difference = max(ahead, behind, timedelta())
    if difference < CLOCK_WARNING:
        return found("clock", "", f"within {max(1, round(difference.total_seconds()))} s of AWS's clock")
    side = "ahead of" if ahead > behind else "behind"
    message = f"the provisioner's clock is {difference.total_seconds():.0f} s {side} AWS's"
    message += "; AWS refuses calls at a difference of 300 s"
    remedy = "synchronize the clock of the provisioner's host (NTP)"
    return (problem if difference >= CLOCK_PROBLEM else warning)("clock", "", message, remedy)


def credential(expiry: Expiry, *, now: datetime) -> Finding:
    """End of the credentials in use."""
    if not expiry.temporary:
        return found("credential", "", "an access key, which does not expire")
    if expiry.at is None:
        message = "temporary, of unknown expiry; Slipway cannot renew it"
        return warning("credential", "", message, "use a role (credential: role), which is renewed")
    left = expiry.at - now
    end = f"{expiry.at:%Y-%m-%d %H:%M:%S} UTC"
    lasts = f"expires at {end}, in {max(0, left.total_seconds()) / 60:.0f} minutes"
    if expiry.renewed:
        if left < RENEWED_BY:
            remedy = "check the trust policy and the maximum session duration of the role, and the source credential"
            return problem(
                "credential", "", f"the session {lasts}; renewing it fails, or extends it no further", remedy
            )
        return found("credential", "", f"the session expires at {end}, and is renewed before")
    remedy = "replace it before it expires, or use a role (credential: role), which is renewed"
    return (problem if left < ENDS_SOON else warning)(
        "credential", "", f"temporary: {lasts}, and is not renewed", remedy
    )


def refused(code: str, message: str, advice: str) -> Finding:
    """A credential that AWS refuses. `message` is redacted."""
    return problem("credential", "", f"refused with {code}: {message}", advice)


def encoded(message: str) -> str:
    """Encoded part of the message of a call that is not allowed; empty if there is none."""
    match = _ENCODED.search(message)
    return match[1] if match else ""


def denial(message: str, decoded: str, *, action: str) -> Denial:
    """Denial that a message tells, `decoded` if it was encoded. `action` is that of the call, of which a message may
    name a dependent one, such as iam:PassRole."""
    try:
        about = json.loads(decoded) if decoded else {}
        context = about.get("context", {})
        named, resource = str(context.get("action", "")), str(context.get("resource", ""))
        explicit = about.get("explicitDeny") is True
    except (ValueError, AttributeError):
        named, resource, explicit = "", "", False
    if not named and (match := _NAMED.search(message)):
        named, resource, explicit = match[1], match[2] or "", "explicit deny" in message
    if not _ACTION.fullmatch(named):
        return Denial(action)
    return Denial(named, resource if _RESOURCE.fullmatch(resource) else "", explicit)


def denied(denial: Denial, names: Sequence[str] = (), *, optional: bool = False) -> Finding:
    """Missing permission, and the launch configs that need it. Without an `optional` one only checks say less."""
    place = f" on {denial.resource}" if denial.resource else ""
    by = " by an explicit deny" if denial.explicit else ""
    needing = f"; needed by launch config {listed(list(names), 3)}" if names else ""
    why = "; only this check needs it" if optional else ""
    remedy = f"allow {denial.action} in the policy of the caller; docs/generated/aws-policy.json has all that is needed"
    if denial.explicit:
        remedy = (
            f"remove the statement (of a policy, a boundary or a service control policy) that denies {denial.action}"
        )
    return (warning if optional else problem)("permission", denial.action, f"denied{by}{place}{needing}{why}", remedy)


def subnet(subnet_id: str, row: Mapping[str, Any] | None, zones: Mapping[str, str], account: Account) -> Finding:
    """State of a subnet. `zones` are those of the launch configs that use it, by name."""
    if row is None:
        message = f"does not exist in {account.region}, or belongs to another AWS account and is not shared"
        return problem("subnet", subnet_id, message, f"correct subnet_id of launch config {listed([*zones], 3)}")
    lies = {str(row.get("AvailabilityZone", "")), str(row.get("AvailabilityZoneId", ""))}
    if elsewhere := [name for name, zone in zones.items() if zone not in lies]:
        message = (
            f"lies in zone {' or '.join(sorted(lies - {''}))}, not in that of launch config {listed(elsewhere, 3)}"
        )
        return problem("subnet", subnet_id, message, "correct subnet_id or zone of the launch config")
    if row.get("State", "available") != "available":
        return problem("subnet", subnet_id, f"is {row['State']}", "wait until it is available, or use another subnet")
    free = int(row.get("AvailableIpAddressCount", 0))
    if free >= FREE_ADDRESSES_MIN:
        return found("subnet", subnet_id, f"{free:,} free addresses")
    count = {0: "no free address", 1: "1 free address"}.get(free, f"{free} free addresses")
    remedy = "use a larger subnet, or add launch configs in another; delete unused network interfaces"
    return (warning if free else problem)("subnet", subnet_id, f"{count}: each machine takes one", remedy)


def image(image_id: str, row: Mapping[str, Any] | None, names: Sequence[str], account: Account) -> Finding:
    """State of an image that launch configs use."""
    if row is None:
        message = f"does not exist in {account.region}, or is not shared with AWS account {account.identity}"
        share = f'--launch-permission "Add=[{{UserId={account.identity}}}]"'
        remedy = f"its owner shares it: aws ec2 modify-image-attribute --image-id {image_id} {share}"
        return problem("image", image_id, message, f"{remedy}; or correct image of launch config {listed([*names], 3)}")
    if (state := row.get("State", "available")) != "available":
        return problem("image", image_id, f"is {state}", "wait until it is available, or use another image")
    return found("image", image_id, "available to the account")


def quota(about: Quota, account: Account) -> Finding:
    """Use of a quota. The machines of everybody in the AWS account and region count."""
    free = about.limit - about.used
    type_, smallest = min(about.needed.items(), key=lambda item: (item[1], item[0]))
    use = f"{about.used} of {about.limit:g} vCPUs in use"
    wanted = int(max(2 * about.limit, about.used + smallest))
    code = f"--service-code ec2 --quota-code {CODES[about.family]} --desired-value {wanted} --region {account.region}"
    remedy = f"terminate machines, or: aws service-quotas request-service-quota-increase {code}"
    if free < smallest:
        return problem("quota", about.family, f"{use}: there is no room for one {type_} ({smallest} vCPUs)", remedy)
    message = f"{use}; room for {int(free // smallest)} × {type_}"
    if about.used > QUOTA_USED_MAX * about.limit:
        return warning("quota", about.family, message, remedy)
    return found("quota", about.family, message)
