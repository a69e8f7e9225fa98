"""Maximum age: when a worker has reached it, and which of those that have leave now."""

from datetime import timedelta
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_api.events.alert import AlertRaised, AlertResolved
from slipway_common.base.ids import new_id
from slipway_provisioner.domain.ageing import Ageing, Life, alert, decide, drain_until, drawn_share, moments
from tests.support.cloud import START

HOUR = 3600.0
_NUMBERS = count()


def life(age: float = HOUR, **changes: Any) -> Life:
    """A worker with a maximum age of an hour."""
    usual: dict[str, Any] = {
        "worker_id": f"w{next(_NUMBERS)}",
        "has_task": False,
        "draining": False,
        "age_seconds": age,
        "clock_seconds": age,
        "maximum_age_seconds": HOUR,
    }
    return Life(**(usual | changes))


def test_each_worker_draws_its_share_once() -> None:
    """From 90 to 100 %, spread over all of it, and the same one in every process."""
    shares = [drawn_share(new_id()) for _ in range(2000)]
    assert 0.9 <= min(shares) < 0.902
    assert 0.998 < max(shares) <= 1.0
    assert 0.945 < sum(shares) / len(shares) < 0.955
    assert drawn_share("w") == pytest.approx(0.9316026800453988)


def test_it_drains_at_its_own_age() -> None:
    worker = life(0)
    drawn = drawn_share(worker.worker_id) * HOUR
    assert worker.drains_in == pytest.approx(drawn)
    assert (worker.late_in, moments([worker])) == (HOUR, [worker.drains_in, HOUR])


def test_an_idle_one_leaves_if_a_replacement_could_start() -> None:
    worker = life()
    assert decide([worker], unwanted=0, room=1, obstacle="").stop == [worker.worker_id]
    stays = decide([worker], unwanted=0, room=1, obstacle="the pool is paused")
    assert (stays.stop, stays.irreplaceable, stays.cause) == ([], 1, "the pool is paused")


def test_a_busy_one_leaves_after_its_task() -> None:
    worker = life(has_task=True)
    assert decide([worker], unwanted=0, room=1, obstacle="").drain == [worker.worker_id]


def test_a_mark_is_revoked_if_nothing_could_replace_the_worker() -> None:
    worker = life(has_task=True, draining=True)
    steps = decide([worker], unwanted=0, room=0, obstacle="tripped")
    assert (steps.keep, steps.forget) == ([worker.worker_id], [])
    assert decide([worker], unwanted=0, room=0, obstacle="") == Ageing(stop=[], drain=[], keep=[], forget=[])


def test_a_marked_one_leaves_once_it_is_idle() -> None:
    worker = life(0.99 * HOUR, worker_id="w", draining=True)
    assert decide([worker], unwanted=0, room=0, obstacle="").stop == ["w"]


def test_one_that_nobody_wants_needs_no_replacement() -> None:
    workers = [life(0.999 * HOUR), life(HOUR)]
    assert decide(workers, unwanted=1, room=0, obstacle="the pool is paused").stop == [workers[1].worker_id]


def test_they_leave_a_part_at_a_time() -> None:
    """Those that drain already count; at the maximum age itself none waits any longer."""
    young = [life(0.9999 * HOUR, worker_id=f"x{number}") for number in range(400)]
    aged = [one for one in young if one.drains_in <= 0]
    draining = life(0.99 * HOUR, worker_id="w", draining=True, has_task=True)
    steps = decide([*aged, draining], unwanted=0, room=3, obstacle="")
    assert (len(steps.stop), steps.drain, steps.keep) == (2, [], [])
    assert len(decide([life(), life(has_task=True)], unwanted=0, room=0, obstacle="").stop) == 1


def test_the_end_of_credentials_forces_it() -> None:
    """In time to drain before it, even if nothing could replace it, and whatever its age."""
    usual: dict[str, Any] = {"maximum_age_seconds": None, "credential_seconds": 10 * HOUR, "drain_seconds": HOUR}
    early, due = life(9 * HOUR - 1, **usual), life(9 * HOUR, **usual)
    assert (early.drains_in, due.drains_in) == (1.0, 0.0)
    assert decide([early, due], unwanted=0, room=0, obstacle="tripped").stop == [due.worker_id]
    late = life(9.9 * HOUR, **usual)
    assert drain_until(late, START, 5.0) == START + timedelta(seconds=0.1 * HOUR)


def due_in(seconds: float, name: str = "w", **changes: Any) -> Life:
    """A worker that has to leave in so many seconds."""
    usual: dict[str, Any] = {"maximum_age_seconds": None, "credential_seconds": 100.0, "drain_seconds": 50.0}
    return life(50.0 - seconds, worker_id=name, **(usual | changes))


def test_it_leaves_to_the_second() -> None:
    """At the very time it is of full age, and no longer young; a moment before it is neither of these."""
    for seconds, forgets in ((0.0, False), (0.5, True)):
        steps = decide([due_in(seconds, draining=True)], unwanted=0, room=0, obstacle="tripped")
        assert (steps.stop, steps.forget, steps.keep) == (([], ["w"], []) if forgets else (["w"], [], []))
    aged = due_in(0.5, maximum_age_seconds=0.0)
    assert (aged.late_in, decide([aged], unwanted=0, room=0, obstacle="tripped").stop) == (-49.5, [])
    early = life(HOUR - 0.5)
    assert decide([early], unwanted=0, room=0, obstacle="tripped").irreplaceable == 0
    assert (moments([due_in(0.5)]), moments([due_in(0.0)])) == ([0.5] * 3, [])
    assert drain_until(due_in(-50.5), START, 5.0) == START  # its credentials have ended


