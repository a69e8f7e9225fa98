"""Mass unresponsiveness: workers of one account that stop heartbeating together probably cannot reach the provisioner,
and go on with their tasks. Then none of them is stopped until a person confirms. Pure."""

from typing import Final

import msgspec

from slipway_api.events.alert import Alert, AlertRaised, AlertResolved, alert_identity

SHARE_MAX: Final = 0.2
WORKERS_MAX: Final = 10
TIMEOUT_PART: Final = 0.5
"""Part of the time-out after which a worker counts. Workers that lose their connection together had their last contact
at different times: they are overdue one after another, but all count once the first is overdue."""


class Unresponsiveness(msgspec.Struct, frozen=True, kw_only=True):
    """Registered workers of an account, and how many of them are without contact. `kept`: unresponsive ones are kept
    until a person confirms."""

    account_id: str
    registered: int
    without_contact: int
    kept: bool

    @property
    def is_mass(self) -> bool:
        """True if so many workers are without contact that none may be stopped for it."""
        return self.without_contact > WORKERS_MAX and self.without_contact > SHARE_MAX * self.registered


def alert(unresponsiveness: Unresponsiveness) -> Alert:
    """Alert on the mass unresponsiveness of an account, or its resolution."""
    account_id, is_mass = unresponsiveness.account_id, unresponsiveness.is_mass
    count = f"{unresponsiveness.without_contact} of {unresponsiveness.registered} registered workers of {account_id}"
    return (AlertRaised if is_mass else AlertResolved)(
        **alert_identity("provisioner", "mass-unresponsiveness", "account", account_id),
        summary=f"{count} are without contact"
        if is_mass
        else f"the workers of {account_id} are in contact again, or were stopped",
        effect="they count as serving and are not replaced",
        doing="stops none of them before a person has confirmed that they are dead",
        command=f"slipway account confirm-unresponsive {account_id} --reason …  # once they are known to be dead",
    )
