"""Product times of a local deployment, which SPEED divides, and arguments of the demo."""

from importlib import import_module
from pathlib import Path

import pytest

from slipway_common.base.settings import from_environment
from slipway_local.demo.deployment import PRODUCT_SECONDS, Deployment
from slipway_local.demo.program import parse_arguments, scenario
from slipway_local.servers.supervisor import Supervisor
from slipway_simulator.notation import BadFault
from slipway_weight_calculator.domain.policy import PROFILES
from slipway_weight_calculator.settings import Settings

DIFFERENT = {"reap_seconds"}  # shorter in a demo, which waits for two passes at its end


@pytest.mark.parametrize("service", sorted(PRODUCT_SECONDS))
def test_product_times_are_the_services_defaults(service: str) -> None:
    fields = import_module(f"slipway_{service.replace('-', '_')}.settings").Settings.model_fields
    for name, seconds in PRODUCT_SECONDS[service].items():
        assert name in fields, f"{service} has no setting {name}"
        if name not in DIFFERENT:
            assert fields[name].default == seconds, name


def test_the_calculators_profiles_are_as_fast_as_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The speed divides every time of every profile."""
    deployment = Deployment(Supervisor(), tmp_path, speed=20.0, seconds={})
    for name, value in deployment.environment_of("weight-calculator").items():
        monkeypatch.setenv(name, value)
    policies = from_environment(Settings).policies()
    for profile, policy in PROFILES.items():
        for name in policy.__struct_fields__:
            divisor = 20.0 if name.endswith("_seconds") else 1.0
            assert getattr(policies[profile], name) == pytest.approx(getattr(policy, name) / divisor), name


def test_only_the_boskos_port_is_inherited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the lease-broker inherits it; a run sets everything else itself."""
    monkeypatch.setenv("SLIPWAY_BOSKOS_PORT", "8080")
    monkeypatch.setenv("SLIPWAY_PORT", "1")
    deployment = Deployment(Supervisor(), tmp_path, speed=20.0, seconds={})
    environments = {name: deployment.environment_of(name) for name in deployment.ports}
    assert [name for name, given in environments.items() if "SLIPWAY_BOSKOS_PORT" in given] == ["lease-broker"]
    assert all(given["SLIPWAY_PORT"] == str(deployment.ports[name]) for name, given in environments.items())


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
        {"PROVIDER": "gcp"},
        {"PROVIDER": "process", "SPEED": "100"},
        {"PROVIDER": "process", "FAULTS": "zone-b"},
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, str]) -> None:
    with pytest.raises((ValueError, BadFault)):
        parse_arguments(arguments)


def test_defaults_play_an_hour_in_three_minutes() -> None:
    arguments = parse_arguments({})
    assert (arguments.duration_seconds, arguments.speed, arguments.product_seconds) == (180.0, 20.0, 3600.0)
    assert [(f.name, f.from_seconds, f.until_seconds) for f in arguments.faults] == [("zone-b", 900.0, 1800.0)]


def test_every_seed_has_as_many_tasks_for_machines_of_ec2(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is for one machine, and enough of them arrive while there is time to do them."""
    monkeypatch.chdir(Path(__file__).parents[3])  # the demo reads its declaration from the project's folder
    for seed in range(20):
        arguments = parse_arguments({"PROVIDER": "aws", "DURATION": "40s", "SEED": str(seed)})
        tasks = scenario(arguments)["pools"]["agents"]["arrivals"]
        assert len(tasks) == 70
        assert all(0.0 <= at < 560.0 for at, _ in tasks)


def test_processes_have_no_simulated_faults() -> None:
    """The default outage applies only to simulated clouds."""
    assert (parse_arguments({}).provider, parse_arguments({"PROVIDER": "process", "DURATION": "30s"}).faults) == (
        "simulated",
        (),
    )
