"""Stuck workers: when a worker is stuck, how many of them are replaced, and when it is the account that refuses."""

from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_api.events.alert import AlertRaised, AlertResolved
from slipway_api.events.lifecycle import State
from slipway_provisioner.domain import workers
from slipway_provisioner.domain.accounting import shortfall
from slipway_provisioner.domain.cloud import Protected
from slipway_provisioner.domain.headroom import Launch
from slipway_provisioner.domain.planning import Plan, check_plan
from slipway_provisioner.domain.pool import Fleet, Idle, Observed, Pool
from slipway_provisioner.domain.refused_terminations import Stuck, Terminations, alert
from slipway_provisioner.domain.starvation import Shortage, raised
from slipway_provisioner.domain.workers import Worker
from tests.unit.provisioner.test_planning import PAUSED, PROBE, config, launched, observed, plan, reasons

NOW = datetime(2030, 1, 1, tzinfo=UTC)
WORKER = Worker(
    id="w",
    pool_id="p",
    launch_config_id="c",
    account_id="a",
    image_revision="i",
    state=State.STOPPING,
    decision_id="d",
    requested_at=NOW,
)

#    seconds of the refusals                stuck at the last one
REFUSED = [
    ([0, 200, 400, 600], False),  # four
    ([0, 60, 120, 180, 240, 599], False),  # in less than ten minutes
    ([0, 60, 120, 180, 600], True),
    ([0, 300, 600, 900, 1200], True),
]


@pytest.mark.parametrize(("seconds", "stuck"), REFUSED)
def test_five_refusals_over_ten_minutes_are_stuck(seconds: list[int], stuck: bool) -> None:
    """Neither fewer refusals nor a shorter time; an accepted termination begins anew."""
    worker = WORKER
    for second in seconds:
        worker = workers.termination_refused(worker, NOW + timedelta(seconds=second), stuck_after_seconds=600)
    assert bool(worker.stuck_at) is stuck
    assert worker.termination_refusals == len(seconds)
    assert workers.termination_accepted(worker) == WORKER


#    asked, refused, is it the account?
ACCOUNTS = [(3, 3, False), (4, 4, True), (15, 4, True), (20, 4, False), (100, 20, False), (100, 21, True)]


@pytest.mark.parametrize(("asked", "refused", "refuses"), ACCOUNTS)
def test_many_refusals_are_the_account(asked: int, refused: int, refuses: bool) -> None:
    """More than three, and more than a fifth."""
    assert Terminations(account_id="a", asked=asked, refused=refused, refusing=False).refuses is refuses


#    max, serving, leaving, stuck   launch for 99 tasks
FREED = [
    (2, 0, 2, 0, 0),
    (2, 0, 2, 1, 1),
    (2, 0, 2, 2, 1),  # the other one goes on holding its place
    (2, 1, 2, 2, 0),
    (19, 0, 19, 19, 1),
    (20, 0, 20, 19, 2),
    (50, 0, 50, 50, 5),
]


@pytest.mark.parametrize(("maximum", "serving", "leaving", "stuck", "launch"), FREED)
def test_a_tenth_of_the_places_of_stuck_workers_is_freed(
    maximum: int, serving: int, leaving: int, stuck: int, launch: int
) -> None:
    """At least one."""
    made = plan(observed(99, max_capacity=maximum, serving=serving, leaving=leaving, stuck=stuck))
    assert made.units == launch
    if not launch:
        assert made.details["code"] == "no-room"


