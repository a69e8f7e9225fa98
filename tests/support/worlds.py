"""Support for pure tests of the calculator's core: short names for events, a world that applies them, and a fleet that
launches by its records."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, Final

import msgspec

from slipway_api.events.launch_config import LaunchConfigCreated, LaunchConfigState
from slipway_api.events.scopes import (
    Key,
    capacity_key,
    capacity_of,
    config_key,
    credential_key,
    image_key,
    quota_key,
)
from slipway_api.events.signal import SignalRaised
from slipway_api.events.weight import WeightChanged
from slipway_api.events.worker import (
    Notice,
    Outcome,
    Result,
    Scope,
    Stage,
    WorkerClaimed,
    WorkerDelayed,
    WorkerEvent,
    WorkerLaunched,
    WorkerLaunchFailed,
    WorkerLost,
    WorkerNoticed,
    WorkerRegistered,
    WorkerRequested,
    WorkerStopped,
    WorkerStopping,
)
from slipway_common.base.signal_rules import DEFAULT_RULES, Rules
from slipway_weight_calculator.domain.draft import Draft
from slipway_weight_calculator.domain.policy import PROFILES, Policy
from slipway_weight_calculator.domain.record import record
from slipway_weight_calculator.domain.rows import STAGES, Boot, Row, config_of
from slipway_weight_calculator.domain.signals import Signal
from slipway_weight_calculator.domain.trips import Trip
from slipway_weight_calculator.domain.world import World, advance, apply_signal, commit, declare, fold, forget

T0: Final = datetime(2030, 1, 1, tzinfo=UTC).timestamp()
POLICY: Final = PROFILES["on-demand"]
IMAGE: Final = image_key("linux-1")
QUOTA: Final = quota_key("sim-a", "sim-1", "m5.large")
CREDENTIAL: Final = credential_key("sim-a")


def capacity(name: str, account: str = "sim-a") -> Key:
    """Key of the capacity of the config of this name."""
    return capacity_key(account, "sim-1", name, "m5.large")


CAPACITY: Final = capacity("a")

Step = tuple[str, Any, float]
"""Transition of a world, its argument, and the time: ("fold", event, at), ("advance", None, now)."""


def config(config_id: str, *, pool: str = "linux", account: str = "sim-a", **changes: Any) -> LaunchConfigCreated:
    body: dict[str, Any] = {
        "name": config_id.partition("@")[0],
        "region": "sim-1",
        "zone": config_id.partition("@")[0],
        "instance_type": "m5.large",
        "image_revision": "linux-1",
        "base_weight": 1.0,
        "price_factor": 1.0,
        "state": "active",
        "revision": 1,
    }
    return LaunchConfigCreated(launch_config_id=config_id, pool_id=pool, account_id=account, **(body | changes))


A, B, C = config("a"), config("b"), config("c")


def of(of_config: LaunchConfigState, worker_id: str = "w", permit: int | None = None) -> dict[str, Any]:
    return {
        "worker_id": worker_id,
        "pool_id": of_config.pool_id,
        "launch_config_id": of_config.launch_config_id,
        "account_id": of_config.account_id,
        "image_revision": of_config.image_revision,
        "probe_permit": permit,
    }


def fails(scope: Scope, stage: Stage = Stage.LAUNCH, *, key: str = "", classified: bool = True) -> Outcome:
    return Outcome(stage, Result.FAILED, scope, key, scope.value, classified)


def requested(c: LaunchConfigState, worker_id: str = "w", permit: int | None = None) -> WorkerRequested:
    return WorkerRequested(decision_id="d", **of(c, worker_id, permit))


def delayed(c: LaunchConfigState, worker_id: str = "w", permit: int | None = None) -> WorkerDelayed:
    return WorkerDelayed(reason="throttled", **of(c, worker_id, permit))


def launched(
    c: LaunchConfigState, worker_id: str = "w", permit: int | None = None, *, leaving: bool = False
) -> WorkerLaunched:
    ok = Outcome(Stage.LAUNCH, Result.OK)
    return WorkerLaunched(
        instance_id=f"i-{worker_id}", batch_id="b", outcome=ok, leaving=leaving, **of(c, worker_id, permit)
    )


def refused(
    c: LaunchConfigState,
    scope: Scope = Scope.CAPACITY,
    worker_id: str = "w",
    permit: int | None = None,
    *,
    key: str = "",
    classified: bool = True,
) -> WorkerLaunchFailed:
    outcome = fails(scope, key=key, classified=classified)
    return WorkerLaunchFailed(batch_id="b", outcome=outcome, **of(c, worker_id, permit))


def registered(
    c: LaunchConfigState, worker_id: str = "w", permit: int | None = None, *, seconds: float = 90.0
) -> WorkerRegistered:
    ok = Outcome(Stage.BOOT, Result.OK)
    return WorkerRegistered(instance_id="i", boot_seconds=seconds, outcome=ok, **of(c, worker_id, permit))


def known_boots(c: LaunchConfigState, *seconds: float) -> list[WorkerEvent]:
    """Boots of these durations [default: five of 100 s], so that others of the image can be slow or late."""
    workers = [(f"known-{n}", each) for n, each in enumerate(seconds or (100.0,) * 5)]
    return [event for id_, each in workers for event in (launched(c, id_), registered(c, id_, seconds=each))]


def claimed(c: LaunchConfigState, worker_id: str = "w", permit: int | None = None) -> WorkerClaimed:
    ok = Outcome(Stage.CLAIM, Result.OK)
    return WorkerClaimed(task_id="t", source="q", outcome=ok, **of(c, worker_id, permit))


def stopping(
    c: LaunchConfigState, outcome: Outcome | None = None, worker_id: str = "w", permit: int | None = None
) -> WorkerStopping:
    return WorkerStopping(reason="r", outcome=outcome, **of(c, worker_id, permit))


def stopped(c: LaunchConfigState, worker_id: str = "w", permit: int | None = None) -> WorkerStopped:
    return WorkerStopped(reason="r", cancelled=True, **of(c, worker_id, permit))


def lost(
    c: LaunchConfigState, outcome: Outcome | None = None, worker_id: str = "w", permit: int | None = None
) -> WorkerLost:
    return WorkerLost(reason="r", outcome=outcome, **of(c, worker_id, permit))


def noticed(
    c: LaunchConfigState, key: Key, worker_id: str = "w", kind: Notice = Notice.INTERRUPTION, permit: int | None = None
) -> WorkerNoticed:
    return WorkerNoticed(kind=kind, capacity_key=key.id, reason="taken back", **of(c, worker_id, permit))


def signal_event(kind: str, target_kind: str, target_id: str, at: float = 0.0, **fields: Any) -> SignalRaised:
    observed_at = datetime.fromtimestamp(T0, UTC) + timedelta(seconds=at)
    given: dict[str, Any] = {"source": "monitor", "reason": "seen", "observed_at": observed_at} | fields
    return SignalRaised(kind=kind, target_kind=target_kind, target_id=target_id, **given)


class Story:
    """A world of these configs with one commit per step; times are seconds since its start.

    `log` holds all steps, so that another world can apply them too.
    """

    def __init__(self, *configs: LaunchConfigState, policies: Mapping[str, Policy] = PROFILES) -> None:
        self.world = World(policies)
        self.log: list[Step] = []
        for state in configs:
            self.declare(state, 0.0)

    def declare(self, state: LaunchConfigState, at: float) -> None:
        self._apply(("declare", state, T0 + at))

    def forget(self, config_id: str, at: float) -> None:
        self._apply(("forget", config_id, T0 + at))

    def fold(self, at: float, *events: WorkerEvent) -> None:
        for event in events:
            self._apply(("fold", event, T0 + at))

    def advance(self, at: float) -> None:
        self._apply(("advance", None, T0 + at))

    def advance_to(self, at: float) -> None:
        """Advance to every due time until `at`, as a running service does."""
        while (due := self.world.due()) is not None and due <= T0 + at:
            self._apply(("advance", None, due))
        self.advance(at)

    def signal(self, event: SignalRaised, at: float = 0.0, rules: Rules = DEFAULT_RULES) -> str:
        draft = Draft(self.world)
        problem = apply_signal(draft, event, T0 + at, rules)
        commit(draft)
        self.log.append(("signal", event, T0 + at))
        return problem

    def _apply(self, step: Step) -> None:
        draft = Draft(self.world)
        apply(draft, step)
        commit(draft)
        self.log.append(step)

    def row(self, key: Key | str) -> Row:
        """Row of a key, or of a config by its id."""
        return self.world.rows[key if isinstance(key, Key) else config_key(key)]

    def trip(self, key: Key | str, stage: str = "launch") -> Trip:
        trip: Trip = getattr(self.row(key), stage).trip
        return trip

    def next_probe(self, key: Key | str, stage: str = "launch") -> float:
        """Time of the next probe, in seconds since the start."""
        return self.trip(key, stage).next_probe_at - T0

    def record(self, config_id: str, at: float) -> WeightChanged:
        return record(Draft(self.world), self.world.configs[config_id], T0 + at)

    def trip_config(self, c: LaunchConfigState, at: float = 0.0, scope: Scope = Scope.CAPACITY) -> None:
        """Trip a row that a config shares, by two definite refusals."""
        self.fold(at, refused(c, scope, "x"), refused(c, scope, "y"))

    def probe(self, config_id: str, at: float) -> int:
        """Advance to `at` and return the config's permit, which must be ready."""
        self.advance_to(at)
        row = self.row(config_id)
        assert row.ready, f"no permit for {config_id} at {at:g}"
        return row.permit


