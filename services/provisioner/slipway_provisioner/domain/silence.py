"""Plausibility of silence: workers of one account that fall silent together probably cannot reach the provisioner, and
go on with their tasks. Then none of them is stopped until a person confirms. Pure."""

from typing import Final

import msgspec

from slipway_common.events.alert import Alert, AlertRaised, AlertResolved, alert_identity

SILENT_SHARE_MAX: Final = 0.2
SILENT_WORKERS_MAX: Final = 10
SILENT_PART: Final = 0.5
"""Part of the time-out after which a worker counts as silent. Workers that lose their connection together had their
last contact at different times: they are overdue one after another, but all silent once the first is overdue."""


class Silence(msgspec.Struct, frozen=True, kw_only=True):
    """Registered workers of an account, and how many of them are silent. `kept`: unresponsive ones are kept until a
    person confirms."""

    account_id: str
    registered: int
    silent: int
    kept: bool

    @property
    def implausible(self) -> bool:
        """True if so many workers are silent that none may be stopped for it."""
        return self.silent > SILENT_WORKERS_MAX and self.silent > SILENT_SHARE_MAX * self.registered


def alert(silence: Silence) -> Alert:
    """Alert on an account whose workers are silent together, or its resolution."""
    account_id, problem = silence.account_id, silence.implausible
    count = f"{silence.silent} of {silence.registered} registered workers of {account_id}"
    return (AlertRaised if problem else AlertResolved)(
        **alert_identity("provisioner", "workers-silent", "account", account_id),
        summary=f"{count} are silent"
        if problem
        else f"the workers of {account_id} are in contact again, or were stopped",
        effect="they count as serving and are not replaced",
        doing="stops none of them before a person has confirmed that they are dead",
        command=f"slipway account confirm-unresponsive {account_id} --reason …  # once they are known to be dead",
    )