@given(st.data())
def test_the_bound_holds_whatever_is_stuck(data: st.DataObject) -> None:
    """Over any history of demand, ends, refusals and accounts that refuse: serving + leaving stay within the maximum,
    the minimum and a tenth of the maximum, and serving within the maximum."""
    low = data.draw(st.integers(0, 3))
    high = data.draw(st.integers(max(1, low), 40))
    pool = Pool(id="p", min_capacity=low, max_capacity=high, scaling_ratio=Fraction(1))
    bound = high + low + max(1, high // 10)
    serving = leaving = stuck = 0
    for _ in range(data.draw(st.integers(1, 30))):
        seen = data.draw(st.sampled_from([0, stuck]))  # 0: their account refuses
        serving += shortfall(pool, data.draw(st.integers(0, 60)), Fleet(serving=serving, leaving=leaving, stuck=seen))
        assert serving <= high
        assert serving + leaving <= bound
        left = data.draw(st.integers(0, serving))
        serving, leaving = serving - left, leaving + left
        stuck += data.draw(st.integers(0, leaving - stuck))
        gone = data.draw(st.integers(0, leaving))
        leaving, stuck = leaving - gone, max(0, stuck - gone)


def test_check_plan_finds_a_launch_beyond_the_freed_places() -> None:
    """Two stuck workers of a maximum of ten free one place."""
    beyond = Plan(launches=[Launch(config=config(), units=2)], cancel=(), stop=(), wanted=0, serving=0, details={})
    crowded = observed(9, serving=7, leaving=3, stuck=2, max_capacity=10)
    problem = "9 serving and 3 leaving exceed maximum + minimum + 1 of stuck workers"
    assert check_plan(crowded, beyond) == [problem]


def test_no_room_is_no_lack_of_demand() -> None:
    """Two leaving workers of a maximum of two, with five tasks and without any."""
    wanting = plan(observed(5, max_capacity=2, leaving=2, stuck=2, serving=1))
    assert (wanting.details["code"], wanting.details["missing"], wanting.details["needed"]) == ("no-room", 1, 0)
    assert wanting.details["reason"] == "1 wanted, but no room: 2 leaving, 2 of them stuck"
    assert reasons(wanting)["a"] == "nothing is needed"
    idle = plan(observed(0, max_capacity=2, leaving=2))
    assert (idle.details["code"], idle.details["reason"]) == ("not-wanted", "nothing is needed")


#    maximum, stranded, what the probe waits for
STRANDED = [
    (12, 0, ""),
    (12, 1, "tripped; its probe waits: 1 machine of an earlier probe cannot be terminated"),
    (20, 1, ""),
    (20, 2, "tripped; its probe waits: 2 machines of earlier probes cannot be terminated"),
]


@pytest.mark.parametrize(("maximum", "stranded", "reason"), STRANDED)
def test_machines_of_probes_that_stay_stop_further_probes(maximum: int, stranded: int, reason: str) -> None:
    """Each probe of a tripped image could leave another machine that cannot be terminated, until the pool is full."""
    made = plan(observed(5, PROBE, max_capacity=maximum, leaving=stranded, stranded=stranded))
    assert launched(made) == ({} if reason else {"a": 1})
    assert reasons(made)["a"] == reason


def test_stuck_workers_do_not_keep_idle_ones_of_draining_revisions() -> None:
    """They have left, and nothing is on its way for them."""
    resting = [Idle(worker_id="i", config_id="old", since=NOW)]
    configs = (config("a"), config("old", state="draining"))
    for stuck, drained in ((2, ["i"]), (0, [])):
        fleet = {"serving": 4, "leaving": 2, "stuck": stuck, "max_capacity": 20}
        assert plan(observed(4, *configs, idle=resting, **fleet)).drain == drained


#    observed before, seconds since when workers are missing
MISSING = [
    (observed(3), 0.0),
    (observed(3, missing_since=NOW - timedelta(seconds=60)), 60.0),
    (observed(3, missing_since=NOW - timedelta(seconds=60), registered=True), 0.0),
    (observed(3, config(launching=3), serving=3, missing_since=NOW - timedelta(seconds=60)), 60.0),
    (observed(3, serving=3, missing_since=NOW - timedelta(seconds=60)), None),
    (observed(9, serving=1, mode="canary"), None),
    (observed(9, mode="canary"), 0.0),
    (observed(0), None),
    (observed(3, paused=True), None),
    (observed(3, frozen=True), None),
    (observed(3, mode="observe"), None),
    (observed(3, stopped="launching is stopped: drill"), None),
    (observed(3, PAUSED), None),
    (observed(3, config(stopped="launching is stopped in sim-a: drill", launch_stop=True)), None),
    (observed(3, config(stopped="account sim-a does not answer")), 0.0),
]


@pytest.mark.parametrize(("given_pool", "seconds"), MISSING)
def test_a_pool_misses_workers_while_it_may_launch(given_pool: Observed, seconds: float | None) -> None:
    """Until one registers; not while a person has stopped its launches."""
    since = plan(given_pool).missing_since
    assert (None if since is None else (NOW - since).total_seconds()) == seconds


def shortage(**changes: Any) -> Shortage:
    usual: dict[str, Any] = {
        "pool_id": "builds",
        "starved": False,
        "missing_seconds": 1500.0,
        "registration_seconds": 900.0,
        "starting": 0,
        "details": {},
    }
    return Shortage(**(usual | changes))


#    missing, registration deadline, starved?
STARVED = [(599, 100, False), (600, 100, True), (1349, 900, False), (1350, 900, True)]


@pytest.mark.parametrize(("missing", "registration", "starved"), STARVED)
def test_a_pool_is_starved_after_a_registration_was_possible(
    missing: float, registration: float, starved: bool
) -> None:
    """After ten minutes, and after one and a half times the deadline of a registration."""
    found = shortage(missing_seconds=float(missing), registration_seconds=float(registration))
    assert found.is_starved(600) is starved


#    plan of a starved pool, starting          severity, cause
CAUSES = [
    (
        plan(observed(5, max_capacity=2, serving=1, leaving=2, stuck=2)),
        0,
        "notice",
        "no room: 2 leaving, 2 of them stuck",
    ),
    (plan(observed(5, max_capacity=2, leaving=3)), 0, "page", "no room: 3 leaving"),
    (
        plan(observed(3, config(stopped="account b refuses to terminate its instances"))),
        0,
        "notice",
        "account b refuses",
    ),
    (plan(observed(3, config(window=0))), 0, "page", "the launch window is full"),
    (plan(observed(3, config(launching=3), serving=3)), 3, "page", "3 starting, none of which has registered"),
]


@pytest.mark.parametrize(("made", "starting", "severity", "cause"), CAUSES)
def test_the_alert_names_one_cause(made: Plan, starting: int, severity: str, cause: str) -> None:
    """It is a page unless that cause has one of its own."""
    found = raised(shortage(starting=starting, details=made.details), NOW)
    assert found.severity == severity
    assert cause in found.cause
    assert (found.kind, found.command) == ("pool-starved", "slipway why builds")


def test_a_starved_pool_names_the_time_in_seconds_while_it_is_short() -> None:
    """As in a demo, which divides every time."""
    texts = [raised(shortage(missing_seconds=seconds), NOW).summary for seconds in (15.0, 5400.0)]
    assert texts == [f"pool builds is starved: no worker has registered for {text}" for text in ("15 s", "90 min")]


FACTS = "they run and cost money, and count towards quotas and maxima"
RETRIES = "retries, at most once per pass of the instance reaper"
REPLACES = f"{RETRIES}; replaces stuck workers, up to a tenth of the maximum of their pool"
NOTHING = f"{RETRIES}; launches nothing in this account, whose new machines would have to stay as well"
#    instances, stuck, does the account refuse?  effect, doing
DOING = [
    (1, 0, False, FACTS, RETRIES),
    (2, 1, False, f"{FACTS}; 1 worker is stuck", REPLACES),
    (3, 2, False, f"{FACTS}; 2 workers are stuck", REPLACES),
    (12, 2, True, FACTS, NOTHING),
]


@pytest.mark.parametrize(("instances", "stuck", "refusing", "effect", "doing"), DOING)
def test_the_alert_says_what_is_done(instances: int, stuck: int, refusing: bool, effect: str, doing: str) -> None:
    """One key for an account, whatever the number of instances: three are in the summary, ten in the evidence."""
    ids = [f"i-{n:02}" for n in range(instances)]
    those = {id_: Protected("protected", f"unprotect {id_}") for id_ in reversed(ids)}
    made = alert("a", those, [Stuck(f"w-{n}", ids[n]) for n in range(stuck)], refusing=refusing)
    assert isinstance(made, AlertRaised)
    assert made == AlertRaised(
        dedup_key="provisioner/termination-refused/a",
        subject_kind="account",
        subject_id="a",
        kind="termination-refused",
        summary=f"a refuses to terminate {', '.join(ids[:3])}" + (" and 9 more" if instances == 12 else ""),
        effect=effect,
        doing=doing,
        command="unprotect i-00",
        cause="protected",
        evidence=tuple(ids[:10]),
    )
    ended = alert("a", {})
    assert isinstance(ended, AlertResolved)
    assert (ended.dedup_key, ended.summary, ended.doing) == (made.dedup_key, "", RETRIES)
