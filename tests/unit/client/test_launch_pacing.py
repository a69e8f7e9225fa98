"""Pacing of launches by the API of their provider, as `slipway apply` writes it."""

from typing import Any

import pytest

from slipway_api.http.lease_pools import LeasePace, LeasePool
from slipway_client.cli.launch_pacing import Launches, hints, pace_launches, slowest, unpaced
from tests.support.recorded import row

RATES = {"aws": 2.0, "slow": 0.1, "process": None}
LAUNCH = {"weight": 1, "pacing": None}


def pool(name: str, **terms: Any) -> dict[str, Any]:
    return {"id": name, "pacing": None, "operations": {}} | terms


def listed(name: str, **terms: Any) -> LeasePool:
    return row(LeasePool, pool(name, **terms))


DECLARED = [
    pool("a", pacing="off"),
    pool("a", pacing={"interval_seconds": 1, "burst": 1}),
    pool("a", operations={"launch": {"pacing": "off"}}),
]


@pytest.mark.parametrize("declared", DECLARED)
def test_declared_pacing_stays(declared: dict[str, Any]) -> None:
    """Pacing of the pool, and pacing of its launches."""
    assert unpaced([declared]) == {}


def test_launches_are_paced_at_the_rate_of_the_provider() -> None:
    """Only they: all other terms of the pool and of its operations stay."""
    mine = pool("a", operations={"launch": LAUNCH | {"weight": 3}, "install": LAUNCH})
    rates = slowest([Launches("aws-main", "a", "aws"), Launches("here", "b", "process")], RATES)
    said = pace_launches(unpaced([mine, pool("b"), pool("c")]), rates)
    pacing = {"interval_seconds": 0.5, "burst": 1}
    assert mine == pool("a", operations={"launch": {"weight": 3, "pacing": pacing}, "install": LAUNCH})
    assert said == {"a": "lease pool a: launches are paced by provider aws of account aws-main, 120 a minute"}


def test_the_slowest_provider_of_a_pool_counts() -> None:
    """Any of its accounts may launch all of its units."""
    rates = slowest([Launches("x", "a", "aws"), Launches("y", "a", "slow"), Launches("z", "a", "process")], RATES)
    assert rates["a"].pacing == LeasePace(interval_seconds=10)


def test_a_pool_that_is_declared_elsewhere_gets_a_hint() -> None:
    """With the command that paces its launches."""
    rates = slowest([Launches("aws-main", "a", "aws")], RATES)
    (hint,) = hints([listed("a"), listed("b"), listed("c", pacing="off")], rates)
    assert "`slipway lease set a --pacing 0.5s --operation launch --reason …`" in hint
    assert list(hints([listed("a", pacing="off")], rates)) == []
