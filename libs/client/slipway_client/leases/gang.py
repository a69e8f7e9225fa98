"""Gang leases: leases of several pools, all or none, granted by the broker in one transaction."""

import asyncio
from collections.abc import Callable
from random import Random

from slipway_client.leases import admission
from slipway_client.leases.admission import Admission, FailOpen
from slipway_client.leases.broker import Broker
from slipway_client.leases.errors import NotAdmitted, Unreachable
from slipway_client.leases.terms import Gang, Lease
from slipway_client.transport.exchange import NoAnswer
from slipway_client.view import moments
from slipway_common.base.clock import monotonic_seconds


async def acquire(
    url: str, token: str, wanted: Gang, *, max_wait_seconds: float, log: Callable[[str], None]
) -> list[Lease]:
    """Wait until all leases are granted. Raises NotAdmitted, Unreachable and Refused; then none is held."""
    broker, rng = Broker(url, token), Random()  # noqa: S311 (spreads repetitions)
    state = Admission(begun_at=monotonic_seconds(), max_wait_seconds=max_wait_seconds, fail_open=FailOpen.PESSIMISTIC)
    while True:
        match admission.next_step(state, monotonic_seconds()):
            case admission.Request(wait_seconds):
                asked_at = monotonic_seconds()
                within_seconds = admission.decided_at(state) - asked_at
                try:
                    answer = await broker.acquire_gang(wanted, wait_seconds, within_seconds=within_seconds)
                except NoAnswer as error:
                    now = monotonic_seconds()
                    state = admission.unanswered(state, asked_at=asked_at, now=now, chance=rng.random())
                    if state.backoff.failures == 1:
                        log(f"lease-broker unavailable, retrying: {error}")
                    continue
                if isinstance(answer, list):
                    return answer
                now = monotonic_seconds()
                state = admission.waits(state, answer, asked_at=asked_at, wait_seconds=wait_seconds, now=now)
            case admission.Wait(until):
                await asyncio.sleep(max(0.0, until - monotonic_seconds()))
            case admission.GiveUp(unavailable):
                waited = moments.about(max_wait_seconds)
                if unavailable:
                    raise Unreachable(f"the lease-broker at {url} has not answered within {waited}")
                raise NotAdmitted(f"not all leases were granted within {waited}; none is held")
