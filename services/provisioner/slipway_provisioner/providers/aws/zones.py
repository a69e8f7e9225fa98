"""Ids of zones, which are the same in all accounts; a name may mean another zone in another account."""

from slipway_provisioner.domain.cloud import Account
from slipway_provisioner.providers.aws import body, calls
from slipway_provisioner.providers.aws.caller import Caller


class Zones:
    """Ids of the zones of each account, by the names that the account has for them."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._ids: dict[str, dict[str, str]] = {}

    async def learn(self, account: Account, *, again: bool = False) -> None:
        """Ask for the zones of an account, once unless `again`. Raises CallFailed and OutcomeUnknown."""
        if again or account.id not in self._ids:
            reply = await self._caller.call(account, calls.ZONES)
            zones = reply.get("AvailabilityZones", ())
            self._ids[account.id] = {
                row["ZoneName"]: row["ZoneId"] for row in zones if row.get("ZoneName") and row.get("ZoneId")
            }

    def id_of(self, account: Account, zone: str) -> str:
        """Id of a zone that is given by its id or its name; empty if the name is not known yet."""
        return zone if body.ZONE_ID.fullmatch(zone) else self._ids.get(account.id, {}).get(zone, "")
