"""Rules of a plan in detail: who leaves beside whom, when it is made again, and what it records for others to read."""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final

import msgspec
import pytest

from slipway_api.events.scopes import Key
from slipway_provisioner.domain import capping
from slipway_provisioner.domain.accounting import Departures, Sample, gone
from slipway_provisioner.domain.ageing import Ageing, Life
from slipway_provisioner.domain.choice import Candidate, choose
from slipway_provisioner.domain.fairness import Wait
from slipway_provisioner.domain.headroom import Launch
from slipway_provisioner.domain.limits import Level, Limit, Tariff, Usage
from slipway_provisioner.domain.planning import Plan, check_plan
from slipway_provisioner.domain.pool import Busy, Config, Demand, Idle, Observed, Shared, Stage, Waiting
from slipway_provisioner.domain.prices import MachineKind
from slipway_provisioner.domain.surplus import Span, Surplus
from slipway_provisioner.domain.windows import may_attempt, trial_rooms
from tests.unit.provisioner.test_planning import (
    FULL,
    NOW,
    PAUSED,
    POOL,
    PROBE,
    STOPPED,
    TRIPPED,
    at_maximum_age,
    config,
    idle,
    launch,
    launched,
    made,
    observed,
    plan,
    reasons,
    reports_of,
)
from tests.unit.provisioner.test_roll_out_plans import config as revision

WITHOUT_CALCULATOR: Final[dict[str, Any]] = {"calculator_unavailable_seconds": 0.5}
IMAGE: Final = Shared(key=Key("image", "i"), stage="boot", window=64)
EARLY: Final = at_maximum_age("early", age_seconds=59.99)  # not at the maximum itself, so that it waits for room
DRAINING: Final = config("d", state="draining")
REST: Final = Idle(worker_id="d", config_id="d", since=NOW)


def one_image(*names: str, **changes: Any) -> list[Config]:
    return [config(name, shares=[IMAGE.share], **changes) for name in names]


def limit(scope: str, launches: int, scope_id: str = "linux", **usage: Any) -> Level:
    return Level(limit=Limit(scope=scope, scope_id=scope_id, launches_per_hour=launches), usage=Usage(**usage))


def shared(**changes: Any) -> list[Shared]:
    return [msgspec.structs.replace(IMAGE, **changes)]


# What leaves, beside what.

#        observed, workers of full age that stop
AGED: Final[list[tuple[Observed, list[str]]]] = [
    (observed(4, serving=4, lives=[EARLY]), ["early"]),
    (observed(8, config(window=1), serving=6, lives=[EARLY]), []),  # not all that are needed are launched
    (observed(4, serving=3, lives=[EARLY]), []),  # one is launched, which is a quarter
    (observed(4, serving=5, idle=[idle("i", 500)], lives=[EARLY]), []),  # one stops
    (
        observed(4, config(), DRAINING, serving=4, idle=[REST], lives=[EARLY]),
        [],
    ),
    # Those that are not wanted are counted without the idle one that stops, and the busy one that is marked.
    (observed(3, TRIPPED, serving=4, idle=[idle("i", 500)], lives=[at_maximum_age("w")]), []),
    (observed(3, TRIPPED, serving=4, max_capacity=3, busy=[Busy(worker_id="b")], lives=[at_maximum_age("w")]), []),
    (observed(3, TRIPPED, serving=4, lives=[at_maximum_age("w")]), ["w"]),
]


@pytest.mark.parametrize(("given", "stop"), AGED)
def test_a_worker_of_full_age_leaves_beside_others(given: Observed, stop: list[str]) -> None:
    assert plan(given).ageing.stop == stop


#   tasks of the sample, changes → idle workers of a draining revision that leave, workers of full age that do
UNREPLACED: Final[list[tuple[int, dict[str, Any], list[str], list[str]]]] = [
    (2, {}, [], []),
    (1, {}, ["d"], []),  # one is not wanted
    (0, {}, ["d"], ["w"]),
    (0, {"paused": True}, [], ["w"]),
]


