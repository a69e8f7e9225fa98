"""Reports of one source, on sources whose reads are recorded."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from random import Random
from typing import Any

from slipway_api.events.pool import DemandReported
from slipway_common.base.clock import utc_now
from slipway_monitor.domain.counts import Counts, Unreadable
from slipway_monitor.leadership import Alone
from slipway_monitor.loops.report import Reporter
from slipway_monitor.source_file import Entry, read

FILE = "{sources: [{name: q, kind: exec, command: ['true'], tasks: a, counts: waiting, claims: hooks, pool: linux}]}"


def recorded(answers: Iterator[bool], begun: list[datetime]) -> type:
    """A class of sources whose reads are answered or fail."""

    class Recorded:
        def __init__(self, _: Any) -> None: ...

        async def read(self) -> Sequence[Counts]:
            begun.append(utc_now())
            if not next(answers):
                raise Unreadable("away")
            return [Counts(1)]

        async def close(self) -> None: ...

    return Recorded


async def test_the_time_of_a_report_is_no_time_of_connecting() -> None:
    """At first and after a failure a source has to connect first, while its queue already hands out tasks."""
    begun: list[datetime] = []
    published: list[DemandReported] = []

    async def publish(report: DemandReported) -> None:
        published.append(report)

    (entry,) = read(FILE)
    kind = recorded(iter([True, True, True, False, True, True, True]), begun)
    reporter = Reporter(Entry(entry.settings, kind), Alone(), publish, Random(1))
    for reads, reports, before in ((2, 1, 0), (3, 2, 1), (4, 2, 1), (6, 3, 4), (7, 4, 5)):
        await reporter.report()
        assert (len(begun), len(published)) == (reads, reports)
        assert published[-1].observed_at > begun[before]
