"""A world of launch configs whose commits raise and resolve alerts."""

from datetime import UTC, datetime
from itertools import count
from typing import Any, Final

import msgspec

from slipway_api.events.alert import Alert, AlertRaised
from slipway_api.events.launch_config import LaunchConfigCreated
from slipway_api.events.scopes import config_key
from slipway_api.events.signal import SignalRaised
from slipway_api.events.worker import Outcome, Result, Scope, Stage, WorkerLaunched, WorkerLaunchFailed, WorkerStopping
from slipway_weight_calculator.domain import alerts
from slipway_weight_calculator.domain.draft import Draft
from slipway_weight_calculator.domain.world import World, advance, apply_signal, commit, declare, fold

START: Final = 1_900_000_000.0
CONFIGS: Final = ("zone-a", "zone-b", "zone-c")


class Alerted:
    """A world with one commit per step, and all its alerts."""

    def __init__(self) -> None:
        self.world = World()
        self.open: dict[str, AlertRaised] = {}
        self.now = START
        self.all: list[Alert] = []
        self.workers = count(1)

    def commit(self, *events: Any, at: float | None = None, seconds: float = 1.0) -> list[Alert]:
        self.now = START + at if at is not None else self.now + seconds
        draft = Draft(self.world)
        advance(draft, self.now)
        for event in events:
            if isinstance(event, LaunchConfigCreated):
                declare(draft, event, self.now)
            elif isinstance(event, SignalRaised):
                assert apply_signal(draft, event, self.now) == ""
            else:
                fold(draft, event, self.now)
        changed = alerts.changes(draft, self.open, self.now)
        commit(draft)
        self.open = alerts.after(self.open, changed)
        self.all += changed
        return changed

    def kinds(self, *severities: str) -> list[str]:
        """Keys of the open alerts, without their common prefix."""
        return sorted(
            alert.dedup_key.removeprefix("weight-calculator/")
            for alert in self.open.values()
            if not severities or alert.severity in severities
        )

    def declare(self, *ids: str, **fields: Any) -> None:
        self.commit(*(declared(id_, **fields) for id_ in ids or CONFIGS))

    def launched(self, config_id: str = "zone-a", **fields: Any) -> WorkerLaunched:
        ok = Outcome(Stage.LAUNCH, Result.OK)
        return WorkerLaunched(outcome=ok, batch_id="b", **self.of(config_id, **fields) | {"instance_id": "i-7"})

    def refused(self, scope: Scope = Scope.CAPACITY, config_id: str = "zone-a", **fields: Any) -> WorkerLaunchFailed:
        given = {"code": f"{scope.value}-code"} | {
            name: fields.pop(name) for name in ("code", "scope_key", "classified", "sample") if name in fields
        }
        outcome = Outcome(Stage.LAUNCH, Result.FAILED, scope, **given)
        return WorkerLaunchFailed(outcome=outcome, batch_id="b", **self.of(config_id, **fields))

    def dead_boot(self, config_id: str = "zone-a", **fields: Any) -> WorkerStopping:
        ids = self.of(config_id, **fields)
        outcome = Outcome(Stage.BOOT, Result.FAILED, Scope.IMAGE, ids["image_revision"], "boot_timeout")
        return WorkerStopping(
            reason="late", outcome=outcome, instance_id="i-7", console="http://cloud/i-7/console", **ids
        )

    def failed(self, stage: Stage) -> WorkerStopping:
        """A failure of one config after its launch."""
        outcome = Outcome(stage, Result.FAILED, Scope.CONFIG, "", "user-data")
        return msgspec.structs.replace(self.dead_boot(), outcome=outcome)

    def down(self, config_id: str) -> SignalRaised:
        observed_at = datetime.fromtimestamp(self.now, UTC)
        ids: dict[str, Any] = {"source": "page", "target_kind": "config", "target_id": config_id}
        return SignalRaised(kind="down", reason="flooded", observed_at=observed_at, ttl_seconds=600, **ids)

    def of(self, config_id: str, **fields: Any) -> dict[str, Any]:
        config = self.world.configs[config_id].declared
        return {
            "worker_id": f"w-{next(self.workers)}",
            "launch_config_id": config_id,
            "pool_id": config.pool_id,
            "account_id": config.account_id,
            "image_revision": config.image_revision,
        } | fields

    def permit(self, config_id: str) -> int:
        """Wait until a probe may launch, and return its permit."""
        for _ in range(1000):
            row = self.world.rows[config_key(config_id)]
            if row.ready and not row.spent:
                return row.permit
            self.commit(seconds=5)
        raise AssertionError(f"no probe of {config_id}")


def declared(config_id: str, **fields: Any) -> LaunchConfigCreated:
    usual: dict[str, Any] = {
        "name": config_id.partition("@")[0],
        "pool_id": "linux",
        "account_id": "sim-a",
        "region": "sim-1",
        "zone": config_id,
        "instance_type": "m5.large",
        "image_revision": "linux-1",
        "base_weight": 1.0,
        "price_factor": 1.0,
        "state": "active",
        "revision": 1,
    }
    return LaunchConfigCreated(launch_config_id=config_id, **usual | fields)