@pytest.mark.parametrize(("pending", "changes", "drain", "aged"), UNREPLACED)
def test_only_those_leave_without_a_replacement_that_no_sample_wants(
    pending: int, changes: dict[str, Any], drain: list[str], aged: list[str]
) -> None:
    """While no config may launch; each of them once. Ends of the tasks may be made up."""
    sample = Demand(source="q", pending=pending, claimed=0, gone=pending, stale=False, fresh_seconds=300.0)
    lives = [at_maximum_age("w")]
    given = observed(0, TRIPPED, DRAINING, demands=[sample], serving=2, idle=[REST], lives=lives, **changes)
    made = plan(given)
    assert (made.drain, made.ageing.stop) == (drain, aged)


def test_a_stale_report_keeps_workers_that_wait() -> None:
    """Its tasks are there still, as far as anybody knows."""
    waiting = [Waiting(worker_id=name, config_id="a") for name in ("w1", "w2", "w3")]
    assert plan(observed(demands=reports_of(2, stale=True), serving=3, waiting=waiting)).cancel == ["w3"]


BUSY: Final = [Busy(worker_id=name) for name in ("b1", "b2")]
#        observed, code and text of its reason
REASONS: Final[list[tuple[Observed, str, str]]] = [
    (
        observed(0, serving=1, waiting=[Waiting(worker_id="w", config_id="a")]),
        "surplus",
        "1 cancelled: more workers than wanted",
    ),
    (observed(0, serving=1, idle=[idle("i", 500)]), "surplus", "1 stopping: more workers than wanted"),
    (
        observed(2, serving=2, max_capacity=1, busy=BUSY),
        "surplus",
        "1 to leave after their tasks: more workers than wanted",
    ),
    (
        observed(1, config(), DRAINING, serving=1, idle=[REST]),
        "draining",
        "1 stopping: idle workers of draining revisions",
    ),
    (
        observed(1, serving=1, lives=[at_maximum_age("w")]),
        "aged",
        "1 stopping, 0 leave after their task: at their maximum age",
    ),
    (
        observed(1, serving=1, lives=[at_maximum_age("w", has_task=True)]),
        "aged",
        "0 stopping, 1 leave after their task: at their maximum age",
    ),
    (observed(3, serving=4, leaving=6, max_capacity=4), "not-wanted", "nothing is needed"),
    (observed(9, serving=4, leaving=6), "no-room", "5 wanted, but no room: 6 leaving"),
    (observed(9, serving=1, leaving=10, stuck=1), "no-room", "8 wanted, but no room: 10 leaving, 1 of them stuck"),
]


@pytest.mark.parametrize(("given", "code", "text"), REASONS)
def test_the_reason_says_what_leaves(given: Observed, code: str, text: str) -> None:
    made = plan(given)
    assert (made.details["code"], made.details["reason"]) == (code, text)
    assert (made.serving, made.details["serving"]) == (given.fleet.serving, given.fleet.serving)


def test_nothing_replaces_a_worker_of_a_pool_without_launch_configs() -> None:
    given = msgspec.structs.replace(observed(1, serving=1, lives=[at_maximum_age("w")]), configs=())
    assert plan(given).ageing.cause == "no launch config may launch: the pool has none"


# When it is made again.

SOON: Final = [Demand(source="q", pending=1, claimed=0, gone=0, stale=False, fresh_seconds=50.0)]
#        observed, seconds until time alone may change the decision
AGAIN: Final[list[tuple[Observed, float]]] = [
    (observed(1, serving=2, idle=[idle("i", 500), idle("j", 20)]), 300.0),  # the surplus leaves already
    (observed(1, serving=2, idle=[idle("j", 20)], waiting=[Waiting(worker_id="w", config_id="a")]), 300.0),
    (observed(demands=SOON, serving=2, idle=[idle("i", 20)]), 50.0),  # its report turns stale before
    (observed(0, serving=1, idle=[idle("i", 119.5)]), 0.5),
    (observed(1, attempt_in_seconds=12.5, **WITHOUT_CALCULATOR), 300.0),  # it is launched
    (observed(1, FULL, attempt_in_seconds=12.5, **WITHOUT_CALCULATOR), 12.5),
    (observed(9, FULL, attempt_in_seconds=12.5), 300.0),
    (observed(9, config(failures=99), **WITHOUT_CALCULATOR), 300.0),  # not at once: it makes an attempt now
    (observed(demands=SOON, levels=[limit("pool", 0)]), 50.0),
    (observed(9, levels=[limit("pool", 0)]), 60.0),
]


