"""Look-ups of EC2 instances by id: EC2 describes none of a call in which one id is unknown."""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from slipway_common.base.clock import utc_now
from slipway_common.observability.telemetry import logger
from slipway_provisioner.domain.cloud import Account, InstanceState
from slipway_provisioner.providers.aws import calls, replies
from slipway_provisioner.providers.aws.caller import PAGE, Caller, unknown
from slipway_provisioner.providers.aws.failures import CallFailed
from slipway_provisioner.providers.aws.settings import account_settings
from slipway_provisioner.providers.port import CONSOLE_BYTES_MAX, LookUps, OutcomeUnknown

LOG = logger(__name__)
UNKNOWN_ID: Final = frozenset({"InvalidInstanceID.NotFound", "InvalidInstanceID.Malformed"})
"""Codes of an id that EC2 does not know, which may be that of an instance that is not visible yet."""
_INSTANCE_ID: Final = re.compile(r"\bi-[0-9a-zA-Z]+\b")


class Ec2LookUps(LookUps):
    """Look-ups of EC2 instances by id."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller

    async def exists(self, account: Account, instance_id: str, *, launched_at: datetime | None) -> bool:
        found = (await described(self.caller, account, [instance_id])).get(instance_id)
        if is_gone(found, launched_at, visible_seconds=account_settings(account.settings).visibility_seconds):
            return False
        if found is None:
            raise OutcomeUnknown(f"instance {instance_id} is unknown, but so young that it may not be visible yet")
        return True

    async def gone(self, account: Account, instances: Mapping[str, datetime | None]) -> list[str]:
        """A call asks for many, since the call itself costs as much as the description of several instances."""
        visible_seconds = account_settings(account.settings).visibility_seconds
        ids, ended = list(instances), []
        for start in range(0, len(ids), PAGE):
            asked = ids[start : start + PAGE]
            try:
                found = await described(self.caller, account, asked)
            except OutcomeUnknown as error:
                LOG.warning("looking up instances that are not listed failed", account=account.id, error=str(error))
                continue
            ended += [i for i in asked if is_gone(found.get(i), instances[i], visible_seconds=visible_seconds)]
        return ended

    async def console_output(self, account: Account, batch_id: str, instance_id: str) -> str:
        try:
            reply = await self.caller.call(account, calls.CONSOLE, InstanceId=instance_id)
        except CallFailed as failed:
            if failed.code in UNKNOWN_ID:  # not visible yet, or forgotten
                return ""
            raise unknown(account, f"console output of {instance_id}", failed) from None
        return str(reply.get("Output") or "")[-CONSOLE_BYTES_MAX:]


def is_gone(found: Mapping[str, Any] | None, launched_at: datetime | None, *, visible_seconds: float) -> bool:
    """True if an instance has certainly ended. One that EC2 does not know may be too young to be visible."""
    if found is not None:
        return replies.state(found) is InstanceState.TERMINATED
    return launched_at is None or utc_now() - launched_at >= timedelta(seconds=visible_seconds)


async def described(caller: Caller, account: Account, instance_ids: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    """Instances by id as EC2 describes them, without those that it does not know. Raises OutcomeUnknown."""
    try:
        reply = await caller.call(account, calls.LIST, InstanceIds=list(instance_ids))
    except CallFailed as failed:
        if failed.code not in UNKNOWN_ID:
            raise unknown(account, f"instances {', '.join(instance_ids)}", failed) from None
        if len(instance_ids) == 1:
            return {}
        if bad := named(instance_ids, failed):
            # The words of a message are no proof: each instance that it names is asked for alone.
            parts = [[id_ for id_ in instance_ids if id_ not in bad], *([id_] for id_ in bad)]
        else:
            half = len(instance_ids) // 2
            parts = [[*instance_ids[:half]], [*instance_ids[half:]]]
        return {id_: row for part in parts if part for id_, row in (await described(caller, account, part)).items()}
    return {str(row["InstanceId"]): row for row in replies.instances(reply) if row.get("InstanceId") in instance_ids}


def named(instance_ids: Sequence[str], failed: CallFailed) -> list[str]:
    """Instances of a failed call that its message names. Pure."""
    found = set(_INSTANCE_ID.findall(failed.message))
    return [id_ for id_ in instance_ids if id_ in found]
