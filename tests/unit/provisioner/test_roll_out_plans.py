"""Plans during roll-outs: which revisions launch, and which idle workers leave."""

from datetime import timedelta
from fractions import Fraction
from itertools import count
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_api.events.scopes import Key
from slipway_provisioner.domain import headroom, planning
from slipway_provisioner.domain.planning import Plan, check_plan
from slipway_provisioner.domain.pool import Config, Demand, Fleet, Idle, Observed, Pool, Shared, Stage
from tests.support.roll_out_changes import NOW, changed


def config(id_: str, current_id: str, *, window: int = 64, **changes: Any) -> Config:
    usual: dict[str, Any] = {
        "id": id_,
        "name": id_.partition("@")[0],
        "current_id": current_id,
        "account_id": "sim-a",
        "lease_pool_id": "sim-a",
        "image_revision": id_,
        "weight": 1.0,
        "prior_weight": 1.0,
        "launch": Stage(window=window),
        "boot": Stage(window=64),
        "claim": Stage(window=64),
    }
    return Config(**(usual | changes))


def observed(pending: int, *configs: Config, serving: int = 0, leaving: int = 0, **changes: Any) -> Observed:
    return Observed(
        pool=Pool(id="linux", min_capacity=0, max_capacity=100, scaling_ratio=Fraction(1)),
        demands=[Demand(source="q", pending=pending, claimed=0, gone=0, stale=False)],
        fleet=Fleet(serving=serving, leaving=leaving),
        configs=configs,
        idle_timeout_seconds=120.0,
        **changes,
    )


def plan(given_observed: Observed) -> Plan:
    made = planning.plan(given_observed, now=NOW)
    assert check_plan(given_observed, made) == []
    return made


def launched(made: Plan) -> dict[str, int]:
    return {launch.config.id: launch.units for launch in made.launches}


NEW: Final = config("a@2", "a@2")
OLD: Final = config("a@1", "a@2", replaced_by="natural")
FIRST: Final = "the current revision a@2 launches first"


def narrow(given_config: Config, window: int) -> Config:
    return changed(given_config, launch=Stage(window=window))


#          configs, launches, reason of the fallback
FALLBACKS = [
    ([NEW, OLD], {"a@2": 10}, FIRST),
    ([narrow(NEW, 4), OLD], {"a@2": 4, "a@1": 6}, None),  # what is left over
    ([changed(NEW, tripped=True), OLD], {"a@1": 10}, None),
    ([changed(NEW, tripped=True, permit=1, last_permit=1), OLD], {"a@2": 1, "a@1": 9}, None),
    ([NEW, changed(OLD, tripped=True, permit=1, last_permit=1)], {"a@2": 10}, "tripped; its probe waits for demand"),
    ([narrow(NEW, 4), OLD, config("b@1", "b@1")], {"a@2": 4, "b@1": 6}, FIRST),  # no revision of another name waits
    ([NEW, changed(OLD, state="draining")], {"a@2": 10}, "draining"),
    ([changed(NEW, tripped=True), changed(OLD, state="draining")], {}, "draining"),
    ([changed(NEW, state="paused"), changed(OLD, state="paused")], {}, "paused"),
]


@pytest.mark.parametrize(("configs", "launches", "reason"), FALLBACKS)
def test_a_fallback_launches_what_the_current_revisions_do_not(
    configs: list[Config], launches: dict[str, int], reason: str | None
) -> None:
    """Only what is left over, by full windows or by a trip of the new revision."""
    made = plan(observed(10, *configs))
    assert launched(made) == launches
    assert made.details["configs"]["a@1"].get("reason") == reason