@pytest.mark.parametrize(("given", "seconds"), AGAIN)
def test_a_plan_is_made_again_when_time_may_change_it(given: Observed, seconds: float) -> None:
    assert plan(given).reconsider_after_seconds == seconds


def test_a_plan_remembers_what_the_next_one_needs() -> None:
    """The surplus that it saw, and since when workers have been missing: of a canary one is enough."""
    seen = Surplus(registered=4, spans=[Span(since=NOW, workers=2)])
    given = observed(2, config(launching=1), serving=5, idle=[idle("i", 5), idle("j", 5)])
    assert plan(given).surplus == seen
    assert plan(observed(3, serving=1)).missing_since == NOW
    assert plan(observed(3, serving=1, mode="canary")).missing_since is None


# Shared windows.


def test_a_full_window_is_not_waited_for_where_nothing_may_launch() -> None:
    full = observed(3, *one_image("a"), shared=shared(window=0))
    assert plan(full).waits == [Wait(share=IMAGE.share, units=3, since=NOW)]
    paused = msgspec.structs.replace(full, pool=msgspec.structs.replace(POOL, paused=True))
    assert plan(paused).waits == []
    small = observed(3, *one_image("a", window=1), shared=shared(window=0))
    assert plan(small).waits == plan(full).waits  # it has room for one by its own window


def test_headroom_of_a_window_is_left_to_others_that_wait() -> None:
    """As far as the plan does not take it; without a calculator four starts are all that a window has."""
    assert plan(observed(6, *one_image("a"), shared=shared(others=1))).left == [IMAGE.share]
    given = observed(9, *one_image("a"), shared=shared(others=1, in_flight=3), **WITHOUT_CALCULATOR)
    made = plan(given)
    assert (launched(made), made.left) == ({"a": 1}, [])
    assert made.waits == [Wait(share=IMAGE.share, units=8, since=NOW)]


def test_a_pool_at_a_safety_limit_waits_for_no_window() -> None:
    """It is short for the limit, as its reason says, not for others."""
    made = plan(observed(9, *one_image("a"), shared=shared(), levels=[limit("pool", 5)]))
    assert (launched(made), made.waits, made.short) == ({"a": 5}, [], True)


def test_a_pool_without_a_calculator_is_short_by_its_own_windows() -> None:
    assert plan(observed(9, **WITHOUT_CALCULATOR)).short
    assert not plan(observed(4, **WITHOUT_CALCULATOR)).short


def test_a_probe_and_the_attempt_may_be_of_one_config() -> None:
    """The attempt is beyond its windows, within those that it shares, and both count as its launches."""
    probed = msgspec.structs.replace(PROBE, shares=[IMAGE.share])
    made = plan(observed(9, probed, shared=shared(unfolded=64), **WITHOUT_CALCULATOR))
    assert [(each.units, each.permit, each.attempt) for each in made.launches] == [(1, 7, False), (1, None, True)]
    assert made.details["configs"]["a"]["launched"] == made.details["launched"] == 2
    assert reasons(plan(observed(9, config(failures=99), **WITHOUT_CALCULATOR))) == {"a": ""}
    again = [msgspec.structs.replace(probed, shares=[IMAGE.share, (Key("quota", "unknown"), "launch")])]
    assert may_attempt(again[0], {IMAGE.share: msgspec.structs.replace(IMAGE, window=None)})


# Configs, by their notes.

