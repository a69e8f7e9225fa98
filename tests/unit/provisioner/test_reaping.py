"""A listing against the rows: what nobody asked for, what is gone, and which listings are not believed."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from slipway_common.lifecycle import State
from slipway_provisioner.domain.binding import bind
from slipway_provisioner.domain.cloud import Instance
from slipway_provisioner.domain.reaping import Findings, judge
from slipway_provisioner.domain.workers import Worker

NOW = datetime(2030, 1, 1, tzinfo=UTC)
SETTLED = 70.0


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def listed(name: str, age: float = 500, batch: str = "b") -> Instance:
    return Instance(id=name, batch_id=batch, created_at=ago(age), running=True)


def worker(instance_id: str | None, age: float = 500, state: State = State.RUNNING, **changes: Any) -> Worker:
    return Worker(
        id=f"w-{instance_id}",
        pool_id="p",
        launch_config_id="c",
        account_id="a",
        image_revision="i",
        state=state,
        decision_id="d",
        batch_id="b",
        instance_id=instance_id,
        requested_at=ago(900),
        launched_at=ago(age),
        **changes,
    )


def found(
    instances: list[Instance], workers: list[Worker], batches: dict[str, str] | None = None, *, ours: bool = True
) -> Findings:
    return judge(
        instances,
        workers,
        {"b": "known"} if batches is None else batches,
        listed_at=NOW,
        settled_seconds=SETTLED,
        identity_matches=ours,
    )


#           instance, batches, surplus
SURPLUS: list[tuple[Instance, dict[str, str], bool]] = [
    (listed("x"), {"b": "known"}, True),
    (listed("x"), {}, True),  # a batch that we never had, or forgot
    (listed("x", batch=""), {}, True),
    (listed("x"), {"b": "calling"}, False),  # its outcome is not known yet
    (listed("x", 69), {"b": "known"}, False),  # too young to be judged
    (listed("x", 71), {"b": "known"}, True),
]


@pytest.mark.parametrize(("instance", "batches", "surplus"), SURPLUS)
def test_surplus(instance: Instance, batches: dict[str, str], surplus: bool) -> None:
    """An instance that no worker has, of a batch whose outcome is certain."""
    assert found([instance, listed("mine")], [worker("mine")], batches).surplus == (["x"] if surplus else [])


@pytest.mark.parametrize(("ended", "surplus"), [(-1, False), (69, False), (71, True)])
def test_an_instance_whose_worker_has_ended(ended: float, surplus: bool) -> None:
    """After the listing was taken, or so short before that it ends by itself; what outlives its worker is surplus."""
    findings = found([listed("x")], [worker("x", state=State.STOPPED, ended_at=ago(ended))])
    assert (findings.surplus, findings.missing, findings.implausible) == (["x"] if surplus else [], [], "")


def test_missing_and_believed() -> None:
    """One of five is within what may happen at once; what is too young to be listed is not missing."""
    workers = [worker(f"i{n}") for n in range(5)] + [worker("new", age=10), worker(None)]
    findings = found([listed(f"i{n}") for n in range(4)], workers)
    assert (findings.missing, findings.implausible) == (["w-i4"], "")


#              listed, ours, why it is not believed
IMPLAUSIBLE = [
    (3, True, "2 of 5 workers vanished in one pass"),
    (0, True, "the listing is empty"),
    (5, False, "the cloud says that we are somebody else"),
]


@pytest.mark.parametrize(("number", "ours", "why"), IMPLAUSIBLE)
def test_implausible_listings(number: int, ours: bool, why: str) -> None:
    """Whatever they lack is in doubt, not gone."""
    findings = found([listed(f"i{n}") for n in range(number)], [worker(f"i{n}") for n in range(5)], ours=ours)
    assert findings.implausible == why


def test_a_strangers_listing_ends_nothing() -> None:
    """What looks like surplus there is somebody else's."""
    assert found([listed("theirs")], [], ours=False).surplus == []


def test_leaving_workers_may_vanish_at_once() -> None:
    """They were told to: a fleet that scales to zero is no broken listing."""
    workers = [worker(f"i{n}", state=State.STOPPING) for n in range(5)]
    findings = found([], workers)
    assert (len(findings.missing), findings.implausible) == (5, "")


def test_an_instance_of_an_ended_worker_is_nobody_elses() -> None:
    """A repeated reply names it again; it goes to no other intent of the batch, and the rest is bound as usual."""
    ended, waiting = worker("x", state=State.STOPPED), worker(None, state=State.LAUNCHING)
    binding = bind([ended, waiting], ["x", "y"])
    assert (list(binding.bound), list(binding.left), list(binding.surplus)) == ([(waiting, "y")], [], [])
    assert bind([ended, waiting], ["x"]).left == [waiting]
