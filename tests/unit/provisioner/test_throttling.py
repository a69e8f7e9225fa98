"""When an account counts as throttled."""

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from slipway_api.events.alert import alert_key
from slipway_provisioner.domain.throttling import Throttling, raised, resolved

AFTER = 60.0
SECONDS = st.floats(min_value=0.0, max_value=600.0)


def throttling(*, lasted: float, quiet: float, throttled: bool = False) -> Throttling:
    return Throttling(
        account_id="sim-a",
        lease_pool_id="launches",
        throttled=throttled,
        calls=37,
        since=datetime(2026, 1, 1, tzinfo=UTC),
        lasted_seconds=lasted,
        quiet_seconds=quiet,
    )


def test_a_notice_begins_after_a_minute_of_throttling_and_ends_after_one_without() -> None:
    assert not throttling(lasted=59.0, quiet=1.0).lasts(AFTER)
    assert throttling(lasted=60.0, quiet=1.0).lasts(AFTER)
    assert throttling(lasted=90.0, quiet=60.0, throttled=True).lasts(AFTER)
    assert not throttling(lasted=90.0, quiet=61.0, throttled=True).lasts(AFTER)


@given(SECONDS, SECONDS)
def test_a_notice_outlasts_its_begin(lasted: float, quiet: float) -> None:
    """None is raised and resolved at the same time."""
    if throttling(lasted=lasted, quiet=quiet).lasts(AFTER):
        assert throttling(lasted=lasted, quiet=quiet, throttled=True).lasts(AFTER)


def test_the_notice_says_what_the_limiter_does_and_shows_its_lease_pool() -> None:
    alert = raised(throttling(lasted=61.0, quiet=0.0))
    assert alert.severity == "notice"
    assert alert.summary == "account sim-a has throttled 37 calls within 61 s"
    assert "lease pool launches grants none before the provider's Retry-After has passed" in alert.doing
    assert alert.command == "slipway lease report launches --since 1h"
    assert (alert.since, alert.subject_kind) == (datetime(2026, 1, 1, tzinfo=UTC), "account")
    assert (alert.effect, alert.cause) != ("", "")


def test_the_end_of_throttling_resolves_its_notice() -> None:
    alert, end = raised(throttling(lasted=61.0, quiet=0.0)), resolved("sim-a", AFTER)
    assert end.summary == "no call in account sim-a was throttled for 60 s"
    assert alert.dedup_key == end.dedup_key == alert_key("provisioner", "account-throttled", "sim-a")