def test_of_several_that_nothing_replaces_as_many_leave_as_nobody_wants() -> None:
    """The others are counted once they are at the maximum age itself, and drain no longer."""
    aged = [life(worker_id=f"w{number}", has_task=True, draining=number > 2) for number in range(6)]
    early = life(0.99 * HOUR, worker_id="w", has_task=True)
    assert early.late_in > 0 >= early.drains_in
    steps = decide([early, *aged], unwanted=2, room=9, obstacle="tripped")
    assert (steps.drain, steps.keep, steps.irreplaceable) == (["w0", "w1"], ["w3", "w4", "w5"], 4)


def test_the_drain_time() -> None:
    assert drain_until(life(), START, 5.0) == START + timedelta(seconds=5)
    assert drain_until(life(drain_seconds=7.0), START, 5.0) == START + timedelta(seconds=7)


def test_a_task_that_has_had_a_part_of_its_drain_time_gets_the_rest() -> None:
    """Once something could replace its worker again; a shorter one that is declared meanwhile holds."""
    assert drain_until(life(drain_left_seconds=3.0), START, 5.0) == START + timedelta(seconds=3)
    assert drain_until(life(drain_left_seconds=0.0), START, 5.0) == START
    assert drain_until(life(drain_left_seconds=3.0, drain_seconds=2.0), START, 5.0) == START + timedelta(seconds=2)


@pytest.mark.parametrize("changes", [{"draining": True}, {"drain_left_seconds": 3.0}])
def test_one_that_is_young_again_forgets_it(changes: dict[str, Any]) -> None:
    young = life(0.5 * HOUR, has_task=True, **changes)
    steps = decide([young], unwanted=0, room=0, obstacle="tripped")
    assert (steps.keep, steps.forget) == ([], [young.worker_id])


def test_a_worker_without_a_maximum_never_ages() -> None:
    worker = life(1e9, maximum_age_seconds=None)
    assert moments([worker]) == []
    assert decide([worker], unwanted=9, room=9, obstacle="").stop == []


@pytest.mark.parametrize(("number", "workers"), [(1, "1 worker is"), (2, "2 workers are")])
def test_its_alert(number: int, workers: str) -> None:
    raised = alert(AlertRaised, "linux", Ageing(irreplaceable=number, cause="the pool is paused"))
    assert raised == AlertRaised(
        dedup_key="provisioner/maximum-age/linux",
        kind="maximum-age",
        subject_kind="pool",
        subject_id="linux",
        summary=f"{workers} past the maximum age of pool linux, and nothing could replace them",
        effect="they serve on, and are older than declared",
        doing="drains them as soon as a replacement could start",
        cause="the pool is paused",
        command="slipway why linux",
        severity="notice",
    )
    resolved = alert(AlertResolved, "linux", Ageing(irreplaceable=number, cause="the pool is paused"))
    assert resolved == AlertResolved(
        **raised.identity,
        summary="no worker of pool linux is past its maximum age without a replacement",
        effect="",
        doing="",
        command="slipway why linux",
        severity="notice",
    )


lives = st.lists(
    st.builds(
        life,
        age=st.floats(0.85 * HOUR, 1.1 * HOUR),
        has_task=st.booleans(),
        draining=st.booleans(),
        drain_left_seconds=st.none() | st.floats(0, HOUR),
        credential_seconds=st.none() | st.floats(1.2 * HOUR, 2 * HOUR),
    ),
    max_size=30,
)


@given(lives=lives, unwanted=st.integers(0, 9), room=st.integers(0, 9), obstacle=st.sampled_from(["", "paused"]))
def test_laws(lives: list[Life], unwanted: int, room: int, obstacle: str) -> None:
    steps = decide(lives, unwanted=unwanted, room=room, obstacle=obstacle)
    by_id = {one.worker_id: one for one in lives}
    leave = [by_id[id_] for id_ in (*steps.stop, *steps.drain)]
    assert all(one.drains_in <= 0 for one in leave)
    assert all(not by_id[id_].has_task for id_ in steps.stop)
    assert all(by_id[id_].draining and by_id[id_].drains_in <= 0 for id_ in steps.keep)
    assert all(by_id[id_].drains_in > 0 for id_ in steps.forget)
    named = [*steps.stop, *steps.drain, *steps.keep, *steps.forget]
    assert len(set(named)) == len(named)
    unforced = [one for one in leave if one.forced_in > 0]
    if obstacle:
        assert len(unforced) <= unwanted
    else:
        on_time = [one for one in unforced if one.late_in > 0 and not one.draining]
        assert len(on_time) <= unwanted + room
        assert {one.worker_id for one in lives if one.late_in <= 0 and not one.draining} <= {w.worker_id for w in leave}
    stays = [one for one in lives if one.drains_in <= 0 and one not in leave]
    assert obstacle or not [one for one in stays if one.late_in <= 0 and not (one.draining and one.has_task)]
