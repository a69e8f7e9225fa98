"""Slipway on the virtual clock: the weight-calculator's world, the provisioner's workers and its plan. Pure.

The work of the services around these cores is restated: events reach the calculator at once and in order, its records
reach the view at once, and a decision follows each change, at most once a second. What a deployment adds to this is the
latency of its processes.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from math import inf
from typing import Final

from slipway_common.events.lifecycle import ENDED, State
from slipway_common.events.scopes import capacity_of, quota_of
from slipway_common.events.worker import Outcome, Result, Scope, Stage, WorkerEvent
from slipway_local.demo.replay.observed import Provisioner
from slipway_local.demo.replay.run import IDLE_SECONDS, Pool, Rule, Run, Worker
from slipway_provisioner.domain import planning, workers
from slipway_provisioner.providers.simulated import ERRORS
from slipway_weight_calculator.domain.draft import Draft
from slipway_weight_calculator.domain.policy import PROFILES, Policy, faster
from slipway_weight_calculator.domain.record import record, worth_publishing
from slipway_weight_calculator.domain.world import World, advance, commit, declare, fold

DECIDE_SECONDS: Final = 1.0  # product time


class Slipway(Rule):
    """Slipway's cores as a launch rule. `policies` are the coefficients by profile, in product time."""

    def __init__(self, policies: Mapping[str, Policy] = PROFILES) -> None:
        self.policies = policies
        self.events: list[tuple[WorkerEvent, float]] = []
        self.wake_at = inf
        self.decided_at = -inf

    def begin(self, run: Run, now: float) -> None:
        speed = run.world.cloud.rules.speed
        self.run = run
        self.world = World({name: faster(policy, speed) for name, policy in self.policies.items()})
        regions = {account.id: account.region for account in run.accounts.values()}
        self.provisioner = Provisioner({pool.id: pool.declared for pool in run.pools.values()}, regions)
        draft = Draft(self.world)
        for config in self.provisioner.all_configs():
            declare(draft, config, now)
        commit(draft)
        self._wake(now)

    # The decision

    def _wake(self, at: float) -> None:
        """Decide at this time, or a second after the last decision if that is later."""
        at = max(at, self.decided_at + self.run.seconds(DECIDE_SECONDS))
        if at < self.wake_at:
            self.wake_at = at
            self.run.at(at, self._decide)

    def _decide(self, now: float) -> None:
        if now != self.wake_at:
            return  # an earlier decision came between
        self.decided_at, self.wake_at = now, inf
        self._calculate(now)
        for each in self.run.pools.values():
            plan = self._plan(each, now)
            if plan.reconsider_after_seconds is not None:
                self._wake(now + plan.reconsider_after_seconds)
        if (due := self.world.due()) is not None:
            self._wake(due)

    def _calculate(self, now: float) -> None:
        """Fold all events into the health state, and apply the changed records to the view."""
        draft, provisioner = Draft(self.world), self.provisioner
        events, self.events = self.events, []
        for event, at in events:
            fold(draft, event, at)
        advance(draft, now)
        for declared in provisioner.all_configs():
            config = draft.config(declared.launch_config_id)
            assert config is not None  # none is archived here
            new = record(draft, config, now)
            if worth_publishing(provisioner.records.get(config.id), new, draft.policy(config)):
                provisioner.apply(new)
        commit(draft)

    def _plan(self, pool: Pool, now: float) -> planning.Plan:
        """Plan a pool and execute the plan."""
        run, provisioner, at = self.run, self.provisioner, _time(now)
        counts, idle_seconds = run.world.queue.counts(pool.id), run.seconds(IDLE_SECONDS)
        observed = provisioner.observe(pool, counts, idle_timeout_seconds=idle_seconds)
        plan = planning.plan(observed, now=at)
        problems = planning.check_plan(observed, plan)
        assert not problems, problems
        reason = str(plan.details["reason"])
        if plan.freeze is not None:
            provisioner.frozen.add(pool.id)
        for launch in plan.launches:
            provisioner.drawn[pool.id] += launch.units
            run.launch(pool, provisioner.place_of[launch.config.id], launch.units, now, permit=launch.permit)
        for worker_id in plan.cancel:
            self._save(workers.cancelled(provisioner.rows[worker_id], reason, at), now)
            run.cancel(pool.workers[worker_id], now)
        for worker_id in (*plan.stop, *plan.drain):
            self._save(workers.stopping(provisioner.rows[worker_id], reason, at), now)
            run.end(pool.workers[worker_id], now)
        return plan

    # Outcomes, as the provisioner records and publishes them

    def demand(self, pool: Pool, now: float) -> None:
        self._wake(now)

    def requested(self, worker: Worker, now: float) -> None:
        config = self.provisioner.configs[worker.pool.id][worker.place]
        row = workers.Worker(
            id=worker.id,
            pool_id=worker.pool.id,
            launch_config_id=config.launch_config_id,
            account_id=config.account_id,
            image_revision=config.image_revision,
            state=State.REQUESTED,
            decision_id="",
            probe_permit=worker.permit,
            requested_at=_time(now),
        )
        self._save(workers.requested(row), now)

    def calling(self, worker: Worker, now: float) -> None:
        self.provisioner.rows[worker.id] = workers.calling(self.provisioner.rows[worker.id], "")

    def delayed(self, worker: Worker, now: float) -> None:
        self._save(workers.delayed(self.provisioner.rows[worker.id], "throttled"), now)

    def launched(self, worker: Worker, now: float) -> None:
        row = self.provisioner.rows[worker.id]
        self._save(workers.launched(row, worker.instance_id, _time(now), looked_up=False), now)

    def refused(self, worker: Worker, code: str, now: float) -> None:
        config, scope = self.provisioner.configs[worker.pool.id][worker.place], Scope(ERRORS[code])
        key = {
            Scope.QUOTA: quota_of(config).id,
            Scope.IMAGE: config.image_revision,
            Scope.CREDENTIAL: config.account_id,
            Scope.CAPACITY: capacity_of(config).id,
        }.get(scope, config.launch_config_id)
        outcome = Outcome(Stage.LAUNCH, Result.FAILED, scope, key, code)
        self._save(workers.launch_failed(self.provisioner.rows[worker.id], outcome, _time(now)), now)

    def registered(self, worker: Worker, now: float) -> None:
        row = self.provisioner.rows[worker.id]
        self._save(workers.registered(row, worker.instance_id, "", _time(now)), now)

    def unregistered(self, worker: Worker, now: float) -> None:
        row = self.provisioner.rows[worker.id]
        outcome = Outcome(Stage.BOOT, Result.FAILED, Scope.IMAGE, row.image_revision, "boot_timeout")
        self._save(workers.stopping(row, "did not register in time", _time(now), outcome), now)

    def claimed(self, worker: Worker, task_id: str, now: float) -> None:
        row = self.provisioner.rows[worker.id]
        self._save(workers.claimed(row, task_id, "queue", _time(now)), now)

    def idle(self, worker: Worker, now: float) -> None:
        row = self.provisioner.rows[worker.id]
        if row.has_task:
            self._save(workers.idle(row, _time(now)), now)

    def ended(self, worker: Worker, now: float) -> None:
        row = self.provisioner.rows[worker.id]
        if row.state not in ENDED:
            self._save(workers.stopped(row, "", _time(now)), now)
        del self.provisioner.rows[worker.id]
        self._wake(now)

    def _save(self, change: workers.Change, now: float) -> None:
        row, event = change
        self.provisioner.save(row, event)
        self.events.append((event, now))
        self._wake(now)


def _time(now: float) -> datetime:
    return datetime.fromtimestamp(now, UTC)
