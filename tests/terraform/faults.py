"""`make terraform-faults`: each fault of the provider `ledger`, and what comes of it.

One run meets the fault while two others wait for the same process, of which there is one at a time, for one run. A line
per fault: outcome and scope of the run, if its process was replaced, waiters served, and what is left afterwards.
`ONLY=crash` selects faults by a part of their names. Exits with 1 if any line is not as expected.
"""

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import psutil

from slipway_local.terraform import packages
from slipway_local.terraform.ledger import Fault, write_executable
from slipway_terraform.domain.results import Command, Run, Scope
from slipway_terraform.runs.driver import Driver
from slipway_terraform.scheduler.shared import SharedScheduler
from tests.support.harness import until
from tests.support.terraform_runs import SECRET, Place, driver, new_place, schedulers, soon

RUN_SECONDS: Final = 3.0
"""Deadline of a run that hangs. The others take a fraction of it, also on a busy machine: they have a minute."""
START_SECONDS: Final = 3.0
WAITERS: Final = ("w-2", "w-3")
SOFT_MEMORY_BYTES: Final = 150 * 2**20
LIMITS: Final[dict[str, Any]] = {
    "max_processes": 1,
    "max_concurrency": 1,
    "sample_seconds": 0.1,
    "soft_memory_bytes": SOFT_MEMORY_BYTES,
}
AT_A_TIME: Final = 3
CODES: Final = {
    "InsufficientCapacity": Scope.CAPACITY,
    "QuotaReached": Scope.QUOTA,
    "ImageGone": Scope.IMAGE,
    "KeyRefused": Scope.CREDENTIAL,
    "SlowDown": Scope.LIMITER,
}


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A fault and what is expected of the run that meets it. `scope` and `code` are empty for a success, `code` is the
    error's name if the run never began. `machines`: those left of its resource.

    `lines` of Python run in the plugin before anything else.
    """

    name: str
    fault: Fault | None = None
    lines: tuple[str, ...] = ()
    command: Command = Command.APPLY
    scope: str = ""
    code: str = ""
    is_replaced: bool = True
    machines: int = 1
    seconds: float = 60.0


def hang(at: str, **fields: object) -> Fault:
    return msgspec.convert({"kind": "hang", "at": at, "once": True, **fields}, Fault)


def crash(at: str, **fields: object) -> Fault:
    return msgspec.convert({"kind": "crash", "at": at, "once": True, **fields}, Fault)


def error(text: str) -> Fault:
    return Fault(kind="error", at="create", once=True, text=f"cannot create: {text}: no", detail="for {secret}")


UNKNOWN, NOTHING = Scope.OUTCOME_UNKNOWN, Scope.NOTHING
CASES: Final = (
    Case(name="leaks memory", fault=Fault(kind="leak", at="create", once=True, bytes=200 * 2**20)),
    Case(name="configures slowly", fault=hang("configure", seconds=1.0), is_replaced=False),
    Case(name="hangs in configure", fault=hang("configure"), scope=NOTHING, code="Interrupted", machines=0, seconds=3),
    Case(name="hangs before a create", fault=hang("create"), scope=UNKNOWN, code="Interrupted", machines=0, seconds=3),
    Case(name="hangs after a create", fault=hang("create", done=True), scope=UNKNOWN, code="Interrupted", seconds=3),
    Case(
        name="hangs in a read",
        fault=hang("read"),
        command=Command.REFRESH,
        scope=NOTHING,
        code="Interrupted",
        seconds=3,
    ),
    Case(
        name="hangs in a destroy",
        fault=hang("destroy"),
        command=Command.DESTROY,
        scope=UNKNOWN,
        code="Interrupted",
        seconds=3,
    ),
    Case(name="crashes in configure", fault=crash("configure"), scope=NOTHING, code="PluginLost", machines=0),
    Case(name="crashes before a create", fault=crash("create"), scope=UNKNOWN, code="PluginLost", machines=0),
    Case(name="crashes after a create", fault=crash("create", done=True), scope=UNKNOWN, code="PluginLost"),
    Case(
        name="crashes in its third call",
        fault=crash("configure", call=3),
        command=Command.DESTROY,
        scope=NOTHING,
        code="PluginLost",
    ),
    Case(
        name="crashes after a destroy",
        fault=crash("destroy", done=True),
        command=Command.DESTROY,
        scope=UNKNOWN,
        code="PluginLost",
        machines=0,
    ),
    *(
        Case(name=f"error {code}", fault=error(code), scope=scope, code=code, machines=0, is_replaced=False)
        for code, scope in CODES.items()
    ),
    Case(
        name="error of no table",
        fault=error("OddThing.Happened"),
        scope=Scope.UNCLASSIFIED,
        code="OddThing.Happened",
        machines=0,
        is_replaced=False,
    ),
    Case(
        name="writes 20 MB to stderr",
        fault=Fault(kind="stderr", at="create", once=True, bytes=20 * 2**20),
        is_replaced=False,
    ),
    Case(name="writes secrets to stderr", fault=Fault(kind="secret", at="configure"), is_replaced=False),
    Case(
        name="ends before its handshake",
        lines=(f"import sys; sys.exit('secret={SECRET}')",),
        code="ProviderStartError",
        machines=0,
    ),
    Case(
        name="hangs before its handshake", lines=("import time; time.sleep(600)",), code="HandshakeTimeout", machines=0
    ),
)


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of a fault."""

    scope: str
    code: str
    is_replaced: bool
    served: int
    machines: int
    left: tuple[str, ...]

    def problems(self, case: Case) -> list[str]:
        expected = {
            "scope": case.scope,
            "code": case.code,
            "is_replaced": case.is_replaced,
            "served": len(WAITERS),
            "machines": case.machines,
            "left": (),
        }
        return [
            f"{name} is {getattr(self, name)}, expected {value}"
            for name, value in expected.items()
            if getattr(self, name) != value
        ]


