"""What happens in a run: demand, ways to launch, and what goes wrong with them when. Values; a file holds one.

A scenario file is one JSON object. Every field but `name` has a default; an unknown field, a wrong type or a value
that cannot be is refused by its name. One of four configs down for half an hour:

    {"name": "zone-b", "hours": 3, "launches_per_minute": 24, "configs": 4,
     "faults": [{"kind": "refused", "configs": [1], "begin_minute": 60, "end_minute": 90}]}

Configs are counted from 0. With `"demand": "trace"` arrivals come from the demand trace, with `"availability": "trace"`
there is one config per zone of the availability trace and a launch is refused while the zone is down; both begin with
the trace and last for `hours`.
"""

from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from slipway_weight_calculator.domain.policy import PROFILES

TICK_SECONDS: Final = 10.0
TRIES_MAX: Final = 200  # per tick
HOURS: Final = 96.0  # of a trace that a run takes
ANSWER_SECONDS: Final = 2.0  # until a provider's yes or no is known

Source = Literal["made", "trace"]


class BadScenario(Exception):
    """A scenario that cannot be; the message names the field."""


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is wrong with some configs from `begin_minute` to `end_minute` (absent: to the end of the run).

    `refused`: each launch fails with `probability`, which grows from 0 during the first `ramp_minutes`. `capped`:
    launches beyond `workers` under way and running of one config fail. `unregistered`: machines whose boot would end
    meanwhile never register. With `period_minutes` it is only so in the first `active_minutes` of each period. `scope`
    is what the provider's error says: capacity, quota, image or config.
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
        if minute < self.begin_minute or (self.end_minute is not None and minute >= self.end_minute):
            return False
        if self.period_minutes is None:
            return True
        return (minute - self.begin_minute) % self.period_minutes < self.active_minutes

    def probability_at(self, minute: float) -> float:
        passed = minute - self.begin_minute
        return self.probability * passed / self.ramp_minutes if passed < self.ramp_minutes else self.probability


