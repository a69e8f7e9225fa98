"""Slipway's production cores on the virtual clock: the weight-calculator's world and the provisioner's planning.

The work of the services around these cores is restated in a few lines each: the log (order per partition, sequence
numbers that detect duplicates), publishing of changed weights, the view of the newest records, the provisioner's counts
of workers in flight and of failures, and the steps of a roll-out. The rules themselves are the production code.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from heapq import heappop, heappush
from math import ceil
from random import Random
from typing import Any, Final

import msgspec

from bench.policies import launch_keys
from bench.policies.conditions import Conditions
from bench.policies.policy import Policy
from bench.policies.scenario import Scenario
from slipway_api.events import worker as events
from slipway_api.events.launch_config import LaunchConfigCreated
from slipway_api.events.scopes import Key, credential_key, image_key
from slipway_api.events.weight import SharedWindow, WeightChanged
from slipway_api.events.worker import Outcome, Result, Scope, Stage, WorkerEvent
from slipway_provisioner.domain import planning, pool, roll_out
from slipway_weight_calculator.domain.draft import Draft
from slipway_weight_calculator.domain.policy import PROFILES
from slipway_weight_calculator.domain.policy import Policy as Coefficients
from slipway_weight_calculator.domain.record import record, worth_publishing
from slipway_weight_calculator.domain.world import World, advance, commit, declare, fold

BEGIN: Final = datetime(2026, 1, 1, tzinfo=UTC)
EPOCH_SECONDS: Final = BEGIN.timestamp()
POOL: Final = "pool"
FAMILY: Final = "m5"
PARTITIONS: Final = 32
HOP_SECONDS: Final = 0.1  # from an event to the record that counts it, and from a record to the view
UNAVAILABLE_AFTER_SECONDS: Final = 30.0
ATTEMPT_SECONDS: Final = 30.0
CAPACITY: Final = 1_000_000
STAGES: Final = ("launch", "boot", "claim")
SHARED_STAGES: Final = {"image": STAGES, "quota": ("launch",), "credential": ("launch",), "capacity": ("launch",)}
STRATEGY: Final = "natural"
EVIDENCE: Final = "hook"  # of claims
UNLIMITED: Final = {
    name: msgspec.structs.replace(
        policy,
        **{
            name: getattr(policy, f"{stage}_window")
            for stage in STAGES
            for name in policy.__struct_fields__
            if name.startswith("new_") and name.endswith(f"{stage}_window")
        },
    )
    for name, policy in PROFILES.items()
}
"""The same coefficients with every new window at its maximum."""
CODES: Final = {
    Scope.CAPACITY: "InsufficientInstanceCapacity",
    Scope.QUOTA: "VcpuLimitExceeded",
    Scope.CONFIG: "InternalError",
    Scope.IMAGE: "InvalidAMIID",
}


class Log:
    """Log of worker events: ordered per partition, some delivered late, some twice.

    A record is a duplicate if its sequence number is not above the highest one applied from its partition.
    """

    def __init__(self, duplicates: float, late_seconds: float, rng: Random) -> None:
        self.duplicates, self.late_seconds, self.rng = duplicates, late_seconds, rng
        self.number = 0
        self.last = [0] * PARTITIONS  # sequence number applied last
        self.free_at = [0.0] * PARTITIONS  # arrival of the newest record of the partition
        self.queue: list[tuple[float, int, int, WorkerEvent | LaunchConfigCreated, float]] = []

    def append(self, worker: int, event: WorkerEvent | LaunchConfigCreated, at: float) -> None:
        """Append an event that occurred at `at`."""
        partition = worker % PARTITIONS
        self.number += 1
        arrives = at + (self.rng.random() * self.late_seconds if self.late_seconds else 0.0)
        self.free_at[partition] = arrives = max(arrives, self.free_at[partition])
        heappush(self.queue, (arrives, self.number, partition, event, at))
        if self.duplicates and self.rng.random() < self.duplicates:
            self.free_at[partition] = arrives = arrives + self.rng.random() * self.late_seconds
            heappush(self.queue, (arrives, self.number, partition, event, at))

    def due(self) -> float | None:
        """Arrival of the next record."""
        return self.queue[0][0] if self.queue else None

    def take(self, until: float) -> list[tuple[float, WorkerEvent | LaunchConfigCreated, float]]:
        """Events arrived by `until`, as (arrival, event, time of occurrence), without duplicates."""
        taken = []
        while self.queue and self.queue[0][0] <= until:
            arrived, number, partition, event, at = heappop(self.queue)
            if number > self.last[partition]:
                self.last[partition] = number
                taken.append((arrived, event, at))
        return taken


class Calculator:
    """Folds arrived events and publishes changed weights, in steps aligned with the simulator's ticks."""

    def __init__(
        self, configs: Sequence[LaunchConfigCreated], policies: Mapping[str, Coefficients], scenario: Scenario
    ) -> None:
        self.world = World(policies)
        self.tick_seconds = scenario.tick_seconds
        self.down = [(span.begin_minute * 60, span.end_minute * 60) for span in scenario.calculator_down]
        self.published: dict[str, WeightChanged] = {}
        self.folded_until = 0.0
        draft = Draft(self.world)
        for config in configs:
            declare(draft, config, EPOCH_SECONDS)
        self.first = self._publish(draft, EPOCH_SECONDS)
        commit(draft)

    def down_since(self, now: float) -> float | None:
        """Start of the current outage of the calculator; None if it is running."""
        return next((begin for begin, end in self.down if begin <= now < end), None)

    def step(self, log: Log, until: float) -> list[tuple[float, list[WeightChanged]]]:
        """Weights published up to `until`, with their times."""
        found = []
        while (instant := self._next(log)) is not None and instant <= until:
            # One commit per tick replaces several, since no view is read in between.
            tick = ceil((instant + HOP_SECONDS) / self.tick_seconds)
            end = min(until, tick * self.tick_seconds - HOP_SECONDS)
            draft = Draft(self.world)
            for arrived, event, at in log.take(end):
                advance(draft, EPOCH_SECONDS + max(arrived, instant))
                if isinstance(event, LaunchConfigCreated):
                    declare(draft, event, EPOCH_SECONDS + at)
                else:
                    fold(draft, event, EPOCH_SECONDS + at)
            advance(draft, EPOCH_SECONDS + end)
            if published := self._publish(draft, EPOCH_SECONDS + end):
                found.append((end, published))
            commit(draft)
        return found

    def _next(self, log: Log) -> float | None:
        """Time of the next work; during an outage of the calculator, all work waits for its end."""
        due = self.world.due()
        instants = [at for at in (log.due(), None if due is None else due - EPOCH_SECONDS) if at is not None]
        if not instants:
            return None
        instant = min(instants)
        return next((end for begin, end in self.down if begin <= instant < end), instant)

    def _publish(self, draft: Draft, now: float) -> list[WeightChanged]:
        found = []
        for config_id in sorted(_touched(draft)):
            config = draft.config(config_id)
            assert config is not None  # configs are never archived here
            new = record(draft, config, now)
            if worth_publishing(self.published.get(config_id), new, draft.policy(config)):
                self.published[config_id] = new
                found.append(new)
        return found


