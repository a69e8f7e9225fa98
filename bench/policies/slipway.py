"""Slipway as it is, on the virtual clock: the calculator's core judges, the provisioner's plan spends.

Between them stands what the services do around these cores, restated in a few lines each: the log (order per
partition, numbers that prove duplicates), the publishing of what changed, the view of the newest records, and the
provisioner's own counts of what is under way and has failed. The rules themselves are the production code.
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

from bench.policies.conditions import Conditions
from bench.policies.policy import Policy
from bench.policies.scenario import TICK_SECONDS, Span
from slipway_common.events import worker as events
from slipway_common.events.launch_config import LaunchConfigCreated
from slipway_common.events.weight import SharedWindow, WeightChanged
from slipway_common.events.worker import Outcome, Result, Scope, Stage, WorkerEvent
from slipway_common.scopes import credential_key, image_key, quota_key
from slipway_provisioner.domain import planning, pool
from slipway_weight_calculator.domain.policy import PROFILES
from slipway_weight_calculator.domain.policy import Policy as Coefficients
from slipway_weight_calculator.domain.record import record, worth_publishing
from slipway_weight_calculator.domain.world import Draft, World

BEGIN: Final = datetime(2026, 1, 1, tzinfo=UTC)
EPOCH_SECONDS: Final = BEGIN.timestamp()
POOL: Final = "pool"
FAMILY: Final = "m5"
PARTITIONS: Final = 32
HOP_SECONDS: Final = 0.1  # a fact's way into a record, and a record's way into the view
SILENT_AFTER_SECONDS: Final = 30.0
ATTEMPT_SECONDS: Final = 30.0
CAPACITY: Final = 1_000_000
# What the provisioner assumes of windows before a record has come, and which of them bound a share.
WINDOWS: Final = {"launch": 4, "boot": 8, "claim": 64}
SHARE_WINDOWS: Final[dict[str, dict[str, int | None]]] = {
    "image": {"launch": None, "boot": 8, "claim": 64},
    "quota": {"launch": 64},
    "credential": {"launch": None},
}
CODES: Final = {
    Scope.CAPACITY: "InsufficientInstanceCapacity",
    Scope.QUOTA: "VcpuLimitExceeded",
    Scope.CONFIG: "InternalError",
    Scope.IMAGE: "InvalidAMIID",
}


class Log:
    """Facts of workers on their way: each partition in order, some late, some twice.

    A record is a duplicate when its number is not above the highest that its partition has seen.
    """

    def __init__(self, duplicates: float, late_seconds: float, rng: Random) -> None:
        self.duplicates, self.late_seconds, self.rng = duplicates, late_seconds, rng
        self.number = 0
        self.last = [0] * PARTITIONS  # number applied
        self.free_at = [0.0] * PARTITIONS  # when the partition's newest record arrives
        self.queue: list[tuple[float, int, int, WorkerEvent, float]] = []

    def append(self, worker: int, event: WorkerEvent, at: float) -> None:
        partition = worker % PARTITIONS
        self.number += 1
        arrives = at + (self.rng.random() * self.late_seconds if self.late_seconds else 0.0)
        self.free_at[partition] = arrives = max(arrives, self.free_at[partition])
        heappush(self.queue, (arrives, self.number, partition, event, at))
        if self.duplicates and self.rng.random() < self.duplicates:
            self.free_at[partition] = arrives = arrives + self.rng.random() * self.late_seconds
            heappush(self.queue, (arrives, self.number, partition, event, at))

    def due(self) -> float | None:
        return self.queue[0][0] if self.queue else None

    def take(self, until: float) -> list[tuple[float, WorkerEvent, float]]:
        """What has arrived by `until`, as (arrival, event, time of the fact), without duplicates."""
        taken = []
        while self.queue and self.queue[0][0] <= until:
            arrived, number, partition, event, at = heappop(self.queue)
            if number > self.last[partition]:
                self.last[partition] = number
                taken.append((arrived, event, at))
        return taken


class Calculator:
    """Folds what has arrived and publishes what changed, in steps that end with the simulator's ticks."""

    def __init__(
        self, configs: Sequence[LaunchConfigCreated], policies: Mapping[str, Coefficients], away: Sequence[Span]
    ) -> None:
        self.world = World(policies)
        self.away = [(span.begin_minute * 60, span.end_minute * 60) for span in away]
        self.published: dict[str, WeightChanged] = {}
        self.folded_until = 0.0
        draft = Draft(self.world)
        for config in configs:
            draft.declare(config, EPOCH_SECONDS)
        self.first = self._publish(draft, EPOCH_SECONDS)
        draft.commit()

    def away_since(self, now: float) -> float | None:
        return next((begin for begin, end in self.away if begin <= now < end), None)

    def step(self, log: Log, until: float) -> list[tuple[float, list[WeightChanged]]]:
        """Records with the times at which they were published, up to `until`."""
        found = []
        while (instant := self._next(log)) is not None and instant <= until:
            # One commit per tick holds what would be several: nobody looks at records in between.
            end = min(until, ceil((instant + HOP_SECONDS) / TICK_SECONDS) * TICK_SECONDS - HOP_SECONDS)
            draft = Draft(self.world)
            for arrived, event, at in log.take(end):
                draft.advance(EPOCH_SECONDS + max(arrived, instant))
                draft.fold(event, EPOCH_SECONDS + at)
            draft.advance(EPOCH_SECONDS + end)
            if told := self._publish(draft, EPOCH_SECONDS + end):
                found.append((end, told))
            draft.commit()
        return found

    def _next(self, log: Log) -> float | None:
        """When there is something to do next; while the calculator is away, everything waits for its return."""
        due = self.world.due()
        instants = [at for at in (log.due(), None if due is None else due - EPOCH_SECONDS) if at is not None]
        if not instants:
            return None
        instant = min(instants)
        return next((end for begin, end in self.away if begin <= instant < end), instant)

    def _publish(self, draft: Draft, now: float) -> list[WeightChanged]:
        found = []
        for config_id in sorted(_touched(draft)):
            config = draft.config(config_id)
            assert config is not None  # nothing is archived here
            new = record(draft, config, now)
            if worth_publishing(self.published.get(config_id), new, draft.policy(config)):
                self.published[config_id] = new
                found.append(new)
        return found


