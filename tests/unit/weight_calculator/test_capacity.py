"""Capacity that launch configs of all pools and accounts share: failures, probes, weights and signals."""

from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_api.events.launch_config import LaunchConfigCreated
from slipway_api.events.scopes import Key
from slipway_api.events.worker import Notice, Scope, Stage
from slipway_weight_calculator.domain import evidence
from slipway_weight_calculator.domain.draft import Draft
from slipway_weight_calculator.domain.evidence import Stage as Evidence
from slipway_weight_calculator.domain.evidence import masses, probability
from slipway_weight_calculator.domain.trips import HEALTHY, Probe
from slipway_weight_calculator.domain.weights import chances
from tests.support.worlds import (
    CAPACITY,
    CREDENTIAL,
    POLICY,
    T0,
    A,
    B,
    Story,
    capacity,
    config,
    fails,
    launched,
    lost,
    noticed,
    refused,
    requested,
    signal_event,
    stopping,
)

SPOT: Final = Key("capacity", "sim-1/z1/m5.large/spot")


def spot(config_id: str, **changes: Any) -> LaunchConfigCreated:
    """Config of the same capacity as the others of this kind, in whatever pool and account."""
    return config(config_id, capacity_key=SPOT.id, zone="z1", **changes)


NEAR, FAR = spot("near", pool="p1"), spot("far", pool="p2", account="sim-b", image_revision="linux-2")
ON_DEMAND = config("on-demand", pool="p1", zone="z1")


def states(story: Story, at: float) -> dict[str, str]:
    return {id_: story.record(id_, at).state for id_ in story.world.configs}


def launch_chance(story: Story, config_id: str, at: float) -> float:
    return chances(Draft(story.world), story.world.configs[config_id], T0 + at)["launch"]


def test_a_shortage_trips_every_config_of_every_pool_and_account() -> None:
    """Two refusals are enough, of whichever configs; on-demand in the same zone is another capacity."""
    story = Story(NEAR, FAR, ON_DEMAND)
    story.fold(0, refused(NEAR, key=SPOT.id))
    assert set(states(story, 0).values()) == {"healthy"}
    story.fold(1, refused(FAR, key=SPOT.id))
    assert states(story, 1) == {"near": "tripped", "far": "tripped", "on-demand": "healthy"}
    record = story.record("near", 1)
    assert (record.tripped_by, record.tripped_by_id, record.tripped_stage) == (*SPOT, "launch")
    assert record.reason == f"near tripped: {SPOT}: 2 capacity errors (capacity)"
    (share,) = [each for each in record.shared if each.kind == "capacity"]
    assert (share.id, share.stage, share.state, share.unconfirmed) == (SPOT.id, "launch", "tripped", 2)


def test_one_probe_serves_all_and_one_success_recovers_all() -> None:
    """Thirty configs of thirty pools and accounts. Their window is small then, and grows with the successes of any."""
    configs = [spot(f"c{n}", pool=f"p{n}", account=f"sim-{n}") for n in range(30)]
    story = Story(*configs)
    story.fold(0, refused(configs[0]), refused(configs[1]))
    story.fold(1, launched(configs[7], "busy"))
    ready: list[str] = []
    for at in range(2, 18):
        story.advance_to(at)
        ready = [id_ for id_ in story.world.configs if story.record(id_, at).probe_ready]
        assert len(ready) <= 1
    assert ready == ["c7"], "the busiest spends a permit at once"
    assert story.trip(SPOT).probe == Probe("c7", 1)
    story.fold(18, requested(configs[7], "p", 1), launched(configs[7], "p", 1))
    assert set(states(story, 18).values()) == {"healthy"}
    assert story.row(SPOT).launch.window == POLICY.recovered_window
    story.fold(19, launched(configs[3], "next"))
    assert story.row(SPOT).launch.window == POLICY.recovered_window + 1


def test_a_success_of_another_config_ends_a_row_of_failures() -> None:
    story = Story(NEAR, FAR)
    story.fold(0, refused(NEAR))
    story.fold(1, launched(FAR))
    story.fold(2, refused(NEAR))
    assert set(states(story, 3).values()) == {"healthy"}


