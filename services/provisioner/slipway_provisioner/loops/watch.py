"""Who is away: an alert when the broker or the calculator falls silent, and its end when it is heard again."""

from collections.abc import Callable, Mapping
from typing import Final

from slipway_common import outbox
from slipway_common.events.alert import Alert, AlertRaised, AlertResolved
from slipway_common.postgres import Pool

EFFECTS: Final = {
    "lease-broker": ("launches wait for admission", "repeats its requests; running workers are not touched"),
    "weight-calculator": (
        "windows are capped and weights fade towards what no evidence would give",
        "keeps launching within capped windows, one attempt a pool where they are full",
    ),
}
SAFE: Final = (
    "launches start without leases at the pace of the last ones, and wait where none is known",
    "reports each to be charged, and repeats its requests; running workers are not touched",
)


def effects(broker_silent_mode: str) -> dict[str, tuple[str, str]]:
    """Of each service: what its silence does, and what Slipway does."""
    return EFFECTS | ({"lease-broker": SAFE} if broker_silent_mode == "safe" else {})


class Watch:
    """`silent_seconds(service)` is above zero while a service counts as away."""

    def __init__(
        self, silent_seconds: Callable[[str], float], effects: Mapping[str, tuple[str, str]] = EFFECTS
    ) -> None:
        self.silent_seconds = silent_seconds
        self.effects = effects
        self.away: set[str] = set()

    async def step(self, pool: Pool) -> bool:
        """Tell of each change once. What was told before a restart is told again, under the same key."""
        away = {service for service in self.effects if self.silent_seconds(service) > 0}
        changed = [_alert(service, self.effects, away=service in away) for service in sorted(away ^ self.away)]
        if changed:
            async with pool.acquire() as db, db.transaction():
                await outbox.enqueue(db, changed)
        self.away = away
        return False


def _alert(service: str, effects: Mapping[str, tuple[str, str]] = EFFECTS, *, away: bool) -> Alert:
    effect, doing = effects[service]
    return (AlertRaised if away else AlertResolved)(
        dedup_key=f"provisioner/silent/{service}",
        subject_id=service,
        kind="service-silent",
        summary=f"no heartbeat of the {service}" if away else f"the {service} is heard again",
        effect=effect,
        doing=doing,
        command="look at its /readyz and its log",
    )
