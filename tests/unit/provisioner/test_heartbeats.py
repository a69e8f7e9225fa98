"""Who counts as away, and that each change is told once."""

from typing import Any

import pytest

from slipway_provisioner.handlers.heartbeats import HeartbeatView
from slipway_provisioner.loops.watch import EFFECTS, SAFE, _alert, effects


def test_silence_counts_from_the_last_beat_or_from_our_start(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("slipway_provisioner.handlers.heartbeats.monotonic_seconds", lambda: now)
    view = HeartbeatView()
    now = 125.0
    assert view.silent_seconds("lease-broker", after_seconds=30) == 0
    now = 140.0
    assert view.silent_seconds("lease-broker", after_seconds=30) == 10
    view.heard["lease-broker"] = 139.0
    assert view.silent_seconds("lease-broker", after_seconds=30) == 0


@pytest.mark.parametrize("service", sorted(EFFECTS))
def test_raised_and_resolved_share_a_key(service: str) -> None:
    raised: Any = _alert(service, away=True)
    resolved: Any = _alert(service, away=False)
    assert raised.dedup_key == resolved.dedup_key
    assert (raised.type, resolved.type) == ("io.slipway.alert.raised.v1", "io.slipway.alert.resolved.v1")
    assert raised.effect
    assert raised.doing


def test_the_alert_says_what_launches_do_without_a_broker() -> None:
    told: Any = _alert("lease-broker", effects("safe"), away=True)
    assert (told.effect, told.doing) == SAFE
    told = _alert("lease-broker", effects("wait"), away=True)
    assert told.effect == "launches wait for admission"
    assert effects("safe")["weight-calculator"] == EFFECTS["weight-calculator"]
