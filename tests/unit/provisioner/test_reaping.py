"""Comparison of a listing with worker rows: orphan and missing instances, implausible listings."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from slipway_common.events.lifecycle import State
from slipway_provisioner.domain.binding import bind
from slipway_provisioner.domain.cloud import Instance
from slipway_provisioner.domain.reaping import Findings, compare
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
    return compare(
        instances,
        workers,
        {"b": "known"} if batches is None else batches,
        listed_at=NOW,
        settled_seconds=SETTLED,
        identity_matches=ours,
    )


#           instance, batches, orphan?
ORPHANS: list[tuple[Instance, dict[str, str], bool]] = [
    (listed("x"), {"b": "known"}, True),
    (listed("x"), {}, True),  # an unknown or deleted batch
    (listed("x", batch=""), {}, True),
    (listed("x"), {"b": "calling"}, False),  # its outcome is not known yet
    (listed("x", 69), {"b": "known"}, False),  # too young
    (listed("x", 71), {"b": "known"}, True),
]


@pytest.mark.parametrize(("instance", "batches", "orphan"), ORPHANS)
def test_orphans(instance: Instance, batches: dict[str, str], orphan: bool) -> None:
    """An orphan is an instance that no worker has, of a batch whose outcome is certain."""
    assert found([instance, listed("mine")], [worker("mine")], batches).orphans == (["x"] if orphan else [])


@pytest.mark.parametrize(("ended", "orphan"), [(-1, False), (69, False), (71, True)])
def test_an_instance_of_a_stopped_worker(ended: float, orphan: bool) -> None:
    """An orphan once its worker stopped longer ago than `settled_seconds`; a younger one may still end by itself."""
    findings = found([listed("x")], [worker("x", state=State.STOPPED, ended_at=ago(ended))])
    assert (findings.orphans, findings.missing, findings.implausible) == (["x"] if orphan else [], [], "")


def test_missing_in_a_plausible_listing() -> None:
    """One missing instance of five is plausible; instances too young to be listed are not missing."""
    workers = [worker(f"i{n}") for n in range(5)] + [worker("new", age=10), worker(None)]
    findings = found([listed(f"i{n}") for n in range(4)], workers)
    assert (findings.missing, findings.implausible) == (["w-i4"], "")


#              listed, ours, reason
IMPLAUSIBLE = [
    (3, True, "2 of 5 instances went missing in one pass"),
    (0, True, "the listing is empty"),
    (5, False, "the credentials belong to another account"),
]


@pytest.mark.parametrize(("number", "ours", "reason"), IMPLAUSIBLE)
def test_implausible_listings(number: int, ours: bool, reason: str) -> None:
    """An implausible listing has its reason."""
    findings = found([listed(f"i{n}") for n in range(number)], [worker(f"i{n}") for n in range(5)], ours=ours)
    assert findings.implausible == reason


def test_a_listing_of_another_account_yields_no_orphans() -> None:
    """Unknown instances of another account are never terminated."""
    assert found([listed("theirs")], [], ours=False).orphans == []


def test_stopping_workers_may_go_missing_at_once() -> None:
    """The listing of a fleet that scales to zero is plausible."""
    workers = [worker(f"i{n}", state=State.STOPPING) for n in range(5)]
    findings = found([], workers)
    assert (len(findings.missing), findings.implausible) == (5, "")


def test_an_instance_of_a_stopped_worker_is_not_bound_again() -> None:
    """A repeated reply that names it binds only the other instances."""
    ended, waiting = worker("x", state=State.STOPPED), worker(None, state=State.LAUNCHING)
    binding = bind([ended, waiting], ["x", "y"])
    assert (list(binding.bound), list(binding.unbound), list(binding.orphans)) == ([(waiting, "y")], [], [])
    assert bind([ended, waiting], ["x"]).unbound == [waiting]
