"""Volumes and network interfaces that EC2 instances have left behind: found by their tags, and deleted."""

from collections.abc import Iterable
from typing import Any, Final

from slipway_api.percent import encoded
from slipway_common.base.clock import monotonic_seconds
from slipway_common.observability.telemetry import logger
from slipway_provisioner.domain.cloud import Account
from slipway_provisioner.providers.aws import calls
from slipway_provisioner.providers.aws.caller import Caller, filters
from slipway_provisioner.providers.aws.failures import CallFailed
from slipway_provisioner.providers.port import OutcomeUnknown

LOG = logger(__name__)
UNUSED_SECONDS: Final = 600.0
"""Time for which a resource must have been unused before it is deleted, since a launch attaches new ones."""
KINDS: Final = (
    (calls.VOLUMES, "Volume", calls.DELETE_VOLUME),
    (calls.INTERFACES, "NetworkInterface", calls.DELETE_INTERFACE),
)


class Remains:
    """Resources that are not attached to an instance, by the time at which this process first saw them so."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._unused_since: dict[str, float] = {}

    async def clean_up(self, account: Account) -> None:
        """Delete what was left behind long enough ago. Raises OutcomeUnknown if it cannot be listed."""
        for find, name, delete in KINDS:
            found: list[str] = []
            async for reply in self._caller.pages(account, find, filters(account, status=("available",))):
                found += [str(row[f"{name}Id"]) for row in reply.get(f"{name}s", ()) if row.get(f"{name}Id")]
            for left in self._left(account, name, found):
                named: dict[str, Any] = {f"{name}Id": left}
                try:
                    await self._caller.call(account, delete, **named)
                except (CallFailed, OutcomeUnknown) as error:
                    LOG.info("deleting what an instance left behind failed", resource=left, error=str(error))
                else:
                    LOG.info("deleted what an instance left behind", resource=left, account=account.id)

    def _left(self, account: Account, kind: str, found: Iterable[str]) -> list[str]:
        """Resources that were unused in every listing for long enough."""
        now, prefix = monotonic_seconds(), encoded(account.id, kind) + "/"
        before = {key: at for key, at in self._unused_since.items() if key.startswith(prefix)}
        seen = {prefix + id_: before.get(prefix + id_, now) for id_ in found}
        self._unused_since = {key: at for key, at in self._unused_since.items() if key not in before} | seen
        return [key.removeprefix(prefix) for key, at in seen.items() if now - at >= UNUSED_SECONDS]
