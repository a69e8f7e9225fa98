"""Drills: their arguments, the mutants with which they have to fail, and what they lose and count."""

from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import cast

import msgspec
import pytest

from slipway_api.events.lease import LeaseExpired, LeaseGranted
from slipway_api.events.topics import LEASE_LIFECYCLE
from slipway_common.messaging.envelope import Envelope
from slipway_local.check.evidence import Published
from slipway_simulator import facts
from tests.drills import ec2_storm
from tests.drills.__main__ import DRILLS, parse_arguments
from tests.drills.harness import Harness
from tests.drills.lost_grant import Loss
from tests.drills.restore import launched_twice, numbers_used_twice, revisions_used_twice
from tests.tools.mutants import ROOT, rows_of


def test_every_drill_has_a_mutant() -> None:
    assert {drill.mutant for drill in DRILLS.values()} <= set(rows_of())


def test_the_guide_lists_every_drill_with_its_mutant() -> None:
    guide = Path(ROOT, "docs", "guides", "drills.md").read_text()
    rows = [line.split(" | ") for line in guide.splitlines() if line.startswith("| `")]
    assert {row[0]: row[-1] for row in rows} == {f"| `{name}`": f"`{drill.mutant}` |" for name, drill in DRILLS.items()}


def test_arguments() -> None:
    """Without ONLY all drills are played but those on EC2 and of Terraform, at a speed of their own."""
    left_out = set(DRILLS) - set(parse_arguments({}).names)
    assert left_out == {name for name in DRILLS if name.startswith(("ec2-", "terraform-"))}
    assert left_out
    assert parse_arguments({"ONLY": "stop", "SEED": "3", "SPEED": "10"}) == parse_arguments(
        {"ONLY": "stop", "SEED": "3", "SPEED": "10.0"}
    )


@pytest.mark.parametrize(
    ("given", "text"),
    [({"ONLY": "stops"}, "unknown stops"), ({"SEED": "x"}, "SEED has to be an integer"), ({"SPEED": "-1"}, "positive")],
)
def test_bad_arguments(given: dict[str, str], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        parse_arguments(given)


@pytest.mark.parametrize(("name", "given"), [("WORKERS", "many"), ("KILLS", "-1")])
async def test_a_storm_in_bad_numbers_is_not_played(monkeypatch: pytest.MonkeyPatch, name: str, given: str) -> None:
    """Nothing is started in the harness."""
    monkeypatch.setenv(name, given)
    verdict = await ec2_storm.play(cast(Harness, None))
    assert f"{name}={given}" in verdict.problems[0]


AT = datetime(2030, 1, 1, tzinfo=UTC)


def test_which_grants_are_lost() -> None:
    """The first lease loses every grant and the first event of its end; the second only its first grant."""
    loss = Loss(Random(1))

    def is_lost(lease_id: str, type_: type[LeaseGranted | LeaseExpired]) -> bool:
        known = {"lease_pool_id": "p", "lease_id": lease_id, "request_id": "r", "units": 1}
        granted = {"fencing_token": 1, "expires_at": AT, "hold_until": AT, "waited_seconds": 0.0}
        event = known | (granted if type_ is LeaseGranted else {})
        return loss.loses(LEASE_LIFECYCLE, type_.type, msgspec.json.encode(event))

    assert [is_lost("a", LeaseGranted), is_lost("b", LeaseGranted)] == [True, True]
    assert [is_lost("a", LeaseGranted), is_lost("b", LeaseGranted)] == [True, False]
    assert [is_lost("a", LeaseExpired), is_lost("a", LeaseExpired)] == [True, False]
    assert is_lost("b", LeaseExpired) is False
    assert [loss.number(LeaseGranted), loss.number(LeaseExpired)] == [2, 1]


def test_machines_launched_twice() -> None:
    """Those created after the confirmation that did no task, but for each task that ended just before it."""

    def machine(name: str, at: float) -> facts.InstanceCreated:
        texts = dict.fromkeys(
            (
                "call_id",
                "account",
                "token",
                "request",
                "deployment",
                "batch",
                "config",
                "zone",
                "instance_type",
                "image",
            ),
            "",
        )
        return facts.InstanceCreated(
            at=at, instance_id=name, visible_at=at, boots_at=at, claims=True, user_data={}, **texts
        )

    def started(name: str, at: float) -> facts.TaskStarted:
        return facts.TaskStarted(at=at, task_id=f"t-{name}", pool_id="p", instance_id=name, ends_at=None)

    def ended(name: str, at: float) -> facts.TaskEnded:
        return facts.TaskEnded(at=at, task_id=f"t-{name}", pool_id="p", instance_id=name, result="done")

    ledger: list[facts.Fact] = [
        machine("i-0", 10.0),
        started("i-0", 20.0),
        machine("i-1", 101.0),
        started("i-1", 110.0),
    ]
    assert launched_twice(ledger, 100.0) == 0
    twice = [*ledger, machine("i-2", 102.0)]
    assert launched_twice(twice, 100.0) == 1
    assert launched_twice([*twice, ended("i-0", 90.0)], 100.0) == 1
    assert launched_twice([*twice, ended("i-0", 99.5)], 100.0) == 0


def published(offset: int, source: str, number: int, revision: int, event_id: str) -> Published:
    envelope = Envelope(
        id=event_id,
        type="t",
        source="/slipway/a",
        subject="s",
        time=AT,
        sequence_number=number,
        previous=number - 1,
        sequence_source=source,
        revision=revision,
    )
    return Published("topic", 0, offset, envelope, None)


#       records as (source, number, revision, id), numbers used twice, revisions used twice
DROPPED = [
    ([("x", 1, 1, "a"), ("x", 2, 2, "b")], 0, 0),
    ([("x", 1, 1, "a"), ("x", 2, 2, "b"), ("x", 1, 1, "a")], 0, 0),  # sent again
    ([("x", 1, 1, "a"), ("x", 1, 1, "a")], 0, 0),
    ([("x", 1, 1, "a"), ("x", 2, 2, "b"), ("x", 2, 3, "c")], 1, 0),
    ([("x", 1, 5, "a"), ("y", 1, 5, "b"), ("y", 2, 6, "c")], 0, 1),
]


@pytest.mark.parametrize(("records", "numbers", "revisions"), DROPPED)
def test_events_that_consumers_drop(records: list[tuple[str, int, int, str]], numbers: int, revisions: int) -> None:
    """A number or a revision that consumers have seen, for another event."""
    found = [published(offset, *record) for offset, record in enumerate(records)]
    assert (numbers_used_twice(found), revisions_used_twice(found)) == (numbers, revisions)
