"""Plans cut to the headroom of shared windows once these are locked: what is left, and when it is planned again."""

from datetime import UTC, datetime
from fractions import Fraction
from typing import Any, Final

import msgspec
import pytest

from slipway_api.events.scopes import image_key
from slipway_provisioner.domain import planning
from slipway_provisioner.domain.fairness import Wait
from slipway_provisioner.domain.planning import Plan
from slipway_provisioner.domain.pool import Config, Demand, Fleet, Observed, Pool, Share, Shared, Stage

NOW: Final = datetime(2030, 1, 1, tzinfo=UTC)
ONE: Final[Share] = (image_key("one"), "boot")
TWO: Final[Share] = (image_key("two"), "boot")


def config(name: str, share: Share) -> Config:
    return Config(
        id=name,
        name=name,
        current_id=name,
        account_id="sim-a",
        lease_pool_id="sim-a",
        image_revision=share[0].id,
        weight=1.0,
        prior_weight=1.0,
        shares=[share],
        launch=Stage(window=64),
        boot=Stage(window=64),
        claim=Stage(window=64),
    )


A, B = config("a", ONE), config("b", TWO)


def window(share: Share, units: int = 64, **usage: Any) -> Shared:
    return Shared(key=share[0], stage=share[1], window=units, **usage)


def observed(tasks: int, *configs: Config, **changes: Any) -> Observed:
    """A pool of these configs, whose shared windows are wide open."""
    return Observed(
        pool=Pool(id="linux", min_capacity=0, max_capacity=99, scaling_ratio=Fraction(1)),
        demands=[Demand(source="q", pending=tasks, claimed=0, gone=0, stale=False, fresh_seconds=300.0)],
        fleet=Fleet(serving=0, leaving=0),
        configs=configs,
        shared=[window(share) for each in configs for share in each.shares],
        idle_timeout_seconds=120.0,
        **changes,
    )


def cut(given: Observed, *now: Shared) -> Plan:
    """The plan of a pool, cut to these shared windows."""
    return planning.cut(msgspec.structs.replace(given, shared=now), planning.plan(given, now=NOW), now=NOW)


def launched(plan: Plan) -> dict[str, int]:
    return {launch.config.id: launch.units for launch in plan.launches}


def test_a_plan_that_fits_is_left() -> None:
    made = planning.plan(observed(3, A), now=NOW)
    given = msgspec.structs.replace(observed(3, A), shared=[window(ONE, 3)])
    assert planning.cut(given, made, now=NOW) is made


BOOT: Final = "boot window of image one"
#   the shared window of a as it is now → launched of 3, room, reason of a, reason of the plan
CUTS: Final = [
    (window(ONE, 2), 2, 2, None, "3 needed, room for 2"),
    (window(ONE, 5, in_flight=3, unfolded=1), 1, 1, None, "3 needed, room for 1"),
    (window(ONE, 0), 0, 0, f"the {BOOT} is full", "3 needed, but no config may launch now"),
    (
        window(ONE, 2, tripped=True, reason="bad"),
        0,
        2,
        "tripped: image one: bad",
        "3 needed, but no config may launch now",
    ),
]


@pytest.mark.parametrize(("now", "units", "room", "note", "why"), CUTS)
def test_launches_that_do_not_fit_are_left_out(now: Shared, units: int, room: int, note: str | None, why: str) -> None:
    """The notes say why, and the pool waits for the rest, unless the key has tripped."""
    plan = cut(observed(3, A), now)
    assert launched(plan) == ({"a": units} if units else {})
    usual = {"weight": 1.0, "room": room, "limited_by": BOOT, "launched": units}
    assert plan.details["configs"] == {"a": usual | ({} if note is None else {"reason": note})}
    assert plan.details["reason"] == why
    waits = [] if now.tripped else [Wait(share=ONE, units=3 - units, since=NOW)]
    assert plan.waits == waits


#   shared windows of a and b as they are now → launched of 30, planned again at once
AGAIN: Final = [
    (window(ONE, 2), window(TWO), {"a": 2, "b": 15}, True),  # b has room for more
    (window(ONE, 2), window(TWO, 15), {"a": 2, "b": 15}, False),
    (window(ONE, 2), window(TWO, 3), {"a": 2, "b": 3}, False),
    (window(ONE, 2), window(TWO, tripped=True), {"a": 2}, False),
]


@pytest.mark.parametrize(("one", "two", "units", "again"), AGAIN)
def test_a_plan_is_made_again_if_others_of_its_configs_have_room(
    one: Shared, two: Shared, units: dict[str, int], again: bool
) -> None:
    plan = cut(observed(30, A, B), one, two)
    assert launched(plan) == units
    assert (plan.reconsider_after_seconds == 0.0) is again


#   usage of a window of 2 → planned again at once: it has left headroom that no other waits for
LEFT: Final[list[tuple[dict[str, int], bool]]] = [({"rivals": 1}, True), ({"others": 2}, False)]


@pytest.mark.parametrize(("usage", "again"), LEFT)
def test_a_plan_is_made_again_if_it_leaves_what_no_other_waits_for(usage: dict[str, int], again: bool) -> None:
    plan = cut(observed(3, A), window(ONE, 2, **usage))
    assert launched(plan) == {"a": 1}
    assert plan.left == ([] if again else [ONE])
    assert (plan.reconsider_after_seconds == 0.0) is again


def test_windows_are_small_while_the_calculator_is_unavailable() -> None:
    """Without it no config would trip."""
    alone = msgspec.structs.replace(B, shares=[])
    plan = cut(observed(9, A, alone, calculator_unavailable_seconds=0.5), window(ONE, 64, in_flight=1))
    assert launched(plan) == {"a": 3, "b": 4}
    assert {name: note["room"] for name, note in plan.details["configs"].items()} == {"a": 3, "b": 4}