OTHER: Final = config("b", account_id="sim-b")
#        configs → does another alert say why none of them launches?
ALERTED: Final[list[tuple[list[Config], bool]]] = [
    ([TRIPPED], True),
    ([STOPPED], True),
    ([TRIPPED, msgspec.structs.replace(STOPPED, id="b")], True),
    ([TRIPPED, config("b")], False),
    ([FULL], False),
    ([PAUSED], False),
    ([msgspec.structs.replace(TRIPPED, state="paused")], False),
    ([msgspec.structs.replace(STOPPED, launch_stop=True)], False),  # a person has decided so
]


@pytest.mark.parametrize(("configs", "alerted"), ALERTED)
def test_a_decision_says_whether_other_alerts_explain_it(configs: list[Config], alerted: bool) -> None:
    assert plan(observed(3, *configs)).details["alerted"] is alerted


def test_a_config_that_does_not_launch_says_why() -> None:
    """The reason of a person; a fallback beside another one, for its weight and not for the current revision."""
    assert reasons(plan(observed(3, config(state="paused", state_reason="drill"))))["a"] == "paused: drill"
    fallbacks = [revision(f"a@{number}", "a@9", replaced_by="natural") for number in (1, 2)]
    current = revision("a@9", "a@9", window=2)
    given = observed(3, current, *fallbacks, shared=shared())
    made = plan(given)
    (idle_one,) = {"a@1", "a@2"} - launched(made).keys()
    assert reasons(made)[idle_one] == "no launches left for its weight"


def test_draws_go_on_from_the_current_revisions_to_the_fallbacks() -> None:
    """So that shares follow weights over decisions."""
    fallbacks = [revision(f"a@{number}", "a@9", replaced_by="natural") for number in (1, 2)]
    current = [revision("a@9", "a@9", window=2), config("b", window=1)]
    for drawn in range(20):
        made = plan(observed(5, *current, *fallbacks, drawn=drawn))
        expected = choose([Candidate(each.id, 1.0, 64) for each in fallbacks], 2, drawn=drawn + 3)
        assert launched(made) == {"a@9": 2, "b": 1} | expected


# Safety limits.


def test_each_limit_has_a_room_of_its_own() -> None:
    """That of the pool, and of each account; one without room stops only what it holds for."""
    levels = [limit("pool", 6), limit("account", 4, "sim-a"), limit("account", 3, "sim-b")]
    assert launched(plan(observed(10, config(), OTHER, levels=levels))) in ({"a": 4, "b": 2}, {"a": 3, "b": 3})
    namesake = config(account_id="linux")
    assert launched(plan(observed(10, namesake, OTHER, levels=[limit("pool", 6), limit("account", 2)]))) == {
        "a": 2,
        "b": 4,
    }
    levels = [limit("pool", 9), limit("account", 4, "sim-a"), limit("account", 0, "sim-b")]
    made = plan(observed(10, config(), OTHER, levels=levels))
    assert launched(made) == {"a": 4}
    assert {(each.scope, each.scope_id) for each in made.reached} == {("account", "sim-a"), ("account", "sim-b")}
    assert {*reasons(made)} - {name for name, reason in reasons(made).items() if reason} == {"a"}
    assert capping.exceeded([config(), OTHER], levels, {"a": 5}, Tariff()) == [
        "5 launches exceed 4 per hour of account sim-a"
    ]
    assert capping.exceeded([config(), OTHER], levels, {"b": 1}, Tariff()) == [
        "1 launches exceed 0 per hour of account sim-b"
    ]


def test_a_machine_that_is_too_dear_leaves_the_room_to_others() -> None:
    """The limit has room for the cheap one, and none for the other."""
    cheap, dear = (MachineKind("aws", "r", name, "on-demand") for name in ("small", "large"))
    tariff = Tariff(prices={cheap: Decimal(1), dear: Decimal(100)})
    spend = Level(
        limit=Limit(scope="pool", scope_id="linux", spend_per_day=Decimal(4), lifetime_seconds=3600.0), usage=Usage()
    )
    made = plan(observed(9, config("a", kind=cheap), config("b", kind=dear), levels=[spend], tariff=tariff))
    assert launched(made) == {"a": 4}


