"""`slipway lease run`: a command under a lease. Admission before it starts, one release after it ends."""

import asyncio
import os
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

from slipway_client.leases.child import FORWARDED, FROM_TERMINAL, Child, in_front_of_terminal
from slipway_client.leases.holding import LeaseEnd
from slipway_client.leases.session import Session, Unleased
from slipway_client.leases.terms import Lease
from slipway_common.base.process_group import CannotStart

LEASE_ID: Final = "SLIPWAY_LEASE_ID"
FENCING_TOKEN: Final = "SLIPWAY_FENCING_TOKEN"  # noqa: S105 (a number that grows, no secret)
LEASE_POOL: Final = "SLIPWAY_LEASE_POOL"
STOP_SIGNALS: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})


class Outcome(msgspec.Struct, frozen=True):
    """Outcome of the command: its exit code, 128 + n for signal n. `resend`: the signal of the terminal that ended it;
    our caller got it too and expects us to end by it."""

    exit_code: int
    resend: signal.Signals | None = None


async def run(
    session: Session,
    lease_pool_id: str,
    command: Sequence[str],
    *,
    on_loss: signal.Signals | None,
    throttled: Collection[int] = (),
    granted: Callable[[Lease], None],
    log: Callable[[str], None],
) -> Outcome:
    """Run a command under a lease. Raises what Session.acquire raises, before the command starts only. The command gets
    the signal `on_loss` if its lease is lost, or this process killed; None: it goes on without one. An exit code in
    `throttled` is reported to the broker as a throttle of the account."""
    running = _Running(on_loss, log)
    running.catch_signals()
    acquiring = asyncio.create_task(session.acquire())
    either: set[asyncio.Future[Any]] = {acquiring, running.signalled}
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    code, result = 0, "cancelled"
    try:
        if running.first is None:
            admission = await acquiring
            if isinstance(admission, Lease):
                granted(admission)
            ended = await running.run_until_exit(session, lease_pool_id, admission, command)
            code, result = ended.exit_code, running.result(ended)
            return ended
        acquiring.cancel()
        await asyncio.gather(acquiring, return_exceptions=True)
        return _by_signal(running.first)
    finally:
        await session.withdraw()
        await session.release(result, throttled=code in throttled)


class _Running:
    def __init__(self, on_loss: signal.Signals | None, log: Callable[[str], None]) -> None:
        self.first: signal.Signals | None = None
        self.signalled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
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
        elif self.first is None:
            self.first = signum
            self.signalled.set_result(None)

    async def run_until_exit(
        self, session: Session, lease_pool_id: str, admission: Lease | Unleased, command: Sequence[str]
    ) -> Outcome:
        """Start the command, renew its lease while it runs, and wait for it."""
        try:
            self._child = await Child.start(command, variables(os.environ, lease_pool_id, admission), self._on_loss)
        except CannotStart as error:
            self._log(str(error))
            return Outcome(error.exit_code)
        if self.first is not None:  # it arrived while the child was starting
            self._child.forward(self.first)
        ending = asyncio.create_task(self._child.wait())
        holding = asyncio.create_task(session.hold()) if isinstance(admission, Lease) else None
        if holding is not None:
            await asyncio.wait({ending, holding}, return_when=asyncio.FIRST_COMPLETED)
            if holding.done() and not ending.done():
                self._lease_end(holding.result())
        code = await ending
        if holding is not None:
            holding.cancel()
            await asyncio.wait({holding})
        return _by_signal(signal.Signals(-code)) if code < 0 else Outcome(code)

    def _lease_end(self, over: LeaseEnd) -> None:
        if not over.lost:
            self._log(f"lease ended ({over.reason}); the command continues without a lease")
        elif self._on_loss is None or self._child is None:
            charged = "; the rest of its hold is charged as an unleased start" if over.uncounted else ""
            self._log(f"lease lost: {over.reason}; the command continues{charged}")
        else:
            self._log(f"lease lost: {over.reason}; sending {self._on_loss.name} to the command")
            self._child.send(self._on_loss)


def _by_signal(signum: signal.Signals) -> Outcome:
    return Outcome(128 + signum, signum if signum in FROM_TERMINAL and in_front_of_terminal() else None)


def variables(environment: Mapping[str, str], lease_pool_id: str, admission: Lease | Unleased) -> dict[str, str]:
    """Environment of the command: ours, with the variables of its lease. Those of an outer lease are removed."""
    kept = {name: value for name, value in environment.items() if name not in {LEASE_ID, FENCING_TOKEN}}
    kept[LEASE_POOL] = lease_pool_id
    if isinstance(admission, Lease):
        kept |= {LEASE_ID: admission.lease_id, FENCING_TOKEN: str(admission.fencing_token)}
    return kept
