"""Ends of EC2 instances: EC2 ends none of a call in which one id is bad."""

import re
from collections.abc import Sequence
from typing import Final

from slipway_provisioner.domain.cloud import Account
from slipway_provisioner.providers.aws import calls, errors
from slipway_provisioner.providers.aws.caller import Caller
from slipway_provisioner.providers.aws.failures import CallFailed
from slipway_provisioner.providers.port import OutcomeUnknown

GONE: Final = frozenset({"InvalidInstanceID.NotFound", "InvalidInstanceID.Malformed"})
"""Codes of an id that EC2 does not know, which may be that of an instance that is not visible yet."""
_INSTANCE_ID: Final = re.compile(r"\bi-[0-9a-zA-Z]+\b")


async def terminate(caller: Caller, account: Account, instance_ids: Sequence[str]) -> list[Exception]:
    """Terminate instances; returns the failures. One bad id fails the whole call, so that the others are tried
    without it."""
    try:
        await caller.call(account, calls.TERMINATE, units=len(instance_ids), InstanceIds=list(instance_ids))
    except OutcomeUnknown as error:
        return [error]
    except CallFailed as failed:
        if failed.code not in GONE and failed.code not in errors.OF_INSTANCES:
            return [failed]
        if len(instance_ids) == 1:
            return [] if failed.code in GONE else [failed]
        bad = set(_INSTANCE_ID.findall(failed.message)) if failed.code in GONE else set()
        rest = [id_ for id_ in instance_ids if id_ not in bad]
        if 0 < len(rest) < len(instance_ids):
            return await terminate(caller, account, rest)
        half = len(instance_ids) // 2
        return [
            failure
            for part in (instance_ids[:half], instance_ids[half:])
            for failure in await terminate(caller, account, part)
        ]
    return []