IMAGE: Final = (Key("image", "new"), "boot")
FULL_IMAGE: Final = Shared(key=IMAGE[0], stage=IMAGE[1], window=12, in_flight=12)
BOOTING: Final = changed(NEW, boot=Stage(window=64, in_flight=12), live=12, shares=[IMAGE])
OTHER: Final = config("b@2", "b@2", shares=[IMAGE])
OTHER_OLD: Final = config("b@1", "b@2", replaced_by="natural")
#          configs, shares, launches for ten tasks without a worker
EXPLORED = [
    ([changed(NEW, boot=Stage(window=12, in_flight=12)), OLD], [], {"a@1": 10}),  # its own window binds
    ([changed(NEW, claim=Stage(window=64, in_flight=60, unfolded=2)), OLD], [], {"a@2": 2, "a@1": 8}),
    ([BOOTING, OLD], [FULL_IMAGE], {"a@1": 10}),  # the window of its image binds
    ([BOOTING, OLD], [changed(FULL_IMAGE, in_flight=9)], {"a@2": 3, "a@1": 7}),
    ([BOOTING, OLD], [changed(FULL_IMAGE, in_flight=0, tripped=True)], {"a@1": 10}),  # known from its image alone
    ([changed(BOOTING, tripped=True, permit=1, last_permit=1), OLD], [FULL_IMAGE], {"a@2": 1, "a@1": 9}),
    ([BOOTING, OLD, OTHER, OTHER_OLD], [FULL_IMAGE], {"a@1": 5, "b@1": 5}),  # both changed
    ([BOOTING, OLD, config("c@1", "c@1", window=3)], [FULL_IMAGE], {"c@1": 3, "a@1": 7}),  # one did not change
    ([changed(BOOTING, max_capacity=20), changed(OLD, max_capacity=20, live=4)], [FULL_IMAGE], {"a@1": 4}),
    ([changed(BOOTING, max_capacity=16), changed(OLD, max_capacity=16, live=4)], [FULL_IMAGE], {}),
]


@pytest.mark.parametrize(("configs", "shared", "launches"), EXPLORED)
def test_while_an_image_proves_itself_the_old_one_takes_the_demand(
    configs: list[Config], shared: list[Shared], launches: dict[str, int]
) -> None:
    """The new one is held back by its own window, by its image's, by a trip or by the room of its name."""
    assert launched(plan(observed(10, *configs, shared=shared))) == launches


def trials(maximum: int, *configs: Config, pending: int = 40, serving: int = 0) -> dict[str, int]:
    """Launches in a pool with this maximum."""
    given_observed = observed(pending, *configs, serving=serving)
    limits = Pool(id="linux", min_capacity=0, max_capacity=maximum, scaling_ratio=Fraction(1))
    return launched(plan(changed(given_observed, pool=limits)))


def test_starts_of_new_images_leave_half_of_a_small_pool_to_the_old_ones() -> None:
    """However many names change at a time: otherwise a bad image would stop all work until its starts time out."""
    assert trials(10, NEW, OLD) == {"a@2": 5, "a@1": 5}
    assert trials(1, NEW, OLD) == {"a@2": 1}
    got = trials(10, NEW, OLD, config("b@2", "b@2"), config("b@1", "b@2", replaced_by="natural"))
    assert got["a@2"] + got["b@2"] == got["a@1"] + got["b@1"] == 5
    hanging = changed(NEW, boot=Stage(window=64, in_flight=5), live=5)
    assert trials(10, hanging, OLD, serving=5) == {"a@1": 5}
    made = plan(observed(10, changed(hanging, max_capacity=10), changed(OLD, max_capacity=10), serving=5))
    assert launched(made) == {"a@1": 5}
    assert made.details["configs"]["a@2"]["reason"] == "the half for new revisions of launch config a is full"


def test_a_revision_without_a_stand_in_may_fill_its_pool() -> None:
    """The first one of a name, and one whose predecessor drains, is tripped or may not launch."""
    assert trials(10, config("c@1", "c@1")) == {"c@1": 10}
    for changes in ({"state": "draining"}, {"tripped": True}, {"stopped": "drill"}, {"state": "paused"}):
        assert trials(10, NEW, changed(OLD, **changes)) == {"a@2": 10}


#        wanted, minimum, idle old ones, starts that hang, idle ones that stop
HANGING = [
    (0, 0, 8, 12, 8),  # nothing is wanted
    (5, 0, 8, 12, 3),
    (8, 0, 8, 12, 0),
    (0, 8, 8, 12, 0),  # the minimum is wanted although there is no task
    (30, 0, 8, 12, 0),
    (0, 4, 8, 0, 4),
]


@pytest.mark.parametrize(("wanted", "minimum", "idle_ones", "hanging", "stopped"), HANGING)
@pytest.mark.parametrize("state", ["active", "draining"])
def test_no_idle_worker_stops_for_a_start_that_may_hang(
    wanted: int, minimum: int, idle_ones: int, hanging: int, stopped: int, state: str
) -> None:
    """Starts of a new image fill the pool to its maximum of 20: the idle workers that are wanted stay."""
    limits = Pool(id="linux", min_capacity=minimum, max_capacity=20, scaling_ratio=Fraction(1))
    booting = changed(NEW, boot=Stage(window=12, in_flight=hanging), live=hanging)
    old = changed(OLD, state=state, live=idle_ones)
    overdue = [changed(worker, since=NOW - timedelta(hours=1)) for worker in idle(*range(idle_ones))]
    given_observed = observed(wanted, booting, old, serving=hanging + idle_ones, idle=overdue)
    made = plan(msgspec.structs.replace(given_observed, pool=limits))
    assert len(made.stop) == stopped
    assert len({*made.stop, *made.drain}) == stopped


