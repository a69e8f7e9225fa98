"""Status checks of EC2 instances: that of the system below an instance, and that of the instance itself."""

from collections.abc import Sequence
from typing import Final

from slipway_common.observability.telemetry import logger
from slipway_provisioner.domain.cloud import Account
from slipway_provisioner.providers.aws import calls
from slipway_provisioner.providers.aws.caller import Caller, unknown
from slipway_provisioner.providers.aws.failures import CallFailed
from slipway_provisioner.providers.aws.lookups import UNKNOWN_ID, named
from slipway_provisioner.providers.port import OutcomeUnknown

LOG = logger(__name__)
IDS_MAX: Final = 100
"""Instances of one call, as documented."""
PASSED: Final = "ok"
CHECKS: Final = ("SystemStatus", "InstanceStatus")


async def passed(caller: Caller, account: Account, instance_ids: Sequence[str]) -> list[str]:
    """Those of these instances that run and have passed both checks, which takes minutes after a start. Those of a call
    that fails are left out."""
    found: list[str] = []
    for start in range(0, len(instance_ids), IDS_MAX):
        try:
            found += await _passed(caller, account, instance_ids[start : start + IDS_MAX])
        except OutcomeUnknown as error:
            LOG.warning("status checks of instances are unknown", account=account.id, error=str(error))
    return found


async def _passed(caller: Caller, account: Account, asked: Sequence[str]) -> list[str]:
    try:
        reply = await caller.call(account, calls.STATUS, InstanceIds=list(asked))
    except CallFailed as failed:
        if failed.code in UNKNOWN_ID and (bad := named(asked, failed)) and (rest := [i for i in asked if i not in bad]):
            return await _passed(caller, account, rest)
        raise unknown(account, f"status checks of {len(asked)} instances", failed) from None
    rows = reply.get("InstanceStatuses", ())
    ok = {row.get("InstanceId") for row in rows if all(row.get(check, {}).get("Status") == PASSED for check in CHECKS)}
    return [instance_id for instance_id in asked if instance_id in ok]
