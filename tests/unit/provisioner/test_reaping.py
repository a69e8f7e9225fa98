"""Comparison of a listing with worker rows: orphan and missing instances, implausible listings."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_api.events.lifecycle import LIVE, State
from slipway_provisioner.domain.binding import bind
from slipway_provisioner.domain.cloud import Instance, InstanceState
from slipway_provisioner.domain.reaping import Bound, Findings, Listing, Owner
from slipway_provisioner.domain.recovery import Orphan
from slipway_provisioner.domain.workers import Worker

NOW = datetime(2030, 1, 1, tzinfo=UTC)
SETTLED = 70.0


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def listed(name: str, age: float = 500, batch: str = "b") -> Instance:
    return Instance(id=name, batch_id=batch, created_at=ago(age), state=InstanceState.RUNNING)


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


def owner(worker: Worker) -> Owner:
    return Owner(worker.id, worker.instance_id or "", worker.ended_at, worker.state is State.STARTING)


def bound(worker: Worker) -> Bound:
    since = worker.launched_at or worker.requested_at
    return Bound(id=worker.id, instance_id=worker.instance_id or "", state=worker.state, since=since)


def found(
    instances: list[Instance],
    workers: list[Worker],
    batches: dict[str, str] | None = None,
    *,
    ours: bool = True,
    asked: Sequence[Orphan] = (),
    unconfirmed: str = "",
    page: int = 7,
) -> Findings:
    """Findings of a listing in pages, which is compared with these workers."""
    listing = Listing(listed_at=NOW, settled_seconds=SETTLED, identity_matches=ours)
    for start in range(0, len(instances), page):
        shown = instances[start : start + page]
        ids = {instance.id for instance in shown}
        listing.add_page(shown, [owner(w) for w in workers if w.instance_id in ids])
    live = [bound(w) for w in workers if w.state in LIVE and w.instance_id is not None]
    for start in range(0, len(live), page):
        listing.add_workers(live[start : start + page])
    states = {"b": "known"} if batches is None else batches
    return listing.findings(states, asked=asked, unconfirmed=unconfirmed)


def missing(findings: Findings) -> list[str]:
    return [worker.id for worker in findings.missing]


def question(name: str, decision: str = "", reason: str = "too many") -> Orphan:
    """An orphan instance that an earlier pass has asked about."""
    return Orphan(
        account_id="a",
        instance_id=name,
        batch_id="b",
        launch_config_id="c",
        created_at=ago(500),
        reason=reason,
        decision=decision,
    )


#           instance, batches, terminated?, kept?
ORPHANS: list[tuple[Instance, dict[str, str], bool, bool]] = [
    (listed("x"), {"b": "known"}, True, False),
    (listed("x"), {}, False, True),  # a batch that this database has never had
    (listed("x", batch=""), {"b": "known"}, False, True),
    (listed("x"), {"b": "calling"}, False, False),  # its outcome is not known yet
    (listed("x", 69), {"b": "known"}, False, False),  # too young
    (listed("x", 69), {}, False, True),  # unknown at any age
    (listed("x", -500), {}, False, True),  # launched after the newest pass that a restored database knows of
    (listed("x", 71), {"b": "known"}, True, False),
]


@pytest.mark.parametrize(("instance", "batches", "terminated", "kept"), ORPHANS)
def test_orphans(instance: Instance, batches: dict[str, str], terminated: bool, kept: bool) -> None:
    """An orphan is an instance that no worker has, of a batch whose outcome is certain. One of an unknown batch waits
    for a person."""
    findings = found([instance, listed("mine")], [worker("mine")], batches)
    assert findings.orphans == (["x"] if terminated else [])
    assert [each.instance.id for each in findings.kept] == (["x"] if kept else [])


#            orphans, workers, terminated?
LIMIT = [(20, 0, True), (21, 0, False), (21, 83, False), (21, 84, True), (100, 400, True), (101, 400, False)]


@pytest.mark.parametrize(("orphans", "workers", "terminated"), LIMIT)
def test_too_many_orphans_wait_for_a_person(orphans: int, workers: int, terminated: bool) -> None:
    """More than 20, and more than 20 % of the instances: none is terminated, and each is kept with the reason."""
    orphan_instances, mine = (
        [listed(f"{name}{n}") for n in range(number)] for name, number in (("o", orphans), ("m", workers))
    )
    findings = found([*orphan_instances, *mine], [worker(i.id) for i in mine])
    assert (len(findings.orphans), len(findings.kept)) == ((orphans, 0) if terminated else (0, orphans))
    assert {each.reason for each in findings.kept} <= {
        f"{orphans} of {orphans + workers} instances have no worker, too many for one pass"
    }


def test_what_a_person_has_decided_is_terminated() -> None:
    """Of any batch, and in any number; the others are kept."""
    orphan_instances = [listed(f"o{n}", batch=["", "b"][n % 2]) for n in range(120)]
    ids = [i.id for i in orphan_instances]
    to_terminate = [question(name, "terminate") for name in ids]
    everything = found(orphan_instances, [], asked=to_terminate)
    assert (everything.orphans, everything.kept) == (ids, [])
    half = found(orphan_instances, [], asked=to_terminate[:60])
    assert (half.orphans, [each.instance.id for each in half.kept]) == (ids[:60], [*ids[60::2], *ids[61::2]])
    assert found([listed("mine")], [worker("mine")], asked=[question("mine", "terminate")]).orphans == []


def test_what_is_kept_has_its_reason() -> None:
    """And the note of its provider; before a restore is confirmed also what a person has decided upon."""
    noted = Instance(id="n", batch_id="", created_at=ago(500), state=InstanceState.RUNNING, note="a module has made it")
    unknown = "its launch batch is unknown to this database"
    kept = found([listed("x", batch=""), noted], []).kept
    assert [each.reason for each in kept] == [unknown, f"{unknown}; a module has made it"]
    restored = found([listed("x")], [], asked=[question("x", "terminate")], unconfirmed="restored")
    assert [each.reason for each in restored.kept] == ["restored"]


def test_a_question_stays_open() -> None:
    """Instances that a person was asked about are not terminated because there are fewer of them by now."""
    orphan_instances = [listed(f"o{n}") for n in range(5)]
    findings = found(orphan_instances, [], asked=[question("o1"), question("o2", "leave"), question("o3", "terminate")])
    assert sorted(findings.orphans) == ["o0", "o3", "o4"]
    assert [(each.instance.id, each.reason) for each in findings.kept] == [("o1", "too many"), ("o2", "too many")]


def test_a_question_stays_open_once_another_instance_of_the_batch_is_adopted() -> None:
    """The batch is known then, and so is a young instance of it that was asked about, or decided upon, before."""
    siblings = [listed(name, age=10) for name in ("open", "leave", "terminate", "new")]
    asked = [question("open"), question("leave", "leave"), question("terminate", "terminate")]
    findings = found([*siblings, listed("adopted", age=10)], [worker("adopted", age=10)], asked=asked)
    assert (findings.orphans, [each.instance.id for each in findings.kept]) == (["terminate"], ["open", "leave"])


@given(
    st.lists(st.tuples(st.sampled_from(["", "b", "other"]), st.booleans(), st.booleans()), max_size=60), st.booleans()
)
def test_nothing_is_terminated_before_a_restore_is_confirmed(
    instances: list[tuple[str, bool, bool]], ours: bool
) -> None:
    """Each orphan is either terminated or kept, never both, and all are kept until the confirmation."""
    orphan_instances = [listed(f"o{n}", batch=batch) for n, (batch, _, _) in enumerate(instances)]
    chosen = [i for i, (_, is_chosen, _) in zip(orphan_instances, instances, strict=True) if is_chosen]
    to_terminate = [question(i.id, "terminate") for i in chosen]
    mine = [worker(i.id) for i, (_, _, bound) in zip(orphan_instances, instances, strict=True) if bound]
    free = {i.id for i in orphan_instances} - {w.instance_id for w in mine}
    trusted = found(orphan_instances, mine, ours=ours, asked=to_terminate)
    assert sorted([*trusted.orphans, *(each.instance.id for each in trusted.kept)]) == (sorted(free) if ours else [])
    assert {i.id for i in orphan_instances if i.batch_id != "b"} & set(trusted.orphans) <= {
        each.instance_id for each in to_terminate
    }
    restored = found(orphan_instances, mine, ours=ours, asked=to_terminate, unconfirmed="restored")
    assert restored.orphans == []
    assert {each.instance.id for each in restored.kept} == (free if ours else set())


@pytest.mark.parametrize(("ended", "orphan"), [(-1, False), (69, False), (71, True)])
def test_an_instance_of_a_stopped_worker(ended: float, orphan: bool) -> None:
    """An orphan once its worker stopped longer ago than `settled_seconds`; a younger one may still end by itself."""
    findings = found([listed("x")], [worker("x", state=State.STOPPED, ended_at=ago(ended))])
    assert (findings.orphans, missing(findings), findings.implausible) == (["x"] if orphan else [], [], "")


def test_missing_in_a_plausible_listing() -> None:
    """One missing instance of five is plausible; instances too young to be listed are not missing."""
    workers = [worker(f"i{n}") for n in range(5)] + [worker("new", age=10), worker(None)]
    findings = found([listed(f"i{n}") for n in range(4)], workers)
    assert (missing(findings), findings.implausible) == (["w-i4"], "")


#              listed, ours, reason
IMPLAUSIBLE = [
    (3, True, "2 of 5 instances went missing in one pass"),
    (0, True, "the listing is empty"),
    (5, False, "the credentials belong to another account"),
]


@pytest.mark.parametrize(("number", "ours", "reason"), IMPLAUSIBLE)
def test_implausible_listings(number: int, ours: bool, reason: str) -> None:
    """An implausible listing has its reason, in however many pages workers are read."""
    for page in (2, 5):
        workers = [worker(f"i{n}") for n in range(5)]
        findings = found([listed(f"i{n}") for n in range(number)], workers, ours=ours, page=page)
        assert findings.implausible == reason


@given(
    st.lists(st.tuples(st.sampled_from(["", "b", "other"]), st.integers(0, 140), st.booleans()), max_size=80),
    st.lists(st.sampled_from([State.RUNNING, State.STARTING, State.STOPPING, State.STOPPED]), max_size=80),
    st.integers(1, 90),
)
def test_pages_change_nothing(instances: list[tuple[str, int, bool]], states: list[State], page: int) -> None:
    """The findings are those of a listing in one page, also if an instance is on two pages."""
    shown = [listed(f"i{n}", age, batch) for n, (batch, age, _) in enumerate(instances)]
    again = [instance for instance, (_, _, twice) in zip(shown, instances, strict=True) if twice]
    workers = [worker(f"i{2 * n}", state=state) for n, state in enumerate(states)]
    whole, paged = (found([*shown, *again], workers, page=size) for size in (1000, page))
    assert whole == paged


def test_what_starts_as_its_instance_runs() -> None:
    """Where the listing is the boot evidence, and only of instances that run."""
    listing = Listing(listed_at=NOW, settled_seconds=SETTLED, identity_matches=True)
    pending = Instance(id="pending", batch_id="b", created_at=ago(500), state=InstanceState.PENDING)
    owners = [Owner("w-1", "runs", boots=True), Owner("w-2", "pending", boots=True), Owner("w-3", "agent")]
    listing.add_page([listed("runs"), pending, listed("agent")], owners)
    listing.add_page([listed("later")], [Owner("w-4", "later", boots=True)])
    assert listing.booted == {"w-1": "runs", "w-4": "later"}


def test_an_instance_that_gets_a_worker_during_the_listing() -> None:
    """It is no orphan, as the rows that are read after the listing show."""
    listing = Listing(listed_at=NOW, settled_seconds=SETTLED, identity_matches=True)
    listing.add_page([listed("x"), listed("y")], [])
    listing.disown([Owner("w", "x")])
    assert listing.findings({"b": "known"}).orphans == ["y"]


def test_a_listing_of_another_account_yields_no_orphans() -> None:
    """Unknown instances of another account are never terminated."""
    findings = found([listed("theirs"), listed("unknown", batch="")], [], ours=False)
    assert (findings.orphans, findings.kept) == ([], [])


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