def test_a_rolling_replacement_launches_by_shares() -> None:
    """Both revisions launch, by weight times share."""
    new, old = changed(NEW, share=0.25), changed(OLD, replaced_by="rolling", share=0.75)
    got = launched(plan(observed(40, new, old)))
    assert got["a@2"] + got["a@1"] == 40
    assert got["a@2"] == pytest.approx(10, abs=2)
    assert launched(plan(observed(40, changed(new, tripped=True), old))) == {"a@1": 40}


def test_a_maximum_is_shared_by_all_revisions() -> None:
    """Workers of every revision count, also those that drain, and other launch configs get the rest."""
    limit: dict[str, Any] = {"max_capacity": 10}
    revisions = [
        changed(NEW, live=1, **limit),
        changed(OLD, live=2, **limit),
        config("a@0", "a@2", state="draining", live=3, **limit),
    ]
    made = plan(observed(20, *revisions, config("b@1", "b@1"), serving=6))
    assert sum(launched(made).values()) == 14
    assert launched(made)["a@2"] == 4
    full = [changed(revision, live=4) for revision in revisions]
    made = plan(observed(20, *full, serving=12))
    assert launched(made) == {}
    assert made.details["configs"]["a@2"]["reason"] == "the maximum of launch config a is full"
    probe = [changed(revision, tripped=True, permit=1, last_permit=1) for revision in full]
    assert launched(plan(observed(20, *probe, serving=12))) == {}
    assert launched(plan(observed(20, *full, serving=12, calculator_unavailable_seconds=99.0))) == {}


def idle(*counts: int, config_id: str = "a@1") -> list[Idle]:
    return [Idle(worker_id=f"w{n}", config_id=config_id, since=NOW) for n in counts]


DRAINED: Final = changed(OLD, state="draining")
#       wanted, serving, leaving, idle ones          stopped
PARTS = [
    (40, 40, 0, 30, 10),
    (40, 40, 7, 30, 3),
    (40, 40, 10, 30, 0),
    (40, 40, 0, 5, 5),
    (2, 2, 0, 2, 1),  # at least one at a time
    (2, 2, 1, 2, 0),
    (41, 40, 0, 30, 9),  # one more is launched
]


@pytest.mark.parametrize(("wanted", "serving", "leaving", "idle_ones", "stopped"), PARTS)
def test_idle_workers_of_draining_revisions_leave_in_parts(
    wanted: int, serving: int, leaving: int, idle_ones: int, stopped: int
) -> None:
    """At most a quarter of the wanted workers leaves at a time, although they are wanted."""
    given_observed = observed(wanted, NEW, DRAINED, serving=serving, leaving=leaving, idle=idle(*range(idle_ones)))
    assert len(plan(given_observed).drain) == stopped
    assert plan(given_observed).stop == []


def test_no_idle_worker_leaves_that_nothing_could_replace() -> None:
    """Where nothing may launch, workers of a draining revision are better than none."""
    workers: dict[str, Any] = {"serving": 8, "idle": idle(*range(8))}
    assert len(plan(observed(9, NEW, DRAINED, **workers)).drain) == 1, "one of two parts is launched"
    assert plan(observed(9, changed(NEW, tripped=True), DRAINED, **workers)).drain == []
    assert plan(observed(9, NEW, DRAINED, stopped="launching is stopped: drill", **workers)).drain == []
    assert plan(observed(9, NEW, OLD, **workers)).drain == []  # a fallback keeps its workers
    for wanted, drained in ((8, 0), (7, 1), (4, 1)):
        assert len(plan(observed(wanted, changed(NEW, tripped=True), DRAINED, **workers)).drain) == drained


