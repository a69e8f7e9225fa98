"""Rules for sources of demand that no longer report, and for tombstones that end them."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_api.events.alert import Alert, AlertRaised, AlertResolved
from slipway_common.base.errors import BadEvent
from slipway_provisioner.domain.demand import ended_by_tombstone
from slipway_provisioner.domain.sources import Freshness, Source, freshness, settled

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
HOUR = 3600.0


def source(overdue_seconds: float, **changes: Any) -> Source:
    usual: dict[str, Any] = {
        "pool_id": "linux",
        "source": "old queue",
        "pending": 2,
        "claimed": 3,
        "observed_at": NOW,
        "valid_for_seconds": 300.0,
        "overdue_seconds": overdue_seconds,
        "late_seconds": 1.0,
        "is_last": False,
        "alerted": False,
        "end_reason": "",
        "pool_deleted": False,
    }
    return Source(**(usual | changes))


@given(st.floats(-1e6, 1e6), st.floats(0, 1e6), st.floats(0, 1e6))
def test_freshness(overdue: float, more: float, protected: float) -> None:
    """A source passes from fresh over stale to expired, and stays stale for the protected time exactly."""
    order = list(Freshness)
    now, later = freshness(overdue, protected), freshness(overdue + more, protected)
    assert order.index(now) <= order.index(later)
    assert (now is Freshness.FRESH) == (overdue < 0)
    assert (now is Freshness.EXPIRED) == (overdue >= max(0.0, protected))


#        overdue, alerted, end_reason, pool_deleted      alerted, ends, event
CHANGES = [
    ((-1.0, False, "", False), None),
    ((0.0, False, "", False), (True, False, AlertRaised)),
    ((1.0, True, "", False), None),
    ((-1.0, True, "", False), (False, False, AlertResolved)),
    ((HOUR - 1, False, "", False), (True, False, AlertRaised)),
    ((HOUR, True, "", False), (False, True, AlertResolved)),
    ((HOUR, False, "", False), (False, True, None)),
    ((-1.0, False, "removed", False), None),
    ((HOUR, False, "removed", False), None),
    ((1.0, True, "removed", False), (False, True, AlertResolved)),
    ((-1.0, False, "", True), (False, True, None)),
    ((1.0, True, "", True), (False, True, AlertResolved)),
]


@pytest.mark.parametrize(("now", "change"), CHANGES)
def test_changes(now: tuple[float, bool, str, bool], change: tuple[bool, bool, type | None] | None) -> None:
    """An alert is raised once when the source becomes stale, and resolved when it is not stale any more."""
    overdue, alerted, end_reason, pool_deleted = now
    got = settled(source(overdue, alerted=alerted, end_reason=end_reason, pool_deleted=pool_deleted), HOUR)
    shown = got and (got.alerted, bool(got.end_reason), got.alert and type(got.alert))
    assert shown == change
    assert got is None or (got.pool_id, got.source) == ("linux", "old queue")


@given(st.floats(-1e5, 1e5), st.booleans(), st.sampled_from(["", "removed"]), st.booleans(), st.floats(0, 1e4))
def test_settled_is_settled(overdue: float, alerted: bool, end_reason: str, deleted: bool, late: float) -> None:
    """A source that was settled needs no change, and every raised alert is resolved before it is forgotten: that on a
    late source as soon as it no longer reports."""
    state: dict[str, Any] = {"late_seconds": late, "pool_deleted": deleted}
    if change := settled(source(overdue, alerted=alerted, end_reason=end_reason, **state), HOUR):
        assert (change.alert is not None) == (change.alerted != alerted)
        after = settled(source(overdue, alerted=change.alerted, end_reason=change.end_reason, **state), HOUR)
        if change.alerted and change.end_reason:
            assert late >= HOUR + 300
            assert after is not None
            assert (after.alerted, type(after.alert)) == (False, AlertResolved)
        else:
            assert after is None


#        late, alerted                      alerted, ends, event
LATE = [
    ((HOUR + 300, False), (True, True, AlertRaised)),
    ((HOUR + 299, False), (False, True, None)),
    ((HOUR + 300, True), (True, True, None)),
    ((HOUR + 299, True), (False, True, AlertResolved)),
]


@pytest.mark.parametrize(("now", "change"), LATE)
def test_a_report_that_had_expired_when_it_was_received(
    now: tuple[float, bool], change: tuple[bool, bool, type | None]
) -> None:
    """Its source is dropped and has an alert."""
    late, alerted = now
    got = settled(source(HOUR, late_seconds=late, alerted=alerted), HOUR)
    assert (got and (got.alerted, bool(got.end_reason), got.alert and type(got.alert))) == change


def alert(of: Source) -> Alert:
    change = settled(of, HOUR)
    assert change is not None
    assert change.alert is not None
    return change.alert


def test_the_alert() -> None:
    """It says what to do, pages only where nothing else reports for the pool, and its end says why."""
    raised, last, dropped = alert(source(0)), alert(source(0, is_last=True)), alert(source(HOUR, alerted=True))
    assert raised == AlertRaised(
        dedup_key="provisioner/demand-source-stale/linux/old%20queue",
        kind="demand-source-stale",
        subject_kind="pool",
        subject_id="linux",
        summary="source old queue of pool linux is stale",
        effect="its 2 pending and 3 claimed tasks launch no workers, but protect idle ones; "
        "other sources of the pool are fresh",
        doing="drops the source 60 min after it became stale, unless it reports again",
        command="slipway demand ls linux  # then restart its monitor, or slipway demand rm linux 'old queue'",
        since=NOW + timedelta(seconds=300),
        cause="its monitor stopped, cannot reach Slipway, or reports under another name",
        severity="notice",
    )
    assert (last.severity, last.effect.partition("; ")[2]) == ("page", "no source of the pool is fresh")
    assert dropped.dedup_key == raised.dedup_key
    assert dropped.summary == (
        "source old queue of pool linux is no longer stale: dropped, since it did not report for 65 min"
    )


def test_the_alert_on_a_clock_that_is_behind() -> None:
    """It says so from the first report that was stale when it was received."""
    prompt, stale, dropped = (
        alert(source(overdue, late_seconds=late)) for overdue, late in ((10, 299), (10, 300), (HOUR, HOUR + 360))
    )
    assert "  # then restart its monitor" in prompt.command
    assert stale.cause == "the clock of its monitor is behind, or its reports are delayed"
    assert stale.summary == (
        "source old queue of pool linux is stale: its last report was 5 min old when it was received"
    )
    assert stale.command == dropped.command
    assert stale.command == "slipway demand ls linux  # then synchronise the clock of its monitor with NTP"
    assert stale.doing.startswith("drops the source 60 min after")
    assert dropped.summary.endswith("is stale: its last report was 66 min old when it was received")
    assert dropped.doing == "drops the source after each report, until they are valid"
    assert dropped.effect.startswith("its 2 pending and 3 claimed tasks launch no workers and protect none; ")


def test_a_tombstone_ends_the_source_in_its_key() -> None:
    """Up to its time, but no further ahead than a report may be."""
    ended = ended_by_tombstone("gecko-t%2Flinux/old%20queue", NOW, NOW, by="")
    assert (ended.pool_id, ended.source, ended.observed_at) == ("gecko-t/linux", "old queue", NOW)
    assert (ended.pending, ended.claimed, ended.end_reason) == (0, 0, "ended by a tombstone on its topic")
    ahead = ended_by_tombstone("linux/q", NOW + timedelta(days=1), NOW, by="")
    assert ahead.observed_at == NOW + timedelta(seconds=60)


@pytest.mark.parametrize("key", ["", "linux", "linux/", "/q", "linux/q/r"])
def test_a_tombstone_without_a_source(key: str) -> None:
    with pytest.raises(BadEvent, match="POOL/SOURCE"):
        ended_by_tombstone(key, NOW, NOW, by="")


@pytest.mark.parametrize(("source", "reason"), [("q" * 201, "has 201 characters"), ("a%00b", "has a NUL character")])
def test_a_tombstone_with_a_source_that_no_row_can_have(source: str, reason: str) -> None:
    with pytest.raises(BadEvent, match=reason):
        ended_by_tombstone(f"linux/{source}", NOW, NOW, by="")
