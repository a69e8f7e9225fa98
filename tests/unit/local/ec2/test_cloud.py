"""Answers to launch calls: tokens, capacity over time, quotas, and the fate of machines."""

from random import Random
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_local.ec2.cloud import (
    Cloud,
    Granted,
    Repeated,
    created,
    decide_launch,
    family,
    interrupted,
    vcpus,
)
from slipway_local.ec2.facts import (
    FaultSet,
    InstanceCreated,
    Launch,
    Noticed,
    Reply,
    ScenarioLoaded,
    ShuttingDown,
    Terminated,
)
from slipway_local.ec2.faults import NOTATION, Effects
from slipway_local.ec2.scenario import CloudAccount, Image, Scenario
from slipway_local.ec2.wire import Refused

ZONE: Final = "us-east-1a"
TYPE: Final = "m5.large"
NOTHING: Final = Effects()


def cloud_of(**rules: Any) -> Cloud:
    cloud = Cloud()
    cloud.fold(ScenarioLoaded(at=0.0, scenario=Scenario(**rules)))
    return cloud


def launch(call_id: str = "call-1", **changes: Any) -> Launch:
    values: dict[str, Any] = {
        "at": 0.0,
        "call_id": call_id,
        "account": "1",
        "region": "us-east-1",
        "token": "t",
        "token_zone": ZONE,
        "request": "r",
        "deployment": "d",
        "batch": "b",
        "config": "c",
        "least": 1,
        "count": 1,
        "zone": ZONE,
        "subnet": "subnet-1",
        "instance_type": TYPE,
        "lifecycle": "on-demand",
        "image": "ami-1",
        "stays_when_off": False,
        "tags": {},
    }
    return Launch(**(values | changes))


def run(cloud: Cloud, call: Launch, now: float = 0.0, effects: Effects = NOTHING) -> tuple[str, ...]:
    """Decide an accepted call and fold what it causes; returns the ids in its answer."""
    ids = decided(cloud, call, now, effects)
    assert isinstance(ids, tuple), ids
    return ids


def decided(cloud: Cloud, call: Launch, now: float = 0.0, effects: Effects = NOTHING) -> tuple[str, ...] | str:
    """Decide a call and fold what it causes; returns the ids in its answer, or the code of its refusal."""
    cloud.fold(call)
    reply = Reply(at=now, call_id=call.call_id, account=call.account, action="RunInstances", code="OK")
    try:
        decision = decide_launch(cloud, call, effects, now=now)
    except Refused as refused:
        cloud.fold(msgspec.structs.replace(reply, code=refused.code))
        return refused.code
    if isinstance(decision, Repeated):
        return decision.instance_ids
    ids = tuple(f"i-{cloud.created + n:08d}" for n in range(decision.count))
    for index, id_ in enumerate(ids):
        cloud.fold(created(cloud, call, id_, (f"r-{call.call_id}", index), effects, now, Random(0)))
    cloud.fold(msgspec.structs.replace(reply, instance_ids=ids))
    return ids


def end(cloud: Cloud, instance_id: str, at: float) -> None:
    cloud.fold(ShuttingDown(at=at, instance_id=instance_id, by="api", reason="x"))
    cloud.fold(Terminated(at=at, instance_id=instance_id, account="1", by="api", reason="x"))


def test_repeat_answers_the_same_ids() -> None:
    cloud = cloud_of()
    first = run(cloud, launch(count=3))
    assert len(first) == 3
    assert run(cloud, launch("call-2", count=3)) == first
    assert cloud.created == 3


def test_repeat_after_part_of_the_instances_ended_answers_all() -> None:
    cloud = cloud_of()
    first = run(cloud, launch(count=2))
    end(cloud, first[0], 1.0)
    assert run(cloud, launch("call-2", count=2)) == first
    end(cloud, first[1], 2.0)
    assert decided(cloud, launch("call-3", count=2)) == "IdempotentInstanceTerminated"
    assert cloud.forget(2.0 + cloud.rules.expiry_seconds) == list(first)
    assert decided(cloud, launch("call-4", count=2)) == "IdempotentInstanceTerminated"


@pytest.mark.parametrize("refused", [False, True])
def test_other_parameters_are_refused_whatever_became_of_the_first_call(refused: bool) -> None:
    cloud = cloud_of(capacity={ZONE: 0 if refused else 1})
    decided(cloud, launch())
    assert decided(cloud, launch("call-2", request="other")) == "IdempotentParameterMismatch"


