"""Pools that freeze for a bad image: what their alert says. `test_planning.py` has when they do."""

from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import pytest

from slipway_api.events.alert import AlertRaised, AlertResolved
from slipway_api.events.scopes import Key
from slipway_provisioner.domain.freezing import UnconfirmedStart, description, new_failures, raised, resolved
from slipway_provisioner.domain.pool import Shared

NOW: Final = datetime(2030, 1, 1, tzinfo=UTC)
IMAGE: Final = Shared(key=Key("image", "ami-1"), stage="boot", unconfirmed=10)
START: Final = UnconfirmedStart(worker_id="w", instance_id="i-1", account_id="a", booting=False, reason="kernel panic")


#         unconfirmed, forgiven                new ones, text
FAILURES: Final = [
    (10, 0, 10, "10 consecutive starts of image ami-1 failed or timed out (boot)"),
    (1, 0, 1, "1 start of image ami-1 failed or timed out (boot)"),
    (30, 10, 20, "20 more consecutive starts of image ami-1 failed or timed out (boot)"),
    (10, 10, 0, "0 more consecutive starts of image ami-1 failed or timed out (boot)"),
    (10, 30, 10, "10 consecutive starts of image ami-1 failed or timed out (boot)"),  # a success came between
]


@pytest.mark.parametrize(("unconfirmed", "forgiven", "new", "text"), FAILURES)
def test_failures_since_the_pool_was_unfrozen_count(unconfirmed: int, forgiven: int, new: int, text: str) -> None:
    image = msgspec.structs.replace(IMAGE, unconfirmed=unconfirmed, forgiven=forgiven)
    assert (new_failures(image), description(image)) == (new, text)


#         changes of the image, tasks           severity, effect, cause
ALERTS: Final[list[tuple[dict[str, Any], int, str, str, str]]] = [
    ({}, 2, "page", "2 tasks get no new worker", "image ami-1"),
    ({"reason": "boots hang"}, 1, "page", "1 task gets no new worker", "boots hang"),
    ({"tripped": True}, 2, "notice", "2 tasks get no new worker", "image ami-1"),  # the trip has a page of its own
    ({"tripped": True, "forgiven": 3}, 2, "page", "2 tasks get no new worker", "image ami-1"),  # and somebody saw it
]


@pytest.mark.parametrize(("changes", "tasks", "severity", "effect", "cause"), ALERTS)
def test_the_alert_on_a_frozen_pool(
    changes: dict[str, Any], tasks: int, severity: str, effect: str, cause: str
) -> None:
    image = msgspec.structs.replace(IMAGE, **changes)
    found = raised("linux", image, tasks=tasks, starts=[START], now=NOW)
    assert found == AlertRaised(
        dedup_key="provisioner/image-frozen/linux",
        kind="image-frozen",
        subject_kind="pool",
        subject_id="linux",
        summary=f"pool linux is frozen: {description(image)}",
        effect=effect,
        doing="launches nothing and cancels waiting launches; running workers are not affected",
        command="slipway pool unfreeze linux --reason …",
        since=NOW,
        cause=cause,
        severity=severity,
        evidence=("worker w, instance i-1 of a: kernel panic",),
    )
    assert resolved("linux", "unfrozen") == AlertResolved(**found.identity, summary="unfrozen")


def test_a_start_that_still_boots_says_so() -> None:
    booting = msgspec.structs.replace(START, instance_id=None, booting=True)
    assert str(booting) == "worker w, instance none of a: still booting"
