"""Who is away: an alert when the broker or the calculator falls silent, and its end when it is heard again."""

from collections.abc import Callable
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


class Watch:
    """`silent_seconds(service)` is above zero while a service counts as away."""

    def __init__(self, silent_seconds: Callable[[str], float]) -> None:
        self.silent_seconds = silent_seconds
        self.away: set[str] = set()

    async def step(self, pool: Pool) -> bool:
        """Tell of each change once. What was told before a restart is told again, under the same key."""
        away = {service for service in EFFECTS if self.silent_seconds(service) > 0}
        changed = [_alert(service, away=service in away) for service in sorted(away ^ self.away)]
        if changed:
            async with pool.acquire() as db, db.transaction():
                await outbox.enqueue(db, changed)
        self.away = away
        return False


def _alert(service: str, *, away: bool) -> Alert:
    effect, doing = EFFECTS[service]
    return (AlertRaised if away else AlertResolved)(
        dedup_key=f"provisioner/silent/{service}", subject_id=service, kind="service-silent",
        summary=f"no heartbeat of the {service}" if away else f"the {service} is heard again",
        effect=effect, doing=doing, command="look at its /readyz and its log",
    )  # fmt: skip
