"""What a local deployment divides by SPEED is what the services call product time, with their own defaults."""

from importlib import import_module
from pathlib import Path

import pytest

from slipway_common.settings import from_environment
from slipway_local.demo import wish
from slipway_local.deployment import PRODUCT_SECONDS, Deployment
from slipway_local.supervisor import Supervisor
from slipway_simulator.faults import BadFault
from slipway_weight_calculator.domain.policy import PROFILES
from slipway_weight_calculator.settings import Settings

DIFFERENT = {"reap_seconds"}  # a demo looks more often, since it waits for two passes at its end


@pytest.mark.parametrize("service", sorted(PRODUCT_SECONDS))
def test_product_times_are_the_services_defaults(service: str) -> None:
    fields = import_module(f"slipway_{service.replace('-', '_')}.settings").Settings.model_fields
    for name, seconds in PRODUCT_SECONDS[service].items():
        assert name in fields, f"{service} has no setting {name}"
        if name not in DIFFERENT:
            assert fields[name].default == seconds, name


def test_the_calculators_profiles_are_as_fast_as_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every time of every profile, not only those that somebody remembered to list."""
    deployment = Deployment(Supervisor(), tmp_path, speed=20.0, seconds={})
    for name, value in deployment.environment_of("weight-calculator").items():
        monkeypatch.setenv(name, value)
    policies = from_environment(Settings).policies()
    for profile, told in PROFILES.items():
        for name in told.__struct_fields__:
            divisor = 20.0 if name.endswith("_seconds") else 1.0
            assert getattr(policies[profile], name) == pytest.approx(getattr(told, name) / divisor), name


def test_only_the_boskos_port_is_handed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only to the service that opens it; everything else a run decides itself."""
    monkeypatch.setenv("SLIPWAY_BOSKOS_PORT", "8080")
    monkeypatch.setenv("SLIPWAY_PORT", "1")
    deployment = Deployment(Supervisor(), tmp_path, speed=20.0, seconds={})
    told = {name: deployment.environment_of(name) for name in deployment.ports}
    assert [name for name, given in told.items() if "SLIPWAY_BOSKOS_PORT" in given] == ["lease-broker"]
    assert all(given["SLIPWAY_PORT"] == str(deployment.ports[name]) for name, given in told.items())


@pytest.mark.parametrize(
    "arguments",
    [
        {"DURATION": "soon"},
        {"SPEED": "fast"},
        {"SPEED": "0"},
        {"DEMAND": "/no/such/file"},
        {"FAULTS": "locusts"},
        {"SEED": "x"},
        {"FAULTS": "zone-b:9m-2m"},
        {"PROVIDER": "aws"},
        {"PROVIDER": "process", "SPEED": "100"},
        {"PROVIDER": "process", "FAULTS": "zone-b"},
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, str]) -> None:
    with pytest.raises((ValueError, BadFault)):
        wish(arguments)


def test_defaults_tell_an_hour_in_three_minutes() -> None:
    asked = wish({})
    assert (asked.duration_seconds, asked.speed, asked.product_seconds) == (180.0, 20.0, 3600.0)
    assert [(f.name, f.from_seconds, f.until_seconds) for f in asked.faults] == [("zone-b", 900.0, 1800.0)]


def test_processes_have_no_simulated_faults() -> None:
    """A zone of a simulated cloud that is out says nothing of this machine."""
    assert (wish({}).provider, wish({"PROVIDER": "process", "DURATION": "30s"}).faults) == ("simulated", ())
