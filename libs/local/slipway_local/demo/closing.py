"""Last screen of a demo: what was shown, the verdict, and what to try next. Pure."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from slipway_local.check.evidence import Evidence
from slipway_local.check.path_check import Report
from slipway_simulator import facts

TRY: Final = """\
Try: make demo DURATION=0    # until Ctrl-C; meanwhile, in a second terminal:
     . .slipway/env; .venv/bin/slipway top        # the live screen
     . .slipway/env; .venv/bin/slipway why {pool}  # a cause, and what to do"""
CODES_SHOWN: Final = 2


def screen(
    found: Evidence, report: Report, *, pool: str, played: str, faults: Sequence[str], figures: Sequence[str]
) -> Iterator[str]:
    """At most ten lines of a terminal, unless something is wrong. `played`: length and speed of the run; `figures`:
    lines on real machines and queues."""
    tasks = sum(isinstance(fact, facts.TaskArrived) for fact in found.ledger)
    done = sum(isinstance(fact, facts.TaskEnded) and fact.result == "done" for fact in found.ledger)
    yield f"Shown: {played}, {done} of {tasks} tasks done"
    launched = Counter(fact.zone or pool for fact in found.ledger if isinstance(fact, facts.InstanceCreated))
    most, maximum = report.peaks.get(f"serving {pool}", (0, 0))
    counts = ", ".join(f"{count} in {zone}" for zone, count in sorted(launched.items()))
    yield f"  launched: {counts or 'none'}; peak {most}, maximum {maximum}"
    if faults:
        refused = Counter(
            f.code for f in found.ledger if isinstance(f, facts.Reply) and not f.repeated and f.code != "OK"
        )
        refusals = ", ".join(f"{count} with {code}" for code, count in refused.most_common(CODES_SHOWN))
        yield f"  faults: {', '.join(faults)}; calls that the cloud refused: {refusals or 'none'}"
    for line in figures:
        yield f"  {line}"
    for problem in report.problems:
        yield f"  PROBLEM {problem}"
    yield report.line()
    yield TRY.format(pool=pool)
