"""Scenarios: demand, launch configs and faults of a run.

A scenario file is one JSON object. Every field except `name` has a default; an unknown field, a wrong type or an
invalid value is rejected with its name. One of four configs down for half an hour:

    {"name": "zone-b", "hours": 3, "launches_per_minute": 24, "configs": 4,
     "faults": [{"kind": "refused", "configs": [1], "begin_minute": 60, "end_minute": 90}]}

Configs are counted from 0. With `"demand": "trace"` arrivals come from the demand trace, with `"availability": "trace"`
there is one config per zone of the availability trace and a launch is refused while the zone is down; both start
at the beginning of the trace and last for `hours`, at most 96.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from slipway_weight_calculator.domain.policy import PROFILES

TICK_SECONDS: Final = 10.0  # of traces, and of scenarios without their own
TICKS_SECONDS: Final = (10.0, 6.0, 5.0, 4.0, 3.0, 2.0)  # parts of a minute, and none shorter than an answer
TRIES_MAX: Final = 200  # per tick
HOURS: Final = 96.0  # of a trace that a run uses
ANSWER_SECONDS: Final = 2.0  # until the answer of a provider is known

HOURS_MIN: Final = 0.01  # a few ticks
HOURS_MAX: Final = 1000.0
RATE_MAX: Final = 10_000.0  # launches a minute
FACTOR_MIN, FACTOR_MAX = 0.001, 1000.0
LATE_SECONDS_MAX: Final = 3600.0  # of records and events; far later than any built-in scenario
REPLICAS_MAX: Final = 10
TIMEOUT_SECONDS_MIN: Final = TICK_SECONDS  # answers are known earlier
TIMEOUT_SECONDS_MAX: Final = 30 * 86_400.0
BOOT_SECONDS_MIN, BOOT_SECONDS_MAX = 1.0, 86_400.0
PUSH_MAX: Final = 10_000

Source = Literal["made", "trace"]


class BadScenario(Exception):
    """An invalid scenario; the message names the field."""


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fault of some configs from `begin_minute` to `end_minute` (absent: to the end of the run).

    `refused`: each launch fails with `probability`, which grows from 0 during the first `ramp_minutes`. `capped`:
    launches of one config beyond `workers` in flight and running fail. `unregistered`: a machine whose boot would end
    in this time never registers, with the same `probability`. With `period_minutes` the fault is active only in the
    first `active_minutes` of each period; a cap has no periods, and a config has one cap. `scope` is the scope of the
    provider's error: capacity, quota, image or config; all faults of a config have the same.
    """

    kind: Literal["refused", "capped", "unregistered"]
    configs: tuple[int, ...]
    begin_minute: float = 0.0
    end_minute: float | None = None
    probability: float = 1.0
    ramp_minutes: float = 0.0
    workers: int = 0
    period_minutes: float | None = None
    active_minutes: float = 0.0
    scope: Literal["capacity", "quota", "image", "config"] = "capacity"

    def active(self, minute: float) -> bool:
        """True if the fault is active at a minute of the run."""
        if minute < self.begin_minute or (self.end_minute is not None and minute >= self.end_minute):
            return False
        if self.period_minutes is None:
            return True
        return (minute - self.begin_minute) % self.period_minutes < self.active_minutes

    def probability_at(self, minute: float) -> float:
        """Chance of a failure at a minute of the run."""
        passed = minute - self.begin_minute
        return self.probability * passed / self.ramp_minutes if passed < self.ramp_minutes else self.probability


