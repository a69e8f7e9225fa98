"""Judgement of a phase, from the commands' own records and the rows of the broker. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

# From a start without a lease until the command's record, on a busy machine.
START_SECONDS: Final = 3.0
MOST_IN_A_THIRD: Final = 2 / 3
STARTS_MIN: Final = 10  # of fewer starts more than that are often in one third by chance; of 20 once in 400 times
LEASED: Final = 0.95
RENEWALS_MAX: Final = 2


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """Claim of a phase: its commands run under leases, or start without one within a span, in seconds after they
    began. `charged`: the pool counts each start; `unleased_by` is the cause in its row. `unheard`: the broker may have
    granted the request, which nobody heard of: then its lease counts the start."""

    leased: bool = False
    span: tuple[float, float] = (0.0, 0.0)
    charged: bool = True
    unleased_by: str = ""
    unheard: bool = False


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One command, in wall-clock seconds. `started_at`, `ended_at` and `lease_id` are those that it recorded itself."""

    request_id: str
    begun_at: float
    exit_code: int
    own_code: int
    printed: str
    status: Mapping[str, object]
    started_at: float | None = None
    ended_at: float | None = None
    lease_id: str = ""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A lease in the broker's database. A grant that nobody confirmed in time does not count."""

    request_id: str
    unleased_by: str | None
    confirmed: bool


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a phase, and what contradicts its claim."""

    runs: int
    ran: int
    killed: int
    leased: int
    starts: Sequence[float]
    problems: Sequence[str]

    @property
    def text(self) -> str:
        unleased = ""
        if self.starts:
            unleased = f", without one after {min(self.starts):.1f} to {max(self.starts):.1f} s"
        return f"ran {self.ran} of {self.runs}, killed {self.killed}, leased {self.leased}{unleased}"


def judge(
    runs: Sequence[Run], expected: Expected, rows: Sequence[Row], renewals: Mapping[str, int], held: int
) -> Figures:
    """Compare the runs of a phase with its claim. `rows` are those of all pools; `held` units are left at the end."""
    problems = []
    for run in runs:
        if run.started_at is None:
            problems.append(f"{run.request_id} did not run: exit code {run.exit_code}, status {dict(run.status)}")
        elif run.ended_at is None or run.printed != "ok\n":
            problems.append(f"{run.request_id} did not run to its end: exit code {run.exit_code}")
        elif run.exit_code != run.own_code:
            problems.append(f"{run.request_id} exits with {run.exit_code}, its command with {run.own_code}")
        told = (True, bool(run.lease_id), run.own_code)
        if run.started_at is not None and tuple(map(run.status.get, ("started", "leased", "exit_code"))) != told:
            problems.append(f"{run.request_id}: status file {dict(run.status)}, expected {told}")
    ran = [run for run in runs if run.started_at is not None]
    leased = [run for run in ran if run.lease_id]
    unleased = [run for run in ran if not run.lease_id]
    if expected.leased and len(leased) < LEASED * len(runs):
        problems.append(f"{len(leased)} of {len(runs)} leased")
    if not expected.leased:
        problems += [f"{run.request_id} got lease {run.lease_id}" for run in leased]
    starts = [run.started_at - run.begun_at for run in unleased if run.started_at is not None]
    if not expected.leased:
        problems += _spread(starts, expected.span)
    problems += _charged(ran, expected, rows)
    problems += [
        f"lease {run.lease_id} was renewed {renewals[run.lease_id]} times"
        for run in leased
        if renewals.get(run.lease_id, 0) > RENEWALS_MAX
    ]
    if held:
        problems.append(f"{held} units held at the end")
    killed = sum(run.ended_at is None for run in ran)
    return Figures(
        runs=len(runs), ran=len(ran), killed=killed, leased=len(leased), starts=starts, problems=tuple(problems)
    )


def _spread(starts: Sequence[float], span: tuple[float, float]) -> list[str]:
    """Problems of starts that are outside of their span, or too many of which are in one third of it."""
    begin, end = span
    problems = [
        f"a start after {at:.1f} s, not within {begin:g} to {end:g} s"
        for at in starts
        if not begin <= at <= end + START_SECONDS
    ]
    thirds = Counter(min(2, max(0, int(3 * (at - begin) / (end - begin)))) for at in starts)
    most = max(thirds.values(), default=0)
    if len(starts) >= STARTS_MIN and most > MOST_IN_A_THIRD * len(starts):
        problems.append(f"{most} of {len(starts)} starts in a third of {begin:g} to {end:g} s")
    return problems


def _charged(ran: Sequence[Run], expected: Expected, rows: Sequence[Row]) -> list[str]:
    """Problems of commands that no row counts, or several do."""
    problems = []
    for run in ran:
        own = [row for row in rows if row.request_id == run.request_id and row.confirmed]
        charged = expected.charged or bool(run.lease_id)
        if len(own) != charged:
            problems.append(f"{run.request_id} is counted by {len(own)} leases, expected {int(charged)}")
        wrong = {row.unleased_by for row in own} - {expected.unleased_by} - ({None} if expected.unheard else set())
        if wrong and not run.lease_id and not expected.leased:
            problems.append(f"{run.request_id} is counted as {', '.join(map(str, wrong))}")
    return problems
