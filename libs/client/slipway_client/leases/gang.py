"""Gang leases: leases of several pools, all or none, granted by the broker in one transaction."""

import asyncio
import contextlib
from collections.abc import Callable
from random import Random

from slipway_client.leases import admission
from slipway_client.leases.admission import Admission, Cause, FailOpen
from slipway_client.leases.broker import Broker
from slipway_client.leases.errors import NotAdmitted, Refused, Unreachable
from slipway_client.leases.session import HOLD_SECONDS, Unleased
from slipway_client.leases.state import Spooled, State
from slipway_client.leases.terms import Gang, Lease, Start
from slipway_client.leases.unleased import LAST_TRY_SECONDS
from slipway_client.transport.exchange import MISDIRECTED, NoAnswer
from slipway_client.view import moments
from slipway_common.base.clock import monotonic_seconds, utc_now


async def acquire(
    broker: Broker, wanted: Gang, begun: Admission, state: State, *, log: Callable[[str], None]
) -> list[Lease] | Unleased:
    """Wait until all leases are granted, or until a start without them is allowed. Raises NotAdmitted, Unreachable and
    Refused, but not in mode `always`; then none is held."""
    rng, problem = Random(), ""  # noqa: S311 (spreads repetitions)
    step = begun
    while True:
        match admission.next_step(step, monotonic_seconds()):
            case admission.Request(wait_seconds):
                asked_at, until = monotonic_seconds(), admission.decided_at(step)
                is_patient = step.fail_open is not FailOpen.ALWAYS
                try:
                    async with asyncio.timeout(None if is_patient else until - asked_at):
                        answer = await broker.acquire_gang(wanted, wait_seconds, within_seconds=until - asked_at)
                except TimeoutError:
                    continue
                except NoAnswer as error:
                    step, problem = (
                        admission.unanswered(
                            step,
                            asked_at=asked_at,
                            now=monotonic_seconds(),
                            chance=rng.random(),
                            misdirected=error.problem in MISDIRECTED,
                        ),
                        error.problem,
                    )
                    if step.backoff.failures == 1:
                        log(f"lease-broker unavailable, retrying: {error}")
                    continue
                except Refused as refused:
                    if is_patient:
                        raise
                    step, problem = admission.refused(step, monotonic_seconds()), refused.slug or "refused"
                    log(str(refused))
                    continue
                if isinstance(answer, list):
                    return answer
                now = monotonic_seconds()
                step = admission.waits(step, answer, asked_at=asked_at, wait_seconds=wait_seconds, now=now)
            case admission.Wait(until):
                await asyncio.sleep(max(0.0, until - monotonic_seconds()))
            case admission.TakePlace():
                seconds = max(
                    state.slot(member.pool, member.units, member.hold_seconds or HOLD_SECONDS, rng.random())
                    for member in wanted.members
                )
                step = admission.paced(step, monotonic_seconds() + seconds)
            case admission.StartUnleased():
                return await _start_unleased(broker, wanted, step, problem, state, log)
            case admission.GiveUp(unavailable):
                waited = moments.about(begun.max_wait_seconds)
                if unavailable:
                    raise Unreachable(f"the lease-broker at {broker.url} has not answered within {waited}")
                raise NotAdmitted(f"not all leases were granted within {waited}; none is held")


async def _start_unleased(
    broker: Broker, wanted: Gang, step: Admission, problem: str, state: State, log: Callable[[str], None]
) -> list[Lease] | Unleased:
    """Record a start without a lease in each pool, and report it; returns the leases as which it was charged. Each has
    the id of the gang's request, which then waits no longer."""
    waiting = step.waiting
    cause = problem if step.cause is Cause.REFUSED else "unavailable" if waiting is None else waiting.cause or "full"
    log(f"starting without leases ({cause})")
    entries = [
        Spooled(
            lease_pool_id=member.pool,
            start=Start(
                request_id=wanted.request_id,
                operation=wanted.operation,
                units=member.units,
                started_at=utc_now().isoformat(),
                hold_seconds=member.hold_seconds,
                cause="unavailable" if waiting is None else "max_wait",
            ),
        )
        for member in wanted.members
    ]
    if step.cause is Cause.REFUSED:
        for entry in entries:
            state.record_uncharged(entry)
        return Unleased(cause)
    for entry in entries:
        state.spool(entry)
    charged = []
    with contextlib.suppress(TimeoutError, NoAnswer, Refused):
        async with asyncio.timeout(LAST_TRY_SECONDS):
            for entry in entries:
                charged.append(await broker.report_unleased(entry.lease_pool_id, entry.start))
                state.reported(entry)
    leases = [lease for lease in charged if lease is not None]
    return leases if len(leases) == len(entries) else Unleased(cause)
