"""`slipway lease run`: a command under a lease. Admission before it starts, one release after it ends."""

import asyncio
import os
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from slipway_api.http.lease_broker import Lease
from slipway_client.leases.admitting import Unleased
from slipway_client.leases.child import FORWARDED, FROM_TERMINAL, Child, in_front_of_terminal
from slipway_client.leases.environment import of_command, without_secrets
from slipway_client.leases.holding import LeaseEnd
from slipway_client.leases.session import Session
from slipway_client.leases.status_file import Status
from slipway_common.base.process.groups import CannotStart

STOP_SIGNALS: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})


class Outcome(msgspec.Struct, frozen=True):
    """Outcome of the command: its exit code, 128 + n for signal n. `resend`: the signal of the terminal that ended it;
    our caller got it too and expects us to end by it. `cause`: code of the reason why it was not started."""

    exit_code: int
    resend: signal.Signals | None = None
    cause: str | None = None


async def run(
    session: Session,
    lease_pool_id: str,
    command: Sequence[str],
    *,
    on_loss: signal.Signals | None,
    throttled: Collection[int] = (),
    passes_token: bool = False,
    granted: Callable[[Lease], None],
    report: Callable[[Status], None] = lambda status: None,
    log: Callable[[str], None],
) -> Outcome:
    """Run a command under a lease. Raises what Session.acquire raises, before the command starts only. The command gets
    the signal `on_loss` if its lease is lost, or this process killed; None: it goes on without one. An exit code in
    `throttled` is reported to the broker as a throttle of the account. `report` gets the status of the command as it
    starts, and at its end. It does not get our token, unless `passes_token`, but one that is bound to its lease."""
    running = _Running(on_loss, log)
    running.catch_signals()
    inherited = os.environ if passes_token else without_secrets(os.environ)

    async def prepare() -> tuple[Lease | Unleased, dict[str, str]]:
        admission = await session.acquire()
        if isinstance(admission, Unleased):
            return admission, of_command(inherited, lease_pool_id)
        granted(admission)
        token = "" if passes_token else await session.lease_token()
        return admission, of_command(inherited, lease_pool_id, admission, token)

    preparing = asyncio.create_task(prepare())
    await asyncio.wait((preparing, running.signalled), return_when=asyncio.FIRST_COMPLETED)
    code, result = 0, "cancelled"
    try:
        if not running.signalled.done():
            admission, environment = await preparing
            cause = admission.cause if isinstance(admission, Unleased) else None
            status = Status(started=True, leased=cause is None, cause=cause)
            report(status)  # before it starts, so that it can read the file itself
            ended = await running.run_until_exit(session, admission, command, environment)
            code, result = ended.exit_code, running.result(ended)
            report(replace(status, started=ended.cause is None, cause=ended.cause or cause, exit_code=code))
            return ended
        preparing.cancel()
        await asyncio.gather(preparing, return_exceptions=True)
        ended = _by_signal(running.signalled.result())
        report(Status(started=False, leased=False, cause="signal", exit_code=ended.exit_code))
        return ended
    finally:
        await session.withdraw()
        await session.release(result, throttled=code in throttled)


async def run_switched_off(
    command: Sequence[str],
    *,
    passes_token: bool = False,
    report: Callable[[Status], None],
    log: Callable[[str], None],
) -> Outcome:
    """Run a command without a lease, since leases are switched off; see run."""
    running = _Running(None, log)
    running.catch_signals()
    status = Status(started=True, leased=False, cause="switched-off")
    report(status)
    ended = await running.run_alone(command, os.environ if passes_token else without_secrets(os.environ))
    report(replace(status, started=ended.cause is None, cause=ended.cause or status.cause, exit_code=ended.exit_code))
    return ended


class _Running:
    def __init__(self, on_loss: signal.Signals | None, log: Callable[[str], None]) -> None:
        self.signalled: asyncio.Future[signal.Signals] = asyncio.get_running_loop().create_future()
        self._on_loss = on_loss
        self._log = log
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
        self,
        session: Session,
        admission: Lease | Unleased,
        command: Sequence[str],
        environment: Mapping[str, str],
    ) -> Outcome:
        """Start the command, renew its lease while it runs, and wait for it."""
        child = self._start(command, environment)
        if isinstance(child, Outcome):
            return child
        ending = asyncio.create_task(child.wait())
        holding = asyncio.create_task(session.hold())
        await asyncio.wait({ending, holding}, return_when=asyncio.FIRST_COMPLETED)
        if holding.done() and not ending.done() and isinstance(admission, Lease):
            self._lease_end(holding.result())
        code = await ending
        holding.cancel()
        await asyncio.wait({holding})
        return _of_exit(code)

    async def run_alone(self, command: Sequence[str], environment: Mapping[str, str]) -> Outcome:
        """Start the command, and wait for it."""
        child = self._start(command, environment)
        return child if isinstance(child, Outcome) else _of_exit(await child.wait())

    def _start(self, command: Sequence[str], environment: Mapping[str, str]) -> Child | Outcome:
        """Start the command; returns the outcome if it cannot be started."""
        try:
            self._child = Child.start(command, environment, self._on_loss)
        except CannotStart as error:
            self._log(str(error))
            return Outcome(error.exit_code, cause="cannot-start")
        if self.signalled.done():  # it arrived while the child was starting
            self._child.forward(self.signalled.result())
        return self._child

    def _lease_end(self, over: LeaseEnd) -> None:
        if not over.lost:
            self._log(f"lease ended ({over.reason}); the command continues without a lease")
        elif self._on_loss is None or self._child is None:
            charged = "; the rest of its hold is charged as an unleased start" if over.uncounted else ""
            self._log(f"lease lost: {over.reason}; the command continues{charged}")
        else:
            self._log(f"lease lost: {over.reason}; sending {self._on_loss.name} to the command")
            self._child.send(self._on_loss)


def _of_exit(code: int) -> Outcome:
    return _by_signal(signal.Signals(-code)) if code < 0 else Outcome(code)


def _by_signal(signum: signal.Signals) -> Outcome:
    return Outcome(128 + signum, signum if signum in FROM_TERMINAL and in_front_of_terminal() else None)
