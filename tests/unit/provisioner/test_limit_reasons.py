"""Sentences on safety limits, and the alerts that repeat them: each names the limit, what counts, and when it lifts."""

from datetime import timedelta
from decimal import Decimal
from typing import Any, Final

import msgspec
import pytest

from slipway_api.events.alert import alert_key
from slipway_provisioner.domain.limits import Level, Limit, Reached, Usage, amount, clock, headroom, raised, resolved
from tests.unit.provisioner.test_limits import LARGE, SMALL, START, TARIFF, UNKNOWN

LAUNCHES: Final = Limit(scope="account", scope_id="a", launches_per_hour=3)
SPENDING: Final = Limit(scope="pool", scope_id="p", spend_per_day=Decimal(5))
FREE_AT: Final = START + timedelta(seconds=90)


def stopped(limit: Limit, kind: Any, waiting: dict[Any, int] | None = None, **usage: Any) -> Reached:
    """The limit that stops a launch, which is reached."""
    level = Level(limit=limit, usage=Usage(**usage), waiting=waiting or {})
    units, reached = headroom(level, kind, [limit], TARIFF)
    assert units == 0
    assert reached is not None
    return reached


def test_launches_that_are_reached() -> None:
    assert stopped(LAUNCHES, SMALL, launches=3, launches_free_at=FREE_AT) == Reached(
        scope="account",
        scope_id="a",
        kind="launches",
        text="account a has reached its limit of 3 launches per hour: 3; next launch at 2030-01-01 00:01:30 UTC",
        free_at=FREE_AT,
    )
    waiting = stopped(LAUNCHES, SMALL, {SMALL: 2}, launches=1)
    assert waiting.text.endswith(": 3, 2 of them waiting to start; next launch an hour after one that is in flight")
    assert waiting.passing
    assert stopped(LAUNCHES, SMALL, {SMALL: 3}).passing
    assert stopped(msgspec.structs.replace(LAUNCHES, launches_per_hour=1), SMALL, launches=1).passing


def test_spend_that_is_reached() -> None:
    """A small machine commits 2.4 a day and a large one 16.8, of a limit of 5."""
    reached = stopped(SPENDING, SMALL, {SMALL: 1}, spend=Decimal("1.5"), spend_free_at=FREE_AT)
    assert reached == Reached(
        scope="pool",
        scope_id="p",
        kind="spend",
        text=f"pool p has reached its limit of 5 per day: 3.9 is spent or committed, and {SMALL} commits 2.4 more; "
        "next launch when machines end, or at 2030-01-01 00:01:30 UTC at the earliest",
        free_at=FREE_AT,
    )
    assert stopped(SPENDING, LARGE, spend=Decimal(0)).text.endswith("commits 16.8 more; next launch when machines end")
    both = stopped(SPENDING, SMALL, {SMALL: 1, LARGE: 1}, spend=Decimal(0))
    assert "19.2 is spent or committed" in both.text
    assert both.passing
    assert not stopped(SPENDING, LARGE, spend=Decimal(4), launches=2).passing  # machines that run, and end some day


def test_prices_that_are_unknown() -> None:
    assert stopped(SPENDING, UNKNOWN).text == f"the price of {UNKNOWN} is unknown, and pool p limits its spend"
    of_machines = stopped(SPENDING, SMALL, unpriced=2)
    text = "pool p limits its spend, and no price is known of 2 of its machines of the last day"
    assert (of_machines.kind, of_machines.text, of_machines.passing) == ("price", text, False)


def test_a_time_is_never_too_early_and_an_amount_is_short() -> None:
    assert clock(START + timedelta(seconds=1, microseconds=1)) == "2030-01-01 00:00:02 UTC"
    assert clock(START + timedelta(seconds=59, microseconds=999_999)) == "2030-01-01 00:01:00 UTC"
    assert [amount(money) for money in (None, Decimal(1), Decimal("1.2345"), Decimal("0.99999"), Decimal("1000"))] == [
        "none",
        "1",
        "1.23",
        "1",
        "1000",
    ]


#            limit, kind, part of the remedy
REMEDIES: Final = [
    (LAUNCHES, "launches", "raise limits.launches_per_hour of account a in slipway.yaml, and apply it"),
    (SPENDING, "spend", "raise limits.spend_per_day of pool p in slipway.yaml, and apply it"),
    (SPENDING, "price", "restart it, or declare limits.default_price of pool p, and apply it"),
]


@pytest.mark.parametrize(("limit", "kind", "remedy"), REMEDIES)
def test_the_alert_names_its_limit_and_the_remedy(limit: Limit, kind: str, remedy: str) -> None:
    """It and its resolution share their key."""
    reached = Reached(scope=limit.scope, scope_id=limit.scope_id, kind=kind, text="reached")
    alert = raised(limit, reached, now=START, by=[("linux", 30), ("mac", 2)])
    assert remedy in alert.cause
    assert (alert.summary, alert.since, alert.command) == ("reached", START, "slipway account limits")
    assert alert.effect == "nothing more is launched under the limit; running workers are not affected"
    assert alert.doing == "launches again by itself once the limit allows it, or is raised"
    assert alert.evidence == ("pool linux: 30 launches in the last hour", "pool mac: 2 launches in the last hour")
    end = resolved(limit, "raised to 9")
    key = alert_key("provisioner", "launch-limit", limit.scope, limit.scope_id)
    for each in (alert, end):
        identity = (each.dedup_key, each.subject_kind, each.subject_id, each.kind)
        assert identity == (key, limit.scope, limit.scope_id, "launch-limit")
    assert end.summary == "raised to 9"