def test_a_shortage_lowers_the_weights_of_all_its_configs_and_of_no_others() -> None:
    """Also where they have had successes of their own: their siblings' prior would hardly move them."""
    configs = [NEAR, FAR, ON_DEMAND]
    story = Story(*configs)
    for n in range(12):
        story.fold(0, *(launched(c, f"{c.launch_config_id}-{n}") for c in configs))
    before = {c.launch_config_id: story.record(c.launch_config_id, 1) for c in configs}
    story.fold(1, refused(NEAR))
    after = {c.launch_config_id: story.record(c.launch_config_id, 1) for c in configs}
    factor = (12 - 1 + 2) / (12 + 2)  # one of twelve outcomes that are remembered, smoothed with a mass of two
    assert after["far"].health == pytest.approx(before["far"].health * factor, rel=1e-2)
    assert after["near"].health == pytest.approx(before["near"].health * factor, rel=1e-2)
    assert after["on-demand"].health == pytest.approx(before["on-demand"].health, rel=1e-2)
    share = next(each for each in after["far"].shared if each.kind == "capacity")
    assert share.probability == pytest.approx(factor)
    for n in range(3):
        story.fold(2 + 2 * n, launched(NEAR, f"v-{n}"))
        story.fold(3 + 2 * n, refused(NEAR, worker_id=f"w-{n}"))
    weak = story.record("far", 8)
    available = next(each for each in weak.shared if each.kind == "capacity").probability
    stage = weak.stages["launch"].probability
    assert weak.reason == f"far healthy: launch {stage:.0%}, {SPOT} {available:.0%}"


ATTEMPTS: Final = st.lists(st.tuples(st.integers(0, 3000), st.booleans()), max_size=40).map(sorted)


@given(ATTEMPTS, st.integers(0, 2000))
def test_alone_on_its_capacity_a_config_has_the_share_of_successes_of_its_launches(
    attempts: list[tuple[int, bool]], later: int
) -> None:
    """As if both were one row: what is charged to the capacity counts neither twice nor less."""
    story, whole = Story(A), Evidence()
    for n, (at, ok) in enumerate(attempts):
        story.fold(at, launched(A, f"w-{n}") if ok else refused(A, worker_id=f"w-{n}"))
        whole = evidence.after(whole, T0 + at, 4.0, HEALTHY, POLICY, failed=not ok, place=not ok)
    now = (attempts[-1][0] if attempts else 0) + later
    successes, failures, _ = masses(whole, T0 + now, POLICY)
    wanted = probability(successes, failures, POLICY.prior, POLICY)
    assert launch_chance(story, "a", now) == pytest.approx(wanted, rel=1e-2)
    known = story.row("a").launch
    assert (known.succeeded, known.failed) == (whole.succeeded, whole.failed)
    assert (known.successes, known.place_failures) == pytest.approx((whole.successes, whole.failures))


@given(ATTEMPTS, st.integers(0, 2000))
def test_a_shortage_lowers_every_config_by_the_same_factor(attempts: list[tuple[int, bool]], later: int) -> None:
    """The one that has met it, one in another account, and one without any launch."""
    idle = spot("idle", pool="p9", account="sim-c")
    story, spared = Story(NEAR, FAR, idle), Story(NEAR, FAR, idle)
    for n, (at, ok) in enumerate(attempts):
        story.fold(at, launched(NEAR, f"w-{n}") if ok else refused(NEAR, worker_id=f"w-{n}"))
        if ok:
            spared.fold(at, launched(NEAR, f"w-{n}"))
    now = (attempts[-1][0] if attempts else 0) + later
    shares = [
        next((each.probability for each in story.record(id_, now).shared if each.kind == "capacity"), 1.0)
        for id_ in ("near", "far", "idle")
    ]
    assert shares[0] == shares[1] == shares[2] <= 1.0
    assert (shares[0] < 1.0) is any(not ok for _, ok in attempts)
    far = launch_chance(story, "far", now) / shares[1]
    assert far <= launch_chance(spared, "far", now) + 1e-9, "the prior of a zone falls too, and never rises"


def test_siblings_elsewhere_get_a_lower_prior_until_the_capacity_recovers() -> None:
    """A zone without machines of one type may lack others. The row of the config itself neither trips nor shrinks."""
    sibling = config("sibling", zone="a", instance_type="c5.large")
    story = Story(A, sibling)
    before = launch_chance(story, "sibling", 0)
    story.fold(0, *(refused(A, worker_id=f"w-{n}") for n in range(4)))
    during = launch_chance(story, "sibling", 0)
    assert during < before - 0.2
    assert not story.trip("a").tripped
    assert story.row("a").launch.window == POLICY.new_launch_window
    permit = story.probe("a", 1200)
    apart = launch_chance(story, "sibling", 1200)
    story.fold(1200, requested(A, "p", permit), launched(A, "p", permit))
    assert launch_chance(story, "sibling", 1200) > apart
    noted = story.row("a").launch
    assert noted.place_failures == pytest.approx(4 * 2 ** (-1200 / 600) * 2 ** (-1200 / 600), rel=0.01)
    assert noted.failures == noted.place_failures


