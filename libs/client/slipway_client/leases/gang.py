"""Leases of several pools at once, all or none: one request that the broker grants in one transaction."""

import asyncio
from collections.abc import Callable
from random import Random

from slipway_client import moments
from slipway_client.leases import asking
from slipway_client.leases.asking import Asking, FailOpen
from slipway_client.leases.broker import Broker
from slipway_client.leases.errors import NotAdmitted, Unreachable
from slipway_client.leases.terms import Gang, Lease
from slipway_client.worker.http import NoAnswer
from slipway_common.clock import monotonic_seconds


async def acquire(
    url: str, token: str, wanted: Gang, *, max_wait_seconds: float, say: Callable[[str], None]
) -> list[Lease]:
    """Wait until all are granted. Raises NotAdmitted, Unreachable and Refused; then none is."""
    broker, rng = Broker(url, token), Random()  # noqa: S311 (spreads repetitions)
    state = Asking(begun_at=monotonic_seconds(), max_wait_seconds=max_wait_seconds, fail_open=FailOpen.PESSIMISTIC)
    while True:
        match asking.next_step(state, monotonic_seconds()):
            case asking.Ask(wait_seconds):
                asked_at = monotonic_seconds()
                try:
                    answer = await broker.acquire_gang(wanted, wait_seconds)
                except NoAnswer as error:
                    now = monotonic_seconds()
                    state = asking.unheard(state, asked_at=asked_at, now=now, chance=rng.random())
                    if state.silence.failures == 1:
                        say(f"the lease-broker does not answer ({error}); will go on asking")
                    continue
                if isinstance(answer, list):
                    return answer
                now = monotonic_seconds()
                state = asking.waits(state, answer, asked_at=asked_at, wait_seconds=wait_seconds, now=now)
            case asking.Rest(until):
                await asyncio.sleep(max(0.0, until - monotonic_seconds()))
            case asking.GiveUp(silent):
                waited = moments.about(max_wait_seconds)
                if silent:
                    raise Unreachable(f"the lease-broker at {url} has not answered within {waited}")
                raise NotAdmitted(f"not all leases within {waited}; none is held")