def _touched(draft: Draft) -> set[str]:
    """Configs whose record may change with a draft."""
    found = set(draft.configs)
    for key in draft.rows:
        found |= draft.affected(key)
    return found


class View:
    """Newest weight records known to one provisioner replica, `lag_seconds` after they were published."""

    def __init__(self, lag_seconds: float) -> None:
        self.lag_seconds = lag_seconds
        self.coming: deque[tuple[float, list[WeightChanged]]] = deque()
        self.records: dict[str, WeightChanged] = {}
        self.shared: dict[pool.Share, SharedWindow] = {}

    def catch_up(self, now: float) -> None:
        """Apply all records that have reached the view by now."""
        while self.coming and self.coming[0][0] + self.lag_seconds <= now:
            for weight in self.coming.popleft()[1]:
                self.records[weight.launch_config_id] = weight
                for window in weight.shared:
                    share = Key(window.kind, window.id), window.stage
                    known = self.shared.get(share)
                    if known is None or known.version < window.version:
                        self.shared[share] = window


class Counts(msgspec.Struct):
    """The provisioner's counts of one revision: workers in flight and failures, by stage."""

    launching: int = 0
    booting: int = 0
    running: int = 0
    failed_launches: int = 0
    failed_boots: int = 0


class RollOut:
    """Revisions of one launch config, by their places: the `current` one, its `fallback`, and those proven."""

    def __init__(self, current: int) -> None:
        self.current = current
        self.fallback: int | None = None
        self.proven: set[int] = set()

    def replace(self, new: int, ids: Sequence[str]) -> None:
        """Make a new revision the current one; production code selects the fallback, all others drain."""
        others = [place for place in (self.current, self.fallback) if place is not None]
        revisions = [
            roll_out.Revision(id=ids[place], state="active", current=place == self.current, proven=place in self.proven)
            for place in others
        ]
        steps = roll_out.replace(revisions, ids[new], STRATEGY)
        self.fallback = next((place for place in others if ids[place] == steps.fallback_id), None)
        self.current = new

    def prove(self, known: WeightChanged | None) -> None:
        """Drain the fallback once the record of the current revision proves it."""
        if self.current in self.proven or known is None:
            return
        needed = roll_out.needed_starts(STRATEGY, [None])
        if roll_out.is_proven(msgspec.to_builtins(known), EVIDENCE, needed):
            self.proven.add(self.current)
            self.fallback = None

    def state(self, place: int) -> str:
        return "active" if place in (self.current, self.fallback) else "draining"