class Span(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """From one minute of the run to another; `launches_per_minute` only where demand is meant."""

    begin_minute: float
    end_minute: float
    launches_per_minute: float = 0.0


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One run's world. Rates are per minute, `background` is the chance that any launch is refused for no reason.

    `bursts` replace the rate for a while. `price_factors` scale the share that each config should get. `image` and
    `account` say whether configs share one. A start that has not registered after `registration_timeout_seconds` is
    given up, and its task waits again.

    How Slipway sees it: `profile` judges the configs; records reach the spending side `record_lag_seconds` late, and
    each further one of its `replicas` as much later again as `replica_lag_seconds`; events come twice with probability
    `duplicates` and up to `reordered_seconds` late; while `calculator_down` nothing is folded or published.
    """

    name: str
    about: str = ""
    hours: float = 6.0
    configs: int = 4
    launches_per_minute: float = 24.0
    background: float = 0.01
    background_scope: Literal["capacity", "config"] = "config"
    demand: Source = "made"
    availability: Source = "made"
    faults: tuple[Fault, ...] = ()
    bursts: tuple[Span, ...] = ()
    price_factors: tuple[float, ...] = ()
    account: Literal["shared", "own"] = "own"
    image: Literal["shared", "own"] = "own"
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
        return round(self.hours * 3600 / TICK_SECONDS)


def read(path: Path) -> Scenario:
    """A scenario from a file; raises BadScenario with what is wrong and where."""
    try:
        return checked(msgspec.json.decode(path.read_bytes(), type=Scenario))
    except OSError as error:
        raise BadScenario(f"{path}: {error.strerror}") from error
    except (msgspec.DecodeError, BadScenario) as error:  # a validation error is a decode error too
        raise BadScenario(f"{path}: {error}") from error


def checked(scenario: Scenario) -> Scenario:
    """The scenario itself, if it can be run; raises BadScenario."""
    for name, is_so, must in (
        ("name", bool(scenario.name) and "/" not in scenario.name, "be a word without a slash"),
        ("hours", 0 < scenario.hours <= 1000, "be above 0 and at most 1000"),
        ("configs", 1 <= scenario.configs <= 100, "be from 1 to 100"),
        ("launches_per_minute", 0 <= scenario.launches_per_minute <= 10_000, "be from 0 to 10000"),
        ("background", 0 <= scenario.background < 1, "be from 0 to below 1"),
        ("duplicates", 0 <= scenario.duplicates <= 1, "be from 0 to 1"),
        ("reordered_seconds", scenario.reordered_seconds >= 0, "not be negative"),
        ("record_lag_seconds", scenario.record_lag_seconds >= 0, "not be negative"),
        ("replica_lag_seconds", scenario.replica_lag_seconds >= 0, "not be negative"),
        ("replicas", 1 <= scenario.replicas <= 100, "be from 1 to 100"),
        ("registration_timeout_seconds", scenario.registration_timeout_seconds > 0, "be above 0"),
        ("price_factors", all(factor > 0 for factor in scenario.price_factors), "all be above 0"),
    ):
        if not is_so:
            raise BadScenario(f"{name}: must {must}")
    if scenario.profile not in PROFILES:
        raise BadScenario(f"profile: there is no {scenario.profile}; there are {', '.join(PROFILES)}")
    is_made = scenario.availability == "made"
    if scenario.price_factors and is_made and len(scenario.price_factors) != scenario.configs:
        raise BadScenario(f"price_factors: {len(scenario.price_factors)} of them for {scenario.configs} configs")
    for place, span in enumerate((*scenario.bursts, *scenario.calculator_down)):
        _check_span(f"span {place}", span.begin_minute, span.end_minute)
    for place, fault in enumerate(scenario.faults):
        _check_fault(f"faults[{place}]", fault, scenario.configs if is_made else None)
    return scenario


def _check_span(where: str, begin: float, end: float | None) -> None:
    if begin < 0 or (end is not None and end <= begin):
        raise BadScenario(f"{where}: must begin at 0 or later and end after its begin, not {begin} to {end}")


def _check_fault(where: str, fault: Fault, configs: int | None) -> None:
    _check_span(where, fault.begin_minute, fault.end_minute)
    if not fault.configs:
        raise BadScenario(f"{where}.configs: names no config")
    if outside := [c for c in fault.configs if c < 0 or (configs is not None and c >= configs)]:
        raise BadScenario(f"{where}.configs: there is no config {outside[0]}; they are counted from 0")
    if not 0 <= fault.probability <= 1:
        raise BadScenario(f"{where}.probability: must be from 0 to 1, not {fault.probability}")
    for name, value in (("ramp_minutes", fault.ramp_minutes), ("workers", fault.workers)):
        if value < 0:
            raise BadScenario(f"{where}.{name}: must not be negative")
    if fault.period_minutes is not None and not 0 < fault.active_minutes <= fault.period_minutes:
        raise BadScenario(f"{where}.active_minutes: must be above 0 and at most the period")


EVERYONE: Final = (0, 1, 2, 3)
DAYS_4_SECONDS: Final = 4 * 86_400.0


def _refused(configs: tuple[int, ...], begin_minute: float, end_minute: float | None, **fields: Any) -> Fault:
    return Fault(kind="refused", configs=configs, begin_minute=begin_minute, end_minute=end_minute, **fields)


def _one_then_all(name: str, about: str, **fields: Any) -> Scenario:
    """Two outages in which Slipway's own parts are slow, noisy or away; others fare as always."""
    return Scenario(name=name, about=about, faults=(_refused((0,), 60, 120), _refused(EVERYONE, 180, 210)), **fields)


def _bad_for_ever(name: str, configs: int, timeout_seconds: float, replicas: int) -> Scenario:
    about = "an image that never registers" + (f", in {configs} configs of as many accounts" if configs > 1 else "")
    about += ", time-out 15 min" if timeout_seconds < DAYS_4_SECONDS else ", time-out 4 days"
    return Scenario(
        name=name, about=about + (f", {replicas} replicas" if replicas > 1 else ""), hours=2.0, configs=configs,
        background=0.0, image="shared", registration_timeout_seconds=timeout_seconds, replicas=replicas,
        faults=(Fault(kind="unregistered", configs=tuple(range(configs)), scope="image"),),
    )  # fmt: skip


BUILT_IN: Final[dict[str, Scenario]] = {
    scenario.name: scenario
    for scenario in (
        Scenario(name="healthy", about="all is well"),
        Scenario(name="one-out", about="1 of 4 down for 60 min", faults=(_refused((0,), 60, 120),)),
        Scenario(name="three-out", about="3 of 4 down for 60 min", faults=(_refused((0, 1, 2), 60, 120),)),
        Scenario(name="all-out", about="all down for 30 min", faults=(_refused(EVERYONE, 60, 90),)),
        Scenario(
            name="quota-cap", about="one may have 40 workers, from 1 h on",
            faults=(Fault(kind="capped", configs=(0,), begin_minute=60, workers=40, scope="quota"),),
        ),
        Scenario(
            name="slow-decay", about="1 of 4 falls to 10 % within an hour, and stays there for another",
            faults=(_refused((0,), 60, 180, probability=0.9, ramp_minutes=60),),
        ),
        Scenario(
            name="bad-image", about="boots of 1 of 4 come to nothing for 60 min, time-out 15 min",
            faults=(Fault(kind="unregistered", configs=(0,), begin_minute=60, end_minute=120, scope="image"),),
        ),
        Scenario(
            name="flapping", about="1 of 4 down for 5 min of every 10, for 2 h",
            faults=(_refused((0,), 60, 180, period_minutes=10, active_minutes=5),),
        ),
        Scenario(
            name="steady-30", about="1 of 4 refuses 30 %, from 1 h on",
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
            "calculator-down", "no calculator when outages begin",
            calculator_down=(Span(begin_minute=55, end_minute=75), Span(begin_minute=175, end_minute=195)),
        ),
        Scenario(
            name="prices", about="shares 4 : 2 : 1 : 1, the cheapest down for 60 min",
            price_factors=(1.0, 0.5, 0.25, 0.25), faults=(_refused((0,), 60, 120),),
        ),
        Scenario(
            name="burst", about="all down for 30 min, and fivefold demand as they recover",
            faults=(_refused(EVERYONE, 60, 90),),
            bursts=(Span(begin_minute=88, end_minute=98, launches_per_minute=120.0),),
        ),
        Scenario(
            name="low-rate", about="3 launches a minute over the zones of the trace", hours=HOURS,
            launches_per_minute=3.0, background=0.0, availability="trace", profile="spot",
        ),
        Scenario(
            name="real", about="demand and zones of the traces, from three instants", hours=HOURS, background=0.0,
            demand="trace", availability="trace", profile="spot",
        ),
    )
}  # fmt: skip
