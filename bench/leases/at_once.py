"""Starts of many jobs that arrive at once, and of launches, by the lease-broker's decisions and the client's."""

from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Final

from bench.leases.broker import Broker, at
from slipway_api.http.lease_broker import QueuedRequest
from slipway_client.cli.launch_pacing import OPERATION, Launches, pace_launches, slowest, unpaced
from slipway_client.leases.admission import Admission, FailOpen, starts_at, waits
from slipway_common.declaration.models import LeasePool
from slipway_lease_broker.domain.ledger import Lease
from slipway_lease_broker.domain.report import most_per_minute
from slipway_lease_broker.domain.terms import Policy
from slipway_lease_broker.http.declared import terms
from slipway_provisioner.providers.aws.adapter import Ec2

LIMIT: Final = 50
HOLD_SECONDS: Final = 1200.0
MAX_WAIT_SECONDS: Final = 1200.0
CROWDS: Final = (50, 250)
# Before, the default had no longest interval, so that it was half a hold in a pool of one.
PACINGS: Final[Mapping[str, Policy]] = {
    "old default": Policy(max_interval_seconds=HOLD_SECONDS),
    "new default": Policy(),
    "none": Policy(pacing="off"),
}
LAUNCH_SECONDS: Final = 20.0  # from grant to registration, when a launch releases its unit

FULL: Final = QueuedRequest(
    request_id="r",
    position=1,
    eta_seconds=None,
    retry_after_seconds=1.0,
    reason="no unit is free",
    cause="full",
    held_until=None,
)


def starts(policy: Policy, jobs: int, limit: int = LIMIT) -> list[float]:
    """Seconds at which `jobs` start that arrive at once and hold their unit for the whole hold."""
    return list(_starts(Broker(limit, HOLD_SECONDS, policy), jobs, "install", HOLD_SECONDS))


def launches(jobs: int) -> list[float]:
    """Seconds at which `jobs` launches start in a pool `{limit: 50}` of an `aws` account, as `slipway apply` declares
    it."""
    declared = LeasePool.model_validate({"id": "aws-main", "limit": LIMIT}).model_dump(mode="json")
    rates = slowest([Launches("aws-main", "aws-main", "aws")], {"aws": Ec2.launches_per_second})
    pace_launches(unpaced([declared]), rates)
    pool = terms(LeasePool.model_validate(declared))
    return list(_starts(Broker(pool.limit_units, pool.hold_seconds, pool.policy), jobs, OPERATION, LAUNCH_SECONDS))


def _starts(broker: Broker, jobs: int, operation: str, held_seconds: float) -> Iterator[float]:
    for number in range(jobs):
        broker.request(str(number), 0.0, operation=operation)
    held: list[tuple[float, Lease]] = []  # in order of their grants, and so of their ends
    now = 0.0
    while broker.requests:
        while held and held[0][0] <= now:
            broker.release(held.pop(0)[1], now)
        for lease in broker.decide(now):
            held.append((now + held_seconds, lease))
            yield now
        nexts = [*([held[0][0]] if held else []), *([] if broker.wake_at is None else [broker.wake_at])]
        now = min(nexts, default=now)


def unleased(jobs: int, seed: int) -> list[float]:
    """Seconds at which `jobs` with `--fail-open always` start that arrive at once in a full pool, where no unit becomes
    free within their maximum wait."""
    chance = Random(f"unleased/{seed}")
    found = []
    for _ in range(jobs):
        asked = Admission(
            begun_at=0.0, max_wait_seconds=MAX_WAIT_SECONDS, fail_open=FailOpen.ALWAYS, chance=chance.random()
        )
        answered = waits(asked, FULL, asked_at=0.0, wait_seconds=0.0, now=0.0)
        found.append(starts_at(answered))
    return sorted(found)


def in_a_minute(seconds: Sequence[float]) -> int:
    """Most starts within any 60 s."""
    return most_per_minute((at(start), 1) for start in seconds)


def most_in_a_third(seconds: Sequence[float], begin: float, end: float) -> float:
    """Largest share of the starts in any third of the time between `begin` and `end`."""
    third = (end - begin) / 3
    most = max(sum(first <= start < first + third for start in seconds) for first in seconds)
    return most / len(seconds)
