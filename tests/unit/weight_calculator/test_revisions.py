"""Revisions of launch configs: keys of any ids, signals by name, and health from the first outcome to the tombstone."""

from typing import Any, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from slipway_api.events.launch_config import LaunchConfigState
from slipway_api.events.scopes import Key, config_key, credential_key, image_key, quota_key
from slipway_api.events.worker import Scope
from slipway_common.base.signal_rules import Rules, Source
from slipway_weight_calculator.domain.draft import Draft
from slipway_weight_calculator.domain.rows import Config, config_of, name_key, pool_key
from slipway_weight_calculator.domain.trips import Probe
from slipway_weight_calculator.domain.world import enforce_shares
from tests.support.worlds import (
    IMAGE,
    T0,
    Story,
    capacity,
    claimed,
    config,
    known_boots,
    launched,
    refused,
    registered,
    requested,
    signal_event,
    stored,
)

FIRST, SECOND, OTHER = config("a@1"), config("a@2", image_revision="linux-2"), config("b@1")
ALL: Final = Rules(unnamed=Source(max_share=1.0))
TEXTS = st.text(st.sampled_from("ab/%@#.é"), min_size=1, max_size=6)
KINDS = st.sampled_from(["config", "image", "credential", "pool", "name"])
KEYS = st.builds(Key, KINDS, TEXTS) | st.builds(quota_key, TEXTS, TEXTS, TEXTS)
FIELDS = ("pool_id", "account_id", "region", "zone", "instance_type", "image_revision", "launch_config_id", "name")
STATES = st.fixed_dictionaries(dict.fromkeys(FIELDS, TEXTS))


def archived(state: LaunchConfigState, revision: int = 2) -> Any:
    return replace(state, state="archived", revision=revision)


def down(story: Story, *ids: str) -> bool:
    """True if exactly these configs are tripped by a signal."""
    return {id_ for id_ in story.world.configs if story.record(id_, 1).tripped_by == "signal"} == {*ids}


# Keys


@given(KEYS, KEYS)
def test_no_two_keys_have_the_same_text(one: Key, other: Key) -> None:
    """Ids may contain slashes and percent signs; the text names the key."""
    assert (one.text == other.text) == (one == other)
    assert Key.of(one.text) == one


def shared_between(one: Config, other: Config) -> set[Any]:
    """All keys and locations that two configs have in common."""
    found: set[Any] = {*one.keys, *one.groups} & {*other.keys, *other.groups}
    places = [{place for all_of in each.parents.values() for place in all_of} for each in (one, other)]
    return found | (places[0] & places[1])


@given(STATES, STATES)
@example(dict.fromkeys(FIELDS, "a") | {"zone": "b/a"}, dict.fromkeys(FIELDS, "a") | {"region": "a/b"})
@example(dict.fromkeys(FIELDS, "a") | {"account_id": "a/b"}, dict.fromkeys(FIELDS, "a") | {"region": "b/a"})
@example(dict.fromkeys(FIELDS, "a"), dict.fromkeys(FIELDS, "a"))
def test_configs_share_what_they_have_in_common_and_nothing_else(one: dict[str, str], other: dict[str, str]) -> None:
    """Equal ids of two kinds share no key and no sum of a location."""
    first, second = (config_of(replace(FIRST, **each)) for each in (one, other))

    def same(*fields: str) -> bool:
        return all(one[field] == other[field] for field in fields)

    wanted: set[Any] = set()
    for key, fields in (
        (first.key, ("launch_config_id",)),
        (first.name, ("name",)),
        (image_key(one["image_revision"]), ("image_revision",)),
        (credential_key(one["account_id"]), ("account_id",)),
    ):
        wanted |= {key} if same(*fields) else set()
    family = [each["instance_type"].split(".")[0] for each in (one, other)]
    wanted |= {first.shared["quota"]} if same("account_id", "region") and family[0] == family[1] else set()
    wanted |= {first.shared["capacity"]} if same("account_id", "region", "zone", "instance_type") else set()
    wanted |= {pool_key(one["pool_id"])} if same("pool_id") else set()
    for number, place in enumerate((("pool_id",), ("account_id",), ("region", "zone"))):
        wanted |= {places[number] for places in first.parents.values()} if same(*place) else set()
    assert shared_between(first, second) == wanted


