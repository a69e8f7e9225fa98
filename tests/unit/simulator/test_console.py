"""Console output of a machine, and its user data in the forms that people write."""

import json
from typing import Any

import pytest

from slipway_simulator.console import console
from slipway_simulator.facts import (
    Claimed,
    ClaimUnknown,
    DrainRequested,
    Fact,
    Idle,
    InstanceCreated,
    Refused,
    Registered,
    TaskEnded,
    TaskStarted,
    Terminated,
)
from slipway_simulator.user_data import found

WHO: dict[str, Any] = {"instance_id": "i-1", "worker_id": "w-1", "pool_id": "linux"}


def created(instance_id: str = "i-1", account: str = "here", boots_at: float | None = 130.0) -> InstanceCreated:
    return InstanceCreated(
        at=100.0,
        instance_id=instance_id,
        call_id="call",
        account=account,
        token="token",
        request="request",
        deployment="ci",
        batch="batch",
        config="config",
        zone="zone-a",
        instance_type="m5",
        image="linux-1",
        visible_at=100.0,
        boots_at=boots_at,
        claims=True,
        user_data={"secret": "the-secret"},
    )


#        fact, what the console prints of it
FACTS: list[tuple[Fact, str]] = [
    (Registered(at=130.0, token="the-token", **WHO), "registered as worker w-1 of pool linux"),
    (Refused(at=130.0, instance_id="i-1", status=403), "the provisioner refused the registration: HTTP 403"),
    (TaskStarted(at=130.0, task_id="t", pool_id="linux", instance_id="i-1", ends_at=140.0), "task t started"),
    (TaskEnded(at=130.0, task_id="t", pool_id="linux", instance_id="i-1", result="done"), "task t ended: done"),
    (DrainRequested(at=130.0, instance_id="i-1", worker_id="w-1"), "draining at the provisioner's request"),
    (Terminated(at=130.0, instance_id="i-1", account="here", by="self"), "power off by self"),
    (Claimed(at=130.0, task_id="t", status=409, **WHO), "the provisioner answered HTTP 409"),
    (Claimed(at=130.0, task_id="t", status=200, **WHO), ""),
    (Idle(at=130.0, status=300, **WHO), "the provisioner answered HTTP 300"),
    (ClaimUnknown(at=130.0, instance_id="i-1"), ""),
]


@pytest.mark.parametrize(("fact", "text"), FACTS)
def test_a_line_of_a_machine(fact: Fact, text: str) -> None:
    """A fact has a line, unless it is no news; seconds count from the creation."""
    assert console([created(), fact], "here", "i-1")[1:] == ([f"[     30.0] {text}"] if text else [])


def test_only_lines_of_the_machine_of_the_account() -> None:
    mine, other = created(boots_at=None), created("i-2")
    facts: list[Fact] = [Refused(at=90.0, instance_id="i-1", status=403), mine, other]
    assert console(facts, "here", "i-1") == [
        "[      0.0] booting linux-1 on m5 in zone-a; kernel panic: no init found",
    ]
    assert console(facts, "here", "i-2") == ["[      0.0] booting linux-1 on m5 in zone-a"]
    assert console(facts, "elsewhere", "i-1") == []


AGENT = {"batch_id": "batch", "secret": "s"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (json.dumps(AGENT), AGENT),
        (f"#!/bin/sh\nf() {{ :; }}\nrun '{json.dumps(AGENT)}'\n", AGENT),
        (f'#cloud-config\nwrite: {{"path": "/etc/x"}}\ndata: {json.dumps(AGENT)}\n', AGENT),
        ('{"pool_id": "linux"}', {}),
        ("#!/bin/sh\n", {}),
    ],
)
def test_data_of_the_agent_in_user_data(text: str, expected: dict[str, str]) -> None:
    assert found(text) == expected
