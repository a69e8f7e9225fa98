"""Permissions of callers: actions that a fault denies, and their encoded messages. Pure.

EC2 encodes the reason of a refusal, and STS decodes it for callers that may. Here it is base64 of compressed JSON.
"""

import base64
import binascii
import json
import zlib
from collections.abc import Iterator
from typing import Final

from slipway_local.ec2.faults import Effects
from slipway_local.ec2.wire import Refused, Request

PREFIXES: Final = {
    "PassRole": "iam",
    "AssumeRole": "sts",
    "DecodeAuthorizationMessage": "sts",
    "GetServiceQuota": "servicequotas",
}
"""Prefixes of actions in policies; all others are those of EC2."""
UNENCODED: Final = ("sts", "servicequotas")
"""Services whose refusals name the action."""


def check(request: Request, account: str, effects: Effects) -> None:
    """Refuse a call of which an action is denied. Raises Refused."""
    for action, resource in needed(request, account):
        if action in effects.denied:
            full = f"{PREFIXES.get(action, 'ec2')}:{action}"
            raise _refusal(full, resource, _arn(account))


def needed(request: Request, account: str) -> Iterator[tuple[str, str]]:
    """Actions that a call needs, with the resource of each."""
    yield request.action, f"arn:aws:ec2:{request.region}:{account}:instance/*"
    if request.action == "RunInstances":
        if any(name.startswith("TagSpecification.") for name in request.parameters):
            yield "CreateTags", f"arn:aws:ec2:{request.region}:{account}:instance/*"
        for name in ("IamInstanceProfile.Name", "IamInstanceProfile.Arn"):
            if profile := request.parameters.get(name):
                yield "PassRole", f"arn:aws:iam::{account}:role/{profile.rpartition('/')[2]}"


def decoded(message: str) -> str:
    """JSON of an encoded message. Raises Refused."""
    try:
        return zlib.decompress(base64.urlsafe_b64decode(message)).decode()
    except (ValueError, binascii.Error, zlib.error) as error:
        raise Refused("InvalidAuthorizationMessageException", "Message is not valid") from error


def _refusal(action: str, resource: str, caller: str) -> Refused:
    if action.partition(":")[0] in UNENCODED:
        return Refused("AccessDenied", f"User: {caller} is not authorized to perform: {action}", 403)
    about = {
        "allowed": False,
        "explicitDeny": False,
        "matchedStatements": {"items": []},
        "failures": {"items": []},
        "context": {
            "principal": {"arn": caller},
            "action": action,
            "resource": resource,
            "conditions": {"items": []},
        },
    }
    text = base64.urlsafe_b64encode(zlib.compress(json.dumps(about).encode())).decode()
    return Refused(
        "UnauthorizedOperation",
        f"You are not authorized to perform this operation. Encoded authorization failure message: {text}",
    )


def _arn(account: str) -> str:
    return f"arn:aws:sts::{account}:assumed-role/slipway/slipway"
