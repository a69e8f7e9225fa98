"""Reports of demand: those that are valid, and those that end a source."""

from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
import pytest

from slipway_api.events.pool import DemandReported
from slipway_common.base.errors import BadEvent
from slipway_provisioner.domain.demand import FUTURE, TASKS_MAX, Report, ended, ended_by_tombstone, problem, reported

NOW: Final = datetime(2030, 1, 1, tzinfo=UTC)
EVENT: Final = DemandReported(pool_id="linux", source="q", pending=3, claimed=2, observed_at=NOW)

#         changes of a valid report, what is wrong with it
REPORTS: Final[list[tuple[dict[str, Any], str]]] = [
    ({}, ""),
    ({"claimed": None}, ""),
    ({"pending": 0, "claimed": None, "total": 5}, ""),
    ({"pending": 0, "claimed": None, "total": 0}, ""),
    ({"pending": 1, "claimed": None, "total": 5}, "total has all tasks"),
    ({"pending": 0, "claimed": 0, "total": 5}, "total has all tasks"),
    ({"observed_at": NOW.replace(tzinfo=None)}, "no time zone"),
    ({"observed_at": NOW + FUTURE}, ""),
    ({"observed_at": NOW + FUTURE + timedelta(seconds=1)}, "more than 60 s in the future"),
    ({"observed_at": datetime(1, 1, 1, tzinfo=UTC)}, "in year 1"),
    ({"pending": TASKS_MAX, "claimed": TASKS_MAX}, ""),
    ({"pending": TASKS_MAX + 1}, "must be 0 to 10000000"),
    ({"pending": -1}, "must be 0 to 10000000"),
    ({"claimed": TASKS_MAX + 1}, "must be 0 to 10000000"),
    ({"claimed": -1}, "must be 0 to 10000000"),
    ({"pending": 0, "claimed": None, "total": TASKS_MAX + 1}, "must be 0 to 10000000"),
    ({"pending": 0, "claimed": None, "total": -1}, "must be 0 to 10000000"),
    ({"valid_for_seconds": 0.5}, ""),
    ({"valid_for_seconds": 86_400.0}, ""),
    ({"valid_for_seconds": 0.0}, "valid_for_seconds must be above 0"),
    ({"valid_for_seconds": 86_401.0}, "valid_for_seconds must be above 0"),
    ({"source": ""}, "source is empty"),
]


@pytest.mark.parametrize(("changes", "wrong"), REPORTS)
def test_what_is_wrong_with_a_report(changes: dict[str, Any], wrong: str) -> None:
    found = problem(msgspec.structs.replace(EVENT, **changes), NOW)
    assert wrong in found
    assert bool(found) is bool(wrong)


def test_a_report_is_kept_with_its_reporter_and_trace() -> None:
    event = msgspec.structs.replace(EVENT, pending=0, claimed=None, total=5, epoch=7)
    assert reported(event, by="monitor", traceparent="00-1") == Report(
        pool_id="linux",
        source="q",
        pending=0,
        claimed=None,
        total=5,
        observed_at=NOW,
        valid_for_seconds=300.0,
        epoch=7,
        reported_by="monitor",
        traceparent="00-1",
    )


def test_the_end_of_a_source_is_a_report_of_no_tasks() -> None:
    end = ended("linux", "q", NOW, by="ann", reason="moved")
    assert (end.pending, end.claimed, end.total, end.valid_for_seconds) == (0, 0, None, 0)
    assert (end.pool_id, end.source, end.observed_at) == ("linux", "q", NOW)
    assert (end.reported_by, end.end_reason) == ("ann", "moved")


@pytest.mark.parametrize(("ahead", "counted"), [(-10, -10), (60, 60), (3600, 60)])
def test_a_tombstone_ends_its_source_but_no_later_reports(ahead: int, counted: int) -> None:
    end = ended_by_tombstone("linux%2Fa/q", NOW + timedelta(seconds=ahead), NOW, by="kafka")
    assert end == ended(
        "linux/a", "q", NOW + timedelta(seconds=counted), by="kafka", reason="ended by a tombstone on its topic"
    )


@pytest.mark.parametrize("key", ["linux", "linux/", "/q", "linux/q/r", "linux/" + "q" * 1000, "linux/q%00"])
def test_a_tombstone_without_a_source_is_a_bad_event(key: str) -> None:
    with pytest.raises(BadEvent, match="key"):
        ended_by_tombstone(key, NOW, NOW, by="kafka")
