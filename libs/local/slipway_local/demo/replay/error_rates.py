"""RFC 191's rule for launches on the virtual clock: weights by the last hour's errors. Pure.

At every poll each missing worker is drawn independently, by its weight under the rule. There are no windows, no trips
and no probes.
"""

from collections import Counter
from functools import partial
from itertools import count
from typing import Final

from slipway_local.demo.replay.run import IDLE_SECONDS, Rule, Run, Worker
from slipway_local.demo.rfc191 import EVENTS_SECONDS, ErrorRates

POLL_SECONDS: Final = 10.0  # product time


class Rfc191(Rule):
    """RFC 191's rule, with rates of errors per pool."""

    def begin(self, run: Run, now: float) -> None:
        self.run = run
        self.polls = count(1)
        self.rates = {
            pool_id: ErrorRates([config.base_weight * config.price_factor for config in pool.configs])
            for pool_id, pool in run.pools.items()
        }
        run.at(now, self.poll)  # after the tasks that arrive now

    def poll(self, now: float) -> None:
        run = self.run
        rng = run.chance(f"poll-{next(self.polls)}")
        for pool_id, pool in run.pools.items():
            weights = self.rates[pool_id].weights(now - run.seconds(EVENTS_SECONDS))
            missing = pool.wanted(run.world.queue.counts(pool_id)) - len(pool.workers)
            if missing > 0:
                drawn = Counter(rng.choices(range(len(weights)), weights, k=missing))
                for place, units in drawn.items():
                    if units := min(units, pool.room(place)):
                        run.launch(pool, place, units, now)
        run.at(now + run.seconds(POLL_SECONDS), self.poll)

    def launched(self, worker: Worker, now: float) -> None:
        self._add(worker, now, others=1)

    def refused(self, worker: Worker, code: str, now: float) -> None:
        self._add(worker, now, failures=1)

    def unregistered(self, worker: Worker, now: float) -> None:
        self._add(worker, now, failures=1)

    def idle(self, worker: Worker, now: float) -> None:
        self.run.at(now + self.run.seconds(IDLE_SECONDS), partial(self._idle_timeout, worker, now))

    def _idle_timeout(self, worker: Worker, since: float, now: float) -> None:
        pool = worker.pool
        is_live = worker.id in pool.workers and worker.idle_since == since
        if is_live and len(pool.workers) > pool.declared.min_capacity:
            self.run.end(worker, now)

    def _add(self, worker: Worker, now: float, *, failures: int = 0, others: int = 0) -> None:
        self.rates[worker.pool.id].add(now, worker.place, failures=failures, others=others)
