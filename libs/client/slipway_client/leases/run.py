"""`slipway lease run`: a command under a lease. Admission before it starts, one release after it ends."""

import asyncio
import os
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from slipway_api.http.lease_broker import Lease
from slipway_client.leases.admitting import Unleased
from slipway_client.leases.child import FORWARDED, FROM_TERMINAL, Child, in_front_of_terminal
from slipway_client.leases.environment import of_command, without_secrets
from slipway_client.leases.holding import LeaseEnd
from slipway_client.leases.log import log
from slipway_client.leases.session import Session
from slipway_common.base.process.groups import CannotStart

STOP_SIGNALS: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})


class Outcome(msgspec.Struct, frozen=True):
    """Outcome of the command: its exit code, 128 + n for signal n. `resend`: the signal of the terminal that ended it;
    our caller got it too and expects us to end by it. `cause`: code of the reason why it was not started."""

    exit_code: int
    resend: signal.Signals | None = None
    cause: str | None = None


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """Status of the command, for scripts. `cause`: code of the reason why it has no lease, or was not started; None if
    it has one. `exit_code`: that of `run`; None while the command runs."""

    started: bool
    leased: bool
    cause: str | None
    exit_code: int | None = None


class Job(NamedTuple):
    """A command to run. It gets the signal `on_loss` if its lease is lost, or this process killed; None: it goes on
    without one. An exit code in `throttled` is reported to the broker as a throttle of the account. `status_file` has
    the status of the command from its start on. Unless `passes_token`, it gets none of our secrets."""

    command: Sequence[str]
    passes_token: bool
    status_file: Path | None
    on_loss: signal.Signals | None = None
    throttled: Collection[int] = ()

    @property
    def inherited(self) -> Mapping[str, str]:
        """Environment of the command, but for its lease."""
        return os.environ if self.passes_token else without_secrets(os.environ)

    def report(self, status: Status) -> None:
        """Replace the status file atomically, so that no reader finds half of it. A file that cannot be written is
        logged, and changes nothing else."""
        if (path := self.status_file) is None:
            return
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            unfinished.write_bytes(msgspec.json.encode(status) + b"\n")
            unfinished.rename(path)
        except OSError as error:
            log(f"cannot write the status file {path}: {error.strerror}")


async def run(session: Session, lease_pool_id: str, job: Job, granted: Callable[[Lease], None]) -> Outcome:
    """Run a command under a lease. Raises what Session.acquire raises, before the command starts only. In place of our
    token it gets one that is bound to its lease."""
    running = _Running(job)
    running.catch_signals()
    inherited = job.inherited

    async def prepare() -> tuple[str | None, dict[str, str]]:
        admission = await session.acquire()
        if isinstance(admission, Unleased):
            return admission.cause, of_command(inherited, lease_pool_id)
        granted(admission)
        token = "" if job.passes_token else await session.lease_token()
        return None, of_command(inherited, lease_pool_id, admission, token)

    preparing = asyncio.create_task(prepare())
    await asyncio.wait((preparing, running.signalled), return_when=asyncio.FIRST_COMPLETED)
    code, result = 0, "cancelled"
    try:
        if not running.signalled.done():
            cause, environment = await preparing
            ended = await running.run_until_exit(environment, cause, session)
            code, result = ended.exit_code, running.result(ended)
            return ended
        preparing.cancel()
        await asyncio.gather(preparing, return_exceptions=True)
        ended = _by_signal(running.signalled.result())
        job.report(Status(started=False, leased=False, cause="signal", exit_code=ended.exit_code))
        return ended
    finally:
        await session.withdraw()
        await session.release(result, throttled=code in job.throttled)


async def run_switched_off(job: Job) -> Outcome:
    """Run a command without a lease, since leases are switched off."""
    running = _Running(job)
    running.catch_signals()
    return await running.run_until_exit(job.inherited, "switched-off")


class _Running:
    def __init__(self, job: Job) -> None:
        self.signalled: asyncio.Future[signal.Signals] = asyncio.get_running_loop().create_future()
        self._job = job
        self._child: Child | None = None
        self._asked_to_end = False

    def catch_signals(self) -> None:
        """Install signal handlers; called before anything is requested. A signal that our caller ignores, as `nohup`
        does, stays ignored by us; the command starts with the default action for it."""
        for signum in FORWARDED:
            if signal.getsignal(signum) is not signal.SIG_IGN:
                asyncio.get_running_loop().add_signal_handler(signum, self._signal, signum)

    def result(self, ended: Outcome) -> str:
        """Result for the broker, which slows down failing tenants: a command that was asked to stop has not failed."""
        return "done" if not ended.exit_code else "cancelled" if self._asked_to_end else "failed"

    def _signal(self, signum: signal.Signals) -> None:
        self._asked_to_end = self._asked_to_end or signum in STOP_SIGNALS
        if self._child is not None:
            self._child.forward(signum)
        elif not self.signalled.done():
            self.signalled.set_result(signum)

    async def run_until_exit(
        self, environment: Mapping[str, str], cause: str | None, session: Session | None = None
    ) -> Outcome:
        """Start the command, and wait for it. `cause`: code of the reason why it has no lease; None if it has one,
        which is renewed while it runs."""
        status = Status(started=True, leased=cause is None, cause=cause)
        self._job.report(status)  # before it starts, so that it can read the file itself
        try:
            self._child = Child.start(self._job.command, environment, self._job.on_loss)
        except CannotStart as error:
            log(str(error))
            ended = Outcome(error.exit_code, cause="cannot-start")
        else:
            if self.signalled.done():  # it arrived while the child was starting
                self._child.forward(self.signalled.result())
            ended = await self._end(self._child, session, is_leased=cause is None)
        end = replace(status, started=ended.cause is None, cause=ended.cause or cause, exit_code=ended.exit_code)
        self._job.report(end)
        return ended

    async def _end(self, child: Child, session: Session | None, *, is_leased: bool) -> Outcome:
        """Wait for the command, and renew its lease meanwhile, or that as which its start is charged."""
        ending = asyncio.create_task(child.wait())
        if session is not None:
            holding = asyncio.create_task(session.hold())
            await asyncio.wait({ending, holding}, return_when=asyncio.FIRST_COMPLETED)
            if holding.done() and not ending.done() and is_leased:
                self._lease_end(child, holding.result())
            await asyncio.wait({ending})
            holding.cancel()
            await asyncio.wait({holding})
        code = await ending
        return _by_signal(signal.Signals(-code)) if code < 0 else Outcome(code)

    def _lease_end(self, child: Child, over: LeaseEnd) -> None:
        on_loss = self._job.on_loss
        if not over.lost:
            log(f"lease ended ({over.reason}); the command continues without a lease")
        elif on_loss is None:
            charged = "; the rest of its hold is charged as an unleased start" if over.uncounted else ""
            log(f"lease lost: {over.reason}; the command continues{charged}")
        else:
            log(f"lease lost: {over.reason}; sending {on_loss.name} to the command")
            child.send(on_loss)


def _by_signal(signum: signal.Signals) -> Outcome:
    return Outcome(128 + signum, signum if signum in FROM_TERMINAL and in_front_of_terminal() else None)