def test_repeat_of_a_refused_call_is_decided_anew() -> None:
    cloud = cloud_of(capacity={ZONE: ((0, 0), (10, 5))})
    assert decided(cloud, launch(), now=0.0) == "InsufficientInstanceCapacity"
    assert len(run(cloud, launch("call-2"), now=11.0)) == 1


def test_throttled_call_leaves_its_token_unused() -> None:
    cloud = cloud_of()
    call = launch()
    cloud.fold(call)
    reply = Reply(at=0.0, call_id="call-1", account="1", action="RunInstances", code="RequestLimitExceeded")
    cloud.fold(reply)
    assert len(run(cloud, launch("call-2", request="other"))) == 1


@pytest.mark.parametrize("change", [{"token_zone": ""}, {"account": "2"}, {"region": "eu-west-1"}])
def test_token_of_another_zone_account_or_region_is_another_token(change: dict[str, str]) -> None:
    cloud = cloud_of()
    assert run(cloud, launch()) != run(cloud, launch("call-2", **change))


def test_fault_and_scenario_without_tokens() -> None:
    cloud = cloud_of()
    assert run(cloud, launch()) != run(cloud, launch("call-2"), effects=Effects(ignore_token=True))
    cloud = cloud_of(honours_tokens=False)
    assert run(cloud, launch()) != run(cloud, launch("call-2"))


def test_refused_repeat_proves_nothing_if_tokens_are_looked_at_last() -> None:
    cloud = cloud_of(tokens_first=False, capacity={ZONE: 1})
    first = run(cloud, launch())
    assert decided(cloud, launch("call-2")) == "InsufficientInstanceCapacity"
    end(cloud, first[0], 1.0)
    cloud.fold(ScenarioLoaded(at=0.0, scenario=Scenario(tokens_first=False)))
    assert decided(cloud, launch("call-3")) == "IdempotentInstanceTerminated"


@given(st.integers(0, 8), st.integers(0, 8), st.integers(0, 8), st.integers(1, 9), st.integers(1, 9))
def test_as_many_as_every_limit_admits(zone: int, kind: int, spot: int, least: int, more: int) -> None:
    limits = {ZONE: zone, f"{ZONE}/{TYPE}": kind, f"{ZONE}/{TYPE}/spot": spot, "us-east-1b": 0}
    cloud = cloud_of(capacity=limits)
    count = least + more
    room = min(zone, kind, spot)
    got = decided(cloud, launch(lifecycle="spot", least=least, count=count))
    if room < least:
        assert got == "InsufficientInstanceCapacity"
    else:
        assert len(got) == min(room, count)
        assert cloud.live(ZONE, TYPE, "spot") == len(got)


def test_capacity_counts_what_lives_in_all_accounts() -> None:
    cloud = cloud_of(capacity={f"{ZONE}/{TYPE}/on-demand": 2})
    first = run(cloud, launch())
    assert len(run(cloud, launch("call-2", account="2", count=5))) == 1
    assert decided(cloud, launch("call-3", token="u")) == "InsufficientInstanceCapacity"
    assert len(run(cloud, launch("call-4", token="v", lifecycle="spot"))) == 1
    end(cloud, first[0], 1.0)
    assert len(run(cloud, launch("call-5", token="w"))) == 1


def test_quota_is_in_vcpus_of_a_family_and_a_lifecycle() -> None:
    cloud = cloud_of(accounts={"1": CloudAccount({"standard": 6, "standard/spot": 0})})
    assert len(run(cloud, launch(count=5))) == 3
    assert decided(cloud, launch("call-2", token="u", instance_type="c6i.large")) == "VcpuLimitExceeded"
    assert decided(cloud, launch("call-3", token="v", lifecycle="spot")) == "MaxSpotInstanceCountExceeded"
    assert len(run(cloud, launch("call-4", token="w", instance_type="p3.2xlarge"))) == 1
    assert len(run(cloud, launch("call-5", token="x", account="2"))) == 1


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (f"zone:{ZONE}", "InsufficientInstanceCapacity"),
        (f"capacity:{ZONE}/{TYPE}", "InsufficientInstanceCapacity"),
        (f"capacity:{ZONE}/{TYPE}/on-demand", "InsufficientInstanceCapacity"),
        (f"capacity:{ZONE}/{TYPE}/spot", ""),
        ("quota:1", "VcpuLimitExceeded"),
        ("quota:2", ""),
        ("subnet:subnet-1", "InsufficientFreeAddressesInSubnet"),
    ],
)
def test_faults_refuse_launches(fault: str, code: str) -> None:
    cloud = cloud_of()
    for parsed in NOTATION.parse(fault):
        cloud.fold(FaultSet(at=0.0, fault=parsed))
    got = decided(cloud, launch(), effects=cloud.effects(1.0))
    assert got == code if code else len(got) == 1


