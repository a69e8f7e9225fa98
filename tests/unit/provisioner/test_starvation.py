"""Starved pools: when they are, and which cause their alert names."""

from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
import pytest

from slipway_api.events.alert import AlertRaised, AlertResolved
from slipway_provisioner.domain.reasons import Code
from slipway_provisioner.domain.starvation import Shortage, raised, resolved

NOW: Final = datetime(2030, 1, 1, tzinfo=UTC)


def shortage(missing: float = 900, starting: int = 0, **details: Any) -> Shortage:
    return Shortage(
        pool_id="linux",
        starved=False,
        missing_seconds=missing,
        registration_seconds=400,
        starting=starting,
        details={"reason": "3 needed", "code": Code.LAUNCHED} | details,
    )


#   seconds without a registration, the time that starves a pool, starved; a registration may take 400 s
STARVED: Final = [(599, 300, False), (600, 300, True), (899, 900, False), (900, 900, True)]


@pytest.mark.parametrize(("missing", "after", "expected"), STARVED)
def test_a_pool_is_starved_after_one_failed_boot_at_the_earliest(missing: float, after: float, expected: bool) -> None:
    assert shortage(missing).is_starved(after) is expected


CONFIGS: Final = {"a": {"reason": "paused"}, "b": {"reason": "full"}, "c": {"reason": "full"}, "d": {}}
#   starting workers, details of the newest decision → cause, severity
CAUSES: Final[list[tuple[int, dict[str, Any], str, str]]] = [
    (0, {}, "3 needed", "page"),
    (0, {"alerted": True}, "3 needed", "notice"),
    (2, {}, "2 starting, none of which has registered", "page"),
    (2, {"alerted": True}, "2 starting, none of which has registered", "notice"),
    (2, {"code": Code.LIMITED}, "3 needed", "notice"),
    (2, {"code": Code.NO_ROOM}, "3 needed", "page"),
    (2, {"code": Code.NO_ROOM, "stuck": 1}, "3 needed", "notice"),
    (2, {"code": Code.NO_CONFIG, "configs": CONFIGS}, "full", "page"),
    (2, {"code": Code.NO_CONFIG, "configs": CONFIGS, "alerted": True}, "full", "notice"),
    (2, {"code": Code.NO_CONFIG}, "3 needed", "page"),
]


@pytest.mark.parametrize(("starting", "details", "cause", "severity"), CAUSES)
def test_its_alert_is_a_page_unless_its_cause_has_one(
    starting: int, details: dict[str, Any], cause: str, severity: str
) -> None:
    alert = raised(shortage(starting=starting, **details), NOW)
    assert (alert.cause, alert.severity) == (cause, severity)


def test_its_alert_says_since_when_and_what_is_missing() -> None:
    alert = raised(shortage(wanted=5, serving=2, tasks=7), NOW)
    assert type(alert) is AlertRaised
    assert (alert.dedup_key, alert.subject_kind, alert.subject_id) == (
        "provisioner/pool-starved/linux",
        "pool",
        "linux",
    )
    assert (alert.since, alert.command) == (NOW - timedelta(seconds=900), "slipway why linux")
    assert alert.effect == "7 tasks want 5 workers, of which 2 serve or start"
    assert "15 min" in alert.summary
    assert alert.doing
    unknown = raised(shortage(), NOW)
    assert unknown.effect == "0 tasks want 0 workers, of which 0 serve or start"
    assert raised(msgspec.structs.replace(shortage(), details={}), NOW).cause == ""
    end = resolved("linux")
    assert type(end) is AlertResolved
    assert (end.dedup_key, "linux" in end.summary) == (alert.dedup_key, True)