def test_what_waits_to_launch_counts_for_each_config_of_a_kind() -> None:
    level = msgspec.structs.replace(limit("pool", 9), waiting={MachineKind("", "", "", ""): 3})
    (after,) = capping.with_launches([config(), config("b"), config("c")], [level], {"a": 2, "b": 1})
    assert after.waiting == {MachineKind("", "", "", ""): 6}


def test_a_limit_that_is_used_up_stops_nothing_that_is_needed() -> None:
    """Nor is it the reason of a config that has another."""
    used_up = plan(observed(3, levels=[limit("pool", 3)]))
    assert (launched(used_up), used_up.reached, used_up.short) == ({"a": 3}, [], False)
    reached = plan(observed(3, PAUSED, config("b", tripped=True), config("c"), levels=[limit("pool", 2)]))
    assert reasons(reached) == {"a": "paused", "b": "tripped; no probe is due", "c": ""}
    assert len(reached.reached) == 1
    probed = plan(observed(3, PROBE, levels=[limit("pool", 0)]))
    assert reasons(probed)["a"].startswith("pool linux has reached its limit of 0 launches per hour")


# Small parts.


def test_half_of_a_maximum_is_for_revisions_on_trial() -> None:
    """Rounded down, at least one; all of them share it."""
    share = (Key("pool", "linux"), "half for new revisions")
    for maximum, room in ((1, 1), (2, 1), (3, 1), (7, 3)):
        on_trial = [config(name, trials=[share], boot=Stage(window=64, in_flight=1)) for name in ("a", "b")]
        pool = msgspec.structs.replace(POOL, max_capacity=maximum)
        assert trial_rooms(pool, on_trial) == {share: max(0, room - 2)}
        assert trial_rooms(pool, [config(trials=[share])]) == {share: room}


def test_new_revisions_share_half_of_their_pool() -> None:
    """Their notes name it, and a fallback whose image has tripped is no stand-in."""
    new = revision("a@2", "a@2")
    old = revision("a@1", "a@2", replaced_by="natural", shares=[IMAGE.share])
    made = plan(observed(9, new, old, shared=shared()))
    assert launched(made) == {"a@2": 5, "a@1": 4}
    assert made.details["configs"]["a@2"]["limited_by"] == "half for new revisions of pool linux"
    assert launched(plan(observed(9, new, old, shared=shared(tripped=True)))) == {"a@2": 9}


BAD: Final = msgspec.structs.replace(IMAGE, unconfirmed=10)
WORSE: Final = msgspec.structs.replace(IMAGE, stage="claim", unconfirmed=12)
NEW: Final = revision("a@2", "a@2", shares=[IMAGE.share])
OLD: Final = revision("a@1", "a@2", replaced_by="natural")
#        other configs of the pool → does it freeze for the image of the current revision?
STAND_INS: Final[list[tuple[list[Config], bool]]] = [
    ([], True),
    ([OLD], False),
    ([msgspec.structs.replace(OLD, image_revision="i")], True),  # the same image
    ([msgspec.structs.replace(OLD, stopped="drill")], True),
    ([msgspec.structs.replace(OLD, tripped=True)], True),
    ([msgspec.structs.replace(OLD, state="draining")], False),  # it returns once the new one has tripped
    ([msgspec.structs.replace(OLD, state="draining", replaced_by="rollback")], True),
    ([msgspec.structs.replace(OLD, state="draining", name="b")], True),
    ([msgspec.structs.replace(OLD, state="paused")], True),
    ([config("b", image_revision="other")], True),  # the current one of another name
]


@pytest.mark.parametrize(("others", "freezes"), STAND_INS)
def test_no_image_freezes_a_pool_in_which_another_revision_can_launch(others: list[Config], freezes: bool) -> None:
    """The stage with most failures is named."""
    given = observed(3, NEW, *others, shared=[BAD, WORSE], on_bad_image="freeze", freeze_after=10)
    assert plan(given).freeze == (WORSE if freezes else None)


# The check before a plan is committed.