def _touched(draft: Draft) -> set[str]:
    """Configs whose record may differ by what a draft changes."""
    found = set(draft.configs)
    for key in draft.rows:
        found |= draft.members(key) if "/" in key else {key}
    return found


class View:
    """The newest records as one replica of the provisioner knows them, `lag_seconds` behind their publishing."""

    def __init__(self, lag_seconds: float) -> None:
        self.lag_seconds = lag_seconds
        self.coming: deque[tuple[float, list[WeightChanged]]] = deque()
        self.records: dict[str, WeightChanged] = {}
        self.shared: dict[pool.Share, SharedWindow] = {}

    def catch_up(self, now: float) -> None:
        while self.coming and self.coming[0][0] + self.lag_seconds <= now:
            for told in self.coming.popleft()[1]:
                self.records[told.launch_config_id] = told
                for window in told.shared:
                    known = self.shared.get((window.key, window.stage))
                    if known is None or known.version < window.version:
                        self.shared[window.key, window.stage] = window


class Spent(msgspec.Struct):
    """The provisioner's own counts of one config: what is under way and has failed, per stage."""

    launching: int = 0
    booting: int = 0
    running: int = 0
    failed_launches: int = 0
    failed_boots: int = 0


class Slipway(Policy):
    """`policies` are the coefficients by profile: others than production's show what each of them is worth."""

    def __init__(self, conditions: Conditions, rng: Random, policies: Mapping[str, Coefficients] = PROFILES) -> None:
        scenario = conditions.scenario
        self.configs = [_declared(conditions, place) for place in range(conditions.configs)]
        self.place_of = {config.launch_config_id: place for place, config in enumerate(self.configs)}
        self.log = Log(scenario.duplicates, scenario.reordered_seconds, rng)
        self.calculator = Calculator(self.configs, policies, scenario.calculator_down)
        self.views = [
            View(HOP_SECONDS + scenario.record_lag_seconds + replica * scenario.replica_lag_seconds)
            for replica in range(scenario.replicas)
        ]
        for view in self.views:
            view.coming.append((-view.lag_seconds, self.calculator.first))
        self.shares = [_shares(config) for config in self.configs]
        self.sharing = [
            (key, stage, size, [place for place, shares in enumerate(self.shares) if (key, stage) in shares])
            for key in dict.fromkeys(key for shares in self.shares for key, _ in shares)
            for stage, size in SHARE_WINDOWS[key.partition("/")[0]].items()
        ]
        self.spent = [Spent() for _ in self.configs]
        self.permits: dict[int, int] = {}
        self.used: set[tuple[int, int]] = set()
        self.turns = Random(rng.random()) if scenario.replicas > 1 else rng
        self.workers = 0
        self.drawn = 0
        self.attempted_at = -ATTEMPT_SECONDS

    def choose(self, now: float, tries: int) -> Sequence[int]:
        told = self.calculator.step(self.log, now - HOP_SECONDS)
        found: list[int] = []
        for view in self.views:
            view.coming.extend(told)
            view.catch_up(now)
        # Any replica may plan next, by its own view, for what has come until then; what they spend they count together.
        turns = self.turns.sample(self.views, len(self.views)) if len(self.views) > 1 else self.views
        for left, view in zip(range(len(turns), 0, -1), turns, strict=True):
            if share := ceil((tries - len(found)) / left):
                found += self._plan(view, now, share)
        return found

    def _plan(self, view: View, now: float, tries: int) -> list[int]:
        """What one replica launches, in order; probes first."""
        plan = planning.plan(self._observed(view, now, tries), now=BEGIN + timedelta(seconds=now))
        found = []
        for launch in plan.launches:
            place = self.place_of[launch.config.id]
            self.spent[place].launching += launch.units
            found += [place] * launch.units
            self.workers += launch.units  # the simulator numbers tries in the order of the answer
            if launch.permit is not None:
                self.used.add((place, launch.permit))
                self.permits[self.workers] = launch.permit
                self._tell(now, place, self.workers, events.WorkerRequested, decision_id="")
        if found:
            self.drawn += len(found)
            self.attempted_at = now
        return found

    def _observed(self, view: View, now: float, tries: int) -> pool.Observed:
        under_way = sum(spent.launching + spent.booting for spent in self.spent)
        running = sum(spent.running for spent in self.spent)
        since = self.calculator.away_since(now)
        return pool.Observed(
            pool=pool.Pool(id=POOL, min_capacity=0, max_capacity=CAPACITY, scaling_ratio=Fraction(1), drawn=self.drawn),
            demands=[
                pool.Demand(
                    source="queue", pending=tries + under_way, claimed=running, gone=0, stale=False, fresh_seconds=60.0
                )
            ],
            fleet=pool.Fleet(serving=under_way + running, leaving=0),
            configs=[self._config(view, place) for place in range(len(self.configs))],
            shared=self._shared(view),
            idle_timeout_seconds=300.0,
            calculator_silent_seconds=0.0 if since is None else max(0.0, now - since - SILENT_AFTER_SECONDS),
            attempt_in_seconds=max(0.0, self.attempted_at + ATTEMPT_SECONDS - now),
        )

    def _config(self, view: View, place: int) -> pool.Config:
        config, spent = self.configs[place], self.spent[place]
        known = view.records.get(config.launch_config_id)
        prior = config.base_weight * config.price_factor
        permit = known.probe_permit if known is not None else None
        is_free = known is not None and known.probe_ready and (place, permit) not in self.used
        return pool.Config(
            id=config.launch_config_id,
            account_id=config.account_id,
            lease_pool_id=config.account_id,
            image_revision=config.image_revision,
            active=True,
            weight=known.weight if known is not None else prior,
            prior_weight=prior,
            closed=known is not None and known.state == "closed",
            permit=permit if is_free and known is not None and known.state == "closed" else None,
            last_permit=permit,
            launch=_stage(known, "launch", spent.launching, spent.failed_launches),
            boot=_stage(known, "boot", spent.booting, spent.failed_boots),
            claim=_stage(known, "claim", 0, 0),
            shares=self.shares[place],
        )

    def _shared(self, view: View) -> list[pool.Shared]:
        launching = [spent.launching for spent in self.spent]
        starting = [spent.launching + spent.booting for spent in self.spent]
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
                    closed=known is not None and known.state == "closed",
                    reason=known.reason if known is not None else "",
                )
            )
        return found

    def _unfolded(self, view: View, stage: str) -> list[int]:
        """Failures of each config that its record has not taken in."""
        found = []
        for config, spent in zip(self.configs, self.spent, strict=True):
            failed = {"launch": spent.failed_launches, "boot": spent.failed_boots}.get(stage, 0)
            known = view.records.get(config.launch_config_id)
            found.append(max(0, failed - (known.stages[stage].failures_folded if known is not None else 0)))
        return found

    # Facts: the provisioner counts them and writes them to the log.

    def accepted(self, now: float, config: int, worker: int) -> None:
        self.spent[config].launching -= 1
        self.spent[config].booting += 1
        self._tell(
            now,
            config,
            worker,
            events.WorkerLaunched,
            instance_id=f"i-{worker}",
            batch_id="",
            outcome=Outcome(Stage.LAUNCH, Result.OK),
        )

    def refused(self, now: float, config: int, worker: int, scope: str) -> None:
        self.spent[config].launching -= 1
        self.spent[config].failed_launches += 1
        kind, declared = Scope(scope), self.configs[config]
        key = {
            Scope.QUOTA: f"{declared.account_id}/{declared.region}/{FAMILY}",
            Scope.IMAGE: declared.image_revision,
            Scope.CAPACITY: f"{declared.instance_type}/{declared.zone}/on-demand",
        }.get(kind, "")
        outcome = Outcome(Stage.LAUNCH, Result.FAILED, kind, key, CODES[kind], kind is not Scope.CONFIG)
        self._tell(now, config, worker, events.WorkerLaunchFailed, batch_id="", outcome=outcome)
        self.permits.pop(worker, None)

    def registered(self, now: float, config: int, worker: int, boot_seconds: float) -> None:
        self.spent[config].booting -= 1
        self.spent[config].running += 1
        self._tell(
            now,
            config,
            worker,
            events.WorkerRegistered,
            instance_id=f"i-{worker}",
            boot_seconds=boot_seconds,
            outcome=Outcome(Stage.BOOT, Result.OK),
        )
        self._tell(
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
        self.spent[config].booting -= 1
        self.spent[config].failed_boots += 1
        outcome = Outcome(
            Stage.BOOT, Result.FAILED, Scope.IMAGE, self.configs[config].image_revision, "not registered in time"
        )
        self._tell(now, config, worker, events.WorkerStopping, reason="never registered", outcome=outcome)
        self.permits.pop(worker, None)

    def ended(self, now: float, config: int, worker: int) -> None:
        self.spent[config].running -= 1

    def _tell(self, now: float, config: int, worker: int, kind: type[WorkerEvent], **fields: Any) -> None:
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
    scenario = conditions.scenario
    return LaunchConfigCreated(
        launch_config_id=conditions.names[place],
        pool_id=POOL,
        account_id="account" if scenario.account == "shared" else f"account-{place}",
        region=conditions.regions[place],
        zone=conditions.names[place],
        instance_type=f"{FAMILY}.large",
        image_revision="image" if scenario.image == "shared" else f"image-{place}",
        base_weight=1.0,
        price_factor=scenario.price_factors[place] if scenario.price_factors else 1.0,
        state="active",
        revision=1,
        profile=scenario.profile,
    )


def _shares(config: LaunchConfigCreated) -> list[pool.Share]:
    image = image_key(config.image_revision)
    quota = quota_key(config.account_id, config.region, config.instance_type)
    return [
        *((image, stage) for stage in ("boot", "claim", "launch")),
        (quota, "launch"),
        (credential_key(config.account_id), "launch"),
    ]


def _stage(known: WeightChanged | None, name: str, in_flight: int, failures: int) -> pool.Stage:
    told = known.stages[name] if known is not None else None
    return pool.Stage(
        in_flight=in_flight,
        failures=failures,
        folded=told.failures_folded if told is not None else 0,
        window=told.window if told is not None else WINDOWS[name],
    )
