"""Evidence of the stand-in for EC2 about a run's machines, on synthetic facts."""

from typing import Any

from slipway_local.check.path_check import judge
from slipway_local.demo.agents import merged
from slipway_local.demo.ec2_machines import calls, counted, left, lives
from slipway_local.ec2 import facts as ec2
from slipway_simulator import facts
from tests.unit.local.ec2.test_cloud import cloud_of, launch, run
from tests.unit.local.test_agents import claimed, evidence

TAGS = {"slipway-account": "here"}


def written(*more: ec2.Fact) -> list[ec2.Fact]:
    """Ledger of a call for two machines, whose reply is lost, and of its repetition."""
    cloud = cloud_of()
    call = launch("call-1", at=1.5, batch="b1", config="c", count=2, tags=TAGS)
    ids = run(cloud, call, now=2.0)
    reply: dict[str, Any] = {"account": "1", "action": "RunInstances", "code": "OK", "instance_ids": ids}
    received: dict[str, Any] = {"account": "1", "region": "us-east-1", "action": "RunInstances"}
    again = launch("call-2", at=3.5, batch="b1", config="c", count=2, tags=TAGS)
    return [
        ec2.Call(at=1.0, call_id="call-1", **received),
        call,
        *(instance.created for instance in cloud.instances.values()),
        ec2.Reply(at=2.0, call_id="call-1", lost=True, **reply),
        ec2.Call(at=3.0, call_id="call-2", **received),
        again,
        ec2.Reply(at=4.0, call_id="call-2", repeated=True, **reply),
        ec2.Call(at=5.0, call_id="call-3", **received | {"action": "DescribeInstances"}),
        ec2.Reply(at=5.0, call_id="call-3", **reply | {"action": "DescribeInstances", "instance_ids": ()}),
        *more,
    ]


def test_launches_become_calls_of_the_slipway_account() -> None:
    found = list(calls(written()))
    asked = [fact for fact in found if isinstance(fact, facts.Call)]
    answers = [fact for fact in found if isinstance(fact, facts.Reply)]
    assert [(fact.at, fact.account, fact.count, fact.batch) for fact in asked] == [
        (1.0, "here", 2, "b1"),
        (3.0, "here", 2, "b1"),
    ]
    assert [(fact.code, fact.lost, fact.repeated, len(fact.instance_ids)) for fact in answers] == [
        ("OK", True, False, 2),
        ("OK", False, True, 2),
    ]


def test_machines_live_until_they_shut_down() -> None:
    first, second = (life.instance_id for life in lives(written()))
    ended = ec2.ShuttingDown(at=9.0, instance_id=first, by="self", reason="r")
    assert [(life.account_id, life.began_at, life.ended_at) for life in lives(written(ended))] == [
        ("here", 2.0, 9.0),
        ("here", 2.0, None),
    ]
    started = [ec2.Started(at=3.0, instance_id=id_, pid=1) for id_ in (first, second)]
    terminated = ec2.ShuttingDown(at=9.0, instance_id=second, by="api", reason="r")
    ledger = written(*started, ended, terminated)
    assert counted(evidence([claimed(5.0, "t", first)]), ledger) == {"booted": 2, "claimed": 1, "drained": 1}
    assert counted(evidence([claimed(5.0, "t", second)]), ledger) == {"booted": 2, "claimed": 1, "drained": 0}


def test_what_has_no_tag_is_left_behind() -> None:
    """A deletion by the tag would not find it."""
    volume, interface = {"instances": 0, "volumes": 1, "interfaces": 0}, {"instances": 0, "volumes": 0, "interfaces": 1}
    assert left({"mine": volume, "": interface, "other": volume}, "mine") == {
        "instances": 0,
        "volumes": 1,
        "interfaces": 1,
    }
    assert left({"other": volume}, "mine") == {"instances": 0, "volumes": 0, "interfaces": 0}


def test_machine_without_a_row_is_found_and_a_repetition_is_none() -> None:
    ledger = written()
    found, _ = merged(evidence([]), lives(ledger), list(calls(ledger)))
    report = judge(found)
    assert report.doubled + report.unmatched == 2