class Slipway(Policy):
    """Slipway as a launch policy; `policies` are the coefficients by profile.

    Lists are by revision, and have those that are not declared yet too: without workers, they count nothing.
    """

    names_revisions = True

    def __init__(self, conditions: Conditions, rng: Random, policies: Mapping[str, Coefficients] = PROFILES) -> None:
        scenario = conditions.scenario
        self.revisions = conditions.revisions
        self.configs = [_declared(conditions, place) for place in range(len(self.revisions))]
        self.ids = [config.launch_config_id for config in self.configs]
        self.place_of = {config_id: place for place, config_id in enumerate(self.ids)}
        self.roll_outs = [RollOut(place) for place in range(conditions.configs)]
        self.declared = conditions.configs
        self.log = Log(scenario.duplicates, scenario.reordered_seconds, rng)
        coefficients = policies[scenario.profile]
        # Before launch configs had a first boot window of their own, it was that of images.
        own = getattr(coefficients, "new_config_boot_window", coefficients.new_boot_window)
        self.new_windows = {
            "launch": int(coefficients.new_launch_window),
            "boot": int(own),
            "claim": int(coefficients.new_claim_window),
        }
        self.tick_seconds = scenario.tick_seconds
        self.calculator = Calculator(self.configs[: self.declared], policies, scenario)
        self.views = [
            View(HOP_SECONDS + scenario.record_lag_seconds + replica * scenario.replica_lag_seconds)
            for replica in range(scenario.replicas)
        ]
        for view in self.views:
            view.coming.append((-view.lag_seconds, self.calculator.first))
        self.shares = [_shares(config) for config in self.configs]
        # Windows of shares that the provisioner assumes before the first record; the others only have a health state.
        assumed = {
            ("image", "boot"): int(coefficients.new_boot_window),
            ("image", "claim"): self.new_windows["claim"],
            ("quota", "launch"): int(coefficients.launch_window),
            ("capacity", "launch"): int(coefficients.launch_window),
        }
        self.sharing = [
            (
                key,
                stage,
                assumed.get((key.kind, stage)),
                [place for place, shares in enumerate(self.shares) if (key, stage) in shares],
            )
            for key in dict.fromkeys(key for shares in self.shares for key, _ in shares)
            for stage in SHARED_STAGES[key.kind]
        ]
        self.counts = [Counts() for _ in self.configs]
        self.permits: dict[int, int] = {}
        self.used: set[tuple[int, int]] = set()
        self.order = Random(rng.random()) if scenario.replicas > 1 else rng
        self.workers = 0
        self.drawn = 0
        self.attempted_at = -ATTEMPT_SECONDS

    def choose(self, now: float, tries: int) -> Sequence[int]:
        while self.declared < len(self.revisions) and self.revisions[self.declared].since * self.tick_seconds <= now:
            self._replace(self.declared, now)
        published = self.calculator.step(self.log, now - HOP_SECONDS)
        found: list[int] = []
        for view in self.views:
            view.coming.extend(published)
            view.catch_up(now)
        if self.declared > len(self.roll_outs):
            for each in self.roll_outs:
                each.prove(self.views[0].records.get(self.ids[each.current]))
        # Replicas plan in random order, each by its own view; they share the counts of launches.
        views = self.order.sample(self.views, len(self.views)) if len(self.views) > 1 else self.views
        for left, view in zip(range(len(views), 0, -1), views, strict=True):
            if share := ceil((tries - len(found)) / left):
                found += self._plan(view, now, share)
        return found

    def _replace(self, place: int, now: float) -> None:
        """Declare the next revision, which replaces the current one of its config."""
        self.roll_outs[self.revisions[place].config].replace(place, self.ids)
        self.declared += 1
        self.log.append(place, self.configs[place], now)

    def _plan(self, view: View, now: float, tries: int) -> list[int]:
        """Revisions of the launches that one replica plans, in order; probes first."""
        plan = planning.plan(self._observed(view, now, tries), now=BEGIN + timedelta(seconds=now))
        found = []
        for launch in plan.launches:
            place = self.place_of[launch.config.id]
            self.counts[place].launching += launch.units
            found += [place] * launch.units
            self.workers += launch.units  # the simulator numbers tries in the returned order
            if launch.permit is not None:
                self.used.add((place, launch.permit))
                self.permits[self.workers] = launch.permit
                self._append(now, place, self.workers, events.WorkerRequested, decision_id="")
        if found:
            self.drawn += len(found)
            self.attempted_at = now
        return found

    def _observed(self, view: View, now: float, tries: int) -> pool.Observed:
        under_way = sum(counts.launching + counts.booting for counts in self.counts)
        running = sum(counts.running for counts in self.counts)
        since = self.calculator.down_since(now)
        return pool.Observed(
            pool=pool.Pool(id=POOL, min_capacity=0, max_capacity=CAPACITY, scaling_ratio=Fraction(1), drawn=self.drawn),
            demands=[
                pool.Demand(
                    source="queue", pending=tries + under_way, claimed=running, gone=0, stale=False, fresh_seconds=60.0
                )
            ],
            fleet=pool.Fleet(serving=under_way + running, leaving=0),
            configs=[self._config(view, place) for place in range(self.declared)],
            shared=self._shared(view),
            idle_timeout_seconds=300.0,
            calculator_unavailable_seconds=0.0 if since is None else max(0.0, now - since - UNAVAILABLE_AFTER_SECONDS),
            attempt_in_seconds=max(0.0, self.attempted_at + ATTEMPT_SECONDS - now),
        )

    def _config(self, view: View, place: int) -> pool.Config:
        config, counts = self.configs[place], self.counts[place]
        of_name = self.roll_outs[self.revisions[place].config]
        known = view.records.get(config.launch_config_id)
        prior = config.base_weight * config.price_factor
        permit = known.probe_permit if known is not None else None
        is_free = known is not None and known.probe_ready and (place, permit) not in self.used
        return pool.Config(
            id=config.launch_config_id,
            name=config.name,
            current_id=self.ids[of_name.current],
            account_id=config.account_id,
            lease_pool_id=config.account_id,
            image_revision=config.image_revision,
            state=of_name.state(place),
            replaced_by="" if place == of_name.current else STRATEGY,
            weight=known.weight if known is not None else prior,
            prior_weight=prior,
            tripped=known is not None and known.state != "healthy",
            permit=permit if is_free and known is not None and known.state != "healthy" else None,
            last_permit=permit,
            launch=self._stage(known, "launch", counts.launching, counts.failed_launches),
            boot=self._stage(known, "boot", counts.booting, counts.failed_boots),
            claim=self._stage(known, "claim", 0, 0),
            shares=self.shares[place],
        )

    def _stage(self, known: WeightChanged | None, name: str, in_flight: int, failures: int) -> pool.Stage:
        stage = known.stages[name] if known is not None else None
        folded = stage.failures_folded if stage is not None else 0
        counted: dict[str, Any] = {"unfolded": max(0, failures - folded)}
        if "unfolded" not in pool.Stage.__struct_fields__:  # of an earlier commit, with the rules of which this runs
            counted = {"failures": failures, "folded": folded}
        window = stage.window if stage is not None else self.new_windows[name]
        return pool.Stage(in_flight=in_flight, window=window, **counted)

    def _shared(self, view: View) -> list[pool.Shared]:
        launching = [counts.launching for counts in self.counts]
        starting = [counts.launching + counts.booting for counts in self.counts]
        unfolded = {stage: self._unfolded(view, stage) for stage in ("launch", "boot", "claim")}
        found = []
        for key, stage, size, places in self.sharing:
            known, failed = view.shared.get((key, stage)), unfolded[stage]
            under_way = launching if stage == "launch" else starting
            found.append(
                pool.Shared(
                    key=key,
                    stage=stage,
                    in_flight=sum(under_way[place] for place in places),
                    unfolded=sum(failed[place] for place in places),
                    window=size if size is None or known is None else known.window,
                    tripped=known is not None and known.state != "healthy",
                    reason=known.reason if known is not None else "",
                )
            )
        return found

    def _unfolded(self, view: View, stage: str) -> list[int]:
        """Failures of each revision that its record does not count yet."""
        found = []
        for config, counts in zip(self.configs, self.counts, strict=True):
            failed = {"launch": counts.failed_launches, "boot": counts.failed_boots}.get(stage, 0)
            known = view.records.get(config.launch_config_id)
            found.append(max(0, failed - (known.stages[stage].failures_folded if known is not None else 0)))
        return found

    # Outcomes: counted by the provisioner and appended to the log.

    def accepted(self, now: float, config: int, worker: int) -> None:
        self.counts[config].launching -= 1
        self.counts[config].booting += 1
        self._append(
            now,
            config,
            worker,
            events.WorkerLaunched,
            instance_id=f"i-{worker}",
            batch_id="",
            outcome=Outcome(Stage.LAUNCH, Result.OK),
        )

    def refused(self, now: float, config: int, worker: int, scope: str) -> None:
        self.counts[config].launching -= 1
        self.counts[config].failed_launches += 1
        kind, declared = Scope(scope), self.configs[config]
        key = {
            Scope.QUOTA: launch_keys.quota(declared).id,
            Scope.IMAGE: declared.image_revision,
            Scope.CAPACITY: launch_keys.capacity_id(declared),
        }.get(kind, "")
        outcome = Outcome(Stage.LAUNCH, Result.FAILED, kind, key, CODES[kind], kind is not Scope.CONFIG)
        self._append(now, config, worker, events.WorkerLaunchFailed, batch_id="", outcome=outcome)
        self.permits.pop(worker, None)

    def registered(self, now: float, config: int, worker: int, boot_seconds: float) -> None:
        self.counts[config].booting -= 1
        self.counts[config].running += 1
        self._append(
            now,
            config,
            worker,
            events.WorkerRegistered,
            instance_id=f"i-{worker}",
            boot_seconds=boot_seconds,
            outcome=Outcome(Stage.BOOT, Result.OK),
        )
        self._append(
            now,
            config,
            worker,
            events.WorkerClaimed,
            task_id="",
            source="queue",
            outcome=Outcome(Stage.CLAIM, Result.OK),
        )
        self.permits.pop(worker, None)

    def unregistered(self, now: float, config: int, worker: int) -> None:
        self.counts[config].booting -= 1
        self.counts[config].failed_boots += 1
        outcome = Outcome(
            Stage.BOOT, Result.FAILED, Scope.IMAGE, self.configs[config].image_revision, "not registered in time"
        )
        self._append(now, config, worker, events.WorkerStopping, reason="never registered", outcome=outcome)
        self.permits.pop(worker, None)

    def ended(self, now: float, config: int, worker: int) -> None:
        self.counts[config].running -= 1

    def _append(self, now: float, config: int, worker: int, kind: type[WorkerEvent], **fields: Any) -> None:
        declared = self.configs[config]
        event = kind(
            worker_id=str(worker),
            pool_id=POOL,
            launch_config_id=declared.launch_config_id,
            account_id=declared.account_id,
            image_revision=declared.image_revision,
            probe_permit=self.permits.get(worker),
            **fields,
        )
        self.log.append(worker, event, now)


def _declared(conditions: Conditions, place: int) -> LaunchConfigCreated:
    scenario, revision = conditions.scenario, conditions.revisions[place]
    config, name = revision.config, conditions.names[revision.config]
    return LaunchConfigCreated(
        launch_config_id=name if place == config else f"{name}@{place}",
        name=name,
        pool_id=POOL,
        account_id="account" if scenario.account == "shared" else f"account-{config}",
        region=conditions.regions[config],
        zone=name,
        instance_type=f"{FAMILY}.large",
        image_revision=revision.image,
        base_weight=1.0,
        price_factor=scenario.price_factors[config] if scenario.price_factors else 1.0,
        state="active",
        revision=1,
        profile=scenario.profile,
    )


def _shares(config: LaunchConfigCreated) -> list[pool.Share]:
    image = image_key(config.image_revision)
    others = launch_keys.quota(config), credential_key(config.account_id), *launch_keys.capacities(config)
    return [
        *((image, stage) for stage in ("boot", "claim", "launch")),
        *((key, "launch") for key in others),
    ]