def apply(draft: Draft, step: Step) -> None:
    transition, argument, at = step
    if transition == "declare":
        declare(draft, argument, at)
    elif transition == "fold":
        fold(draft, argument, at)
    elif transition == "forget":
        forget(draft, argument, at)
    elif transition == "signal":
        apply_signal(draft, argument, at)
    else:
        advance(draft, at)


def stored(world: World) -> dict[str, bytes]:
    """All values as bytes, by kind and key, as a database would store them."""
    kinds: dict[str, Mapping[str, Any]] = {
        "config": {id_: (c.declared, c.archived_at) for id_, c in world.configs.items()},
        "row": {key.text: row for key, row in world.rows.items()},
        "boot": world.boots,
        "signal": world.signals,
    }
    return {
        f"{kind} {key}": msgspec.json.encode(value) for kind, values in kinds.items() for key, value in values.items()
    }


def reloaded(world: World) -> World:
    """Another world, loaded from the stored values of this one in random order."""
    again, bytes_ = World(world.policies), list(stored(world).items())
    Random(len(bytes_)).shuffle(bytes_)

    def values(kind: str, type_: Any) -> dict[str, Any]:
        found = ((key.split(" ", 1), value) for key, value in bytes_)
        return {key: msgspec.json.decode(value, type=type_) for (k, key), value in found if k == kind}

    configs = [config_of(*pair) for pair in values("config", tuple[LaunchConfigState, float]).values()]
    rows = {Key.of(text): row for text, row in values("row", Row).items()}
    again.load(configs, rows, values("boot", Boot), values("signal", Signal))
    return again


