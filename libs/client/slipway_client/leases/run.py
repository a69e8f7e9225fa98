"""`slipway lease run`: a command under a lease, in motion. Admission before it starts, one release after its end."""

import asyncio
import os
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

from slipway_client.leases.child import FROM_TERMINAL, PASSED_ON, Child, in_front_of_terminal
from slipway_client.leases.holding import Over
from slipway_client.leases.session import Session, Unleased
from slipway_client.leases.terms import Lease
from slipway_client.worker.process import CannotStart

LEASE_ID: Final = "SLIPWAY_LEASE_ID"
FENCING_TOKEN: Final = "SLIPWAY_FENCING_TOKEN"  # noqa: S105 (a number that grows, no secret)
LEASE_POOL: Final = "SLIPWAY_LEASE_POOL"
ASKING_TO_END: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})


class Ended(msgspec.Struct, frozen=True):
    """How it went: the command's exit code, 128 + n for signal n. `resend`: the signal of the terminal that ended it,
    which our caller has got too and waits to see us end by."""

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
    say: Callable[[str], None],
) -> Ended:
    """Raises what Session.acquire raises, while there is no command yet; nothing afterwards. An exit code in
    `throttled` is told to the broker as evidence against the account."""
    running = _Running(on_loss, say)
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
            ended = await running.live(session, lease_pool_id, admission, command)
            code, result = ended.exit_code, running.result(ended)
            return ended
        acquiring.cancel()
        await asyncio.gather(acquiring, return_exceptions=True)
        return _by_signal(running.first)
    finally:
        await session.withdraw()
        await session.release(result, throttled=code in throttled)


class _Running:
    def __init__(self, on_loss: signal.Signals | None, say: Callable[[str], None]) -> None:
        self.first: signal.Signals | None = None
        self.signalled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._on_loss = on_loss
        self._say = say
        self._child: Child | None = None
        self._asked_to_end = False

    def catch_signals(self) -> None:
        """Before anything is asked for. What our caller ignores, as `nohup` does, stays ignored."""
        for signum in PASSED_ON:
            if signal.getsignal(signum) is not signal.SIG_IGN:
                asyncio.get_running_loop().add_signal_handler(signum, self._signal, signum)

    def result(self, ended: Ended) -> str:
        """For the broker, which slows down whoever fails: a command that was asked to end has not failed."""
        return "done" if not ended.exit_code else "cancelled" if self._asked_to_end else "failed"

    def _signal(self, signum: signal.Signals) -> None:
        self._asked_to_end = self._asked_to_end or signum in ASKING_TO_END
        if self._child is not None:
            self._child.pass_on(signum)
        elif self.first is None:
            self.first = signum
            self.signalled.set_result(None)

    async def live(
        self, session: Session, lease_pool_id: str, admission: Lease | Unleased, command: Sequence[str]
    ) -> Ended:
        """The command's whole life."""
        try:
            self._child = await Child.start(command, variables(os.environ, lease_pool_id, admission), self._on_loss)
        except CannotStart as error:
            self._say(str(error))
            return Ended(error.exit_code)
        if self.first is not None:  # it came while the child was being made
            self._child.pass_on(self.first)
        ending = asyncio.create_task(self._child.wait())
        holding = asyncio.create_task(session.hold()) if isinstance(admission, Lease) else None
        if holding is not None:
            await asyncio.wait({ending, holding}, return_when=asyncio.FIRST_COMPLETED)
            if holding.done() and not ending.done():
                self._over(holding.result())
        code = await ending
        if holding is not None:
            holding.cancel()
            await asyncio.wait({holding})
        return _by_signal(signal.Signals(-code)) if code < 0 else Ended(code)

    def _over(self, over: Over) -> None:
        if not over.lost:
            self._say(f"the lease has ended ({over.reason}); the command goes on without one")
        elif self._on_loss is None or self._child is None:
            self._say(f"the lease is lost: {over.reason}; the command is not told")
        else:
            self._say(f"the lease is lost: {over.reason}; sending {self._on_loss.name} to the command")
            self._child.send(self._on_loss)


def _by_signal(signum: signal.Signals) -> Ended:
    return Ended(128 + signum, signum if signum in FROM_TERMINAL and in_front_of_terminal() else None)


def variables(environment: Mapping[str, str], lease_pool_id: str, admission: Lease | Unleased) -> dict[str, str]:
    """The command's environment: ours, and what it may show to whoever checks the token. Of another lease, which
    ours may be a part of, it learns nothing."""
    kept = {name: value for name, value in environment.items() if name not in {LEASE_ID, FENCING_TOKEN}}
    kept[LEASE_POOL] = lease_pool_id
    if isinstance(admission, Lease):
        kept |= {LEASE_ID: admission.lease_id, FENCING_TOKEN: str(admission.fencing_token)}
    return kept