async def play(case: Case) -> Outcome:
    """Play one case in a place of its own."""
    with new_place() as place, logged() as texts:
        if case.lines:
            place = place.with_plugin(write_executable(place.plugin, lines=case.lines))
        start_seconds = START_SECONDS if case.lines else 60.0
        async with (
            schedulers(place.folder, start_seconds=start_seconds, **LIMITS) as shared,
            driver(place, shared, codes=CODES, grace_seconds=0.5) as runs,
        ):
            met, others = await _meet(case, place, shared, runs)
        left = [*map(str, having(place.folder)), *map(str, sockets(place.folder)), *map(str, place.secrets_on_disk())]
        left += [text for text in (*texts, repr(met)) if SECRET in text]
        pids = {call.pid for call in place.ledger.calls("configure")}
        machines = [machine for machine in place.ledger.machines() if machine["name"] == "w-1"]
        return Outcome(
            scope=met.failure.scope if isinstance(met, Run) and met.failure else "",
            code=(met.failure.code if met.failure else "") if isinstance(met, Run) else type(met).__name__,
            is_replaced=len(pids) > isinstance(met, Run),
            served=sum(isinstance(other, Run) and other.failure is None for other in others),
            machines=len(machines),
            left=tuple(left),
        )


async def _meet(
    case: Case, place: Place, shared: SharedScheduler, runs: Driver
) -> tuple[Run | BaseException, Sequence[Run | BaseException]]:
    """The run that meets the fault, and those that wait meanwhile."""
    state = None
    if case.command is not Command.APPLY:
        applied = await runs.run(Command.APPLY, "w-1", place.job(), state=None, deadline=soon())
        state = applied.state
    if case.fault is not None:
        place.ledger.inject(case.fault)
    met = runs.start(case.command, "w-1", place.job(), state=state, deadline=soon(case.seconds))
    await until(lambda: met.is_in_cli or not met.is_running)
    if case.lines:  # no process of this binary ever serves: the waiters come with the right one
        place = place.with_plugin(write_executable(place.plugin))
    waiting = [
        runs.start(Command.APPLY, name, place.job(variables={"name": name}), state=None, deadline=soon())
        for name in WAITERS
    ]
    results = await asyncio.gather(*(operation.wait() for operation in (met, *waiting)), return_exceptions=True)
    if case.fault is not None and case.fault.kind == "leak":
        leaking = place.ledger.calls("configure")[0].pid
        await until(lambda: not psutil.pid_exists(leaking))  # its memory may be sampled after the last waiter
        await runs.run(Command.APPLY, "w-after", place.job(variables={"name": "w-after"}), state=None, deadline=soon())
    return results[0], results[1:]


@contextlib.contextmanager
def logged() -> Iterator[list[str]]:
    """Texts that are logged meanwhile."""
    texts: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            texts.append(record.getMessage())

    handler = Keep()
    logging.getLogger("slipway_terraform").addHandler(handler)
    try:
        yield texts
    finally:
        logging.getLogger("slipway_terraform").removeHandler(handler)


def having(folder: Path) -> list[psutil.Process]:
    """Processes that have this folder in their command or environment, but this one."""
    found = []
    for process in psutil.process_iter():
        try:
            given = [*process.cmdline(), *process.environ().values()]
        except psutil.Error:
            continue
        if process.pid != os.getpid() and any(str(folder) in text for text in given):
            found.append(process)
    return found


def sockets(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_socket()]


async def main() -> int:
    if reason := packages.missing():
        print(reason, file=sys.stderr)
        return 2
    only = os.environ.get("ONLY", "")
    chosen = [case for case in CASES if only in case.name]
    if not chosen:
        print(
            f"ONLY={only}: no fault has this in its name; there is {', '.join(case.name for case in CASES)}",
            file=sys.stderr,
        )
        return 2
    slots, bad = asyncio.Semaphore(AT_A_TIME), 0

    async def line(case: Case) -> bool:
        async with slots:
            outcome = await play(case)
        problems = outcome.problems(case)
        result = f"{outcome.scope or '-':<16}{outcome.code or 'success':<22}"
        process = "replaced" if outcome.is_replaced else "kept"
        rest = f"process {process:<9} waiters {outcome.served} of {len(WAITERS)}  left {len(outcome.left)}"
        print(f"{'FAILED' if problems else 'ok':<7}{case.name:<28}{result}{rest}", flush=True)
        for problem in problems:
            print(f"       {problem}", flush=True)
        return not problems

    done = await asyncio.gather(*map(line, chosen))
    bad = len(done) - sum(done)
    print(f"{len(done) - bad} of {len(done)} faults as expected")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