class Fleet:
    """Random worker lifecycles on configs with temporary faults, which spend the permits that the world issues.

    It sends any events that a provisioner could send, on time or late.
    """

    def __init__(self, story: Story, configs: Iterable[LaunchConfigState], rng: Random, name: str = "w") -> None:
        self.story = story
        self.configs = {c.launch_config_id: c for c in configs}
        self.rng = rng
        self.name = name
        self.now = 0.0
        self.workers: dict[str, tuple[str, str, int | None]] = {}  # state, config, permit
        self.troubles: dict[tuple[str, str], Scope] = {}  # by config and the state that fails
        self.count = 0

    def step(self) -> None:
        """Let some time pass, continue workers, and start one."""
        rng = self.rng
        self.now += rng.choice([0.0, 1.0, 5.0, 20.0, 90.0])
        ids = sorted(self.configs)
        if rng.random() < 0.2:
            trouble = rng.choice([Scope.CAPACITY, Scope.QUOTA, Scope.CREDENTIAL, Scope.IMAGE, *Scope])
            self.troubles[rng.choice(ids), rng.choice(["requested", "starting", "running"])] = trouble
        if self.troubles and rng.random() < 0.1:
            del self.troubles[rng.choice(sorted(self.troubles))]
        if rng.random() < 0.5:
            self.story.advance(self.now)
        for worker_id in sorted(self.workers):
            if rng.random() < 0.3:
                self._continue(worker_id)
        self._start(self.configs[rng.choice(ids)])

    def _start(self, c: LaunchConfigState) -> None:
        known = self.story.record(c.launch_config_id, self.now)
        if c.state != "active" or (known.state != "healthy" and not known.probe_ready):
            return
        self.count += 1
        permit = known.probe_permit if known.state != "healthy" else None
        worker_id = f"{self.name}-{self.count}"
        self.workers[worker_id] = ("requested", c.launch_config_id, permit)
        self.story.fold(self.now, requested(c, worker_id, permit))

    def _continue(self, worker_id: str) -> None:
        state, config_id, permit = self.workers[worker_id]
        c, rng, of_it = self.configs[config_id], self.rng, (worker_id, permit)
        scope = self.troubles.get((config_id, state))
        # A boot with a fault mostly hangs; rare transitions happen now and then.
        if scope is not None and rng.random() < 0.9:
            bad: dict[str, tuple[str, WorkerEvent] | None] = {
                "requested": ("", refused(c, scope, *of_it, classified=rng.random() < 0.8)),
                "starting": ("leaving", stopping(c, fails(scope, Stage.BOOT), *of_it)) if rng.random() < 0.2 else None,
                "running": ("leaving", stopping(c, fails(scope, Stage.CLAIM), *of_it)),
            }
            after = bad[state]
        else:
            good: dict[str, tuple[str, WorkerEvent]] = {
                "requested": ("starting", launched(c, *of_it)),
                "early": ("running", launched(c, *of_it)),
                "starting": ("running", registered(c, *of_it, seconds=rng.uniform(20, 200))),
                "running": ("busy", claimed(c, *of_it)),
                "busy": ("leaving", stopping(c, None, *of_it)),
                "leaving": ("", stopped(c, *of_it)),
            }
            odd: dict[str, list[tuple[str, WorkerEvent]]] = {
                "requested": [
                    ("requested", delayed(c, *of_it)),
                    ("early", registered(c, *of_it)),
                    ("", stopped(c, *of_it)),
                ],
                "starting": [
                    ("leaving", stopping(c, None, *of_it)),
                    ("", lost(c, fails(Scope.CONFIG, Stage.BOOT), *of_it)),
                ],
                "running": [("leaving", stopping(c, None, *of_it))],
                "busy": [
                    ("", lost(c, None, *of_it)),
                    ("busy", noticed(c, capacity_of(c), worker_id, rng.choice([*Notice]), permit)),
                ],
            }
            after = rng.choice(odd[state]) if state in odd and rng.random() < 0.15 else good[state]
        if after is None:
            return
        state, event = after
        self.story.fold(self.now - rng.choice([0.0, 0.0, 0.0, 3.0]), event)
        if state:
            self.workers[worker_id] = (state, config_id, permit)
        else:
            del self.workers[worker_id]

    def declare(self, state: LaunchConfigState) -> None:
        """Declare a config; a known one changes."""
        known = self.configs.get(state.launch_config_id)
        revision = known.revision + 1 if known is not None else 1
        self.configs[state.launch_config_id] = msgspec.structs.replace(state, revision=revision)
        self.story.declare(self.configs[state.launch_config_id], self.now)


def trips_of(row: Row) -> list[tuple[str, Trip]]:
    return [(name, getattr(row, name).trip) for name in STAGES]