def test_a_new_capacity_row_knows_the_successes_of_its_configs() -> None:
    """Otherwise the first failure among thousands of launches would look like the only launch."""
    for launches, expected in ((0, 2 / 3), (1, 3 / 4), (12, 13 / 14)):
        story = Story(NEAR, FAR)
        story.fold(0, *(launched(FAR, f"w-{n}") for n in range(launches)))
        story.fold(0, refused(NEAR))
        share = next(each for each in story.record("near", 0).shared if each.kind == "capacity")
        assert share.probability == pytest.approx(expected, rel=1e-3), launches


@pytest.mark.parametrize("stage", [Stage.BOOT, Stage.CLAIM])
def test_a_machine_that_dies_for_lack_of_capacity_was_not_launched(stage: Stage) -> None:
    """Its capacity only has launches, and two deaths trip them. The boot counts as folded, and against nothing else."""
    story = Story(NEAR, FAR)
    story.fold(0, launched(NEAR, "x"), launched(NEAR, "y"))
    story.fold(60, stopping(NEAR, fails(Scope.CAPACITY, stage), "x"))
    assert story.record("far", 60).state == "healthy"
    story.fold(61, lost(NEAR, fails(Scope.CAPACITY, stage), "y"))
    record = story.record("far", 61)
    assert (record.state, record.tripped_by, record.tripped_stage) == ("tripped", "capacity", "launch")
    near = story.record("near", 61).stages
    assert (near[stage.value].failures_folded, near[stage.value].failed) == (2, 0)


def test_a_provider_that_names_another_capacity_moves_both() -> None:
    """It may have learned a zone between two events; the config's own capacity is always charged, so that it stops."""
    story = Story(NEAR, A)
    story.fold(0, *(refused(A, worker_id=f"w-{n}", key="nobody's") for n in range(2)))
    assert states(story, 0) == {"near": "healthy", "a": "tripped"}
    assert set(story.world.rows) >= {CAPACITY}
    story = Story(NEAR, A)
    story.fold(0, *(refused(A, worker_id=f"w-{n}", key=SPOT.id) for n in range(2)))
    assert states(story, 0) == {"near": "tripped", "a": "tripped"}


def test_a_config_moves_to_the_capacity_that_its_provider_names_later() -> None:
    """Its trip stays with the capacity that it leaves, whose row goes with its last config."""
    unknown, other = config("near", pool="p1"), config("other", pool="p3", zone="near")
    story = Story(unknown, other, FAR)
    story.trip_config(unknown)
    permit = story.probe("near", 20)
    assert story.trip(capacity("near")).probe == Probe("near", permit)
    story.declare(spot("near", pool="p1", revision=2), 21)
    assert states(story, 21) == {"near": "healthy", "other": "tripped", "far": "healthy"}
    assert story.trip(capacity("near")).probe is None, "another config may probe it now"
    assert story.world.members[SPOT] == {"near", "far"}
    story.declare(config("other", pool="p3", zone="elsewhere", revision=2), 22)
    assert capacity("near") not in story.world.rows
    story.fold(23, refused(FAR), refused(FAR))
    assert states(story, 23)["near"] == "tripped"


# Signals


def test_a_notice_of_interruption_lowers_a_capacity_in_every_pool() -> None:
    """For the time of the signal; on-demand machines of the same zone and type are not interrupted."""
    story = Story(NEAR, FAR, ON_DEMAND, A)
    before = {id_: story.record(id_, 0).health for id_ in story.world.configs}
    notice = signal_event("spot_interruption", "capacity", SPOT.id, ttl_seconds=600.0)
    assert story.signal(notice) == ""
    after = {id_: story.record(id_, 1).health / before[id_] for id_ in story.world.configs}
    assert after == pytest.approx({"near": 0.5, "far": 0.5, "on-demand": 1.0, "a": 1.0})
    assert story.signal(notice) == "", "every machine of it may repeat the notice: it counts once"
    assert story.record("far", 1).health == pytest.approx(0.5 * before["far"])
    story.declare(spot("near@2", pool="p1", name="near"), 2)
    assert story.record("near@2", 2).signals == ("spot_interruption 0.5 from monitor (seen)",)
    story.advance_to(600)
    assert story.record("far", 600).health == pytest.approx(before["far"])