def test_a_config_called_like_an_image_is_no_image() -> None:
    """Failures of an image move its row, not the row of the config whose id is the image's text."""
    odd = config("image/linux-1", image_revision="linux-1")
    story = Story(odd)
    story.trip_config(odd, 0, Scope.IMAGE)
    assert story.trip(IMAGE).unconfirmed == 2
    assert story.trip("image/linux-1").unconfirmed == 0
    assert {key.text for key in story.world.rows} == {"config/image%2Flinux-1", "image/linux-1"}
    assert story.world.members == {
        pool_key("linux"): {"image/linux-1"},
        name_key("image/linux-1"): {"image/linux-1"},
        **{key: {"image/linux-1"} for key in (IMAGE, quota_key("sim-a", "sim-1", "m5"), credential_key("sim-a"))},
        capacity("image/linux-1"): {"image/linux-1"},
    }


# Signals


def test_a_signal_on_a_name_reaches_all_its_revisions() -> None:
    story = Story(FIRST, SECOND, OTHER)
    assert story.signal(signal_event("down", "config", "a")) == ""
    assert down(story, "a@1", "a@2")
    story.signal(signal_event("recovered", "config", "a", 1), 1)
    assert down(story)
    assert story.signal(signal_event("down", "config", "a@2", 2), 2) == ""
    assert down(story, "a@2")


@pytest.mark.parametrize(
    ("target", "reached"),
    [
        (("config", "a"), True),
        (("zone", "a"), True),
        (("zone", "sim-1/a"), True),
        (("pool", "linux"), True),
        (("account", "sim-a"), True),
        (("image", "linux-1"), False),
        (("config", "a@1"), False),
    ],
)
def test_a_signal_reaches_a_later_revision_of_the_name_that_it_is_about(target: tuple[str, str], reached: bool) -> None:
    """A launch config that is down stays down when its image changes; a new launch config is not reached, nor a
    revision that is archived as it becomes known."""
    story = Story(FIRST)
    assert story.signal(signal_event("down", *target, ttl_seconds=60.0), rules=ALL) == ""
    story.declare(SECOND, 1)
    story.declare(config("new@1", zone="a"), 1)
    story.declare(config("a@0", state="archived"), 1)
    assert down(story, "a@1", *(["a@2"] if reached else []))
    story.advance_to(60)
    story.declare(config("a@3"), 61)
    assert {story.record(id_, 61).state for id_ in ("a@1", "a@2", "a@3")} == {"healthy"}


def test_a_signal_on_a_booting_worker_reaches_no_later_revision() -> None:
    story = Story(FIRST)
    story.fold(0, requested(FIRST), launched(FIRST))
    assert story.signal(signal_event("down", "worker", "w")) == ""
    story.declare(SECOND, 1)
    assert [len(story.record(id_, 1).signals) for id_ in ("a@1", "a@2")] == [1, 0]


def test_a_reactivated_revision_finds_the_signals_on_its_name() -> None:
    """An archived revision is not reached; what was raised meanwhile applies once it is declared again."""
    story = Story(FIRST, SECOND, OTHER)
    story.declare(archived(FIRST), 0)
    story.signal(signal_event("down", "config", "a"))
    assert down(story, "a@2")
    story.declare(replace(FIRST, revision=3), 1)
    assert down(story, "a@1", "a@2")