def test_windows_of_faults_are_in_product_time() -> None:
    cloud = Cloud()
    scenario = Scenario(speed=10, faults=NOTATION.parse(f"zone:{ZONE}:10s-20s"))
    cloud.fold(ScenarioLoaded(at=100.0, scenario=scenario))
    assert [bool(cloud.effects(at).no_capacity) for at in (100.5, 101.5, 102.5)] == [False, True, False]


def instance(cloud: Cloud) -> InstanceCreated:
    (instance_id,) = run(cloud, launch(), now=10.0)
    return cloud.instances[instance_id].created


def test_states_of_an_instance() -> None:
    cloud = cloud_of(pending_seconds=5, visibility_seconds=2)
    made = instance(cloud)
    assert (made.visible_at, made.runs_at) == (12.0, 15.0)
    found = cloud.instances[made.instance_id]
    assert [found.state(at) for at in (10.0, 14.9, 15.0)] == ["pending", "pending", "running"]
    cloud.fold(ShuttingDown(at=20.0, instance_id=made.instance_id, by="spot", reason="r"))
    assert (found.state(20.0), found.reason, found.lives) == ("shutting-down", "r", False)
    cloud.fold(Terminated(at=21.0, instance_id=made.instance_id, account="1", by="spot", reason="r"))
    assert found.state(21.0) == "terminated"
    assert cloud.forget(21.0 + cloud.rules.expiry_seconds - 1) == []
    assert cloud.forget(21.0 + cloud.rules.expiry_seconds) == [made.instance_id]


def test_bad_image_breaks_and_a_death_never_runs() -> None:
    cloud = cloud_of()
    effects = NOTATION.effects(NOTATION.parse("bad-image:ami-1,dies:Server.InternalError,late-listing:7"), 0.0)
    made = created(cloud, launch(), "i-1", ("r-1", 0), effects, 0.0, Random(0))
    assert (made.breaks, made.dies, made.visible_at) == (True, "Server.InternalError", 7.0)
    never = cloud_of(images={"ami-1": Image(bad="never_registers")})
    assert created(never, launch(), "i-1", ("r-1", 0), Effects(), 0.0, Random(0)).boots_at is None
    cloud.fold(launch())
    cloud.fold(made)
    assert cloud.instances["i-1"].state(1e9) == "pending"


def test_interruption_gives_each_spot_machine_one_notice() -> None:
    cloud = cloud_of(notice_seconds=120)
    run(cloud, launch())
    (spot,) = run(cloud, launch("call-2", token="u", lifecycle="spot"))
    run(cloud, launch("call-3", token="v", lifecycle="spot", zone="us-east-1b"))
    effects = Effects(interrupted=frozenset({f"{ZONE}/{TYPE}"}))
    notices = list(interrupted(cloud, effects, now=50.0))
    assert notices == [Noticed(at=50.0, instance_id=spot, notice="interruption", ends_at=170.0)]
    cloud.fold(notices[0])
    assert list(interrupted(cloud, effects, now=51.0)) == []


@pytest.mark.parametrize(
    ("instance_type", "of", "cpus"),
    [
        ("m5.large", "standard", 2),
        ("c6i.4xlarge", "standard", 16),
        ("t3.micro", "standard", 1),
        ("im4gn.large", "standard", 2),
        ("d3.xlarge", "standard", 4),
        ("g5.xlarge", "g-vt", 4),
        ("vt1.3xlarge", "g-vt", 12),
        ("p4d.24xlarge", "p", 96),
        ("inf2.xlarge", "inf", 4),
        ("dl1.24xlarge", "dl", 96),
        ("x2idn.16xlarge", "x", 64),
        ("hpc6a.48xlarge", "hpc", 192),
        ("mac1.metal", "mac", 96),
    ],
)
def test_families_and_sizes(instance_type: str, of: str, cpus: int) -> None:
    assert (family(instance_type), vcpus(instance_type)) == (of, cpus)


@pytest.mark.parametrize("counts", [{"least": 0}, {"least": 2, "count": 1}, {"count": 1001}])
def test_bad_counts_are_refused(counts: dict[str, Any]) -> None:
    assert decided(cloud_of(), launch(**counts)) == "InvalidParameterValue"


def test_granted_is_a_number() -> None:
    assert decide_launch(cloud_of(), launch(count=4), NOTHING, now=0.0) == Granted(4)
