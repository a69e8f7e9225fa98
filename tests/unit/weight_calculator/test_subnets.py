"""Subnets whose free addresses launch configs of all pools and instance types take: a second quota beside their own."""

from typing import Any, Final

from slipway_api.events.launch_config import LaunchConfigCreated
from slipway_api.events.scopes import config_key, quota_of, subnet_key
from slipway_api.events.worker import Scope
from tests.support.worlds import Story, config, launched, refused, requested

SUBNET: Final = subnet_key("sim-a", "sim-1", "subnet-0a")


def in_subnet(config_id: str, **changes: Any) -> LaunchConfigCreated:
    return config(config_id, subnet="subnet-0a", **changes)


NEAR, FAR = in_subnet("near", pool="p1"), in_subnet("far", pool="p2", instance_type="c6i.large")
ELSEWHERE = config("elsewhere", pool="p1", subnet="subnet-0b")
WITHOUT = config("without", pool="p1")


def full(of: LaunchConfigCreated, permit: int | None = None) -> Any:
    """A launch that its cloud refuses because the subnet has no free addresses."""
    return refused(of, Scope.QUOTA, f"w-{of.launch_config_id}", permit, key=SUBNET.id)


def states(story: Story, at: float) -> dict[str, str]:
    return {id_: story.record(id_, at).state for id_ in story.world.configs}


def test_a_full_subnet_trips_every_config_in_it() -> None:
    """Two refusals are enough, of whichever configs, pools and instance types; other subnets go on."""
    story = Story(NEAR, FAR, ELSEWHERE, WITHOUT)
    story.fold(0, full(NEAR))
    assert set(states(story, 0).values()) == {"healthy"}
    story.fold(1, full(FAR))
    assert states(story, 1) == {"near": "tripped", "far": "tripped", "elsewhere": "healthy", "without": "healthy"}
    record = story.record("near", 1)
    assert (record.tripped_by, record.tripped_by_id, record.tripped_stage) == (*SUBNET, "launch")
    (share,) = [each for each in record.shared if each.id == SUBNET.id]
    assert (share.kind, share.stage, share.state, share.unconfirmed) == ("quota", "launch", "tripped", 2)


def test_a_full_subnet_is_charged_alone() -> None:
    """Neither the configs nor the quotas of their instance types have failed."""
    story = Story(NEAR, FAR)
    story.fold(0, full(NEAR), full(FAR))
    assert story.trip(SUBNET).unconfirmed == 2
    assert story.row("near").launch.trip.unconfirmed == 0
    assert quota_of(NEAR) not in story.world.rows


def test_a_subnet_that_no_config_names_charges_the_config() -> None:
    """As in the default subnet of a zone, whose id is unknown: otherwise nothing would stop it."""
    story = Story(WITHOUT)
    story.fold(0, full(WITHOUT))
    assert SUBNET not in story.world.rows
    assert story.trip(config_key("without")).unconfirmed == 1


def test_a_success_of_another_config_ends_a_row_of_failures() -> None:
    story = Story(NEAR, FAR)
    story.fold(0, full(NEAR))
    story.fold(1, launched(FAR))
    story.fold(2, full(NEAR))
    assert set(states(story, 3).values()) == {"healthy"}


def test_one_launch_in_the_subnet_recovers_all() -> None:
    story = Story(NEAR, FAR)
    story.fold(0, full(NEAR), full(FAR))
    story.advance_to(60)
    (ready,) = [of for of in (NEAR, FAR) if story.record(of.launch_config_id, 60).probe_ready]
    permit = story.record(ready.launch_config_id, 60).probe_permit
    story.fold(61, requested(ready, "p", permit), launched(ready, "p", permit))
    assert set(states(story, 61).values()) == {"healthy"}
