"""Service availability by heartbeats, and its alerts."""

from typing import Any

import pytest

from slipway_provisioner.handlers.heartbeats import HeartbeatView
from slipway_provisioner.loops.watch import EFFECTS, SAFE, _alert, effects


def test_unavailability_counts_from_the_last_heartbeat_or_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("slipway_provisioner.handlers.heartbeats.monotonic_seconds", lambda: now)
    view = HeartbeatView()
    now = 125.0
    assert view.unavailable_seconds("lease-broker", after_seconds=30) == 0
    now = 140.0
    assert view.unavailable_seconds("lease-broker", after_seconds=30) == 10
    view.last_heartbeat["lease-broker"] = 139.0
    assert view.unavailable_seconds("lease-broker", after_seconds=30) == 0


@pytest.mark.parametrize("service", sorted(EFFECTS))
def test_raised_and_resolved_share_a_key(service: str) -> None:
    raised: Any = _alert(service, unavailable=True)
    resolved: Any = _alert(service, unavailable=False)
    assert raised.dedup_key == resolved.dedup_key
    assert (raised.type, resolved.type) == ("io.slipway.alert.raised.v1", "io.slipway.alert.resolved.v1")
    assert raised.effect
    assert raised.doing


def test_the_alert_depends_on_the_broker_unavailable_mode() -> None:
    alert: Any = _alert("lease-broker", effects("safe"), unavailable=True)
    assert (alert.effect, alert.doing) == SAFE
    alert = _alert("lease-broker", effects("wait"), unavailable=True)
    assert alert.effect == "launches wait for admission"
    assert effects("safe")["weight-calculator"] == EFFECTS["weight-calculator"]