def test_a_share_of_a_pool_counts_names() -> None:
    """Three revisions of one name are one of two launch configs; a new revision does not drop a signal."""
    story = Story(FIRST, SECOND, config("a@3"), OTHER)
    assert story.signal(signal_event("down", "config", "a")) == ""
    assert story.signal(signal_event("down", "config", "b")).startswith(
        "share: 'monitor' would trip 2 of 2 active launch configs"
    )
    story.declare(config("a@4"), 1)
    assert enforce_shares(Draft(story.world), "a@4", T0 + 1) == []
    assert down(story, "a@1", "a@2", "a@3", "a@4")


# Health


def test_an_archived_revision_keeps_its_health_until_its_tombstone() -> None:
    """Declared again, it continues with its evidence, its windows and its trip; after its tombstone it is new."""
    story = Story(FIRST, OTHER)
    story.fold(0, launched(FIRST), registered(FIRST), claimed(FIRST))
    story.trip_config(FIRST, 1)
    before = story.row("a@1")
    story.declare(archived(FIRST), 2)
    story.advance_to(29 * 86_400)
    assert story.row("a@1").launch == before.launch
    story.declare(replace(FIRST, revision=3), 29 * 86_400)
    assert story.record("a@1", 29 * 86_400).state != "healthy"
    assert story.row("a@1").boot == before.boot
    story.forget("a@1", 30 * 86_400)
    story.declare(FIRST, 30 * 86_400 + 1)
    assert story.row("a@1") == Story(FIRST).row("a@1")


def test_a_new_revision_begins_with_first_windows_and_shares_the_other_rows() -> None:
    story = Story(FIRST, OTHER)
    story.fold(0, *(event for n in range(20) for event in (launched(FIRST, f"{n}"), registered(FIRST, f"{n}"))))
    story.declare(config("a@2"), 1)
    assert story.row("a@2") == Story(FIRST).row("a@1")
    assert story.record("a@2", 1).shared == story.record("a@1", 1).shared
    assert (story.record("a@2", 1).name, story.record("a@2", 1).launch_config_id) == ("a", "a@2")


@pytest.mark.parametrize("state", ["draining", "archived"])
def test_a_revision_that_launches_nothing_gets_no_probe(state: str) -> None:
    """The permit that it has not spent goes to another one; once it is active again, it is probed."""
    story = Story(FIRST)
    story.trip_config(FIRST)
    story.probe("a@1", 20)
    story.declare(replace(FIRST, state=state, revision=2), 21)
    story.advance_to(7200)
    assert not story.record("a@1", 7200).probe_ready
    assert story.row("a@1").permit == 1
    story.declare(replace(FIRST, revision=3), 7200)
    assert story.probe("a@1", 7230) == 2


def test_a_forgotten_revision_releases_its_probe_and_its_late_starts() -> None:
    """Other revisions may then probe the key that they shared, and rows that nobody shares are deleted."""
    second = config("a@2", instance_type="c5.large")
    story = Story(FIRST, second)
    story.fold(0, *known_boots(FIRST), launched(FIRST, "slow"))
    story.advance_to(200)
    assert story.row(IMAGE).boot.late == 1
    story.trip_config(FIRST, 401, Scope.CREDENTIAL)
    story.fold(402, refused(FIRST, Scope.QUOTA, "q"))
    story.fold(430, requested(FIRST, "p", story.probe("a@1", 430)))
    assert story.trip(credential_key("sim-a")).probe == Probe("a@1", 1)
    story.forget("a@1", 440)
    assert story.row(IMAGE).boot.late == 0
    assert story.world.boots == {}
    assert {key.text for key in story.world.rows} == {"config/a@2", IMAGE.text, "credential/sim-a"}
    assert story.probe("a@2", 500) == 1
    assert not any("a@1" in each for each in stored(story.world))


def test_a_tombstone_of_an_unknown_config_changes_nothing() -> None:
    story = Story(FIRST)
    before = stored(story.world)
    story.forget("nobody", 1)
    assert stored(story.world) == before
    assert config_key("nobody") not in story.world.rows
