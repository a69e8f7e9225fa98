"""Terminations of EC2 instances: EC2 terminates none of a call in which one id is bad."""

from collections.abc import Sequence
from typing import Final

from slipway_provisioner.domain.cloud import Account, Protected
from slipway_provisioner.providers.aws import calls, errors
from slipway_provisioner.providers.aws.caller import Caller
from slipway_provisioner.providers.aws.failures import CallFailed
from slipway_provisioner.providers.aws.lookups import UNKNOWN_ID, named
from slipway_provisioner.providers.port import OutcomeUnknown, TerminationRefused

PROTECTED: Final = "OperationNotPermitted"
"""Code of an instance with termination protection."""


def _refused(account: Account, failed: CallFailed, instance_ids: Sequence[str]) -> Exception:
    """Refusal to terminate instances, which lasts until a person changes them."""
    found = {}
    for id_ in instance_ids:
        if failed.code == PROTECTED:
            change = f"modify-instance-attribute --instance-id {id_} --no-disable-api-termination"
        else:
            change = f"describe-instances --instance-ids {id_}"
        found[id_] = Protected(reason=str(failed), remedy=f"aws ec2 {change} --region {account.region}")
    return TerminationRefused(found)


async def terminate(caller: Caller, account: Account, instance_ids: Sequence[str]) -> list[Exception]:
    """Terminate instances; returns the failures. One bad id fails the whole call, so that the others are tried
    without it."""
    try:
        await caller.call(account, calls.TERMINATE, units=len(instance_ids), InstanceIds=list(instance_ids))
    except OutcomeUnknown as error:
        return [error]
    except CallFailed as failed:
        if failed.code not in UNKNOWN_ID and failed.code not in errors.OF_INSTANCES:
            return [failed]
        bad = named(instance_ids, failed) or [*instance_ids][: len(instance_ids) == 1]
        refused = [] if failed.code in UNKNOWN_ID or not bad else [_refused(account, failed, bad)]
        rest = [id_ for id_ in instance_ids if id_ not in bad]
        if bad:
            return refused + (await terminate(caller, account, rest) if rest else [])
        half = len(instance_ids) // 2
        return [
            failure
            for part in (instance_ids[:half], instance_ids[half:])
            for failure in await terminate(caller, account, part)
        ]
    return []
