"""Service watch: raises an alert while the lease-broker or the weight-calculator is unavailable."""

from collections.abc import Callable, Mapping
from typing import Final

from slipway_api.events.alert import START_SECONDS, Alert, AlertRaised, AlertResolved, alert_identity
from slipway_common.base.clock import monotonic_seconds
from slipway_common.database.postgres import Database
from slipway_common.messaging import outbox
from slipway_provisioner.store import demand

EFFECTS: Final = {
    "lease-broker": ("launches wait for admission", "resends its requests; running workers are not affected"),
    "weight-calculator": (
        "windows are capped, and weights decay towards their values without evidence",
        "keeps launching within capped windows, with one attempt per pool at a time where they are full",
    ),
}
SAFE: Final = (
    "launches start unleased at the last granted pace, and wait where there is none",
    "reports unleased launches to be charged later, and resends its requests; running workers are not affected",
)


def effects(broker_unavailable_mode: str) -> dict[str, tuple[str, str]]:
    """Service → (effect of its unavailability, what Slipway does meanwhile)."""
    return EFFECTS | ({"lease-broker": SAFE} if broker_unavailable_mode == "safe" else {})


class Watch:
    """Alerts on unavailable services. `unavailable_seconds(service)` is 0 while the service is available. While this
    service starts, others may do so too: nothing is raised in the first minutes, unless tasks wait."""

    def __init__(
        self, unavailable_seconds: Callable[[str], float], effects: Mapping[str, tuple[str, str]] = EFFECTS
    ) -> None:
        self.unavailable_seconds = unavailable_seconds
        self.effects = effects
        self.unavailable: set[str] = set()
        self.began = monotonic_seconds()

    async def step(self, database: Database) -> bool:
        """Publish an alert for each change. After a restart alerts are raised again under the same key."""
        unavailable = {service for service in self.effects if self.unavailable_seconds(service) > 0}
        if unavailable - self.unavailable and monotonic_seconds() - self.began < START_SECONDS:
            async with database.acquire() as db:
                if not await demand.tasks_wait(db):
                    unavailable &= self.unavailable
        changed = [
            _alert(service, self.effects, unavailable=service in unavailable)
            for service in sorted(unavailable ^ self.unavailable)
        ]
        if changed:
            async with database.acquire() as db, db.transaction():
                await outbox.enqueue(db, changed)
        self.unavailable = unavailable
        return False


def _alert(service: str, effects: Mapping[str, tuple[str, str]] = EFFECTS, *, unavailable: bool) -> Alert:
    effect, doing = effects[service]
    return (AlertRaised if unavailable else AlertResolved)(
        **alert_identity("provisioner", "service-unavailable", "service", service),
        summary=f"{service} is unavailable: no heartbeat" if unavailable else f"{service} is available again",
        effect=effect,
        doing=doing,
        command=f"slipway doctor  # then read the log of the {service}",
    )