def test_made_up_ends_drain_no_other_worker() -> None:
    """Ends that one worker had made up let every idle worker leave, while the new image was bad."""
    given_observed = observed(4, changed(NEW, tripped=True), DRAINED, serving=3, idle=idle(*range(3)))
    (sample,) = given_observed.demands
    made_up = [msgspec.structs.replace(sample, gone=4)]
    assert plan(msgspec.structs.replace(given_observed, demands=made_up)).drain == []
    assert plan(msgspec.structs.replace(given_observed, demands=made_up, configs=[NEW, DRAINED])).drain == ["w0"]


def test_check_plan_knows_drains_and_maxima() -> None:
    """Each violation is reported by its own message."""
    given_observed = observed(8, NEW, DRAINED, serving=8, idle=[*idle(0, 1, 2), *idle(9, config_id="a@2")])
    empty = plan(observed(0, NEW))
    for drain, problem in (
        (("w0", "w1", "w2"), "drains 3 workers at a time, with 0 missing"),
        (("w9",), "drains a worker whose revision does not drain"),
        (("busy",), "stops a worker that is not idle"),
    ):
        broken = msgspec.structs.replace(empty, drain=drain, wanted=8)
        assert problem in check_plan(given_observed, broken)
    limited = changed(NEW, max_capacity=2, live=1)
    broken = msgspec.structs.replace(empty, launches=[headroom.Launch(config=limited, units=2)])
    assert check_plan(observed(8, limited), broken) == ["3 workers of launch config a exceed its maximum of 2"]


REVISION = st.fixed_dictionaries(
    {
        "state": st.sampled_from(("active", "active", "draining", "paused")),
        "replaced_by": st.sampled_from(("natural", "rolling")),
        "live": st.integers(0, 6),
        "tripped": st.booleans(),
        "permit": st.one_of(st.none(), st.just(1)),
        "share": st.sampled_from((0.1, 0.5, 1.0)),
    }
)


@given(
    st.lists(
        st.tuples(st.lists(REVISION, min_size=1, max_size=3), st.one_of(st.none(), st.integers(0, 8))),
        min_size=1,
        max_size=4,
    ),
    st.integers(0, 40),
    st.integers(0, 12),
    st.booleans(),
)
def test_laws_of_plans(
    names: list[tuple[list[dict[str, Any]], int | None]], pending: int, window: int, unavailable: bool
) -> None:
    """In every plan draining and paused revisions launch nothing, no launch config exceeds its maximum, and a natural
    fallback launches only where the current revisions have no room left."""
    configs, numbers = [], count()
    for place, (revisions, maximum) in enumerate(names):
        ids = [f"name-{place}@{next(numbers)}" for _ in revisions]
        configs += [
            config(id_, ids[0], window=window, max_capacity=maximum, last_permit=values["permit"], **values)
            for id_, values in zip(ids, revisions, strict=True)
        ]
    serving = sum(given_config.live for given_config in configs)
    idle_ones = [
        Idle(worker_id=f"w{n}", config_id=given_config.id, since=NOW) for n, given_config in enumerate(configs)
    ]
    given_observed = observed(
        pending,
        *configs,
        serving=serving,
        idle=idle_ones,
        calculator_unavailable_seconds=float(unavailable),
        attempt_in_seconds=0.0,
    )
    made = plan(given_observed)
    got = launched(made)
    by_id = {given_config.id: given_config for given_config in configs}
    assert all(by_id[id_].state == "active" for id_ in got)
    for place, (_, maximum) in enumerate(names):
        of_name = [given_config for given_config in configs if given_config.name == f"name-{place}"]
        live, added = sum(c.live for c in of_name), sum(got.get(c.id, 0) for c in of_name)
        assert maximum is None or not added or live + added <= maximum
    assert sum(got.values()) <= max(0, pending - serving)
    notes = made.details["configs"]
    if not unavailable and any(by_id[id_].is_fallback for id_ in got):
        rooms = {id_: notes[id_]["room"] - got.get(id_, 0) for id_ in by_id}
        free = [c for c in configs if c.active and not c.is_fallback and not c.tripped and rooms[c.id] > 0]
        assert all(c.max_capacity is not None for c in free)  # filled by another revision of its name
    assert all(by_id[w.config_id].state == "draining" for w in idle_ones if w.worker_id in made.drain)


def test_no_plan_launches_for_a_name_that_only_drains() -> None:
    """Not even while the calculator is unavailable."""
    only = [changed(NEW, state="draining"), DRAINED]
    for seconds in (0.0, 99.0):
        assert launched(plan(observed(9, *only, calculator_unavailable_seconds=seconds))) == {}
