"""Tasks that end between a demand sample and a decision, which must not be replaced."""

from fractions import Fraction
from itertools import product

from slipway_provisioner.domain.accounting import shortfall, surplus, tasks
from slipway_provisioner.domain.pool import Demand, Fleet, Pool

POOL = Pool(id="p", min_capacity=0, max_capacity=100, scaling_ratio=Fraction(1))


def test_one_pending_task_launches_one_worker() -> None:
    """Exactly the pending tasks are launched for, for every sample and every number of its one-task workers that have
    ended since. Launches in flight are not repeated."""
    for pending, claimed, ended in product(range(6), range(6), range(6)):
        if ended > claimed:
            continue
        count = tasks(
            [Demand(source="q", pending=pending, claimed=claimed, gone=ended, stale=False)], trust_stale=False
        )
        serving = claimed - ended
        assert shortfall(POOL, count, Fleet(serving=serving, leaving=0)) == pending
        assert shortfall(POOL, count, Fleet(serving=serving + pending, leaving=0)) == 0
        assert surplus(POOL, count, Fleet(serving=serving + pending, leaving=0)) == 0


def test_tasks_claimed_and_ended_between_two_samples() -> None:
    """New workers claim pending tasks of the sample and end: each end removes one task and one worker."""
    for pending, done in product(range(8), range(8)):
        if done > pending:
            continue
        count = tasks([Demand(source="q", pending=pending, claimed=0, gone=done, stale=False)], trust_stale=False)
        assert shortfall(POOL, count, Fleet(serving=pending - done, leaving=0)) == 0


def test_more_ends_than_the_sample_knew_of_ask_for_nothing() -> None:
    """Tasks that came and ended between two reports do not reduce the demand of others."""
    gone = Demand(source="q", pending=1, claimed=1, gone=9, stale=False)
    other = Demand(source="r", pending=2, claimed=0, gone=0, stale=False)
    assert tasks([gone], trust_stale=False) == 0
    assert tasks([gone, other], trust_stale=False) == 2