FROZEN: Final = msgspec.structs.replace(made(launch(1)), freeze=BAD)
PAIR: Final = [revision(f"a@{number}", "a@2", max_capacity=3, live=3 - number) for number in (1, 2)]
GONE: Final = config("z", max_capacity=3)
AGE: Final = "stops a worker for its age before its time"
TASK: Final = "stops a worker that has a task for its age"


def ending(*workers: str) -> Plan:
    steps = Ageing(stop=workers[:1], drain=workers[1:])
    return msgspec.structs.replace(made(), ageing=steps)


def draining(*launches: Launch, wanted: int = 4, stop: Sequence[str] = ()) -> Plan:
    return msgspec.structs.replace(made(*launches, stop=tuple(stop)), drain=["d"], wanted=wanted)


def resting(*names: str) -> list[Idle]:
    return [Idle(worker_id=name, config_id="d" if name == "d" else "a", since=NOW) for name in names]


def aged(seconds: float, **changes: Any) -> Life:
    """A worker that has to leave in so many seconds, for its credentials."""
    usual: dict[str, Any] = {"has_task": False, "draining": False, "age_seconds": 0.0, "clock_seconds": 50.0 - seconds}
    return Life(worker_id="w", credential_seconds=100.0, drain_seconds=50.0, **(usual | changes))


#        observed, plan, its violation
BROKEN: Final[list[tuple[Observed, Plan, list[str]]]] = [
    (
        observed(9),
        FROZEN,
        ["launches although 10 consecutive starts of image i failed or timed out (boot)"],
    ),
    (observed(9, *PAIR), made(launch(1, PAIR[1])), ["4 workers of launch config a exceed its maximum of 3"]),
    (
        observed(9, levels=[limit("pool", 1)]),
        made(launch(1), launch(1)),
        ["2 launches exceed 1 per hour of pool linux"],
    ),
    (observed(9), made(launch(3, GONE)), []),
    (observed(9), made(launch(4, GONE)), ["4 workers of launch config z exceed its maximum of 3"]),
    (
        observed(0, serving=1, busy=[Busy(worker_id="b", marked=True)]),
        made(launch(1)),
        ["launches while 1 workers are to leave after their tasks"],
    ),
    (observed(9, stranded=1), made(launch(1)), []),
    (
        observed(9, stranded=1),
        made(Launch(config=config(), units=1, permit=3)),
        ["probes although 1 machine of an earlier probe cannot be terminated"],
    ),
    (observed(4, config(), DRAINING, serving=4, idle=resting("d")), draining(), []),
    (
        observed(4, config(), DRAINING, serving=3, idle=resting("d")),
        draining(launch(1)),
        ["drains 1 workers at a time, with 0 missing"],
    ),
    (
        observed(4, config(), DRAINING, serving=5, idle=resting("d", "i")),
        draining(stop=["i"]),
        ["drains 1 workers at a time, with 0 missing"],
    ),
    (observed(1, serving=1, lives=[aged(0.0)]), ending("w"), []),
    (observed(1, serving=1, lives=[aged(0.5)]), ending("w"), [AGE]),
    (
        observed(1, serving=1, lives=[aged(0.0, has_task=True)]),
        ending("w"),
        [TASK],
    ),
]


@pytest.mark.parametrize(("given", "broken", "problems"), BROKEN)
def test_the_check_finds_what_no_plan_may_do(given: Observed, broken: Plan, problems: list[str]) -> None:
    assert check_plan(given, broken) == problems


def test_a_sample_has_no_more_ends_than_tasks() -> None:
    """Tasks that ended at its very time were claimed or pending in it, and no others."""
    sample = Sample(source="q", pending=2, claimed=1, age_seconds=60.0)
    departures = [Departures(source="q", worker_id="w", task_slots=9, after=1, at_sample=9)]
    assert gone([sample], departures) == {"q": 3}
    few = departures[0].within(3)
    assert (few.before, few.at_sample, few.after) == (0, 3, 0)
    assert msgspec.structs.replace(departures[0], before=2).within(3).at_sample == 1