class Span(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An interval of the run; `launches_per_minute` is used by bursts of demand only."""

    begin_minute: float
    end_minute: float
    launches_per_minute: float = 0.0


class Push(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`tasks` that arrive together at an instant, on top of the demand."""

    minute: float
    tasks: int


class ImageChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Change of the image of `configs` at an instant: each gets a new revision with a new image.

    Boots of the new image take `boot_seconds` (absent: those of the scenario), and each never registers with the
    probability `unregistered`. The new image is shared by these configs or own, as the scenario's `image`.
    """

    minute: float
    configs: tuple[int, ...]
    boot_seconds: float | None = None
    unregistered: float = 0.0


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Scenario of one run. Rates are per minute; `background` is the chance that any launch is refused at random.

    `bursts` replace the rate for a time, `pushes` add to it. `price_factors` scale the fair share of each config.
    `image` and `account` are shared by all configs or own. `boot_seconds` is the median of boots (log-normal, sigma
    0.35); `image_changes` replace images while the run goes on, and a config has at most one per tick. A failed boot is
    known `registration_timeout_seconds` after its start, and its task waits again.

    Everything happens in ticks of `tick_seconds`: 10, 6, 5, 4, 3 or 2, and 10 with demand of a trace.

    Slipway rolls new images out by the strategy `natural`: until the new revision of a config is proven, the old one
    launches what the new one may not. Other policies launch the newest image of a config at once.

    Only for Slipway: `profile` is the weight profile; weight records reach the first provisioner `record_lag_seconds`
    late, and each further one of its `replicas` another `replica_lag_seconds` later; events are delivered twice with
    probability `duplicates` and up to `reordered_seconds` late; during `calculator_down` nothing is folded.
    """

    name: str
    about: str = ""
    hours: float = 6.0
    tick_seconds: float = TICK_SECONDS
    configs: int = 4
    launches_per_minute: float = 24.0
    background: float = 0.01
    background_scope: Literal["capacity", "config"] = "config"
    demand: Source = "made"
    availability: Source = "made"
    faults: tuple[Fault, ...] = ()
    bursts: tuple[Span, ...] = ()
    pushes: tuple[Push, ...] = ()
    price_factors: tuple[float, ...] = ()
    account: Literal["shared", "own"] = "own"
    image: Literal["shared", "own"] = "own"
    boot_seconds: float = 90.0
    image_changes: tuple[ImageChange, ...] = ()
    registration_timeout_seconds: float = 900.0
    profile: str = "on-demand"
    replicas: int = 1
    replica_lag_seconds: float = 10.0
    record_lag_seconds: float = 0.0
    duplicates: float = 0.0
    reordered_seconds: float = 0.0
    calculator_down: tuple[Span, ...] = ()

    @property
    def ticks(self) -> int:
        return round(self.hours * 3600 / self.tick_seconds)

    @property
    def ticks_per_minute(self) -> int:
        return round(60 / self.tick_seconds)


def read(path: Path) -> Scenario:
    """Read a scenario file; raises BadScenario with the file, the field and the reason."""
    try:
        content = path.read_bytes()
        if not content.strip():
            raise BadScenario("is empty")
        return checked(msgspec.json.decode(content, type=Scenario))
    except OSError as error:
        raise BadScenario(f"{path}: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, BadScenario) as error:  # a validation error is a decode error too
        raise BadScenario(f"{path}: {error}") from error


def checked(scenario: Scenario) -> Scenario:
    """Validate a scenario and return it; raises BadScenario. Zones of a trace are checked by check_configs."""
    if not scenario.name or "/" in scenario.name:
        raise BadScenario(f"name: must be a word without a slash, not {scenario.name!r}")
    is_made = scenario.availability == "made"
    hours_max = HOURS if "trace" in (scenario.demand, scenario.availability) else HOURS_MAX
    _check_within("hours", scenario.hours, HOURS_MIN, hours_max)
    ticks = TICKS_SECONDS if scenario.demand == "made" else (TICK_SECONDS,)
    if scenario.tick_seconds not in ticks:
        given = ", ".join(f"{tick:g}" for tick in ticks)
        raise BadScenario(f"tick_seconds: must be one of {given}, not {scenario.tick_seconds:g}")
    _check_within("configs", scenario.configs, 1, 100)
    _check_within("launches_per_minute", scenario.launches_per_minute, 0, RATE_MAX)
    if not 0 <= scenario.background < 1:
        raise BadScenario(f"background: must be from 0 to below 1, not {scenario.background:g}")
    _check_within("boot_seconds", scenario.boot_seconds, BOOT_SECONDS_MIN, BOOT_SECONDS_MAX)
    _check_within("duplicates", scenario.duplicates, 0, 1)
    _check_within("reordered_seconds", scenario.reordered_seconds, 0, LATE_SECONDS_MAX)
    _check_within("record_lag_seconds", scenario.record_lag_seconds, 0, LATE_SECONDS_MAX)
    _check_within("replica_lag_seconds", scenario.replica_lag_seconds, 0, LATE_SECONDS_MAX)
    _check_within("replicas", scenario.replicas, 1, REPLICAS_MAX)
    _check_within(
        "registration_timeout_seconds", scenario.registration_timeout_seconds, TIMEOUT_SECONDS_MIN, TIMEOUT_SECONDS_MAX
    )
    for place, factor in enumerate(scenario.price_factors):
        _check_within(f"price_factors[{place}]", factor, FACTOR_MIN, FACTOR_MAX)
    if scenario.profile not in PROFILES:
        raise BadScenario(f"profile: unknown profile {scenario.profile}; available: {', '.join(PROFILES)}")
    if is_made:
        check_configs(scenario, scenario.configs)
    for name, spans in (("bursts", scenario.bursts), ("calculator_down", scenario.calculator_down)):
        for place, span in enumerate(spans):
            _check_span(f"{name}[{place}]", span.begin_minute, span.end_minute, scenario)
            _check_within(f"{name}[{place}].launches_per_minute", span.launches_per_minute, 0, RATE_MAX)
    for place, push in enumerate(scenario.pushes):
        _check_minute(f"pushes[{place}]", push.minute, scenario)
        _check_within(f"pushes[{place}].tasks", push.tasks, 1, PUSH_MAX)
    _check_changes(scenario)
    capped: set[int] = set()
    scopes: dict[int, str] = {}
    for place, fault in enumerate(scenario.faults):
        _check_fault(f"faults[{place}]", fault, scenario)
        for config in fault.configs:
            if (known := scopes.setdefault(config, fault.scope)) != fault.scope:
                where = f"faults[{place}].scope"
                raise BadScenario(
                    f"{where}: config {config} already has a fault of scope {known}; use the same scope for both"
                )
        if fault.kind == "capped":
            if twice := capped.intersection(fault.configs):
                raise BadScenario(
                    f"faults[{place}].configs: config {min(twice)} already has a cap; use one cap per config"
                )
            capped.update(fault.configs)
    return scenario


def check_configs(scenario: Scenario, configs: int) -> None:
    """Check the indexes of configs and the number of price factors against `configs`; raises BadScenario."""
    if scenario.price_factors and len(scenario.price_factors) != configs:
        raise BadScenario(
            f"price_factors: {len(scenario.price_factors)} given for {configs} configs; one per config is needed"
        )
    named = [(f"faults[{place}]", fault.configs) for place, fault in enumerate(scenario.faults)]
    named += [(f"image_changes[{place}]", change.configs) for place, change in enumerate(scenario.image_changes)]
    for where, given in named:
        if outside := [config for config in given if not 0 <= config < configs]:
            raise BadScenario(f"{where}.configs: no config {outside[0]}; configs are numbered from 0 to {configs - 1}")


def _check_within(where: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise BadScenario(f"{where}: must be from {least:g} to {most:g}, not {value}")


def _check_span(where: str, begin: float, end: float | None, scenario: Scenario) -> None:
    if begin < 0 or (end is not None and end <= begin):
        raise BadScenario(f"{where}: must start at 0 or later and end after its start, not {begin} to {end}")
    if begin >= (last := scenario.hours * 60):
        raise BadScenario(f"{where}.begin_minute: must be below {last:g}, where the run ends, not {begin}")


def _check_minute(where: str, minute: float, scenario: Scenario) -> None:
    last = scenario.hours * 60
    if not 0 <= minute < last:
        raise BadScenario(f"{where}.minute: must be from 0 to below {last:g}, where the run ends, not {minute}")


def _check_changes(scenario: Scenario) -> None:
    last: dict[int, float] = {}
    for place, change in enumerate(scenario.image_changes):
        where = f"image_changes[{place}]"
        _check_minute(where, change.minute, scenario)
        _check_named(where, change.configs)
        if change.boot_seconds is not None:
            _check_within(f"{where}.boot_seconds", change.boot_seconds, BOOT_SECONDS_MIN, BOOT_SECONDS_MAX)
        _check_within(f"{where}.unregistered", change.unregistered, 0, 1)
        for config in change.configs:
            if config in last and change.minute < last[config] + scenario.tick_seconds / 60:
                raise BadScenario(
                    f"{where}.minute: config {config} changes at {last[config]:g}; its changes must be in the order of "
                    f"their times and {scenario.tick_seconds:g} s apart"
                )
            last[config] = change.minute


def _check_named(where: str, configs: Sequence[int]) -> None:
    if not configs:
        raise BadScenario(f"{where}.configs: must name at least one config")
    if twice := [config for place, config in enumerate(configs) if config in configs[:place]]:
        raise BadScenario(f"{where}.configs: names config {twice[0]} twice")


def _check_fault(where: str, fault: Fault, scenario: Scenario) -> None:
    _check_span(where, fault.begin_minute, fault.end_minute, scenario)
    _check_named(where, fault.configs)
    _check_within(f"{where}.probability", fault.probability, 0, 1)
    for name, value in (("ramp_minutes", fault.ramp_minutes), ("workers", fault.workers)):
        if value < 0:
            raise BadScenario(f"{where}.{name}: must not be negative, not {value}")
    if fault.period_minutes is not None:
        if fault.kind == "capped":
            raise BadScenario(f"{where}.period_minutes: a cap has no periods; use begin_minute and end_minute")
        if not 0 < fault.active_minutes <= fault.period_minutes:
            raise BadScenario(f"{where}.active_minutes: must be above 0 and at most the period")
    if not any(fault.active(tick * scenario.tick_seconds / 60) for tick in range(scenario.ticks)):
        raise BadScenario(f"{where}: contains no tick of the run; must last at least {scenario.tick_seconds:g} s")


EVERYONE: Final = (0, 1, 2, 3)
DAYS_4_SECONDS: Final = 4 * 86_400.0


def _refused(configs: tuple[int, ...], begin_minute: float, end_minute: float | None, **fields: Any) -> Fault:
    return Fault(kind="refused", configs=configs, begin_minute=begin_minute, end_minute=end_minute, **fields)


def _one_then_all(name: str, about: str, **fields: Any) -> Scenario:
    """Two outages with slow, noisy or missing parts of Slipway; other policies are not affected."""
    return Scenario(name=name, about=about, faults=(_refused((0,), 60, 120), _refused(EVERYONE, 180, 210)), **fields)


def _bad_for_ever(name: str, configs: int, timeout_seconds: float, replicas: int) -> Scenario:
    about = "an image that never registers" + (f", in {configs} configs of {configs} accounts" if configs > 1 else "")
    about += ", time-out 15 min" if timeout_seconds < DAYS_4_SECONDS else ", time-out 4 days"
    return Scenario(
        name=name,
        about=about + (f", {replicas} replicas" if replicas > 1 else ""),
        hours=2.0,
        configs=configs,
        background=0.0,
        image="shared",
        registration_timeout_seconds=timeout_seconds,
        replicas=replicas,
        faults=(Fault(kind="unregistered", configs=tuple(range(configs)), scope="image"),),
    )


BUILT_IN: Final[dict[str, Scenario]] = {
    scenario.name: scenario
    for scenario in (
        Scenario(name="healthy", about="no faults"),
        Scenario(name="one-out", about="1 of 4 down for 60 min", faults=(_refused((0,), 60, 120),)),
        Scenario(name="three-out", about="3 of 4 down for 60 min", faults=(_refused((0, 1, 2), 60, 120),)),
        Scenario(name="all-out", about="all down for 30 min", faults=(_refused(EVERYONE, 60, 90),)),
        Scenario(
            name="quota-cap",
            about="1 of 4 limited to 40 workers, from 1 h on",
            faults=(Fault(kind="capped", configs=(0,), begin_minute=60, workers=40, scope="quota"),),
        ),
        Scenario(
            name="slow-decay",
            about="1 of 4 degrades to 10 % within an hour and stays there for another",
            faults=(_refused((0,), 60, 180, probability=0.9, ramp_minutes=60),),
        ),
        Scenario(
            name="bad-image",
            about="boots of 1 of 4 fail for 60 min, time-out 15 min",
            faults=(Fault(kind="unregistered", configs=(0,), begin_minute=60, end_minute=120, scope="image"),),
        ),
        Scenario(
            name="flapping",
            about="1 of 4 down for 5 min of every 10, for 2 h",
            faults=(_refused((0,), 60, 180, period_minutes=10, active_minutes=5),),
        ),
        Scenario(
            name="steady-30",
            about="1 of 4 refuses 30 %, from 1 h on",
            faults=(_refused((0,), 60, None, probability=0.3),),
        ),
        *(
            _bad_for_ever(f"{name}{days}{many}", configs, timeout, replicas)
            for name, configs in (("always-bad", 1), ("always-bad-nine", 9))
            for days, timeout in (("", 900.0), ("-4d", DAYS_4_SECONDS))
            for many, replicas in (("", 1), ("-3r", 3))
        ),
        _one_then_all("stale", "weights 60 s old", record_lag_seconds=60.0),
        _one_then_all(
            "duplicates", "1 of 10 events twice, all up to 30 s late", duplicates=0.1, reordered_seconds=30.0
        ),
        _one_then_all(
            "calculator-down",
            "no calculator when outages start",
            calculator_down=(Span(begin_minute=55, end_minute=75), Span(begin_minute=175, end_minute=195)),
        ),
        Scenario(
            name="prices",
            about="shares 4 : 2 : 1 : 1, the cheapest down for 60 min",
            price_factors=(1.0, 0.5, 0.25, 0.25),
            faults=(_refused((0,), 60, 120),),
        ),
        Scenario(
            name="burst",
            about="all down for 30 min, and fivefold demand as they recover",
            faults=(_refused(EVERYONE, 60, 90),),
            bursts=(Span(begin_minute=88, end_minute=98, launches_per_minute=120.0),),
        ),
        Scenario(
            name="low-rate",
            about="3 launches a minute over the zones of the trace",
            hours=HOURS,
            launches_per_minute=3.0,
            background=0.0,
            availability="trace",
            profile="spot",
        ),
        Scenario(
            name="real",
            about="demand and zones of the traces, at three offsets",
            hours=HOURS,
            background=0.0,
            demand="trace",
            availability="trace",
            profile="spot",
        ),
    )
}
