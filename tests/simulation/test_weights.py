"""A few seeds of what `make simulate ONLY=weights` plays a hundred of."""

from collections import Counter

from slipway_local.postgres import EmbeddedPostgres
from tests.simulation.weights import play_all
from tests.simulation.weights_life import WHERE

SEEDS = [3, 7, 9]


async def test_killed_at_commits(postgres: EmbeddedPostgres) -> None:
    """Whatever dies where, the rows are what their journal makes of the log, and each record is in it once."""
    reports = await play_all(postgres, SEEDS)
    assert [difference for report in reports for difference in report.differences] == []
    crashes, counts = Counter[str](), Counter[str]()
    for report in reports:
        crashes.update(report.crashes)
        counts.update(report.counts)
    assert set(crashes) == set(WHERE)
    assert all(counts.values()), counts
