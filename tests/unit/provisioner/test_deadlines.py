"""Deadlines of workers: what contradicts what, and the defaults of profiles."""

from typing import get_args

import pytest

from slipway_common.declaration.deadlines import contradiction
from slipway_common.declaration.models import Profile, WorkerPool
from slipway_common.declaration.parsing import parse_entry
from slipway_common.declaration.strict_yaml import Invalid
from slipway_provisioner.domain.deadlines import defaults, problem
from slipway_provisioner.settings import Settings
from slipway_weight_calculator.domain.policy import PROFILES
from tests.support.provisioner import KEY

HOUR = 3600.0
OWN = Settings(database_url="", kafka="", registration_keys=KEY).deadlines()


@pytest.mark.parametrize(
    ("deadlines", "remedy"),
    [
        ({"registration_seconds": 900, "maximum_age_seconds": 900}, "registration_seconds 900 must be below"),
        ({"idle_seconds": 901, "maximum_age_seconds": 900}, "lower idle_seconds or raise maximum_age_seconds"),
        (
            {"registration_seconds": 900, "lifetime_seconds": 900},
            "registration_seconds 900 must be below lifetime_seconds",
        ),
        ({"idle_seconds": 900, "credential_seconds": 900}, "idle_seconds 900 must be below credential_seconds 900"),
        ({"maximum_age_seconds": 901, "credential_seconds": 900}, "must be at most credential_seconds 900"),
        ({"maximum_age_seconds": 901, "lifetime_seconds": 900}, "must be at most lifetime_seconds 900"),
        ({"maximum_age_seconds": 900, "credential_seconds": 900, "lifetime_seconds": 900}, ""),
        ({"registration_seconds": 900, "idle_seconds": 120}, ""),
        ({"registration_seconds": 899, "idle_seconds": 899, "maximum_age_seconds": 900}, ""),
    ],
)
def test_deadlines_that_contradict_each_other(deadlines: dict[str, float], remedy: str) -> None:
    found = contradiction(deadlines)
    assert remedy in found
    assert bool(remedy) == bool(found)


def test_a_declared_age_below_the_boot_of_a_profile() -> None:
    """The default of the profile counts, although nobody has declared it."""
    assert problem({"maximum_age_seconds": 1800}, OWN["on-demand"], {}) == ""
    assert "registration_seconds 3600" in problem({"maximum_age_seconds": 1800}, OWN["bare-metal"], {})


@pytest.mark.parametrize(
    ("lifetime", "age", "refused"),
    [(2 * HOUR, 3 * HOUR, True), (2 * HOUR, 2 * HOUR, False), (24 * HOUR, 72 * HOUR, False), (2 * HOUR, None, False)],
)
def test_the_lifetime_of_a_spend_limit(lifetime: float, age: float | None, refused: bool) -> None:
    """A launch commits a day at most, so that a lifetime of a day is enough for machines of any age."""
    declared = {} if age is None else {"maximum_age_seconds": age}
    found = problem(declared, OWN["on-demand"], {"limits of account a": lifetime, "limits of pool p": 24 * HOUR})
    assert bool(found) is refused
    assert not refused or "lifetime_seconds 7200 of limits of account a" in found


def test_of_several_lifetimes_the_shortest_counts() -> None:
    """Whatever the names of the limits."""
    lifetimes = {"limits of pool z": HOUR, "limits of account a": 2 * HOUR}
    found = problem({"maximum_age_seconds": 3 * HOUR}, OWN["on-demand"], lifetimes)
    assert "lifetime_seconds 3600 of limits of pool z" in found


def test_a_lifetime_below_the_boot_of_a_profile() -> None:
    """It is the maximum age of machines that declare none: each would leave as soon as it has registered."""
    assert problem({}, OWN["on-demand"], {"limits of pool p": 1800.0}) == ""
    found = problem({}, OWN["bare-metal"], {"limits of pool p": 1800.0})
    assert "registration_seconds 3600 must be below lifetime_seconds 1800 of limits of pool p" in found


def test_a_bare_metal_host_may_boot_for_as_long_as_its_health_profile_expects() -> None:
    for profile, deadlines in OWN.items():
        assert deadlines["registration_seconds"] > PROFILES[profile].boot_seconds


def test_every_profile_has_defaults() -> None:
    assert OWN.keys() == set(get_args(Profile)) == PROFILES.keys()


def test_a_demo_divides_the_defaults_of_all_profiles() -> None:
    fast = defaults({"registration_seconds": 9.0, "idle_seconds": 1.0})
    assert {profile: of["registration_seconds"] for profile, of in fast.items()} == {
        "on-demand": 9.0,
        "spot": 9.0,
        "bare-metal": 36.0,
    }


def pool(deadlines: dict[str, float], own: dict[str, float]) -> WorkerPool:
    config = {"account": "a", "zone": "z", "instance_type": "m5", "image": "i", "deadlines": own}
    entry = parse_entry(
        "worker_pools", 0, {"id": "p", "max_capacity": 1, "deadlines": deadlines, "launch_configs": [config]}
    )
    assert isinstance(entry, WorkerPool)
    return entry


def test_deadlines_of_a_launch_config_come_first() -> None:
    declared = pool({"idle_seconds": 60.0, "maximum_age_seconds": 7200.0}, {"idle_seconds": 600.0})
    (config,) = declared.launch_configs
    assert declared.deadlines_of(config) == {"idle_seconds": 600.0, "maximum_age_seconds": 7200.0}
    assert declared.model_dump(mode="json")["deadlines"] == {"idle_seconds": 60.0, "maximum_age_seconds": 7200.0}


def test_a_contradiction_between_a_pool_and_its_launch_config() -> None:
    with pytest.raises(Invalid) as refused:
        pool({"maximum_age_seconds": 7200.0}, {"registration_seconds": 7200.0})
    (found,) = refused.value.problems
    assert found.path == "worker_pools[0]"
    assert "launch_configs[0]: deadlines: registration_seconds 7200 must be below maximum_age_seconds 7200" in str(
        found
    )


def test_a_contradiction_within_a_launch_config_is_named_at_its_place() -> None:
    with pytest.raises(Invalid) as refused:
        pool({}, {"registration_seconds": 7200.0, "maximum_age_seconds": 7200.0})
    (found,) = refused.value.problems
    assert found.path == "worker_pools[0].launch_configs[0].deadlines"