def test_notices_to_workers_are_one_signal_on_their_capacity() -> None:
    """In every pool and account, however many machines get one; the worker's end then is no evidence."""
    story = Story(NEAR, FAR, ON_DEMAND, A)
    workers = {"w-0": NEAR, "w-1": NEAR, "w-2": FAR}
    story.fold(0, *(launched(each, id_) for id_, each in workers.items()))
    before = {id_: story.record(id_, 0).health for id_ in story.world.configs}
    for n, (id_, each) in enumerate(workers.items()):
        story.fold(n, noticed(each, SPOT, id_), stopping(each, None, id_))
    after = {id_: story.record(id_, 0).health / before[id_] for id_ in story.world.configs}
    assert after == pytest.approx({"near": 0.5, "far": 0.5, "on-demand": 1.0, "a": 1.0})
    one = ("spot_interruption 0.5 from provisioner (worker w-2: taken back)",)
    assert [story.record(id_, 3).signals for id_ in ("near", "far", "on-demand")] == [one, one, ()]
    story.advance_to(901.9)
    assert story.record("near", 901.9).signals == one, "15 minutes from the last notice"
    story.advance_to(902)
    assert [story.record(id_, 902).signals for id_ in ("near", "far")] == [(), ()]


def test_a_recommendation_undoes_no_interruption() -> None:
    """It lowers the weight by less; a notice of a kind that is not known yet, and one of a capacity that nothing
    launches from any more, have no effect."""
    story = Story(NEAR, FAR)
    story.fold(0, noticed(NEAR, SPOT, "w-0", Notice.REBALANCE))
    before = story.record("far", 0)
    assert before.signals == ("degraded 0.75 from provisioner (worker w-0: taken back)",)
    story.fold(1, noticed(NEAR, SPOT, "w-1"), noticed(NEAR, SPOT, "w-2", Notice.REBALANCE))
    assert story.record("far", 1).health == pytest.approx(before.health * 0.5 / 0.75)
    known = dict(story.world.signals)
    story.fold(2, noticed(NEAR, SPOT, "w-3", Notice.UNKNOWN), noticed(NEAR, CAPACITY, "w-4"))
    assert story.world.signals == known


def test_an_old_notice_replaces_no_newer_one() -> None:
    """Workers' events arrive in order only for each worker."""
    story = Story(NEAR)
    story.fold(60, noticed(NEAR, SPOT, "w-1"))
    story.fold(0, noticed(NEAR, SPOT, "w-0"))
    assert story.record("near", 60).signals == ("spot_interruption 0.5 from provisioner (worker w-1: taken back)",)
    story.advance_to(959)
    assert len(story.record("near", 959).signals) == 1


def test_a_signal_on_a_capacity_reaches_what_launches_from_it() -> None:
    story = Story(A, B)
    assert story.signal(signal_event("degraded", "capacity", CAPACITY.id)) == ""
    assert (len(story.record("a", 0).signals), len(story.record("b", 0).signals)) == (1, 0)
    wrong = story.signal(signal_event("degraded", "capacity", "m5.large"))
    assert wrong == "unreached: no launch config belongs to capacity 'm5.large'"
    hint = signal_event("capacity_hint", "capacity", capacity("b").id, value=2.0)
    assert story.signal(hint) == ""
    assert story.record("b", 0).stages["launch"].window == 2
    assert story.signal(signal_event("pause_request", "capacity", CAPACITY.id)).startswith("target: ")


def test_a_shortage_is_not_forgotten_with_a_credential() -> None:
    """A credential that fails hides no shortage: each row is probed by the same start, and answers for itself."""
    story = Story(NEAR)
    story.trip_config(NEAR)
    story.trip_config(NEAR, 1, Scope.CREDENTIAL)
    permit = story.probe("near", 17)
    story.fold(17, requested(NEAR, "p", permit), refused(NEAR, Scope.CREDENTIAL, "p", permit))
    assert (story.trip(CREDENTIAL).failed_probes, story.trip(SPOT).failed_probes) == (1, 0)
    assert story.trip(SPOT).tripped
